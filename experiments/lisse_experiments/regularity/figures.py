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

from lisse.maths.intervals import across_clouds, share_interval
from lisse.maths.transport import transport_plan
from lisse.reporting.figure import GREY, INK, PALETTE, panels
from lisse_experiments.outputs import png_files
from lisse_experiments.regularity.measures import two_measures
from lisse_experiments.regularity.negation import Distances, Encoding
from lisse_experiments.regularity.pairs import KINDS, Pair, Stored
from lisse_experiments.regularity.stretches import Stretch
from lisse_experiments.regularity.tables import Results, negation

BLUE, ORANGE, GREEN, PINK = PALETTE[:4]
COLOURS = dict(zip(KINDS, (BLUE, ORANGE), strict=True))
_DOTS = 4000  # more than this many are not told apart


def draw(results: Results, sentences: Sequence[Encoding], pictured: Pair, model: str, folder: Path) -> list[Path]:
    """``figure-1.png``, ``figure-2.png``, ``bounds.png``, ``depth.png`` and, where there are any, ``stored.png``."""
    figures: dict[str, Callable[[], Figure]] = {
        "figure-1": lambda: sentences_as_measures(sentences, pictured, model),
        "figure-2": lambda: negations(results.distances, model),
        "bounds": lambda: bounds(results),
        "depth": lambda: depths(results),
    }
    if results.stored:
        figures["stored"] = lambda: stored_figure(results.stored)
    return png_files(((name, figure()) for name, figure in figures.items()), folder)


# --- Figure 1 -------------------------------------------------------------------------------------------------------


def sentences_as_measures(sentences: Sequence[Encoding], pair: Pair, model: str) -> Figure:
    """The two sentences' tokens as measures, in the plane of their two main directions, with the optimal plan."""
    left, right = (sentence.input.double() for sentence in sentences)
    plan = transport_plan(left, right)
    return two_measures(
        left.numpy(), right.numpy(), plan.coupling.numpy(),
        labels=(f"“{pair.sentence}” (N = {len(left)})", f"“{pair.negation}” (M = {len(right)})"),
        marks=(sentences[0].mask, sentences[1].mask), names=(sentences[0].tokens, sentences[1].tokens),
        title="Two sentences as measures",
        says=f"Every token has the mass 1/N or 1/M, the area of its disc; lines carry the mass that the optimal plan "
        f"moves. W1 = {float(plan.value):.4g} in {left.shape[1]} dimensions. Model: {model.partition(' (')[0]}.",
    )  # fmt: skip


# --- Figure 2 -------------------------------------------------------------------------------------------------------


def negations(distances: Distances, model: str) -> Figure:
    """(a) output against input distance, (b) examples of both types, (c) same and different predictions."""
    figure, (cloud, text, test) = panels(
        3, columns=3, width=4.6, height=4.0, title="Figure 2: negation moves the input, and the [MASK]", foot=0.1,
        says=f"W1 (ground ℓ1) of the token measures at the input against the ℓ1 distance of the [MASK]'s output, "
        f"{len(distances.pairs):,} pairs. The model is {model}.",
    )  # fmt: skip
    _cloud(cloud, distances)
    _examples(text, distances)
    _predictions(test, distances)
    return figure


def _cloud(ax: Axes, distances: Distances) -> None:
    picks = torch.randperm(len(distances.pairs), generator=torch.Generator().manual_seed(0))[:_DOTS]
    for kind in KINDS:
        which = picks[distances.of(kind)[picks]]
        label = f"by {kind} ({int(distances.of(kind).sum()):,})"
        ax.scatter(
            distances.input[which],
            distances.output[which],
            s=7,
            alpha=0.35,
            linewidths=0,
            color=COLOURS[kind],
            label=label,
        )
    tests = negation(distances)
    r = "" if tests is None else f"Pearson {tests.correlation.value:.2f}, Spearman {tests.ranks.value:.2f}"
    ax.set_title(f"(a) {r}", size=10, color=INK, loc="left")
    ax.set_xlabel("W1 of the input embeddings", size=9, color=INK)
    ax.set_ylabel("ℓ1 distance of the [MASK] outputs", size=9, color=INK)
    ax.set_ylim(bottom=0)
    legend = ax.legend(title="negation", fontsize=8, title_fontsize=8, frameon=False, loc="upper left", markerscale=2)
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1)


