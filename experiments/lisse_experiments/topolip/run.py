"""TopoLip, section 5: trains ten networks, measures how the shape of the data changes along depth, and robustness.

Paper     Is a robust model more topologically smooth? A comparison of attention and convolution [chen2024], section 5
Claim     Attention networks change the shape of their data more evenly along depth (smaller TopoLip) than convolutional
          ones, and the accuracy of networks with a small TopoLip drops less under corruption
Command   lisse reproduce topolip [--scale smoke | medium | paper] [--workers 4] [--units resnet18,vit_small:1]
          [--minutes 8] [--out FOLDER]; the same command goes on after a stop, and with --units or --minutes does a part
Hardware  smoke: one CPU core, 1 GB of memory; medium, paper: one GPU of 80 GB or more, 64 GB of memory, 60 GB of disk
Time      smoke: about a minute of one core; medium, paper: not run yet, thought to take about 20 minutes and 6 hours of
          an H200 a seed
Expect    smoke: what expected.json says; paper: Table 2 (clean accuracies 34.2, 12.0, 57.1, 85.7, 77.8, 85.2, 87.0,
          90.9, 91.4, 91.8 %), TopoLip of Convs above Attns and of ResNets above ViTs (Figures 1 and 3)
"""

from __future__ import annotations

import dataclasses
import functools
import multiprocessing
import os
import shutil
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from lisse.data import Dataset, load_data
from lisse.instruments import Topology
from lisse.models import load_model
from lisse.networks.zoo.vit import SplitHeadAttention
from lisse.profile import Profile
from lisse.run import measure
from lisse.training import train
from lisse_experiments.form import About, Outcome, Task, machine
from lisse_experiments.outputs import request_of
from lisse_experiments.steps import Steps, busy_seconds
from lisse_experiments.topolip import networks, tables
from lisse_experiments.topolip.accuracy import CorruptedAccuracy
from lisse_experiments.topolip.inputs import NormalisedInput
from lisse_experiments.topolip.networks import Network
from lisse_experiments.topolip.result import Result, keep_result, over_seeds, stored_result

if TYPE_CHECKING:
    from collections.abc import Sequence

ABOUT = About(
    paper="topolip",
    title="Is a robust model more topologically smooth?",
    reference="chen2024, section 5",
    claim="attention changes the shape of data more evenly along depth than convolution, and is more robust for it",
    needs={
        "smoke": "one CPU core, about a minute; digits, which come with scikit-learn",
        "medium": "a GPU (thought to take 20 minutes of an H200 a seed with --workers 4), 60 GB of disk; CIFAR-10",
        "paper": "a GPU (about 6 hours on an H200 a seed), 60 GB of disk; CIFAR-10",
    },
    folder=Path(__file__).parent,
    side_by_side=True,
    in_parts=True,
)


@dataclass(frozen=True)
class Settings:
    """What differs between the scales: data, networks and the size of the clouds.

    Table 2 is taken of the first ``judged`` test images (all without it); each network is trained from ``seeds`` seeds.
    """

    data: str
    networks: tuple[Network, ...]
    topology: Topology
    batch: int
    memory: str
    precision: str | None
    judged: int | None = None
    seeds: int = 1


@dataclass(frozen=True)
class Unit:
    """One training of a network with its measurements."""

    network: Network
    seed: int

    @property
    def name(self) -> str:
        """How it is asked for."""
        return f"{self.network.name}:{self.seed}"


def settings(scale: str, device: str = "cpu") -> Settings:
    """Of one scale.

    The smoke scale trains in float64: rounding differs from machine to machine, and in float32 a training carries that
    to the first digits of a change rate.
    """
    precision = "bf16-mixed" if device.startswith("cuda") else None
    if scale == "medium":
        return Settings(
            "cifar10", networks.in_minutes(), Topology(samples=500, clouds=5), 250, "24GiB", precision, 5000, seeds=3
        )
    if scale == "paper":
        return Settings("cifar10", networks.printed(), Topology(samples=500, clouds=5), 250, "4GiB", precision)
    return Settings("digits", networks.small(), Topology(samples=72, clouds=5), 364, "512MiB", "64-true")


