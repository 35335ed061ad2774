"""What a report will take, before it starts: rough, and said as such."""

from __future__ import annotations

import time
from typing import Any

# Seconds of one core for 500 points: persistence and distances of one cloud at one layer, and how they grow.
_DIAGRAM, _GROWTH = 0.25, 2.3


def seconds_per_sample(model: Any, data: Any, batch: int, device: Any) -> float:
    """The time of a forward pass, per sample, from one small batch after a warm one."""
    from lisse.taps import feed, prepared, still

    count = min(batch, 16, len(data))
    (some,) = data.batches(count, stop=count, device=device)
    with still(model, statistics="running", seed=0):
        feed(model, prepared(model, some.inputs))
        begun = time.perf_counter()
        feed(model, prepared(model, some.inputs))
    return (time.perf_counter() - begun) / count


def estimate(instrument: Any, per_sample: float, layers: int, n: int) -> float:
    """Seconds that an instrument takes on a model with so many layers and ``n`` samples of data."""
    samples = min(getattr(instrument, "samples", 500) or n, n)
    name = instrument.name
    if name == "topology":
        clouds = max(1, min(instrument.clouds, n // samples))
        return clouds * samples * per_sample + layers * clouds * 1.3 * _DIAGRAM * (samples / 500) ** _GROWTH
    if name == "stability":
        settings = len(instrument.cuts) * len(instrument.deltas)
        return samples * (1 + 2 * settings * instrument.fields) * per_sample + 0.05 * layers * settings
    if name == "sensitivity":
        return samples * per_sample + min(instrument.points, n) * layers * instrument.max_iter * 2.5 * per_sample
    if name == "robustness":
        return samples * per_sample * _ways(instrument)
    if name == "isometry":
        steps = 2 * min(instrument.points, n) * layers * instrument.max_iter  # at the data and beside them
        clouds = max(1, min(instrument.clouds, n // samples))
        return clouds * samples * per_sample + 2.5 * steps * per_sample
    return 10 * samples * per_sample


def _ways(instrument: Any) -> float:
    """Forward passes over the samples: a gradient counts as two more, and a corruption takes its own time."""
    from lisse.maths.corruption import CORRUPTIONS, EXTRA, MAIN

    groups = {"main": len(MAIN), "extra": len(EXTRA), "all": len(CORRUPTIONS), "none": 0}
    kinds = sum(groups.get(name, 1) for name in instrument.corruptions)
    passes = {"noise": 1, "fgsm": 3, "pgd": 3 * instrument.steps, "search": instrument.queries, "autoattack": 500}
    attacks = sum(passes.get(name, 1) for name in instrument.attacks) * len(instrument.eps)
    return 1 + 1.5 * kinds * len(instrument.severities) + attacks + len(instrument.sigma) + len(instrument.delta)


def told(seconds: float) -> str:
    """A duration in words."""
    if seconds < 10:
        return "a few seconds"
    if seconds < 90:
        return f"about {round(seconds / 10) * 10} seconds"
    return f"about {round(seconds / 60)} minutes" if seconds < 5400 else f"about {seconds / 3600:.1f} hours"
