"""How the networks of section 3.3 stand attacks: counts of right answers, and the size of the gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from lisse.data import Dataset
from lisse.networks.attack import attack, right
from lisse.networks.attack.gradient import gradient_norms, input_gradients
from lisse.networks.attack.losses import lost_margins
from lisse.networks.isometric import isometric_loss
from lisse.profile_file import load_arrays, save_arrays
from lisse_experiments.form import Task
from lisse_experiments.isometry.mnist.networks import Reading, Trained, lesson, pixels

Attack = Literal["fgsm", "pgd", "authors", "error"]
#: ``error`` is the authors' attack with β left out of what it climbs: the cross-entropy alone.
ATTACKS: tuple[Attack, ...] = ("fgsm", "pgd", "authors", "error")
#: ε of FGSM and step of PGD: logarithmic from 0.01 to 1, as in the paper's Figure 3.
SIZES = tuple(round(float(size), 6) for size in torch.logspace(-2, 0, 10, dtype=torch.float64))
BALL, STEPS = 0.5, 10
_BATCH = 500
_FEW = 2000
_AUTHORS_BATCH = 100  # their loss compares the images of a batch


@dataclass(frozen=True)
class Stood:
    """What one network stood: how many of ``n`` test images it gets right, clean and under attack.

    ``curves[attack, clipped]`` ``[10]`` counts at :data:`SIZES`; ``steepness`` the ℓ1 and ``slope`` the ℓ2 norms of
    the test images' gradients. ``margins`` are those of the true class over the runner-up, and ``margin_slopes`` the ℓ1
    norms of their gradients, which no saturated softmax makes small.
    """

    reading: Reading
    beta: float
    seed: int
    n: int
    clean: int
    curves: Mapping[tuple[Attack, bool], Tensor]
    steepness: Tensor
    slope: Tensor
    distortion: float
    margins: Tensor
    margin_slopes: Tensor

    @property
    def clear(self) -> tuple[Tensor, Tensor]:
        """Margins of the right answers, and the norms of their gradients."""
        return self.margins[self.margins > 0], self.margin_slopes[self.margins > 0]

    def share(self, attack: Attack, clipped: bool) -> Tensor:
        """Accuracies ``[10]``."""
        return self.curves[attack, clipped].double() / self.tried(attack)

    def tried(self, attack: Attack) -> int:
        """How many images an attack was tried on."""
        return min(self.n, _FEW) if attack == "pgd" else self.n


def stood(task: Task, networks: Sequence[Trained], test: Dataset, *, name: str) -> list[Stood]:
    """Attack all networks, those that have not been yet; a file each, ``out/mnist/attacks``."""
    folder = task.out / "mnist" / "attacks"
    folder.mkdir(parents=True, exist_ok=True)
    assert test.targets is not None
    images, labels = pixels(test), test.targets
    survivors = []
    for index, network in enumerate(networks):
        file = folder / f"{network.reading}-beta{network.beta:g}-{name}-{len(test)}-seed{network.seed}-margins.arrays"
        if not file.is_file():

            def tell(share: float, index: int = index) -> None:
                task.tell("mnist: attacks", index + share, len(networks), "networks")

            _attacked(network, images, labels, file, tell)
        survivors.append(_loaded(network, file, len(test)))
    return survivors


def over_beta(results: Sequence[Stood], reading: Reading, beta: float) -> list[Stood]:
    """Those of one loss and one β, over seeds."""
    return [result for result in results if result.reading == reading and result.beta == beta]


def _attacked(trained: Trained, images: Tensor, labels: Tensor, file: Path, tell: Callable[[float], None]) -> None:
    """All attacks on one network, in float32: answers do not hang on the last digits."""
    network = trained.network().float()
    how = lesson(trained.reading, trained.beta, 1)

    def objective(x: Tensor, logits: Tensor, y: Tensor) -> Tensor:
        isometric = isometric_loss(x, network[:-1](x), y, scaling=trained.reading)
        return functional.cross_entropy(logits, y) + how.beta * isometric

    answers: dict[str, Tensor] = {"clean": right(network, images, labels).sum()}
    slopes = input_gradients(network, images, labels, bounds=None, batch=_BATCH)
    answers["steepness"], answers["slope"] = gradient_norms(slopes)
    answers["distortion"] = distortion(network, images, labels)
    answers["margins"] = -lost_margins(network(images), labels)
    answers["margin_slopes"], _ = gradient_norms(
        input_gradients(network, images, labels, bounds=None, objective=lambda _, logits: lost_margins(logits, labels))
    )
    # Gradients at the clean images serve all sizes: FGSM's, and those of the authors' loss, in batches as theirs.
    mixed = torch.cat([
        input_gradients(network, x, y, bounds=None, objective=functools.partial(objective, y=y))
        for x, y in zip(images.split(_AUTHORS_BATCH), labels.split(_AUTHORS_BATCH), strict=True)
    ]).sign_()  # fmt: skip
    steep = slopes.sign_()
    few = _sample_indices(len(images))
    total, count = 2 * len(SIZES), 0
    for clipped in (True, False):
        bounds = (0.0, 1.0) if clipped else None
        counts: dict[str, list[Tensor]] = {name: [] for name in ATTACKS}
        for size in SIZES:
            far = min(STEPS * size, BALL)
            for name, signs, reach in (("fgsm", steep, size), ("authors", mixed, far), ("error", steep, far)):
                counts[name].append(_left(network, images, labels, signs, reach, clipped=clipped))
            moved = attack(
                network, images[few], labels[few], method="pgd", norm="linf", eps=BALL, step=size, steps=STEPS,
                bounds=bounds, batch=_BATCH, loss="cross-entropy", keep="last",
            )  # fmt: skip
            counts["pgd"].append(right(network, moved, labels[few]).sum())
            count += 1
            tell(count / total)
        for name, column in counts.items():
            answers[f"{name}/{'clipped' if clipped else 'free'}"] = torch.stack(column)
    save_arrays({name: value.numpy() for name, value in answers.items()}, file)


def _left(network: nn.Module, images: Tensor, labels: Tensor, signs: Tensor, reach: float, *, clipped: bool) -> Tensor:
    """How many are right after a step of ``reach``; a few images at a time, which stay near the processor."""
    total = torch.zeros((), dtype=torch.int64)
    for x, y, sign in zip(images.split(_BATCH), labels.split(_BATCH), signs.split(_BATCH), strict=True):
        moved = torch.add(x, sign, alpha=reach)
        total += right(network, moved.clamp_(0, 1) if clipped else moved, y).sum()
    return total


def _sample_indices(n: int) -> Tensor:
    """The images that PGD, which costs ten gradients for every point of its curve, is tried on: the same for all."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(0))[:_FEW].sort().values


def distortion(network: nn.Sequential, images: Tensor, labels: Tensor) -> Tensor:
    """The mean relative error of distances within classes, over all pairs among the first 1,000 images."""
    x, y = images[:1000], labels[:1000]
    before, after = torch.cdist(x, x), torch.cdist(z := network[:-1](x), z)
    within = (y[:, None] == y).triu(1) & (before > 0)
    return ((after[within] - before[within]).abs() / before[within]).double().mean()


def _loaded(trained: Trained, file: Path, n: int) -> Stood:
    arrays = {name: torch.from_numpy(array) for name, array in load_arrays(file).items()}
    curves = {
        (name, clip): arrays[f"{name}/{'clipped' if clip else 'free'}"] for name in ATTACKS for clip in (True, False)
    }
    return Stood(
        trained.reading,
        trained.beta,
        trained.seed,
        n,
        int(arrays["clean"]),
        curves,
        arrays["steepness"],
        arrays["slope"],
        float(arrays["distortion"]),
        arrays["margins"],
        arrays["margin_slopes"],
    )
