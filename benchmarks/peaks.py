"""Does a network suffer more where its curve over depth peaks? Layers disturbed alike, one after the other.

A page can point at the layer at which a quantity peaks: the change rate of the data's shape, or the stretch of a layer.
Such a pointer means something if the network is more easily hurt there than elsewhere. So every layer that is read is
disturbed in turn, always by as much of its own spread :math:`s` (:math:`s^2` is the mean squared distance to the mean):

* ``noise ½``, ``noise 1``: a Gaussian vector of expected length ½ s, 1 s is added to every sample;
* ``neighbour``: a sample's activation is replaced by that of the sample nearest to it at this layer;
* ``five nearest``: by the average of the five nearest, itself left out;
* ``average ½``: it is moved half of the way to the average of all.

What is looked at is the drop of accuracy. Two statistics per network, of the layers into which there is a step: where
the layer at which the quantity peaks ranks among all by its drop (0 least, 1 most, ½ by chance), and Spearman's
correlation of quantity and drop, with what depth explains taken out of both ranks. A layer is disturbed where the step
ends (``after``), and where it begins (``before``). Intervals are Student's over the networks.

Needs MNIST, CIFAR-10 and the published ResNets in ``LISSE_DATA``, and is left out without; half an hour on one thread.
``--networks mnist`` takes those trained here alone, ``--seeds`` so many of each.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from timing import arguments, publish
from torch import Tensor, nn

import lisse
from lisse.data import Dataset
from lisse.instruments import Sensitivity, Topology
from lisse.maths.intervals import across_clouds
from lisse.taps import Tap, feed, find, prepared, still, tapped
from lisse.training import Recipe

TRAINED = {
    "CNN": "lenet?in_channels=1&size=28",
    "MLP": "fc6?in_channels=1&size=28",
    "ViT": "vit_small?in_channels=1&size=28&patch=7&width=48&heads=4&depth=6",
}
PUBLISHED = ("resnet20", "resnet32", "resnet44", "resnet56")
POINTERS = {"change rate": "change_rate", "stretch of the layer": "lipschitz_from_previous"}
SAMPLES, NEAREST = 300, 5


def trained(seeds: int) -> Iterator[tuple[str, nn.Module, Dataset]]:
    """Networks trained here on 20,000 images of MNIST."""
    train, test = (
        lisse.load_data("mnist", split=split, limit=limit) for split, limit in (("train", 20_000), ("test", 3000))
    )
    for (name, spec), seed in itertools.product(TRAINED.items(), range(seeds)):
        network = lisse.load_model(f"zoo:{spec}&seed={seed}")
        recipe = Recipe(epochs=8 if name == "ViT" else 4, lr=2e-3)
        lisse.train(network, train, recipe=recipe, seed=seed)
        yield f"{name} {seed}", network.eval(), test


def published() -> Iterator[tuple[str, nn.Module, Dataset]]:
    """ResNets for CIFAR-10 that others have trained."""
    data = lisse.load_data("cifar10", limit=3000)
    folder = Path(os.environ.get("LISSE_DATA", ".")) / "checkpoints"
    for name in PUBLISHED:
        (path,) = folder.glob(f"{name}-*.th")
        yield name, lisse.load_model(f"zoo:{name}?weights={path}").eval(), data


def disturbances(seed: int) -> dict[str, Callable[[Tensor], Tensor]]:
    """Activations ``[n, …]`` to disturbed ones."""

    def noisy(size: float) -> Callable[[Tensor], Tensor]:
        def disturbed(x: Tensor) -> Tensor:
            spread = (x - x.mean(0)).flatten(1).square().sum(1).mean().sqrt()
            noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
            return x + noise * size * spread / x[0].numel() ** 0.5

        return disturbed

    def nearest(count: int) -> Callable[[Tensor], Tensor]:
        def disturbed(x: Tensor) -> Tensor:
            distances = torch.cdist(x.flatten(1), x.flatten(1)).fill_diagonal_(torch.inf)
            return x[distances.topk(count, largest=False).indices].mean(1)

        return disturbed

    return {
        "noise ½": noisy(0.5),
        "noise 1": noisy(1.0),
        "neighbour": nearest(1),
        "five nearest": nearest(NEAREST),
        "average ½": lambda x: (x + x.mean(0)) / 2,
    }


def accuracy(
    network: nn.Module, data: Dataset, tap: Tap | None = None, change: Callable[[Tensor], Tensor] | None = None
) -> float:
    """The share of right answers on the first samples, with the activations at a tap changed."""
    (batch,) = data.batches(SAMPLES, stop=SAMPLES)
    taps = [] if tap is None else [tap]
    changed = tapped(network, taps, lambda _, x: None if change is None else change(x))
    with torch.no_grad(), still(network, statistics="running", seed=0), changed as model:
        answers = feed(model, prepared(model, batch.inputs)).argmax(1)
    assert batch.targets is not None
    return float((answers == batch.targets).double().mean())


def layers_of(network: nn.Module, data: Dataset) -> list[Tap]:
    """The places read along depth, the input first."""
    (batch,) = data.batches(3, stop=3)
    return list(find(network, batch.inputs))


def pointers(network: nn.Module, data: Dataset) -> dict[str, dict[str, float]]:
    """By pointer, its value at every layer into which it has a step, as a page draws it."""
    instruments = [
        Topology(samples=100, clouds=5, divergence="none"),
        Sensitivity(samples=100, points=6, max_iter=10, draws=0, margins=0),
    ]
    profile = lisse.measure(network, data, instruments, batch=100)
    values: dict[str, dict[str, float]] = {}
    for pointer, quantity in POINTERS.items():
        rows = [row for row in profile.rows if row.quantity == quantity]
        first = next((row.at for row in rows if row.at.get("dim") == "all" and row.at.get("p") == 1), rows[0].at)
        values[pointer] = {str(row.layer): row.value for row in rows if row.at == first}
    return values


def ranks(values: Tensor) -> Tensor:
    """Ranks from 0, equal values sharing the mean of theirs."""
    less = (values[:, None] > values[None]).double().sum(1)
    return less + ((values[:, None] == values[None]).double().sum(1) - 1) / 2


def correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's correlation of two lists over depth, with a straight line in depth taken out of the ranks."""
    depth = torch.arange(len(a), dtype=torch.float64)
    lines = torch.stack([torch.ones_like(depth), depth], 1)
    x, y = (ranks(v) - lines @ torch.linalg.lstsq(lines, ranks(v)[:, None]).solution[:, 0] for v in (a, b))
    size = float(x.norm() * y.norm())
    return float(x @ y) / size if size > 1e-9 else 0.0


