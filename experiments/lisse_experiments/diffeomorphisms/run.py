"""Relative stability toward diffeomorphisms: trains the networks, measures R_f, D_f and G_f, and holds them to error.

Paper     Relative stability toward diffeomorphisms indicates performance in deep nets [petrini2021]
Claim     R_f, the answer to smooth deformations relative to noise of the same size, is of order one at initialisation,
          falls by decades in good networks and predicts their test error: 0.2 √R_f on CIFAR-10
Command   lisse reproduce diffeomorphisms [--scale smoke | small | medium | sizes | paper] [--out FOLDER] [--workers N];
          goes on after a stop
Hardware  smoke, small: one CPU core, 2 GB of memory; medium, sizes, paper: one GPU, 16 GB of memory, 20 GB of disk
Time      smoke: about a minute of one core; small: two hours of one core; medium: six minutes on an H200 with five
          networks at once; sizes: 13 minutes there with seven; paper: not run yet, thought to take about 6 hours there
Expect    smoke: what expected.json says; paper: correlation 0.97 and 0.24 √R_f (Figure 5), R_f of 0.01 to 0.1 in the
          best networks (Figure 3), slope -1 of R_f(P) in the stripe model (Figure 7)
"""

from __future__ import annotations

import dataclasses
import functools
import json
import multiprocessing
import os
import shutil
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

from lisse import taps
from lisse.data import Dataset
from lisse.instruments import Stability
from lisse.networks.attack import right
from lisse.profile import Profile
from lisse.profile_file import writing
from lisse.progress import Event
from lisse.run import measure
from lisse.training import Recipe, train
from lisse_experiments.diffeomorphisms import claims, networks, stripe, tables
from lisse_experiments.diffeomorphisms.networks import Source
from lisse_experiments.diffeomorphisms.plan import Settings, jobs, settings
from lisse_experiments.diffeomorphisms.result import (
    Job,
    Result,
    Results,
    keep_result,
    stored_result,
)
from lisse_experiments.diffeomorphisms.treatments import PLAIN
from lisse_experiments.form import About, Outcome, Task, machine
from lisse_experiments.steps import Steps, busy_seconds

ABOUT = About(
    paper="diffeomorphisms",
    title="Relative stability toward diffeomorphisms indicates performance in deep nets",
    reference="petrini2021",
    claim="R_f, the answer to smooth deformations relative to noise, falls in training and predicts the test error",
    needs={
        "smoke": "one CPU core, about a minute; digits, which come with scikit-learn, and the stripe model",
        "small": "one CPU core for two hours; CIFAR-10, 10,000 training images of it, and published ResNets",
        "medium": "a GPU (a quarter of an hour or so on an H200), 5 GB of disk; CIFAR-10",
        "sizes": "a GPU (13 minutes on an H200 with --workers 7), 5 GB of disk; CIFAR-10",
        "paper": "a GPU (about 6 hours on an H200), 20 GB of disk; CIFAR-10, MNIST, Fashion-MNIST where it is there",
    },
    folder=Path(__file__).parent,
    side_by_side=True,
)


def run(task: Task) -> Outcome:
    """Train and measure the networks, then the stripe model, then draw and fill the tables.

    One after another, or ``task.workers`` side by side, a seed before the next. Trainings are folders under
    ``out/networks``, pieces of measurements lie in ``out/cache``, results in ``out/profiles``: what is there is not
    done again, and the last of these alone is enough for the tables. A network whose loss stops being a number is
    recorded as diverged and not measured.
    """
    from lisse_experiments.diffeomorphisms import figures  # here, so that a missing matplotlib is told before the work

    plan = settings(task.scale)
    able, lost = networks.at_hand(plan.architectures)
    plan = dataclasses.replace(plan, architectures=able)
    data, notes = networks.loaded(plan.sources)
    notes += lost
    if plan.sources[0].name not in data:
        raise ValueError(f"reproduce: {plan.sources[0].label} must be there, got nothing. {notes[0]}")
    todo = jobs(plan, {name: len(pair[0]) for name, pair in data.items()}, task.seed)
    stripes = [(p, s) for p in plan.stripe_sizes for s in range(task.seed, task.seed + plan.stripe_seeds)]
    if task.workers > 1:
        side_by_side(todo, stripes, task, plan)
    steps = Steps("diffeomorphisms", task.progress, [_seconds(job) for job in todo] + [0.002 * p for p, _ in stripes])
    results = [
        result_of(job, f"{index} of {len(todo)}, {job.name}", task, plan, *data[job.source.name], steps)
        for index, job in enumerate(todo, 1)
    ]
    trained_stripes = []
    for p, s in stripes:
        steps.step("stripe model", f"P = {p}, seed {s}")
        trained_stripes.append(stripe.stored_stripe(task, plan.stripe, p, s))
        steps.finish()
    everything = Results(tuple(results), tuple(trained_stripes))
    sources = [source for source in plan.sources if source.name in data]
    drawn = figures.draw(everything, plan, sources, data[sources[0].name][1], task.out)
    return report(everything, plan, sources, notes, drawn, task)


