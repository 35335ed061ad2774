"""What instruments declare of themselves, for profiles that were saved before they did."""

from __future__ import annotations

from dataclasses import replace

from lisse.instruments import ALL
from lisse.profile import Part, Profile, Quantity
from lisse.run import Instrument

INSTRUMENTS: dict[str, type[Instrument]] = {kind.__name__.lower(): kind for kind in ALL}


def page_order(instrument: str) -> int:
    """The rank of an instrument on a page: that of :data:`lisse.instruments.ALL`, and all others after them."""
    names = list(INSTRUMENTS)
    return names.index(instrument) if instrument in names else len(names)


def up_to_date(profile: Profile) -> Profile:
    """The profile with what its instruments declare today in every part without charts (saved by format version 1)."""
    return replace(profile, parts=tuple(map(_part_today, profile.parts)))


def _part_today(part: Part) -> Part:
    kind = INSTRUMENTS.get(part.instrument)
    if kind is None or part.charts:
        return part
    declared = {quantity.name: quantity for quantity in kind.QUANTITIES}
    return replace(
        part,
        quantities=tuple(_described(quantity, declared.get(quantity.name, quantity)) for quantity in part.quantities),
        charts=kind.CHARTS,
    )


def _described(quantity: Quantity, today: Quantity) -> Quantity:
    return replace(
        quantity,
        headline=quantity.headline or today.headline,
        lead=quantity.lead or today.lead,
        neutral=today.neutral if quantity.neutral is None else quantity.neutral,
        invariant=quantity.invariant or today.invariant,
    )
