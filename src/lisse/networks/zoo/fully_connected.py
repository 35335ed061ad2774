"""Fully connected networks: the primitive nets of [petrini2021] §3 and the tanh network of the isometry paper.

=============  ==========================================  ==============  ==============
name           network                                     32×32×3         28×28×1
=============  ==========================================  ==============  ==============
``fc2``        2 hidden layers of 64, ReLU                 201,482         55,050
``fc4``        4 hidden layers of 64 (FullConn-L4)         209,802         63,370
``fc6``        6 hidden layers of 64                       218,122         71,690
``isometry``   4 hidden layers of 100, tanh                --              109,810
=============  ==========================================  ==============  ==============
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
from torch import nn

from lisse.networks.zoo.options import check_sizes


class FullyConnected(nn.Module):
    """``flatten``, then one block (linear map, activation) per hidden layer, then a linear ``head``.

    ``blocks[k]`` is the k-th hidden layer with its activation, so that one hook per block reads the representation.
    """

    def __init__(self, inputs: int, hidden: tuple[int, ...], classes: int, *, activation: type[nn.Module]) -> None:
        super().__init__()
        widths = (inputs, *hidden)
        self.flatten = nn.Flatten()
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(a, b), activation()) for a, b in pairwise(widths)))
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` [n, …] to logits [n, classes]."""
        logits: torch.Tensor = self.head(self.blocks(self.flatten(x)))
        return logits


def _fully_connected(
    name: str, depth: int, width: int, in_channels: int, size: int, classes: int, features: int | None,
    activation: type[nn.Module],
) -> FullyConnected:  # fmt: skip
    check_sizes(name, in_channels=in_channels, size=size, classes=classes, width=width, depth=depth)
    if features is not None:
        check_sizes(name, features=features)
    inputs = in_channels * size * size if features is None else features
    return FullyConnected(inputs, (width,) * depth, classes, activation=activation)


def fc(
    depth: int, *, in_channels: int = 3, size: int = 32, classes: int = 10, features: int | None = None, width: int = 64
) -> FullyConnected:
    """``depth`` hidden ReLU layers of 64 ([petrini2021] §3, FullConn-L2, -L4, -L6). ``features=d`` takes vectors."""
    return _fully_connected(f"fc{depth}", depth, width, in_channels, size, classes, features, nn.ReLU)


def isometry(
    *, in_channels: int = 1, size: int = 28, classes: int = 10, features: int | None = None, width: int = 100,
    depth: int = 4, activation: Literal["tanh", "relu"] = "tanh",
) -> FullyConnected:  # fmt: skip
    """The network of [beshkov2022]: 4 hidden tanh layers of 100 for MNIST (§2.2), 109,810 parameters.

    Its networks for rings and torus are ``isometry?features=3&width=20&classes=2``: [3, 20, 20, 20, 20, 2].
    """
    kind = {"tanh": nn.Tanh, "relu": nn.ReLU}[activation]
    return _fully_connected("isometry", depth, width, in_channels, size, classes, features, kind)
