"""Welch's test of two means, and correlations over many pairs, with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Welch:
    """``difference`` of the means (first minus second) with its 95 % interval, and the two-sided p-value of none."""

    difference: float
    low: float
    high: float
    t: float
    freedom: float
    p_value: float
    n: tuple[int, int]


def welch(first: Tensor, second: Tensor) -> Welch:
    r"""Welch's two-sided test [welch1947] for two samples ``[n]``, ``[m]`` of unequal variances.

    :math:`t = (\bar a - \bar b) / \sqrt{s_a^2/n + s_b^2/m}` against Student's law with :math:`(s_a^2/n + s_b^2/m)^2 /
    (\frac{(s_a^2/n)^2}{n-1} + \frac{(s_b^2/m)^2}{m-1})` degrees of freedom.
    """
    from scipy.special import stdtr, stdtrit

    a, b = torch.as_tensor(first).double(), torch.as_tensor(second).double()
    if len(a) < 2 or len(b) < 2:
        raise ValueError(f"welch: both samples must have at least 2 values, got {len(a)} and {len(b)}.")
    errors = [float(values.var()) / len(values) for values in (a, b)]
    difference, total = float(a.mean() - b.mean()), sum(errors)
    if total == 0:
        raise ValueError("welch: one of the samples must vary, got two constants.")
    freedom = total**2 / sum(error**2 / (len(values) - 1) for error, values in zip(errors, (a, b), strict=True))
    t = difference / math.sqrt(total)
    half = float(stdtrit(freedom, 0.975)) * math.sqrt(total)
    return Welch(
        difference, difference - half, difference + half, t, freedom, 2 * float(stdtr(freedom, -abs(t))),
        (len(a), len(b)),
    )  # fmt: skip


@dataclass(frozen=True)
class Correlated:
    """A correlation or difference over ``n`` pairs, and its 95 % percentile interval: pairs or groups are resampled."""

    value: float
    low: float
    high: float
    n: int


def pearson(
    x: Tensor, y: Tensor, *, groups: Sequence[str] | None = None, seed: int = 0, resamples: int = 1000
) -> Correlated:
    """Pearson's correlation of ``[n]`` and ``[n]``; 0 where one does not vary.

    The interval resamples pairs, or whole ``groups`` where they are given: what it may be for other templates.
    """
    a, b = torch.as_tensor(x).double(), torch.as_tensor(y).double()
    if a.shape != b.shape or a.ndim != 1 or len(a) < 3:
        raise ValueError(f"pearson: x and y must be [n] with n at least 3, got {list(a.shape)} and {list(b.shape)}.")
    a, b = a - a.mean(), b - b.mean()
    moments = torch.stack([torch.ones_like(a), a, b, a * a, b * b, a * b], 1)
    return _resampled(moments, _correlation, groups, seed, resamples)


def difference(
    values: Tensor, first: Tensor, *, groups: Sequence[str] | None = None, seed: int = 0, resamples: int = 1000
) -> Correlated:
    """Mean of ``values`` ``[n]`` where ``first`` is true minus that of the others; intervals as in ``pearson``."""
    numbers, which = torch.as_tensor(values).double(), torch.as_tensor(first).double()
    if not 0 < int(which.sum()) < len(which):
        raise ValueError(
            f"difference: first must be true for some and not for all, got {int(which.sum())} of {len(which)}."
        )
    moments = torch.stack([which, 1 - which, which * numbers, (1 - which) * numbers], 1)
    return _resampled(moments, lambda m: m[..., 2] / m[..., 0] - m[..., 3] / m[..., 1], groups, seed, resamples)


def _resampled(
    moments: Tensor, statistic: Callable[[Tensor], Tensor], groups: Sequence[str] | None, seed: int, resamples: int
) -> Correlated:
    """A function of sums over pairs, ``moments`` ``[n, k]``, with an interval."""
    units = (
        moments
        if groups is None
        else torch.zeros(len(set(groups)), moments.shape[1], dtype=torch.float64).index_add_(
            0, _group_numbers(groups), moments
        )
    )
    generator = torch.Generator().manual_seed(seed)
    draws = []
    for start in range(0, resamples, 100):
        picks = torch.randint(len(units), (min(100, resamples - start), len(units)), generator=generator)
        counts = torch.zeros(len(picks), len(units), dtype=torch.float64)
        counts.scatter_add_(1, picks, torch.ones_like(counts))
        draws.append(statistic(counts @ units))
    every = torch.cat(draws)
    low, high = (float(every[torch.isfinite(every)].quantile(at)) for at in (0.025, 0.975))
    return Correlated(float(statistic(moments.sum(0))), low, high, len(moments))


def _group_numbers(groups: Sequence[str]) -> Tensor:
    names = {name: index for index, name in enumerate(dict.fromkeys(groups))}
    return torch.tensor([names[name] for name in groups])


def ranked(values: Tensor) -> Tensor:
    """Ranks from 1, equal values sharing the mean of theirs: Pearson's correlation of ranks is Spearman's."""
    from scipy.stats import rankdata

    return torch.from_numpy(rankdata(torch.as_tensor(values).double().numpy()))


def within(values: Tensor, groups: Sequence[str]) -> Tensor:
    """``values`` without the mean of their group: what is left does not know which template a pair came from."""
    which, count = _group_numbers(groups), len(set(groups))
    numbers = torch.as_tensor(values).double()
    sums = torch.zeros(count, dtype=torch.float64).index_add_(0, which, numbers)
    return numbers - (sums / torch.bincount(which, minlength=count))[which]


def _correlation(moments: Tensor) -> Tensor:
    n, *sums = moments.unbind(-1)
    a, b, aa, bb, ab = (total / n for total in sums)
    size = ((aa - a * a).clamp_min(0) * (bb - b * b).clamp_min(0)).sqrt()
    return torch.where(size > 0, (ab - a * b) / size.clamp_min(1e-300), 0.0)
