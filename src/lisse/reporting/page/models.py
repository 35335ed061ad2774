"""What a page says of each model by itself: what training did to it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lisse.reporting.kinds import interval
from lisse.reporting.page.axis import short_number
from lisse.reporting.page.entries import Entries, Entry, PageModel
from lisse.reporting.page.headline import heading_entry, page_headings
from lisse.reporting.page.sentence import Sentence, entry_text, listed


def about(entries: Entries, model: PageModel) -> list[Sentence]:
    """The sentences of one model."""
    return [*_training(entries, model), *_networks(model)]


def _training(entries: Entries, model: PageModel) -> list[Sentence]:
    """What training did to the headline numbers, where the same architecture was measured at initialisation."""
    if model.profile.provenance.get("weights") == "random":
        text = f"{model.name} has random weights, because its spec names no others: this is no trained network."
        return [Sentence(text, (), "caveat", (model.index,))]
    moves: dict[str, list[str]] = {"lowered": [], "raised": [], "did not measurably change": [], "open": []}
    rows: list[int] = []
    seeds = 0
    for heading in page_headings(entries):
        after = heading_entry(entries, heading, model.index)
        if after is None or not math.isfinite(after.row.value) or not heading.quantity.judges:
            continue
        starts = entries.of(heading.quantity.name, model=model.index, instrument=heading.instrument, initial=True)
        before = [
            entry
            for entry in starts
            if entry.row.depth == after.row.depth and dict(entry.row.at) == dict(after.row.at)
            and entry.row.kind == after.row.kind and math.isfinite(entry.row.value)
        ]  # fmt: skip
        if not before:
            continue
        seeds = max(seeds, len(before))
        rows += [after.index, *(entry.index for entry in before)]
        values = sorted({entry.row.value for entry in before})
        span = " … ".join(short_number(value) for value in dict.fromkeys((values[0], values[-1])))
        moves[_move(after, before)].append(f"{heading.label} (from {span} to {entry_text(after)})")
    if not rows:
        return []
    undecided = moves.pop("open")
    parts = [f"{move} {listed(labels)}" for move, labels in moves.items() if labels]
    text = f"Against random weights ({seeds} seed{'s' if seeds > 1 else ''}), training of {model.name} "
    text = text + "; it ".join(parts) + "." if parts else ""
    if undecided:
        text += f"{' ' if text else ''}Against random weights, without intervals: {listed(undecided)}."
    return [Sentence(text, tuple(rows), "training", (model.index,))]


def _move(after: Entry, before: Sequence[Entry]) -> str:
    """Whether training moved a number out of the reach of all that random weights give."""
    ends, starts = interval(after.row), [reach for entry in before if (reach := interval(entry.row)) is not None]
    if ends is None or len(starts) < len(before):
        return "open"
    if ends[1] < min(low for low, _ in starts):
        return "lowered"
    return "raised" if ends[0] > max(high for _, high in starts) else "did not measurably change"


def _networks(model: PageModel) -> list[Sentence]:
    """That a model is several networks."""
    text = (
        f"{model.name}: numbers are means over the networks, and intervals reach from the lowest to the highest of "
        "them, each with its own interval."
    )
    return [Sentence(text, (), "caveat", (model.index,))] if model.networks > 1 else []
