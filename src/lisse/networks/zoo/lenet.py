"""LeNet and AlexNet as [petrini2021] trains them (``leonardopetrini/diffeo-sota``).

============  ============  ============
name          32×32×3       28×28×1
============  ============  ============
``lenet``     62,006        44,426
``alexnet``   23,272,266    23,271,114
============  ============  ============
"""

from __future__ import annotations

import torch
from torch import nn

from lisse.networks.zoo.options import check_sizes


class LeNet(nn.Module):
    """Two 5×5 convolutions (6, 16 channels) with ReLU and 2×2 max-pooling, then 120 – 84 – ``classes``."""

    def __init__(self, in_channels: int, size: int, classes: int) -> None:
        super().__init__()
        side = ((size - 4) // 2 - 4) // 2
        self.features = nn.Sequential(
            nn.Sequential(nn.Conv2d(in_channels, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
            nn.Sequential(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        )
        self.flatten = nn.Flatten()
        self.classifier = nn.Sequential(
            nn.Sequential(nn.Linear(16 * side * side, 120), nn.ReLU()),
            nn.Sequential(nn.Linear(120, 84), nn.ReLU()),
            nn.Linear(84, classes),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """``images`` [n, c, size, size] to logits [n, classes]."""
        logits: torch.Tensor = self.classifier(self.flatten(self.features(images)))
        return logits


class AlexNet(nn.Module):
    """AlexNet in CIFAR form: five 3×3 convolutions (the first with stride 2), three pools, 4096 – 4096 – ``classes``.

    Parameter names are those of the widespread CIFAR AlexNet (``features.0``, …, ``classifier.6``); images smaller
    than 32×32 are zero-padded to 32×32 by ``pad``.
    """

    def __init__(self, in_channels: int, size: int, classes: int) -> None:
        super().__init__()
        self.pad = padding_to_32(size)
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, 64, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(64, 192, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(),
            nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        # At 32×32 the map is already 2×2 and this is the identity; larger images are averaged down to it.
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.flatten = nn.Flatten()
        self.classifier = nn.Sequential(
            nn.Dropout(), nn.Linear(256 * 2 * 2, 4096), nn.ReLU(),
            nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(),
            nn.Linear(4096, classes),
        )  # fmt: skip

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """``images`` [n, c, size, size] to logits [n, classes]."""
        features = self.pool(self.features(self.pad(images)))
        logits: torch.Tensor = self.classifier(self.flatten(features))
        return logits


def padding_to_32(size: int) -> nn.Module:
    """Zero padding that centres a ``size``×``size`` image in 32×32, as [petrini2021] does with 28×28 digits."""
    missing = max(0, 32 - size)
    first = missing // 2
    return nn.ZeroPad2d((first, missing - first, first, missing - first)) if missing else nn.Identity()


def lenet(*, in_channels: int = 3, size: int = 32, classes: int = 10) -> LeNet:
    """LeNet: two convolutions, three fully connected layers; 62,006 parameters on 32×32×3, 44,426 on 28×28×1."""
    check_sizes("lenet", in_channels=in_channels, size=size, classes=classes)
    if size < 16:
        raise ValueError(
            f"lenet: size must be at least 16, got {size}. Its two 5×5 convolutions leave nothing of less."
        )
    return LeNet(in_channels, size, classes)


def alexnet(*, in_channels: int = 3, size: int = 32, classes: int = 10) -> AlexNet:
    """AlexNet in CIFAR form; 23,272,266 parameters on 32×32×3."""
    check_sizes("alexnet", in_channels=in_channels, size=size, classes=classes)
    return AlexNet(in_channels, size, classes)
