"""The page's plots as SVG: values over depth, over another coordinate, and side by side. A mark per row."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from lisse.profile import Kind, Look, Quantity
from lisse.reporting.page.axis import Extent, extent_of, short_number
from lisse.reporting.page.entries import DASHES, Entry
from lisse.reporting.page.svg import Point, element, mark_path, path_of, text
from lisse.reporting.series import drawable

WIDTH, HEIGHT = 480.0, 290.0
LEFT, RIGHT, TOP, BOTTOM = 54.0, 14.0, 30.0, 42.0
INSET = 6.0  # between the frame and the first and last marks
MARK, SMALL = 3.6, 2.0
MOST_BEYOND = 3  # arrows of one reference line; the others are counted below the figure
BAR = 22.0  # the widest bar
CROWDED = 40  # rows of a line above which its marks are smaller


@dataclass(frozen=True)
class DrawnLine:
    """Rows that belong together, in order: one model, one kind of number, one set of coordinates."""

    model: int
    kind: Kind
    entries: tuple[Entry, ...]
    initial: bool = False
    joined: bool = True
    label: str = ""
    look: Look = "line"

    def css(self, name: str) -> str:
        """The classes of one of its elements."""
        return f"{name} m{self.model}" + (" initial" if self.initial else "")


@dataclass(frozen=True)
class Plot:
    """A drawing, the rows that have a mark in it, and how many have none because no axis holds them."""

    svg: Markup
    rows: tuple[int, ...]
    left_out: int


@dataclass(frozen=True)
class Across:
    """The horizontal axis: where a row lies, its ticks, and what it is called."""

    value: Callable[[Entry], float]
    extent: Extent
    ticks: Sequence[tuple[float, str]]
    label: str

    def x(self, value: float) -> float:
        """Where a value lies in the drawing."""
        return LEFT + INSET + self.extent.share(value) * (WIDTH - LEFT - RIGHT - 2 * INSET)


def depth_axis() -> Across:
    """Normalised depth."""
    ticks = [(0.0, "0"), (0.25, "0.25"), (0.5, "0.5"), (0.75, "0.75"), (1.0, "1")]
    return Across(lambda entry: entry.row.depth or 0.0, Extent(0.0, 1.0), ticks, "depth (0: input, 1: output)")


def coordinate_axis(key: str, traces: Sequence[DrawnLine]) -> Across:
    """A numeric coordinate of the rows."""

    def value(entry: Entry) -> float:
        return float(entry.row.at[key])

    values = sorted({value(entry) for trace in traces for entry in trace.entries})
    low, high = values[0], values[-1]
    log = low > 0 and len(values) > 2 and high / low > 20
    extent = Extent(low, high, log) if high > low else Extent(low - 0.5, low + 0.5)
    ticks = [(value, f"{value:.2g}") for value in values] if len(values) <= 7 else extent.ticks()
    return Across(value, extent, ticks, key.replace("_", " "))


def over(traces: Sequence[DrawnLine], quantity: Quantity, across: Across, *, names: Sequence[str], title: str) -> Plot:
    """Lines with intervals over a horizontal axis."""
    ends = _ends(entry for trace in traces if not trace.initial for entry in trace.entries)
    references = [entry.row.value for trace in traces if trace.initial for entry in trace.entries]
    log = quantity.scale == "log" and any(drawable(value, True) for value in (*ends, *references))
    ends = [*ends, *_near(references, ends, log)]
    # An interval that reaches very far down would press everything else to the top of a logarithmic axis.
    values = [entry.row.value for trace in traces for entry in trace.entries]
    extent = extent_of(_bounded(ends, values) if log else ends, log=log, zero=not log and _near_zero(ends))

    def point(entry: Entry, value: float | None) -> Point | None:
        if value is None or not drawable(value, log) or (entry.initial and not extent.holds(value)):
            return None
        return across.x(across.value(entry)), _y(extent, value)

    below = [_grid(extent), _ticks_below(across)]
    if quantity.neutral is not None and drawable(quantity.neutral, log) and extent.low < quantity.neutral < extent.high:
        y = _y(extent, quantity.neutral)
        below.append(element("path", d=path_of([(LEFT, y), (WIDTH - RIGHT, y)]), class_="one"))
    rows: list[int] = []
    drawn = [_stand(trace, traces, across, point) for trace in traces if trace.look != "line"]
    words = [mark for trace in traces for mark in _along(trace, point)]  # what words keep off
    drawn += [_line(trace, point, names, rows, _gaps(trace, traces), words) for trace in traces]
    drawn += [_beyond(trace, across, extent, log) for trace in traces if trace.initial]
    total = sum(len(trace.entries) for trace in traces)
    return Plot(_svg([*below, *drawn, _label(quantity)], title, HEIGHT), tuple(rows), total - len(rows))


def side_by_side(
    groups: Sequence[tuple[str, Sequence[DrawnLine]]], quantity: Quantity, *, names: Sequence[str], title: str
) -> Plot:
    """A row of the drawing per group, values from left to right: for numbers that belong to no layer."""
    entries = [entry for _, traces in groups for trace in traces for entry in trace.entries]
    ends = _ends(entries)
    log = quantity.scale == "log" and any(drawable(value, True) for value in ends)
    extent = extent_of(ends, log=log, zero=not log)
    margin = min(200.0, 20.0 + 6.6 * max(len(name) for name, _ in groups))
    step = 18.0 + 9.0 * max(0, max(len({trace.model for trace in traces}) for _, traces in groups) - 1)
    height = TOP + step * len(groups) + BOTTOM - 8

    def across(value: float) -> float:
        return margin + extent.share(value) * (WIDTH - margin - RIGHT)

    parts: list[Markup] = [_label(quantity)]
    for value, words in extent.ticks(5):
        x = across(value)
        parts.append(element("path", d=path_of([(x, TOP), (x, height - BOTTOM + 8)]), class_="grid"))
        parts.append(text((x, height - BOTTOM + 24), words, class_="tick", anchor="middle"))
    rows: list[int] = []
    for index, (name, traces) in enumerate(groups):
        middle = TOP + step * (index + 0.5)
        parts.append(text((margin - 8, middle + 4), _cut(name, 30), class_="tick", anchor="end"))
        models = sorted({trace.model for trace in traces})
        for trace in traces:
            y = middle + 9.0 * (models.index(trace.model) - (len(models) - 1) / 2)
            for entry in trace.entries:
                low, high = entry.row.low, entry.row.high
                if not drawable(entry.row.value, log):
                    continue
                ranged = low is not None and high is not None and drawable(low, log) and drawable(high, log)
                if ranged and not trace.initial:
                    bar = path_of([(across(end), y) for end in (low, high) if end is not None])
                    parts.append(element("path", d=bar, class_=trace.css("bar-line")))
                parts.append(_mark(entry, trace, (across(entry.row.value), y), MARK, names))
                rows.append(entry.index)
    return Plot(_svg(parts, title, height), tuple(rows), len(entries) - len(rows))


# -- pieces -----------------------------------------------------------------------------------------------------------


def _y(extent: Extent, value: float) -> float:
    return HEIGHT - BOTTOM - extent.share(value) * (HEIGHT - TOP - BOTTOM)


def _ends(entries: Iterable[Entry]) -> list[float]:
    """Values and ends of intervals."""
    rows = [entry.row for entry in entries]
    return [value for row in rows for value in (row.value, row.low, row.high) if value is not None]


def _stand(
    trace: DrawnLine,
    traces: Sequence[DrawnLine],
    across: Across,
    point: Callable[[Entry, float | None], Point | None],
) -> Markup:
    """What stands on the axis: a bar at each place, those of several models beside each other; or a shaded floor."""
    foot = HEIGHT - BOTTOM
    points = [at for entry in trace.entries if (at := point(entry, entry.row.value)) is not None]
    if trace.look == "floor":
        edges = [[(x, at[1]) for at in ends] for x, ends in ((LEFT, points[:1]), (WIDTH - RIGHT, points[-1:]))]
        ends = [(LEFT, foot), *edges[0], *points, *edges[1], (WIDTH - RIGHT, foot)]
        return element("path", d=path_of(ends) + "z", class_=trace.css("floor")) if points else Markup("")
    models = sorted({other.model for other in traces if other.look == "bars"})
    positions = sorted({across.x(across.value(entry)) for entry in trace.entries})
    room = min([b - a for a, b in itertools.pairwise(positions)], default=2 * BAR)
    wide = min(BAR, 0.7 * room) / len(models)
    left = wide * (models.index(trace.model) - len(models) / 2)
    bars = [f"M{x + left:.2f} {foot:.2f}V{y:.2f}h{wide:.2f}V{foot:.2f}z" for x, y in points]
    return element("path", d="".join(bars), class_=trace.css("bars")) if bars else Markup("")


def _gaps(trace: DrawnLine, traces: Sequence[DrawnLine]) -> set[float]:
    """Depths of layers that another line of the model has and this one, which has none of its own, lacks."""
    layers = {entry.row.layer for entry in trace.entries}
    return {
        entry.row.depth
        for other in traces
        if other.model == trace.model and layers < {entry.row.layer for entry in other.entries}
        for entry in other.entries
        if entry.row.layer not in layers and entry.row.depth is not None
    }


def _line(
    trace: DrawnLine,
    point: Callable[[Entry, float | None], Point | None],
    names: Sequence[str],
    rows: list[int],
    gaps: set[float],
    words: list[Point],
) -> Markup:
    """A trace with its words, which keep off the points ``words`` and join them; broken where it has ``gaps``."""
    middle = [point(entry, entry.row.value) for entry in trace.entries]
    low = [point(entry, _clipped(entry)) for entry in trace.entries]
    high = [point(entry, entry.row.high) for entry in trace.entries]
    connected = trace.joined and len(middle) > 1 and trace.look == "line"
    parts: list[Markup] = []
    if not trace.initial:
        if connected and all(low) and all(high):
            parts.append(element("path", d=path_of([*high, *reversed(low)]) + "z", class_=trace.css("band")))
        elif bars := [end for a, b in zip(low, high, strict=True) if a and b for end in (a, b, None)]:
            parts.append(element("path", d=path_of(bars), class_=trace.css("bar-line")))
    if connected:
        dash = "1.5 3" if trace.initial else "3 3" if trace.kind == "heuristic" else DASHES[trace.model % len(DASHES)]
        steps: list[Point | None] = []
        before = math.inf
        for entry, at in zip(trace.entries, middle, strict=True):
            depth = entry.row.depth if entry.row.depth is not None else math.inf
            steps += [None, at] if any(before < gap < depth for gap in gaps) else [at]
            before = depth
        parts.append(element("path", d=path_of(steps), class_=trace.css("line"), stroke_dasharray=dash or None))
    marks = [at for at in middle if at is not None]
    if trace.label and marks and trace.look != "bars":
        start, width = _words_at(trace.label, marks, words)
        words += [(start[0] + width * share / 8, start[1] - 4) for share in range(9)]
        parts.append(text(start, trace.label, class_=trace.css("label"), anchor="start"))
    size = SMALL if trace.initial or trace.look != "line" else MARK if len(trace.entries) <= CROWDED else MARK * 0.7
    for entry, at in zip(trace.entries, middle, strict=True):
        if at is not None:
            parts.append(_mark(entry, trace, at, size, names))
            rows.append(entry.index)
    return Markup("").join(parts)


def _along(trace: DrawnLine, point: Callable[[Entry, float | None], Point | None]) -> list[Point]:
    """Points of a line, some between its marks too."""
    marks = [at for entry in trace.entries if (at := point(entry, entry.row.value)) is not None]
    between = [
        (a[0] + share / 6 * (b[0] - a[0]), a[1] + share / 6 * (b[1] - a[1]))
        for a, b in itertools.pairwise(marks)
        for share in range(1, 6)
    ]
    return marks + between


def _words_at(label: str, marks: Sequence[Point], points: Sequence[Point]) -> tuple[Point, float]:
    """Where the words of a line begin, and how wide they are: behind its end, or over or under one of its marks.

    The first of these places, from the end on, that hold the fewest of ``points``, not at a mark of two lines.
    """
    width = 6.4 * len(label)
    end = (marks[-1][0] + 8.0, marks[-1][1] + 4.0)
    spots = [(end, marks[-1])] if end[0] + width <= WIDTH else []
    for mark in reversed(marks):
        left = min(max(mark[0] - width / 2, LEFT), WIDTH - width)
        spots += [((left, mark[1] + shift), mark) for shift in (-9.0, 17.0)]

    def hits(spot: tuple[Point, Point]) -> tuple[bool, int]:
        (left, base), mark = spot
        hidden = sum(-4 < x - left < width + 4 and -13 < y - base < 4 for x, y in points)
        return not TOP <= base <= HEIGHT - BOTTOM - 2, hidden + 3 * (sum(math.dist(mark, at) < 4 for at in points) > 1)

    return min(spots, key=hits)[0], width


def _beyond(trace: DrawnLine, across: Across, extent: Extent, log: bool) -> Markup:
    """Arrows with the values of references that lie outside: the axis is the models' own."""
    parts = []
    for entry in trace.entries:
        value = entry.row.value
        if not drawable(value, log) or extent.holds(value):
            continue
        x, up = across.x(across.value(entry)), value > extent.high
        words, y = f"{'↑' if up else '↓'} {short_number(value)}", TOP + 2 if up else HEIGHT - BOTTOM - 4
        anchor = "end" if x > WIDTH - 70 else "start"
        parts.append(text((x, y), words, class_=trace.css("beyond"), anchor=anchor))
    return Markup("").join(parts[:MOST_BEYOND])


