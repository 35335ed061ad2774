"""The paper's figures from our numbers, and three of our own. Needs matplotlib: ``pip install "lisse[report]"``."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError as error:
    raise ImportError(f'reproduce: figures need matplotlib ({error}). pip install "lisse[report]"') from error

from lisse.experiments.outputs import png_files
from lisse.experiments.regularity.negation import Distances, Seen
from lisse.experiments.regularity.pairs import KINDS, Pair, Stored
from lisse.experiments.regularity.stretches import Stretch
from lisse.experiments.regularity.tables import Results, negation
from lisse.maths.intervals import across_clouds, share_interval
from lisse.maths.transport import transport_plan
from lisse.reporting.figure import GREY, INK, PALETTE, panels
from lisse.reporting.measures import two_measures

BLUE, ORANGE, GREEN, PINK = PALETTE[:4]
COLOURS = dict(zip(KINDS, (BLUE, ORANGE), strict=True))
_DOTS = 4000  # more than this many are not told apart


def draw(results: Results, seen: Sequence[Seen], pictured: Pair, said: str, folder: Path) -> list[Path]:
    """``figure-1.png``, ``figure-2.png``, ``bounds.png``, ``depth.png`` and, where there are any, ``stored.png``."""
    made: dict[str, Callable[[], Figure]] = {
        "figure-1": lambda: sentences_as_measures(seen, pictured, said),
        "figure-2": lambda: negations(results.distances, said),
        "bounds": lambda: bounds(results),
        "depth": lambda: depths(results),
    }
    if results.stored:
        made["stored"] = lambda: stored(results.stored)
    return png_files(((name, figure()) for name, figure in made.items()), folder)


# --- Figure 1 -------------------------------------------------------------------------------------------------------


def sentences_as_measures(seen: Sequence[Seen], pair: Pair, said: str) -> Figure:
    """The two sentences' tokens as measures, in the plane of their two main directions, with the optimal plan."""
    left, right = (one.input.double() for one in seen)
    plan = transport_plan(left, right)
    return two_measures(
        left.numpy(), right.numpy(), plan.coupling.numpy(),
        labels=(f"“{pair.sentence}” (N = {len(left)})", f"“{pair.negation}” (M = {len(right)})"),
        marks=(seen[0].mask, seen[1].mask), names=(seen[0].tokens, seen[1].tokens),
        title="Two sentences as measures",
        says=f"Every token has the mass 1/N or 1/M, the area of its disc; lines carry the mass that the optimal plan "
        f"moves. W1 = {float(plan.value):.4g} in {left.shape[1]} dimensions. Model: {said.partition(' (')[0]}.",
    )  # fmt: skip


# --- Figure 2 -------------------------------------------------------------------------------------------------------


def negations(found: Distances, said: str) -> Figure:
    """(a) output against input distance, (b) examples of both types, (c) same and different predictions."""
    figure, (cloud, text, test) = panels(
        3, columns=3, width=4.6, height=4.0, title="Figure 2: negation moves the input, and the [MASK]", foot=0.1,
        says=f"W1 (ground ℓ1) of the token measures at the input against the ℓ1 distance of the [MASK]'s output, "
        f"{len(found.pairs):,} pairs. The model is {said}.",
    )  # fmt: skip
    _cloud(cloud, found)
    _examples(text, found)
    _predictions(test, found)
    return figure


def _cloud(ax: Axes, found: Distances) -> None:
    picks = torch.randperm(len(found.pairs), generator=torch.Generator().manual_seed(0))[:_DOTS]
    for kind in KINDS:
        which = picks[found.of(kind)[picks]]
        label = f"by {kind} ({int(found.of(kind).sum()):,})"
        ax.scatter(
            found.input[which], found.output[which], s=7, alpha=0.35, linewidths=0, color=COLOURS[kind], label=label
        )
    tests = negation(found)
    r = "" if tests is None else f"Pearson {tests.correlation.value:.2f}, Spearman {tests.ranks.value:.2f}"
    ax.set_title(f"(a) {r}", size=10, color=INK, loc="left")
    ax.set_xlabel("W1 of the input embeddings", size=9, color=INK)
    ax.set_ylabel("ℓ1 distance of the [MASK] outputs", size=9, color=INK)
    ax.set_ylim(bottom=0)
    legend = ax.legend(title="negation", fontsize=8, title_fontsize=8, frameon=False, loc="upper left", markerscale=2)
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1)


