"""``lisse demo``: train two small networks on embedded data, measure them, and write the page that compares them."""

from __future__ import annotations

import dataclasses
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from torch import nn

    from lisse.data import Dataset
    from lisse.progress import Bar


@click.command()
@click.option("--out", default="lisse-demo", type=click.Path(file_okay=False), help="Folder.  [default: lisse-demo]")
@click.option("--epochs", default=15, type=click.IntRange(min=1), help="Rounds of training.  [default: 15]")
@click.option("--seed", default=0, type=int, help="Of everything random.  [default: 0]")
def command(out: str, epochs: int, seed: int) -> None:
    """Train two small networks on scikit-learn's digits and write the page that compares them: a first look.

    One is convolutional, one has attention. Writes report.html, convolution.profile and attention.profile into the
    folder and, where matplotlib is installed, figure.png.
    """
    import lisse
    from lisse.cli.measure import known
    from lisse.cli.report import print_verdict
    from lisse.cli.sizes import AT_START, instruments
    from lisse.progress import Bar

    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    train, test = lisse.load_data("digits", split="train"), lisse.load_data("digits", split="test")
    chosen = instruments([kind for name, kind in known().items() if name != "sensitivity"], "quick")
    # Jacobians of networks as small as these take no time.
    chosen = [dataclasses.replace(each, points=8) if each.name == "isometry" else each for each in chosen]
    references = [each for each in chosen if each.name in AT_START]
    profiles, lines = [], []
    with Bar(memory=True, keep=False) as bar:
        for name, build in (("convolution", convolution), ("attention", attention)):
            rounds = epochs if name == "convolution" else 2 * epochs  # attention learns where to look first
            network = trained(build, train, epochs=rounds, seed=seed, bar=bar, task=f"train {name}")
            accuracy = _accuracy(network, test)
            count = sum(weight.numel() for weight in network.parameters())
            lines.append(f"{name}: {count:,} parameters, tells {accuracy:.1%} of {len(test)} digits right.")
            own = _measured(network, test, chosen, name, seed, bar)
            score = {"error": 1 - accuracy, "n": len(test)}
            own = dataclasses.replace(own, provenance={**own.provenance, "score": score})
            start = _measured(_seeded(build, seed + 1000), test, references, f"{name} with random weights", seed, bar)
            said = {"kind": "initialisation", "model": own.provenance["model"]["fingerprint"]}
            profiles += [own, dataclasses.replace(start, provenance={**start.provenance, "reference": said})]
            own.save(folder / f"{name}.profile")
    print(f"Two networks, trained on {len(train):,} images. How smoothly do they carry others?")
    print("\n".join(lines) + "\n")
    page = lisse.report(profiles, folder / "report.html", title="A convolutional and an attention network on digits")
    print_verdict(profiles)
    print(f"\nProfiles {folder / 'convolution.profile'}, {folder / 'attention.profile'}")
    try:
        from lisse.reporting import overview_figure, save_figure
    except ImportError as error:
        print(f"Figure   left out: {error}")
    else:
        print(f"Figure   {save_figure(overview_figure(profiles[0]), folder / 'figure.png')}")
    print(f"Page     {page}   (open it in a browser)")
    print("Next     lisse report zoo:resnet20 zoo:resnet56 --data cifar10   (lisse data lists the data you have)")
    sys.stdout.flush()


def convolution() -> nn.Module:
    """Three convolutions and two linear layers."""
    from torch import nn

    layers = {
        "conv1": nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()),
        "conv2": nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        "conv3": nn.Sequential(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        "hidden": nn.Sequential(nn.Linear(256, 64), nn.ReLU()),
        "scores": nn.Linear(64, 10),
    }
    return nn.Sequential(OrderedDict(layers))


def attention() -> nn.Module:
    """A vision transformer of four blocks on patches of 2 × 2 pixels."""
    from lisse.networks import zoo

    return zoo.NETWORKS["vit_small"](in_channels=1, size=8, width=32, heads=2, depth=4, patch=2)


def trained(build: Callable[[], nn.Module], data: Dataset, *, epochs: int, seed: int, bar: Bar, task: str) -> nn.Module:
    """A network trained with Adam; the same seed gives the same network."""
    import torch
    from torch import nn

    from lisse.progress import Event

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build().train()
        optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
        batch = next(iter(data.batches(len(data))))
        steps = epochs * -(-len(data) // 64)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, total_steps=steps)
        for epoch in range(epochs):
            for some in torch.randperm(len(data)).split(64):
                loss = nn.functional.cross_entropy(network(batch.inputs[some]), batch.targets[some])  # type: ignore[index]
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
            bar(Event(task, epoch + 1, epochs, "epochs"))
    return network.eval()


def _seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build().eval()


def _measured(network: nn.Module, data: Dataset, chosen: list[Any], name: str, seed: int, bar: Bar) -> Any:
    import lisse
    from lisse.progress import Event

    def listen(event: Event) -> None:
        if event.level == "info" and not event.say:  # what does not fit is on the page
            bar(dataclasses.replace(event, task=f"{name}: {event.task}"))

    return lisse.measure(network, data, chosen, seed=seed, name=name, progress=listen, on_error="note")


def _accuracy(network: nn.Module, data: Dataset) -> float:
    import torch

    with torch.no_grad():
        right = [(network(batch.inputs).argmax(1) == batch.targets).float() for batch in data.batches(500)]
    return float(torch.cat(right).mean())
