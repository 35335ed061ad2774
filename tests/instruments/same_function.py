"""Small networks, and changes of their weights that leave the function, or at least every decision, as it was."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lisse.data import Dataset
from lisse.networks.zoo.vit import VisionTransformer, vit

WIDTH, CLASSES = 8, 4


def pictures(n: int = 60) -> Dataset:
    """Blobs with labels, in float64, so that rounding is far below every number."""
    generator = torch.Generator().manual_seed(5)
    labels = torch.randint(CLASSES, (n,), generator=generator)
    centres = torch.rand(CLASSES, 1, 8, 8, generator=generator, dtype=torch.float64)
    images = centres[labels] + 0.3 * torch.rand(n, 1, 8, 8, generator=generator, dtype=torch.float64)
    return Dataset("blobs", images.clamp(0, 1), labels)


@dataclass(frozen=True)
class Change:
    """What happens to the layers: each multiplied by a constant and its units reordered, or turned and shifted as well.

    ``constants`` has one for each layer, cycled; ``seed`` draws permutations, rotations and shifts; ``temperature``
    multiplies the logits.
    """

    constants: Sequence[float] = (1.0,)
    temperature: float = 1.0
    seed: int = 0
    permuted: bool = False
    rotated: bool = False
    shifted: bool = False

    def constant(self, index: int) -> float:
        return self.constants[index % len(self.constants)]

    def generator(self, index: int) -> torch.Generator:
        return torch.Generator().manual_seed(1000 * self.seed + index)

    def order(self, index: int, width: int) -> Tensor:
        return torch.randperm(width, generator=self.generator(index)) if self.permuted else torch.arange(width)


# -- networks ----------------------------------------------------------------------------------------------------------


class Affine(nn.Module):
    """A block that ends in a matrix: what comes out may be turned and shifted, and the next one takes it back."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, 12), nn.Linear(12, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


class Affines(nn.Module):
    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Affine(64 if index == 0 else WIDTH) for index in range(blocks))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def perceptron() -> nn.Sequential:
    widths = [nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, WIDTH), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *widths, nn.Linear(WIDTH, CLASSES))


def convolutions() -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in ((1, 4), (4, 6), (6, WIDTH)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * WIDTH, CLASSES))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.conv2, self.bn2 = nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))


class ResNet(nn.Module):
    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(1, 6, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(6)
        self.blocks = nn.Sequential(*(Residual() for _ in range(blocks)))
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(torch.relu(self.bn(self.conv(x)))).mean((2, 3)))


def transformer() -> VisionTransformer:
    # A layer norm sees the size of what it divides by through its eps alone.
    return vit("small", in_channels=1, size=8, classes=CLASSES, width=WIDTH, heads=2, depth=2, patch=4, eps=1e-14)


NETWORKS = {
    "affine": Affines, "mlp": perceptron, "cnn": convolutions, "resnet": ResNet, "transformer": transformer,
}  # fmt: skip


def network(kind: str) -> nn.Module:
    """One of ``NETWORKS`` with weights that matter everywhere, and norms that have seen data."""
    torch.manual_seed(3)
    model = NETWORKS[kind]().double()
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 1.5 / parameter[0].numel() ** 0.5 if parameter.ndim > 1 else 0.3
            parameter.copy_(scale * torch.randn_like(parameter) + (parameter.ndim == 1))
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.weight.add_(0.5).abs_()
        model.train()(pictures().inputs)
    return model.eval()


# -- changes -----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def changed(kind: str, model: nn.Module, change: Change) -> nn.Module:
    """The same function, with layers as the change says, and the logits at its temperature."""
    model = copy.deepcopy(model)
    {
        "affine": _affine, "mlp": _perceptron, "cnn": _convolutions, "resnet": _resnet, "transformer": _transformer,
    }[kind](model, change)  # fmt: skip
    head = model[-1] if isinstance(model, nn.Sequential) else model.head
    head.weight *= change.temperature
    head.bias *= change.temperature
    return model


def rotation(width: int, generator: torch.Generator, *, fixed: Tensor | None = None) -> Tensor:
    """A random orthogonal matrix; one that leaves the vector ``fixed`` where it is."""
    if fixed is None:
        return torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64))[0]
    basis = torch.linalg.qr(torch.cat([fixed[:, None], torch.randn(width, width - 1, generator=generator).double()], 1))
    inner = torch.eye(width, dtype=torch.float64)
    inner[1:, 1:] = rotation(width - 1, generator)
    return basis[0] @ inner @ basis[0].T


