"""Figures of the Contraction instrument: stretch beside its bounds, distances in and out, two sentences as measures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from lisse.profile import Profile, Row
from lisse.reporting.figure import GREY, INK, PALETTE, panels, plain_text
from lisse.reporting.marks import foot, handle, put_legend
from lisse.reporting.measures import draw_measures
from lisse.reporting.series import legend_names, several

#: What stands beside the measured stretch: name, words, line, marker, whether the row holds a logarithm.
BOUNDS = (
    ("stretch", "largest stretch of a pair (from below)", "-", "^", False),
    ("local_stretch", "largest local stretch, Euclidean (from below)", "-", "o", False),
    ("local_bound", "local bound, Euclidean (from above)", "-.", "v", False),
    ("log_hull_bound", "bound on the tokens' hull (from above)", "-.", "s", True),
    ("log_bound", "bound of the weights (from above)", "-.", "P", True),
    ("log_sequence_bound", "bound for one length, Euclidean (from above)", ":", "X", True),
    ("log_printed_bound", "printed bound (no theorem)", "--", "D", True),
)


def contraction_figure(profiles: Profile | Iterable[Profile]) -> Figure:
    """Distances of pairs before and after attention, stretch under its bounds, and entry against end (fig. 2a).

    One row of three panels per profile. The middle panel is in powers of ten: proved bounds may be very large.
    """
    given = several(profiles, "contraction_figure")
    names = legend_names(given)
    for name, profile in zip(names, given, strict=True):
        if not any(row.quantity in ("stretch", "key_stretch") for row in profile.rows):
            raise ValueError(
                f"contraction_figure: profiles must hold Contraction's rows, got none of {name}. "
                "lisse measure contraction makes them."
            )
    kinds = [one for one in BOUNDS if any(row.quantity == one[0] for profile in given for row in profile.rows)]
    handles: list[Line2D] = [handle("before attention", PALETTE[0]), handle("after", PALETTE[1])]
    for place, (_, words, style, marker, _) in enumerate(kinds):
        colour = _colour(place)
        handles.append(Line2D([], [], color=colour, linestyle=style, marker=marker, ms=5, lw=1.4, label=words))
    figure, axes = panels(
        3 * len(given),
        columns=3,
        width=4.4,
        height=3.4,
        title="How far attention pulls two inputs apart" + (f": {names[0]}" if len(names) == 1 else ""),
        says="Left: the mean transport distance of a pair where it enters attention and behind it. Middle: the largest "
        "stretch of a pair, over which every bound of transport must lie, and the Euclidean ones; the room between is "
        "what a bound does not know. Right: "
        "a dot per pair, its distance at the entry and at the end.",
        foot=foot(len(handles), 3),
    )
    for place, (name, profile) in enumerate(zip(names, given, strict=True)):
        row = axes[3 * place : 3 * place + 3]
        _distances(row[0], profile)
        _bounds(row[1], profile, [one[0] for one in kinds])
        _scatter(row[2], profile)
        if len(given) > 1:
            plain_text(row[0].set_title(name, loc="left", size=10, color=INK))
    put_legend(figure, handles, 3)
    return figure


def sentences_figure(profile: Profile, *, pair: int = 0) -> Figure:
    """Two samples as measures on their main plane, before and after the first attention layer ([vuckovic2021] fig. 1).

    A disc per token, of the area of its mass 1/N; grey lines are the optimal coupling, whose mean length is the
    transport distance. ``pair`` chooses among the pairs that the profile keeps.
    """
    part = next((part for part in profile.parts if part.instrument == "contraction"), None)
    arrays = {} if part is None else part.arrays
    kept = sorted({int(key.split("/")[1]) for key in arrays if key.startswith("pair/")})
    if not kept:
        raise ValueError(
            "sentences_figure: profile must hold pictures of pairs, got none. Measure contraction with shown=1 or more."
        )
    if pair not in kept:
        raise ValueError(f"sentences_figure: pair must be one of {', '.join(map(str, kept))}, got {pair}.")
    words = [[str(word) for word in arrays[f"pair/{pair}/{side}"]] for side in ("first", "second")]
    before, after = (float(arrays[f"pair/{pair}/{moment}/distance"][0]) for moment in ("before", "after"))
    figure, axes = panels(
        2,
        columns=2,
        width=5.6,
        height=4.4,
        title="Two samples as measures",
        says="A disc per token, its area the mass 1/N; grey lines carry the one onto the other at least cost. Left: "
        f"where they enter the first attention, {before:.4g} apart; right: behind it, {after:.4g}, a stretch of "
        f"{after / before if before > 0 else math.nan:.3g}. Each panel has two main directions of its own.",
        foot=foot(2, 1),
    )
    for ax, moment in zip(axes, ("before", "after"), strict=True):
        flat, plan = arrays[f"pair/{pair}/{moment}"], arrays[f"pair/{pair}/{moment}/plan"]
        draw_measures(ax, flat[: len(plan)], flat[len(plan) :], plan, names=(words[0], words[1]))
        distance = float(arrays[f"pair/{pair}/{moment}/distance"][0])
        plain_text(ax.set_title(f"{moment} attention: distance {distance:.4g}", loc="left", size=10, color=INK))
    put_legend(figure, [handle(_sentence(side), PALETTE[k]) for k, side in enumerate(words)], 1)
    return figure


# --- panels ---------------------------------------------------------------------------------------------------------


def _whole(profile: Profile, quantity: str) -> list[Row]:
    """A quantity's rows of whole layers, in order of depth."""
    rows = [row for row in profile.rows if row.quantity == quantity and not row.at and row.depth is not None]
    return sorted((row for row in rows if math.isfinite(row.value)), key=lambda row: row.depth or 0.0)


