"""The models of a page beside networks that were measured before: test error against one of their headlines."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import torch
from markupsafe import Markup, escape

from lisse.maths.power_law import PowerLaw, power_law
from lisse.profile import Row
from lisse.reporting.page.axis import Extent, extent_of, short_number
from lisse.reporting.page.entries import Entries, PageModel
from lisse.reporting.page.headline import heading_entry, page_headings
from lisse.reporting.page.plots import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH
from lisse.reporting.page.svg import Point, element, mark_path, path_of, text


@dataclass(frozen=True)
class Peers:
    """The picture, the words below it, the instrument it belongs to, and the headline that is its axis."""

    svg: Markup
    says: str
    instrument: str
    label: str


@dataclass(frozen=True)
class _Place:
    """A model: the row of its headline, and its test error."""

    model: PageModel
    row: Row
    error: float

    @property
    def reach(self) -> list[tuple[float, float]]:
        """The ends of the intervals of the value and of the error, as pairs of points, where there are such."""
        low, high, ends = self.row.low, self.row.high, []
        if low is not None and high is not None and 0 < low <= high < math.inf:
            ends += [(low, self.error), (high, self.error)]
        score = self.model.profile.provenance.get("score", {})
        low, high = score.get("low"), score.get("high")
        if isinstance(low, float) and isinstance(high, float) and 0 < low <= high < 1:
            ends += [(self.row.value, low), (self.row.value, high)]
        return ends

    def belongs(self, group: Mapping[str, Any]) -> bool:
        """Whether it was measured on the data and at the setting of a group of networks."""
        return self.model.data.get("name") == group["data"] and group["at"].items() <= self.row.at.items()


@dataclass(frozen=True)
class _Plane:
    """The two logarithmic axes: the headline along, test error up."""

    across: Extent
    up: Extent

    def at(self, value: float, error: float) -> Point:
        return (
            LEFT + self.across.share(value) * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - self.up.share(error) * (HEIGHT - TOP - BOTTOM),
        )

    def curve(self, law: Callable[[float], Any], steps: int = 60) -> list[Point]:
        """A law from the left edge to the right, where the plane holds it."""
        low, high = self.across.low, self.across.high
        values = [low * (high / low) ** (step / steps) for step in range(steps + 1)]
        return [self.at(value, error) for value in values if self.up.holds(error := float(law(value)))]


@functools.cache
def measured_networks() -> dict[str, Any]:
    """A headline and the test error of networks that were measured with lisse, and where those numbers come from."""
    return json.loads(files("lisse.reporting.page").joinpath("measured_networks.json").read_text("utf-8"))


def test_error(model: PageModel) -> float | None:
    """The share of the measured samples that the model gets wrong, where the profile says it."""
    score = model.profile.provenance.get("score")
    error = score.get("error") if isinstance(score, Mapping) else None
    return float(error) if isinstance(error, (int, float)) and math.isfinite(error) else None


def among_peers(entries: Entries) -> Peers | None:
    """The models on the plane of headline and test error, beside networks measured on the same data and setting.

    ``None`` where no model has both numbers, or none was measured on such data.
    """
    before = measured_networks()
    heading = next((line for line in page_headings(entries) if line.quantity.name == before["quantity"]), None)
    if heading is None:
        return None
    rows = [(model, heading_entry(entries, heading, model.index, output=True)) for model in entries.models]
    positions = [
        _Place(model, entry.row, error)
        for model, entry in rows
        if entry is not None and (error := test_error(model)) and entry.row.value > 0
    ]
    group = next((group for group in before["groups"] if all(position.belongs(group) for position in positions)), None)
    if not positions or group is None:
        return None
    peers = [(network["name"], network["value"], network["error"]) for network in group["networks"]]
    points = [
        *((value, error) for _, value, error in peers),
        *((position.row.value, position.error) for position in positions),
    ]
    points += [end for position in positions for end in position.reach]
    plane = _Plane(*(extent_of(values, log=True) for values in zip(*points, strict=True)))
    law = _law(peers)
    parts = [*_axes(plane, heading.label), *_laws(plane, law, group.get("paper"))]
    parts += [*_peers(plane, peers, heading.label), *_models(plane, positions, heading.label)]
    names = ", ".join(position.model.name for position in positions)
    title = f"Test error against {heading.label} of {names} and {len(peers)} other networks"
    svg = element("svg", element("title", escape(title)), *parts, viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}", role="img",
                  aria_label=title)  # fmt: skip
    says = [group["says"], before["source"], "Bars are intervals.", group.get("paper", {}).get("says", "")]
    says.append("" if law is None else _law_words(law, heading.label))
    return Peers(svg, " ".join(filter(None, says)), heading.instrument, heading.label)


def _axes(plane: _Plane, label: str) -> list[Markup]:
    parts = []
    for value, words in plane.up.ticks():
        y = plane.at(plane.across.low, value)[1]
        parts.append(element("path", d=path_of([(LEFT, y), (WIDTH - RIGHT, y)]), class_="grid"))
        parts.append(text((LEFT - 6, y + 4), words, class_="tick", anchor="end"))
    for value, words in plane.across.ticks():
        x = plane.at(value, plane.up.low)[0]
        parts.append(text((x, HEIGHT - BOTTOM + 17), words, class_="tick", anchor="middle"))
    parts.append(text((4, 15), "test error · log axis", class_="label"))
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(text((middle, HEIGHT - 6), f"{label} · log axis", class_="label", anchor="middle"))
    return parts


def _laws(plane: _Plane, law: PowerLaw | None, paper: Mapping[str, Any] | None) -> list[Markup]:
    """The paper's line, dotted, and the one through the dots, with a key."""
    laws: list[tuple[Callable[[float], Any], str, str]] = []
    if paper is not None:
        laws.append((lambda value: paper["factor"] * value ** paper["power"], "fit paper", f"··· {paper['label']}"))
    if law is not None:
        laws.append((law, "fit", f"— through the dots, r = {float(law.correlation.value):.2f}, n = {law.n}"))
    curves = [(plane.curve(function), kind, words) for function, kind, words in laws]
    curves = [curve for curve in curves if len(curve[0]) > 1]
    parts = [element("path", element("title", escape(words)), d=path_of(points), class_=kind)
             for points, kind, words in curves]  # fmt: skip
    key = "   ".join(words for _, _, words in curves)
    return [*parts, text((WIDTH - RIGHT, 15), key, class_="label", anchor="end")]