def place_of_peak(pointer: Tensor, drop: Tensor) -> float:
    """Where the layer at which the pointer peaks stands among all by its drop: 0 least, 1 most."""
    return float(ranks(drop)[int(pointer.argmax())]) / (len(drop) - 1)


def study(
    name: str, network: nn.Module, data: Dataset
) -> Iterator[tuple[tuple[str, str, str, str], float, float, int]]:
    """Per pointer, side, set of layers and disturbance: place of the peak, correlation, and layers."""
    taps, clean = layers_of(network, data), accuracy(network, data)
    values = pointers(network, data)
    drops = {
        (kind, tap.name): clean - accuracy(network, data, tap, change)
        for kind, change in disturbances(0).items()
        for tap in taps
    }
    print(f"{name}: {len(taps)} places, accuracy {clean:.3f}", file=sys.stderr, flush=True)
    for pointer, of in values.items():
        steps = [(before, tap) for before, tap in itertools.pairwise(taps) if tap.name in of]
        for side, layers, kind in itertools.product(("after", "before"), ("all", "blocks"), disturbances(0)):
            chosen = [pair for pair in steps if layers == "all" or pair[1].role != "output"]
            signal = torch.tensor([of[tap.name] for _, tap in chosen], dtype=torch.float64)
            drop = torch.tensor([drops[kind, pair[side == "after"].name] for pair in chosen], dtype=torch.float64)
            yield (pointer, side, layers, kind), place_of_peak(signal, drop), correlation(signal, drop), len(chosen)


def ends(values: list[float]) -> str:
    """Mean and interval over networks."""
    if len(values) < 2:
        return f"{values[0]:.2f}"
    found = across_clouds(torch.tensor(values))
    return f"{float(found.value):.2f} [{float(found.low):.2f}, {float(found.high):.2f}]"


def family_of(name: str) -> str:
    """``CNN 0`` is a CNN, ``resnet56`` a ResNet."""
    return name.partition(" ")[0] if " " in name else "ResNet"


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--networks", choices=("all", "mnist", "cifar10"), default="all")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    if not (Path(os.environ.get("LISSE_DATA", "")) / "checkpoints").is_dir():
        print("peaks: left out, because LISSE_DATA names no folder with data and checkpoints", file=sys.stderr)
        return 0
    networks = itertools.chain(
        trained(options.seeds) if options.networks != "cifar10" else (),
        published() if options.networks != "mnist" else (),
    )
    results: dict[str, dict[tuple[str, str, str, str], tuple[float, float, int]]] = {}
    for name, network, data in networks:
        results[name] = {key: rest for key, *rest in study(name, network, data)}  # type: ignore[misc]
    kinds = list(disturbances(0))
    text = ""
    for statistic, title in enumerate(
        (
            "Place of the peak among the layers, by drop of accuracy (½ by chance)",
            "Rank correlation of pointer and drop, depth taken out (0 by chance)",
        )
    ):
        lines = [
            f"## {title}",
            "",
            "| pointer, side, layers | " + " | ".join(kinds) + " | all five |",
            "|" + "---|" * (len(kinds) + 2),
        ]
        for pointer, side, layers in itertools.product(POINTERS, ("after", "before"), ("all", "blocks")):
            table = [[of[pointer, side, layers, kind][statistic] for kind in kinds] for of in results.values()]
            cells = [ends(list(column)) for column in zip(*table, strict=True)]
            means = [sum(row) / len(row) for row in table]
            lines.append(f"| {pointer}, {side}, {layers} | " + " | ".join([*cells, ends(means)]) + " |")
        text += "\n".join(lines) + "\n\n"
    lines = [
        "## By family: disturbed after the step, all layers, mean over the five",
        "",
        "| family | networks | steps | " + " | ".join(f"{pointer}: place | correlation" for pointer in POINTERS) + " |",
        "|" + "---|" * (3 + 2 * len(POINTERS)),
    ]
    for family in dict.fromkeys(map(family_of, results)):
        members = [of for name, of in results.items() if family_of(name) == family]
        steps = sorted({of["change rate", "after", "all", kinds[0]][2] for of in members})
        cells = [str(len(members)), " to ".join(dict.fromkeys(map(str, (steps[0], steps[-1]))))]
        for pointer, statistic in itertools.product(POINTERS, (0, 1)):
            cells.append(
                ends(
                    [sum(of[pointer, "after", "all", kind][statistic] for kind in kinds) / len(kinds) for of in members]
                )
            )
        lines.append(f"| {family} | " + " | ".join(cells) + " |")
    text += "\n".join(lines)
    title = (
        f"Where a curve over depth peaks, and where a network is hurt ({len(results)} networks, {SAMPLES} samples each)"
    )
    publish("peaks", title, text, write=options.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
