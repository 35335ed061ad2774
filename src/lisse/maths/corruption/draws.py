"""Random numbers image by image: what one image draws does not depend on who shares its batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Draws:
    """Uniform numbers in [0, 1) for ``count`` images, all of the first image's before any of the second's.

    They are drawn where the generator lives (CPU without one, from torch's default) and moved to ``device``. On the
    CPU a batch cut into parts draws the same numbers as the whole, and every device sees the same ones.
    """

    count: int
    generator: torch.Generator | None
    device: torch.device

    def uniform(self, *shapes: Sequence[int]) -> list[Tensor]:
        """A tensor ``[count, *shape]`` for each shape, float32."""
        sizes = [math.prod(shape) for shape in shapes]
        where = self.generator.device if self.generator is not None else torch.device("cpu")
        block = torch.rand(self.count, sum(sizes), generator=self.generator, device=where).to(self.device)
        parts = block.split(sizes, dim=1)
        return [part.reshape(self.count, *shape) for part, shape in zip(parts, shapes, strict=True)]

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers ``[count, *shape]``, float32."""
        (uniform,) = self.uniform([pairs(math.prod(shape))])
        return box_muller(uniform, shape)

    def poisson(self, rate: Tensor) -> Tensor:
        """Poisson numbers of mean ``rate`` ``[count, …]``."""
        where = self.generator.device if self.generator is not None else rate.device
        return torch.poisson(rate.to(where), generator=self.generator).to(rate.device)


def pairs(count: int) -> int:
    """How many uniform numbers make ``count`` normal ones: the next even number."""
    return count + count % 2


def box_muller(uniform: Tensor, shape: Sequence[int]) -> Tensor:
    r"""Normal numbers ``[n, *shape]`` from uniform ``[n, pairs]`` (Box and Muller).

    :math:`\sqrt{-2 \ln (1 - u)}\,(\cos 2\pi v, \sin 2\pi v)`. With 24 bits in u none exceeds 5.8.
    """
    u, v = uniform.chunk(2, dim=1)
    radius = torch.log(1 - u).mul_(-2).sqrt_()  # 1 - u has no rounding; log1p is several times slower
    angle = v * (2 * math.pi)
    normals = torch.cat([torch.cos(angle).mul_(radius), torch.sin(angle).mul_(radius)], dim=1)
    return normals[:, : math.prod(shape)].reshape(len(uniform), *shape)
