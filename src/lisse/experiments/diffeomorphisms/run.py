"""Relative stability toward diffeomorphisms: trains the networks, measures R_f, D_f and G_f, and holds them to error.

Paper     Relative stability toward diffeomorphisms indicates performance in deep nets [petrini2021]
Claim     R_f, the answer to smooth deformations relative to noise of the same size, is of order one at initialisation,
          falls by decades in good networks and predicts their test error: 0.2 √R_f on CIFAR-10
Command   lisse reproduce diffeomorphisms [--scale smoke | small | medium | paper] [--out FOLDER]; goes on after a stop
Hardware  smoke, small: one CPU core, 2 GB of memory; medium, paper: one GPU, 16 GB of memory, 20 GB of disk
Time      smoke: about a minute of one core; small: two hours of one core; medium: six minutes on an H200 with five
          networks at once; paper: not run yet, thought to take about 6 hours there
Expect    smoke: what expected.json says; paper: correlation 0.97 and 0.24 √R_f (Figure 5), R_f of 0.01 to 0.1 in the
          best networks (Figure 3), slope -1 of R_f(P) in the stripe model (Figure 7)
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lisse import taps
from lisse.data import Dataset
from lisse.experiments.diffeomorphisms import claims, networks, stripe, tables
from lisse.experiments.diffeomorphisms.networks import Source
from lisse.experiments.diffeomorphisms.plan import Settings, jobs, settings
from lisse.experiments.diffeomorphisms.result import Job, Result, Results
from lisse.experiments.diffeomorphisms.treatments import PLAIN
from lisse.experiments.diffeomorphisms.whole import Whole
from lisse.experiments.form import About, Outcome, Task
from lisse.instruments import Stability
from lisse.networks.attack import right
from lisse.profile import Profile
from lisse.profile_file import writing
from lisse.progress import Event
from lisse.run import measure
from lisse.training import train

ABOUT = About(
    paper="diffeomorphisms",
    title="Relative stability toward diffeomorphisms indicates performance in deep nets",
    reference="petrini2021",
    claim="R_f, the answer to smooth deformations relative to noise, falls in training and predicts the test error",
    needs={
        "smoke": "one CPU core, about a minute; digits, which come with scikit-learn, and the stripe model",
        "small": "one CPU core for two hours; CIFAR-10, 10,000 training images of it, and published ResNets",
        "medium": "a GPU (a quarter of an hour or so on an H200), 5 GB of disk; CIFAR-10",
        "paper": "a GPU (about 6 hours on an H200), 20 GB of disk; CIFAR-10, MNIST, Fashion-MNIST where it is there",
    },
    folder=Path(__file__).parent,
)


def run(task: Task) -> Outcome:
    """Train and measure the networks one after another, then the stripe model, then draw and fill the tables.

    Trainings are folders under ``out/networks``, pieces of measurements lie in ``out/cache``: what is there is not done
    again. A network whose loss stops being a number is recorded as diverged and not measured.
    """
    from lisse.experiments.diffeomorphisms import figures  # here, so that a missing matplotlib is told before the work

    chosen = settings(task.scale)
    able, lost = networks.at_hand(chosen.architectures)
    chosen = dataclasses.replace(chosen, architectures=able)
    data, notes = networks.loaded(chosen.sources)
    notes += lost
    if chosen.sources[0].name not in data:
        raise ValueError(f"reproduce: {chosen.sources[0].label} must be there, got nothing. {notes[0]}")
    todo = jobs(chosen, {name: len(pair[0]) for name, pair in data.items()}, task.seed)
    stripes = [(p, s) for p in chosen.stripe_sizes for s in range(task.seed, task.seed + chosen.seeds)]
    whole = Whole(task.progress, [_seconds(job) for job in todo] + [0.002 * p for p, _ in stripes])
    results = [
        result_of(job, f"{place} of {len(todo)}, {job.name}", task, chosen, *data[job.source.name], whole)
        for place, job in enumerate(todo, 1)
    ]
    found = []
    for p, s in stripes:
        whole.step(f"stripe model, P = {p}, seed {s}")
        found.append(stripe.kept(task, chosen.stripe, p, s))
        whole.finish()
    everything = Results(tuple(results), tuple(found))
    there = [source for source in chosen.sources if source.name in data]
    drawn = figures.draw(everything, chosen, there, data[there[0].name][1], task.out)
    return report(everything, chosen, there, notes, drawn, task)


def result_of(job: Job, label: str, task: Task, chosen: Settings, data: Dataset, test: Dataset, whole: Whole) -> Result:
    """Train one network and measure it, each unless it has been done."""
    model = job.architecture.model(job.source, job.seed)
    known = networks.anatomy(model)
    tell = whole.step(label, "train")
    profiles = {}
    published = job.architecture.weights is not None
    whole_set = job.p == len(data) or published
    if job.treatment == PLAIN and whole_set:  # at initialisation, once per network, data set and seed
        statistics = "batch" if known["batch_norm"] else "running"
        profiles["initial"] = _measured(job, model, test, task, chosen, Stability(
            cut=job.source.cuts, samples=chosen.samples), statistics, tell)  # fmt: skip
        if job.architecture.name in chosen.good and job.source is chosen.sources[0]:
            profiles |= _sweeps(job, model, test, task, chosen, "initial", statistics, tell)
    folder = task.out / "networks" / job.name
    if published:
        model = job.architecture.published()
        error: float | None = published_error(model, test, folder / "error.json", task.device, tell)
    else:
        error = trained_error(job, model, data, test, folder, task, chosen, tell)
    if error is None:
        whole.finish()
        return Result(job, 1.0, len(test), {}, **known)  # type: ignore[arg-type]
    profiles["trained"] = _measured(
        job, model, test, task, chosen, Stability(cut=job.source.cuts, samples=chosen.samples), "running", tell
    )
    if job.treatment == PLAIN and whole_set and job.source is chosen.sources[0]:
        profiles |= _sweeps(job, model, test, task, chosen, "trained", "running", tell)
    profiles["trained"].save(task.out / "profiles" / f"{job.name.replace('/', '-')}.profile")
    whole.finish()
    return Result(job, error, len(test), profiles, **known)  # type: ignore[arg-type]


def trained_error(
    job: Job, model: Any, data: Dataset, test: Dataset, folder: Path, task: Task, chosen: Settings, tell: Any
) -> float | None:
    """Train ``model`` in place, unless that has been done; its test error, ``None`` where it diverged."""
    recipe = job.treatment.recipe(networks.for_size(job.architecture.recipe, job.p, len(data)))
    training = train(
        model, networks.subset(data, job.p, job.seed), recipe=recipe, seed=job.seed, device=task.device, test=test,
        out=folder, augment=job.treatment.augment(
            model, recipe, cut=chosen.cut, delta=1.0, steps=chosen.worst_steps
        ), precision="bf16-mixed" if task.device.startswith("cuda") else None, test_every=recipe.epochs, progress=tell,
    )  # fmt: skip
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # the weights are in a file of their own
    if training.status == "diverged" or training.test is None or training.test.accuracy is None:
        return None
    return 1 - training.test.accuracy


def published_error(model: Any, test: Dataset, file: Path, device: str, tell: Any) -> float:
    """The test error of weights that others have trained, kept in ``file``."""
    if file.is_file():
        return float(json.loads(file.read_text(encoding="utf-8"))["error"])
    model, wrong, done = model.to(device), 0, 0
    for batch in test.batches(100, device=device):
        assert isinstance(batch.inputs, torch.Tensor)
        assert batch.targets is not None
        wrong += int((~right(model, batch.inputs, batch.targets)).sum())
        done += len(batch.targets)
        tell(Event("test", done, len(test), "samples"))
    file.parent.mkdir(parents=True, exist_ok=True)
    with writing(file) as written:
        written.write(json.dumps({"error": wrong / len(test), "n": len(test)}).encode())
    return wrong / len(test)


def _sweeps(
    job: Job, model: Any, test: Dataset, task: Task, chosen: Settings, when: str, statistics: str, tell: Any
) -> dict[str, Profile]:
    """At the output alone: over (c, δ), by means instead of medians, and for the best ones Gaussian interpolation."""
    asked = {"deltas": Stability(cut=job.source.cuts, delta=chosen.deltas, samples=chosen.samples)}
    if when == "trained":
        asked["means"] = Stability(cut=job.source.cuts, statistic="mean", samples=chosen.samples)
    if job.architecture.name in chosen.good:
        asked["gaussian"] = Stability(
            cut=job.source.cuts, delta=chosen.deltas, interpolation="gaussian", samples=chosen.samples
        )
    example = next(test.batches(3, 0, 3)).inputs
    assert isinstance(example, torch.Tensor)
    last = taps.find(model, example.to(taps.model_device(model)), statistics=statistics).names[-1]  # type: ignore[arg-type]
    return {
        f"{when}/{name}": _measured(job, model, test, task, chosen, one, statistics, tell, layers=[last])
        for name, one in asked.items()
    }


def _measured(
    job: Job, model: Any, test: Dataset, task: Task, chosen: Settings, instrument: Stability, statistics: str,
    tell: Any, layers: Sequence[str] | None = None,
) -> Profile:  # fmt: skip
    with warnings.catch_warnings():
        # Noise is not clipped: it would be shorter. A network that normalises its images says so of every batch.
        warnings.filterwarnings("ignore", message="Normalised: images must lie")
        return measure(
            model, test, instrument, layers=layers, seed=job.seed, batch=chosen.batch, device=task.device,
            statistics=statistics, cache=task.out / "cache", progress=tell,  # type: ignore[arg-type]
            name=job.architecture.label,
        )  # fmt: skip


def _seconds(job: Job) -> float:
    """Thought, of one training with its measurements."""
    slower = 8.0 if job.treatment.fields == "worst" else 1.0
    return slower * job.architecture.seconds + 5


def report(
    results: Results,
    chosen: Settings,
    sources: Sequence[Source],
    notes: Sequence[str],
    drawn: Sequence[Path],
    task: Task,
) -> Outcome:
    """The outcome, and its tables as files."""
    files = [*drawn, *tables.write_tables(results, chosen, sources, task.out)]
    diverged = [f"{result.job.name} diverged; it is not measured." for result in results.all if result.diverged]
    return Outcome(
        tables.findings(results, chosen, sources, paper=task.scale != "smoke"),
        claims.claims(results, chosen, sources),
        tuple(files),
        (*notes, *diverged),
    )