def _peers(plane: _Plane, peers: Sequence[tuple[str, float, float]], label: str) -> list[Markup]:
    """A grey dot and a name each; names that would lie on another move down."""
    parts: list[Markup] = []
    written: list[Point] = []
    for name, value, error in sorted(peers, key=lambda network: -network[2]):
        x, y = plane.at(value, error)
        tip = element("title", escape(f"{name}: {label} {short_number(value)}, error {short_number(error)}"))
        parts.append(element("path", tip, d=mark_path("estimate", (x, y), 3.0), class_="other"))
        flip, below = x > WIDTH - 90, y + 4
        while any(abs(below - height) < 11 and abs(x - along) < 90 for along, height in written):
            below += 2
        written.append((x, below))
        parts.append(text((x - 6 if flip else x + 6, below), name, class_="tick", anchor="end" if flip else "start"))
    return parts


def _models(plane: _Plane, positions: Sequence[_Place], label: str) -> list[Markup]:
    parts = []
    for position in positions:
        ends = [plane.at(*end) for end in position.reach]
        bars = [point for pair in zip(ends[::2], ends[1::2], strict=True) for point in (*pair, None)]
        if bars:
            parts.append(element("path", d=path_of(bars), class_=f"bar-line m{position.model.index}"))
        words = (
            f"{position.model.name}: {label} {short_number(position.row.value)}, error {short_number(position.error)}"
        )
        mark = mark_path("exact", plane.at(position.row.value, position.error), 5.0)
        parts.append(element("path", element("title", escape(words)), d=mark, class_=f"here m{position.model.index}"))
    return parts


def _law(networks: Sequence[tuple[str, float, float]]) -> PowerLaw | None:
    """The line through networks between the logarithms; ``None`` of fewer than three."""
    if len(networks) < 3 or len({value for _, value, _ in networks}) < 2:
        return None
    return power_law(torch.tensor([value for _, value, _ in networks]), torch.tensor([error for *_, error in networks]))


def _law_words(law: PowerLaw, label: str) -> str:
    def ends(interval: Any) -> str:
        value, low, high = (short_number(float(end), 2) for end in (interval.value, interval.low, interval.high))
        return f"{value} [{low}, {high}]"

    return (
        f"The full line is fitted to the grey dots alone: error ∝ {label}^{ends(law.slope)}, correlation of the "
        f"logarithms {ends(law.correlation)}, n = {law.n}."
    )
