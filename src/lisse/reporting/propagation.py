"""Figures of the Propagation instrument: Theorem 5.1 along depth, how far attention looks, which layers are alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lisse.profile import Part, Profile, Row, Value
from lisse.reporting.figure import GREY, INK, PALETTE, panels, plain_text
from lisse.reporting.marks import log_ticks
from lisse.reporting.series import legend_names, several

_DISTANCE = "attention distance, patches (dots: heads)"
# Quantity, coordinates, style of the line: one entry per line of a panel.
_LINES: Mapping[str, tuple[tuple[str, Mapping[str, Value], str], ...]] = {
    "n·ρ: attention alone": (("scaled_ratio", {"of": "attention"}, "-"),),
    "n·ρ: sub-layer with its skip (dashed: without)": (
        ("scaled_ratio", {"of": "sublayer"}, "-"),
        ("scaled_ratio", {"of": "sublayer without skip"}, "--"),
    ),
    "n·ρ: block (dashed: no skips anywhere)": (
        ("scaled_ratio", {"of": "block"}, "-"),
        ("scaled_ratio", {"of": "block without skips"}, "--"),
    ),
    "norm of tokens (dashed: variation)": (
        ("norm", {"of": "block"}, "-"),
        ("variation", {"of": "block"}, "--"),
    ),
    _DISTANCE: (
        ("attention_distance", {"over": "mean"}, "-"),
        ("attention_distance", {"over": "uniform"}, ":"),
    ),
    "asymmetry of the kernel (dashed: rows)": (
        ("asymmetry", {"of": "kernel"}, "-"),
        ("asymmetry", {"of": "rows"}, "--"),
    ),
}
# The same for networks with mask tokens.
_MASKED: Mapping[str, tuple[tuple[str, Mapping[str, Value], str], ...]] = {
    "masked: attention within one patch\n(dashed: weights of eq. 25, dotted: uniform)": (
        ("attention_mass", {"radius": 1, "queries": "masked, unmasked keys"}, "-"),
        ("attention_mass", {"radius": 1, "queries": "masked, weights of (25)"}, "--"),
        ("attention_mass", {"radius": 1, "queries": "masked, unmasked keys, uniform"}, ":"),
    ),
    "masked patches: attention to mask tokens\n(dashed: output outside the span of eq. 25)": (
        ("mask_mass", {"queries": "masked"}, "-"),
        ("span_residual", {}, "--"),
    ),
    "Lemma 6.1: what is lost without mask tokens\n(dashed: their values zeroed, dotted: convex)": (
        ("lemma_share", {"construction": "restricted"}, "-"),
        ("lemma_share", {"construction": "zeroed"}, "--"),
        ("lemma_share", {"construction": "simplex"}, ":"),
    ),
}
MOST_TABLES = 6
_MOST_WRITTEN = 9  # layers whose similarities are also written


def propagation_figure(profiles: Profile | Iterable[Profile]) -> Figure:
    """Theorem 5.1's ratio for attention, sub-layer and block, norms, attention distance, asymmetry; similarities.

    A line per model over depth (a masked autoencoder's encoder first, then its decoder), with bands where there are
    intervals; for masked autoencoders, what their masked patches look at and what mask tokens give; below, linear CKA
    of all pairs of layers, a table per model and part.
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
    hidden = any(row.quantity == "mask_mass" for part in parts for row in part.rows)
    drawn_lines = {**_LINES, **(_MASKED if hidden else {})}
    figure, axes = panels(
        len(drawn_lines) + len(tables), columns=3, width=3.7, height=2.6,
        title="What becomes of the tokens along depth" + (f": {names[0]}" if len(names) == 1 else ""),
        says="n·ρ is the relative change of the tokens in a layer times the patches per side, which Theorem 5.1 bounds "
        "by a constant. Bands are 95 % intervals over images unless the profile says otherwise; dotted attention "
        "distances are those of uniform attention.",
        foot=0.15 + 0.2 * -(-len(names) // 3),
    )  # fmt: skip
    colours = {name: PALETTE[place % len(PALETTE)] for place, name in enumerate(names)}
    for ax, (title, lines) in zip(axes, drawn_lines.items(), strict=False):
        for name, part in zip(names, parts, strict=True):
            for quantity, at, style in lines:
                _line(ax, _rows(part, quantity, at), colours[name], style)
            if title == _DISTANCE:
                _heads(ax, part, colours[name])
        plain_text(ax.set_title(title, loc="left", size=9.5, color=INK))
        drawn = [float(y) for line in ax.lines for y in np.asarray(line.get_ydata()) if np.isfinite(y) and y > 0]
        if title.startswith(("n·ρ", "norm")):
            if drawn:
                log_ticks(ax, drawn)
        else:
            ax.set_ylim(0, 1.08 * ax.get_ylim()[1])
        ax.set_xlim(-0.02, 1.02)
        ax.set_xlabel("normalised depth", size=8.5, color=INK)
    # One scale for all, so that they can be compared; layers are so alike that one from 0 would show nothing.
    lowest = min((float(np.nanmin(table)) for _, table in tables if np.isfinite(table).any()), default=0.0)
    floor = max(0.0, np.floor(10 * lowest) / 10) if lowest < 0.95 else np.floor(100 * lowest) / 100
    for ax, (title, table) in zip(axes[len(drawn_lines) :], tables, strict=True):
        _table(figure, ax, title, table, min(floor, 0.99))
    if len(names) > 1:
        handles = [Line2D([], [], color=colour, label=name) for name, colour in colours.items()]
        legend = figure.legend(handles=handles, loc="lower center", ncols=3, frameon=False, fontsize=9)
        for text in legend.get_texts():
            plain_text(text)
    return figure


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


def _heads(ax: Axes, part: Part, colour: str) -> None:
    """A dot per layer and head."""
    depths = [row.depth or 0.0 for row in _rows(part, "attention_distance", {"over": "mean"})]
    start = 0
    for suffix in ("", "_encoder", "_decoder"):
        heads = part.arrays.get(f"attention_distance{suffix}")
        if heads is None:
            continue
        here = depths[start : start + len(heads)]
        start += len(heads)
        if len(here) == len(heads):
            places = np.repeat(np.asarray(here), heads.shape[1])
            ax.scatter(places, heads.reshape(-1), s=7, color=colour, alpha=0.35, linewidths=0)


def _table(figure: Figure, ax: Axes, title: str, table: np.ndarray, floor: float) -> None:
    shown = ax.imshow(table, vmin=floor, vmax=1, cmap="viridis", origin="lower")
    if len(table) <= _MOST_WRITTEN:
        for (row, column), value in np.ndenumerate(table):
            text = f"{value:.{3 if floor > 0.9 else 2}f}".replace("0.", ".", 1)
            colour = "white" if value < (1 + floor) / 2 else INK
            ax.text(column, row, text, ha="center", va="center", size=7, color=colour)
    ax.grid(False)
    ax.set_xlabel("layer (0: what enters the blocks)", size=8.5, color=INK)
    ticks = range(0, len(table), max(1, len(table) // 6))
    ax.set_xticks(ticks)
    ax.set_yticks(ticks)
    plain_text(ax.set_title(f"CKA: {title}", loc="left", size=9.5, color=INK))
    bar = figure.colorbar(shown, ax=ax, shrink=0.9)
    bar.ax.tick_params(labelsize=8, colors=GREY)
