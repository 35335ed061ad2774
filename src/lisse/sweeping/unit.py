"""A unit of a sweep: model, data, instruments and seed, and the profile that comes of them.

A unit is plain JSON and says all that its numbers depend on but the code; what is done with it is idempotent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import os
import re
import shutil
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from lisse.data import load_data
from lisse.instruments.by_name import kinds_named
from lisse.libraries import importable_folder, persons_object
from lisse.models import load_model, tokenizer_for
from lisse.models.specs import Spec, parse
from lisse.networks.zoo import seeded
from lisse.profile import Profile, options_of
from lisse.run import Instrument, Run, profile_of
from lisse.run.accuracy import measured_score
from lisse.run.calibration import calibrated
from lisse.run.fingerprint import digest_of, library_versions, package_fingerprint
from lisse.sweeping.claims import claim
from lisse.sweeping.origins import origin_of_code, origins_of_data, origins_of_model
from lisse.training import RECIPES, Recipe, train
from lisse.training.plan import weights_digest

#: ``done`` now; ``whole``: was there already; ``busy``: another process is at it; ``killed``: its process died.
UnitStatus = Literal["done", "whole", "failed", "busy", "killed"]

# Random states and the number of threads are the process's own: an executor of threads would mix those of two units.
_ONE_AT_A_TIME = threading.RLock()


@dataclass(frozen=True)
class RecipeRun:
    """A training: a recipe by name with its ``changes``, on the ``data``'s part ``split``, from a ``seed``."""

    data: str
    recipe: str = "default"
    changes: Mapping[str, Any] = field(default_factory=dict)
    split: str = "train"
    limit: int | None = None
    seed: int = 0

    @property
    def full_recipe(self) -> Recipe:
        """The recipe with its changes."""
        return dataclasses.replace(RECIPES[self.recipe], **_with_tuples(self.changes))


@dataclass(frozen=True)
class Unit:
    """What is measured of what. ``model`` is a spec; with a ``training``, the network that the training starts from."""

    model: str
    data: str
    instruments: Mapping[str, Mapping[str, Any]]
    seed: int = 0
    family: str = ""
    split: str = "test"
    limit: int | None = None
    batch: int = 100
    memory: str = "1GiB"
    device: str = "cpu"
    threads: int = 1
    training: RecipeRun | None = None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Unit:
        """The unit of a document that :func:`dataclasses.asdict` made."""
        training = document.get("training")
        return cls(**{**document, "training": None if training is None else RecipeRun(**training)})

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the hashes: a worker finds out for itself which files and which code it has.
        return Unit.of, (dataclasses.asdict(self),)

    @property
    def label(self) -> str:
        """Model, recipe and seed in a few words."""
        training = self.training
        if training is None:
            return f"{self.model} · seed {self.seed}" if self.seed else self.model
        changes = ", ".join(f"{key}={value}" for key, value in training.changes.items())
        return f"{self.model} · {training.recipe}{f' ({changes})' if changes else ''} · seed {training.seed}"

    @property
    def start(self) -> str:
        """The spec with the seed of random weights, where it says neither weights nor seed; also of a factory."""
        seed = self.seed if self.training is None else self.training.seed
        parsed = parse(self.model)
        if not seed or "seed" in parsed.options or not (parsed.random or _takes_seed(parsed)):
            return self.model
        return Spec(parsed.hub, parsed.name, {**parsed.options, "seed": seed}).without()

    def measuring(self) -> list[Instrument]:
        """The instruments with their options."""
        return [kinds_named(name)[0](**_with_tuples(options)) for name, options in self.instruments.items()]

    @functools.cached_property
    def key(self) -> str:
        """A hash of the unit: of all its fields, the recipe in full, and the files and modules that it names."""
        training = self.training
        recipe = None if training is None else dataclasses.asdict(training.full_recipe)
        options = [(name, options_of(item)) for name, item in zip(self.instruments, self.measuring(), strict=True)]
        origins = [*origins_of_model(self.model), *origins_of_data(self.data, self.split)]
        origins += [] if training is None else origins_of_data(training.data, training.split)
        document = {**dataclasses.asdict(self), "instruments": options}
        # What a unit may hold or how it is called changes no number.
        unseen = ("memory", "family")
        return digest_of({key: value for key, value in document.items() if key not in unseen}, recipe, origins)

    @functools.cached_property
    def code(self) -> str:
        """A hash of everything that measures: this package, the libraries, and instruments from elsewhere."""
        return digest_of(_own_code(), [origin_of_code(name) for name in self.instruments if ":" in name])

    @property
    def training_key(self) -> str:
        """A hash of the training alone: units that measure one network in several ways train it once."""
        training = self.training
        if training is None:
            return digest_of(self.model)
        origins = [*origins_of_model(self.model), *origins_of_data(training.data, training.split)]
        recipe = dataclasses.asdict(training.full_recipe)
        run = dataclasses.asdict(training), recipe, self.device, self.threads
        return digest_of(self.model, run, origins, _own_code())

    @property
    def file_name(self) -> str:
        """Of its profile: a few words, and the key."""
        network = parse(self.model).name.rpartition("/")[2].rpartition(":")[2]
        words = re.sub(r"[^\w.+]+", "-", f"{network}-{self.data}").strip("-.")
        return f"{words[:60]}-{self.key[:16]}.profile"


