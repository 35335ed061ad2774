"""The models of a page beside networks that were measured before: test error against a headline of each instrument."""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from markupsafe import Markup, escape

from lisse.profile_file.document import free_to_json
from lisse.reporting.page.axis import Extent, extent_of, short_number
from lisse.reporting.page.entries import Entries, PageModel
from lisse.reporting.page.headline import Heading, heading_entry, page_headings
from lisse.reporting.page.plots import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH
from lisse.reporting.page.svg import Point, element, mark_path, path_of, text

#: Comparable networks below which a page says nothing.
LEAST_PEERS = 20


@dataclass(frozen=True)
class Peers:
    """The picture, the words below it, the instrument it belongs to, and the headline that is its axis."""

    svg: Markup
    says: str
    instrument: str
    label: str


@dataclass(frozen=True)
class _Span:
    """A number with its interval, which may not be known."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def ends(self) -> tuple[float, float] | None:
        """The interval, where there is one that can be drawn."""
        if self.low is None or self.high is None or not math.isfinite(self.low + self.high):
            return None
        return self.low, self.high

    def below(self, other: _Span) -> bool:
        """Whether the whole interval lies under the whole of another."""
        return self.ends is not None and other.ends is not None and self.ends[1] < other.ends[0]


@dataclass(frozen=True)
class _Dot:
    """A network on the plane: a model of the page, or one of a family that was measured before."""

    name: str
    number: _Span
    error: _Span
    model: int | None = None


@dataclass(frozen=True)
class _Plane:
    """The two axes: the headline along, test error up."""

    across: Extent
    up: Extent

    def at(self, value: float, error: float) -> Point:
        return (
            LEFT + self.across.share(value) * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - self.up.share(error) * (HEIGHT - TOP - BOTTOM),
        )


@functools.cache
def measured_networks() -> tuple[Mapping[str, Any], ...]:
    """The trained networks of the committed atlas by data and options, as ``benchmarks/packaged_atlas.py`` packs them.

    A group has ``data``, ``fingerprints``, ``options`` by instrument, ``headlines`` as pairs of instrument and
    quantity, and ``networks``: a family, then value, low and high of the test error and of each headline.
    """
    return tuple(json.loads(files("lisse.reporting.page").joinpath("networks.json").read_text("utf-8")))


def test_error(model: PageModel) -> float | None:
    """The share of the measured samples that the model gets wrong, where the profile says it."""
    error = model.profile.about("score").get("error")
    return float(error) if isinstance(error, (int, float)) and math.isfinite(error) else None


def among_peers(entries: Entries) -> dict[str, Peers]:
    """By instrument, its models on the plane of a headline and test error beside networks measured before.

    The headline is the first that has at least :data:`LEAST_PEERS` comparable networks, preferably one that may
    judge. Networks compare that were measured on data of one name or fingerprint and with the same options, but for
    those that the headline calls amounts.
    """
    pictures: dict[str, Peers] = {}
    for heading in sorted(page_headings(entries), key=lambda heading: not heading.quantity.judges):
        if heading.instrument not in pictures and (picture := _picture(entries, heading)) is not None:
            pictures[heading.instrument] = picture
    return pictures


def _picture(entries: Entries, heading: Heading) -> Peers | None:
    for group in measured_networks():
        models = [model for model in entries.models if _comparable(entries, model, heading, group)]
        dots = [dot for model in models if (dot := _model_dot(entries, model, heading)) is not None]
        peers = _peer_dots(heading, group)
        if dots and len(peers) >= LEAST_PEERS:
            matches = all(model.data.get("fingerprint") in group["fingerprints"] for model in models)
            samples = "the same data" if matches else f"other samples of {group['data']}"
            words = _words(dots, peers, heading.label, samples)
            return Peers(_drawn(dots, peers, heading), words, heading.instrument, heading.label)
    return None


def _comparable(entries: Entries, model: PageModel, heading: Heading, group: Mapping[str, Any]) -> bool:
    data, before = model.data, group["options"].get(heading.instrument)
    if data.get("name") != group["data"] and data.get("fingerprint") not in group["fingerprints"]:
        return False
    parts = [part for owner, part in entries.parts(heading.instrument) if owner.index == model.index]
    return before is not None and any(
        free_to_json(_defining(part.options, heading), "options") == _defining(before, heading) for part in parts
    )


def _defining(options: Mapping[str, Any], heading: Heading) -> dict[str, Any]:
    """The options that a headline depends on."""
    return {key: value for key, value in options.items() if key not in heading.headline.amounts}


def _model_dot(entries: Entries, model: PageModel, heading: Heading) -> _Dot | None:
    entry, error = heading_entry(entries, heading, model.index), test_error(model)
    if entry is None or error is None or not math.isfinite(entry.row.value):
        return None
    score = model.profile.provenance["score"]
    number = _Span(entry.row.value, entry.row.low, entry.row.high)
    return _Dot(model.name, number, _Span(error, score.get("low"), score.get("high")), model.index)


def _peer_dots(heading: Heading, group: Mapping[str, Any]) -> list[_Dot]:
    """The networks of a group that have the headline; none where it is the error itself, turned round."""
    names = [tuple(pair) for pair in group["headlines"]]
    if (heading.instrument, heading.quantity.name) not in names:
        return []
    column = 4 + 3 * names.index((heading.instrument, heading.quantity.name))
    dots = [
        _Dot(network[0], _Span(*network[column : column + 3]), _Span(*network[1:4]))
        for network in group["networks"]
        if network[column] is not None
    ]
    return [] if all(abs(dot.number.value + dot.error.value - 1) < 1e-3 for dot in dots) else dots


def _drawn(dots: Sequence[_Dot], peers: Sequence[_Dot], heading: Heading) -> Markup:
    together = [*dots, *peers]
    values = [end for dot in together for end in (dot.number.value, *(dot.number.ends or () if dot in dots else ()))]
    errors = [end for dot in together for end in (dot.error.value, *(dot.error.ends or () if dot in dots else ()))]
    log = heading.quantity.scale == "log" and min(values) > 0
    plane = _Plane(extent_of(values, log=log), extent_of(errors, log=min(errors) > 0))
    title = (
        f"Test error against {heading.label} of {', '.join(dot.name for dot in dots)} and {len(peers)} other networks"
    )
    parts = [*_axes(plane, heading.label), *_families(plane, peers), *_models(plane, dots, heading.label)]
    return element("svg", element("title", escape(title)), *parts, viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}", role="img",
                   aria_label=title)  # fmt: skip


def _axes(plane: _Plane, label: str) -> list[Markup]:
    parts = []
    for value, words in plane.up.ticks():
        y = plane.at(plane.across.low, value)[1]
        parts.append(element("path", d=path_of([(LEFT, y), (WIDTH - RIGHT, y)]), class_="grid"))
        parts.append(text((LEFT - 6, y + 4), words, class_="tick", anchor="end"))
    for value, words in plane.across.ticks():
        x = plane.at(value, plane.up.low)[0]
        parts.append(text((x, HEIGHT - BOTTOM + 17), words, class_="tick", anchor="middle"))
    parts.append(text((4, 15), f"test error{' · log axis' if plane.up.log else ''}", class_="label"))
    middle, name = (LEFT + WIDTH - RIGHT) / 2, f"{label}{' · log axis' if plane.across.log else ''}"
    return [*parts, text((middle, HEIGHT - 6), name, class_="label", anchor="middle")]


def _families(plane: _Plane, peers: Sequence[_Dot]) -> list[Markup]:
    """Grey dots, an element for each family."""
    parts = []
    for family, count in Counter(dot.name for dot in peers).items():
        points = [plane.at(dot.number.value, dot.error.value) for dot in peers if dot.name == family]
        marks = "".join(mark_path("estimate", point, 2.6) for point in points)
        parts.append(element("path", element("title", escape(f"{family}: {count}")), d=marks, class_="other"))
    return parts


def _models(plane: _Plane, dots: Sequence[_Dot], label: str) -> list[Markup]:
    parts = []
    for dot in dots:
        value, error = dot.number.value, dot.error.value
        bars: list[Point | None] = []
        if dot.number.ends is not None:
            bars += [*(plane.at(end, error) for end in dot.number.ends), None]
        if dot.error.ends is not None:
            bars += [plane.at(value, end) for end in dot.error.ends]
        if bars:
            parts.append(element("path", d=path_of(bars), class_=f"bar-line m{dot.model}"))
        words = f"{dot.name}: {label} {short_number(value)}, error {short_number(error)}"
        mark = mark_path("exact", plane.at(value, error), 5.0)
        parts.append(element("path", element("title", escape(words)), d=mark, class_=f"here m{dot.model}"))
    return parts


def _words(dots: Sequence[_Dot], peers: Sequence[_Dot], label: str, samples: str) -> str:
    families = ", ".join(f"{count} {family}" for family, count in Counter(peer.name for peer in peers).items())
    says = [
        f"Grey: {len(peers)} trained networks ({families}), measured before on {samples} with the options that "
        f"{label} depends on; not part of this run. Bars are intervals, which grey dots have too; two networks "
        "are told apart where theirs do not overlap."
    ]
    for dot in dots:
        numbers = _ranks(dot.number, [peer.number for peer in peers], label)
        errors = _ranks(dot.error, [peer.error for peer in peers], "test error")
        says.append(f"{dot.name}: {numbers}; {errors}.")
    return " ".join(says)


def _ranks(span: _Span, peers: Sequence[_Span], label: str) -> str:
    """How many lie below, above, and on neither side for all that is known."""
    if span.ends is None:
        return f"its {label} has no interval, so that none is told apart"
    less, more = (sum(peer.below(span) for peer in peers), sum(span.below(peer) for peer in peers))
    return f"{less} have a lower {label}, {more} a higher one, {len(peers) - less - more} are not told apart"
