"""From an instrument's rows to the figures of its section, by its declarations alone: no instrument is known here."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from markupsafe import Markup

from lisse.profile import Chart, Line, Panel, Quantity, Value, coordinate_text
from lisse.reporting.page.entries import Entries, Entry
from lisse.reporting.page.formulas import formula_html
from lisse.reporting.page.headline import headings
from lisse.reporting.page.plots import DrawnLine, Plot, coordinate_axis, depth_axis, over, side_by_side
from lisse.reporting.page.words import Note, facts_of, how_to_read, notes_of
from lisse.reporting.series import LOOK_WORDS, in_powers, on_line

MOST_CHOICES = 40
MOST_LEADS = 4  # figures of an instrument that are open where none declares to lead; the others are behind a fold
SPREAD = ("head", "token")  # coordinates that are drawn together rather than chosen

Choice = tuple[tuple[str, str], ...]
GroupKey = TypeVar("GroupKey")


@dataclass(frozen=True)
class View:
    """A plot at one choice of coordinates, and all its rows, also those without a mark."""

    at: dict[str, str]
    plot: Plot
    behind: tuple[int, ...]


@dataclass(frozen=True)
class PageFigure:
    """A figure of a quantity or chart: its views, what it says, how to read it, where it comes from."""

    id: str
    quantity: Quantity
    views: tuple[View, ...]
    read: str
    facts: tuple[str, ...]
    formula: Markup

    @property
    def title(self) -> str:
        """The label with a capital, where it begins with a word."""
        label = self.quantity.label
        return label[:1].upper() + label[1:] if label[1:2].isalpha() else label

    @property
    def rows(self) -> tuple[int, ...]:
        """The rows behind all views that have a mark."""
        return tuple(row for view in self.views for row in view.plot.rows)


@dataclass(frozen=True)
class Section:
    """One instrument: a choice of coordinates, figures, single numbers and notes."""

    id: str
    title: str
    choices: dict[str, list[str]]
    preferred: dict[str, str]
    figures: tuple[PageFigure, ...]
    numbers: tuple[tuple[Quantity, tuple[Entry, ...]], ...]
    notes: tuple[Note, ...]

    @property
    def leads(self) -> tuple[PageFigure, ...]:
        """The figures that are open."""
        return tuple(figure for figure in self.figures if figure.quantity.lead) or self.figures[:MOST_LEADS]

    @property
    def folded(self) -> tuple[PageFigure, ...]:
        """The figures behind a fold."""
        return tuple(figure for figure in self.figures if figure not in self.leads)


def section(entries: Entries, instrument: str) -> Section:
    """Everything a page shows of an instrument."""
    rows = [entry for entry in entries.rows if entry.instrument == instrument]
    along = [entry for entry in rows if entry.row.depth is not None]
    spread = {key for key, values in _values(rows).items() if key in SPREAD or len(values) > MOST_CHOICES}
    choices = _varying(along, spread)
    sketch = _Sketch(entries, instrument, choices, spread)
    quantities = list(entries.quantities(instrument).values())
    figures = [figure for chart in entries.charts(instrument) if chart.lead for figure in sketch.chart(chart, rows)]
    # What more or less of is better comes first: a reader wants an answer before the details.
    for quantity in sorted(quantities, key=lambda quantity: quantity.better == "neither"):
        placed = [entry for entry in along if entry.row.quantity == quantity.name]
        if placed:
            figures.append(sketch.figure(quantity, placed, sketch.views(quantity, placed, choices), "depth"))
    numbers: list[tuple[Quantity, tuple[Entry, ...]]] = []
    for quantity in quantities:
        loose = [entry for entry in rows if entry.row.depth is None and entry.row.quantity == quantity.name]
        figure = sketch.loose(quantity, loose) if loose else None
        if figure is not None:
            figures.append(figure)
        elif loose:
            numbers.append((quantity, tuple(entry for entry in loose if not entry.initial)))
    ids = [figure.id for figure in figures]  # a chart may be called as a quantity is
    figures = [
        figure if figure.id not in ids[:index] else replace(figure, id=f"{figure.id}-{index}")
        for index, figure in enumerate(figures)
    ]
    for key, value in (item for figure in figures for view in figure.views for item in view.at.items()):
        if value not in choices.setdefault(key, []):
            choices[key].append(value)
    prefers = [heading.headline.prefers for heading in headings([(instrument, entries.quantities(instrument))])]
    return Section(
        identifier(instrument),
        instrument,
        choices,
        {key: _preferred(key, values, prefers) for key, values in choices.items()},
        tuple(figures),
        tuple(numbers),
        notes_of(entries, instrument),
    )


def identifier(*words: str) -> str:
    """Words as the id of an element."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(words).lower()).strip("-") or "x"


