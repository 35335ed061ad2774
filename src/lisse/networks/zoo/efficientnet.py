"""EfficientNet B0 and B2 ([tan2019]), written here so that they are the same whatever else is installed.

For small images the stem has stride 1 (as [petrini2021] trains B0 on CIFAR-10); ``stem_stride=2&size=224`` is the
published network, 5,288,548 (B0) and 9,109,994 (B2) parameters with 1000 classes. Parameter names are timm's. Tests
copy the weights into the transformers network (``padding=same&bn_eps=1e-3``, TensorFlow's conventions) and into timm's
(``padding=symmetric&bn_eps=1e-5``, the default here) and compare outputs.

====================  ============  ============
name                  32×32×3       28×28×1
====================  ============  ============
``efficientnet_b0``   4,020,358     4,019,782
``efficientnet_b2``   7,715,084     7,714,508
====================  ============  ============
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from lisse.networks.zoo.options import check_above_zero, check_sizes

# [tan2019] Table 1: expansion, channels, blocks, kernel, stride of each stage of B0.
_STAGES = (
    (1, 16, 1, 3, 1),
    (6, 24, 2, 3, 2),
    (6, 40, 2, 5, 2),
    (6, 80, 3, 3, 2),
    (6, 112, 3, 5, 1),
    (6, 192, 4, 5, 2),
    (6, 320, 1, 3, 1),
)

Padding = Literal["symmetric", "same"]


def _scaled_width(channels: int, factor: float) -> int:
    """Channels times ``factor``, rounded to a multiple of 8 that is at least 90 % of it (the published rule)."""
    exact = channels * factor
    rounded = max(8, int(exact + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * exact else rounded


class SameConv2d(nn.Conv2d):
    """Convolution with TensorFlow's "same" padding: the odd pixel of padding goes below and to the right."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """``input`` [n, c, h, w] to [n, c', ⌈h/stride⌉, ⌈w/stride⌉]."""
        pads = self.pads(input.shape[2:])
        return F.conv2d(F.pad(input, pads), self.weight, self.bias, self.stride, 0, self.dilation, self.groups)

    def pads(self, sides: Sequence[int]) -> list[int]:
        """Of an image with ``sides`` (h, w): left, right, above, below, as ``F.pad`` asks for them."""
        pads: list[int] = []
        for side, kernel, stride in zip(sides[::-1], self.kernel_size[::-1], self.stride[::-1], strict=True):
            total = max((math.ceil(side / stride) - 1) * stride + kernel - side, 0)
            pads += [total // 2, total - total // 2]
        return pads


def _convolution(c_in: int, c_out: int, kernel: int, stride: int, groups: int, padding: Padding) -> nn.Conv2d:
    if padding == "same":
        return SameConv2d(c_in, c_out, kernel, stride=stride, groups=groups, bias=False)
    return nn.Conv2d(c_in, c_out, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False)


class SqueezeExcite(nn.Module):
    """x · sigmoid(W₂ silu(W₁ mean(x))): one weight per channel."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.conv_reduce = nn.Conv2d(channels, squeezed, 1)
        self.act1 = nn.SiLU()
        self.conv_expand = nn.Conv2d(squeezed, channels, 1)
        self.gate = nn.Sigmoid()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` [n, c, h, w] to [n, c, h, w]."""
        weights = self.gate(self.conv_expand(self.act1(self.conv_reduce(x.mean(dim=(2, 3), keepdim=True)))))
        return x * weights


class StochasticDepth(nn.Module):
    """In training, the branch of a whole sample is dropped with probability ``p`` and scaled by 1/(1-p) otherwise."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, branch: torch.Tensor) -> torch.Tensor:
        """``branch`` [n, …] to [n, …]; the identity in evaluation mode."""
        if not self.training or self.p == 0:
            return branch
        survivors = torch.rand(len(branch), *(1,) * (branch.dim() - 1), device=branch.device) >= self.p
        return branch * survivors / (1 - self.p)


class DepthwiseSeparable(nn.Module):
    """The block without expansion: depthwise convolution, squeeze-excite, pointwise convolution."""

    def __init__(
        self, c_in: int, c_out: int, kernel: int, stride: int, *, padding: Padding, bn_eps: float, drop: float
    ) -> None:
        super().__init__()
        self.conv_dw = _convolution(c_in, c_in, kernel, stride, c_in, padding)
        self.bn1 = nn.BatchNorm2d(c_in, eps=bn_eps)
        self.act1 = nn.SiLU()
        self.se = SqueezeExcite(c_in, max(1, c_in // 4))
        self.conv_pw = nn.Conv2d(c_in, c_out, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(c_out, eps=bn_eps)
        self.skip = stride == 1 and c_in == c_out
        self.drop_path = StochasticDepth(drop)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` [n, c_in, h, w] to [n, c_out, ⌈h/stride⌉, ⌈w/stride⌉]."""
        y: torch.Tensor = self.bn2(self.conv_pw(self.se(self.act1(self.bn1(self.conv_dw(x))))))
        return self.drop_path(y) + x if self.skip else y


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution, squeeze-excite, projection; the input is added where the shape stays."""

    def __init__(
        self, c_in: int, c_out: int, kernel: int, stride: int, expansion: int, *, padding: Padding, bn_eps: float,
        drop: float,
    ) -> None:  # fmt: skip
        super().__init__()
        wide = c_in * expansion
        self.conv_pw = nn.Conv2d(c_in, wide, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(wide, eps=bn_eps)
        self.act1 = nn.SiLU()
        self.conv_dw = _convolution(wide, wide, kernel, stride, wide, padding)
        self.bn2 = nn.BatchNorm2d(wide, eps=bn_eps)
        self.act2 = nn.SiLU()
        self.se = SqueezeExcite(wide, max(1, c_in // 4))
        self.conv_pwl = nn.Conv2d(wide, c_out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(c_out, eps=bn_eps)
        self.skip = stride == 1 and c_in == c_out
        self.drop_path = StochasticDepth(drop)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` [n, c_in, h, w] to [n, c_out, ⌈h/stride⌉, ⌈w/stride⌉]."""
        y = self.act1(self.bn1(self.conv_pw(x)))
        y = self.se(self.act2(self.bn2(self.conv_dw(y))))
        y = self.bn3(self.conv_pwl(y))
        out: torch.Tensor = self.drop_path(y) + x if self.skip else y
        return out


class EfficientNet(nn.Module):
    """``conv_stem, bn1, act1``, ``blocks[stage][k]``, ``conv_head, bn2, act2``, mean pool, dropout, ``classifier``."""

    def __init__(
        self, width: float, depth: float, in_channels: int, classes: int, *, stem_stride: int, padding: Padding,
        bn_eps: float, dropout: float, drop_path: float,
    ) -> None:  # fmt: skip
        super().__init__()
        c = _scaled_width(32, width)
        self.conv_stem = _convolution(in_channels, c, 3, stem_stride, 1, padding)
        self.bn1 = nn.BatchNorm2d(c, eps=bn_eps)
        self.act1 = nn.SiLU()
        total = sum(math.ceil(blocks * depth) for _, _, blocks, _, _ in _STAGES)
        stages: list[nn.Module] = []
        index = 0
        for expansion, channels, blocks, kernel, stride in _STAGES:
            c_out = _scaled_width(channels, width)
            stage: list[nn.Module] = []
            for k in range(math.ceil(blocks * depth)):
                step = stride if k == 0 else 1
                drop = drop_path * index / total
                if expansion == 1:
                    block: nn.Module = DepthwiseSeparable(
                        c, c_out, kernel, step, padding=padding, bn_eps=bn_eps, drop=drop
                    )
                else:
                    block = InvertedResidual(
                        c, c_out, kernel, step, expansion, padding=padding, bn_eps=bn_eps, drop=drop
                    )
                stage.append(block)
                c, index = c_out, index + 1
            stages.append(nn.Sequential(*stage))
        self.blocks = nn.Sequential(*stages)
        wide = _scaled_width(1280, width)
        self.conv_head = nn.Conv2d(c, wide, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(wide, eps=bn_eps)
        self.act2 = nn.SiLU()
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(wide, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                # Fan-out of one group: the published initialisation of depthwise convolutions.
                fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels // module.groups
                nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """``images`` [n, c, h, w] to logits [n, classes]."""
        x = self.blocks(self.act1(self.bn1(self.conv_stem(images))))
        x = self.act2(self.bn2(self.conv_head(x))).mean(dim=(2, 3))
        logits: torch.Tensor = self.classifier(self.dropout(x))
        return logits


def efficientnet(
    name: str, width: float, depth: float, *, in_channels: int = 3, size: int = 32, classes: int = 10,
    stem_stride: int = 1, padding: Padding = "symmetric", bn_eps: float = 1e-5, dropout: float = 0.2,
    drop_path: float = 0.2,
) -> EfficientNet:  # fmt: skip
    """An EfficientNet ``width`` times as wide and ``depth`` times as deep as B0; ``name`` is what errors call it."""
    check_sizes(name, in_channels=in_channels, size=size, classes=classes, stem_stride=stem_stride)
    check_above_zero(name, bn_eps=bn_eps)
    for option, p in (("dropout", dropout), ("drop_path", drop_path)):
        if not 0 <= p < 1:
            raise ValueError(f"{name}: {option} must lie in [0, 1), got {p}. Use 0 to switch it off.")
    return EfficientNet(
        width, depth, in_channels, classes, stem_stride=stem_stride, padding=padding, bn_eps=bn_eps, dropout=dropout,
        drop_path=drop_path,
    )  # fmt: skip
