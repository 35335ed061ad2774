"""Several tanh networks of one shape, trained side by side: one batched product for all of them.

Each has its own start and its own order of the samples, both from its seed alone, and Adam works number by number: a
network becomes what it would have become by itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Start = Literal["default", "orthogonal"]


@dataclass(frozen=True)
class Lesson:
    """How networks are trained: ``beta`` weighs the isometric loss, ``scale`` multiplies the distances of the layer.

    With ``scale`` 1 the loss is eq. (1) of [beshkov2022]; the authors' code has 10 for MNIST, so that its networks are
    asked to shrink distances ten times. ``start`` is PyTorch's default, or orthogonal between hidden layers as there.
    """

    beta: float
    scale: float = 1.0
    start: Start = "default"
    width: int = 100
    depth: int = 4
    epochs: int = 5
    batch: int = 100
    rate: float = 1e-3


def starts(sizes: Sequence[int], seeds: Sequence[int], start: Start) -> list[Tensor]:
    """Weights ``[m, out, in]`` and biases ``[m, 1, out]`` of every layer in turn, float64, for each seed."""
    networks: list[list[Tensor]] = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        parameters: list[Tensor] = []
        for index, (into, out) in enumerate(itertools.pairwise(sizes)):
            bound = into**-0.5
            weight = torch.rand(out, into, generator=generator, dtype=torch.float64).mul_(2 * bound).sub_(bound)
            if start == "orthogonal" and 0 < index < len(sizes) - 2:
                normal = torch.randn(out, into, generator=generator, dtype=torch.float64)
                q, r = torch.linalg.qr(normal)
                weight = q * r.diagonal().sign()  # uniform over the orthogonal group
            bias = torch.rand(1, out, generator=generator, dtype=torch.float64).mul_(2 * bound).sub_(bound)
            parameters += [weight, bias]
        networks.append(parameters)
    return [torch.stack(layer).requires_grad_() for layer in zip(*networks, strict=True)]


def outputs(parameters: Sequence[Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Logits ``[m, b, classes]`` and the last hidden layer ``[m, b, width]`` of ``x`` ``[m, b, d]``."""
    for weight, bias in zip(parameters[:-2:2], parameters[1:-2:2], strict=True):
        x = torch.tanh(torch.baddbmm(bias, x, weight.mT))
    return torch.baddbmm(parameters[-1], x, parameters[-2].mT), x


def pairwise_distances(x: Tensor) -> Tensor:
    """Euclidean distances ``[m, b, b]`` within each ``x`` ``[m, b, d]``; the diagonal has neither value nor slope."""
    squares = x.square().sum(-1)
    squared = torch.baddbmm(squares[:, :, None] + squares[:, None], x, x.mT, alpha=-2)
    # Points that coincide have no direction: the square root is kept away from 0, where its slope is infinite.
    return squared.clamp_min(1e-12).sqrt()


def isometric_losses(hidden: Tensor, apart: Tensor, within: Tensor, scale: float) -> Tensor:
    r""":math:`\frac1{B^2}\sum_{ij} G_{ij} (d_{ij} - s\,\delta_{ij})^2` of each network, ``[m]``."""
    difference = (apart - scale * pairwise_distances(hidden)) * within
    return difference.square().sum((1, 2)) / hidden.shape[1] ** 2


def trained_ensemble(
    images: Tensor,
    labels: Tensor,
    seeds: Sequence[int],
    lesson: Lesson,
    *,
    classes: int = 10,
    tell: Callable[[int, int], None] | None = None,
) -> list[dict[str, Tensor]]:
    """Train one network for each seed on ``images`` ``[n, d]``; their parameters ``weight0, bias0, …``, by seed.

    The loss is the mean cross-entropy plus ``beta`` times the isometric loss within classes, in float64, by Adam.
    """
    sizes = [images.shape[1], *[lesson.width] * lesson.depth, classes]
    parameters = starts(sizes, seeds, lesson.start)
    optimiser = torch.optim.Adam(parameters, lr=lesson.rate)
    orders = [torch.Generator().manual_seed(1_000_003 + seed) for seed in seeds]
    steps = len(images) // lesson.batch
    for epoch in range(lesson.epochs):
        order = torch.stack([torch.randperm(len(images), generator=generator) for generator in orders])
        for step in range(steps):
            samples = order[:, step * lesson.batch : (step + 1) * lesson.batch]
            x, y = images[samples].double(), labels[samples]
            logits, hidden = outputs(parameters, x)
            # A sum over networks: the gradient of each is that of its own loss.
            loss = functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum") / lesson.batch
            if lesson.beta:
                within = (y[:, :, None] == y[:, None]) & ~torch.eye(lesson.batch, dtype=torch.bool)
                with torch.no_grad():
                    apart = pairwise_distances(x)
                loss = loss + lesson.beta * isometric_losses(hidden, apart, within, lesson.scale).sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if tell is not None and (step + 1) % 20 == 0:
                tell(epoch * steps + step + 1, steps * lesson.epochs)
    names = [f"{kind}{layer}" for layer in range(len(sizes) - 1) for kind in ("weight", "bias")]
    return [
        {name: value[index].detach().squeeze(0) for name, value in zip(names, parameters, strict=True)}
        for index in range(len(seeds))
    ]