@dataclass(frozen=True)
class _Sketch:
    """Makes the figures of one instrument. ``choices`` are the coordinates of its menus, ``spread`` those of none."""

    entries: Entries
    instrument: str
    choices: Mapping[str, list[str]]
    spread: set[str]

    @property
    def names(self) -> list[str]:
        return [model.name for model in self.entries.models]

    def figure(self, quantity: Quantity, rows: Sequence[Entry], views: Iterable[View], across: str) -> PageFigure:
        """The figure with these views over ``across``: depth, a coordinate, or nothing."""
        return PageFigure(
            identifier(self.instrument, quantity.name),
            quantity,
            tuple(views),
            how_to_read(quantity, rows, across, joined=self.entries.joined),
            facts_of(self.entries, self.instrument, rows),
            formula_html(quantity.formula),
        )

    def views(self, quantity: Quantity, rows: Sequence[Entry], choices: Iterable[str], key: str = "") -> list[View]:
        """Lines over depth, or over the coordinate ``key``, a view for every choice of coordinates that has rows."""
        views = []
        for choice, entries in _by_choice(rows, choices).items():
            spread = self.spread if not key else {key}
            views.append(self._over(quantity, entries, _traces(entries, spread, key), key, dict(choice)))
        return views

    def _over(
        self, quantity: Quantity, rows: Sequence[Entry], traces: Sequence[DrawnLine], key: str, at: dict[str, str]
    ) -> View:
        across = coordinate_axis(key, traces) if key else depth_axis()
        words = " ".join(f"{name}={value}" for name, value in at.items())
        of = f"{quantity.label}{' at ' + words if words else ''} of {', '.join(self.names)}"
        plot = over(traces, quantity, across, names=self.names, title=f"{of} over {across.label}")
        return View(at, plot, tuple(entry.index for entry in rows))

    def _side_by_side(self, quantity: Quantity, groups: Mapping[str, Sequence[Entry]], at: dict[str, str]) -> View:
        lines = [(label, _traces(rows, set(), "")) for label, rows in groups.items()]
        title = f"{quantity.label} of {', '.join(self.names)}, side by side"
        plot = side_by_side(lines, quantity, names=self.names, title=title)
        return View(at, plot, tuple(entry.index for rows in groups.values() for entry in rows))

    def loose(self, quantity: Quantity, rows: Sequence[Entry]) -> PageFigure | None:
        """Rows without a layer: over a numeric coordinate, or side by side; ``None`` for one number a model."""
        varying = _varying(rows, set())
        free = {key: values for key, values in varying.items() if key not in self.choices}
        if not free and not any(key in varying for key in self.choices):
            return None
        numeric = [key for key, values in free.items() if len(values) >= 3 and all(map(_is_number, values))]
        if numeric:
            key = numeric[0]
            placed = [entry for entry in rows if key in entry.row.at]
            views = self.views(quantity, placed, [name for name in varying if name != key], key)
            apart = [entry for entry in rows if key not in entry.row.at]
            if apart:  # side by side in a view of their own
                groups = _grouped(apart, lambda entry: entry.row.where() or quantity.label)
                views.append(self._side_by_side(quantity, groups, {}))
            return self.figure(quantity, placed, views, key)

        def label(entry: Entry) -> str:
            at = entry.row.at
            return ", ".join(f"{name} {coordinate_text(at[name])}" for name in free if name in at) or quantity.label

        choices = _by_choice(rows, self.choices)
        views = [self._side_by_side(quantity, _grouped(group, label), dict(at)) for at, group in choices.items()]
        return self.figure(quantity, rows, views, "")

    def chart(self, chart: Chart, rows: Sequence[Entry]) -> list[PageFigure]:
        """The figure of a chart of lines; none where there is nothing to see together."""
        quantities, views, drawn = self.entries.quantities(self.instrument), [], []
        for panel in chart.panels:
            lines = [(line, group) for line in panel.lines if (group := _line_entries(rows, panel, line))]
            if panel.form != "lines" or len(lines) < min(2, len(panel.lines)):
                continue
            meaning = quantities[lines[0][0].quantity]
            if panel.powers:
                meaning = replace(meaning, scale="linear", better="neither", unit="", neutral=None)
            key = "" if panel.over == "depth" else panel.over
            # The first line lies on top.
            traces = [trace for line, group in reversed(lines) for trace in _labelled(group, line, self.spread, key)]
            entries = [entry for _, group in lines for entry in group]
            views.append(self._over(replace(meaning, label=panel.title or meaning.label), entries, traces, key, {}))
            drawn += entries
        if not views:
            return []
        first = quantities[drawn[0].row.quantity]
        says = " ".join(filter(None, (chart.says, _looks(chart))))
        words = {"name": chart.name, "label": chart.title, "says": says, "lead": True, "better": "neither"}
        figure = self.figure(replace(first, **words), drawn, views, chart.panels[0].over)  # type: ignore[arg-type]
        powers = " One unit of the axis is a factor of ten." if any(panel.powers for panel in chart.panels) else ""
        return [replace(figure, read=figure.read + powers)]