@dataclass(frozen=True)
class UnitOutcome:
    """What came of a unit: where its profile is, or why there is none."""

    status: UnitStatus
    reason: str = ""
    seconds: float = 0.0
    file: str = ""
    score: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def finished(unit: Unit, folder: str, home: str = "") -> UnitOutcome:
    """Measure a unit into ``folder/profiles``, unless its profile is there: what a worker does, in any process.

    ``home`` is the folder from which its files and modules are named. No error leaves this function: a network that
    fails is an outcome with a reason.
    """
    clock = time.perf_counter()
    try:
        if home and os.getcwd() != home:
            os.chdir(home)
        with importable_folder(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what matters stands in the profile's notes
            return dataclasses.replace(_finished(unit, Path(folder)), seconds=time.perf_counter() - clock)
    except Exception as error:
        text = " ".join(str(error).split())
        return UnitOutcome("failed", f"{type(error).__name__}: {text}"[:600], time.perf_counter() - clock)


def sound_profile(unit: Unit, folder: Path) -> Profile | None:
    """The profile of a unit where it is there, undamaged and of this code."""
    path = folder / "profiles" / unit.file_name
    try:
        profile = Profile.load(path) if path.is_file() else None
    except (ValueError, OSError):
        return None
    about = {} if profile is None else profile.provenance.get("sweep", {})
    if about.get("incomplete"):  # what failed there may succeed now
        return None
    return profile if (unit.key, unit.code) == (about.get("key"), about.get("code")) else None


def _finished(unit: Unit, folder: Path) -> UnitOutcome:
    with claim(folder / "claims" / unit.key) as ours:
        if not ours:
            return UnitOutcome("busy")
        path = folder / "profiles" / unit.file_name
        profile = sound_profile(unit, folder)
        status: UnitStatus = "done" if profile is None else "whole"
        if profile is None:
            with claim(folder / "claims" / f"{unit.training_key}.training") as free:
                if unit.training is not None and not free:
                    return UnitOutcome("busy")
                trained = folder / "trainings" / unit.training_key[:16]
                profile = measured(unit, trained=trained, pieces=folder / "pieces" / unit.key[:16])
            profile.save(path)
            if not profile.provenance["sweep"].get("incomplete"):
                shutil.rmtree(folder / "pieces" / unit.key[:16], ignore_errors=True)
        elif profile.provenance["sweep"]["family"] != unit.family:  # another name changes no number
            profile = _in_family(profile, unit)
            profile.save(path)
        notes = tuple(f"{part.instrument}: {part.notes[0]}" for part in profile.parts if part.notes and not part.rows)
        return UnitOutcome(status, file=str(path), score=profile.provenance.get("score") or {}, notes=notes)


def _in_family(profile: Profile, unit: Unit) -> Profile:
    sweep = profile.provenance["sweep"] | {"unit": dataclasses.asdict(unit), "family": unit.family}
    return dataclasses.replace(profile, provenance={**profile.provenance, "sweep": sweep})


def measured(unit: Unit, *, trained: Path | None = None, pieces: Path | None = None) -> Profile:
    """The profile of a unit, made now; what training and instruments keep on the way goes to these folders."""
    with _ONE_AT_A_TIME, _threads(unit.threads), seeded(unit.seed if unit.training is None else unit.training.seed):
        model = load_model(unit.start, device=unit.device)
        training = None if unit.training is None else _trained(unit, model, trained)
        data = load_data(unit.data, split=unit.split, limit=unit.limit, seed=unit.seed, tokenizer=tokenizer_for(model))
        run = Run(
            model.eval(), data, seed=unit.seed, batch=unit.batch, memory=unit.memory, device=unit.device, cache=pieces
        )
        try:
            random = unit.training is None and parse(unit.model).random
            if random:
                calibrated(run.model, run.data, run.batch, run.device)
            instruments = unit.measuring()
            profile = profile_of(run, instruments, on_error="note")
            if not profile.rows:
                raise RuntimeError("nothing was measured: " + (profile.notes or ("there are no rows.",))[0])
            error = measured_score(run, instruments, profile.parts, None)
        finally:
            run.close()
    document = {"unit": dataclasses.asdict(unit), "family": unit.family, "key": unit.key, "code": unit.code}
    if incomplete := [part.instrument for part in profile.parts if not part.complete]:
        document["incomplete"] = incomplete
    names = {"name": unit.label, "spec": unit.model, "weights": weights_digest(run.model)}
    model_about = {**profile.provenance["model"], **names}
    more: dict[str, Any] = {"model": model_about, "sweep": document}
    more |= {"score": error} if error is not None else {}
    more |= {"weights": "random"} if random else {}
    more |= {"training": training} if training is not None else {}
    return dataclasses.replace(profile, provenance={**profile.provenance, **more})


def _trained(unit: Unit, model: nn.Module, folder: Path | None) -> dict[str, Any]:
    """Train in place, going on where an earlier process was stopped; a training that fails is an error."""
    plan = unit.training
    assert plan is not None  # asked by the caller
    data = load_data(plan.data, split=plan.split, limit=plan.limit, seed=plan.seed, tokenizer=tokenizer_for(model))
    training = train(model, data, recipe=plan.full_recipe, seed=plan.seed, device=unit.device, out=folder)
    if training.status != "finished":
        raise RuntimeError(f"the training {training.status} at step {training.step} of {training.steps}.")
    log = list(training.log)
    about = {"steps": training.steps, "epochs": training.epochs, "seconds": round(training.seconds, 2)}
    return {**about, "loss": log[-1]["loss"]} if log else about


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _takes_seed(spec: Spec) -> bool:
    """Whether a person's factory has a ``seed`` among its arguments; it is imported for that."""
    if spec.hub != "factory":
        return False
    with importable_folder():
        factory = persons_object(spec.name, "sweep")
    return not isinstance(factory, nn.Module) and "seed" in inspect.signature(factory).parameters


def _own_code() -> str:
    return digest_of(package_fingerprint(), torch.__version__, library_versions())


def _with_tuples(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as they were before JSON or TOML made lists of tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
