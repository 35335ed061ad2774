"""What is no table: persistence diagrams under a slider, strips of images, and networks measured before."""

from __future__ import annotations

import base64
import functools
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from markupsafe import Markup, escape

from lisse.maths.power_law import PowerLaw, power_law
from lisse.profile import Part, Row
from lisse.reporting.page.axis import Axis, axis_of, number
from lisse.reporting.page.entries import Entries, Model
from lisse.reporting.page.headline import HEADLINES, headline_entry
from lisse.reporting.page.plots import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH
from lisse.reporting.page.svg import element, mark_path, path_of, text

MOST_BARS = 150  # of one dimension at one layer; a page is not an archive
MOST_IMAGES = 12
STRIPS = ("strip/", "filmstrip/")


# -- persistence diagrams --------------------------------------------------------------------------------------------


def diagrams(entries: Entries) -> list[dict[str, Any]]:
    """By model: layers in order, each with the longest bars of every dimension, from arrays ``diagram/LAYER/H0``…"""
    found = []
    for model in entries.models:
        layers: dict[str, dict[str, Any]] = {}
        depth = {row.layer: row.depth for row in model.profile.rows if row.layer is not None}
        known = model.profile.provenance.get("layers")
        if isinstance(known, Sequence):
            depth |= {each["name"]: each["depth"] for each in known if isinstance(each, Mapping) and "depth" in each}
        for part in model.profile.parts:
            for name, array in part.arrays.items():
                if not name.startswith("diagram/") or array.ndim != 2 or array.shape[1:] != (2,):
                    continue
                layer, _, dim = name.removeprefix("diagram/").rpartition("/")
                bars = _longest(np.asarray(array, dtype=float))
                layers.setdefault(layer, {"layer": layer, "depth": depth.get(layer), "bars": {}, "total": {}})
                layers[layer]["bars"][dim] = [[_round(birth), _round(death)] for birth, death in bars]
                layers[layer]["total"][dim] = len(array)
        if layers:
            ordered = list(layers.values())
            for place, each in enumerate(ordered):
                if each["depth"] is None:
                    each["depth"] = place / max(1, len(ordered) - 1)
            found.append({"model": model.place, "layers": sorted(ordered, key=lambda each: each["depth"])})
    return found


def diagram_svg(layer: Mapping[str, Any], name: str) -> Markup:
    """One layer's diagram; the page's script draws the same for the others."""
    size, pad = 240.0, 30.0
    top = max((death for bars in layer["bars"].values() for _, death in bars), default=1.0) or 1.0
    axis = Axis(0.0, top * 1.05)

    def at(birth: float, death: float) -> tuple[float, float]:
        return pad + axis.place(birth) * (size - 2 * pad + 16), size - pad - axis.place(death) * (size - 2 * pad + 8)

    parts = [
        element("path", d=path_of([at(0, 0), at(axis.high, axis.high)]), class_="axis diagonal"),
        element("path", d=path_of([at(0, axis.high), at(0, 0), at(axis.high, 0)]), class_="axis"),
        text((size / 2 + 8, size - 6), "birth", class_="label", anchor="middle"),
        text((12, size / 2), "death", class_="label", anchor="middle", transform=f"rotate(-90 12 {size / 2:g})"),
        text((size - 14, size - pad + 14), number(axis.high, 2), class_="tick", anchor="end"),
    ]
    for dim, bars in layer["bars"].items():
        for birth, death in bars:
            parts.append(element("path", d=mark_path("estimate", at(birth, death), 2.6), class_=f"bar {escape(dim)}"))
    title = f"Persistence diagram of {name} at {layer['layer']}"
    return element(
        "svg", element("title", escape(title)), *parts, viewBox=f"0 0 {size:g} {size:g}", role="img", aria_label=title
    )


def _longest(bars: np.ndarray) -> np.ndarray:
    if len(bars) <= MOST_BARS:
        return bars
    keep = np.sort(np.argsort(bars[:, 0] - bars[:, 1], kind="stable")[:MOST_BARS])
    return bars[keep]


def _round(value: float) -> float:
    return float(f"{value:.4g}")


# -- images ----------------------------------------------------------------------------------------------------------


