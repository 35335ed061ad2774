"""From an instrument's rows to the figures of its section, by the quantities alone: no instrument is known here."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from lisse.profile import Quantity, Value
from lisse.reporting.page.entries import Entries, Entry
from lisse.reporting.page.formulas import formula_html
from lisse.reporting.page.headline import HEADLINES
from lisse.reporting.page.plots import Across, Line, Plot, coordinate_axis, depth_axis, over, side_by_side
from lisse.reporting.page.words import Note, facts_of, how_to_read, notes_of, shown_value

MOST_CHOICES = 40
MOST_LEADS = 4  # figures of an instrument that are open; the others are behind a fold
# What is chosen first of a coordinate, where the order of the rows is not the order of interest.
FIRST = {"attack": ("pgd", "fgsm"), "corruption": ("all", "gaussian_noise"), "over": ("mean",)}
# What stands beside a measured stretch, and the words at its line.
BOUNDS = {
    "stretch": "measured",
    "log_bound": "proved, of the weights",
    "log_hull_bound": "proved, of these tokens",
    "log_printed_bound": "as printed",
}
# What a page leads with, where an instrument says much; others lead with their first quantities.
LEADS = {
    "topology": ("change_rate", "cumulative_change_rate"),
    "contraction": ("against-bounds", "distance"),
    "propagation": ("scaled_ratio", "attention_distance"),
    "isometry": ("distance_error", "distance_correlation"),
    "robustness": ("corruption_accuracy", "attack_accuracy", "mean_accuracy", "deformation_accuracy"),
    "sensitivity": ("lipschitz_from_input", "lipschitz_from_previous"),
}


@dataclass(frozen=True)
class Panel:
    """A plot at one choice of coordinates, and all its rows, also those without a mark."""

    at: dict[str, str]
    plot: Plot
    behind: tuple[int, ...]


@dataclass(frozen=True)
class PageFigure:
    """A quantity's figure: panels, what it says, how to read it, where it comes from."""

    id: str
    quantity: Quantity
    panels: tuple[Panel, ...]
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
        """The rows behind all panels that have a mark."""
        return tuple(row for panel in self.panels for row in panel.plot.rows)


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
    models: tuple[str, ...]

    @property
    def leads(self) -> tuple[PageFigure, ...]:
        """The figures that are open."""
        wanted = [identifier(self.title, name) for name in LEADS.get(self.title, ())]
        found = [figure for name in wanted for figure in self.figures if figure.id == name]
        return tuple(found) or self.figures[:MOST_LEADS]

    @property
    def others(self) -> tuple[PageFigure, ...]:
        """The figures behind a fold."""
        return tuple(figure for figure in self.figures if figure not in self.leads)


def section(entries: Entries, instrument: str) -> Section:
    """Everything a page shows of an instrument."""
    quantities = entries.quantities(instrument)
    rows = [entry for entry in entries.rows if entry.instrument == instrument]
    along = [entry for entry in rows if entry.row.depth is not None]
    loose = [entry for entry in rows if entry.row.depth is None]
    spread = _spread(rows)
    choices = _varying(along, spread)
    figures: list[PageFigure] = []
    numbers: list[tuple[Quantity, tuple[Entry, ...]]] = []
    # What more or less of is better comes first: a reader wants an answer before the details.
    for quantity in sorted(quantities.values(), key=lambda each: each.better == "neither"):
        some = [entry for entry in along if entry.row.quantity == quantity.name]
        if some:
            figures.append(_figure(entries, instrument, quantity, some, choices, spread, depth_axis()))
    together = _against_bounds(entries, instrument, along)
    if together is not None:
        figures.insert(0, together)
    for quantity in quantities.values():
        some = [entry for entry in loose if entry.row.quantity == quantity.name]
        if not some:
            continue
        made = _loose_figure(entries, instrument, quantity, some, choices)
        if made is None:
            numbers.append((quantity, tuple(entry for entry in some if not entry.initial)))
        else:
            figures.append(made)
    for panel in (panel for figure in figures for panel in figure.panels):
        for key, value in panel.at.items():
            if value not in choices.setdefault(key, []):
                choices[key].append(value)
    return Section(
        identifier(instrument),
        instrument,
        choices,
        {key: _preferred(key, values, instrument) for key, values in choices.items()},
        tuple(figures),
        tuple(numbers),
        notes_of(entries, instrument),
        tuple(model.name for model, _ in entries.parts(instrument)),
    )


