"""Section 3.4: a torus cut into cylinders, coarsely at first and then finer, by a stack of three stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lisse.data import generators
from lisse.experiments.form import Claim, Finding, Task
from lisse.experiments.isometry.rings import kept
from lisse.maths.intervals import share_interval
from lisse.maths.isometry import distortion, euclidean
from lisse.networks.isometric import LocallyIsometric, StackedIsometric, fit

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
    chosen = settings(task.scale)
    found = []
    for place, noise in enumerate(chosen.noises):
        x, targets = _data(chosen.points, noise, task.seed, "train")
        stages = [
            LocallyIsometric(3 if k == 0 else 20, classes=level, seed=task.seed * 1000 + k)
            for k, level in enumerate(LEVELS)
        ]
        network = StackedIsometric(stages, classifier="shared", seed=task.seed * 1000 + len(LEVELS)).double()

        def train(
            network: StackedIsometric = network, x: Tensor = x, targets: tuple[Tensor, ...] = targets, done: int = place
        ) -> list[float]:
            def watch(epoch: int, _: Sequence[float]) -> None:
                if epoch % 20 == 0:
                    task.tell("torus", done * chosen.epochs + epoch, len(chosen.noises) * chosen.epochs, "epochs")

            return fit(network, x, targets, epochs=chosen.epochs, beta=BETA, watch=watch)

        file = task.out / "torus" / f"{noise}-{chosen.points}-{chosen.epochs}-{task.seed}.weights"
        losses = kept(file, network, train)
        fresh = _data(chosen.fresh, noise, task.seed, "test")
        with torch.no_grad():
            hidden = network.representations(x)
            right = [_share(a, b) for a, b in zip(network.logits(x), targets, strict=True)]
            new = [_share(a, b) for a, b in zip(network.logits(fresh[0]), fresh[1], strict=True)]
        whole = euclidean(x)
        error, overall = [], []
        for k, labels in enumerate(targets):
            same, after = labels[:, None] == labels[None], euclidean(hidden[k])
            before = whole if k == 0 else euclidean(hidden[k - 1])
            error.append(distortion(before, after, same).error)
            overall.append(distortion(whole, after, same).error)
        found.append(Cut(
            noise, network, losses, x, targets, tuple(right), tuple(new), tuple(error), tuple(overall)
        ))  # fmt: skip
    return found


def findings(task: Task, found: Sequence[Cut]) -> list[Finding]:
    """Accuracy and distance errors of every stage."""
    chosen = settings(task.scale)
    words = dict(READINGS)
    made = []
    for cut in found:
        for k, level in enumerate(LEVELS):
            last = k == len(LEVELS) - 1
            where, says = f"torus/{cut.noise}/{level}", f"torus, {words[cut.noise]}, {level} parts"
            for key, name, share, n in (
                ("accuracy", "accuracy", cut.accuracy[k], chosen.points),
                ("fresh", "accuracy on fresh points", cut.fresh[k], chosen.fresh),
            ):
                ends = share_interval(share, n)
                theirs = 0.99 if last and key == "accuracy" else None
                made.append(Finding(
                    f"{where}/{key}", f"{says}: {name}", share, float(ends.low), float(ends.high), n, theirs=theirs,
                    source="§3.4 (over 0.99)" if theirs else "", within=0.15 if task.scale == "smoke" else 0.02,
                ))  # fmt: skip
            pairs = int(torch.bincount(cut.targets[k]).double().square().sum())
            made.append(Finding(
                f"{where}/error", f"{says}: relative error of distances within parts, from the stage's input",
                cut.error[k], n=pairs, within=0.15,
            ))  # fmt: skip
            made.append(Finding(
                f"{where}/overall", f"{says}: the same, from the torus", cut.overall[k], n=pairs, within=0.15
            ))  # fmt: skip
    return made


def claims(found: Sequence[Cut]) -> list[Claim]:
    """The high classification rate of section 3.4, for both readings of the noise."""
    words = dict(READINGS)
    made = []
    for cut in found:
        made.append(Claim(
            f"torus/{cut.noise}/accuracy",
            f"the stack separates the finest parts (accuracy over 0.99), {words[cut.noise]}",
            cut.accuracy[-1] > 0.99, f"{cut.accuracy[-1]:.4f}; on fresh points {cut.fresh[-1]:.4f}",
        ))  # fmt: skip
        made.append(Claim(
            f"torus/{cut.noise}/isometry", f"and every stage keeps distances within parts (error under 0.1), "
            f"{words[cut.noise]}", max(cut.error) < 0.1, ", ".join(f"{error:.3f}" for error in cut.error),
        ))  # fmt: skip
    return made


def _data(n: int, noise: Noise, seed: int, split: str) -> tuple[Tensor, tuple[Tensor, ...]]:
    data = generators.torus(n, sectors=LEVELS[-1], noise_is=noise, seed=seed, split=split)
    assert isinstance(data.inputs, Tensor)
    assert data.targets is not None
    targets = tuple(generators.coarser(data.targets, LEVELS[-1], level) for level in LEVELS)
    return data.inputs.double(), targets


def _share(logits: Tensor, labels: Tensor) -> float:
    return float((logits.argmax(1) == labels).double().mean())