def side_by_side(todo: Sequence[Job], stripes: Sequence[tuple[int, int]], task: Task, plan: Settings) -> None:
    """Have processes of their own leave the results of all trainings under ``out``, seed by seed, the longest first."""
    context = multiprocessing.get_context("spawn")  # a CUDA context does not survive a fork
    quiet, count = dataclasses.replace(task, progress=None), len(todo) + len(stripes)
    order = sorted(todo, key=lambda job: (job.seed, -_seconds(job), -job.p))
    with ProcessPoolExecutor(task.workers, context, _one_of_several, (task.workers,)) as pool:
        futures: list[Future[Any]] = [pool.submit(_apart, job, quiet, plan) for job in order]
        futures += [pool.submit(stripe.stored_stripe, quiet, plan.stripe, p, s) for p, s in reversed(stripes)]
        try:
            for index, future in enumerate(as_completed(futures), 1):
                future.result()
                task.tell(f"{task.workers} side by side", index, count, "trainings")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _one_of_several(workers: int) -> None:
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))


def _apart(job: Job, task: Task, plan: Settings) -> None:
    result_of(job, job.name, task, plan, *_pair(job.source), Steps("diffeomorphisms", None, [1.0]))


@functools.cache
def _pair(source: Source) -> tuple[Dataset, Dataset]:
    return networks.loaded((source,))[0][source.name]


def result_of(job: Job, label: str, task: Task, plan: Settings, data: Dataset, test: Dataset, steps: Steps) -> Result:
    """Train one network and measure it, each unless it has been done; the result is kept in ``out/profiles``."""
    tell = steps.step(label, "training and measuring", ["train"])
    folder = task.out / "profiles" / job.name
    request = {
        "recipe": dataclasses.asdict(_recipe(job, data)), "treatment": dataclasses.asdict(job.treatment),
        "spec": job.architecture.spec, "cuts": job.source.cuts, "deltas": plan.deltas, "samples": plan.samples,
        "batch": plan.batch, "worst_steps": plan.worst_steps, "data": data.fingerprint(), "test": test.fingerprint(),
    }  # fmt: skip
    result = stored_result(job, folder, request)
    if result is None:
        start = time.time()
        result = _trained_and_measured(job, task, plan, data, test, tell)
        result = dataclasses.replace(result, machine=machine(task.device), span=(start, time.time()))
        keep_result(result, folder, request)
    steps.finish()
    return result


def _trained_and_measured(job: Job, task: Task, plan: Settings, data: Dataset, test: Dataset, tell: Any) -> Result:
    model = job.architecture.model(job.source, job.seed)
    anatomy = networks.anatomy(model)
    profiles = {}
    published = job.architecture.weights is not None
    whole_set = job.p == len(data) or published
    if job.treatment == PLAIN and whole_set:  # at initialisation, once per network, data set and seed
        statistics = "batch" if anatomy["batch_norm"] else "running"
        profiles["initial"] = _measured(job, model, test, task, plan, Stability(
            cut=job.source.cuts, samples=plan.samples), statistics, tell)  # fmt: skip
        if job.architecture.name in plan.good and job.source is plan.sources[0]:
            profiles |= _sweeps(job, model, test, task, plan, "initial", statistics, tell)
    folder = task.out / "networks" / job.name
    if published:
        model = job.architecture.published()
        error: float | None = published_error(model, test, folder / "error.json", task.device, tell)
    else:
        error = trained_error(job, model, data, test, folder, task, plan, tell)
    if error is None:
        return Result(job, 1.0, len(test), {}, **anatomy)  # type: ignore[arg-type]
    profiles["trained"] = _measured(
        job, model, test, task, plan, Stability(cut=job.source.cuts, samples=plan.samples), "running", tell
    )
    if job.treatment == PLAIN and whole_set and job.source is plan.sources[0]:
        profiles |= _sweeps(job, model, test, task, plan, "trained", "running", tell)
    return Result(job, error, len(test), profiles, **anatomy)  # type: ignore[arg-type]


