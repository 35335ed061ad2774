"""Images drawn by formula: ten figures of strokes, bent, turned and shifted, on clouds of light and dark."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from lisse.data.dataset import Dataset
from lisse.data.generators import generator

SIZE = 28
_MOST = 300_000  # images of one set: a gigabyte
_BLOCK = 50  # images drawn at a time
_Stroke = tuple[float, float, float, float]


def _polygon(corners: int, radius: float, turn: float) -> list[_Stroke]:
    angles = [turn + 2 * math.pi * corner / corners for corner in range(corners + 1)]
    points = [(radius * math.cos(angle), radius * math.sin(angle)) for angle in angles]
    return [(*start, *end) for start, end in itertools.pairwise(points)]


#: Each figure as strokes from (x, y) to (x, y), y pointing down, in the square [-1, 1]².
FIGURES: dict[str, list[_Stroke]] = {
    "ring": _polygon(12, 0.9, 0.0),
    "triangle": _polygon(3, 1.0, -math.pi / 2),
    "square": _polygon(4, 1.05, math.pi / 4),
    "star": [(-x, -y, x, y) for x, y, _, _ in _polygon(6, 1.0, math.pi / 2)[:3]],
    "plus": [(-1, 0, 1, 0), (0, -1, 0, 1)],
    "cross": [(-0.8, -0.8, 0.8, 0.8), (-0.8, 0.8, 0.8, -0.8)],
    "corner": [(-0.6, -1, -0.6, 1), (-0.6, 1, 0.7, 1)],
    "tee": [(-0.9, -0.9, 0.9, -0.9), (0, -0.9, 0, 1)],
    "zigzag": [(-0.8, -0.9, 0.8, -0.9), (0.8, -0.9, -0.8, 0.9), (-0.8, 0.9, 0.8, 0.9)],
    "hook": [(-0.6, -1, -0.6, 0.3), (-0.6, 0.3, 0, 0.9), (0, 0.9, 0.6, 0.3), (0.6, 0.3, 0.6, -1)],
}


def shapes(n: int = 1000, *, bend: float = 0.05, clutter: float = 0.25, split: str = "test", seed: int = 0) -> Dataset:
    r"""``n`` grey images ``[n, 1, 28, 28]`` in [0, 1] of ten figures, as many of each.

    Every figure has its own turn (up to 20°), size, shift, thickness, and is lighter or darker than what lies behind
    it: :math:`\tfrac12` plus ``clutter`` times a smooth random field of unit variance. Its plane is bent by sines of
    the lowest four frequencies, with Gaussian coefficients of deviation ``bend`` (in half sides of the image). Nothing
    is interpolated: a pixel's grey is a function of its distance to the nearest stroke.
    """
    if not 10 <= n <= _MOST:
        raise ValueError(f"shapes: n must lie in 10 … {_MOST}, got {n}. It is the number of images.")
    for name, value in (("bend", bend), ("clutter", clutter)):
        if not 0 <= value <= 1:
            raise ValueError(f"shapes: {name} must lie in 0 … 1, got {value}. 0 leaves it out.")
    source = generator("shapes", split, seed)
    labels = torch.arange(n) % len(FIGURES)
    blocks = [_drawn(part, bend, clutter, source) for part in labels.split(_BLOCK)]
    return Dataset("shapes", torch.cat(blocks)[:, None], labels, classes=tuple(FIGURES))


def _drawn(labels: Tensor, bend: float, clutter: float, source: torch.Generator) -> Tensor:
    """Images ``[n, 28, 28]`` of the figures with these numbers."""
    n = len(labels)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(n, *shape, generator=source)

    line = (torch.arange(SIZE) + 0.5) / SIZE * 2 - 1
    plane = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1).reshape(-1, 2)  # [pixels, (x, y)]
    waves = torch.tensor([[a, b] for a in (1, 2) for b in (1, 2)]) * math.pi / 2
    modes = ((plane[:, None] + 1) * waves).sin().prod(-1)
    bent = plane + torch.einsum("pk,nkd->npd", modes, bend * torch.randn(n, len(waves), 2, generator=source))
    size, turn = uniform(0.5, 0.75, 1), uniform(-0.35, 0.35)
    turned = torch.stack([turn.cos(), -turn.sin(), turn.sin(), turn.cos()], -1).reshape(n, 2, 2)
    inside = (bent - uniform(-0.2, 0.2, 1, 2)) / size[..., None] @ turned
    ink = ((uniform(0.06, 0.11, 1) - size * _distance(inside, labels)) / 0.03).sigmoid()
    waves = torch.tensor([[a, b] for a in range(5) for b in range(5) if 0 < a * a + b * b <= 20]) * math.pi / 2
    clouds = ((plane[:, None] + 1) * waves).cos().prod(-1) / len(waves) ** 0.5
    behind = clutter * torch.randn(n, len(waves), generator=source) @ clouds.T
    side = torch.where(uniform(0, 1, 1) < 0.5, -1.0, 1.0)
    return (0.5 + behind + side * uniform(0.25, 0.35, 1) * ink).clamp(0, 1).reshape(n, SIZE, SIZE)


def _distance(points: Tensor, labels: Tensor) -> Tensor:
    """Of points ``[n, p, 2]``, each to the nearest stroke of its image's figure ``[n, p]``."""
    most = max(map(len, FIGURES.values()))
    table = torch.tensor([strokes + strokes[:1] * (most - len(strokes)) for strokes in FIGURES.values()])
    start, end = table[labels].float().split(2, -1)
    away, along = points[:, :, None] - start[:, None], (end - start)[:, None]
    share = ((away * along).sum(-1) / along.square().sum(-1)).clamp(0, 1)
    return (away - share[..., None] * along).norm(dim=-1).amin(-1)
