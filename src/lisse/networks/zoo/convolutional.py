"""Convolution-only networks of TopoLip [chen2024], Table 1, with the channel lists as printed.

The text says ten layers; the printed lists hold eight (small) and nine (large) convolutions. The lists win.
What the paper leaves open is chosen so: 3×3 kernels, padding 1, and stride 2 exactly where the width doubles, so that
resolution halves as channels double (the rule of VGG and ResNet). Without it the last layer of the large network
alone would cost 39 GMAC per image. ``downsample=false`` keeps stride 1 everywhere.

=======================  ==========================================  ===========
name                     channels                                    parameters
=======================  ==========================================  ===========
``convolution_small``    3→64→64→64→64→64→64→64→64                   260,938
``convolution_large``    3→64→64→128→128→256→512→1024→2048→2048      63,102,794
=======================  ==========================================  ===========
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

from lisse.networks.zoo.options import check_sizes

_CHANNELS: dict[str, tuple[int, ...]] = {
    "convolution_small": (64,) * 8,
    "convolution_large": (64, 64, 128, 128, 256, 512, 1024, 2048, 2048),
}


class ConvolutionOnly(nn.Module):
    """Convolutional layers of TopoLip's Definition 2 (ReLU *before* the convolution), mean pool, linear ``head``.

    The first layer has no ReLU: its input is a normalised image, of which ReLU would throw half away. One more ReLU
    (``activation``) stands before the pool. ``blocks[k]`` is the k-th layer.
    """

    def __init__(self, in_channels: int, channels: tuple[int, ...], classes: int, *, downsample: bool = True) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for k, (c_in, c_out) in enumerate(pairwise((in_channels, *channels))):
            stride = 2 if downsample and k > 0 and c_out > c_in else 1
            convolution = nn.Conv2d(c_in, c_out, 3, stride=stride, padding=1)
            layers.append(nn.Sequential(convolution) if k == 0 else nn.Sequential(nn.ReLU(), convolution))
        self.blocks = nn.Sequential(*layers)
        self.activation = nn.ReLU()
        self.head = nn.Linear(channels[-1], classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """``images`` [n, c, h, w] to logits [n, classes]."""
        features = self.activation(self.blocks(images)).mean(dim=(2, 3))
        logits: torch.Tensor = self.head(features)
        return logits


def convolution_network(
    name: str, *, in_channels: int = 3, size: int = 32, classes: int = 10, downsample: bool = True
) -> ConvolutionOnly:
    """``convolution_small`` or ``convolution_large`` of TopoLip's Table 1."""
    check_sizes(name, in_channels=in_channels, size=size, classes=classes)
    return ConvolutionOnly(in_channels, _CHANNELS[name], classes, downsample=downsample)
