"""Section 3.1: two linked rings, classified without isometry, with it within each ring, and over all pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from lisse.data import generators
from lisse.maths.homology import persistence
from lisse.maths.intervals import across_clouds, share_interval
from lisse.maths.isometry import distortion, euclidean
from lisse.networks.isometric import LocallyIsometric, StackedIsometric, fit
from lisse.profile_file import load_arrays, save_arrays
from lisse_experiments.form import Claim, Finding, Task

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
    plan = settings(task.scale)
    x, y = points(task)
    fresh = _data(plan.fresh, task.seed, "test")
    networks = []
    total = len(CONDITIONS) * plan.seeds
    for index, (name, _, beta, all_pairs) in enumerate(CONDITIONS):
        for k in range(plan.seeds):
            seed = task.seed * 1000 + k
            network = LocallyIsometric(3, classes=2, seed=seed).double()

            def train(
                network: LocallyIsometric = network, beta: float = beta, all_pairs: bool = all_pairs,
                finished: int = index * plan.seeds + k,
            ) -> list[float]:  # fmt: skip
                def watch(epoch: int, _: Sequence[float]) -> None:
                    if epoch % 50 == 0:
                        task.tell("rings", finished * plan.epochs + epoch, total * plan.epochs, "epochs")

                return fit(network, x, y, epochs=plan.epochs, beta=beta, all_pairs=all_pairs, watch=watch)

            file = task.out / "rings" / f"{name}-{plan.points}-{plan.epochs}-{seed}.weights"
            losses = stored_losses(file, network, train)
            networks.append(_looked_at(name, seed, network, losses, x, y, fresh))
    return networks


def stored_losses(
    file: Path, network: LocallyIsometric | StackedIsometric, train: Callable[[], Sequence[float]]
) -> Sequence[float]:
    """Train a network, or take its weights out of ``file``, where an earlier start has left them; the losses."""
    if file.is_file():
        arrays = load_arrays(file)
        series = arrays.pop("losses")
        network.load_state_dict({name: torch.from_numpy(value) for name, value in arrays.items()})
        network.eval()
        return [float(loss) for loss in series]
    losses = train()
    file.parent.mkdir(parents=True, exist_ok=True)
    weights = {name: value.numpy() for name, value in network.state_dict().items()}
    save_arrays({**weights, "losses": torch.tensor(losses, dtype=torch.float64).numpy()}, file)
    return losses


def longest_bar(cloud: Tensor) -> float:
    """Length of the longest bar of H1 (Rips, diameter convention); 0 where there is none."""
    bars = persistence(cloud)[1]
    return float((bars[:, 1] - bars[:, 0]).max()) if len(bars) else 0.0


def findings(task: Task, networks: Sequence[Ringed]) -> list[Finding]:
    """The numbers behind Figure 2, and those that decide whether the explanation of section 3.2 holds."""
    x, y = points(task)
    plan = settings(task.scale)
    smoke = task.scale == "smoke"
    numbers = [
        Finding(f"rings/input/hole/{ring}", f"longest H1 bar, {name}, input", longest_bar(x[y == ring]),
                n=int((y == ring).sum()), within=0.02)
        for ring, name in enumerate(RINGS)
    ]  # fmt: skip
    for name, label, _, _ in CONDITIONS:
        ringed = [network for network in networks if network.condition == name]
        for key, says, values, within in (
            ("accuracy", "accuracy", [network.accuracy for network in ringed], 0.02),
            (
                "error",
                "relative error of distances within rings",
                [network.error for network in ringed],
                0.15 if smoke else 0.05,
            ),
            ("between", "relative error of distances between rings", [network.between for network in ringed], None),
            ("stretch", "median stretch within rings", [network.median_stretch for network in ringed], 0.25),
            *(
                (f"hole/{ring}", f"longest H1 bar, {of}", [network.holes[ring] for network in ringed], 0.4)
                for ring, of in enumerate(RINGS)
            ),
            ("gradient", "median ‖∇ cross-entropy‖₁ in the input", [network.gradient for network in ringed], None),
            ("jacobian", "largest ‖∇Φ‖ at the points", [network.steepness for network in ringed], None),
        ):
            low, high = _interval(values)
            numbers.append(Finding(
                f"rings/{name}/{key}", f"rings, {label}: {says}", sum(values) / len(values), low, high, len(values),
                within=within,
            ))  # fmt: skip
        share = sum(network.fresh for network in ringed) / len(ringed)
        ends = share_interval(share, plan.fresh)
        numbers.append(Finding(
            f"rings/{name}/fresh", f"rings, {label}: accuracy on fresh points", share, float(ends.low),
            float(ends.high), plan.fresh, within=0.05,
        ))  # fmt: skip
    return numbers


def claims(task: Task, networks: Sequence[Ringed]) -> list[Claim]:
    """What section 3.1 says, and what section 3.2 leads one to expect."""
    x, y = points(task)
    input_holes = [longest_bar(x[y == ring]) for ring in (0, 1)]
    plain, local, glob = (
        [network for network in networks if network.condition == name] for name, _, _, _ in CONDITIONS
    )

    def shares(ringed: Sequence[Ringed]) -> list[float]:
        return [hole / before for network in ringed for hole, before in zip(network.holes, input_holes, strict=True)]

    def range_of(ringed: Sequence[Ringed]) -> str:
        lengths = shares(ringed)
        return f"{min(lengths):.2f} … {max(lengths):.2f} of the input's longest bar"

    worst = min(network.accuracy for network in local)
    gradients = [sum(network.gradient for network in ringed) / len(ringed) for ringed in (plain, local)]
    medians = [network.median_stretch for network in plain]
    return [
        Claim(
            "rings/untangled",
            "with the isometric loss within rings, both are classified (accuracy over 0.99)",
            worst > 0.99,
            f"worst {worst:.4f}",
        ),
        Claim(
            "rings/survive",
            "and both rings survive: the longest bar of H1 keeps half of its length or more",
            min(shares(local)) >= 0.5,
            range_of(local),
        ),
        Claim(
            "rings/lost", "without it they are lost: it keeps less than half", max(shares(plain)) < 0.5, range_of(plain)
        ),
        Claim(
            "rings/global-survive",
            "with global isometry they survive as well",
            min(shares(glob)) >= 0.5,
            range_of(glob),
            theirs=False,
        ),
        Claim(
            "rings/closer",
            "cross-entropy alone brings points of a ring closer together (median stretch under 1)",
            max(medians) < 1,
            f"{min(medians):.3g} … {max(medians):.3g}",
        ),
        Claim(
            "rings/gradient",
            "isometry keeps input gradients small: smaller than without it",
            gradients[1] < gradients[0],
            f"median, mean over seeds: {gradients[1]:.3g} against {gradients[0]:.3g}",
        ),
    ]


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
    before, after, one_ring = euclidean(x), euclidean(z), y[:, None] == y[None]
    within, between = distortion(before, after, one_ring), distortion(before, after, ~one_ring)
    inputs = x.clone().requires_grad_()
    entropy = functional.cross_entropy(network(inputs), y, reduction="sum")
    (gradient,) = torch.autograd.grad(entropy, inputs)
    jacobians = torch.func.vmap(torch.func.jacrev(lambda point: network.representation(point[None])[0]))(x)
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
