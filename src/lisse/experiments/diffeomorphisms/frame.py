"""What the figures share: an empty one, axes in logarithms with plain numbers, error bars, the network of a name."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from lisse.experiments.diffeomorphisms.networks import Architecture
from lisse.experiments.diffeomorphisms.plan import Settings
from lisse.maths.intervals import Interval

# Okabe & Ito: told apart by people with any kind of colour vision.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
INK, GREY = "#222222", "#6b6b6b"


def panels(
    count: int, *, columns: int, width: float, height: float, title: str, says: str, foot: float, share: bool = False
) -> tuple[Figure, list[Axes]]:
    """``count`` axes of ``width`` by ``height`` inches under a title and a sentence; ``foot`` inches for a legend."""
    columns = min(columns, count)
    rows = -(-count // columns)
    wide = max(width * columns, 6.5)
    lines = textwrap.wrap(says, int(wide * 14.5))
    head = 0.5 + 0.19 * len(lines)
    tall = height * rows + head + foot
    figure = Figure(figsize=(wide, tall), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0.0, foot / tall, 1.0, 1.0 - (head + foot) / tall), w_pad=0.08, h_pad=0.06)
    figure.text(0.12 / wide, 1 - 0.12 / tall, title, size=13, weight="bold", color=INK, va="top")
    figure.text(0.12 / wide, 1 - 0.42 / tall, "\n".join(lines), size=9.5, color=GREY, va="top", linespacing=1.35)
    axes = list(figure.subplots(rows, columns, squeeze=False, sharey=share).flat)
    for spare in axes[count:]:
        spare.remove()
    for ax in axes[:count]:
        ax.spines[["top", "right"]].set_visible(False)
        ax.spines[["left", "bottom"]].set_color(GREY)
        ax.tick_params(colors=INK, labelsize=9)
        ax.grid(axis="y", color="#e4e4e4", lw=0.8)
        ax.set_axisbelow(True)
    return figure, axes[:count]


def plain_ticks(axis: Axis) -> None:
    """Plain numbers at 1, 2 and 5 times powers of ten; at powers only where there are many, at more where few."""
    low, high = sorted(abs(float(end)) for end in axis.get_view_interval())
    many = low <= 0 or high / low > 200
    near = not many and high / low < 3
    subs = (1.0,) if many else (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0) if near else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def log_log(ax: Axes, x: str, y: str) -> None:
    """Both axes in logarithms, with labels; call it when everything is drawn."""
    ax.set_xscale("log")
    ax.set_yscale("log")
    plain_ticks(ax.xaxis)
    plain_ticks(ax.yaxis)
    ax.set_xlabel(x, size=9, color=INK)
    ax.set_ylabel(y, size=9, color=INK)


def ends(found: Interval) -> list[list[float]] | None:
    """What matplotlib takes as an error bar; ``None`` where there is no interval."""
    low, high, value = float(found.low), float(found.high), float(found.value)
    return [[value - low], [high - value]] if math.isfinite(low) and math.isfinite(high) else None


def all_ends(found: Sequence[Interval]) -> list[list[float]]:
    """The bars of several points."""
    bars = [ends(one) or [[0.0], [0.0]] for one in found]
    return [[bar[0][0] for bar in bars], [bar[1][0] for bar in bars]]


def architecture_of(chosen: Settings, name: str) -> Architecture:
    """By its name."""
    return next(architecture for architecture in chosen.architectures if architecture.name == name)
