"""``lisse demo``: train a small network on embedded data, measure it, draw it; a first look at everything."""

from __future__ import annotations

import sys
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING

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
    """Train a small network on scikit-learn's digits, measure it, draw it: a first look, in seconds.

    Writes digits.profile and, where matplotlib is installed, figure.png into the folder.
    """
    import lisse
    from lisse.cli.table import print_profile
    from lisse.instruments import Sensitivity
    from lisse.progress import Bar

    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    train, test = lisse.load_data("digits", split="train"), lisse.load_data("digits", split="test")
    with Bar() as bar:
        network = trained(train, epochs=epochs, seed=seed, bar=bar)
        accuracy = _accuracy(network, test)
        profile = lisse.measure(
            network, test, [Sensitivity(samples=70)], seed=seed, name="demo convolutional network", progress=bar
        )
    print(f"A network of {sum(p.numel() for p in network.parameters()):,} parameters, trained on {len(train):,} images")
    print(f"of digits, tells {accuracy:.1%} of {len(test)} others right. How smoothly does it carry them?\n")
    print_profile(profile)
    saved = profile.save(folder / "digits.profile")
    print(f"\nProfile  {saved}")
    try:
        from lisse.reporting import overview_figure, save_figure
    except ImportError as error:
        print(f"Figure   left out: {error}")
    else:
        print(f"Figure   {save_figure(overview_figure(profile), folder / 'figure.png')}")
    print("Next     lisse measure sensitivity zoo:resnet20 --data cifar10   (lisse data lists the data you have)")
    sys.stdout.flush()


def trained(data: Dataset, *, epochs: int, seed: int, bar: Bar) -> nn.Module:
    """A small convolutional network, trained with Adam; the same seed gives the same network."""
    import torch
    from torch import nn

    from lisse.progress import Event

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = {
            "conv1": nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()),
            "conv2": nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            "conv3": nn.Sequential(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            "hidden": nn.Sequential(nn.Linear(256, 64), nn.ReLU()),
            "scores": nn.Linear(64, 10),
        }
        network = nn.Sequential(OrderedDict(layers))
        optimiser = torch.optim.Adam(network.parameters(), lr=2e-3)
        batch = next(iter(data.batches(len(data))))
        for epoch in range(epochs):
            for some in torch.randperm(len(data)).split(64):
                loss = nn.functional.cross_entropy(network(batch.inputs[some]), batch.targets[some])  # type: ignore[index]
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            bar(Event("train", epoch + 1, epochs, "epochs"))
    return network.eval()


def _accuracy(network: nn.Module, data: Dataset) -> float:
    import torch

    with torch.no_grad():
        right = [(network(batch.inputs).argmax(1) == batch.targets).float() for batch in data.batches(500)]
    return float(torch.cat(right).mean())
