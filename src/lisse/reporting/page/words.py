"""What stands around a figure: how to read it, what its numbers are, and what was not measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lisse.profile import Quantity, coordinate_text
from lisse.reporting.kinds import KINDS
from lisse.reporting.page.entries import Entries, Entry


@dataclass(frozen=True)
class Note:
    """Something that was not measured, went wrong, or should be known, by model."""

    models: tuple[str, ...]
    text: str
    level: str


def how_to_read(quantity: Quantity, rows: Sequence[Entry], across: str, *, joined: bool) -> str:
    """How to read a figure over ``across`` (``depth``, a coordinate, or nothing); ``joined``: with joined networks."""
    kinds = {entry.row.kind for entry in rows}
    words = []
    if across == "depth":
        words.append("From left to right: the network from its input to its output; one mark per layer.")
    elif across:
        words.append(f"From left to right: growing {across.replace('_', ' ')}.")
    else:
        words.append("One line per setting, one mark per model.")
    if any(entry.row.low is not None for entry in rows):
        words.append("Shaded bands or bars are intervals: where two of them overlap, the models are not told apart.")
        if joined:
            words.append("Those of several networks reach from the lowest to the highest of them.")
    if quantity.better != "neither":
        words.append(f"{quantity.better.capitalize()} is better.")
    if kinds != {"estimate"}:
        marks = "; ".join(f"{look.sign} {look.says}" for kind, look in KINDS.items() if kind in kinds)
        words.append(f"Marks: {marks}.")
    if any(entry.initial for entry in rows):
        words.append("Small dots on dotted lines: the same architecture with random weights.")
    return " ".join(words)


def facts_of(entries: Entries, instrument: str, rows: Sequence[Entry]) -> tuple[str, ...]:
    """Estimator, n, seed and interval, in short."""
    trained = [entry.row for entry in rows if not entry.initial]
    sizes = sorted({row.n for row in trained if row.n})  # a number of the weights alone has n = 0
    facts = [" and ".join(dict.fromkeys(row.kind for row in trained))]
    if not sizes:
        facts.append("no samples: of the weights alone")
    else:
        facts.append(f"n = {sizes[0]:,}" if len(sizes) == 1 else f"n = {sizes[0]:,} … {sizes[-1]:,}")
    seeds = dict.fromkeys(str(model.profile.provenance.get("seed", "?")) for model in entries.models)
    facts.append(f"seed {', '.join(seeds)}")
    levels = {part.options.get("level") for _, part in entries.parts(instrument)} - {None}
    if any(row.low is not None for row in trained):
        level = next(iter(levels)) if len(levels) == 1 else None
        facts.append(f"{level:.0%} interval" if isinstance(level, float) else "with interval")
        if entries.joined:
            facts.append("lowest to highest of the networks")
    else:
        facts.append("no interval")
    facts += [f"beside {name}" for name in dict.fromkeys(part.beside for _, part in entries.parts(instrument)) if name]
    coordinates: dict[str, set[str]] = {}
    for row in trained:
        for key, value in row.at.items():
            coordinates.setdefault(key, set()).add(coordinate_text(value))
    facts += [f"{key} {next(iter(values))}" for key, values in coordinates.items() if len(values) == 1]
    return tuple(fact for fact in facts if fact)


def notes_of(entries: Entries, instrument: str) -> tuple[Note, ...]:
    """Notes of the models, equal ones put together; absent instruments are said too."""
    models: dict[str, list[str]] = {}
    measured = {model.index for model, _ in entries.parts(instrument)}
    for model, part in entries.parts(instrument):
        silent = () if part.rows else ("Not measured: the instrument gave no rows and no reason.",)
        for note in part.notes or silent:
            models.setdefault(note, []).append(model.name)
    pairs = any(part.beside for _, part in entries.parts(instrument))  # not every network need be in one
    for model in entries.models:
        if model.index not in measured and not pairs:
            models.setdefault("Not measured: this profile was made without the instrument.", []).append(model.name)
    return tuple(Note(tuple(names), note, _level(note)) for note, names in models.items())


def _level(note: str) -> str:
    return "failed" if note.startswith("Failed: ") else "missing" if note.startswith("Not measured: ") else "note"
