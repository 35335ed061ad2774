"""Plans: models × data × instruments × seeds, and trainings, in TOML or as a mapping; checked before any work."""

from __future__ import annotations

import dataclasses
import difflib
import glob
import itertools
import os
import re
import tomllib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import torch

from lisse.data.sources import check_data
from lisse.instruments import ALL
from lisse.instruments.by_name import kinds_named
from lisse.models import check_spec
from lisse.models.specs import parse
from lisse.profile import options_of
from lisse.recording import parse_bytes
from lisse.run import Instrument, Size
from lisse.sweeping.origins import one_look
from lisse.sweeping.unit import RecipeRun, Unit
from lisse.training import RECIPES, Recipe

FIELDS = (
    "models", "data", "instruments", "options", "size", "seeds", "family", "split", "limit", "batch", "memory",
    "device", "threads", "trainings",
)  # fmt: skip
TRAINING_FIELDS = ("models", "data", "recipes", "seeds", "family", "split", "limit")
MODEL_FIELDS = ("model", "family")
#: A slip in a range must not fill the memory with its numbers.
MOST_SEEDS = 1_000_000


@dataclass(frozen=True)
class SweepPlan:
    """The units of a sweep, in order, each once; and what they share."""

    units: tuple[Unit, ...]
    threads: int = 1
    memory: str = "1GiB"
    device: str = "cpu"
    file: str = field(default="", compare=False)  # that it was read from


def plan_of(value: SweepPlan | Mapping[str, Any] | str | Path) -> SweepPlan:
    """A plan from a TOML file or a mapping of its form; ``ValueError`` names the field that is wrong, and the nearest.

    ``models`` are specs, globs of checkpoints (a family each), or tables of ``model`` and ``family``; ``data`` specs;
    ``instruments`` names, with ``options.NAME``, at a ``size`` (default ``quick``); ``seeds`` a list or ``"0..9"``.
    ``trainings`` are tables of ``models``, ``data``, ``recipes`` (names, or tables of ``recipe`` and its changes),
    ``seeds`` and ``family``: every model is trained by every recipe from every seed.
    """
    if isinstance(value, SweepPlan):
        return value
    file = ""
    if isinstance(value, (str, Path)):
        file = os.path.abspath(os.path.expanduser(value))
        value = _read(Path(file))
    if not isinstance(value, Mapping):
        raise TypeError(f"sweep: plan must be a TOML file or a mapping, got {type(value).__name__}.")
    _check_fields(value, FIELDS, "plan")
    size = value.get("size", "quick")
    if size not in get_args(Size):
        raise ValueError(f"sweep: size must be one of {', '.join(get_args(Size))}, got {size!r}.")
    shared: dict[str, Any] = {
        "instruments": _instruments(value.get("instruments", ()), value.get("options", {}), size),
        "batch": _count(value, "batch", 100),
        "memory": str(value.get("memory", "1GiB")),
        "device": str(value.get("device", "cpu")),
        "threads": _count(value, "threads", 1),
        "split": str(value.get("split", "test")),
        "limit": _count(value, "limit", None),
    }
    parse_bytes(shared["memory"])
    try:
        torch.device(shared["device"])
    except RuntimeError as error:
        raise ValueError(f"sweep: device must be one that torch knows, got {shared['device']!r}. Use cpu.") from error
    seeds, data = _seeds(value.get("seeds", [0]), "seeds"), _texts(value.get("data", ()), "data")
    models = list(_models(value.get("models", ()), str(value.get("family", ""))))
    trainings = list(_trainings(value.get("trainings", ()), data, str(value.get("family", ""))))
    if not models and not trainings:
        raise ValueError("sweep: plan must have models or trainings, got neither. Write models = ['zoo:…'].")
    if not data:
        raise ValueError("sweep: plan must have data, got none. Write data = ['digits']; `lisse data` lists them.")
    origins: list[tuple[str, str, RecipeRun | None]] = [(model, family, None) for model, family in models]
    units = [
        Unit(model, text, family=family or parse(model).name, seed=seed, training=training, **shared)
        for (model, family, training), text, seed in itertools.product([*origins, *trainings], data, seeds)
    ]
    _check_sources(units)
    with one_look():
        distinct = {unit.key: unit for unit in units}
    return SweepPlan(tuple(distinct.values()), shared["threads"], shared["memory"], shared["device"], file)


def _check_sources(units: Sequence[Unit]) -> None:
    """Models and data that cannot be are named now, and not by a worker after hours."""
    parts = [(unit.data, unit.split) for unit in units]
    parts += [(unit.training.data, unit.training.split) for unit in units if unit.training is not None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of data without splits, by every worker
        for spec in dict.fromkeys(unit.model for unit in units):
            check_spec(spec)
        for spec, split in dict.fromkeys(parts):
            check_data(spec, split)


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError as error:
        raise FileNotFoundError(f"sweep: plan must be a file that is there, got {path}.") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"sweep: plan must be TOML, got {path}, which is no text.") from error
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"sweep: plan must be TOML, got {path} ({error}).") from error


def _check_fields(table: Mapping[str, Any], fields: Iterable[str], where: str) -> None:
    fields = tuple(fields)
    for name in table:
        if name not in fields:
            near = difflib.get_close_matches(str(name), fields, n=1, cutoff=0.5)
            advice = f"Did you mean {near[0]}?" if near else f"There are {', '.join(fields)}."
            raise ValueError(f"sweep: {where} must have known fields, got {name!r}. {advice}")


def _texts(value: Any, where: str) -> list[str]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, (list, tuple)) or not all(isinstance(item, str) for item in values):
        raise ValueError(f"sweep: {where} must be texts, got {value!r}. Write {where} = ['…'].")
    return list(values)


