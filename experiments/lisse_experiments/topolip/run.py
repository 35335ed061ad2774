"""TopoLip, section 5: trains ten networks, measures how the shape of the data changes along depth, and robustness.

Paper     Is a robust model more topologically smooth? A comparison of attention and convolution [chen2024], section 5
Claim     Attention networks change the shape of their data more evenly along depth (smaller TopoLip) than convolutional
          ones, and the accuracy of networks with a small TopoLip drops less under corruption
Command   lisse reproduce topolip [--scale smoke | paper] [--out FOLDER]; the same command goes on after a stop
Hardware  smoke: one CPU core, 1 GB of memory; paper: one GPU of 80 GB or more, 16 GB of memory, 60 GB of disk
Time      smoke: about a minute of one core; paper: not run yet, thought to take about 6 hours on an H200
Expect    smoke: what expected.json says; paper: Table 2 (clean accuracies 34.2, 12.0, 57.1, 85.7, 77.8, 85.2, 87.0,
          90.9, 91.4, 91.8 %), TopoLip of Convs above Attns and of ResNets above ViTs (Figures 1 and 3)
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lisse.data import Dataset, load_data
from lisse.instruments import Topology
from lisse.models import load_model
from lisse.profile import Profile
from lisse.run import measure
from lisse.training import train
from lisse_experiments.form import About, Outcome, Task
from lisse_experiments.steps import Steps
from lisse_experiments.topolip import networks, tables
from lisse_experiments.topolip.accuracy import CorruptedAccuracy
from lisse_experiments.topolip.networks import Network
from lisse_experiments.topolip.result import Result

if TYPE_CHECKING:
    from collections.abc import Sequence

ABOUT = About(
    paper="topolip",
    title="Is a robust model more topologically smooth?",
    reference="chen2024, section 5",
    claim="attention changes the shape of data more evenly along depth than convolution, and is more robust for it",
    needs={
        "smoke": "one CPU core, about a minute; digits, which come with scikit-learn",
        "paper": "a GPU (about 6 hours on an H200), 60 GB of disk; CIFAR-10",
    },
    folder=Path(__file__).parent,
)


@dataclass(frozen=True)
class Settings:
    """What differs between the scales: data, networks and the size of the clouds."""

    data: str
    networks: tuple[Network, ...]
    topology: Topology
    batch: int
    memory: str
    precision: str | None


def settings(scale: str, device: str = "cpu") -> Settings:
    """Of one scale.

    The smoke scale trains in float64: rounding differs from machine to machine, and in float32 a training carries that
    to the first digits of a change rate.
    """
    if scale == "paper":
        precision = "bf16-mixed" if device.startswith("cuda") else None
        return Settings("cifar10", networks.printed(), Topology(samples=500, clouds=5), 250, "4GiB", precision)
    return Settings("digits", networks.small(), Topology(samples=72, clouds=5), 364, "512MiB", "64-true")


def run(task: Task) -> Outcome:
    """Train and measure the networks of a scale one after another, then draw the figures and fill the tables.

    Trainings are folders under ``out/networks``, pieces of measurements lie in ``out/cache``: what is there is not done
    again. A network whose loss stops being a number is recorded as diverged and not measured.
    """
    from lisse_experiments.topolip import figures  # here, so that a missing matplotlib is told before hours of work

    plan = settings(task.scale, task.device)
    data, test = load_data(plan.data, split="train"), load_data(plan.data, split="test")
    steps = Steps(
        "topolip", task.progress, [s for network in plan.networks for s in (network.training, network.measuring)]
    )
    results = []
    for index, network in enumerate(plan.networks, 1):
        label = f"{index} of {len(plan.networks)}, {network.label}"
        results.append(result_of(network, label, task, plan, data, test, steps))
    return report(results, task, plan, figures.draw(results, task.out))


def result_of(
    network: Network, label: str, task: Task, plan: Settings, data: Dataset, test: Dataset, steps: Steps
) -> Result:
    """Train one network and measure it, each unless it has been done."""
    folder = task.out / "networks" / network.name
    model = load_model(network.with_seed(task.seed))
    model = model.double() if plan.precision == "64-true" else model
    tell = steps.step(label, f"training, {network.recipe.epochs} epochs", ["train"])
    training = train(
        model, data, recipe=network.recipe, seed=task.seed, device=task.device, test=test, out=folder,
        precision=plan.precision, progress=tell,
    )  # fmt: skip
    # The weights are in a file of their own: the optimiser's state, twice 3.6 GB for ViT (large), is not needed again.
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    steps.finish()
    if training.status == "diverged":
        steps.skip()
        return Result(network, training.log, None, training.step, training.steps)
    tell = steps.step(label, "measuring", ["topology: diagrams", "topology: distances", "accuracy"])
    cache = task.out / "cache"
    shape = measure(
        model, test, plan.topology, seed=task.seed, order="given", batch=plan.batch, memory=plan.memory,
        device=task.device, cache=cache, progress=tell, name=network.label,
    )  # fmt: skip
    # Answers do not hang on the last digits, and float32 is several times faster.
    scores = measure(
        model.float(), test, CorruptedAccuracy(), seed=task.seed, order="given", batch=plan.batch, memory=plan.memory,
        device=task.device, cache=cache, progress=tell, name=network.label,
    )  # fmt: skip
    profile = Profile((*shape, *scores), shape.provenance)
    profile.save(task.out / "profiles" / f"{network.name}.profile")
    steps.finish()
    return Result(network, training.log, profile, training.step, training.steps)


def report(results: Sequence[Result], task: Task, plan: Settings, drawn: Sequence[Path]) -> Outcome:
    """The outcome, and its tables as files."""
    files = [*drawn, *tables.write_tables(results, task.out)]
    notes = [f"{result.network.label} {result.note}; it is not measured." for result in results if result.diverged]
    for result in results:
        part = result.part("topology")
        warnings = [note for note in part.notes if not note.startswith("Means over")] if part else []
        notes += [f"{result.network.label}: {note}" for note in warnings]
    return Outcome(tables.findings(results, task.seed), tables.claims(results, task.seed), tuple(files), tuple(notes))
