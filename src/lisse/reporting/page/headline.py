"""The few numbers that stand for a profile: those whose quantities declare a headline.

A number that judges stands at the last block, whether or not a head hangs behind it; one that is a paper's own stands
where the paper has it, at the output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from lisse.profile import Headline, Profile, Quantity, Row, last_block
from lisse.reporting.declared import page_order, up_to_date
from lisse.reporting.page.entries import Entries, Entry

Candidate = TypeVar("Candidate")


@dataclass(frozen=True)
class Heading:
    """A number of the first screen: whose it is, what it means, and how it is called there."""

    instrument: str
    quantity: Quantity
    headline: Headline

    @property
    def label(self) -> str:
        """Its short name."""
        return self.headline.label


def headings(quantities: Iterable[tuple[str, Mapping[str, Quantity]]]) -> list[Heading]:
    """The headlines of some instruments, by name and quantities, in the order of a page.

    Of an instrument that declares none: its first quantity of which more or less is better.
    """
    lines = []
    for name, described in sorted(quantities, key=lambda item: page_order(item[0])):
        declared = [quantity for quantity in described.values() if isinstance(quantity.headline, Headline)]
        lines += [Heading(name, quantity, quantity.headline) for quantity in declared]  # type: ignore[arg-type]
        first = next((quantity for quantity in described.values() if quantity.better != "neither"), None)
        if not declared and first is not None:
            lines.append(Heading(name, first, Headline(first.label, makes="better")))
    return lines


def page_headings(entries: Entries) -> list[Heading]:
    """The headlines of all instruments on a page, but those of two networks, whose numbers are of no one of them."""
    names = [name for name in entries.instruments if not any(part.beside for _, part in entries.parts(name))]
    return headings((name, entries.quantities(name)) for name in names)


def heading_entry(
    entries: Entries, heading: Heading, model: int, *, initial: bool = False, output: bool = False
) -> Entry | None:
    """The row that stands for a quantity of a model, or ``None`` where it has none; ``output``: that of the output."""
    rows = entries.of(heading.quantity.name, model=model, instrument=heading.instrument, initial=initial)
    block = None if output else standing_layer(entries.models[model].profile, heading.quantity)
    return representative(rows, heading.headline, lambda entry: entry.row, block=block)


def roles(profile: Profile) -> dict[str, str]:
    """Layers in order of depth with their roles, where the provenance tells; files from elsewhere may not."""
    layers = profile.provenance.get("layers")
    cards = [layer for layer in layers if isinstance(layer, Mapping)] if isinstance(layers, list) else []
    names = {str(layer.get("name")): str(layer["role"]) for layer in cards if layer.get("role")}
    # Profiles of before orders were drawn call a plain network's last matrix a block.
    if "order" not in profile.provenance and list(names.values())[-2:] == ["block", "block"]:
        names |= {str(cards[-1].get("name")): "output"} if cards[-1].get("kind") == "Linear" else {}
    return names


def role_of(profile: Profile, layer: str | None) -> str | None:
    """The role of a layer, ``None`` where it is not known."""
    return None if layer is None else roles(profile).get(layer)


def standing_layer(profile: Profile, quantity: Quantity) -> str | None:
    """Where a headline stands: the last block if it judges, ``None`` (the output) if it is a paper's own."""
    return last_block(roles(profile)) if quantity.judges else None


def profile_headings(profile: Profile) -> list[Heading]:
    """The headlines of one profile, with those that its instruments declare today where it was saved before."""
    parts = up_to_date(profile).parts
    return headings((part.instrument, {quantity.name: quantity for quantity in part.quantities}) for part in parts)


def headline_rows(profile: Profile) -> dict[str, Row]:
    """The rows of a profile that its headlines stand for, by label."""
    rows = {}
    for heading in profile_headings(profile):
        parts = [part for part in profile.parts if part.instrument == heading.instrument]
        candidates = [row for part in parts for row in part.rows if row.quantity == heading.quantity.name]
        row = representative(candidates, heading.headline, block=standing_layer(profile, heading.quantity))
        if row is not None:
            rows[heading.label] = row
    return rows


def representative(
    items: Sequence[Candidate],
    headline: Headline,
    row_of: Callable[[Candidate], Row] = lambda item: item,  # type: ignore[assignment,return-value]
    *,
    block: str | None = None,
) -> Candidate | None:
    """Of the rows of one quantity, the one that stands for them: of the network, of ``block``, or of the last layer."""
    final = [item for item in items if row_of(item).layer is None]
    if not final and block is not None:
        final = [item for item in items if row_of(item).layer == block]
    if not final:
        deepest = max((depth for item in items if (depth := row_of(item).depth) is not None), default=None)
        final = [item for item in items if row_of(item).depth == deepest]

    def rank(item: Candidate) -> tuple[float, ...]:
        row = row_of(item)
        ranks = [
            float(order.index(row.at[key])) if row.at.get(key) in order else float(len(order))
            for key, order in headline.prefers.items()
        ]
        size = row.at.get("cloud")  # of clouds of several sizes, the largest
        larger = -float(size) if isinstance(size, (int, float)) else 0.0
        return (float("head" in row.at), *ranks, larger, 0.0 if math.isfinite(row.value) else 1.0)

    return min(final, key=rank) if final else None