def _affine(model: Affines, change: Change) -> None:
    following = [*(block.first for block in list(model.blocks)[1:]), model.head]
    for index, (block, after) in enumerate(zip(model.blocks, following, strict=True)):
        generator = change.generator(index)
        turn = rotation(WIDTH, generator) if change.rotated else torch.eye(WIDTH).double()
        turn = change.constant(index) * turn[change.order(index, WIDTH)]
        shift = torch.randn(WIDTH, generator=generator).double() * 3 if change.shifted else torch.zeros(WIDTH).double()
        block.second.weight.copy_(turn @ block.second.weight)
        block.second.bias.copy_(turn @ block.second.bias + shift)
        after.weight.copy_(after.weight @ turn.inverse())
        after.bias.sub_(after.weight @ shift)


def _perceptron(model: nn.Sequential, change: Change) -> None:
    linear = [module for module in model if isinstance(module, nn.Linear)]
    for index, (before, after) in enumerate(itertools.pairwise(linear)):
        constant, order = change.constant(index), change.order(index, before.out_features)
        before.weight.copy_(constant * before.weight[order])
        before.bias.copy_(constant * before.bias[order])
        after.weight.copy_(after.weight[:, order] / constant)


def _permute_norm(norm: nn.BatchNorm2d, order: Tensor, constant: float) -> None:
    for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
        tensor.copy_(tensor[order])
    norm.weight.mul_(constant)
    norm.bias.mul_(constant)


def _convolutions(model: nn.Sequential, change: Change) -> None:
    layers = [module for module in model if isinstance(module, (nn.Conv2d, nn.Linear))]
    norms = [module for module in model if isinstance(module, nn.BatchNorm2d)]
    for index, (before, norm, after) in enumerate(zip(layers, norms, layers[1:], strict=False)):
        constant, order = change.constant(index), change.order(index, before.weight.shape[0])
        before.weight.copy_(before.weight[order])
        before.bias.copy_(before.bias[order])
        _permute_norm(norm, order, constant)
        grouped = after.weight.reshape(after.weight.shape[0], len(order), -1)  # of the matrix: four places a channel
        after.weight.copy_(grouped[:, order].reshape(after.weight.shape) / constant)


def _resnet(model: ResNet, change: Change) -> None:
    """The stream has one order and one constant, the inside of each block its own."""
    order, constant = change.order(0, 6), change.constant(0)
    model.conv.weight.copy_(model.conv.weight[order])
    _permute_norm(model.bn, order, constant)
    for index, block in enumerate(model.blocks, 1):
        inner, factor = change.order(index, 6), change.constant(index)
        block.conv1.weight.copy_(block.conv1.weight[inner][:, order] / constant)
        _permute_norm(block.bn1, inner, factor)
        block.conv2.weight.copy_(block.conv2.weight[order][:, inner] / factor)
        _permute_norm(block.bn2, order, constant)
    model.head.weight.copy_(model.head.weight[:, order] / constant)


def _transformer(model: VisionTransformer, change: Change) -> None:
    """The stream turned about the ones vector, which layer norms do not see, and scaled; gains are folded first."""
    readers = [(block.norm1, block.attn.qkv) for block in model.blocks]
    readers += [(block.norm2, block.mlp.fc1) for block in model.blocks] + [(model.norm, model.head)]
    ones = torch.ones(WIDTH, dtype=torch.float64)
    turn = rotation(WIDTH, change.generator(0), fixed=ones) if change.rotated else torch.eye(WIDTH).double()
    turn = turn[change.order(0, WIDTH)]
    for norm, layer in readers:
        layer.bias.add_(layer.weight @ norm.bias)
        layer.weight.copy_(layer.weight * norm.weight @ turn.T)
        norm.weight.fill_(1)
        norm.bias.zero_()
    constant = change.constant(0)
    shift = 3.0 if change.shifted else 0.0  # along the ones
    embedding = model.patch_embed.proj
    embedding.weight.copy_(constant * torch.einsum("ij,jckl->ickl", turn, embedding.weight))
    embedding.bias.copy_(constant * turn @ embedding.bias)
    model.cls_token.copy_(constant * model.cls_token @ turn.T)
    model.pos_embed.copy_(constant * model.pos_embed @ turn.T + shift)
    for block in model.blocks:
        for layer in (block.attn.proj, block.mlp.fc2):
            layer.weight.copy_(constant * turn @ layer.weight)
            layer.bias.copy_(constant * turn @ layer.bias)
