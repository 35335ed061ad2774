"""Pictures of rows: lines over depth or over a coordinate, and dots side by side."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullLocator

from lisse.profile import Line, Look, Panel, Part, Row, Value, coordinate_text, words_of
from lisse.reporting.charts.scene import LINE_STYLES, STYLE_WORDS, Drawing, Scene, agrees
from lisse.reporting.figure import GREY, INK, PALETTE, plain_text
from lisse.reporting.kinds import KINDS
from lisse.reporting.marks import draw_line, handle, kinds_legend, log_ticks, visible
from lisse.reporting.series import LOOK_WORDS, Series, drawable, in_powers, on_line, without

STANDING = 0.3  # opacity of bars and floors
MOST_DECADES = 12  # a panel of powers of ten over more of them is compressed: a bound of 10^900 must not hide the free

Group = tuple[dict[str, Value], list[Row]]


def line_pictures(scene: Scene, panel: Panel) -> tuple[list[Drawing], list[str]]:
    """One picture of all models, or one for each where the chart keeps them apart; and the coordinates to choose."""
    groups = {
        (index, rank): groups
        for index, part in enumerate(scene.parts)
        for rank, line in enumerate(panel.lines)
        if (groups := _groups(scene, panel, part, line))
    }
    keys = [
        key
        for part in scene.parts
        for line in panel.lines
        if line.at is None
        for row in part.rows
        if row.quantity == line.quantity
        for key in row.at
        if key not in (panel.over, line.mean)
    ]
    if not groups:
        return [], keys
    banded = {str(line.band[0]) for line in panel.lines if line.band}
    shared, varying = _coordinates(without(at, banded) for sets in groups.values() for at, _ in sets)
    if scene.chart.apart:
        drawings = []
        for index, (name, _, _) in enumerate(scene.models):
            part_groups = {key: sets for key, sets in groups.items() if key[0] == index}
            first = len(scene.parts) > 1 and panel is scene.chart.panels[0]
            if part_groups:
                title = f"{name}: {panel.title}" if first else panel.title
                drawings.append(Drawing(title, _Lines(scene, panel, part_groups, varying), shared, index))
        return drawings, keys
    if len(scene.parts) > 1:
        scene.handles |= {name: handle(name, colour) for name, _, colour in scene.models if name not in scene.handles}
    dashes = [
        f"{LOOK_WORDS[line.look] if line.look != 'line' else STYLE_WORDS[rank % len(STYLE_WORDS)]}: {line.label}"
        for rank, line in enumerate(panel.lines)
        if rank and line.label and any(key[1] == rank for key in groups)
    ]
    title = panel.title + (f"\n({', '.join(dashes)})" if dashes else "")
    return [Drawing(title, _Lines(scene, panel, groups, varying), shared)], keys


class _Lines:
    """Fills an axes with lines. Their looks, and the legend's entries, are made with it."""

    def __init__(
        self, scene: Scene, panel: Panel, groups: Mapping[tuple[int, int], Sequence[Group]], varying: Sequence[str]
    ) -> None:
        self.scene, self.panel = scene, panel
        self.lines: list[tuple[Series, str, Any, Look]] = []
        self.dots = [
            (scene.parts[index], panel.lines[rank].dots, sets[0][1], scene.models[index][2])
            for (index, rank), sets in groups.items()
            if panel.lines[rank].dots
        ]
        for (index, rank), sets in groups.items():
            for at, rows in sets:
                words = words_of({key: at[key] for key in varying if key in at})
                series = Series(scene.models[index][0], words, rows[0].kind, rows)
                colour, dash = self._apart(rank, series) if scene.chart.apart else self._look(index, rank, series, at)
                self.lines.append((series, colour, dash, panel.lines[rank].look))
                scene.kinds.setdefault(series.kind, series)
        if scene.kinds.keys() - {"exact", "estimate"}:
            for entry in kinds_legend(list(scene.kinds.values())):
                scene.handles.pop(str(entry.get_label()), None)  # the kinds come last
                scene.handles[str(entry.get_label())] = entry

    def _apart(self, rank: int, series: Series) -> tuple[str, Any]:
        """Colour and dash of a line of a chart that keeps its models apart: a colour means one thing in all panels."""
        panels = self.scene.chart.panels
        look = rank + sum(len(panel.lines) for panel in panels[: panels.index(self.panel)])
        colours = len(PALETTE) - 1  # the last one, yellow, is weak
        colour, dash = PALETTE[look % colours], "--" if series.kind == "heuristic" else LINE_STYLES[look // colours]
        line = self.panel.lines[rank]
        label = visible(line.label or self.scene.quantity(line.quantity).label)
        marker = KINDS[series.kind].marker
        colour = GREY if line.look == "floor" else colour
        entry: Any = Line2D([], [], label=label, color=colour, ls=dash, marker=marker, ms=5, lw=1.6)
        if line.look != "line":
            entry = Patch(facecolor=colour, alpha=STANDING, label=label)
        self.scene.handles.setdefault(label, entry)
        return colour, dash

    def _look(self, index: int, rank: int, series: Series, at: Mapping[str, Value]) -> tuple[str, Any]:
        """Colour by model, or of a single model by coordinates; dash by the line of a panel, or by coordinates."""
        scene, many = self.scene, len(self.scene.parts) > 1
        name, part, colour = scene.models[index]
        look = scene.looks.setdefault(series.at, len(scene.looks)) if series.at else 0
        if not many:
            colour = PALETTE[look % len(PALETTE)]
        style = rank if len(self.panel.lines) > 1 else look if many else look // len(PALETTE)
        dash = LINE_STYLES[style % len(LINE_STYLES)]
        share = scene.base(part, scene.chart.beside, at) if scene.chart.beside else None
        beside = ""
        if share is not None and share.value < 0.995:
            beside = f" ({scene.quantity(scene.chart.beside).label} {share.value:.2g})"
        if series.at:
            text = visible((f"{name}, " if many and beside else "") + series.at + beside)
            tint = INK if many else colour
            entry = Line2D([], [], label=text, color=tint, ls=dash, marker="o", ms=4, lw=1.6)
            scene.handles.setdefault(text, entry)
        elif beside:
            scene.handles[name] = handle(name + beside, colour)
        return colour, dash

    def __call__(self, ax: Axes) -> None:
        panel, over = self.panel, self.panel.over
        rows = [row for series, *_ in self.lines for row in series.rows]
        quantities = [self.scene.quantity(line.quantity) for line in panel.lines]
        plain = panel.powers or self.scene.chart.limits
        log = not plain and quantities[0].scale == "log" and any(drawable(row.value, True) for row in rows)
        for series, colour, dash, look in self.lines:
            label = " ".join(filter(None, (series.model, series.at)))
            style = dash if look == "line" else "none"
            draw_line(ax, [_along(row, over) for row in series.rows], series, colour, log=log, label=label, dash=style)
        for part, names, middle, colour in self.dots:
            _dots(ax, part, names, [row.depth or 0.0 for row in middle], colour)
        self._levels(ax)
        if panel.powers:
            _power_axis(ax, [row.value for row in rows])
        elif log:
            ends = [end for row in rows for end in (row.value, row.low, row.high) if end is not None]
            log_ticks(ax, [end for end in ends if drawable(end, True)])
        elif not self.scene.chart.limits:
            _from_zero(ax, rows)
        if self.scene.chart.limits:
            low, high = self.scene.chart.limits
            ax.set_ylim(low - 0.02 * (high - low), high + 0.02 * (high - low))
        _across(ax, over, panel.label, [_along(row, over) for row in rows])
        self._standing(ax, log)

    def _standing(self, ax: Axes, log: bool) -> None:
        """What stands on the axis, once it is known where that is: bars, those of several models side by side."""
        foot, top = ax.get_ylim()
        bars = [line for line in self.lines if line[3] == "bars"]
        for series, colour, _, look in self.lines:
            x = [_along(row, self.panel.over) for row in series.rows]
            values = [value if math.isfinite(value) else foot for value in series.values(log)]
            if look == "floor":
                ax.fill_between(x, foot, values, color=colour, alpha=STANDING, linewidth=0)
            elif look == "bars":
                room = min([b - a for a, b in itertools.pairwise(sorted(set(x)))], default=0.1)
                wide = min(0.7 * room, 0.05 * max(x[-1] - x[0], 1e-9) or room) / len(bars)
                shift = wide * ([line[0] for line in bars].index(series) - (len(bars) - 1) / 2)
                heights = [value - foot for value in values]
                ax.bar([at + shift for at in x], heights, wide, foot, color=colour, alpha=STANDING, linewidth=0)
        ax.set_ylim(foot, top)

    def _levels(self, ax: Axes) -> None:
        """Where nothing is gained or lost, and the whole network's part_groups number, dotted."""
        neutral = 0.0 if self.panel.powers else self.scene.quantity(self.panel.lines[0].quantity).neutral
        if neutral is not None:
            ax.axhline(neutral, color=GREY, lw=1.0, ls=":")
        for _, part, colour in self.scene.models:
            base = self.scene.base(part, self.panel.base, self.scene.where) if self.panel.base else None
            if base is not None:
                ax.axhline(base.value, color=colour if len(self.scene.parts) > 1 else GREY, lw=1.0, ls=(0, (1, 2)))


def dot_pictures(scene: Scene, panel: Panel) -> tuple[list[Drawing], list[str]]:
    """A line of the picture per value of a coordinate that all models have, the smallest below, a mark per model."""
    (line,) = panel.lines
    tables = [
        {
            coordinate_text(row.at[panel.over]): row
            for row in part.rows
            if row.quantity == line.quantity and panel.over in row.at
        }
        for part in scene.parts
    ]
    names = [name for name in tables[0] if all(name in table for table in tables)]
    names.sort(key=lambda name: sum(table[name].value for table in tables))
    if not names:
        return [], []
    step = 0.5 / len(tables)

    def fill(ax: Axes) -> None:
        for index, ((_, part, colour), table) in enumerate(zip(scene.models, tables, strict=True)):
            shift = (index - (len(tables) - 1) / 2) * step
            for height, name in enumerate(names):
                row = table[name]
                ax.plot([row.value], [height + shift], "o", color=colour, ms=5, mec="white", mew=0.5)
                if row.low is not None and row.high is not None:
                    ax.hlines(height + shift, row.low, row.high, color=colour, lw=1.4, alpha=0.7)
            base = scene.base(part, panel.base, scene.where) if panel.base else None
            if base is not None:
                ax.axvline(base.value, color=colour, lw=0.9, ls=(0, (1, 2)))
        ax.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
        ax.grid(axis="x", color="#e4e4e4", linewidth=0.8)
        ax.grid(visible=False, axis="y")
        if scene.chart.limits:
            low, high = scene.chart.limits
            ax.set_xlim(low, high + 0.01 * (high - low))
        plain_text(ax.set_xlabel(panel.label or scene.quantity(line.quantity).label, size=9, color=INK))

    if len(scene.parts) > 1:
        scene.handles |= {name: handle(name, colour) for name, _, colour in scene.models}
    return [Drawing(panel.title, fill, height=1.0 + 0.26 * len(names))], []


ROW_FORMS: dict[str, Callable[[Scene, Panel], tuple[list[Drawing], list[str]]]] = {
    "lines": line_pictures,
    "dots": dot_pictures,
}


# -- rows ------------------------------------------------------------------------------------------------------------


def _groups(scene: Scene, panel: Panel, part: Part, line: Line) -> list[Group]:
    """The rows of a line by the coordinates that tell them apart, each group in order along the panel's axis."""
    rows = [row for row in part.rows if on_line(row, panel, line)]
    drawn = scene.choices(row.at for row in rows)
    if line.at is None:
        fixed = without(drawn, {panel.over, line.mean, *map(str, line.band[:1])})
        rows = [row for row in rows if agrees(row.at, fixed) and scene.where.keys() <= row.at.keys()]
    elif scene.where:
        rows = []
    ends: list[list[Row]] = []
    if line.band:
        levels = _by_value(rows, str(line.band[0]))
        ends = [levels.get(coordinate_text(value), []) for value in line.band[1:]]
        rows = levels.get(coordinate_text((line.at or drawn)[str(line.band[0])]), [])
    groups: dict[str, Group] = {}
    for row in rows:
        free = without(row.at, {panel.over}) if line.at is None else {}
        words = words_of(without(row.at, {panel.over})) if line.mean else words_of(free)
        groups.setdefault(words, (free, []))[1].append(row)
    for _, members in groups.values():
        members.sort(key=lambda row: _along(row, panel.over))
    if line.relative:
        groups = {key: (at, _relative(members)) for key, (at, members) in groups.items()}
    if line.mean:
        groups = _means(groups, line.mean, panel.over)
    sets = [(at, _banded(members, *ends) if ends else members) for at, members in groups.values()]
    if panel.powers and not line.power:
        sets = [(at, [in_powers(row) for row in members]) for at, members in sets]
    longest = max((len(members) for _, members in sets), default=0)
    # Beside lines, a set of coordinates with one point is no line: it belongs to another panel's axis.
    sets = [group for group in sets if len(group[1]) > 1 or longest == 1 or panel.over == "depth"]
    return [(at, members) for at, members in sets if any(math.isfinite(row.value) for row in members)]


def _by_value(rows: Sequence[Row], key: str) -> dict[str, list[Row]]:
    values: dict[str, list[Row]] = {}
    for row in rows:
        values.setdefault(coordinate_text(row.at[key]), []).append(row)
    return values


def _along(row: Row, over: str) -> float:
    return (row.depth or 0.0) if over == "depth" else float(row.at[over])


def _relative(rows: list[Row]) -> list[Row]:
    """Values over that of the first layer; none where that is 0."""
    first = rows[0].value
    return [replace(row, value=row.value / first, low=None, high=None) for row in rows] if first > 0 else []


def _means(groups: dict[str, Group], key: str, over: str) -> dict[str, Group]:
    """Means over a coordinate at every place of the axis, without intervals."""
    merged: dict[str, tuple[dict[str, Value], dict[float, list[Row]]]] = {}
    for at, rows in groups.values():
        free = without(at, {key})
        positions = merged.setdefault(words_of(free), (free, {}))[1]
        for row in rows:
            positions.setdefault(_along(row, over), []).append(row)
    return {
        words: (
            at,
            [replace(rows[0], value=math.fsum(row.value for row in rows) / len(rows), low=None, high=None)
             for _, rows in sorted(positions.items())],
        )
        for words, (at, positions) in merged.items()
    }  # fmt: skip


def _banded(rows: list[Row], low: list[Row], high: list[Row]) -> list[Row]:
    """Rows whose intervals are the values of other rows at the same depth; drawn as estimates, which have a band."""
    lows, highs = ({row.layer: row.value for row in side} for side in (low, high))
    return [
        replace(row, kind="estimate", low=min(lows[row.layer], row.value), high=max(highs[row.layer], row.value))
        if row.layer in lows and row.layer in highs
        else row
        for row in rows
    ]


def _coordinates(ats: Iterable[dict[str, Value]]) -> tuple[dict[str, Value], list[str]]:
    """Coordinates that all lines of a panel share, and the names of those that tell them apart."""
    every = list(ats)
    values: dict[str, set[str]] = {}
    for at in every:
        for key, value in at.items():
            values.setdefault(key, set()).add(coordinate_text(value))
    shared = [key for key, texts in values.items() if len(texts) == 1 and all(key in at for at in every)]
    return {key: every[0][key] for key in shared}, [key for key in values if key not in shared]


# -- axes ------------------------------------------------------------------------------------------------------------


def _dots(ax: Axes, part: Part, names: Sequence[str], depths: Sequence[float], colour: str) -> None:
    """A dot per entry of the arrays ``[layers, k]``, which follow each other along depth."""
    tables = [part.arrays[name] for name in names if name in part.arrays]
    if sum(map(len, tables)) != len(depths):
        return
    for depth, entries in zip(depths, (row for table in tables for row in table), strict=True):
        ax.scatter([depth] * len(entries), entries, s=7, color=colour, alpha=0.35, linewidths=0)


def _power_axis(ax: Axes, values: Sequence[float]) -> None:
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    if high - low > MOST_DECADES:
        ax.set_yscale("symlog", linthresh=4)
        low, high = min(low - 1, -1.0), 1.6 * high
        ax.set_ylim(low, high)
        ends = sorted({-4, -2, 0, 2, 4, *(10 * 10**k for k in range(6)), *(30 * 10**k for k in range(5))})
        ax.set_yticks([end for end in ends if low <= end <= high])
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.set_ylabel("power of ten", size=9, color=INK)


def _from_zero(ax: Axes, rows: Sequence[Row]) -> None:
    """From 0 where nothing is negative: a small change must not look like a large one."""
    if all(row.value >= 0 for row in rows if math.isfinite(row.value)):
        ax.set_ylim(0, 1.02 * ax.get_ylim()[1])


def _across(ax: Axes, over: str, label: str, values: Sequence[float]) -> None:
    """The horizontal axis: depth, or a coordinate with ticks at the values that were measured."""
    if over == "depth":
        ax.set_xlim(-0.04, 1.04)
        ax.set_xlabel(label or "depth (0: first layer, 1: last)", size=9, color=INK)
        return
    positions = sorted(set(values))
    if _geometric(positions):
        ax.set_xscale("log")
        ax.xaxis.set_minor_locator(NullLocator())
    ticks = positions[:: -(-len(positions) // 7)]
    ax.set_xticks(ticks, [f"{value:.2g}" for value in ticks])
    plain_text(ax.set_xlabel(label or over.replace("_", " "), size=9, color=INK))


def _geometric(values: Sequence[float]) -> bool:
    """Whether values grow by factors rather than by steps: their ratios are more alike than their differences."""
    if len(values) < 2 or values[0] <= 0:
        return False
    if len(values) == 2:
        return values[1] / values[0] >= 5
    ratios = [right / left for left, right in itertools.pairwise(values)]
    steps = [right - left for left, right in itertools.pairwise(values)]
    return max(ratios) / min(ratios) < max(steps) / min(steps)
