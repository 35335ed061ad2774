"""Spearman's rank correlation over a handful of networks, with an interval and a permutation test."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lisse.maths.intervals import bootstrap

LEAST = 4  # with three networks every interval is [-1, 1]


@dataclass(frozen=True)
class Correlation:
    """Spearman's ρ over ``n`` networks, its 95 % interval, and the share of permutations that are as far from 0."""

    value: float
    low: float
    high: float
    n: int
    p_value: float


def ranks(values: Tensor) -> Tensor:
    """Ranks from 1 along the last axis, equal values sharing the mean of theirs; O(n²)."""
    below = (values[..., None, :] < values[..., :, None]).sum(-1)
    equal = (values[..., None, :] == values[..., :, None]).sum(-1)
    return below + (equal + 1).double() / 2


def spearman(x: Tensor, y: Tensor) -> Tensor:
    r"""Spearman's :math:`\rho` along the last axis: Pearson's correlation of the ranks; 0 where one is constant."""
    a, b = (ranks(torch.as_tensor(values, dtype=torch.float64)) for values in (x, y))
    a, b = a - a.mean(-1, keepdim=True), b - b.mean(-1, keepdim=True)
    size = (a.square().sum(-1) * b.square().sum(-1)).sqrt()
    return torch.where(size > 0, (a * b).sum(-1) / size.clamp_min(1e-300), 0.0).clamp(-1, 1)


def rank_correlation(
    x: Sequence[float], y: Sequence[float], *, seed: int = 0, resamples: int = 1000, permutations: int = 20_000
) -> Correlation:
    """Spearman's ρ of the pairs that both have a value.

    The interval resamples networks (expanded BCa bootstrap, :func:`lisse.maths.intervals.bootstrap`): it says how far ρ
    may move if other networks had been chosen, as if these were drawn from a larger set, and nothing about other seeds.
    The p-value counts random permutations of one side, the given one among them. All NaN with fewer than four pairs.
    """
    if len(x) != len(y):
        raise ValueError(f"rank_correlation: x and y must have one value per network, got {len(x)} and {len(y)}.")
    pairs = torch.tensor([(a, b) for a, b in zip(x, y, strict=True) if math.isfinite(a) and math.isfinite(b)])
    n = len(pairs)
    if n < LEAST:
        return Correlation(math.nan, math.nan, math.nan, n, math.nan)
    pairs = pairs.double()
    generator = torch.Generator().manual_seed(seed)
    interval = bootstrap(
        pairs, lambda sample: spearman(sample[:, 0], sample[:, 1]).expand(2), resamples=resamples, generator=generator
    )
    order = torch.rand(permutations, n, generator=generator).argsort(1)
    shuffled = spearman(pairs[:, 0].expand(permutations, n), pairs[:, 1][order])
    far = int((shuffled.abs() >= interval.value[0].abs() - 1e-12).sum())
    value, low, high = (float(end[0]) for end in (interval.value, interval.low, interval.high))
    return Correlation(value, min(low, value), max(high, value), n, (far + 1) / (permutations + 1))