def _mark(entry: Entry, trace: DrawnLine, at: Point, size: float, names: Sequence[str]) -> Markup:
    row = entry.row
    ends = "" if row.low is None else f" [{short_number(row.low)}, {short_number(row.high)}]"
    name = names[entry.model] + (" with random weights" if entry.initial else "")
    words = f"{name}, {row.layer or row.where()}: {short_number(row.value, 4)}{ends}"
    return element(
        "path",
        element("title", escape(words)),
        d=mark_path(trace.kind, at, size),
        class_=trace.css("mark"),
        data_row=str(entry.index),
    )


def _grid(extent: Extent) -> Markup:
    parts = []
    for value, words in extent.ticks():
        y = _y(extent, value)
        parts.append(element("path", d=path_of([(LEFT, y), (WIDTH - RIGHT, y)]), class_="grid"))
        parts.append(text((LEFT - 6, y + 4), words, class_="tick", anchor="end"))
    return Markup("").join(parts)


def _ticks_below(across: Across) -> Markup:
    base = HEIGHT - BOTTOM
    parts = [element("path", d=path_of([(LEFT, base), (WIDTH - RIGHT, base)]), class_="axis")]
    for value, words in across.ticks:
        x = across.x(value)
        parts.append(element("path", d=path_of([(x, base), (x, base + 4)]), class_="axis"))
        parts.append(text((x, base + 17), words, class_="tick", anchor="middle"))
    parts.append(text(((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6), across.label, class_="label", anchor="middle"))
    return Markup("").join(parts)


def _label(quantity: Quantity) -> Markup:
    """What the values are, above the axis, and which way is better."""
    unit = f" [{quantity.unit}]" if quantity.unit else ""
    hint = {"lower": " · lower is better", "higher": " · higher is better", "neither": ""}[quantity.better]
    scale = " · log axis" if quantity.scale == "log" else ""
    return text((4, 15), f"{quantity.label}{unit}{hint}{scale}", class_="label")


def _svg(parts: Sequence[Markup], title: str, height: float) -> Markup:
    return element(
        "svg",
        element("title", escape(title)),
        *parts,
        viewBox=f"0 0 {WIDTH:g} {height:g}",
        role="img",
        tabindex="0",
        aria_label=title,
    )


def _near(references: Sequence[float], values: Sequence[float], log: bool) -> list[float]:
    """References that do not press the models' own values into a corner: within their range once more on each side."""
    drawn = [value for value in values if drawable(value, log)]
    if not drawn:
        return list(references)
    low, high = min(drawn), max(drawn)
    if log:
        room = max(high / low, 3.0)
        return [value for value in references if drawable(value, True) and low / room <= value <= high * room]
    room = max(high - low, 0.5 * abs(high))
    return [value for value in references if math.isfinite(value) and low - room <= value <= high + room]


def _near_zero(values: Sequence[float]) -> bool:
    finite = [value for value in values if math.isfinite(value)]
    return bool(finite) and min(finite) >= 0 and min(finite) < 0.35 * max(finite)


def _bounded(ends: Sequence[float], values: Sequence[float]) -> list[float]:
    """Ends of intervals that are within a decade of the values, and the values."""
    positive = [value for value in values if drawable(value, True)]
    if not positive:
        return list(ends)
    low, high = min(positive) / 5, max(positive) * 5
    return [*positive, *(min(max(end, low), high) for end in ends if drawable(end, True))]


def _clipped(entry: Entry) -> float | None:
    """The low end of an interval; on a logarithmic axis, one at 0 still has its lower edge: the axis clips it."""
    low = entry.row.low
    return low if low is None or low > 0 or entry.row.value <= 0 else (low or entry.row.value * 1e-9)


def _cut(name: str, most: int) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"