def _examples(ax: Axes, found: Distances) -> None:
    """The pair in the middle of each type's most frequent templates."""
    ax.axis("off")
    ax.set_title("(b) typical examples", size=10, color=INK, loc="left")
    top = 0.97
    for kind in KINDS:
        which = found.of(kind).nonzero().flatten().tolist()
        ax.text(0, top, f"by {kind}", color=COLOURS[kind], size=10, weight="bold", va="top", transform=ax.transAxes)
        top -= 0.075
        counts: dict[str, list[int]] = {}
        for place in which:
            counts.setdefault(found.pairs[place].group, []).append(place)
        for places in sorted(counts.values(), key=len, reverse=True)[:2]:
            middle = sorted(places, key=lambda place: float(found.input[place]))[len(places) // 2]
            pair = found.pairs[middle]
            text = f"{pair.sentence}\n{pair.negation}\nW1 = {float(found.input[middle]):.3g}"
            lines = [line for part in text.split("\n") for line in textwrap.wrap(part, 52)]
            ax.text(0.02, top, "\n".join(lines), size=8, color=INK, va="top", transform=ax.transAxes, linespacing=1.35)
            top -= 0.062 * len(lines) + 0.03
        top -= 0.02


def _predictions(ax: Axes, found: Distances) -> None:
    groups = {"same": found.same, "different": ~found.same}
    data = [found.input[which].numpy() for which in groups.values() if int(which.sum()) > 1]
    names = [f"{name}\nn = {int(which.sum()):,}" for name, which in groups.items() if int(which.sum()) > 1]
    places = list(range(len(data)))
    for place, values in zip(places, data, strict=True):
        parts = ax.violinplot([values], [place], widths=0.75, showextrema=False)
        for body in parts["bodies"]:  # type: ignore[attr-defined]
            body.set(facecolor=GREY, alpha=0.25)
        it = across_clouds(torch.from_numpy(values))
        ax.errorbar([place], [float(it.value)], [[float(it.value - it.low)], [float(it.high - it.value)]], fmt="o",
                    color=INK, capsize=5, markersize=5)  # fmt: skip
        ax.annotate(f"{float(it.value):.4g}", (place, float(it.value)), (10, 4), textcoords="offset points", size=9)
    ax.set_xticks(places, names)
    ax.set_ylabel("W1 of the input embeddings", size=9, color=INK)
    tests = negation(found)
    if tests is not None:
        p = tests.predictions.p_value
        ax.set_title(f"(c) first prediction, Welch: p {'< 1e-10' if p < 1e-10 else f'= {p:.2g}'}", size=10, color=INK,
                     loc="left")  # fmt: skip


# --- bounds ---------------------------------------------------------------------------------------------------------


def bounds(results: Results) -> Figure:
    """Measured stretch, printed and corrected bounds: over R for each d, and over N for Theorem 2."""
    dims = list(dict.fromkeys(one.d for one in results.stretches))
    figure, axes = panels(
        len(dims) + 1, columns=3, width=4.3, height=3.5, foot=0.45,
        title="How much attention stretches, and what is said of it",
        says="Dots are pairs of measures that were found: the true constant is above them. A bound below a dot is "
        "false there (red). Dot-product attention on balls: the printed Theorem 1 fails where the ball is small. "
        "Gaussian attention: Theorem 2 fails where there are many points.",
    )  # fmt: skip
    for ax, d in zip(axes, dims, strict=False):
        _over_radius(ax, d, [one for one in results.stretches if one.d == d])
    _over_points(axes[-1], results)
    handles, labels = axes[0].get_legend_handles_labels()
    more = [pair for pair in zip(*axes[-1].get_legend_handles_labels(), strict=True) if pair[1] not in labels]
    figure.legend([*handles, *(h for h, _ in more)], [*labels, *(name for _, name in more)], loc="lower center",
                  ncols=6, fontsize=9, frameon=False)  # fmt: skip
    return figure


def _over_radius(ax: Axes, d: int, found: Sequence[Stretch]) -> None:
    radii = [one.radius for one in found]
    fine = np.geomspace(radii[0], radii[-1], 100)
    curve = [Stretch(d, float(radius), 1.0, "", 1) for radius in fine]
    ax.plot(fine, [one.corrected for one in curve], color=GREEN, label="corrected bound")
    ax.plot(fine, [one.printed for one in curve], color=ORANGE, linestyle="--", label="printed bound")
    if d == 1:
        ax.plot(
            fine, [one.below for one in curve], color=GREY, linestyle=":", label="attained by light masses, $e^{R^2/4}$"
        )
    ax.plot(radii, [one.measured for one in found], "o", color=BLUE, markersize=5, label="measured, at least")
    broken = [one for one in found if one.violated]
    ax.plot([one.radius for one in broken], [one.measured for one in broken], "o", color="none", markersize=11,
            markeredgecolor="#c00000", markeredgewidth=1.6, label="printed bound violated")  # fmt: skip
    false = [one.radius for one in curve if one.printed < 1]
    if false:
        ax.axvspan(fine[0], max(false), color="#c00000", alpha=0.08, linewidth=0)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_ylim(min(0.05, min(one.printed for one in found)), 1e3)
    ax.set_title(f"dot product, d = {d}", size=10, color=INK, loc="left")
    ax.set_xlabel("radius R of the ball", size=9, color=INK)
    ax.set_ylabel("τ", size=9, color=INK)
    _plain(ax, radii)


def _over_points(ax: Axes, results: Results) -> None:
    n = [one.n for one in results.growth]
    ax.plot(n, [one.intended for one in results.growth], color=ORANGE, linestyle="--", label="printed bound")
    ax.plot(n, [one.literal for one in results.growth], color=PINK, linestyle="-.", label="Theorem 2 as typeset")
    ax.plot(n, [one.measured for one in results.growth], "o-", color=BLUE, markersize=5, linewidth=0.8,
            label="measured, at least")  # fmt: skip
    broken = [one for one in results.growth if one.measured > one.intended]
    ax.plot([one.n for one in broken], [one.measured for one in broken], "o", color="none", markersize=11,
            markeredgecolor="#c00000", markeredgewidth=1.6, label="printed bound violated")  # fmt: skip
    if n[-1] > results.first_violation:
        ax.axvspan(results.first_violation, n[-1], color="#c00000", alpha=0.08, linewidth=0)
        ax.annotate(f"from N = {results.first_violation:,}", (n[-1], 1.0), ha="right", size=8.5, color="#c00000")
    ax.set_xscale("log")
    ax.set_ylim(bottom=0)
    ax.set_title("Gaussian, d = 1: one of N points moves", size=10, color=INK, loc="left")
    ax.set_xlabel("points N", size=9, color=INK)


def _plain(ax: Axes, ticks: Sequence[float]) -> None:
    shown = [tick for tick in ticks if tick in (0.1, 0.2, 0.5, 1.0, 2.0)] or list(ticks)
    ax.set_xticks(shown, [f"{tick:g}" for tick in shown])
    ax.minorticks_off()


# --- depth ----------------------------------------------------------------------------------------------------------


def depths(results: Results) -> Figure:
    """Inversion against the value scale; tokens over depth."""
    figure, (rates, spreads) = panels(
        2, columns=2, width=5.4, height=3.7, title="Undoing attention, and repeating it", foot=0.1,
        says="x + c·attention(x) is undone by x ← y − c·attention(x): each step leaves the shown share of the error; "
        "above 1 it runs away. Vanilla attention is c = 1. Repeated without the input, tokens meet: for c = 1 where "
        "the input says, for c < 1 at 0.",
    )  # fmt: skip
    for found, colour, label in ((results.inversions, BLUE, "12 tokens"), (results.single, ORANGE, "one token")):
        good = [one for one in found if one.converged]
        bad = [one for one in found if not one.converged]
        rates.plot([one.scale for one in good], [one.rate for one in good], "o-", color=colour, label=label)
        rates.plot([one.scale for one in bad], [one.rate for one in bad], "x", color=colour, markersize=8)
    rates.axhline(1, color=GREY, linewidth=0.8)
    rates.axvspan(0, results.guaranteed, color=GREEN, alpha=0.3, linewidth=0, label="guaranteed by the proved bound")
    rates.axvline(results.largest, color=BLUE, linestyle=":", label=f"largest that was inverted, {results.largest:.2f}")
    rates.set_xlim(0, 1.08)
    rates.set_ylim(0, None)
    rates.set_xlabel("scale c of the values", size=9, color=INK)
    rates.set_ylabel("error left by a step", size=9, color=INK)
    rates.legend(fontsize=8.5, edgecolor="none", framealpha=0.9, loc="lower right")
    for consensus, colour, label in (
        (results.vanilla, BLUE, "c = 1: two inputs end {:.2g} apart"),
        (results.scaled, ORANGE, "c = 0.5: they end {:.1g} apart"),
        (results.injected, GREEN, "c = 0.5 with injection: {:.2g} apart"),
    ):
        shown = [spread if spread > 0 else math.nan for spread in consensus.spreads[:12]]
        spreads.plot(range(len(shown)), shown, "o-", color=colour, markersize=4, label=label.format(consensus.apart))
    spreads.set_yscale("log")
    spreads.set_xlabel("depth", size=9, color=INK)
    spreads.set_ylabel("largest distance between tokens", size=9, color=INK)
    spreads.legend(fontsize=8.5, frameon=False)
    return figure


# --- stored predictions ---------------------------------------------------------------------------------------------


def stored(found: Sequence[Stored]) -> Figure:
    """How often published networks keep their first word under negation."""
    files = list(dict.fromkeys(one.file for one in found))
    networks = list(dict.fromkeys(one.network for one in found))
    figure, axes = panels(
        len(files), columns=3, width=4.2, height=3.0, title="Published networks under negation", foot=0.1, share=True,
        says="The share of pairs whose first prediction stays when the sentence is negated, from stored predictions; "
        "95 % intervals. Only pairs whose contexts differ by “not” alone.",
    )  # fmt: skip
    for ax, file in zip(axes, files, strict=True):
        for one in (one for one in found if one.file == file):
            same = [same for same, kept in zip(one.same, one.comparable, strict=True) if kept]
            it = share_interval(sum(same) / len(same), len(same))
            place = networks.index(one.network)
            ends = [[float(it.value - it.low)], [float(it.high - it.value)]]
            ax.errorbar([float(it.value)], [place], xerr=ends, fmt="o", color=PALETTE[place], capsize=4)
        ax.set_title(f"{file}, n = {len(same)}", size=10, color=INK, loc="left")
        ax.set_xlim(0, 1)
        ax.set_xlabel("same first prediction", size=9, color=INK)
    axes[0].set_yticks(range(len(networks)), networks)
    axes[0].invert_yaxis()
    return figure
