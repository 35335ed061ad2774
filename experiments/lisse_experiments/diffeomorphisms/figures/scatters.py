"""Test error against R, D and G, a point per architecture: figures 5 and 15 to 21."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lisse.maths.power_law import PowerLaw
from lisse.reporting.figure import GREY, INK, PALETTE, panels
from lisse_experiments.diffeomorphisms.figures.frame import architecture_of, beside, ends, log_log
from lisse_experiments.diffeomorphisms.networks import Architecture, Source
from lisse_experiments.diffeomorphisms.plan import Settings
from lisse_experiments.diffeomorphisms.result import R, Results, level, mean_error, positive_error
from lisse_experiments.diffeomorphisms.tables import LETTERS, error_law

DEPTHS = colormaps["viridis"]


# --- figures 5, 15 to 21: against the test error --------------------------------------------------------------------


def against_error(results: Results, plan: Settings, source: Source, *, bars: bool) -> Figure:
    """Test error over R, a point per architecture: colour for depth, shape for batch norm and skip connections."""
    figure, (ax,) = panels(
        1, columns=1, width=7.4, height=4.6, title=f"Test error and relative stability, {source.label}",
        says=f"c = {plan.cut}, δ = 1, geometric means over seeds ({_counts(results, plan, source)})."
        + (" Bars: intervals over seeds, or over images where there is one." if bars else ""), foot=0.6,
    )  # fmt: skip
    depths = [trainings[0].depth for a in plan.architectures if (trainings := results.of(source, a.name))]
    norm = LogNorm(min(depths, default=1), max(max(depths, default=2), 1 + min(depths, default=1)))
    names = {}
    for architecture in plan.architectures:
        trainings = results.of(source, architecture.name)
        point = _point(ax, results, source, architecture, R, plan.cut, bars=bars, colour="none")
        if point is None:
            continue
        marker = "P" if architecture.skip else "D" if trainings[0].batch_norm else "o"
        ax.plot(*point, marker, ms=9, color=DEPTHS(norm(trainings[0].depth)), mec=INK, mew=0.6)
        names[architecture.label] = point
    _line(ax, error_law(results, plan, source), PALETTE[1], "-")
    log_log(ax, "R", "test error")
    low, high = ax.get_xlim()
    ax.set_xlim(low / (high / low) ** 0.11, high * (high / low) ** 0.22)  # room for the names
    x = np.geomspace(low, high, 50)
    ax.plot(x, 0.24 * np.sqrt(x), color=GREY, ls="--", lw=1.2, scalex=False, scaley=False)
    beside(ax, names)
    law = error_law(results, plan, source)
    fit = "" if law is None else (
        f"fit: {float(law.prefactor.value):.2g} R^{float(law.slope.value):.2f}, correlation "
        f"{float(law.correlation.value):.2f}"
    )  # fmt: skip
    handles = [
        Line2D([], [], color=PALETTE[1], label=fit), Line2D([], [], color=GREY, ls="--", label="0.24 √R (the paper)"),
        *(Line2D([], [], marker=m, lw=0, color=GREY, label=t)
          for m, t in (("o", "plain"), ("D", "batch norm"), ("P", "skip connections"))),
    ]  # fmt: skip
    figure.legend(handles=handles, loc="lower left", ncols=3, frameon=False, fontsize=8.5)
    bar = figure.colorbar(_mappable(norm), ax=ax, label="depth", pad=0.01)
    apart: list[int] = []
    for depth in sorted(set(depths)):  # numbers that would lie on each other are left out
        if not apart or norm(depth) - norm(apart[-1]) > 0.035:
            apart.append(depth)
    bar.set_ticks(apart, labels=[str(depth) for depth in apart])
    bar.ax.minorticks_off()
    return figure


def quantities_against_error(results: Results, plan: Settings, source: Source, quantities: Sequence[str]) -> Figure:
    """Test error over D, over G and over R, with the fit and the correlation of each (Figures 15 to 17)."""
    figure, axes = panels(
        len(quantities), columns=3, width=3.6, height=3.2, title=f"Which of them tells the error? {source.label}",
        says="D: answer to deformations, G: answer to noise, R = D / G. Lines: power laws.", share=True,
        foot=_foot(plan, 3.6 * len(quantities)),
    )  # fmt: skip
    for ax, quantity in zip(axes, quantities, strict=True):
        _scatter(ax, results, plan, source, quantity, plan.cut, 1.0, "trained")
        law = error_law(results, plan, source, quantity)
        note = "" if law is None else f", correlation {float(law.correlation.value):.2f}"
        ax.set_title(f"{LETTERS[quantity]}{note}", loc="left", size=10, color=INK)
        log_log(ax, LETTERS[quantity], "test error")
    _names(figure, plan)
    return figure


def sources_against_error(results: Results, plan: Settings, sources: Sequence[Source]) -> Figure:
    """Test error over R on each data set (Figure 20)."""
    figure, axes = panels(len(sources), columns=3, width=4.0, height=3.2, title="Test error and R by data set",
                          says="δ = 1, the smallest cut-off; whole training sets.",
                          foot=_foot(plan, 4.0 * min(3, len(sources))))  # fmt: skip
    for ax, source in zip(axes, sources, strict=True):
        _scatter(ax, results, plan, source, R, source.cuts[0], 1.0, "trained")
        ax.set_title(source.label, loc="left", size=10, color=INK)
        log_log(ax, "R", "test error")
    _names(figure, plan)
    return figure


def settings_against_error(results: Results, plan: Settings, source: Source) -> Figure:
    """Test error over R at every cut-off and displacement (Figure 21)."""
    pairs = [(cut, delta) for cut in source.cuts for delta in plan.deltas if delta >= 0.25]
    columns = len(pairs) // len(source.cuts)
    figure, axes = panels(len(pairs), columns=columns, width=3.0, height=2.5, title="Test error and R by c and δ",
                          says=f"{source.label}. Lines: power laws.", foot=_foot(plan, 3.0 * columns))  # fmt: skip
    for ax, (cut, delta) in zip(axes, pairs, strict=True):
        _scatter(ax, results, plan, source, R, cut, delta, "trained/deltas")
        law = error_law(results, plan, source, which="trained/deltas", cut=cut, delta=delta)
        note = "" if law is None else f", corr. {float(law.correlation.value):.2f}"
        ax.set_title(f"c = {cut}, δ = {delta:g}{note}", loc="left", size=9, color=INK)
        log_log(ax, "R", "error")
    _names(figure, plan)
    return figure


def trajectories(results: Results, plan: Settings, source: Source) -> Figure:
    """Where a network stands in the plane of R and error as its training set grows (Figure 18)."""
    figure, (ax,) = panels(1, columns=1, width=6.6, height=4.0, title=f"R and error as P grows, {source.label}",
                           says="Each line follows one network; the marks grow with P.", foot=0.4)  # fmt: skip
    for k, name in enumerate(plan.curves):
        sizes = results.sizes(source, name)
        lots = [results.of(source, name, p) for p in sizes]
        points = [(level(trainings, R, cut=plan.cut), positive_error(trainings)) for trainings in lots]
        positions = [(float(value.value), error) for value, error in points if value is not None and error is not None]
        ax.plot([x for x, _ in positions], [y for _, y in positions], color=PALETTE[k], lw=1.4)
        for j, (x, y) in enumerate(positions):
            ax.plot(x, y, "o", ms=4 + 2.2 * j, color=PALETTE[k], mec="white", mew=0.6)
    log_log(ax, "R", "test error")
    handles = [
        Line2D([], [], color=PALETTE[k], label=architecture_of(plan, n).label) for k, n in enumerate(plan.curves)
    ]
    figure.legend(handles=handles, loc="lower left", ncols=4, frameon=False, fontsize=9)
    return figure


def _counts(results: Results, plan: Settings, source: Source) -> str:
    """How many seeds a network has: ``3``, or ``1 to 3``."""
    counts = sorted({len(trainings) for a in plan.architectures if (trainings := results.of(source, a.name))})
    return " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1]))) if counts else "0"


# --- parts -----------------------------------------------------------------------------------------------------------


def _scatter(
    ax: Axes, results: Results, plan: Settings, source: Source, quantity: str, cut: int, delta: float, which: str
) -> None:
    for architecture in plan.architectures:
        _point(ax, results, source, architecture, quantity, cut, bars=False, colour=_colour(plan, architecture),
               delta=delta, which=which)  # fmt: skip
    _line(ax, error_law(results, plan, source, quantity, which=which, cut=cut, delta=delta), INK, "-")


def _point(
    ax: Axes, results: Results, source: Source, architecture: Architecture, quantity: str, cut: int, *, bars: bool,
    colour: Any, delta: float = 1.0, which: str = "trained",
) -> tuple[float, float] | None:  # fmt: skip
    trainings = results.of(source, architecture.name)
    interval, error = level(trainings, quantity, which, cut=cut, delta=delta), positive_error(trainings)
    if interval is None or error is None:
        return None
    across = mean_error(trainings) if bars else None
    yerr = None
    if across is not None:
        yerr = [[max(0.0, error - max(float(across.low), 0.1 * error))], [max(0.0, float(across.high) - error)]]
    ax.errorbar(
        float(interval.value),
        error,
        xerr=ends(interval) if bars else None,
        yerr=yerr,
        fmt="o",
        ms=6,
        color=colour,
        ecolor=GREY,
        elinewidth=0.9,
    )
    return float(interval.value), error


def _line(ax: Axes, law: PowerLaw | None, colour: str, style: str) -> None:
    if law is None:
        return
    low, high = ax.get_xlim()
    drawn = [x for line in ax.lines for x in np.atleast_1d(line.get_xdata()) if np.isfinite(x) and x > 0]
    if drawn:
        low, high = min(drawn) / 1.1, max(drawn) * 1.1
    x = np.geomspace(low, high, 50)
    ax.plot(x, law(torch.from_numpy(x)).numpy(), color=colour, ls=style, lw=1.2)


def _colour(plan: Settings, architecture: Architecture) -> Any:
    return colormaps["turbo"]((plan.architectures.index(architecture) + 0.5) / len(plan.architectures))


def _names(figure: Figure, plan: Settings) -> None:
    handles = [Line2D([], [], marker="o", lw=0, color=_colour(plan, a), label=a.label) for a in plan.architectures]
    columns = _columns(plan, figure.get_figwidth())
    figure.legend(handles=handles, loc="lower left", ncols=columns, frameon=False, fontsize=8)


def _columns(plan: Settings, width: float) -> int:
    """Of the legend: an entry takes 0.08 inches a letter of the longest name, and its mark."""
    return max(1, min(8, int(width / (0.08 * max(len(a.label) for a in plan.architectures) + 0.45))))


def _foot(plan: Settings, width: float) -> float:
    """Room for the legend, in inches."""
    return 0.25 + 0.17 * math.ceil(len(plan.architectures) / _columns(plan, width))


def _mappable(norm: LogNorm) -> Any:
    from matplotlib.cm import ScalarMappable

    return ScalarMappable(norm, DEPTHS)
