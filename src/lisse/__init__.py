"""lisse: how smoothly a neural network carries its data, layer by layer.

Three lines to a table with one row per layer::

    import lisse

    profile = lisse.measure(model, data, lisse.instruments.Sensitivity())
    print(profile.table())

Everything is imported when it is first used, so that ``import lisse`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lisse.moved import forward

__version__ = "0.1.0"

forward()

if TYPE_CHECKING:
    from lisse import instruments, maths, networks, taps
    from lisse.data import Dataset, as_dataset, load_data
    from lisse.instruments.drift import drift
    from lisse.models import load_model
    from lisse.profile import Chart, Headline, Line, Panel, Part, Profile, Quantity, Row
    from lisse.recording import Recording, record
    from lisse.reporting.page import report
    from lisse.reporting.page.verdict import verdict
    from lisse.run import Instrument, Run, Watch, load_profiles, measure, option
    from lisse.surveying import survey
    from lisse.sweeping import sweep
    from lisse.taps import Tap
    from lisse.training import Recipe, Training, train

_HOMES = {
    "data": "Dataset as_dataset load_data",
    "instruments.drift": "drift",
    "models": "load_model",
    "profile": "Chart Headline Line Panel Part Profile Quantity Row",
    "recording": "Recording record",
    "reporting.page": "report",
    "reporting.page.verdict": "verdict",
    "run": "Instrument Run Watch load_profiles measure option",
    "surveying": "survey",
    "sweeping": "sweep",
    "taps": "Tap",
    "training": "Recipe Training train",
}
_WHERE = {name: f"lisse.{home}" for home, names in _HOMES.items() for name in names.split()}
_PACKAGES = {home.partition(".")[0] for home in _HOMES} | {"maths", "networks", "progress"}

__all__ = [
    "Chart",
    "Dataset",
    "Headline",
    "Instrument",
    "Line",
    "Panel",
    "Part",
    "Profile",
    "Quantity",
    "Recipe",
    "Recording",
    "Row",
    "Run",
    "Tap",
    "Training",
    "Watch",
    "as_dataset",
    "drift",
    "instruments",
    "load_data",
    "load_model",
    "load_profiles",
    "maths",
    "measure",
    "networks",
    "option",
    "record",
    "report",
    "survey",
    "sweep",
    "taps",
    "train",
    "verdict",
]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        value = getattr(importlib.import_module(_WHERE[name]), name)
        globals()[name] = value
        return value
    if name in _PACKAGES:
        return importlib.import_module(f"lisse.{name}")
    raise AttributeError(f"module 'lisse' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE, *_PACKAGES})
