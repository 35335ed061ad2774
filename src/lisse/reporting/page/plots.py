"""The page's plots as SVG: values over depth, over another coordinate, and side by side. A mark per row."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from lisse.profile import Kind, Quantity
from lisse.reporting.page.axis import Axis, axis_of, drawable, number
from lisse.reporting.page.entries import DASHES, Entry
from lisse.reporting.page.svg import Point, element, mark_path, path_of, text

WIDTH, HEIGHT = 480.0, 290.0
LEFT, RIGHT, TOP, BOTTOM = 54.0, 14.0, 30.0, 42.0
MARK, SMALL = 3.6, 2.0
MOST_BEYOND = 3  # arrows of one reference line; the others are counted below the figure
CROWDED = 40  # rows of a line above which its marks are smaller


@dataclass(frozen=True)
class Line:
    """Rows that belong together, in order: one model, one kind of number, one set of coordinates."""

    model: int
    kind: Kind
    entries: tuple[Entry, ...]
    initial: bool = False
    joined: bool = True
    label: str = ""


@dataclass(frozen=True)
class Plot:
    """A drawing, the rows that have a mark in it, and how many have none because no axis holds them."""

    svg: Markup
    rows: tuple[int, ...]
    left_out: int


@dataclass(frozen=True)
class Across:
    """The horizontal axis: where a row lies, its ticks, and what it is called."""

    place: Callable[[Entry], float]
    axis: Axis
    ticks: Sequence[tuple[float, str]]
    label: str


def depth_axis() -> Across:
    """Normalised depth."""
    ticks = [(0.0, "0"), (0.25, "0.25"), (0.5, "0.5"), (0.75, "0.75"), (1.0, "1")]
    return Across(lambda entry: entry.row.depth or 0.0, Axis(0.0, 1.0), ticks, "depth (0: input, 1: output)")


def coordinate_axis(key: str, lines: Sequence[Line]) -> Across:
    """A numeric coordinate of the rows."""

    def place(entry: Entry) -> float:
        return float(entry.row.at[key])

    values = sorted({place(entry) for line in lines for entry in line.entries})
    log = values[0] > 0 and len(values) > 2 and values[-1] / values[0] > 20
    if log:
        axis = Axis(values[0], values[-1], True)
    else:
        axis = Axis(values[0], values[-1]) if values[-1] > values[0] else Axis(values[0] - 0.5, values[0] + 0.5)
    ticks = [(value, f"{value:.2g}") for value in values] if len(values) <= 7 else axis.ticks()
    return Across(place, axis, ticks, key.replace("_", " "))


def over(lines: Sequence[Line], quantity: Quantity, across: Across, *, names: Sequence[str], title: str) -> Plot:
    """Lines with intervals over a horizontal axis."""
    ends = [
        value
        for line in lines
        if not line.initial
        for entry in line.entries
        for value in (entry.row.value, entry.row.low, entry.row.high)
        if value is not None
    ]
    references = [entry.row.value for line in lines if line.initial for entry in line.entries]
    log = quantity.scale == "log" and any(drawable(value, True) for value in (*ends, *references))
    ends = [*ends, *_near(references, ends, log)]
    # An interval that reaches very far down would press everything else to the top of a logarithmic axis.
    vertical = axis_of(_bounded(ends, [e.row.value for line in lines for e in line.entries]) if log else ends,
                       log=log, zero=not log and _near_zero(ends))  # fmt: skip

    def point(entry: Entry, value: float | None) -> Point | None:
        if value is None or not drawable(value, log) or (entry.initial and not _inside(value, vertical)):
            return None
        x = LEFT + 6 + across.axis.place(across.place(entry)) * (WIDTH - LEFT - RIGHT - 12)
        return x, HEIGHT - BOTTOM - vertical.place(value) * (HEIGHT - TOP - BOTTOM)

    below = [_grid(vertical), _ticks_below(across)]
    if quantity.scale == "log" and log and vertical.low < 1 < vertical.high and quantity.name == "relative_stability":
        y = HEIGHT - BOTTOM - vertical.place(1.0) * (HEIGHT - TOP - BOTTOM)
        below.append(element("path", d=path_of([(LEFT, y), (WIDTH - RIGHT, y)]), class_="one"))
    rows: list[int] = []
    drawn = [_line(line, point, names, rows) for line in lines]
    drawn += [_beyond(line, across, vertical, log) for line in lines if line.initial]
    total = sum(len(line.entries) for line in lines)
    return Plot(_svg([*below, *drawn, _label(quantity)], title, HEIGHT), tuple(rows), total - len(rows))


def side_by_side(
    groups: Sequence[tuple[str, Sequence[Line]]], quantity: Quantity, *, names: Sequence[str], title: str
) -> Plot:
    """A row of the drawing per group, values from left to right: for numbers that belong to no layer."""
    everything = [entry for _, lines in groups for line in lines for entry in line.entries]
    ends = [
        value for entry in everything for value in (entry.row.value, entry.row.low, entry.row.high) if value is not None
    ]
    log = quantity.scale == "log" and any(drawable(value, True) for value in ends)
    axis = axis_of(ends, log=log, zero=not log)
    longest = max(len(name) for name, _ in groups)
    left = min(200.0, 20.0 + 6.6 * longest)
    step = 18.0 + 9.0 * max(0, max(len({line.model for line in lines}) for _, lines in groups) - 1)
    height = TOP + step * len(groups) + BOTTOM - 8
    parts: list[Markup] = [_label(quantity)]
    for value, words in axis.ticks(5):
        x = left + axis.place(value) * (WIDTH - left - RIGHT)
        parts.append(element("path", d=path_of([(x, TOP), (x, height - BOTTOM + 8)]), class_="grid"))
        parts.append(text((x, height - BOTTOM + 24), words, class_="tick", anchor="middle"))
    rows: list[int] = []
    for place, (name, lines) in enumerate(groups):
        middle = TOP + step * (place + 0.5)
        parts.append(text((left - 8, middle + 4), _cut(name, 30), class_="tick", anchor="end"))
        models = sorted({line.model for line in lines})
        for line in lines:
            y = middle + 9.0 * (models.index(line.model) - (len(models) - 1) / 2)
            for entry in line.entries:
                if not drawable(entry.row.value, log):
                    continue
                x = left + axis.place(entry.row.value) * (WIDTH - left - RIGHT)
                if drawable(entry.row.low, log) and drawable(entry.row.high, log) and not line.initial:
                    assert entry.row.low is not None  # drawable has looked
                    assert entry.row.high is not None
                    ends_at = [
                        left + axis.place(end) * (WIDTH - left - RIGHT) for end in (entry.row.low, entry.row.high)
                    ]
                    parts.append(
                        element("path", d=path_of([(ends_at[0], y), (ends_at[1], y)]), class_=_class("bar-line", line))
                    )
                parts.append(_mark(entry, line, (x, y), MARK, names))
                rows.append(entry.index)
    return Plot(_svg(parts, title, height), tuple(rows), len(everything) - len(rows))


# -- pieces -----------------------------------------------------------------------------------------------------------


def _line(
    line: Line, point: Callable[[Entry, float | None], Point | None], names: Sequence[str], rows: list[int]
) -> Markup:
    middle = [point(entry, entry.row.value) for entry in line.entries]
    low = [point(entry, _clipped(entry)) for entry in line.entries]
    high = [point(entry, entry.row.high) for entry in line.entries]
    parts: list[Markup] = []
    if not line.initial:
        if line.joined and len(middle) > 1 and all(low) and all(high):
            outline = path_of([*high, *reversed(low)]) + "z"
            parts.append(element("path", d=outline, class_=_class("band", line)))
        else:
            bars = [end for a, b in zip(low, high, strict=True) if a and b for end in (a, b, None)]
            if bars:
                parts.append(element("path", d=path_of(bars), class_=_class("bar-line", line)))
    if line.joined and len(middle) > 1:
        dash = "1.5 3" if line.initial else "3 3" if line.kind == "heuristic" else DASHES[line.model % len(DASHES)]
        parts.append(element("path", d=path_of(middle), class_=_class("line", line), stroke_dasharray=dash or None))
    last = next((at for at in reversed(middle) if at is not None), None)
    if line.label and last is not None:
        anchor = ("end", -2.0, -8.0) if last[0] + 8 + 6.4 * len(line.label) > WIDTH else ("start", 8.0, 4.0)
        parts.append(text((last[0] + anchor[1], last[1] + anchor[2]), line.label, class_=_class("label", line),
                          anchor=anchor[0]))  # fmt: skip
    size = SMALL if line.initial else MARK if len(line.entries) <= CROWDED else MARK * 0.7
    for entry, at in zip(line.entries, middle, strict=True):
        if at is not None:
            parts.append(_mark(entry, line, at, size, names))
            rows.append(entry.index)
    return Markup("").join(parts)


def _beyond(line: Line, across: Across, axis: Axis, log: bool) -> Markup:
    """Arrows with the values of references that lie outside: the axis is the models' own."""
    parts = []
    for entry in line.entries:
        value = entry.row.value
        if not drawable(value, log) or _inside(value, axis):
            continue
        x = LEFT + 6 + across.axis.place(across.place(entry)) * (WIDTH - LEFT - RIGHT - 12)
        up = value > axis.high
        words, y = f"{'↑' if up else '↓'} {number(value)}", TOP + 2 if up else HEIGHT - BOTTOM - 4
        anchor = "end" if x > WIDTH - 70 else "start"
        parts.append(text((x, y), words, class_=_class("beyond", line), anchor=anchor))
    return Markup("").join(parts[:MOST_BEYOND])