def units(plan: Settings, seed: int, choice: tuple[str, ...] = ()) -> list[Unit]:
    """All of them, a seed before the next; or those of ``choice``: ``resnet18``, ``resnet18:1``."""
    everything = [Unit(network, seed + turn) for turn in range(plan.seeds) for network in plan.networks]
    names = {name for unit in everything for name in (unit.name, unit.network.name)}
    wrong = [text for text in choice if text not in names]
    if wrong:
        raise ValueError(
            f"reproduce: units must be networks or network:seed of {', '.join(n.name for n in plan.networks)}, got "
            f"{', '.join(wrong)}. One is {everything[0].name}."
        )
    return [unit for unit in everything if not choice or unit.name in choice or unit.network.name in choice]


def run(task: Task) -> Outcome:
    """Train and measure the networks of a scale, then draw the figures and fill the tables of all that is there.

    One after another, or ``task.workers`` side by side, a seed before the next. Trainings are folders under
    ``out/networks``, pieces of measurements lie in ``out/cache``, results in ``out/results``: what is there is not done
    again, and the last of these alone is enough for the tables. A network whose loss stops being a number is recorded
    as diverged and not measured.
    """
    from lisse_experiments.topolip import figures  # here, so that a missing matplotlib is told before hours of work

    plan = settings(task.scale, task.device)
    todo = units(plan, task.seed, task.units)
    end = None if task.minutes is None else time.time() + 60 * task.minutes
    if task.workers > 1:
        side_by_side(todo, task, plan, end)
    else:
        steps = Steps("topolip", task.progress, [s for u in todo for s in (u.network.training, u.network.measuring)])
        for index, unit in enumerate(todo, 1):
            do(unit, f"{index} of {len(todo)}, {unit.network.label}", task, plan, steps, end)
    everything = {unit: stored_result(unit.network, *request_for(unit, task, plan)) for unit in units(plan, task.seed)}
    seeds = {
        network: [result for unit, result in everything.items() if unit.network is network and result is not None]
        for network in plan.networks
    }
    results = [over_seeds(results) for results in seeds.values() if results]
    if not results:
        raise ValueError(f"reproduce: minutes must be enough for one network, got {task.minutes}. Give more.")
    missing = [unit.name for unit, result in everything.items() if result is None]
    notes = [f"Not done yet: {', '.join(missing)}. The same command goes on."] if missing else []
    outcome = report(results, task, notes, figures.draw(results, task.out))
    measured = [result for result in everything.values() if result is not None]
    machines = "; ".join(sorted({result.machine for result in measured}))
    return dataclasses.replace(outcome, machine=machines, seconds=busy_seconds(result.span for result in measured))


def side_by_side(todo: Sequence[Unit], task: Task, plan: Settings, end: float | None) -> None:
    """Have processes of their own leave the results under ``out``, seed by seed, the longest first.

    A network that fails stops none of the others; its error comes at the end.
    """
    context = multiprocessing.get_context("spawn")  # a CUDA context does not survive a fork
    quiet = dataclasses.replace(task, progress=None)
    order = sorted(todo, key=lambda unit: (unit.seed, -unit.network.training - unit.network.measuring))
    with ProcessPoolExecutor(task.workers, context, _one_of_several, (task.workers,)) as pool:
        futures = {pool.submit(_apart, unit, quiet, plan, end): unit for unit in order}
        errors: list[Exception] = []
        try:
            for index, future in enumerate(as_completed(futures), 1):
                if error := future.exception():
                    error.add_note(f"reproduce: this is {futures[future].name}; the others went on.")
                    errors.append(cast("Exception", error))
                task.tell(f"{task.workers} side by side", index, len(futures), "networks")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if errors:
        raise errors[0]


def _one_of_several(workers: int) -> None:
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))


def _apart(unit: Unit, task: Task, plan: Settings, end: float | None) -> None:
    do(unit, unit.name, task, plan, Steps("topolip", None, [1.0, 1.0]), end)


@functools.lru_cache(maxsize=1)
def pair_of(name: str) -> tuple[Dataset, Dataset]:
    """Training and test data, once for all networks of a process."""
    return load_data(name, split="train"), load_data(name, split="test")


