"""What a file may start by itself: networks of the zoo on lisse's own data, and nothing that its writer chose."""

from __future__ import annotations

from collections.abc import Iterator

from lisse.data.sources import bundled
from lisse.models.specs import parse
from lisse.sweeping.unit import Unit


def reaches(unit: Unit, *, wishes: tuple[str, ...] = ()) -> list[str]:
    """What measuring a unit imports, opens or fetches beside lisse's own networks and data, in words.

    Whoever wrote a profile or a row of an atlas chose these names. ``wishes`` are specs that the person gave: what they
    name is theirs.
    """
    training = unit.training
    data = [unit.data, *([] if training is None else [training.data])]
    lines = [_model(unit.model)] if unit.model not in wishes else []
    lines += [None if bundled(spec) else f"to load data from {spec}" for spec in data if spec not in wishes]
    lines += [f"to import {name}" for name in unit.instruments if ":" in name]
    return list(dict.fromkeys(_present(lines)))


def _model(spec: str) -> str | None:
    parsed = parse(spec)
    if parsed.hub == "factory":
        return f"to import and call {parsed.name}"
    if parsed.hub != "zoo":
        return f"to open {spec}"
    weights = parsed.options.get("weights")
    return None if weights is None else f"to open {weights}"


def _present(lines: list[str | None]) -> Iterator[str]:
    return (line for line in lines if line is not None)