def _examples(ax: Axes, distances: Distances) -> None:
    """The pair in the middle of each type's most frequent templates."""
    ax.axis("off")
    ax.set_title("(b) typical examples", size=10, color=INK, loc="left")
    top = 0.97
    for kind in KINDS:
        which = distances.of(kind).nonzero().flatten().tolist()
        ax.text(0, top, f"by {kind}", color=COLOURS[kind], size=10, weight="bold", va="top", transform=ax.transAxes)
        top -= 0.075
        counts: dict[str, list[int]] = {}
        for index in which:
            counts.setdefault(distances.pairs[index].group, []).append(index)
        for members in sorted(counts.values(), key=len, reverse=True)[:2]:
            middle = sorted(members, key=lambda index: float(distances.input[index]))[len(members) // 2]
            pair = distances.pairs[middle]
            text = f"{pair.sentence}\n{pair.negation}\nW1 = {float(distances.input[middle]):.3g}"
            lines = [line for part in text.split("\n") for line in textwrap.wrap(part, 52)]
            ax.text(0.02, top, "\n".join(lines), size=8, color=INK, va="top", transform=ax.transAxes, linespacing=1.35)
            top -= 0.062 * len(lines) + 0.03
        top -= 0.02


def _predictions(ax: Axes, distances: Distances) -> None:
    groups = {"same": distances.stays, "different": ~distances.stays}
    data = [distances.input[which].numpy() for which in groups.values() if int(which.sum()) > 1]
    names = [f"{name}\nn = {int(which.sum()):,}" for name, which in groups.items() if int(which.sum()) > 1]
    positions = list(range(len(data)))
    for position, values in zip(positions, data, strict=True):
        parts = ax.violinplot([values], [position], widths=0.75, showextrema=False)
        for body in parts["bodies"]:  # type: ignore[attr-defined]
            body.set(facecolor=GREY, alpha=0.25)
        mean = across_clouds(torch.from_numpy(values))
        ax.errorbar(
            [position],
            [float(mean.value)],
            [[float(mean.value - mean.low)], [float(mean.high - mean.value)]],
            fmt="o",
            color=INK,
            capsize=5,
            markersize=5,
        )
        ax.annotate(
            f"{float(mean.value):.4g}", (position, float(mean.value)), (10, 4), textcoords="offset points", size=9
        )
    ax.set_xticks(positions, names)
    ax.set_ylabel("W1 of the input embeddings", size=9, color=INK)
    tests = negation(distances)
    if tests is not None:
        p = tests.predictions.p_value
        ax.set_title(f"(c) first prediction, Welch: p {'< 1e-10' if p < 1e-10 else f'= {p:.2g}'}", size=10, color=INK,
                     loc="left")  # fmt: skip


# --- bounds ---------------------------------------------------------------------------------------------------------


def bounds(results: Results) -> Figure:
    """Measured stretch, printed and corrected bounds: over R for each d, and over N for Theorem 2."""
    dims = list(dict.fromkeys(stretch.d for stretch in results.stretches))
    figure, axes = panels(
        len(dims) + 1, columns=3, width=4.3, height=3.5, foot=0.45,
        title="How much attention stretches, and what is said of it",
        says="Dots are pairs of measures that were found: the true constant is above them. A bound below a dot is "
        "false there (red). Dot-product attention on balls: the printed Theorem 1 fails where the ball is small. "
        "Gaussian attention: Theorem 2 fails where there are many points.",
    )  # fmt: skip
    for ax, d in zip(axes, dims, strict=False):
        _over_radius(ax, d, [stretch for stretch in results.stretches if stretch.d == d])
    _over_points(axes[-1], results)
    handles, labels = axes[0].get_legend_handles_labels()
    more = [pair for pair in zip(*axes[-1].get_legend_handles_labels(), strict=True) if pair[1] not in labels]
    figure.legend([*handles, *(h for h, _ in more)], [*labels, *(name for _, name in more)], loc="lower center",
                  ncols=6, fontsize=9, frameon=False)  # fmt: skip
    return figure


def _over_radius(ax: Axes, d: int, stretches: Sequence[Stretch]) -> None:
    radii = [stretch.radius for stretch in stretches]
    fine = np.geomspace(radii[0], radii[-1], 100)
    curve = [Stretch(d, float(radius), 1.0, "", 1) for radius in fine]
    ax.plot(fine, [stretch.corrected for stretch in curve], color=GREEN, label="corrected bound")
    ax.plot(fine, [stretch.printed for stretch in curve], color=ORANGE, linestyle="--", label="printed bound")
    if d == 1:
        ax.plot(
            fine,
            [stretch.below for stretch in curve],
            color=GREY,
            linestyle=":",
            label="attained by light masses, $e^{R^2/4}$",
        )
    ax.plot(
        radii, [stretch.measured for stretch in stretches], "o", color=BLUE, markersize=5, label="measured, at least"
    )
    broken = [stretch for stretch in stretches if stretch.violated]
    ax.plot(
        [stretch.radius for stretch in broken],
        [stretch.measured for stretch in broken],
        "o",
        color="none",
        markersize=11,
        markeredgecolor="#c00000",
        markeredgewidth=1.6,
        label="printed bound violated",
    )
    false = [stretch.radius for stretch in curve if stretch.printed < 1]
    if false:
        ax.axvspan(fine[0], max(false), color="#c00000", alpha=0.08, linewidth=0)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_ylim(min(0.05, min(stretch.printed for stretch in stretches)), 1e3)
    ax.set_title(f"dot product, d = {d}", size=10, color=INK, loc="left")
    ax.set_xlabel("radius R of the ball", size=9, color=INK)
    ax.set_ylabel("τ", size=9, color=INK)
    _plain(ax, radii)


def _over_points(ax: Axes, results: Results) -> None:
    n = [family.n for family in results.growth]
    ax.plot(n, [family.intended for family in results.growth], color=ORANGE, linestyle="--", label="printed bound")
    ax.plot(n, [family.literal for family in results.growth], color=PINK, linestyle="-.", label="Theorem 2 as typeset")
    ax.plot(n, [family.measured for family in results.growth], "o-", color=BLUE, markersize=5, linewidth=0.8,
            label="measured, at least")  # fmt: skip
    broken = [family for family in results.growth if family.measured > family.intended]
    ax.plot([family.n for family in broken], [family.measured for family in broken], "o", color="none", markersize=11,
            markeredgecolor="#c00000", markeredgewidth=1.6, label="printed bound violated")  # fmt: skip
    if n[-1] > results.first_violation:
        ax.axvspan(results.first_violation, n[-1], color="#c00000", alpha=0.08, linewidth=0)
        ax.annotate(f"from N = {results.first_violation:,}", (n[-1], 1.0), ha="right", size=8.5, color="#c00000")
    ax.set_xscale("log")
    ax.set_ylim(bottom=0)
    ax.set_title("Gaussian, d = 1: one of N points moves", size=10, color=INK, loc="left")
    ax.set_xlabel("points N", size=9, color=INK)


def _plain(ax: Axes, ticks: Sequence[float]) -> None:
    visible = [tick for tick in ticks if tick in (0.1, 0.2, 0.5, 1.0, 2.0)] or list(ticks)
    ax.set_xticks(visible, [f"{tick:g}" for tick in visible])
    ax.minorticks_off()


# --- depth ----------------------------------------------------------------------------------------------------------


def depths(results: Results) -> Figure:
    """Inversion against the value scale; tokens over depth."""
    figure, (rates, spreads) = panels(
        2,
        columns=2,
        width=5.4,
        height=3.7,
        title="Undoing attention, and repeating it",
        foot=0.1,
        says="x + c·attention(x) is undone by x ← y − c·attention(x): each step leaves the shown share of the error; "
        "above 1 it runs away. Vanilla attention is c = 1. Repeated without the input, tokens meet: for c = 1 where "
        "the input says, for c < 1 at 0.",
    )
    for inversions, colour, label in ((results.inversions, BLUE, "12 tokens"), (results.single, ORANGE, "one token")):
        good = [inversion for inversion in inversions if inversion.converged]
        bad = [inversion for inversion in inversions if not inversion.converged]
        rates.plot(
            [inversion.scale for inversion in good],
            [inversion.rate for inversion in good],
            "o-",
            color=colour,
            label=label,
        )
        rates.plot(
            [inversion.scale for inversion in bad],
            [inversion.rate for inversion in bad],
            "x",
            color=colour,
            markersize=8,
        )
    rates.axhline(1, color=GREY, linewidth=0.8)
    rates.axvspan(
        0,
        results.guaranteed,
        color=GREEN,
        alpha=0.3,
        linewidth=0,
        label="guaranteed: the proved bound\non the ball of all iterates",
    )
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
        visible_spreads = [spread if spread > 0 else math.nan for spread in consensus.spreads[:12]]
        spreads.plot(
            range(len(visible_spreads)),
            visible_spreads,
            "o-",
            color=colour,
            markersize=4,
            label=label.format(consensus.apart),
        )
    spreads.set_yscale("log")
    spreads.set_xlabel("depth", size=9, color=INK)
    spreads.set_ylabel("largest distance between tokens", size=9, color=INK)
    spreads.legend(fontsize=8.5, frameon=False)
    return figure


# --- stored predictions ---------------------------------------------------------------------------------------------


def stored_figure(predictions: Sequence[Stored]) -> Figure:
    """How often published networks keep their first word under negation."""
    files = list(dict.fromkeys(prediction.file for prediction in predictions))
    networks = list(dict.fromkeys(prediction.network for prediction in predictions))
    figure, axes = panels(
        len(files), columns=3, width=4.2, height=3.0, title="Published networks under negation", foot=0.1, share=True,
        says="The share of pairs whose first prediction stays when the sentence is negated, from stored predictions; "
        "95 % intervals. Only pairs whose contexts differ by “not” alone.",
    )  # fmt: skip
    for ax, file in zip(axes, files, strict=True):
        for prediction in (prediction for prediction in predictions if prediction.file == file):
            stays = [
                stay for stay, comparable in zip(prediction.stays, prediction.comparable, strict=True) if comparable
            ]
            share = share_interval(sum(stays) / len(stays), len(stays))
            index = networks.index(prediction.network)
            ends = [[float(share.value - share.low)], [float(share.high - share.value)]]
            ax.errorbar([float(share.value)], [index], xerr=ends, fmt="o", color=PALETTE[index], capsize=4)
        ax.set_title(f"{file}, n = {len(stays)}", size=10, color=INK, loc="left")
        ax.set_xlim(0, 1)
        ax.set_xlabel("same first prediction", size=9, color=INK)
    axes[0].set_yticks(range(len(networks)), networks)
    axes[0].invert_yaxis()
    return figure