def _mark(entry: Entry, line: Line, at: Point, size: float, names: Sequence[str]) -> Markup:
    row = entry.row
    ends = "" if row.low is None else f" [{number(row.low)}, {number(row.high)}]"
    where = row.where()
    name = names[entry.model] + (" with random weights" if entry.initial else "")
    words = f"{name}, {row.layer or where}: {number(row.value, 4)}{ends}"
    return element(
        "path",
        element("title", escape(words)),
        d=mark_path(line.kind, at, size),
        class_=_class("mark", line),
        data_row=str(entry.index),
    )


def _class(name: str, line: Line) -> str:
    return f"{name} m{line.model}" + (" initial" if line.initial else "")


def _grid(axis: Axis) -> Markup:
    parts = []
    for value, words in axis.ticks():
        y = HEIGHT - BOTTOM - axis.place(value) * (HEIGHT - TOP - BOTTOM)
        parts.append(element("path", d=path_of([(LEFT, y), (WIDTH - RIGHT, y)]), class_="grid"))
        parts.append(text((LEFT - 6, y + 4), words, class_="tick", anchor="end"))
    return Markup("").join(parts)


def _ticks_below(across: Across) -> Markup:
    base = HEIGHT - BOTTOM
    parts = [element("path", d=path_of([(LEFT, base), (WIDTH - RIGHT, base)]), class_="axis")]
    for value, words in across.ticks:
        x = LEFT + 6 + across.axis.place(value) * (WIDTH - LEFT - RIGHT - 12)
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


def _near(references: Sequence[float], own: Sequence[float], log: bool) -> list[float]:
    """References that do not press the models' own values into a corner: within their range once more on each side."""
    there = [value for value in own if drawable(value, log)]
    if not there:
        return list(references)
    low, high = min(there), max(there)
    if log:
        room = max(high / low, 3.0)
        return [value for value in references if drawable(value, True) and low / room <= value <= high * room]
    span = max(high - low, 0.5 * abs(high))
    return [value for value in references if math.isfinite(value) and low - span <= value <= high + span]


def _inside(value: float, axis: Axis) -> bool:
    return axis.low <= value <= axis.high


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
