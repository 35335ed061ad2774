"""Stability over displacement, training set, depth and treatment: figures 3, 4, 6, 12, 13, 14 and 22."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from lisse.maths.power_law import geometric_mean
from lisse.reporting.figure import GREY, INK, PALETTE, panels
from lisse_experiments.diffeomorphisms.figures.frame import all_ends, architecture_of, ends, log_log, plain_ticks
from lisse_experiments.diffeomorphisms.networks import Source
from lisse_experiments.diffeomorphisms.plan import Settings
from lisse_experiments.diffeomorphisms.result import D, G, R, Results, level, mean_error
from lisse_experiments.diffeomorphisms.tables import LETTERS
from lisse_experiments.diffeomorphisms.treatments import Treatment

COLOURS = {R: PALETTE[2], D: PALETTE[1], G: PALETTE[0]}
STYLES = ("-", "--", ":")


# --- figures 3, 4, 6, 13: R, D and G over displacement, data and P ----------------------------------------------------


def overview(
    results: Results, plan: Settings, sources: Sequence[Source], names: Sequence[str], *, deltas: bool
) -> Figure:
    """A row per network: R over δ (``deltas``), R at initialisation and trained by data set, R over P."""
    sized = bool(plan.sizes)
    wide = 1 + deltas + sized
    says = (
        "Faint, dashed, grey: at initialisation; full: trained. δ = 1 where no δ is shown. Bars: intervals over seeds."
    )
    figure, axes = panels(
        wide * len(names), columns=max(2, wide), width=3.7, height=3.0, title="Relative stability to diffeomorphisms",
        says=says, foot=0.45,
    )  # fmt: skip
    for row, name in enumerate(names):
        row_axes = axes[row * wide : (row + 1) * wide]
        label = architecture_of(plan, name).label
        if deltas:
            _over_delta(row_axes[0], results, plan, sources[0], name)
            row_axes[0].set_title(f"{label}, {sources[0].label}", loc="left", size=10, color=INK)
        _by_source(row_axes[deltas], results, sources, name)
        row_axes[deltas].set_title(f"{label}, whole training sets", loc="left", size=10, color=INK)
        if sized:
            _over_size(row_axes[-1], results, sources, name, (R,), bars=True)
            row_axes[-1].set_title(f"{label}, c = {sources[0].cuts[0]}", loc="left", size=10, color=INK)
    cuts = sources[0].cuts
    handles: list[Any] = [Patch(color=PALETTE[k], label=f"c = {cut}") for k, cut in enumerate(cuts)]
    handles += [Line2D([], [], color=INK, ls=STYLES[k], label=source.label) for k, source in enumerate(sources)]
    if deltas:
        handles += [Line2D([], [], color=INK, marker="x", lw=0, label="Gaussian interpolation")]
    figure.legend(handles=handles, loc="lower left", ncols=7, frameon=False, fontsize=9)
    return figure


def _over_delta(ax: Axes, results: Results, plan: Settings, source: Source, name: str) -> None:
    trainings = results.of(source, name)
    for k, cut in enumerate(source.cuts):
        for when, style in (("initial", "--"), ("trained", "-")):
            for way, marker in (("deltas", "o"), ("gaussian", "x")):
                levels = [(d, level(trainings, R, f"{when}/{way}", cut=cut, delta=d)) for d in plan.deltas]
                points = [(d, float(value.value)) for d, value in levels if value is not None]
                ax.plot([d for d, _ in points], [v for _, v in points], ls=style if way == "deltas" else "",
                        marker=marker, ms=4, color=PALETTE[k], lw=1.3)  # fmt: skip
    ax.axvline(1, color=GREY, lw=0.8)
    log_log(ax, "displacement δ (pixels)", "R")


def _by_source(ax: Axes, results: Results, sources: Sequence[Source], name: str) -> None:
    for index, source in enumerate(sources):
        trainings = results.of(source, name)
        for k, cut in enumerate(source.cuts):
            width = 0.8 / len(source.cuts)
            x = index + (k - (len(source.cuts) - 1) / 2) * width
            for which, alpha, shift in (("initial", 0.35, -0.25), ("trained", 1.0, 0.25)):
                interval = level(trainings, R, which, cut=cut)
                if interval is not None:
                    ax.bar(x + shift * width, float(interval.value), width * 0.45, color=PALETTE[k], alpha=alpha,
                           yerr=ends(interval), error_kw={"lw": 0.8, "ecolor": INK})  # fmt: skip
    ax.axhline(1, color=GREY, lw=0.8)
    ax.set_yscale("log")
    plain_ticks(ax.yaxis)
    ax.set_xticks(range(len(sources)), [source.label for source in sources], size=9)
    ax.set_ylabel("R", size=9, color=INK)


def _over_size(
    ax: Axes, results: Results, sources: Sequence[Source], name: str, quantities: Sequence[str], *, bars: bool,
    cuts: Sequence[int] | None = None,
) -> None:  # fmt: skip
    for k, source in enumerate(sources):
        for j, cut in enumerate(cuts or source.cuts[:1]):
            style = STYLES[k] if len(quantities) == 1 else STYLES[j % 3]
            for quantity in quantities:
                sizes = results.sizes(source, name)
                levels = [(p, level(results.of(source, name, p), quantity, cut=cut)) for p in sizes]
                points = [(p, interval) for p, interval in levels if interval is not None]
                if not points:
                    continue
                values = [float(interval.value) for _, interval in points]
                ax.errorbar(
                    [p for p, _ in points],
                    values,
                    yerr=all_ends([interval for _, interval in points]) if bars else None,
                    color=COLOURS[quantity],
                    ls=style,
                    lw=1.5,
                    marker="o",
                    ms=3.5,
                    elinewidth=0.8,
                )
                if quantity == R:
                    start = level(results.of(source, name), R, "initial", cut=cut)
                    if start is not None and len(quantities) == 1:
                        ax.axhline(float(start.value), color=GREY, ls=style, lw=1.0)
    log_log(ax, "training samples P", "")
    sizes = sorted({p for source in sources for p in results.sizes(source, name)})
    ax.set_xticks(sizes, [f"{p / 1000:g}k" if p >= 1000 and not p % 100 else str(p) for p in sizes], size=8)


def over_size(results: Results, plan: Settings, sources: Sequence[Source]) -> Figure:
    """R over P by data set for the best networks (Figures 3 and 13), with the slope -1 of the stripe model."""
    figure, axes = panels(
        len(plan.good) * len(sources), columns=len(sources), width=3.8, height=3.0, title="R over the training set",
        says="Grey: at initialisation. Black, dashed: slope -1, which the stripe model has for large P.", foot=0.2,
    )  # fmt: skip
    for index, (name, source) in enumerate((n, s) for n in plan.good for s in sources):
        ax = axes[index]
        _over_size(ax, results, [source], name, (R,), bars=True)
        sizes = results.sizes(source, name)
        end = level(results.of(source, name), R, cut=source.cuts[0])
        if end is not None and len(sizes) > 1:
            ax.plot(sizes[-2:], [1.5 * float(end.value) * sizes[-1] / p for p in sizes[-2:]], ls="--", color=INK, lw=1)
        ax.set_title(f"{architecture_of(plan, name).label}, {source.label}", loc="left", size=10, color=INK)
        ax.set_ylabel("R", size=9, color=INK)
    return figure


def parts_over_size(results: Results, plan: Settings, sources: Sequence[Source], *, bars: bool) -> Figure:
    """D, G and R over P by data set and cut-off (Figure 6; with bars Figure 22)."""
    figure, axes = panels(
        len(plan.curves) * len(sources), columns=max(2, len(sources)), width=3.8, height=3.0,
        title="Answers to noise and to deformations over the training set",
        says="R = D / G." + (" Bars: intervals over seeds." if bars else ""), foot=0.35,
    )  # fmt: skip
    for index, (name, source) in enumerate((n, s) for n in plan.curves for s in sources):
        _over_size(axes[index], results, [source], name, (R, D, G), bars=bars, cuts=source.cuts)
        axes[index].set_title(f"{architecture_of(plan, name).label}, {source.label}", loc="left", size=10, color=INK)
    handles = [Line2D([], [], color=COLOURS[q], label=LETTERS[q], lw=2) for q in (R, D, G)]
    handles += [
        Line2D([], [], color=INK, ls=STYLES[j % 3], label=f"c = {cut}") for j, cut in enumerate(sources[0].cuts)
    ]
    figure.legend(handles=handles, loc="lower left", ncols=6, frameon=False, fontsize=9)
    return figure


# --- figure 14 ------------------------------------------------------------------------------------------------------


def along_depth(results: Results, plan: Settings, source: Source) -> Figure:
    """R at every layer, at initialisation and trained, of the networks of Figures 3 and 4."""
    names = plan.curves
    figure, axes = panels(
        len(names), columns=2, width=4.4, height=2.9, title=f"R along depth, {source.label}, c = {plan.cut}, δ = 1",
        says="From the input to the output; geometric means over seeds. Dashed: at initialisation; full: trained.",
        foot=0.1,
    )  # fmt: skip
    for ax, name in zip(axes, names, strict=True):
        trainings = results.of(source, name)
        for which, style, colour in (("initial", "--", GREY), ("trained", "-", PALETTE[2])):
            rows = [result.rows(R, which, cut=plan.cut) for result in trainings]
            depths = [row.depth or 0.0 for row in rows[0]] if rows else []
            columns = list(zip(*rows, strict=True)) if rows else []
            positive = [k for k, column in enumerate(columns) if all(row.value > 0 for row in column)]  # not NaN
            depths = [depths[k] for k in positive]
            levels = [geometric_mean(torch.tensor([row.value for row in columns[k]])) for k in positive]
            ax.plot(
                depths, [float(interval.value) for interval in levels], ls=style, color=colour, lw=1.7, marker="o", ms=3
            )
            if len(trainings) > 1:
                low, high = (
                    [float(end) for end in ends] for ends in zip(*((f.low, f.high) for f in levels), strict=True)
                )
                ax.fill_between(depths, low, high, color=colour, alpha=0.15, lw=0)
        ax.axhline(1, color=GREY, lw=0.8)
        ax.set_yscale("log")
        plain_ticks(ax.yaxis)
        ax.set_title(architecture_of(plan, name).label, loc="left", size=10, color=INK)
        ax.set_xlabel("depth", size=9, color=INK)
        ax.set_ylabel("R", size=9, color=INK)
    return figure


# --- figure 12 and the discussion -----------------------------------------------------------------------------------


def treatments(results: Results, plan: Settings, source: Source, ways: Sequence[Treatment]) -> Figure:
    """R, D, G and error of the same network under each treatment, every seed a dot."""
    steps = f"{plan.worst_steps} step{'s' if plan.worst_steps > 1 else ''}"
    ascent = f" Worst: after {steps} of ascent." if any(way.fields == "worst" for way in ways) else ""
    figure, axes = panels(
        4 * len(plan.treated), columns=4, width=2.7, height=2.8,
        title=f"The same network trained in {len(ways)} ways, {source.label}",
        says=f"c = {plan.cut}, δ = 1. Bars: means over seeds (geometric for R, D, G); dots: seeds.{ascent}", foot=0.1,
    )  # fmt: skip
    for row, name in enumerate(plan.treated):
        for ax, quantity in zip(axes[4 * row : 4 * row + 4], (R, D, G, "error"), strict=True):
            for k, treatment in enumerate(ways):
                trainings = results.of(source, name, treatment=treatment.name)
                bar = mean_error(trainings) if quantity == "error" else level(trainings, quantity, cut=plan.cut)
                answers = [r.error if quantity == "error" else r.output(quantity, cut=plan.cut) for r in trainings]
                values = [value for value in answers if value is not None]
                if bar is not None:
                    ax.bar(k, float(bar.value), 0.6, color=PALETTE[k], alpha=0.75)
                    ax.plot([k] * len(values), values, "o", ms=3.5, color=INK)
            ax.set_xticks(range(len(ways)), [t.label for t in ways], size=8.5, rotation=25, ha="right",
                          rotation_mode="anchor")  # fmt: skip
            letter = LETTERS.get(quantity, "test error")
            ax.set_title(f"{letter}, {architecture_of(plan, name).label}", loc="left", size=10, color=INK)
            ax.set_ylim(bottom=0)
    return figure
