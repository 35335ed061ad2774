"""Profiles as a page sees them: numbered models, numbered rows, and which profile is only a reference for another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lisse.profile import Chart, Part, Profile, Quantity, Row
from lisse.reporting.declared import page_order
from lisse.reporting.series import legend_names, listed_profiles

# Okabe & Ito, in the order of reporting's figures, on white and on black.
LIGHT = ("#0072B2", "#D55E00", "#009E73", "#B5598A", "#3A9BD0", "#B97F00", "#333333", "#A89B00")
DARK = ("#4DA6E0", "#FF8C42", "#2CC79B", "#E39AC2", "#8FD3FF", "#F2B632", "#E0E0E0", "#F0E442")
DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 2", "1 2", "12 3", "4 1 1 1")
INITIAL = "initialisation"


@dataclass(frozen=True)
class PageModel:
    """One network on the page. ``initial`` are profiles of the same architecture before training."""

    index: int
    name: str
    profile: Profile
    initial: tuple[Profile, ...] = ()

    @property
    def fingerprint(self) -> str | None:
        """A hash of the weights, where the profile has one."""
        return self.profile.about("model").get("fingerprint")

    @property
    def networks(self) -> int:
        """How many networks it stands for: more than one where :func:`lisse.reporting.joined` has put them together."""
        return max(1, len(_members(self.profile)))

    @property
    def data(self) -> Mapping[str, Any]:
        """What it was measured on."""
        return self.profile.about("data")


@dataclass(frozen=True)
class Entry:
    """A row with its number on the page, and whose it is. ``model`` is the index of a :class:`PageModel`."""

    index: int
    model: int
    instrument: str
    row: Row
    initial: bool = False


@dataclass(frozen=True)
class Entries:
    """All models, and all rows of all profiles in one numbered list: what figures, verdict and data share."""

    models: tuple[PageModel, ...]
    rows: tuple[Entry, ...]

    @property
    def joined(self) -> bool:
        """Whether some model stands for several networks."""
        return any(model.networks > 1 for model in self.models)

    @cached_property
    def instruments(self) -> tuple[str, ...]:
        """The instruments of all models, in the order of a page."""
        names = dict.fromkeys(part.instrument for model in self.models for part in model.profile.parts)
        return tuple(sorted(names, key=page_order))

    def parts(self, instrument: str) -> list[tuple[PageModel, Part]]:
        """What an instrument found, by model."""
        return [(model, part) for model in self.models for part in model.profile.parts if part.instrument == instrument]

    def quantities(self, instrument: str) -> dict[str, Quantity]:
        """An instrument's quantities by name."""
        quantities: dict[str, Quantity] = {}
        for _, part in self.parts(instrument):
            for quantity in part.quantities:
                quantities.setdefault(quantity.name, quantity)
        return quantities

    def charts(self, instrument: str) -> list[Chart]:
        """An instrument's charts."""
        charts = {chart.name: chart for _, part in self.parts(instrument) for chart in part.charts}
        return list(charts.values())

    def of(
        self, quantity: str, *, model: int | None = None, instrument: str | None = None, initial: bool = False
    ) -> list[Entry]:
        """The rows of a quantity."""
        return [
            entry
            for entry in self.rows
            if entry.row.quantity == quantity
            and entry.initial == initial
            and (model is None or entry.model == model)
            and (instrument is None or entry.instrument == instrument)
        ]


def entries_of(profiles: Profile | Iterable[Profile]) -> Entries:
    """Sort profiles into models and their references.

    A profile whose ``provenance["reference"]`` says ``{"kind": "initialisation", "model": FINGERPRINT}`` belongs to
    the model with that fingerprint, or with such a member; without such a model it is a model of its own.
    """
    listed = listed_profiles(profiles, "report")
    weights = {fingerprint for profile in listed if not _reference(profile) for fingerprint in _weights(profile)}
    main = [profile for profile in listed if not _reference(profile) or _reference(profile) not in weights]
    models = tuple(
        PageModel(index, name, profile, _initial_of(profile, listed, main))
        for index, (name, profile) in enumerate(zip(legend_names(main), main, strict=True))
    )
    rows: list[Entry] = []
    for model in models:
        for profile, initial in ((model.profile, False), *((start, True) for start in model.initial)):
            for part in profile.parts:
                for row in part.rows:
                    rows.append(Entry(len(rows), model.index, part.instrument, row, initial))
    return Entries(models, tuple(rows))


def _initial_of(profile: Profile, listed: Sequence[Profile], main: Sequence[Profile]) -> tuple[Profile, ...]:
    weights = _weights(profile)
    starts: dict[Any, Profile] = {}
    for index, other in enumerate(listed):
        if _reference(other) in weights and not any(other is model for model in main):  # == would compare arrays
            # Joined networks have the same random networks beside them, each of them once.
            starts.setdefault(other.about("model").get("fingerprint") if len(weights) > 1 else index, other)
    return tuple(starts.values())


def _weights(profile: Profile) -> set[str]:
    """The fingerprints of a profile's network, and of those it was joined from."""
    cards = (profile.about("model"), *_members(profile))
    return {card["fingerprint"] for card in cards if card.get("fingerprint")}


def _members(profile: Profile) -> list[Mapping[str, Any]]:
    members = profile.about("model").get("members")
    return [member for member in members if isinstance(member, Mapping)] if isinstance(members, list) else []


def _reference(profile: Profile) -> Any:
    reference = profile.about("reference")
    return reference.get("model") if reference.get("kind") == INITIAL else None
