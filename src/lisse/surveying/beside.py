"""What a survey finds out besides the measurements: accuracy, pictures, what was left out, networks before training."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping

from torch import nn

from lisse.models import load_model
from lisse.models.specs import Spec, parse
from lisse.profile import Profile
from lisse.run import Instrument, Run
from lisse.run.calibration import calibrated
from lisse.taps import feed, prepared, still


def seconds_per_sample(run: Run) -> float:
    """The time of a forward pass, per sample, from one small batch after a warm one."""
    count = min(run.batch, 16, len(run))
    (batch,) = run.data.batches(count, stop=count, device=run.device)
    with still(run.model, statistics="running", seed=0):
        feed(run.model, prepared(run.model, batch.inputs))
        clock = time.perf_counter()
        feed(run.model, prepared(run.model, batch.inputs))
    return (time.perf_counter() - clock) / count


def with_pictures(
    profile: Profile, run: Run, instruments: Iterable[Instrument], more: Mapping[str, Iterable[str]]
) -> Profile:
    """The profile with its instruments' pictures, and with ``more`` notes on each that has measured something."""
    parts = []
    for instrument, part in zip(instruments, profile.parts, strict=True):
        notes, arrays = list(part.notes), dict(part.arrays)
        if part.rows:
            notes += more.get(instrument.name, ())
            try:
                arrays.update(instrument.pictures(run))
            except (ValueError, TypeError, RuntimeError) as error:
                notes.append(f"No pictures: {error}")
        parts.append(dataclasses.replace(part, notes=tuple(notes), arrays=arrays))
    return dataclasses.replace(profile, parts=tuple(parts))


def zoo_architecture(model: nn.Module) -> str:
    """The spec that builds a network of the zoo without its weights; of any other, nothing.

    Others' code may draw its weights any way, or fetch them.
    """
    architecture = str(getattr(getattr(model, "lisse", None), "architecture", ""))
    return architecture if architecture.startswith("zoo:") else ""


def at_start(run: Run, seed: int) -> nn.Module:
    """The network of the zoo that a run has, with random weights: as its training starts on the run's data."""
    architecture = parse(zoo_architecture(run.model))
    spec = getattr(run.model.lisse, "spec", "") or architecture.without()
    options = {key: value for key, value in parse(spec).options.items() if key in ("mean", "std")}
    built = Spec(architecture.hub, architecture.name, {**architecture.options, **options, "seed": seed}).without()
    return calibrated(load_model(built, device=str(run.device)), run.data, run.batch, run.device)
