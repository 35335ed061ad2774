"""What the figures share: axes in logarithms with plain numbers, error bars, the network of a name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from lisse.maths.intervals import Interval
from lisse.reporting.figure import INK
from lisse_experiments.diffeomorphisms.networks import Architecture
from lisse_experiments.diffeomorphisms.plan import Settings


class Box(NamedTuple):
    """A rectangle on the page."""

    left: float
    bottom: float
    right: float
    top: float

    def inside(self, other: Box) -> bool:
        """Whether all of it lies in ``other``."""
        return (
            other.left <= self.left
            and self.right <= other.right
            and other.bottom <= self.bottom
            and self.top <= other.top
        )

    def overlaps(self, other: Box) -> bool:
        """Whether some of it does."""
        return (
            self.left < other.right and other.left < self.right and self.bottom < other.top and other.bottom < self.top
        )


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
    """A name beside each point, on the right where there is room, and tied to it where it had to move.

    Call it when the axes have their limits: names are kept apart from each other, from the points and from the frame as
    they are seen.
    """
    ax.figure.draw_without_rendering()  # type: ignore[union-attr]
    scale = 72 / ax.figure.dpi  # everything in points
    spots = {name: ax.transData.transform(point) * scale for name, point in points.items()}
    frame = Box(*(float(end) * scale for end in ax.get_window_extent().extents))
    marks = {name: Box(x - 6, y - 6, x + 6, y + 6) for name, (x, y) in spots.items()}
    # The left side costs as much as a move by two lines.
    moves = [(side, 0.5 * size * k) for side in ("left", "right") for k in range(-16, 17)]
    moves.sort(key=lambda move: abs(move[1]) + (2 * size if move[0] == "right" else 0))
    placed: list[Box] = []
    for name in sorted(spots, key=lambda name: -spots[name][1]):
        (x, y), wide = spots[name], 0.58 * size * len(name)
        boxes = {}
        for align, up in moves:  # a name on the right of its point is aligned to the left
            left = x + 10 if align == "left" else x - 10 - wide
            boxes[align, up] = Box(left, y + up - 0.6 * size, left + wide, y + up + 0.6 * size)
        occupied = [*placed, *(mark for other, mark in marks.items() if other != name)]
        free = (move for move, box in boxes.items() if box.inside(frame) and not any(map(box.overlaps, occupied)))
        align, up = next(free, moves[0])
        placed.append(boxes[align, up])
        tie = {"arrowstyle": "-", "color": INK, "lw": 0.5, "shrinkA": 0, "shrinkB": 5} if abs(up) > size else None
        ax.annotate(
            name, points[name], xytext=(10 if align == "left" else -10, up), textcoords="offset points", size=size,
            color=INK, va="center", ha=align, arrowprops=tie,
        )  # fmt: skip


def ends(interval: Interval) -> list[list[float]] | None:
    """What matplotlib takes as an error bar; ``None`` where there is no interval."""
    low, high, value = float(interval.low), float(interval.high), float(interval.value)
    return [[value - low], [high - value]] if math.isfinite(low) and math.isfinite(high) else None


def all_ends(intervals: Sequence[Interval]) -> list[list[float]]:
    """The bars of several points."""
    bars = [ends(interval) or [[0.0], [0.0]] for interval in intervals]
    return [[bar[0][0] for bar in bars], [bar[1][0] for bar in bars]]


def architecture_of(plan: Settings, name: str) -> Architecture:
    """By its name."""
    return next(architecture for architecture in plan.architectures if architecture.name == name)
