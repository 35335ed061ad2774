"""What the figures share: axes in logarithms with plain numbers, error bars, the network of a name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from lisse.experiments.diffeomorphisms.networks import Architecture
from lisse.experiments.diffeomorphisms.plan import Settings
from lisse.maths.intervals import Interval
from lisse.reporting.figure import INK


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


def beside(ax: Axes, points: Mapping[str, tuple[float, float]], *, size: float = 8.5) -> None:
    """A name to the right of each point, moved up or down and tied to it where several points lie close together.

    Call it when the axes have their limits: names are kept apart as they are seen.
    """
    ax.figure.draw_without_rendering()  # type: ignore[union-attr]
    seen = {name: ax.transData.transform(point) * 72 / ax.figure.dpi for name, point in points.items()}  # in points
    reach = {name: 0.58 * size * len(name) + 12 for name in seen}
    placed: dict[str, float] = {}
    for name in sorted(seen, key=lambda name: -seen[name][1]):
        x, y = seen[name]
        height = y + 2
        for other, there in placed.items():  # from the top down: nothing placed so far lies lower than it must
            if x < seen[other][0] + reach[other] and seen[other][0] < x + reach[name]:
                height = min(height, there - 1.25 * size)
        placed[name] = height
    for name, (x, y) in points.items():
        moved = placed[name] - seen[name][1]
        tie = {"arrowstyle": "-", "color": INK, "lw": 0.5, "shrinkB": 5} if abs(moved) > size else None
        ax.annotate(
            name, (x, y), xytext=(10, moved), textcoords="offset points", size=size, color=INK, va="center",
            arrowprops=tie,
        )  # fmt: skip


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
