"""VGG11/13/16/19 in CIFAR form, with and without batch norm: one 512 → ``classes`` classifier.

Parameter names are those of kuangliu/pytorch-cifar (``features.0`` …, ``classifier``), whose counts with batch norm
are the published ones. Without batch norm PyTorch's own initialisation shrinks what passes: VGG16 and 19 then stay at
chance, and ``init="he"`` [he2015] lets them learn. Images smaller than 32×32 are zero-padded to 32×32, as
[petrini2021] does with digits.

=========  =============  ===============
depth      plain          batch norm
=========  =============  ===============
``vgg11``  9,225,610      9,231,114
``vgg13``  9,410,122      9,416,010
``vgg16``  14,719,818     14,728,266
``vgg19``  20,029,514     20,040,522
=========  =============  ===============
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from lisse.networks.zoo.lenet import padding_to_32
from lisse.networks.zoo.options import check_sizes

Initialisation = Literal["torch", "he"]

# [simonyan2015] Table 1, columns A, B, D, E: channels of the convolutions of each stage; a pool ends every stage.
_STAGES: dict[int, tuple[tuple[int, ...], ...]] = {
    11: ((64,), (128,), (256,) * 2, (512,) * 2, (512,) * 2),
    13: ((64,) * 2, (128,) * 2, (256,) * 2, (512,) * 2, (512,) * 2),
    16: ((64,) * 2, (128,) * 2, (256,) * 3, (512,) * 3, (512,) * 3),
    19: ((64,) * 2, (128,) * 2, (256,) * 4, (512,) * 4, (512,) * 4),
}


class VGG(nn.Module):
    """3×3 convolutions with ReLU (and batch norm), a 2×2 max-pool after each stage, mean pool, one linear layer."""

    def __init__(
        self, stages: tuple[tuple[int, ...], ...], in_channels: int, size: int, classes: int, *, batch_norm: bool
    ) -> None:
        super().__init__()
        self.pad = padding_to_32(size)
        layers: list[nn.Module] = []
        width = in_channels
        for stage in stages:
            for channels in stage:
                layers.append(nn.Conv2d(width, channels, 3, padding=1))
                if batch_norm:
                    layers.append(nn.BatchNorm2d(channels))
                layers.append(nn.ReLU())
                width = channels
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        # At 32×32 the map is already 1×1 and this is the identity.
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.classifier = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """``images`` [n, c, size, size] to logits [n, classes]."""
        features = self.pool(self.features(self.pad(images)))
        logits: torch.Tensor = self.classifier(self.flatten(features))
        return logits


def vgg_plain(
    depth: int, *, in_channels: int = 3, size: int = 32, classes: int = 10, init: Initialisation = "torch"
) -> VGG:
    """A VGG of ``depth`` 11, 13, 16 or 19 without batch norm ([simonyan2015], CIFAR form)."""
    check_sizes(f"vgg{depth}", in_channels=in_channels, size=size, classes=classes)
    network = VGG(_STAGES[depth], in_channels, size, classes, batch_norm=False)
    if init == "he":
        for module in network.features:
            if isinstance(module, nn.Conv2d):
                assert module.bias is not None
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                nn.init.zeros_(module.bias)
    return network


def vgg_bn(depth: int, *, in_channels: int = 3, size: int = 32, classes: int = 10) -> VGG:
    """The same with batch norm."""
    check_sizes(f"vgg{depth}_bn", in_channels=in_channels, size=size, classes=classes)
    return VGG(_STAGES[depth], in_channels, size, classes, batch_norm=True)
