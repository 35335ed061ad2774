"""How well one number predicts another across networks, on networks that the prediction has not seen."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lisse.maths.intervals import Interval


@dataclass(frozen=True, slots=True)
class Power:
    """``skill`` is the cross-validated R², ``rank`` Spearman's correlation; intervals are over groups."""

    skill: Interval
    rank: Interval
    groups: int


def predictive_power(
    x: Tensor,
    y: Tensor,
    groups: Sequence[Hashable],
    *,
    level: float = 0.95,
    resamples: int = 2000,
    generator: torch.Generator | None = None,
) -> Power:
    r"""Of ``x`` ``[n]`` about ``y`` ``[n]``: every group is predicted by the line through all others.

    .. math:: R^2 = 1 - \sum_i (y_i - \hat y_i)^2 \big/ \sum_i (y_i - \bar y_i)^2

    where :math:`\hat y_i` and the mean :math:`\bar y_i` come from the other groups: 0 is what the mean does
    alone, below it the line misleads. A group (one network from several seeds) is left out whole, for its members all
    but repeat each other. Intervals resample groups; Spearman's is that of the resampled networks. Below three groups,
    or where either number is constant, everything is NaN. Costs :math:`O(n G)` and ``resamples`` rankings.
    """
    x, y = x.double(), y.double()
    if x.ndim != 1 or x.shape != y.shape or len(groups) != len(x):
        raise ValueError(
            f"predictive_power: x, y and groups must be as long as each other, got {tuple(x.shape)}, {tuple(y.shape)} "
            f"and {len(groups)}."
        )
    names = list(dict.fromkeys(groups))
    index = torch.tensor([names.index(group) for group in groups])
    count, n = len(names), len(x)
    unknown = torch.tensor(torch.nan, dtype=torch.float64)
    if count < 3 or n < 4 or bool((x == x[0]).all()) or bool((y == y[0]).all()):
        return Power(
            Interval(unknown, unknown, unknown, n, level), Interval(unknown, unknown, unknown, n, level), count
        )
    line, mean = torch.empty_like(y), torch.empty_like(y)
    for group in range(count):
        outside = index != group
        centre, height = x[outside].mean(), y[outside].mean()
        spread = x[outside] - centre
        square = (spread**2).sum()
        slope = (spread * y[outside]).sum() / square if square > 0 else square
        mean[~outside] = height
        line[~outside] = height + slope * (x[~outside] - centre)
    missed = torch.zeros(count, dtype=torch.float64).index_add_(0, index, (y - line) ** 2)
    spread = torch.zeros(count, dtype=torch.float64).index_add_(0, index, (y - mean) ** 2)
    draws = torch.randint(count, (resamples, count), generator=generator)
    skills = 1 - missed[draws].sum(1) / spread[draws].sum(1)
    members = [torch.nonzero(index == group)[:, 0] for group in range(count)]
    picks = [torch.cat([members[group] for group in draw.tolist()]) for draw in draws[: min(resamples, 500)]]
    ranks = torch.stack([_spearman(x[pick], y[pick]) for pick in picks])
    skill = 1 - missed.sum() / spread.sum()
    return Power(_ends(skill, skills, n, level), _ends(_spearman(x, y), ranks, n, level), count)


def _ends(value: Tensor, draws: Tensor, n: int, level: float) -> Interval:
    draws = draws[torch.isfinite(draws)]
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = torch.quantile(draws, tails) if len(draws) else torch.full((2,), torch.nan, dtype=torch.float64)
    return Interval(value, torch.minimum(low, value), torch.maximum(high, value), n, level)


def _spearman(x: Tensor, y: Tensor) -> Tensor:
    a, b = (_ranks(values) for values in (x, y))
    a, b = a - a.mean(), b - b.mean()
    return (a * b).sum() / ((a**2).sum() * (b**2).sum()).sqrt()


def _ranks(values: Tensor) -> Tensor:
    """Ranks from 0; equal values share their mean."""
    _, inverse, counts = torch.unique(values, return_inverse=True, return_counts=True)
    ends = counts.cumsum(0)
    return (ends - (counts + 1) / 2.0)[inverse].double()