# -- rows ------------------------------------------------------------------------------------------------------------


def _values(rows: Iterable[Entry]) -> dict[str, set[Value]]:
    values: dict[str, set[Value]] = {}
    for entry in rows:
        for key, value in entry.row.at.items():
            values.setdefault(key, set()).add(value)
    return values


def _varying(rows: Sequence[Entry], spread: set[str]) -> dict[str, list[str]]:
    """Coordinates that have several values within one model and quantity; what differs from model to model is none."""
    groups = _grouped(rows, lambda entry: (entry.model, entry.initial, entry.row.quantity))
    varying = {key for group in groups.values() for key, values in _values(group).items() if len(values) > 1} - spread
    texts: dict[str, dict[str, Value]] = {}
    for entry in rows:
        for key, value in entry.row.at.items():
            texts.setdefault(key, {}).setdefault(coordinate_text(value), value)
    return {key: _ordered(values) for key, values in texts.items() if key in varying}


def _ordered(values: dict[str, Value]) -> list[str]:
    if all(isinstance(value, (int, float)) for value in values.values()):
        return sorted(values, key=lambda text: float(values[text]))
    return list(values)


def _preferred(key: str, values: list[str], prefers: Sequence[Mapping[str, Sequence[Value]]]) -> str:
    order = (coordinate_text(value) for preference in prefers for value in preference.get(key, ()))
    return next((text for text in order if text in values), values[0])


def _grouped(rows: Iterable[Entry], key: Callable[[Entry], GroupKey]) -> dict[GroupKey, list[Entry]]:
    groups: dict[GroupKey, list[Entry]] = {}
    for entry in rows:
        groups.setdefault(key(entry), []).append(entry)
    return groups


def _by_choice(rows: Iterable[Entry], choices: Iterable[str]) -> dict[Choice, list[Entry]]:
    """Rows by their values of these coordinates."""
    names = list(choices)

    def choice(entry: Entry) -> Choice:
        return tuple((name, coordinate_text(entry.row.at[name])) for name in names if name in entry.row.at)

    return _grouped(rows, choice)


def _traces(rows: Sequence[Entry], spread: set[str], key: str) -> list[DrawnLine]:
    """Lines of rows: one for each model and kind of number; of random weights, one for each seed."""

    def along(entry: Entry) -> float:
        return float(entry.row.at[key]) if key else entry.row.depth or 0.0

    groups = _grouped(
        rows,
        lambda entry: (entry.model, entry.initial, entry.row.kind, bool(entry.row.at.keys() & (spread - {key}))),
    )
    traces = []
    for (model, initial, kind, scattered), group in groups.items():
        ordered = sorted(group, key=along)
        crowded = len(set(map(along, ordered))) < len(ordered)
        if initial and crowded:
            traces += [DrawnLine(model, kind, tuple(sorted(seed, key=along)), True) for seed in _seeds(group, along)]
        else:
            traces.append(DrawnLine(model, kind, tuple(ordered), initial, not (scattered or crowded)))
    # References lie under everything, and the first model on top.
    return sorted(traces, key=lambda trace: (not trace.initial, -trace.model))


def _seeds(rows: Sequence[Entry], along: Callable[[Entry], float]) -> list[list[Entry]]:
    """Rows of random networks in as many lines as there are at one place."""
    seeds: list[list[Entry]] = []
    for entry in rows:
        seed = next((seed for seed in seeds if along(entry) not in map(along, seed)), None)
        if seed is None:
            seeds.append(seed := [])
        seed.append(entry)
    return seeds


def _line_entries(rows: Sequence[Entry], panel: Panel, line: Line) -> list[Entry]:
    """The rows of a chart's line, in powers of ten where its panel is: bounds may be too large for a number."""
    entries = [entry for entry in rows if not entry.initial and on_line(entry.row, panel, line)]
    if panel.powers and not line.power:
        entries = [replace(entry, row=in_powers(entry.row)) for entry in entries]
    return [entry for entry in entries if math.isfinite(entry.row.value) or not panel.powers]


def _labelled(rows: Sequence[Entry], line: Line, spread: set[str], key: str) -> list[DrawnLine]:
    """The lines of a chart's line; one model's carry the words for all."""
    first = min(entry.model for entry in rows)
    return [
        replace(trace, label=line.label if trace.model == first else "", look=line.look)
        for trace in _traces(rows, spread, key)
    ]


def _looks(chart: Chart) -> str:
    """Which mark is what, in words, where not all are lines: a bar has no end that a word could stand at."""
    lines = [line for panel in chart.panels for line in panel.lines]
    if all(line.look == "line" for line in lines):
        return ""
    return " ".join(f"{LOOK_WORDS[line.look].capitalize()}: {line.label}." for line in lines if line.label)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
