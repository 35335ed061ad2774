"""What is no table: persistence diagrams under a slider, and strips of images."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from lisse.profile import Part
from lisse.reporting.page.axis import Extent, short_number
from lisse.reporting.page.entries import Entries, PageModel
from lisse.reporting.page.svg import element, mark_path, path_of, text

MOST_BARS = 150  # of one dimension at one layer; a page is not an archive
MOST_IMAGES = 12
STRIPS = ("strip/", "filmstrip/")
DIAGRAMS = "diagram/"


# -- persistence diagrams --------------------------------------------------------------------------------------------


def has_diagrams(part: Part) -> bool:
    """Whether a part keeps persistence diagrams."""
    return any(name.startswith(DIAGRAMS) for name in part.arrays)


def diagrams(entries: Entries) -> list[dict[str, Any]]:
    """By model: layers in order, each with the longest bars of every dimension, from arrays ``diagram/LAYER/H0``…"""
    pages = []
    for model in entries.models:
        layers: dict[str, dict[str, Any]] = {}
        depths = _depths(model)
        for name, array in (item for part in model.profile.parts for item in part.arrays.items()):
            if not name.startswith(DIAGRAMS) or array.ndim != 2 or array.shape[1:] != (2,):
                continue
            layer, _, dim = name.removeprefix(DIAGRAMS).rpartition("/")
            bars = _longest(np.asarray(array, dtype=float))
            view = layers.setdefault(layer, {"layer": layer, "depth": depths.get(layer), "bars": {}, "total": {}})
            view["bars"][dim] = [[_round(birth), _round(death)] for birth, death in bars]
            view["total"][dim] = len(array)
        for index, view in enumerate(layers.values()):
            if view["depth"] is None:
                view["depth"] = index / max(1, len(layers) - 1)
        if layers:
            ordered = sorted(layers.values(), key=lambda view: view["depth"])
            pages.append({"model": model.index, "layers": ordered})
    return pages


def _depths(model: PageModel) -> dict[str, float | None]:
    """Where layers lie, from rows and from the profile's list of layers."""
    depths = {row.layer: row.depth for row in model.profile.rows if row.layer is not None}
    listed = model.profile.provenance.get("layers")
    if isinstance(listed, Sequence):
        depths |= {layer["name"]: layer["depth"] for layer in listed if isinstance(layer, Mapping) and "depth" in layer}
    return depths


def diagram_svg(layer: Mapping[str, Any], name: str) -> Markup:
    """One layer's diagram; the page's script draws the same for the others."""
    size, pad = 240.0, 30.0
    top = max((death for bars in layer["bars"].values() for _, death in bars), default=1.0) or 1.0
    extent = Extent(0.0, top * 1.05)

    def at(birth: float, death: float) -> tuple[float, float]:
        return pad + extent.share(birth) * (size - 2 * pad + 16), size - pad - extent.share(death) * (
            size - 2 * pad + 8
        )

    parts = [
        element("path", d=path_of([at(0, 0), at(extent.high, extent.high)]), class_="axis diagonal"),
        element("path", d=path_of([at(0, extent.high), at(0, 0), at(extent.high, 0)]), class_="axis"),
        text((size / 2 + 8, size - 6), "birth", class_="label", anchor="middle"),
        text((12, size / 2), "death", class_="label", anchor="middle", transform=f"rotate(-90 12 {size / 2:g})"),
        text((size - 14, size - pad + 14), short_number(extent.high, 2), class_="tick", anchor="end"),
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


def image_strips(part: Part) -> list[tuple[str, list[list[str]]]]:
    """Arrays ``strip/TITLE`` or ``filmstrip/TITLE`` ``[rows, columns, c, h, w]`` (or less) as rows of data URIs."""
    strips = []
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
        strips.append((name.removeprefix(prefix), [[_png(image) for image in row[:MOST_IMAGES]] for row in images]))
    return strips


def _png(image: np.ndarray) -> str:
    """An image ``[c, h, w]`` of bytes, or of floats in [0, 1], as a data URI."""
    from PIL import Image

    if image.dtype != np.uint8:
        image = (np.nan_to_num(np.clip(image, 0, 1)) * 255).round().astype(np.uint8)
    picture = Image.fromarray(image[0] if len(image) == 1 else np.moveaxis(image, 0, -1))
    if max(picture.size) > 224:
        picture.thumbnail((224, 224))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