def request_for(unit: Unit, task: Task, plan: Settings) -> tuple[Path, str]:
    """The file of a result, and what :func:`request_of` makes of all that was asked for."""
    recipe, shape = dataclasses.asdict(unit.network.recipe), repr(plan.topology)
    request = request_of(unit.network.spec, recipe, shape, plan.data, plan.judged, unit.seed)
    return task.out / "results" / f"{unit.network.name}-{unit.seed}.json", request


def do(unit: Unit, label: str, task: Task, plan: Settings, steps: Steps, end: float | None = None) -> None:
    """Train one network and measure it, unless that is done or would take beyond ``end``; keep what came out."""
    file, request = request_for(unit, task, plan)
    late = end is not None and time.time() + 0.8 * (unit.network.training + unit.network.measuring) > end
    if late or stored_result(unit.network, file, request) is not None:
        steps.skip()
        steps.skip()
        return
    start = time.time()
    result = result_of(unit, label, task, plan, *pair_of(plan.data), steps)
    keep_result(dataclasses.replace(result, machine=machine(task.device), span=(start, time.time())), file, request)


def result_of(unit: Unit, label: str, task: Task, plan: Settings, data: Dataset, test: Dataset, steps: Steps) -> Result:
    """Train one network and measure it, each unless it has been done."""
    network, seed = unit.network, unit.seed
    folder = task.out / "networks" / f"{network.name}-{seed}"
    model = load_model(network.with_seed(seed))
    model = model.double() if plan.precision == "64-true" else model
    tell = steps.step(label, f"training, {network.recipe.epochs} epochs", ["train"])
    attentions = [module for module in model.modules() if isinstance(module, SplitHeadAttention)]
    for attention in attentions:  # nobody looks at the matrices of a training
        attention.fused = task.device.startswith("cuda")
    training = train(
        model, data, recipe=network.recipe, seed=seed, device=task.device, test=test, out=folder,
        precision=plan.precision, checkpoint_seconds=120, progress=tell,
    )  # fmt: skip
    for attention in attentions:
        attention.fused = False
    # The weights are in a file of their own: the optimiser's state, twice 3.6 GB for ViT (large), is not needed again.
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    if task.device.startswith("cuda"):
        torch.cuda.empty_cache()  # the processes beside this one share the device
    steps.finish()
    if training.status == "diverged":
        steps.skip()
        return Result(network, training.log, None, training.step, training.steps)
    tell = steps.step(label, "measuring", ["topology: diagrams", "topology: distances", "accuracy"])
    cache, card = task.out / "cache", cast("Any", model.lisse)
    raw = NormalisedInput(
        **{field.name: getattr(plan.topology, field.name) for field in dataclasses.fields(plan.topology)},
        mean=tuple(card.mean), std=tuple(card.std),
    )  # fmt: skip
    shape = measure(
        model, test, [plan.topology, raw], seed=seed, order="given", batch=plan.batch, memory=plan.memory,
        device=task.device, cache=cache, progress=tell, name=network.label,
    )  # fmt: skip
    # Answers do not hang on the last digits: float32 is several times faster, and so are a GPU's shorter products.
    precise = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        scores = measure(
            model.float(), test.take(plan.judged) if plan.judged else test, CorruptedAccuracy(), seed=seed,
            order="given", batch=plan.batch, memory=plan.memory, device=task.device, cache=cache, progress=tell,
            name=network.label,
        )  # fmt: skip
    finally:
        torch.set_float32_matmul_precision(precise)
    steps.finish()
    return Result(network, training.log, Profile((*shape, *scores), shape.provenance), training.step, training.steps)


def report(results: Sequence[Result], task: Task, notes: Sequence[str], drawn: Sequence[Path]) -> Outcome:
    """The outcome, and its tables as files."""
    files = [*drawn, *tables.write_tables(results, task.out)]
    notes = [*notes, *(f"{r.network.label} {r.note}; it is not measured." for r in results if r.diverged)]
    for result in results:
        part = result.part("topology")
        warnings = [note for note in part.notes if not note.startswith("Means over")] if part else []
        notes += [f"{result.network.label}: {note}" for note in warnings]
    return Outcome(tables.findings(results, task.seed), tables.claims(results, task.seed), tuple(files), tuple(notes))
