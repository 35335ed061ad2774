"""Instruments by name: lisse's own, and anybody's by module and class."""

from __future__ import annotations

import difflib

from lisse.instruments import ALL
from lisse.libraries import importable_folder, persons_object
from lisse.run import Instrument


def kinds_named(names: str) -> list[type[Instrument]]:
    """The kinds in ``topology,my.module:Silence``: of ``ALL``, or of a person's own code, which is imported."""
    kinds = [_kind(name.strip()) for name in names.split(",") if name.strip()]
    if not kinds or len({kind.__name__.lower() for kind in kinds}) != len(kinds):
        raise ValueError(f"instruments: they must be named once each, separated by commas, got {names!r}.")
    return kinds


def _kind(name: str) -> type[Instrument]:
    if ":" in name:
        with importable_folder():
            kind = persons_object(name, "instruments")
        if not isinstance(kind, type) or not issubclass(kind, Instrument):
            noun = f"the class {kind.__name__}" if isinstance(kind, type) else type(kind).__name__
            raise TypeError(f"instruments: {name} must be a kind of lisse.Instrument, got {noun}. Name such a class.")
        return kind
    kinds = {kind.__name__.lower(): kind for kind in ALL}
    if name.lower() not in kinds:
        near = difflib.get_close_matches(name.lower(), kinds, n=3, cutoff=0.4) or list(kinds)
        raise ValueError(
            f"instruments: they must exist, got no instrument {name!r}. The nearest: {', '.join(near)}; "
            "one of your own is package.module:Class."
        )
    return kinds[name.lower()]
