"""Residual networks for small images: the CIFAR ResNet-20/32/44/56 and ResNet18/34/50/101 in CIFAR form.

The first family is [he2016] §4.2: 3×3 stem of 16 channels, three stages of 16, 32, 64 channels, parameter-free
shortcuts (option A). Parameter names are those of akamaster/pytorch_resnet_cifar10, whose trained weights load with
``zoo:resnet20?weights=FILE`` and reach 8.27, 7.37, 6.90, 6.61 % test error.

The second family is the ImageNet network with a 3×3 stem of stride 1 and no max-pool; names and counts are those of
kuangliu/pytorch-cifar.

============  ===========  ============  ===========
name          parameters   name          parameters
============  ===========  ============  ===========
``resnet20``  269,722      ``resnet18``  11,173,962
``resnet32``  464,154      ``resnet34``  21,282,122
``resnet44``  658,586      ``resnet50``  23,520,842
``resnet56``  853,018      ``resnet101`` 42,512,970
============  ===========  ============  ===========
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from lisse.networks.zoo.options import check_sizes


class PaddedShortcut(nn.Module):
    """Option A of [he2016]: every second pixel, and zero channels, half before and half behind; no parameters."""

    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__()
        self.before = (c_out - c_in) // 2
        self.behind = c_out - c_in - self.before

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` [n, c_in, h, w] to [n, c_out, ⌈h/2⌉, ⌈w/2⌉]."""
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.before, self.behind))


def _projection(c_in: int, c_out: int, stride: int) -> nn.Sequential:
    """Option B of [he2016]: a 1×1 convolution with batch norm."""
    return nn.Sequential(nn.Conv2d(c_in, c_out, 1, stride=stride, bias=False), nn.BatchNorm2d(c_out))


class BasicBlock(nn.Module):
    """relu(x + bn(conv(relu(bn(conv x))))), with a shortcut where the shape changes."""

    expansion = 1

    def __init__(self, c_in: int, width: int, stride: int, *, option: str = "B") -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or c_in != width:
            self.shortcut = PaddedShortcut(c_in, width) if option == "A" else _projection(c_in, width, stride)
        self.relu2 = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` [n, c_in, h, w] to [n, width, ⌈h/stride⌉, ⌈w/stride⌉]."""
        y = self.relu1(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        out: torch.Tensor = self.relu2(y + self.shortcut(x))
        return out


class Bottleneck(nn.Module):
    """relu(x + three convolutions 1×1, 3×3, 1×1 with batch norm); the output is four times as wide."""

    expansion = 4

    def __init__(self, c_in: int, width: int, stride: int) -> None:
        super().__init__()
        c_out = self.expansion * width
        self.conv1 = nn.Conv2d(c_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu2 = nn.ReLU()
        self.conv3 = nn.Conv2d(width, c_out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(c_out)
        self.shortcut = _projection(c_in, c_out, stride) if stride != 1 or c_in != c_out else nn.Identity()
        self.relu3 = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` [n, c_in, h, w] to [n, 4·width, ⌈h/stride⌉, ⌈w/stride⌉]."""
        y = self.relu1(self.bn1(self.conv1(x)))
        y = self.relu2(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        out: torch.Tensor = self.relu3(y + self.shortcut(x))
        return out


def _stage(block: type[BasicBlock] | type[Bottleneck], c_in: int, width: int, depth: int, stride: int, option: str) -> (
    nn.Sequential
):  # fmt: skip
    blocks: list[nn.Module] = []
    for k in range(depth):
        step = stride if k == 0 else 1
        blocks.append(
            BasicBlock(c_in, width, step, option=option) if block is BasicBlock else Bottleneck(c_in, width, step)
        )
        c_in = width * block.expansion
    return nn.Sequential(*blocks)


class CifarResNet(nn.Module):
    """[he2016] §4.2: ``conv1, bn1, relu``, stages ``layer1..3`` of ``n`` blocks, mean pool, ``linear``."""

    def __init__(self, n: int, in_channels: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU()
        self.layer1 = _stage(BasicBlock, 16, 16, n, 1, "A")
        self.layer2 = _stage(BasicBlock, 16, 32, n, 2, "A")
        self.layer3 = _stage(BasicBlock, 32, 64, n, 2, "A")
        self.linear = nn.Linear(64, classes)
        _he_initialisation(self)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """``images`` [n, c, h, w] to logits [n, classes]."""
        x = self.relu(self.bn1(self.conv1(images)))
        x = self.layer3(self.layer2(self.layer1(x)))
        logits: torch.Tensor = self.linear(x.mean(dim=(2, 3)))
        return logits


class ResNet(nn.Module):
    """The network of [he2016] Table 1 with a 3×3 stem and no max-pool: stages ``layer1..4``, mean pool, ``linear``."""

    def __init__(
        self, block: type[BasicBlock] | type[Bottleneck], depths: tuple[int, int, int, int], in_channels: int,
        classes: int,
    ) -> None:  # fmt: skip
        super().__init__()
        wide = block.expansion
        self.conv1 = nn.Conv2d(in_channels, 64, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()
        self.layer1 = _stage(block, 64, 64, depths[0], 1, "B")
        self.layer2 = _stage(block, 64 * wide, 128, depths[1], 2, "B")
        self.layer3 = _stage(block, 128 * wide, 256, depths[2], 2, "B")
        self.layer4 = _stage(block, 256 * wide, 512, depths[3], 2, "B")
        self.linear = nn.Linear(512 * wide, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """``images`` [n, c, h, w] to logits [n, classes]."""
        x = self.relu(self.bn1(self.conv1(images)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: torch.Tensor = self.linear(x.mean(dim=(2, 3)))
        return logits


def _he_initialisation(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            nn.init.kaiming_normal_(module.weight)


def resnet_of_cifar(depth: int, *, in_channels: int = 3, size: int = 32, classes: int = 10) -> CifarResNet:
    """CIFAR ResNet of ``depth`` 20, 32, 44 or 56, option-A shortcuts ([he2016] §4.2)."""
    check_sizes(f"resnet{depth}", in_channels=in_channels, size=size, classes=classes)
    return CifarResNet((depth - 2) // 6, in_channels, classes)


def resnet_of_imagenet(depth: int, *, in_channels: int = 3, size: int = 32, classes: int = 10) -> ResNet:
    """ResNet of ``depth`` 18, 34, 50 or 101 in CIFAR form (3×3 stem, no max-pool)."""
    check_sizes(f"resnet{depth}", in_channels=in_channels, size=size, classes=classes)
    return ResNet(*_DEPTHS[depth], in_channels, classes)


# [he2016] Table 1: the block, and how many of them each stage has.
_DEPTHS: dict[int, tuple[type[BasicBlock] | type[Bottleneck], tuple[int, int, int, int]]] = {
    18: (BasicBlock, (2, 2, 2, 2)),
    34: (BasicBlock, (3, 4, 6, 3)),
    50: (Bottleneck, (3, 4, 6, 3)),
    101: (Bottleneck, (3, 4, 23, 3)),
}
