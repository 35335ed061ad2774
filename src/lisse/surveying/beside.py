"""What a survey finds out besides the measurements: accuracy, pictures, what was left out, networks before training."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from lisse.data import Dataset
from lisse.maths.intervals import share_interval
from lisse.models import load_model
from lisse.models.specs import Spec, parse
from lisse.networks.answers import are_classes, hits, logits_of
from lisse.profile import Profile, Row
from lisse.run import Instrument, Run
from lisse.taps import feed, prepared, still, tracking_norms

CALIBRATION = 300  # samples that set the running statistics of a network with random weights


def score(run: Run, n: int | None) -> dict[str, Any] | None:
    """Error on the first ``n`` samples with its interval; ``None`` where the labels do not fit the output."""
    labels = run.data.targets
    if labels is None:
        return None
    total, wrong = run.take(n), 0
    with still(run.model, statistics="running", seed=0):
        for batch in run.batches(total):
            assert batch.targets is not None  # the data have labels
            output = feed(run.model, prepared(run.model, batch.inputs))
            try:
                logits = logits_of(output, len(batch.targets))
            except (TypeError, ValueError):
                return None
            if not are_classes(labels, logits.shape[1]):
                return None
            wrong += int((~hits(logits, batch.targets)).sum())
    ends = share_interval(wrong / total, total)
    low, high = float(ends.low), float(ends.high)
    return {"error": wrong / total, "low": low, "high": high, "n": total} if math.isfinite(low) else None


def score_of(accuracies: Iterable[Row]) -> dict[str, Any]:
    """Error and interval of an accuracy that instruments have counted: of several, the one of most samples."""
    row = max(accuracies, key=lambda row: row.n)
    low, high = (row.value if end is None else end for end in (row.low, row.high))
    return {"error": 1 - row.value, "low": 1 - high, "high": 1 - low, "n": row.n}


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


def calibrated(model: nn.Module, data: Dataset, batch: int, device: Any) -> nn.Module:
    """Set the running statistics of batch norm from data: what a network computes when its training starts.

    A new network's running statistics are 0 and 1 and fit no data; where the data cannot set them, it is refused.
    """
    norms = list(tracking_norms(model).values())
    if not norms:
        return model
    if min(batch, len(data)) < 2:
        raise ValueError(
            "calibrated: batch must hold at least 2 samples where batch norms have never seen data, "
            f"got batches of {min(batch, len(data))}. Give more samples, or weights."
        )
    momenta = [module.momentum for module in norms]
    for module in norms:
        module.reset_running_stats()
        module.momentum = None  # the mean over all batches
        module.train()
    with torch.no_grad():
        for part in data.batches(batch, stop=min(len(data), CALIBRATION), device=device):
            if part.size > 1:
                feed(model, prepared(model, part.inputs))
    for module, momentum in zip(norms, momenta, strict=True):
        module.momentum = momentum
    return model.eval()
