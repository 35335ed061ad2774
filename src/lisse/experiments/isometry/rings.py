"""Section 3.1: two linked rings, classified without isometry, with it within each ring, and over all pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from lisse.data import generators
from lisse.experiments.form import Claim, Finding, Task
from lisse.maths.homology import persistence
from lisse.maths.intervals import across_clouds, share_interval
from lisse.maths.isometry import distortion, euclidean
from lisse.networks.isometric import LocallyIsometric, StackedIsometric, fit
from lisse.profile_file import load_arrays, save_arrays

#: Name, what a reader calls it, β, and whether all pairs count (global isometry): Figure 1A.
CONDITIONS = (
    ("plain", "β = 0", 0.0, False),
    ("local", "local isometry", 1.0, False),
    ("global", "global isometry", 1.0, True),
)
LABELS = {name: label for name, label, _, _ in CONDITIONS}
RINGS = ("first ring", "second ring")


@dataclass(frozen=True)
class Settings:
    """Points in all, full-batch epochs, seeds of the first weights, and fresh points to test on."""

    points: int
    epochs: int
    seeds: int
    fresh: int


def settings(scale: str) -> Settings:
    """The paper's: 10,000 epochs with one batch of all points; its number of points is not printed."""
    return Settings(200, 10_000, 3, 1000) if scale == "paper" else Settings(100, 700, 1, 400)


@dataclass(frozen=True)
class Ringed:
    """One trained network and what it does to the rings; ``holes``: the longest H1 bar of each ring."""

    condition: str
    seed: int
    network: LocallyIsometric
    losses: Sequence[float]
    accuracy: float
    fresh: float
    error: float
    between: float
    median_stretch: float
    holes: tuple[float, ...]
    gradient: float
    steepness: float


def points(task: Task) -> tuple[Tensor, Tensor]:
    """The rings that are trained on: points in float64, labels."""
    return _data(settings(task.scale).points, task.seed, "train")


def results(task: Task) -> list[Ringed]:
    """Train what is not there yet, and look at it."""
    chosen = settings(task.scale)
    x, y = points(task)
    fresh = _data(chosen.fresh, task.seed, "test")
    found = []
    total = len(CONDITIONS) * chosen.seeds
    for place, (name, _, beta, whole) in enumerate(CONDITIONS):
        for k in range(chosen.seeds):
            seed = task.seed * 1000 + k
            network = LocallyIsometric(3, classes=2, seed=seed).double()

            def train(
                network: LocallyIsometric = network, beta: float = beta, whole: bool = whole,
                done: int = place * chosen.seeds + k,
            ) -> list[float]:  # fmt: skip
                def watch(epoch: int, _: Sequence[float]) -> None:
                    if epoch % 50 == 0:
                        task.tell("rings", done * chosen.epochs + epoch, total * chosen.epochs, "epochs")

                return fit(network, x, y, epochs=chosen.epochs, beta=beta, whole=whole, watch=watch)

            file = task.out / "rings" / f"{name}-{chosen.points}-{chosen.epochs}-{seed}.weights"
            losses = kept(file, network, train)
            found.append(_looked_at(name, seed, network, losses, x, y, fresh))
    return found


def kept(
    file: Path, network: LocallyIsometric | StackedIsometric, train: Callable[[], Sequence[float]]
) -> Sequence[float]:
    """Train a network, or take its weights out of ``file``, where an earlier start has left them; the losses."""
    if file.is_file():
        arrays = load_arrays(file)
        losses = arrays.pop("losses")
        network.load_state_dict({name: torch.from_numpy(value) for name, value in arrays.items()})
        network.eval()
        return [float(loss) for loss in losses]
    found = train()
    file.parent.mkdir(parents=True, exist_ok=True)
    weights = {name: value.numpy() for name, value in network.state_dict().items()}
    save_arrays({**weights, "losses": torch.tensor(found, dtype=torch.float64).numpy()}, file)
    return found


def longest_bar(cloud: Tensor) -> float:
    """Length of the longest bar of H1 (Rips, diameter convention); 0 where there is none."""
    bars = persistence(cloud)[1]
    return float((bars[:, 1] - bars[:, 0]).max()) if len(bars) else 0.0