def _distances(ax: Axes, profile: Profile) -> None:
    for place, quantity in enumerate(("distance_before", "distance_after")):
        rows, colour = _whole(profile, quantity), PALETTE[place]
        x = [row.depth or 0.0 for row in rows]
        ax.plot(x, [row.value for row in rows], color=colour, marker="o", ms=4, lw=1.6)
        if rows and all(row.low is not None and row.high is not None for row in rows):
            low, high = [row.low or 0.0 for row in rows], [row.high or 0.0 for row in rows]
            ax.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
    if any(row.value > 0 for row in _whole(profile, "distance_after")):
        ax.set_yscale("log", nonpositive="clip")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_ylabel("transport distance of a pair", size=9, color=INK)
    _depth(ax)


def _bounds(ax: Axes, profile: Profile, names: Sequence[str]) -> None:
    drawn: list[float] = []
    for place, name in enumerate(names):
        (_, _, style, marker, logarithm) = next(one for one in BOUNDS if one[0] == name)
        rows = [row for row in _whole(profile, name) if logarithm or row.value > 0]
        values = [row.value if logarithm else math.log10(row.value) for row in rows]
        x = [row.depth or 0.0 for row in rows]
        drawn += values
        ax.plot(x, values, style, color=_colour(place), marker=marker, ms=5, lw=1.4, mec="white", mew=0.4)
    low, high = min(drawn, default=0.0), max(drawn, default=0.0)
    if high - low > 12:  # a bound of 10^900 must not hide the rest
        ax.set_yscale("symlog", linthresh=4)
        low, high = min(low - 1, -1.0), 1.6 * high
        ax.set_ylim(low, high)
        ends = sorted({-4, -2, 0, 2, 4, *(10 * 10**k for k in range(6)), *(30 * 10**k for k in range(5))})
        ax.set_yticks([end for end in ends if low <= end <= high])
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.axhline(0.0, color=GREY, lw=0.9, ls=":")
    ax.set_ylabel("stretch, power of ten", size=9, color=INK)
    _depth(ax)


def _scatter(ax: Axes, profile: Profile) -> None:
    part = next((part for part in profile.parts if part.instrument == "contraction"), None)
    arrays = {} if part is None else part.arrays
    if "output" in arrays and "depth/0" in arrays:
        ax.scatter(arrays["depth/0"], arrays["output"], s=12, color=PALETTE[2], alpha=0.6, linewidths=0)
        row = next((row for row in profile.rows if row.quantity == "correlation"), None)
        if row is not None:
            ends = "" if row.low is None else f" [{row.low:.2f}, {row.high:.2f}]"
            plain_text(ax.set_title(f"correlation {row.value:.2f}{ends}, n = {row.n}", loc="left", size=9.5, color=INK))
    else:
        ax.text(0.5, 0.5, "no tokens along depth", ha="center", va="center", color=GREY, transform=ax.transAxes)
    ax.set_xlabel("transport distance at the entry", size=9, color=INK)
    ax.set_ylabel("distance of the embeddings at the end", size=9, color=INK)


def _depth(ax: Axes) -> None:
    ax.set_xlabel("depth (0: entry, 1: end)", size=9, color=INK)


def _colour(place: int) -> str:
    return (PALETTE[2], *PALETTE[3:7], PALETTE[0], PALETTE[1])[place % 7]


def _sentence(words: Sequence[str]) -> str:
    text = " ".join(words)
    return text if len(text) <= 110 else text[:107] + "…"
