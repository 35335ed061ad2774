"""Convex symmetric sets that measures may live on: samplers for the search for stretch, with projections."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class _Radius:
    dim: int
    radius: float

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.dim < 1:
            raise ValueError(f"{name}: dim must be at least 1, got {self.dim}.")
        if not 0 < self.radius < float("inf"):
            raise ValueError(f"{name}: radius must be positive and finite, got {self.radius}.")


class Ball(_Radius):
    """The ℓ2-ball of a radius in R^dim. Half of its samples are uniform inside, half on the sphere."""

    def __call__(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Points ``[count, dim]``."""
        direction = torch.randn(count, self.dim, generator=generator, dtype=torch.float64)
        direction = direction / direction.norm(dim=1, keepdim=True).clamp_min(1e-300)
        return self.radius * direction * _depth(count, self.dim, generator)

    def project(self, points: Tensor) -> Tensor:
        """The nearest points of the ball."""
        size = torch.linalg.vector_norm(points, dim=1, keepdim=True)
        return points * torch.clamp(self.radius / size.clamp_min(1e-300), max=1.0)


class Box(_Radius):
    """The cube [-radius, radius]^dim. Half of its samples are uniform inside, half are corners."""

    def __call__(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Points ``[count, dim]``."""
        inside = 2 * torch.rand(count, self.dim, generator=generator, dtype=torch.float64) - 1
        corner = torch.rand(count, 1, generator=generator) < 0.5
        return self.radius * torch.where(corner, torch.where(inside < 0, -1.0, 1.0).double(), inside)

    def project(self, points: Tensor) -> Tensor:
        """The nearest points of the cube."""
        return points.clamp(-self.radius, self.radius)


class CrossPolytope(_Radius):
    """The ℓ1-ball of a radius in R^dim. Its samples are uniform inside, on its boundary, or its corners ±R e_i."""

    def __call__(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Points ``[count, dim]``."""
        raw = -torch.rand(count, self.dim, generator=generator, dtype=torch.float64).clamp_min(1e-300).log()
        raw = raw * torch.where(torch.rand(count, self.dim, generator=generator) < 0.5, -1.0, 1.0)
        axis = torch.nn.functional.one_hot(raw.abs().argmax(1), self.dim) * raw
        raw = torch.where(torch.rand(count, 1, generator=generator) < 0.25, axis, raw)
        return self.radius * raw / raw.abs().sum(1, keepdim=True) * _depth(count, self.dim, generator)

    def project(self, points: Tensor) -> Tensor:
        """The nearest points of the ℓ1-ball (soft thresholding at the level that sorting finds)."""
        size = points.abs().sum(1, keepdim=True)
        ordered = points.abs().sort(1, descending=True).values
        counts = torch.arange(1, self.dim + 1, dtype=points.dtype)
        levels = (ordered.cumsum(1) - self.radius) / counts
        count = (ordered > levels).sum(1, keepdim=True).clamp_min(1)
        level = levels.gather(1, count - 1)
        return torch.where(size <= self.radius, points, points.sign() * (points.abs() - level).clamp_min(0))


def _depth(count: int, dim: int, generator: torch.Generator | None) -> Tensor:
    """How far out: uniform in volume for half of the points, on the boundary for the other half."""
    inside = torch.rand(count, 1, generator=generator, dtype=torch.float64) ** (1 / dim)
    return torch.where(torch.rand(count, 1, generator=generator) < 0.5, inside, 1.0)
