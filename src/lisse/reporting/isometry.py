"""Figures of the Isometry instrument: distances and holes along depth, and histograms of distances."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from lisse.profile import Part, Profile, Row
from lisse.reporting.figure import GREY, INK, PALETTE, panels, plain_text
from lisse.reporting.series import legend_names, part_of, several

MOST_CLASSES = 4
_FLOOR = 1e-6


def isometry_figure(profiles: Profile | Iterable[Profile]) -> Figure:
    """Distances within and between classes over depth, their stretch, and what is left of each class's hole.

    A line per model; bars are intervals over clouds. Stretch: the median within classes, the band from the 5 % to the
    95 % quantile. Holes: the longest bar of H1 over that of the input, the mean over classes.
    """
    given = several(profiles, "isometry_figure")
    parts = [part_of(profile, "isometry", "isometry_figure") for profile in given]
    names = legend_names(given)
    colours = {name: PALETTE[place % len(PALETTE)] for place, name in enumerate(names)}
    labelled = any(row.at.get("pairs") == "within" for part in parts for row in part.rows)
    inner = "within" if labelled else "all"
    words = "within classes" if labelled else "of all pairs"
    drawn = [
        ("distance_error", inner, f"relative error of distances {words}"),
        *([("distance_error", "between", "relative error between classes")] if labelled else []),
        ("distance_correlation", inner, f"correlation of distances {words}"),
        ("stretch", inner, f"stretch {words}"),
        ("longest_hole", "", "longest H1 bar over the input's, mean over classes"),
    ]
    drawn = [one for one in drawn if any(row.quantity == one[0] for part in parts for row in part.rows)]
    figure, axes = panels(
        len(drawn), columns=2, width=4.6, height=2.5,
        title="What the layers do to distances" + (f": {names[0]}" if len(names) == 1 else ""),
        says="An isometry has error 0, correlation 1 and stretch 1 at every depth, and keeps every hole. "
        "Stretch: median, and band from the 5 % to the 95 % quantile of pairs.",
        foot=0.15 + 0.2 * -(-len(names) // 2),
    )  # fmt: skip
    for ax, (quantity, pairs, said) in zip(axes, drawn, strict=True):
        for name, part in zip(names, parts, strict=True):
            _draw(ax, part, quantity, pairs, colours[name])
        plain_text(ax.set_title(said, loc="left", size=10, color=INK))
        if quantity in ("stretch", "longest_hole"):
            ax.axhline(1.0, color=GREY, lw=0.9, ls=":")
        if quantity in ("distance_error", "stretch"):
            _logarithmic(ax)
        elif quantity == "longest_hole":
            ax.set_ylim(bottom=0)
        ax.set_xlim(-0.02, 1.02)
    for ax in axes[-2:]:  # the lowest of each column
        ax.set_xlabel("depth", size=9, color=INK)
    if len(names) > 1:
        _legend(figure, colours)
    return figure


def histogram_figure(profiles: Profile | Iterable[Profile], *, layer: str | None = None, log: bool = False) -> Figure:
    """Histograms of distances within classes at one layer, a panel per class, as [beshkov2022] figure 2B.

    A colour per model, the input's own as a line. ``layer`` is the last one before the output by default; ``log``
    counts in logarithms. At most four classes; without labels one panel of all pairs.
    """
    given = several(profiles, "histogram_figure")
    parts = [part_of(profile, "isometry", "histogram_figure") for profile in given]
    names = legend_names(given)
    colours = {name: PALETTE[place % len(PALETTE)] for place, name in enumerate(names)}
    kinds = _kinds(parts[0])
    figure, axes = panels(
        len(kinds), columns=2, width=4.6, height=2.6,
        title="Distances" + (f" at {layer}" if layer else " before the output"),
        says="How often a distance occurs between two samples of a class. Line: in the input.",
        foot=0.15 + 0.2 * -(-(len(names) + 1) // 3),
    )  # fmt: skip
    for ax, kind in zip(axes, kinds, strict=True):
        for name, part in zip(names, parts, strict=True):
            at = layer or _last(part)
            counts, edges = _histogram(part, at, kind, "histogram_figure")
            ax.stairs(_density(counts, edges), edges, fill=True, color=colours[name], alpha=0.45)
        layers = _layers(parts[0])
        counts, edges = _histogram(parts[0], layers[0], kind, "histogram_figure")
        ax.stairs(_density(counts, edges), edges, color=INK, lw=1.3)
        if log:
            ax.set_yscale("log", nonpositive="clip")
        plain_text(ax.set_title(kind.removeprefix("class="), loc="left", size=10, color=INK))
        ax.set_xlabel("distance", size=9, color=INK)
        ax.set_ylabel("density", size=9, color=INK)
    handles = [Patch(color=colour, alpha=0.45, label=name) for name, colour in colours.items()]
    lines = [*handles, Line2D([], [], color=INK, lw=1.3, label=_layers(parts[0])[0])]
    legend = figure.legend(handles=lines, loc="lower left", ncols=min(4, len(lines)), frameon=False, fontsize=9)
    for text in legend.get_texts():
        plain_text(text)
    return figure


def _draw(ax: Axes, part: Part, quantity: str, pairs: str, colour: str) -> None:
    if quantity == "longest_hole":
        depth, values = _holes(part)
        ax.plot(depth, values, "o-", color=colour, ms=4, lw=1.6)
        return
    rows = [row for row in part.rows if row.quantity == quantity and row.at.get("pairs") == pairs]
    if quantity == "stretch":
        levels = {level: _sorted([row for row in rows if row.at["quantile"] == level]) for level in (0.05, 0.5, 0.95)}
        low, middle, high = (levels[level] for level in (0.05, 0.5, 0.95))
        depth = [row.depth or 0.0 for row in middle]
        ax.fill_between(depth, [row.value for row in low], [row.value for row in high], color=colour, alpha=0.18, lw=0)
        ax.plot(depth, [row.value for row in middle], "o-", color=colour, ms=4, lw=1.6)
        return
    rows = _sorted(rows)
    depth, values = [row.depth or 0.0 for row in rows], [max(row.value, _FLOOR) for row in rows]
    ax.plot(depth, values, "o-", color=colour, ms=4, lw=1.6)
    for row in rows:
        if row.low is not None and row.high is not None:
            ax.plot([row.depth or 0.0] * 2, [max(row.low, _FLOOR), max(row.high, _FLOOR)], color=colour, lw=1.2)


def _logarithmic(ax: Axes) -> None:
    """Logarithms, with plain numbers at 1, 2 and 5 times the powers of ten."""
    ax.set_yscale("log", nonpositive="clip")
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_locator(NullLocator())


def _sorted(rows: Sequence[Row]) -> list[Row]:
    return sorted((row for row in rows if row.depth is not None), key=lambda row: row.depth or 0.0)


def _holes(part: Part) -> tuple[list[float], list[float]]:
    """The mean over classes of the longest bar, over that of the first layer."""
    rows = [row for row in part.rows if row.quantity == "longest_hole" and row.depth is not None]
    layers = list(dict.fromkeys(row.layer for row in sorted(rows, key=lambda row: row.depth or 0.0)))
    first = {row.at["class"]: row.value for row in rows if row.layer == layers[0]}
    depth, values = [], []
    for layer in layers:
        here = [row for row in rows if row.layer == layer and first.get(row.at["class"], 0.0) > 0]
        if here:
            depth.append(float(here[0].depth or 0.0))
            values.append(float(np.mean([row.value / first[row.at["class"]] for row in here])))
    return depth, values


def _layers(part: Part) -> list[str]:
    return list(dict.fromkeys(name.removeprefix("histogram/").rsplit("/", 2)[0] for name in part.arrays))


def _last(part: Part) -> str:
    layers = _layers(part)
    return layers[-2] if len(layers) > 2 else layers[-1]


def _kinds(part: Part) -> list[str]:
    found = list(dict.fromkeys(name.rsplit("/", 2)[1] for name in part.arrays))
    classes = [kind for kind in found if kind.startswith("class=")]
    return classes[:MOST_CLASSES] or found[:1]


def _histogram(part: Part, layer: str, kind: str, function: str) -> tuple[np.ndarray, np.ndarray]:
    name = f"histogram/{layer}/{kind}"
    if f"{name}/counts" not in part.arrays:
        raise ValueError(f"{function}: layer must be one of {', '.join(_layers(part))}, got {layer!r}.")
    return part.arrays[f"{name}/counts"], part.arrays[f"{name}/edges"]


def _density(counts: np.ndarray, edges: np.ndarray) -> np.ndarray:
    return np.asarray(counts / (max(1, counts.sum()) * np.diff(edges)))


def _legend(figure: Figure, colours: dict[str, str]) -> None:
    handles = [Line2D([], [], color=colour, marker="o", ms=4, label=name) for name, colour in colours.items()]
    legend = figure.legend(handles=handles, loc="lower left", ncols=2, frameon=False, fontsize=9)
    for text in legend.get_texts():
        plain_text(text)