def identifier(*words: str) -> str:
    """Words as the id of an element."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(words).lower()).strip("-") or "x"


def _spread(rows: Sequence[Entry]) -> set[str]:
    """Coordinates that are drawn together rather than chosen: heads of attention, and whatever has too many values."""
    values: dict[str, set[Value]] = {}
    for entry in rows:
        for key, value in entry.row.at.items():
            values.setdefault(key, set()).add(value)
    return {key for key, some in values.items() if key in ("head", "token") or len(some) > MOST_CHOICES}


def _varying(rows: Sequence[Entry], spread: set[str]) -> dict[str, list[str]]:
    """Coordinates that have several values within one model and quantity; what differs from model to model is none."""
    groups: dict[tuple[int, bool, str], dict[str, set[str]]] = {}
    values: dict[str, dict[str, Value]] = {}
    for entry in rows:
        seen = groups.setdefault((entry.model, entry.initial, entry.row.quantity), {})
        for key, value in entry.row.at.items():
            seen.setdefault(key, set()).add(shown_value(value))
            values.setdefault(key, {}).setdefault(shown_value(value), value)
    varying = {key for seen in groups.values() for key, some in seen.items() if len(some) > 1} - spread
    return {key: _ordered(values[key]) for key in values if key in varying}


def _ordered(values: dict[str, Value]) -> list[str]:
    if all(isinstance(value, (int, float)) for value in values.values()):
        return sorted(values, key=lambda text: float(values[text]))
    return list(values)


def _preferred(key: str, values: list[str], instrument: str) -> str:
    first = next((word for word in FIRST.get(key, ()) if word in values), None)
    if first is not None:
        return first
    for line in HEADLINES:
        if line.instrument == instrument:
            for value in line.prefers.get(key, ()):
                if shown_value(value) in values:
                    return shown_value(value)
    return values[0]


def _figure(
    entries: Entries,
    instrument: str,
    quantity: Quantity,
    some: Sequence[Entry],
    choices: dict[str, list[str]],
    spread: set[str],
    across: Across | str,
) -> PageFigure:
    """Panels of lines, one for every choice of coordinates that has rows."""
    names = [model.name for model in entries.models]
    groups: dict[tuple[tuple[str, str], ...], list[Entry]] = {}
    for entry in some:
        key = tuple((name, shown_value(entry.row.at[name])) for name in choices if name in entry.row.at)
        groups.setdefault(key, []).append(entry)
    panels = []
    for chosen, rows in groups.items():
        axis = across if isinstance(across, str) else None
        lines = _lines(rows, spread | ({axis} if axis else set()), axis)
        here = coordinate_axis(across, lines) if isinstance(across, str) else across
        at = " ".join(f"{key}={value}" for key, value in chosen)
        title = f"{quantity.label}{' at ' + at if at else ''} of {', '.join(names)} over {here.label}"
        plot = over(lines, quantity, here, names=names, title=title)
        panels.append(Panel(dict(chosen), plot, tuple(entry.index for entry in rows)))
    return PageFigure(
        identifier(instrument, quantity.name),
        quantity,
        tuple(panels),
        how_to_read(quantity, some, across if isinstance(across, str) else "depth", several=entries.joined),
        facts_of(entries, instrument, some),
        formula_html(quantity.formula),
    )


def _lines(rows: Sequence[Entry], spread: set[str], axis: str | None) -> list[Line]:
    groups: dict[tuple[object, ...], list[Entry]] = {}
    for entry in rows:
        apart = entry.row.at.keys() & (spread - {axis})
        groups.setdefault((entry.model, entry.initial, entry.row.kind, bool(apart)), []).append(entry)
    lines = []
    for (model, initial, kind, scattered), some in groups.items():
        assert isinstance(model, int)
        where = (lambda e: float(e.row.at[axis])) if axis else (lambda e: e.row.depth or 0.0)
        ordered = sorted(some, key=where)
        places = [where(entry) for entry in ordered]
        several = len(set(places)) < len(places) and not initial
        if initial and len(set(places)) < len(places):  # a line for each seed
            seeds: list[list[Entry]] = []
            for entry in some:
                home = next((seed for seed in seeds if where(entry) not in {where(e) for e in seed}), None)
                if home is None:
                    seeds.append(home := [])
                home.append(entry)
            lines += [Line(model, kind, tuple(sorted(seed, key=where)), True) for seed in seeds]  # type: ignore[arg-type]
            continue
        lines.append(Line(model, kind, tuple(ordered), bool(initial), not (scattered or several)))  # type: ignore[arg-type]
    # References lie under everything, and the first model on top.
    return sorted(lines, key=lambda line: (not line.initial, -line.model))


def _loose_figure(
    entries: Entries, instrument: str, quantity: Quantity, some: Sequence[Entry], choices: dict[str, list[str]]
) -> PageFigure | None:
    """Rows without a layer: over a numeric coordinate, or side by side; ``None`` where there is one number a model."""
    varying = _varying(some, set())
    rest = {key: values for key, values in varying.items() if key not in choices}
    numeric = [key for key, values in rest.items() if len(values) >= 3 and all(_is_number(text) for text in values)]
    if not rest and not any(key in varying for key in choices):
        return None
    names = [model.name for model in entries.models]
    if numeric:
        key = numeric[0]
        others = {name: values for name, values in varying.items() if name != key}
        have = [entry for entry in some if key in entry.row.at]
        without = [entry for entry in some if key not in entry.row.at]
        return _figure(entries, instrument, quantity, have, others, set(), key) if not without else _with_loose(
            entries, instrument, quantity, have, without, others, key
        )  # fmt: skip
    groups: dict[tuple[tuple[str, str], ...], dict[str, list[Entry]]] = {}
    for entry in some:
        chosen = tuple((name, shown_value(entry.row.at[name])) for name in choices if name in entry.row.at)
        label = ", ".join(f"{name} {shown_value(entry.row.at[name])}" for name in rest if name in entry.row.at)
        groups.setdefault(chosen, {}).setdefault(label or quantity.label, []).append(entry)
    panels = []
    for chosen, by_label in groups.items():
        lines = [(label, _lines(rows, set(), None)) for label, rows in by_label.items()]
        title = f"{quantity.label} of {', '.join(names)}, side by side"
        plot = side_by_side(lines, quantity, names=names, title=title)
        behind = tuple(entry.index for rows in by_label.values() for entry in rows)
        panels.append(Panel(dict(chosen), plot, behind))
    return PageFigure(
        identifier(instrument, quantity.name),
        quantity,
        tuple(panels),
        how_to_read(quantity, some, "", several=entries.joined),
        facts_of(entries, instrument, some),
        formula_html(quantity.formula),
    )


def _against_bounds(entries: Entries, instrument: str, along: Sequence[Entry]) -> PageFigure | None:
    """A measured ratio ``X`` and bounds ``log_…bound`` of it in one figure, by powers of ten; ``None`` without both.

    Bounds may be too large for a number, so they are rows of logarithms, and the measured ones are made such here.
    """
    whole = [entry for entry in along if "head" not in entry.row.at and not entry.initial]
    measured = [
        replace(entry, row=replace(row, value=math.log10(row.value), low=_log(row.low), high=_log(row.high)))
        for entry in whole
        if (row := entry.row).quantity == "stretch" and row.kind == "lower" and row.value > 0
    ]
    bounds = [entry for entry in whole if entry.row.quantity in BOUNDS and entry.row.quantity != "stretch"]
    if not measured or not bounds:
        return None
    names = [model.name for model in entries.models]
    groups: dict[tuple[int, str], list[Entry]] = {}
    for entry in (*bounds, *measured):
        groups.setdefault((entry.model, entry.row.quantity), []).append(entry)
    named = min(model for model, _ in groups)  # one model's lines carry the words for all
    lines = [
        Line(model, some[0].row.kind, tuple(sorted(some, key=lambda entry: entry.row.depth or 0.0)),
             label=BOUNDS[name] if model == named else "")
        for (model, name), some in groups.items()
    ]  # fmt: skip
    own = entries.quantities(instrument)
    quantity = Quantity(
        "against-bounds",
        "log10 of stretch and bounds",
        "The largest stretch that was seen, from below, and what is proved from above: the truth lies between them.",
        own["log_bound"].formula,
        own["log_bound"].reference,
    )
    title = f"Measured stretch and its bounds, of {', '.join(names)}, over depth"
    return PageFigure(
        identifier(instrument, quantity.name),
        quantity,
        (
            Panel(
                {},
                over(lines, quantity, depth_axis(), names=names, title=title),
                tuple(e.index for e in (*bounds, *measured)),
            ),
        ),
        how_to_read(quantity, [*bounds, *measured], "depth", several=entries.joined)
        + " One unit of the axis is a factor of ten.",
        facts_of(entries, instrument, measured),
        formula_html(quantity.formula),
    )


def _log(value: float | None) -> float | None:
    return None if value is None else math.log10(value) if value > 0 else -math.inf


def _with_loose(
    entries: Entries, instrument: str, quantity: Quantity, have: Sequence[Entry], without: Sequence[Entry],
    others: dict[str, list[str]], key: str,
) -> PageFigure:  # fmt: skip
    """A figure over a coordinate, and rows without that coordinate side by side in a panel of their own."""
    made = _figure(entries, instrument, quantity, have, others, set(), key)
    names = [model.name for model in entries.models]
    by_label: dict[str, list[Entry]] = {}
    for entry in without:
        by_label.setdefault(entry.row.where() or quantity.label, []).append(entry)
    lines = [(label, _lines(rows, set(), None)) for label, rows in by_label.items()]
    title = f"{quantity.label} of {', '.join(names)}, side by side"
    plot = side_by_side(lines, quantity, names=names, title=title)
    panel = Panel({}, plot, tuple(entry.index for entry in without))
    return PageFigure(made.id, quantity, (*made.panels, panel), made.read, made.facts, made.formula)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
