"""What stands around a figure: how to read it, what its numbers are, and what was not measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lisse.profile import Quantity, Value
from lisse.reporting.page.entries import Entries, Entry

KINDS = {
    "exact": "■ exact for these very samples",
    "estimate": "● estimate",
    "lower": "▲ from below: the true value is at least this",
    "upper": "▼ from above: the true value is at most this",
    "heuristic": "◆ no guarantee",
}


@dataclass(frozen=True)
class Note:
    """Something that was not measured, went wrong, or should be known, by model."""

    models: tuple[str, ...]
    text: str
    level: str


def shown_value(value: Value) -> str:
    """A coordinate's value as the page writes it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def how_to_read(quantity: Quantity, some: Sequence[Entry], across: str, *, several: bool) -> str:
    """How to read a figure over ``across`` (``depth``, a coordinate, or nothing); ``several``: with joined networks."""
    kinds = {entry.row.kind for entry in some}
    words = []
    if across == "depth":
        words.append("From left to right: the network from its input to its output; one mark per layer.")
    elif across:
        words.append(f"From left to right: growing {across.replace('_', ' ')}.")
    else:
        words.append("One line per setting, one mark per model.")
    if any(entry.row.low is not None for entry in some):
        words.append("Shaded bands or bars are intervals: where two of them overlap, the models are not told apart.")
        if several:
            words.append("Those of several networks reach from the lowest to the highest of them.")
    if quantity.better != "neither":
        words.append(f"{quantity.better.capitalize()} is better.")
    if kinds != {"estimate"}:
        words.append("Marks: " + "; ".join(KINDS[kind] for kind in KINDS if kind in kinds) + ".")
    if any(entry.initial for entry in some):
        words.append("Small dots on dotted lines: the same architecture with random weights.")
    return " ".join(words)


def facts_of(entries: Entries, instrument: str, some: Sequence[Entry]) -> tuple[str, ...]:
    """Estimator, n, seed and interval, in short."""
    own = [entry for entry in some if not entry.initial]
    kinds = dict.fromkeys(entry.row.kind for entry in own)
    sizes = sorted({entry.row.n for entry in own if entry.row.n})  # a number of the weights alone has n = 0
    facts = [" and ".join(kinds)]
    if not sizes:
        facts.append("no samples: of the weights alone")
    else:
        facts.append(f"n = {sizes[0]:,}" if len(sizes) == 1 else f"n = {sizes[0]:,} … {sizes[-1]:,}")
    seeds = list(dict.fromkeys(str(model.profile.provenance.get("seed", "?")) for model in entries.models))
    facts.append(f"seed {', '.join(seeds)}")
    levels = {part.options.get("level") for _, part in entries.parts(instrument)} - {None}
    if any(entry.row.low is not None for entry in own):
        level = next(iter(levels)) if len(levels) == 1 else None
        facts.append(f"{level:.0%} interval" if isinstance(level, float) else "with interval")
        if entries.joined:
            facts.append("lowest to highest of the networks")
    else:
        facts.append("no interval")
    fixed: dict[str, set[str]] = {}
    for entry in own:
        for key, value in entry.row.at.items():
            fixed.setdefault(key, set()).add(shown_value(value))
    facts += [f"{key} {next(iter(values))}" for key, values in fixed.items() if len(values) == 1]
    return tuple(fact for fact in facts if fact)


def notes_of(entries: Entries, instrument: str) -> tuple[Note, ...]:
    """Notes of the models, those that are the same put together; absent instruments are said too."""
    found: dict[tuple[str, str], list[str]] = {}
    have = {model.place for model, _ in entries.parts(instrument)}
    for model, part in entries.parts(instrument):
        for note in part.notes:
            level = (
                "failed" if note.startswith("Failed: ") else "missing" if note.startswith("Not measured: ") else "note"
            )
            found.setdefault((note, level), []).append(model.name)
        if not part.rows and not part.notes:
            found.setdefault(("Not measured: the instrument gave no rows and no reason.", "missing"), []).append(
                model.name
            )
    for model in entries.models:
        if model.place not in have:
            found.setdefault(("Not measured: this profile was made without the instrument.", "missing"), []).append(
                model.name
            )
    return tuple(Note(tuple(models), text, level) for (text, level), models in found.items())
