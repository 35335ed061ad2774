"""Figures of the Propagation instrument: Theorem 5.1 along depth, how far attention looks, which layers are alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from lisse.profile import Part, Profile, Row, Value
from lisse.reporting.figure import GREY, INK, PALETTE, panels, plain_text
from lisse.reporting.series import legend_names, several

# Quantity, coordinates, style of the line: one entry per line of a panel.
_LINES: Mapping[str, tuple[tuple[str, Mapping[str, Value], str], ...]] = {
    "n·ρ: attention alone": (("scaled_ratio", {"of": "attention"}, "-"),),
    "n·ρ: sub-layer with its skip (dashed: without)": (
        ("scaled_ratio", {"of": "sublayer"}, "-"),
        ("scaled_ratio", {"of": "sublayer without skip"}, "--"),
    ),
    "n·ρ: block (dashed: no skips in the network)": (
        ("scaled_ratio", {"of": "block"}, "-"),
        ("scaled_ratio", {"of": "block without skips"}, "--"),
    ),
    "norm of tokens (dashed: variation)": (
        ("norm", {"of": "block"}, "-"),
        ("variation", {"of": "block"}, "--"),
    ),
    "attention distance, patches (dotted: uniform)": (
        ("attention_distance", {"over": "mean"}, "-"),
        ("attention_distance", {"over": "uniform"}, ":"),
    ),
    "asymmetry of the kernel (dashed: of its rows)": (
        ("asymmetry", {"of": "kernel"}, "-"),
        ("asymmetry", {"of": "rows"}, "--"),
    ),
}
MOST_TABLES = 6


def propagation_figure(profiles: Profile | Iterable[Profile]) -> Figure:
    """Theorem 5.1's ratio for attention, sub-layer and block, norms, attention distance, asymmetry; similarities.

    A line per model over depth (a masked autoencoder's encoder first, then its decoder), with bands where there are
    intervals; below, linear CKA of all pairs of layers, a table per model and part.
    """
    given = several(profiles, "propagation_figure")
    parts = [_part(profile) for profile in given]
    names = legend_names(given)
    tables = [
        (f"{name}{key.removeprefix('similarity').replace('_', ', ')}", part.arrays[key])
        for name, part in zip(names, parts, strict=True)
        for key in ("similarity", "similarity_encoder", "similarity_decoder")
        if key in part.arrays
    ][:MOST_TABLES]
    figure, axes = panels(
        len(_LINES) + len(tables), columns=3, width=3.7, height=2.6,
        title="What becomes of the tokens along depth" + (f": {names[0]}" if len(names) == 1 else ""),
        says="n·ρ is the relative change of the tokens in a layer times the patches per side, which Theorem 5.1 bounds "
        "by a constant. Bands are 95 % intervals over images unless the profile says otherwise.",
        foot=0.15 + 0.2 * -(-len(names) // 3),
    )  # fmt: skip
    colours = {name: PALETTE[place % len(PALETTE)] for place, name in enumerate(names)}
    for ax, (title, lines) in zip(axes, _LINES.items(), strict=False):
        for name, part in zip(names, parts, strict=True):
            for quantity, at, style in lines:
                _line(ax, _rows(part, quantity, at), colours[name], style)
        plain_text(ax.set_title(title, loc="left", size=9.5, color=INK))
        if title.startswith(("n·ρ", "norm")):
            ax.set_yscale("log")
            ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            few = _decades(ax) < 1.2  # then the minor ticks are all there is to read
            ax.yaxis.set_minor_formatter(FuncFormatter(lambda value, _, few=few: f"{value:g}" if few else ""))
        else:
            ax.set_ylim(0, 1.08 * ax.get_ylim()[1])
        ax.set_xlim(-0.02, 1.02)
        ax.set_xlabel("normalised depth", size=8.5, color=INK)
    for ax, (title, table) in zip(axes[len(_LINES) :], tables, strict=True):
        _table(figure, ax, title, table)
    if len(names) > 1:
        handles = [Line2D([], [], color=colour, label=name) for name, colour in colours.items()]
        legend = figure.legend(handles=handles, loc="lower center", ncols=3, frameon=False, fontsize=9)
        for text in legend.get_texts():
            plain_text(text)
    return figure


def _decades(ax: Axes) -> float:
    low, high = ax.get_ylim()
    return float(np.log10(high / low)) if low > 0 else np.inf


def _part(profile: Profile) -> Part:
    for part in profile:
        if part.instrument == "propagation" and part.rows:
            return part
    raise ValueError(
        f"propagation_figure: profiles must hold a Propagation, got {[part.instrument for part in profile]} of "
        f"{profile.name}. lisse measure propagation MODEL makes one."
    )


def _rows(part: Part, quantity: str, at: Mapping[str, Value]) -> list[Row]:
    """In order of depth; rows at other coordinates beside these (masked queries) are left out."""
    found = [row for row in part.rows if row.quantity == quantity and dict(row.at) == dict(at)]
    return sorted(found, key=lambda row: row.depth or 0.0)


def _line(ax: Axes, rows: list[Row], colour: str, style: str) -> None:
    if not rows:
        return
    depth, values = [row.depth or 0.0 for row in rows], [row.value for row in rows]
    ax.plot(
        depth, values, color=colour, linestyle=style, linewidth=1.6, marker="o" if style == "-" else None, markersize=3
    )
    if all(row.low is not None for row in rows) and style == "-":
        low, high = [row.low or 0.0 for row in rows], [row.high or 0.0 for row in rows]
        ax.fill_between(depth, low, high, color=colour, alpha=0.2, linewidth=0)


def _table(figure: Figure, ax: Axes, title: str, table: np.ndarray) -> None:
    shown = ax.imshow(table, vmin=0, vmax=1, cmap="viridis", origin="lower")
    ax.grid(False)
    ax.set_xlabel("layer (0: what enters the blocks)", size=8.5, color=INK)
    ticks = range(0, len(table), max(1, len(table) // 6))
    ax.set_xticks(ticks)
    ax.set_yticks(ticks)
    plain_text(ax.set_title(f"CKA: {title}", loc="left", size=9.5, color=INK))
    bar = figure.colorbar(shown, ax=ax, shrink=0.9)
    bar.ax.tick_params(labelsize=8, colors=GREY)