def _items(value: Any, where: str, must: str, write: str) -> list[Any]:
    """The entries of a list; a text or a table alone is a list of one."""
    items = [value] if isinstance(value, (str, Mapping)) else value
    if not isinstance(items, Iterable):
        raise ValueError(f"sweep: {where} must be {must}, got {value!r}. Write {write}.")
    return list(items)


def _count(table: Mapping[str, Any], name: str, default: int | None, least: int = 1) -> int | None:
    value = table.get(name, default)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= least):
        return value
    raise ValueError(f"sweep: {name} must be a whole number of at least {least}, got {value!r}.")


def _seeds(value: Any, where: str) -> list[int]:
    """``[0, 1, 5]``, or ``"0..9"`` with both ends."""
    if isinstance(value, str) and (match := re.fullmatch(r"\s*(\d+)\s*\.\.\s*(\d+)\s*", value)):
        value = range(int(match[1]), int(match[2]) + 1)
        if value.stop - value.start > MOST_SEEDS:
            raise ValueError(f"sweep: {where} must be at most {MOST_SEEDS:,}, got {value.stop - value.start:,}.")
    sound = isinstance(value, (list, tuple, range)) and all(type(seed) is int and 0 <= seed < 2**63 for seed in value)
    if not sound or not value:
        raise ValueError(
            f"sweep: {where} must be whole numbers from 0, got {value!r}. Write {where} = [0, 1] or '0..9'."
        )
    return list(value)


def _models(value: Any, family: str) -> Iterator[tuple[str, str]]:
    """Specs with their families; globs of files as the files that there are."""
    for item in _items(value, "models", "specs, globs or tables of model and family", "models = ['zoo:…']"):
        spec, name = item, family
        if isinstance(item, Mapping):
            _check_fields(item, MODEL_FIELDS, "models")
            spec, name = item.get("model", ""), str(item.get("family", family))
        (spec,) = _texts(spec, "models")
        if any(letter in spec.partition("?")[0] for letter in "*[") and ":" not in spec:
            files = sorted(glob.glob(os.path.expanduser(spec), recursive=True))
            if not files:
                raise ValueError(f"sweep: models must match a file, got {spec!r}. A glob is taken from {os.getcwd()}.")
            yield from ((file, name or spec) for file in files)
            continue
        yield spec, name


def _instruments(value: Any, options: Any, size: Size) -> dict[str, dict[str, Any]]:
    """By name, all options of each instrument at the size, with what ``options`` says instead."""
    if not isinstance(options, Mapping):
        raise ValueError(f"sweep: options must be a table by instrument, got {options!r}. Write [options.NAME].")
    names = value.split(",") if isinstance(value, str) else value
    items = _items(names, "instruments", "names", "instruments = ['sensitivity']")
    items = [item.strip() if isinstance(item, str) else item for item in items]
    if not items:
        names = ", ".join(kind.__name__.lower() for kind in ALL)
        raise ValueError(f"sweep: plan must have instruments, got none. There are {names}.")
    instruments: dict[str, Instrument] = {}
    for item in items:
        if isinstance(item, Instrument):
            name = item.name if type(item) in ALL else f"{type(item).__module__}:{type(item).__qualname__}"
            instruments[name] = item
            continue
        (name,) = _texts(item, "instruments")
        (kind,) = kinds_named(name)
        changes = options.get(name, {})
        if not isinstance(changes, Mapping):
            raise ValueError(f"sweep: options.{name} must be a table, got {changes!r}. Write [options.{name}].")
        _check_fields(changes, [field.name for field in dataclasses.fields(kind)], f"options.{name}")
        lists = {key: tuple(entry) if isinstance(entry, list) else entry for key, entry in changes.items()}
        instruments[name if ":" in name else name.lower()] = kind.sized(size, **lists)
    _check_fields(options, instruments, "options")
    return {name: options_of(instrument) for name, instrument in instruments.items()}


def _trainings(value: Any, data: Sequence[str], family: str) -> Iterator[tuple[str, str, RecipeRun]]:
    """Every model by every recipe from every seed."""
    for table in _items(value, "trainings", "tables", "[[trainings]]"):
        if not isinstance(table, Mapping):
            raise ValueError(f"sweep: trainings must be tables, got {table!r}. Write [[trainings]].")
        _check_fields(table, TRAINING_FIELDS, "trainings")
        name = str(table.get("family", family))
        models = list(_models(table.get("models", ()), name))
        if not models:
            raise ValueError("sweep: trainings must have models, got none. Write models = ['zoo:…'].")
        recipes = _items(
            table.get("recipes", "default"), "recipes", "names or tables of recipe and its changes", "recipes = ['sgd']"
        )
        changes = [_recipe(item) for item in recipes]
        sources = _texts(table.get("data", data[:1]), "data")
        seeds = _seeds(table.get("seeds", [0]), "seeds")
        split, limit = str(table.get("split", "train")), _count(table, "limit", None)
        for (model, group), source, (recipe, change), seed in itertools.product(models, sources, changes, seeds):
            yield model, group, RecipeRun(source, recipe, change, split, limit, seed)


def _recipe(value: Any) -> tuple[str, dict[str, Any]]:
    """A recipe's name and what is changed of it, which makes a recipe."""
    changes = dict(value) if isinstance(value, Mapping) else {"recipe": value}
    _check_fields(changes, ["recipe", *(field.name for field in dataclasses.fields(Recipe))], "recipes")
    name = changes.pop("recipe", "default")
    if name not in RECIPES:
        near = difflib.get_close_matches(str(name), RECIPES, n=3, cutoff=0.4) or list(RECIPES)
        raise ValueError(f"sweep: recipe must exist, got {name!r}. The nearest: {', '.join(near)}.")
    _ = RecipeRun("", name, changes).full_recipe  # refuses what could not train
    return name, changes
