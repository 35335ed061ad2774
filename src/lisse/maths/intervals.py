"""Confidence intervals: bootstrap for statistics of samples, disjoint clouds for statistics of point clouds.

A cloud statistic (persistence, transport, effective rank) must not be bootstrapped: resampling with replacement
duplicates points, which changes the very shape that is measured. It is computed on disjoint clouds of one size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from lisse.maths.given import all_finite, check_least, check_level

_Statistic = Literal["mean", "median"] | Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with a confidence interval, for one statistic (scalars) or several at once (tensors of one shape)."""

    value: Tensor
    low: Tensor
    high: Tensor
    n: int
    level: float


def no_interval(value: Tensor, n: int, level: float) -> Interval:
    """A value whose ends are not known: they are NaN."""
    unknown = torch.full_like(value, torch.nan)
    return Interval(value, unknown, unknown, n, level)


def student(freedom: float, level: float) -> float:
    """How many standard errors Student's two-sided interval of ``level`` reaches, with so many degrees of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + level) / 2))


def bootstrap(
    values: Tensor,
    statistic: _Statistic = "mean",
    *,
    level: float = 0.95,
    resamples: int = 2000,
    generator: torch.Generator | None = None,
) -> Interval:
    r"""Expanded BCa bootstrap interval of a statistic over samples ``[n, …]``, for every trailing index at once.

    With :math:`\hat\theta^*_1 … \hat\theta^*_B` the statistic on resamples, :math:`z_0 = \Phi^{-1}(\#\{\hat\theta^* <
    \hat\theta\}/B)` (ties count half) and the acceleration :math:`a = \sum d_i^3 / (6 (\sum d_i^2)^{3/2})` from
    jackknife deviations :math:`d_i`, the ends are the quantiles of :math:`\hat\theta^*` at
    :math:`\Phi(z_0 + (z_0 + z)/(1 - a (z_0 + z)))`, :math:`z = \mp t_{n-1}((1 + \text{level})/2) \sqrt{n/(n-1)}`.
    Student's quantile and the factor widen it for what a bootstrap of few samples misses: its spread is that of the
    sample, without the usual correction ([hesterberg2015] sec. 5).

    ``statistic`` is ``mean``, ``median`` (of an even number: the middle of the two), or a function that reduces axis
    0 of ``[n, …]``. The same resamples serve all trailing indices, so that they can be compared. Second-order
    accurate, O(1/n): 95 % intervals of a mean covered 75 / 90 / 93 / 94 % for normal, 66 / 81 / 86 / 91 % for
    lognormal samples at n = 3 / 5 / 8 / 32 (2,000 each). Cost: O(B n) per trailing index; memory for 64
    resamples (or 1 MiB) at a time. Reference: [efron1987] sec. 4.
    """
    values = _samples("bootstrap", values)
    n = len(values)
    if n < 2:
        raise ValueError(f"bootstrap: values must hold at least 2 samples, got {n}.")
    check_level("bootstrap", level)
    check_least("bootstrap", 100, resamples=resamples)
    flat = values.reshape(n, -1).double()
    reduce = _reducer(statistic)
    value = reduce(flat)
    replicates = _replicates(flat, statistic, resamples, generator)
    ties = (replicates == value).double().mean(0)
    below = (replicates < value).double().mean(0) + ties / 2
    bias = torch.special.ndtri(below.clamp(0.5 / resamples, 1 - 0.5 / resamples))
    skew = _acceleration(flat, statistic)
    half = student(n - 1, level) * (n / (n - 1)) ** 0.5
    ordered = replicates.T.contiguous().sort(1).values  # once for both ends
    ends = []
    for z in (bias - half, bias + half):
        # Far out, 1 - a z turns negative and the quantile would jump to the other side: the end is the last replicate.
        straight = (1 - skew * z).clamp_min(1e-3)
        ends.append(_quantile(ordered, torch.special.ndtr(bias + z / straight)))
    shape = values.shape[1:]
    low, high = (end.reshape(shape).to(values.device) for end in ends)
    return Interval(value.reshape(shape).to(values.device), low, high, n, level)


def across_clouds(values: Tensor, *, level: float = 0.95) -> Interval:
    r"""Student interval of a statistic's mean over disjoint clouds ``[k, …]``: :math:`\bar x \pm t_{k-1} s/\sqrt k`.

    What it is an interval for is the expected statistic of a cloud of that size. Exact where the statistic is normal
    over clouds.
    """
    values = _samples("across_clouds", values)
    k = len(values)
    if k < 2:
        raise ValueError(f"across_clouds: values must come from at least 2 clouds, got {k}.")
    check_level("across_clouds", level)
    mean = values.double().mean(0)
    half = student(k - 1, level) * values.double().std(0) / k**0.5
    return Interval(mean, mean - half, mean + half, k, level)


def share_interval(share: Tensor | float, n: int, *, level: float = 0.95) -> Interval:
    r"""Wilson's interval of shares :math:`p = k/n` ``[…]``, each of ``n`` independent trials.

    .. math:: \frac{p + z^2/2n \mp z \sqrt{p(1 - p)/n + z^2/4n^2}}{1 + z^2/n}, \quad
              z = \Phi^{-1}((1 + \text{level})/2)

    Within [0, 1], and of positive length also where all or none succeeded. Reference: [wilson1927].
    """
    share = torch.as_tensor(share, dtype=torch.float64)
    check_least("share_interval", 1, n=n)
    check_level("share_interval", level)
    if not bool(((share >= 0) & (share <= 1)).all()):
        raise ValueError(f"share_interval: share must lie in [0, 1], got {share.tolist()}.")
    z = float(torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64)))
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * (share * (1 - share) / n + z**2 / (4 * n**2)).sqrt()
    # At shares of 0 and 1 an end meets the share, but for rounding.
    low, high = torch.minimum(middle - half, share), torch.maximum(middle + half, share)
    return Interval(share, low.clamp_min(0), high.clamp_max(1), n, level)


def disjoint_clouds(n: int, size: int, *, clouds: int = 5, generator: torch.Generator | None = None) -> Tensor:
    """Indices ``[k, size]`` of up to ``clouds`` disjoint random clouds out of ``n`` samples, each sorted.

    ``k`` is smaller where ``n`` does not hold that many; at least one must fit.
    """
    check_least("disjoint_clouds", 1, size=size, clouds=clouds)
    if n < size:
        raise ValueError(f"disjoint_clouds: size must not exceed the number of samples, got {size} of {n}.")
    count = min(clouds, n // size)
    order = torch.randperm(n, generator=generator)[: count * size]
    return order.reshape(count, size).sort(1).values


def _samples(where: str, values: Tensor) -> Tensor:
    values = torch.as_tensor(values)
    if values.ndim == 0:
        raise ValueError(f"{where}: values must have samples on axis 0, got a single number.")
    if not all_finite(values):
        raise ValueError(f"{where}: values must be finite, got NaN or infinity among them.")
    return values


def median(values: Tensor) -> Tensor:
    """The median over axis 0; of an even number, the middle of the two. On the CPU by selection, without sorting."""
    n = len(values)
    if values.device.type != "cpu" or values.requires_grad or values.dtype not in (torch.float32, torch.float64):
        ordered = values.sort(0).values
        return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    parts = np.partition(np.ascontiguousarray(values.movedim(0, -1).numpy()), n // 2, axis=-1)  # of one place: fast
    above = torch.as_tensor(parts[..., n // 2])
    return above if n % 2 else (torch.as_tensor(parts[..., : n // 2].max(-1)) + above) / 2


def _reducer(statistic: _Statistic) -> Callable[[Tensor], Tensor]:
    if statistic == "mean":
        return lambda values: values.mean(0)
    if statistic == "median":
        return median
    if callable(statistic):
        return statistic
    raise ValueError(f"bootstrap: statistic must be mean, median or a function, got {statistic!r}.")


def _replicates(flat: Tensor, statistic: _Statistic, resamples: int, generator: torch.Generator | None) -> Tensor:
    n = len(flat)
    reduce = _reducer(statistic)
    replicates = []
    step = max(64, 2**17 // n) if statistic == "mean" else 64  # the same draws and sums, in fewer calls
    for start in range(0, resamples, step):
        count = min(step, resamples - start)
        picks = torch.randint(n, (count, n), generator=generator).to(flat.device)
        if statistic == "mean":  # counts times values: one matrix product for every column at once
            counts = flat.new_zeros(count, n).scatter_add_(1, picks, flat.new_ones(1, 1).expand(count, n))
            replicates.append(counts @ flat / n)
        elif statistic == "median":
            replicates.append(median(flat[picks].movedim(1, 0)))
        else:
            replicates.append(torch.stack([reduce(flat[pick]) for pick in picks]))
    return torch.cat(replicates)


def _acceleration(flat: Tensor, statistic: _Statistic) -> Tensor:
    n = len(flat)
    if statistic == "mean":
        deviations = (flat - flat.mean(0)) / (n - 1)
    elif statistic == "median":
        return flat.new_zeros(flat.shape[1])  # the jackknife is inconsistent for a quantile
    else:
        reduce = _reducer(statistic)
        left_out = torch.stack([reduce(torch.cat([flat[:i], flat[i + 1 :]])) for i in range(n)])
        deviations = left_out.mean(0) - left_out
    cubes, squares = deviations.pow(3).sum(0), deviations.pow(2).sum(0)
    return torch.where(squares > 0, cubes / (6 * squares.clamp_min(1e-300) ** 1.5), 0.0)


def _quantile(ordered: Tensor, at: Tensor) -> Tensor:
    """Linear-interpolation quantiles of rows in increasing order, one level per row."""
    last = ordered.shape[1] - 1
    position = at.clamp(0, 1) * last
    left = position.floor().long()
    right = (left + 1).clamp_max(last)
    low, high = ordered.gather(1, left[:, None])[:, 0], ordered.gather(1, right[:, None])[:, 0]
    return low + (high - low) * (position - left)
