"""Figures of the Topology instrument: how the shape of the data changes along depth, and the shapes themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lisse.maths.intervals import across_clouds
from lisse.profile import Part, Profile
from lisse.reporting.figure import GREY, INK, PALETTE, panels, plain_text
from lisse.reporting.series import legend_names, part_of, several

CURVES = {
    "change_rate": "absolute change rate",
    "cumulative_change_rate": "cumulative change rate",
    "diagram_distance": "distance between diagrams",
}
MOST_LAYERS = 24
MOST_BARS = 60
DIMS = {0: "H0: parts", 1: "H1: loops", 2: "H2: cavities"}


def topology_figure(
    profiles: Profile | Iterable[Profile], *, dim: int | str | None = None, quantity: str | None = None
) -> Figure:
    """Change rate, cumulative rate and distance over normalised depth: a column per order p, a line per model.

    Networks of different depths share the axis from 0 (first) to 1 (last). A dotted line is
    TopoLip; a band is the interval over clouds. ``dim`` is 0, 1, 2 or ``"all"`` (all dimensions together,
    the default where there are several); ``quantity`` draws one of the three alone, as in [chen2024] figures 1 to 4
    (rates) and 9, 10 (distances).
    """
    given = several(profiles, "topology_figure")
    parts = [part_of(profile, "topology", "topology_figure", arrays=True) for profile in given]
    names = legend_names(given)
    if quantity is not None and quantity not in CURVES:
        raise ValueError(f"topology_figure: quantity must be one of {', '.join(CURVES)}, got {quantity!r}.")
    keys = [key for part in parts for key in _curves(part)]
    dims = list(dict.fromkeys(d for _, _, d in keys))
    chosen = str(dim) if dim is not None else ("all" if "all" in dims else dims[0])
    if chosen not in dims:
        raise ValueError(f"topology_figure: dim must be one of {', '.join(dims)}, got {dim!r}.")
    orders = sorted(dict.fromkeys(p for _, p, d in keys if d == chosen), key=float)
    rows = [quantity] if quantity is not None else list(CURVES)
    what = {"0": "connected parts (H0)", "1": "loops (H1)", "2": "cavities (H2)", "all": "all dimensions together"}
    sizes = sorted({int(row.at["cloud"]) for part in parts for row in part.rows if row.layer is not None})
    figure, axes = panels(
        len(rows) * len(orders),
        columns=len(orders),
        width=4.4,
        height=2.6,
        title="How the shape of the data changes along depth" + (f": {names[0]}" if len(names) == 1 else ""),
        says=f"Diagrams of {what[chosen]}, clouds of {' or '.join(map(str, sizes))} points. A steady network has a low "
        "change rate. Dotted: TopoLip, the largest rate of a cloud before interpolation, over clouds on average.",
        foot=0.15 + 0.2 * -(-len(names) // 2),
    )
    colours = {name: PALETTE[place % len(PALETTE)] for place, name in enumerate(names)}
    depth = np.linspace(0, 1, 101)
    for place, ax in enumerate(axes):
        curve, order = rows[place // len(orders)], orders[place % len(orders)]
        for name, part in zip(names, parts, strict=True):
            found = part.arrays.get(f"landscape/{curve}/p={order}/dim={chosen}")
            if found is not None:
                _line(ax, depth, found, colours[name])
                if curve == "change_rate":
                    for top in _topolip(part, order, chosen):
                        ax.axhline(top, color=colours[name], lw=1.0, ls=":")
        plain_text(ax.set_title(f"{CURVES[curve]}, {_order(order)}", loc="left", size=10, color=INK))
        if curve == "diagram_distance" and any(line.get_ydata().max() > 0 for line in ax.lines):  # type: ignore[union-attr]
            ax.set_yscale("log", nonpositive="clip")
        else:
            ax.set_ylim(bottom=0)
        ax.set_xlim(-0.02, 1.02)
        if place // len(orders) == len(rows) - 1:
            ax.set_xlabel("normalised depth", size=9, color=INK)
    if len(names) > 1:
        _legend(figure, colours)
    return figure


def diagrams_figure(profile: Profile, *, layers: Sequence[str] | None = None) -> Figure:
    """Persistence diagrams, a panel per layer: birth along, death up; far from the diagonal is long-lived.

    Of the first cloud. ``layers`` chooses by name; without, at most 24 spread over depth.
    """
    part = part_of(profile, "topology", "diagrams_figure", arrays=True)
    shown, note = _layers(part, layers, "diagrams_figure")
    figure, axes = panels(
        len(shown),
        columns=4,
        width=2.7,
        height=2.7,
        title=f"Persistence diagrams: {profile.name}",
        says="A point is a feature of the cloud of samples: the scale at which it appears and the scale at which it is "
        "filled. Parts (H0) all appear at 0. Each panel has its own scale." + note,
        foot=0.4,
    )
    used: dict[str, str] = {}
    for ax, (layer, bars) in zip(axes, shown.items(), strict=True):
        top = max((float(some.max()) for some in bars.values() if len(some)), default=1.0) * 1.05 or 1.0
        ax.plot([0, top], [0, top], color=GREY, lw=0.8)
        for dim, some in bars.items():
            used[DIMS[dim]] = PALETTE[dim]
            ax.scatter(
                some[:, 0], some[:, 1], s=12 if dim else 8, color=PALETTE[dim], alpha=0.6, linewidths=0, zorder=3 - dim
            )
        ax.set_xlim(-0.03 * top, top)
        ax.set_ylim(-0.03 * top, top)
        ax.set_aspect("equal")
        ax.tick_params(labelsize=7.5)
        ax.locator_params(nbins=4)
        plain_text(ax.set_title(layer, loc="left", size=9, color=INK))
    _legend(figure, used)
    return figure


def barcode_figure(profile: Profile, *, layers: Sequence[str] | None = None) -> Figure:
    """Barcodes, a panel per layer: a bar from the birth to the death of each feature, the longest ones on top.

    At most 60 bars of each dimension, the longest; the diagrams hold all.
    """
    part = part_of(profile, "topology", "barcode_figure", arrays=True)
    shown, note = _layers(part, layers, "barcode_figure")
    figure, axes = panels(
        len(shown),
        columns=4,
        width=2.7,
        height=2.4,
        title=f"Barcodes: {profile.name}",
        says=f"A bar reaches from the scale at which a feature appears to the scale at which it is filled. At most "
        f"{MOST_BARS} of each dimension are drawn, the longest." + note,
        foot=0.4,
    )
    used: dict[str, str] = {}
    for ax, (layer, bars) in zip(axes, shown.items(), strict=True):
        _barcode(ax, bars)
        used |= {DIMS[dim]: PALETTE[dim] for dim in bars}
        ax.tick_params(labelsize=7.5)
        ax.locator_params(axis="x", nbins=4)
        plain_text(ax.set_title(layer, loc="left", size=9, color=INK))
    _legend(figure, used)
    return figure


def _barcode(ax: Axes, bars: Mapping[int, np.ndarray]) -> None:
    """Bars from the bottom up, dimension by dimension, longer ones higher."""
    height = 0
    total = sum(min(len(some), MOST_BARS) + 4 for some in bars.values())
    for dim, some in bars.items():
        length = some[:, 1] - some[:, 0]
        longest = some[np.argsort(length, kind="stable")[-MOST_BARS:]]
        places = np.arange(height, height + len(longest))
        # Two thirds of a bar's room, in a panel about 120 points high.
        ax.hlines(places, longest[:, 0], longest[:, 1], color=PALETTE[dim], lw=min(3.0, 80 / total))
        height += len(longest) + max(2, len(longest) // 15)
    ax.set_yticks([])
    ax.set_xlim(left=0)
    ax.grid(visible=False)


def _line(ax: Axes, depth: np.ndarray, found: np.ndarray, colour: str) -> None:
    ax.plot(depth, _mean(found), color=colour, lw=1.6)
    if len(found) > 1 and np.isfinite(found).all():
        interval = across_clouds(torch.from_numpy(found))
        low, high = interval.low.clamp_min(0).numpy(), interval.high.numpy()
        ax.fill_between(depth, low, high, color=colour, alpha=0.18, linewidth=0)


def _topolip(part: Part, order: str, dim: str) -> list[float]:
    """Of the largest clouds, if it is a number."""
    rows = [
        row
        for row in part.rows
        if row.quantity == "topolip_change_rate" and f"{row.at['p']:g}" == order and str(row.at["dim"]) == dim
    ]
    largest = max((int(row.at["cloud"]) for row in rows), default=0)
    return [row.value for row in rows if row.at["cloud"] == largest and np.isfinite(row.value)]


def _mean(found: np.ndarray) -> np.ndarray:
    """Over clouds, of those that have a value."""
    there = np.isfinite(found)
    total = np.where(there, found, 0.0).sum(0)
    count = there.sum(0)
    return np.divide(total, count, out=np.full(found.shape[1], np.nan), where=count > 0)


def _curves(part: Part) -> list[tuple[str, str, str]]:
    """Quantity, order and dimension of every curve."""
    keys = [name.split("/") for name in part.arrays if name.startswith("landscape/")]
    return [(name, p.removeprefix("p="), dim.removeprefix("dim=")) for _, name, p, dim in keys]


def _layers(part: Part, layers: Sequence[str] | None, function: str) -> tuple[dict[str, dict[int, np.ndarray]], str]:
    """Diagrams by layer and dimension, and what was left out."""
    found: dict[str, dict[int, np.ndarray]] = {}
    for name, bars in part.arrays.items():
        if name.startswith("diagram/"):
            layer, _, dim = name.removeprefix("diagram/").rpartition("/H")
            found.setdefault(layer, {})[int(dim)] = bars
    if layers is not None:
        unknown = [layer for layer in layers if layer not in found]
        if unknown or not layers:
            raise ValueError(f"{function}: layers must be among {', '.join(found)}, got {list(layers)}.")
        return {layer: found[layer] for layer in layers}, ""
    if len(found) <= MOST_LAYERS:
        return found, ""
    places = np.linspace(0, len(found) - 1, MOST_LAYERS).round().astype(int)
    names = list(found)
    return {names[place]: found[names[place]] for place in places}, f" {MOST_LAYERS} of {len(found)} layers."


def _order(order: str) -> str:
    return "bottleneck" if order == "inf" else f"W{order}"


def _legend(figure: Figure, colours: Mapping[str, str]) -> None:
    handles = [Line2D([], [], color=colour, lw=3, label=text) for text, colour in colours.items()]
    legend = figure.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0.0, 0.0), ncols=min(4, len(handles)), frameon=False,
        fontsize=8.5, labelcolor=INK,
    )  # fmt: skip
    for text in legend.get_texts():
        plain_text(text)