def trained_error(
    job: Job, model: Any, data: Dataset, test: Dataset, folder: Path, task: Task, plan: Settings, tell: Any
) -> float | None:
    """Train ``model`` in place, unless that has been done; its test error, ``None`` where it diverged."""
    recipe = _recipe(job, data)
    training = train(
        model, networks.subset(data, job.p, job.seed), recipe=recipe, seed=job.seed, device=task.device, test=test,
        out=folder, augment=job.treatment.augment(
            model, recipe, cut=plan.cut, delta=1.0, steps=plan.worst_steps
        ), precision="bf16-mixed" if task.device.startswith("cuda") else None, test_every=recipe.epochs, progress=tell,
    )  # fmt: skip
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # the weights are in a file of their own
    if training.status == "diverged" or training.test is None or training.test.accuracy is None:
        return None
    return 1 - training.test.accuracy


def _recipe(job: Job, data: Dataset) -> Recipe:
    recipe = job.architecture.recipe
    return recipe if job.architecture.weights else job.treatment.recipe(networks.for_size(recipe, job.p, len(data)))


def published_error(model: Any, test: Dataset, file: Path, device: str, tell: Any) -> float:
    """The test error of weights that others have trained, kept in ``file``."""
    if file.is_file():
        return float(json.loads(file.read_text(encoding="utf-8"))["error"])
    model, wrong, count = model.to(device), 0, 0
    for batch in test.batches(100, device=device):
        assert isinstance(batch.inputs, torch.Tensor)
        assert batch.targets is not None
        wrong += int((~right(model, batch.inputs, batch.targets)).sum())
        count += len(batch.targets)
        tell(Event("test", count, len(test), "samples"))
    file.parent.mkdir(parents=True, exist_ok=True)
    with writing(file) as written:
        written.write(json.dumps({"error": wrong / len(test), "n": len(test)}).encode())
    return wrong / len(test)


def _sweeps(
    job: Job, model: Any, test: Dataset, task: Task, plan: Settings, when: str, statistics: str, tell: Any
) -> dict[str, Profile]:
    """At the output alone: over (c, δ), by means instead of medians, and for the best ones Gaussian interpolation."""
    if not plan.deltas:
        return {}
    sweeps = {"deltas": Stability(cut=job.source.cuts, delta=plan.deltas, samples=plan.samples)}
    if when == "trained":
        sweeps["means"] = Stability(cut=job.source.cuts, statistic="mean", samples=plan.samples)
    if job.architecture.name in plan.good:
        sweeps["gaussian"] = Stability(
            cut=job.source.cuts, delta=plan.deltas, interpolation="gaussian", samples=plan.samples
        )
    example = next(test.batches(3, 0, 3)).inputs
    assert isinstance(example, torch.Tensor)
    last = taps.find(model, example.to(taps.model_device(model)), statistics=statistics).names[-1]  # type: ignore[arg-type]
    return {
        f"{when}/{name}": _measured(job, model, test, task, plan, instrument, statistics, tell, layers=[last])
        for name, instrument in sweeps.items()
    }


def _measured(
    job: Job, model: Any, test: Dataset, task: Task, plan: Settings, instrument: Stability, statistics: str,
    tell: Any, layers: Sequence[str] | None = None,
) -> Profile:  # fmt: skip
    with warnings.catch_warnings():
        # Noise is not clipped: it would be shorter. A network that normalises its images says so of every batch.
        warnings.filterwarnings("ignore", message="Normalised: images must lie")
        return measure(
            model, test, instrument, layers=layers, seed=job.seed, order="given", batch=plan.batch, device=task.device,
            statistics=statistics, cache=task.out / "cache", progress=tell,  # type: ignore[arg-type]
            name=job.architecture.label,
        )  # fmt: skip


def _seconds(job: Job) -> float:
    """Thought, of one training with its measurements."""
    slower = 8.0 if job.treatment.fields == "worst" else 1.0
    return slower * job.architecture.seconds + 5


def report(
    results: Results,
    plan: Settings,
    sources: Sequence[Source],
    notes: Sequence[str],
    drawn: Sequence[Path],
    task: Task,
) -> Outcome:
    """The outcome, and its tables as files."""
    files = [*drawn, *tables.write_tables(results, plan, sources, task.out)]
    diverged = [f"{result.job.name} diverged; it is not measured." for result in results.all if result.diverged]
    return Outcome(
        tables.findings(results, plan, sources, paper=task.scale != "smoke"),
        claims.claims(results, plan, sources),
        tuple(files),
        (*notes, *diverged),
        machine="; ".join(sorted({result.machine for result in results.all})),
        seconds=busy_seconds(result.span for result in results.all),
    )