def findings(task: Task, found: Sequence[Ringed]) -> list[Finding]:
    """The numbers behind Figure 2, and those that decide whether the explanation of section 3.2 holds."""
    x, y = points(task)
    chosen = settings(task.scale)
    smoke = task.scale == "smoke"
    made = [
        Finding(f"rings/input/hole/{ring}", f"longest H1 bar, {name}, input", longest_bar(x[y == ring]),
                n=int((y == ring).sum()), within=0.02)
        for ring, name in enumerate(RINGS)
    ]  # fmt: skip
    for name, label, _, _ in CONDITIONS:
        some = [one for one in found if one.condition == name]
        for key, says, values, within in (
            ("accuracy", "accuracy", [one.accuracy for one in some], 0.02),
            ("error", "relative error of distances within rings", [one.error for one in some], 0.15 if smoke else 0.05),
            ("between", "relative error of distances between rings", [one.between for one in some], None),
            ("stretch", "median stretch within rings", [one.median_stretch for one in some], 0.25),
            *(
                (f"hole/{ring}", f"longest H1 bar, {of}", [one.holes[ring] for one in some], 0.4)
                for ring, of in enumerate(RINGS)
            ),
            ("gradient", "median ‖∇ cross-entropy‖₁ in the input", [one.gradient for one in some], None),
            ("jacobian", "largest ‖∇Φ‖ at the points", [one.steepness for one in some], None),
        ):
            low, high = _interval(values)
            made.append(Finding(
                f"rings/{name}/{key}", f"rings, {label}: {says}", sum(values) / len(values), low, high, len(values),
                within=within,
            ))  # fmt: skip
        share = sum(one.fresh for one in some) / len(some)
        ends = share_interval(share, chosen.fresh)
        made.append(Finding(
            f"rings/{name}/fresh", f"rings, {label}: accuracy on fresh points", share, float(ends.low),
            float(ends.high), chosen.fresh, within=0.05,
        ))  # fmt: skip
    return made


def claims(task: Task, found: Sequence[Ringed]) -> list[Claim]:
    """What section 3.1 says, and what section 3.2 leads one to expect."""
    x, y = points(task)
    input_holes = [longest_bar(x[y == ring]) for ring in (0, 1)]
    plain, local, glob = ([one for one in found if one.condition == name] for name, _, _, _ in CONDITIONS)

    def shares(some: Sequence[Ringed]) -> list[float]:
        return [hole / before for one in some for hole, before in zip(one.holes, input_holes, strict=True)]

    def said(some: Sequence[Ringed]) -> str:
        kept_ = shares(some)
        return f"{min(kept_):.2f} … {max(kept_):.2f} of the input's longest bar"

    worst = min(one.accuracy for one in local)
    gradients = [sum(one.gradient for one in some) / len(some) for some in (plain, local)]
    medians = [one.median_stretch for one in plain]
    return [
        Claim("rings/untangled", "with the isometric loss within rings, both are classified (accuracy over 0.99)",
              worst > 0.99, f"worst {worst:.4f}"),
        Claim("rings/survive", "and both rings survive: the longest bar of H1 keeps half of its length or more",
              min(shares(local)) >= 0.5, said(local)),
        Claim("rings/lost", "without it they are lost: it keeps less than half", max(shares(plain)) < 0.5, said(plain)),
        Claim("rings/global-survive", "with global isometry they survive as well", min(shares(glob)) >= 0.5, said(glob),
              theirs=False),
        Claim("rings/closer", "cross-entropy alone brings points of a ring closer together (median stretch under 1)",
              max(medians) < 1, f"{min(medians):.3g} … {max(medians):.3g}"),
        Claim("rings/gradient", "isometry keeps input gradients small: smaller than without it",
              gradients[1] < gradients[0], f"median, mean over seeds: {gradients[1]:.3g} against {gradients[0]:.3g}"),
    ]  # fmt: skip


def _data(n: int, seed: int, split: str) -> tuple[Tensor, Tensor]:
    data = generators.rings(n, seed=seed, split=split)
    assert isinstance(data.inputs, Tensor)
    assert data.targets is not None
    return data.inputs.double(), data.targets


def _looked_at(
    condition: str, seed: int, network: LocallyIsometric, losses: Sequence[float], x: Tensor, y: Tensor,
    fresh: tuple[Tensor, Tensor],
) -> Ringed:  # fmt: skip
    with torch.no_grad():
        z = network.representation(x)
        right = (network(x).argmax(1) == y).double().mean()
        new = (network(fresh[0]).argmax(1) == fresh[1]).double().mean()
    before, after, same = euclidean(x), euclidean(z), y[:, None] == y[None]
    within, between = distortion(before, after, same), distortion(before, after, ~same)
    given = x.clone().requires_grad_()
    entropy = functional.cross_entropy(network(given), y, reduction="sum")
    (gradient,) = torch.autograd.grad(entropy, given)
    jacobians = torch.func.vmap(torch.func.jacrev(lambda one: network.representation(one[None])[0]))(x)
    return Ringed(
        condition, seed, network, losses, float(right), float(new), within.error, between.error, within.stretch[1],
        tuple(longest_bar(z[y == ring]) for ring in (0, 1)), float(gradient.abs().sum(1).median()),
        float(torch.linalg.matrix_norm(jacobians.detach(), ord=2).max()),
    )  # fmt: skip


def _interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    if len(values) < 3:
        return None, None
    ends = across_clouds(torch.tensor(values, dtype=torch.float64))
    return float(ends.low), float(ends.high)