def strips(part: Part) -> list[tuple[str, list[list[str]]]]:
    """Arrays ``strip/TITLE`` or ``filmstrip/TITLE`` ``[rows, columns, c, h, w]`` (or less) as rows of data URIs."""
    found = []
    for name, array in part.arrays.items():
        prefix = next((prefix for prefix in STRIPS if name.startswith(prefix)), None)
        if prefix is None or array.ndim not in (3, 4, 5):
            continue
        images = np.asarray(array)
        if images.ndim == 3:
            images = images[None, :, None]
        elif images.ndim == 4:
            images = images[None] if images.shape[1] in (1, 3) else images[:, :, None]
        if images.shape[2] not in (1, 3) and images.shape[-1] in (1, 3):
            images = np.moveaxis(images, -1, 2)
        if images.shape[2] not in (1, 3):
            continue
        found.append((name.removeprefix(prefix), [[_png(image) for image in row[:MOST_IMAGES]] for row in images]))
    return found


def _png(image: np.ndarray) -> str:
    """An image ``[c, h, w]`` of bytes, or of floats in [0, 1], as a data URI."""
    from PIL import Image

    if image.dtype != np.uint8:
        image = (np.nan_to_num(np.clip(image, 0, 1)) * 255).round().astype(np.uint8)
    picture = Image.fromarray(image[0] if len(image) == 1 else np.moveaxis(image, 0, -1))
    if max(picture.size) > 224:
        picture.thumbnail((224, 224))
    kept = io.BytesIO()
    picture.save(kept, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(kept.getvalue()).decode()


# -- networks measured before ----------------------------------------------------------------------------------------


@functools.cache
def measured_networks() -> dict[str, Any]:
    """R_f and test error of networks that were measured with lisse, and where those numbers come from."""
    return json.loads(files("lisse.reporting.page").joinpath("measured_networks.json").read_text("utf-8"))


def place_among_networks(entries: Entries) -> tuple[Markup, str] | None:
    """The models on the plane of R_f and test error, beside networks measured before on the same data and setting.

    ``None`` where no model has both numbers, or none was measured on such data.
    """
    line = next(line for line in HEADLINES if line.quantity == "relative_stability")
    points: list[tuple[Model, float, float, list[tuple[float, float]]]] = []
    settings = set()
    for model in entries.models:
        entry, error = headline_entry(entries, line, model.place), test_error(model)
        if entry is not None and error is not None and entry.row.value > 0 and error > 0:
            points.append((model, entry.row.value, error, _reach(entry.row, error, model)))
            settings.add((str(model.data.get("name")), entry.row.at.get("cut"), entry.row.at.get("delta")))
    if not points or len(settings) != 1:
        return None
    data, cut, delta = next(iter(settings))
    known = measured_networks()
    group = next(
        (some for some in known["groups"] if (some["data"], some["cut"], some["delta"]) == (data, cut, delta)), None
    )
    if group is None:
        return None
    others = [(each["name"], each["R"], each["error"]) for each in group["networks"]]
    ends = [end for *_, reach in points for end in reach]
    x_axis = axis_of([r for _, r, _ in others] + [r for _, r, *_ in points] + [r for r, _ in ends], log=True)
    y_axis = axis_of([e for _, _, e in others] + [e for _, _, e, _ in points] + [e for _, e in ends], log=True)

    def at(r: float, error: float) -> tuple[float, float]:
        return (
            LEFT + x_axis.place(r) * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - y_axis.place(error) * (HEIGHT - TOP - BOTTOM),
        )

    parts: list[Markup] = []
    for value, words in y_axis.ticks():
        y = at(x_axis.low, value)[1]
        parts.append(element("path", d=path_of([(LEFT, y), (WIDTH - RIGHT, y)]), class_="grid"))
        parts.append(text((LEFT - 6, y + 4), words, class_="tick", anchor="end"))
    for value, words in x_axis.ticks():
        parts.append(text((at(value, y_axis.low)[0], HEIGHT - BOTTOM + 17), words, class_="tick", anchor="middle"))
    parts.append(text((4, 15), "test error · log axis", class_="label"))
    parts.append(text(((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6), "R_f · log axis", class_="label", anchor="middle"))
    law = _law(others)
    laws: list[tuple[Callable[[float], Any], str, str]] = []
    says = "Bars are intervals."
    if data == "cifar10":  # the paper's line is of CIFAR-10
        laws.append((lambda r: 0.2 * math.sqrt(r), "fit paper", "··· 0.2 √R_f"))
        says += " Dotted: the paper's line, error ≈ 0.2 √R_f."
    if law is not None:
        laws.append((law, "fit", f"— through the dots, r = {float(law.correlation.value):.2f}, n = {law.n}"))
    key: list[str] = []
    for error_at, kind, words in laws:
        some = [at(r, e) for r in _between(x_axis) if _holds(y_axis, e := float(error_at(r)))]
        if len(some) > 1:
            tip = element("title", escape(words))
            parts.append(element("path", tip, d=path_of(some), class_=kind))
            key.append(words)
    parts.append(text((WIDTH - RIGHT, 15), "   ".join(key), class_="label", anchor="end"))
    taken: list[tuple[float, float]] = []  # where labels are: near ones move down
    for name, r, error in sorted(others, key=lambda each: -each[2]):
        x, y = at(r, error)
        tip = element("title", escape(f"{name}: R_f {number(r)}, error {number(error)}"))
        parts.append(element("path", tip, d=mark_path("estimate", (x, y), 3.0), class_="other"))
        flip, below = x > WIDTH - 90, y + 4
        while any(abs(below - other) < 11 and abs(x - where) < 90 for where, other in taken):
            below += 2
        taken.append((x, below))
        parts.append(text((x - 6 if flip else x + 6, below), name, class_="tick", anchor="end" if flip else "start"))
    for model, r, error, reach in points:
        words = f"{model.name}: R_f {number(r)}, error {number(error)}"
        bars = [one for low, high in zip(reach[::2], reach[1::2], strict=True) for one in (at(*low), at(*high), None)]
        if bars:
            parts.append(element("path", d=path_of(bars), class_=f"bar-line m{model.place}"))
        parts.append(element("path", element("title", escape(words)), d=mark_path("exact", at(r, error), 5.0),
                             class_=f"here m{model.place}"))  # fmt: skip
    title = (
        f"Test error against R_f of {', '.join(model.name for model, *_ in points)} and {len(others)} other networks"
    )
    svg = element(
        "svg",
        element("title", escape(title)),
        *parts,
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
        role="img",
        aria_label=title,
    )
    if law is not None:
        b, r = law.slope, law.correlation
        says += (
            f" The full line is fitted to the grey dots alone: error ∝ R_f^{number(float(b.value), 2)} "
            f"[{number(float(b.low), 2)}, {number(float(b.high), 2)}], correlation of the logarithms "
            f"{number(float(r.value), 2)} [{number(float(r.low), 2)}, {number(float(r.high), 2)}], n = {law.n}."
        )
    return svg, f"{group['says']} {known['source']} {says}"


def _law(networks: Sequence[tuple[str, float, float]]) -> PowerLaw | None:
    """The line through networks between the logarithms; ``None`` of fewer than three."""
    if len(networks) < 3 or len({r for _, r, _ in networks}) < 2:
        return None
    return power_law(torch.tensor([r for _, r, _ in networks]), torch.tensor([e for *_, e in networks]))


def _reach(row: Row, error: float, model: Model) -> list[tuple[float, float]]:
    """The ends of the intervals of R_f and of the error, as pairs of points, where there are such."""
    found = []
    if row.low is not None and row.high is not None and 0 < row.low <= row.high < math.inf:
        found += [(row.low, error), (row.high, error)]
    said = model.profile.provenance.get("score", {})
    low, high = said.get("low"), said.get("high")
    if isinstance(low, float) and isinstance(high, float) and 0 < low <= high < 1:
        found += [(row.value, low), (row.value, high)]
    return found


def _between(axis: Axis, steps: int = 60) -> list[float]:
    """Values along a logarithmic axis."""
    return [axis.low * (axis.high / axis.low) ** (place / steps) for place in range(steps + 1)]


def _holds(axis: Axis, value: float) -> bool:
    return axis.low <= value <= axis.high


def test_error(model: Model) -> float | None:
    """The share of the measured samples that the model gets wrong, where the profile says it."""
    said = model.profile.provenance.get("score")
    error = said.get("error") if isinstance(said, Mapping) else None
    return float(error) if isinstance(error, (int, float)) and math.isfinite(error) else None
