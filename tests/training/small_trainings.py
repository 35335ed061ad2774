"""Small networks and data for trainings of a few milliseconds."""

from __future__ import annotations

import torch
from torch import nn

from lisse.data import Dataset
from lisse.training import Recipe

RECIPE = Recipe(optimizer="sgd", lr=0.1, batch=16, epochs=3, schedule="constant", warmup=0.0)


def points(n: int = 50, d: int = 4, classes: int = 3, seed: int = 0) -> Dataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator)
    y = (x @ torch.randn(d, classes, generator=torch.Generator().manual_seed(9))).argmax(1)
    return Dataset("points", x, y)


def images(n: int = 40, size: int = 6, channels: int = 2, classes: int = 3) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (n, channels, size, size), generator=generator, dtype=torch.uint8)
    return Dataset("images", pixels, torch.randint(0, classes, (n,), generator=generator))


def network(*, dropout: float = 0.0, seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Linear(4, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)]
        return nn.Sequential(*layers)


def convolutional(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 3)
        )


def same(a: nn.Module, b: nn.Module) -> bool:
    """Bit for bit."""
    ours, theirs = a.state_dict(), b.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
