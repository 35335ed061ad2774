"""The marks that figures share: how a line, its intervals and its kind of number look, and what the legend says."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from lisse.profile import Quantity, Value
from lisse.reporting.figure import GREY, INK, plain_text
from lisse.reporting.kinds import KINDS, interval
from lisse.reporting.series import Series, drawable


def draw_line(
    ax: Axes, x: Sequence[float], line: Series, colour: Any, *, log: bool, label: str, dash: Any = None
) -> None:
    """Draw a line with a marker per row and its kind, and intervals: a band along a line that has all, else bars."""
    values = line.values(log)
    low, high = line.band(log)
    style = dash or ("--" if line.kind == "heuristic" else "-")
    marker, size = KINDS[line.kind].marker, 5 if len(x) <= 40 else 3
    ax.plot(
        x, values, ls=style, color=colour, marker=marker, ms=size, lw=1.6, mec="white", mew=0.5, label=visible(label)
    )
    ends = [index for index, end in enumerate(high) if not math.isnan(end)]
    if len(ends) == len(x) and len(x) > 1 and style != "none":
        ax.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
    elif ends:
        at, bottom, top = zip(*((x[index], low[index], high[index]) for index in ends), strict=True)
        ax.vlines(at, bottom, top, color=colour, linewidth=1.4, alpha=0.7)


def log_axis(ax: Axes, lines: Sequence[Series]) -> None:
    """A logarithmic axis with plain numbers, and enough of them, also where it spans less than a decade."""
    log_ticks(ax, [row.value for line in lines for row in line.rows if drawable(row.value, True)])


def log_ticks(ax: Axes, values: Sequence[float]) -> None:
    """The same for the positive ``values`` that are drawn."""
    ax.set_yscale("log", nonpositive="clip")
    decades = math.log10(max(values)) - math.log10(min(values))
    if decades < 0.7:
        ax.yaxis.set_major_locator(MaxNLocator(6))
    elif decades < 3:
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def kinds_legend(lines: Sequence[Series]) -> list[Line2D]:
    """An entry per kind of number that is drawn."""
    handles = []
    for kind, look in KINDS.items():
        rows = [row for line in lines if line.kind == kind for row in line.rows]
        if rows:
            ends = ", with its interval over samples" if any(interval(row) is not None for row in rows) else ""
            style = "--" if kind == "heuristic" else "-"
            label = look.says + ends
            handles.append(Line2D([], [], color=GREY, marker=look.marker, linestyle=style, ms=5, lw=1.2, label=label))
    return handles


def handle(text: str, colour: str) -> Line2D:
    """A legend entry for a colour."""
    return Line2D([], [], color=colour, lw=3, label=visible(text))


def put_legend(figure: Figure, handles: list[Line2D], columns: int) -> None:
    """Put the entries at the figure's foot; none, if there are none."""
    if handles:
        legend = figure.legend(
            handles=handles,
            loc="lower left",
            bbox_to_anchor=(0.0, 0.0),
            ncols=columns,
            handlelength=2.8,
            frameon=False,
            fontsize=8.5,
            labelcolor=INK,
        )
        for text in legend.get_texts():
            plain_text(text)


def foot(entries: int, columns: int) -> float:
    """Inches that a legend of so many entries takes."""
    return 0.15 + 0.2 * -(-entries // columns)


def is_log(lines: Sequence[Series], meaning: Quantity) -> bool:
    """Whether the axis is logarithmic: the quantity asks for it, and there is something positive to show."""
    return meaning.scale == "log" and any(drawable(row.value, True) for line in lines for row in line.rows)


def left_out(lines: Sequence[Series], meaning: Quantity, *, with_name: bool = False) -> str:
    """A sentence about the values that have no place on the axis; empty if all have one."""
    log = is_log(lines, meaning)
    missing = sum(not drawable(row.value, log) for line in lines for row in line.rows)
    if not missing:
        return ""
    reason = "not finite or not positive" if log else "not finite"
    of = f" of {meaning.name}" if with_name else ""
    return f" {missing} value{'s' if missing > 1 else ''}{of} left out: {reason}."


def axis_label(meaning: Quantity) -> str:
    """What stands on the quantity's axis."""
    return meaning.label + (f" [{meaning.unit}]" if meaning.unit else "")


def where_words(where: Mapping[str, Value] | None) -> str:
    """A sentence on the coordinates that were chosen; empty where none were."""
    return f" Here: {', '.join(f'{key}={value}' for key, value in where.items())}." if where else ""


def visible(text: str) -> str:
    """Matplotlib leaves labels that begin with an underscore out of its legends; a zero-width space before it helps."""
    return "\u200b" + text if text.startswith("_") else text
