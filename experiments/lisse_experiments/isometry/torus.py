"""Section 3.4: a torus cut into cylinders, coarsely at first and then finer, by a stack of three stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lisse.data import generators
from lisse.maths.intervals import share_interval
from lisse.maths.isometry import distortion, euclidean
from lisse.networks.isometric import LocallyIsometric, StackedIsometric, fit
from lisse_experiments.form import Claim, Finding, Task
from lisse_experiments.isometry.rings import stored_losses

LEVELS = (2, 4, 8)
BETA = 100.0
Noise = Literal["variance", "std"]
#: The paper's 𝒩(0, 0.001) names a variance; its program uses 0.001 as the standard deviation.
READINGS: tuple[tuple[Noise, str], ...] = (
    ("variance", "noise of variance 0.001"),
    ("std", "noise of standard deviation 0.001"),
)


@dataclass(frozen=True)
class Settings:
    """Points, full-batch epochs, fresh points to test on, and the readings of the noise."""

    points: int
    epochs: int
    fresh: int
    noises: tuple[Noise, ...]


def settings(scale: str) -> Settings:
    """The paper's: 1,600 points, 10,000 epochs with one batch."""
    return Settings(1600, 10_000, 4000, ("variance", "std")) if scale == "paper" else Settings(320, 500, 1000, ("std",))


@dataclass(frozen=True)
class Cut:
    """A trained stack: per level accuracy on the points and on fresh ones, and distance errors within its classes.

    ``error`` compares with the input of the stage itself, ``overall`` with the torus.
    """

    noise: Noise
    network: StackedIsometric
    losses: Sequence[float]
    x: Tensor
    targets: tuple[Tensor, ...]
    accuracy: tuple[float, ...]
    fresh: tuple[float, ...]
    error: tuple[float, ...]
    overall: tuple[float, ...]


def results(task: Task) -> list[Cut]:
    """Train what is not there yet, one stack for each reading of the noise, and look at it."""
    plan = settings(task.scale)
    cuts = []
    for index, noise in enumerate(plan.noises):
        x, targets = _data(plan.points, noise, task.seed, "train")
        stages = [
            LocallyIsometric(3 if k == 0 else 20, classes=level, seed=task.seed * 1000 + k)
            for k, level in enumerate(LEVELS)
        ]
        network = StackedIsometric(stages, classifier="shared", seed=task.seed * 1000 + len(LEVELS)).double()

        def train(
            network: StackedIsometric = network,
            x: Tensor = x,
            targets: tuple[Tensor, ...] = targets,
            finished: int = index,
        ) -> list[float]:
            def watch(epoch: int, _: Sequence[float]) -> None:
                if epoch % 20 == 0:
                    task.tell("torus", finished * plan.epochs + epoch, len(plan.noises) * plan.epochs, "epochs")

            return fit(network, x, targets, epochs=plan.epochs, beta=BETA, watch=watch)

        file = task.out / "torus" / f"{noise}-{plan.points}-{plan.epochs}-{task.seed}.weights"
        losses = stored_losses(file, network, train)
        fresh = _data(plan.fresh, noise, task.seed, "test")
        with torch.no_grad():
            hidden = network.representations(x)
            right = [_share(a, b) for a, b in zip(network.logits(x), targets, strict=True)]
            new = [_share(a, b) for a, b in zip(network.logits(fresh[0]), fresh[1], strict=True)]
        torus = euclidean(x)
        error, overall = [], []
        for k, labels in enumerate(targets):
            within, after = labels[:, None] == labels[None], euclidean(hidden[k])
            before = torus if k == 0 else euclidean(hidden[k - 1])
            error.append(distortion(before, after, within).error)
            overall.append(distortion(torus, after, within).error)
        cuts.append(Cut(
            noise, network, losses, x, targets, tuple(right), tuple(new), tuple(error), tuple(overall)
        ))  # fmt: skip
    return cuts


def findings(task: Task, cuts: Sequence[Cut]) -> list[Finding]:
    """Accuracy and distance errors of every stage."""
    plan = settings(task.scale)
    words = dict(READINGS)
    numbers = []
    for cut in cuts:
        for k, level in enumerate(LEVELS):
            last = k == len(LEVELS) - 1
            where, says = f"torus/{cut.noise}/{level}", f"torus, {words[cut.noise]}, {level} parts"
            for key, name, share, n in (
                ("accuracy", "accuracy", cut.accuracy[k], plan.points),
                ("fresh", "accuracy on fresh points", cut.fresh[k], plan.fresh),
            ):
                ends = share_interval(share, n)
                printed = 0.99 if last and key == "accuracy" else None
                numbers.append(Finding(
                    f"{where}/{key}", f"{says}: {name}", share, float(ends.low), float(ends.high), n, theirs=printed,
                    source="§3.4 (over 0.99)" if printed else "", within=0.15 if task.scale == "smoke" else 0.02,
                ))  # fmt: skip
            pairs = int(torch.bincount(cut.targets[k]).double().square().sum())
            numbers.append(Finding(
                f"{where}/error", f"{says}: relative error of distances within parts, from the stage's input",
                cut.error[k], n=pairs, within=0.15,
            ))  # fmt: skip
            numbers.append(Finding(
                f"{where}/overall", f"{says}: the same, from the torus", cut.overall[k], n=pairs, within=0.15
            ))  # fmt: skip
    return numbers


def claims(cuts: Sequence[Cut]) -> list[Claim]:
    """The high classification rate of section 3.4, for both readings of the noise."""
    words = dict(READINGS)
    sentences = []
    for cut in cuts:
        sentences.append(Claim(
            f"torus/{cut.noise}/accuracy",
            f"the stack separates the finest parts (accuracy over 0.99), {words[cut.noise]}",
            cut.accuracy[-1] > 0.99, f"{cut.accuracy[-1]:.4f}; on fresh points {cut.fresh[-1]:.4f}",
        ))  # fmt: skip
        sentences.append(Claim(
            f"torus/{cut.noise}/isometry", f"and every stage keeps distances within parts (error under 0.1), "
            f"{words[cut.noise]}", max(cut.error) < 0.1, ", ".join(f"{error:.3f}" for error in cut.error),
        ))  # fmt: skip
    return sentences


def _data(n: int, noise: Noise, seed: int, split: str) -> tuple[Tensor, tuple[Tensor, ...]]:
    data = generators.torus(n, sectors=LEVELS[-1], noise_is=noise, seed=seed, split=split)
    assert isinstance(data.inputs, Tensor)
    assert data.targets is not None
    targets = tuple(generators.coarser(data.targets, LEVELS[-1], level) for level in LEVELS)
    return data.inputs.double(), targets


def _share(logits: Tensor, labels: Tensor) -> float:
    return float((logits.argmax(1) == labels).double().mean())
