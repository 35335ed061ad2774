r"""Relative stability: how a function answers to smooth deformations, relative to noise of the same size.

Per sample :math:`x`, with a deformation :math:`\tau` and noise :math:`\eta` on the sphere of radius
:math:`r = \langle\|\tau x - x\|\rangle` ([petrini2021] eq. 4, 5):

.. math:: D_f = \frac{\langle\|f(\tau x) - f(x)\|^2\rangle}{\langle\|f(x) - f(z)\|^2\rangle}, \qquad
          G_f = \frac{\langle\|f(x + \eta) - f(x)\|^2\rangle}{\langle\|f(x) - f(z)\|^2\rangle}, \qquad R_f = D_f / G_f,

:math:`\langle\cdot\rangle` a mean or a median over samples and fields, :math:`x \ne z`.
"""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from lisse.maths.given import all_finite, check_least, check_level, check_word
from lisse.maths.intervals import Interval, median, no_interval, student
from lisse.maths.machine_code import in_turn, loops

_LOOPS = "lisse.maths.stability_loops"
Centre = Literal["mean", "median"]
_AT_ONCE = 2**22  # counts in flight while resampling
#: Numbers for every thread, at least. PyTorch's own threads still spin where another one is to start, right after a
#: layer was computed: on two cores a second thread made 4e5 numbers take twice as long, and 6e6 as long as alone.
_ALONE = 1 << 21


def sphere(directions: Tensor, radius: float | Tensor) -> Tensor:
    """Standard normals ``[n, …]`` scaled to norm ``radius`` (a number, or one per sample ``[n]``).

    Uniform on the sphere, since the normal law has no direction of its own.
    """
    directions = torch.as_tensor(directions)
    size = torch.as_tensor(radius, dtype=directions.dtype, device=directions.device)
    if size.ndim and size.shape != directions.shape[:1]:
        raise ValueError(
            f"sphere: radius must be a number or one per sample [{len(directions)}], got {list(size.shape)}."
        )
    if not bool((torch.isfinite(size) & (size >= 0)).all()):
        raise ValueError(f"sphere: radius must be finite and at least 0, got {radius}.")
    norms = torch.linalg.vector_norm(directions.flatten(1), dim=1)
    return directions * (size / norms).reshape(-1, *[1] * (directions.ndim - 1))


def squared_distances(a: Tensor, b: Tensor, *, rows: Tensor | None = None) -> Tensor:
    r""":math:`\|a_i - b_i\|^2` over all but the first axis, ``[n]``, in float32 (float64 for float64).

    With ``rows`` ``[n]``, :math:`\|a_i - b_{rows_i}\|^2`. One pass over both on a CPU with numba (``lisse[fast]``),
    else in chunks that stay in the cache: writing a whole difference to fresh memory would cost more than the sum.
    """
    a, b = torch.as_tensor(a), torch.as_tensor(b)
    if a.shape[1:] != b.shape[1:] or len(b if rows is None else rows) != len(a):
        got = f"{list(b.shape)}" + ("" if rows is None else f" with {len(rows)} rows")
        raise ValueError(f"squared_distances: b must match a, {list(a.shape)}, got {got}.")
    if rows is not None and len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(b):
        raise ValueError(f"squared_distances: rows must lie in 0 … {len(b) - 1}, got {rows.min()} … {rows.max()}.")
    a, b = a.flatten(1), b.flatten(1)
    graph = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    compiled = None if graph or not _plain(a, b) else loops(_LOOPS)
    if compiled is not None:
        return _summed_squares(compiled.sum_squares, a, b, rows)
    wide = torch.float64 if torch.float64 in (a.dtype, b.dtype) else torch.float32
    if a.device.type != "cpu" or graph:
        other = b if rows is None else b[rows.to(b.device)]
        return torch.linalg.vector_norm(a.to(wide) - other.to(wide), dim=1).square()
    n, d = a.shape
    norms = torch.empty(n, dtype=wide)
    at_once = max(1, min(n, 2**18 // max(1, d)))
    buffer = torch.empty(at_once, d, dtype=wide)
    for start in range(0, n, at_once):
        stop = min(start + at_once, n)
        part = buffer[: stop - start]
        other = b[start:stop] if rows is None else b[rows[start:stop]]
        if a.dtype == b.dtype == wide:
            torch.sub(a[start:stop], other, out=part)
        else:
            part.copy_(a[start:stop]).sub_(other)  # half-precision numbers would be subtracted in half precision
        torch.linalg.vector_norm(part, dim=1, out=norms[start:stop])
    return norms.square_()


def centre(values: Tensor, *, statistic: Centre = "median") -> Tensor:
    """The mean or the median (of an even number: the middle of the two) over all of ``values``, in float64."""
    check_word("centre", get_args(Centre), statistic=statistic)
    flat = torch.as_tensor(values).flatten().double()
    if not len(flat):
        raise ValueError("centre: values must hold at least one number, got none.")
    if not all_finite(flat):  # sorted last, they would shift a median unseen
        raise ValueError("centre: values must be finite, got NaN or infinity among them.")
    return flat.mean() if statistic == "mean" else median(flat)


def relative_stability(deformed: Tensor, noisy: Tensor, *, statistic: Centre = "median") -> Tensor:
    r""":math:`R_f` from squared distances ``[n]`` or ``[n, fields]`` of either kind ([petrini2021] eq. 4).

    The ratio of two means or of two medians, never the mean of ratios. NaN where the noise changes nothing. With
    :math:`\|f(x) - f(z)\|^2` below the line the same ratio is :math:`D_f`, or :math:`G_f` (eq. 5).
    """
    below = centre(noisy, statistic=statistic)
    return torch.where(below > 0, centre(deformed, statistic=statistic) / below, torch.nan)


def resample_counts(n: int, *, resamples: int = 1000, generator: torch.Generator | None = None) -> Tensor:
    """How often each of ``n`` samples is drawn in each of many resamples with replacement, int16 ``[resamples, n]``.

    The same counts serve every statistic of the same samples, so that what they have in common cancels in ratios.
    """
    check_least("resample_counts", 2, n=n)
    check_least("resample_counts", 100, resamples=resamples)
    counts = torch.zeros(n, resamples, dtype=torch.int16).T  # a sample's counts lie side by side: medians gather them
    for row in counts:
        row.copy_(torch.bincount(torch.randint(n, (n,), generator=generator), minlength=n))
    return counts


def pair_counts(counts: Tensor, partners: Tensor) -> Tensor:
    r"""How often each pair of sample i with sample ``partners[i]`` ``[n]`` is drawn, ``[resamples, n]``.

    The product of both samples' ``counts`` from :func:`resample_counts`. Where many pairs share a sample, to resample
    pairs as if they were independent would make intervals too short (half, for 500 samples opposite 50); this errs on
    the long side, by up to √3 where a distance says little about either sample ([owen2007]).
    """
    if partners.shape != counts.shape[1:]:
        raise ValueError(
            f"pair_counts: partners must have one entry per sample [{counts.shape[1]}], got {list(partners.shape)}."
        )
    by_sample = counts.T
    return (by_sample * by_sample.index_select(0, partners)).T


def resampled_centre(
    values: Tensor, counts: Tensor, *, statistic: Centre = "median", sizes: Tensor | None = None
) -> Tensor:
    """The mean or median of ``values`` ``[n]`` or ``[n, k]`` in every resample, float64 ``[resamples]``.

    Sample i counts ``counts[b, i]`` times in resample b, with all its k values; NaN where nothing was drawn. ``sizes``
    are ``counts.sum(1)``, for those who ask more than once. Cost: one sort and O(resamples · n k), in bounded memory.
    """
    check_word("resampled_centre", get_args(Centre), statistic=statistic)
    values = torch.as_tensor(values)
    values = values.reshape(len(values), -1).double().cpu()
    n, k = values.shape
    if counts.shape[1] != n:
        raise ValueError(f"resampled_centre: counts must be for {n} samples, got {counts.shape[1]}.")
    drawn = (counts.sum(1, dtype=torch.int64) if sizes is None else sizes) * k
    if statistic == "mean":
        return counts.double() @ values.sum(1) / drawn
    if not bool(drawn.all()):
        centres = torch.full(drawn.shape, torch.nan, dtype=torch.float64)
        centres[drawn > 0] = resampled_centre(values, counts[drawn > 0], statistic=statistic)
        return centres
    ordered, order = values.flatten().sort()
    owner, by_sample = order // k, counts.T
    if counts.dtype == torch.int16 and (compiled := loops(_LOOPS)) is not None:
        middles = torch.stack([(drawn + 1) // 2, drawn // 2 + 1]).to(torch.int32).contiguous().numpy()
        pairs = np.zeros((2, len(drawn)), np.int32)
        compiled.rank_middles(by_sample.contiguous().numpy(), owner.numpy(), middles, pairs)
        return ordered[torch.from_numpy(pairs).long().T].mean(1)
    # The median of a resample lies near the sample's: six standard deviations of its rank around the middle, and all
    # ranks where that was not enough.
    reach = int(3 * k * n**0.5) + 2
    for low, high in ((max(0, n * k // 2 - reach), min(n * k, n * k // 2 + reach)), (0, n * k)):
        ranks = _middles(by_sample, owner, drawn, low, high)
        if ranks is not None:
            break
    return ordered[ranks].mean(1)


def _middles(by_sample: Tensor, owner: Tensor, drawn: Tensor, low: int, high: int) -> Tensor | None:
    """Ranks ``[resamples, 2]`` of the two middle values of every resample; None if one is not in ``low … high - 1``."""
    ranks = []
    middles = torch.stack([(drawn + 1) // 2, drawn // 2 + 1], 1).to(torch.int32)
    at_once = max(1, _AT_ONCE // (high - low))
    for counts, middle in zip(by_sample.split(at_once, 1), middles.split(at_once), strict=True):
        below = torch.zeros(counts.shape[1], dtype=torch.int32)
        for part in owner[:low].split(_AT_ONCE // counts.shape[1] + 1):
            below += counts.index_select(0, part).sum(0, dtype=torch.int32)
        upto = counts.index_select(0, owner[low:high]).T.contiguous().cumsum(1, dtype=torch.int32)
        targets = middle - below[:, None]  # the middle ones are the first up to which so many were drawn
        if bool((targets < 1).any()) or bool((targets > upto[:, -1:]).any()):
            return None
        ranks.append(low + torch.searchsorted(upto, targets))
    return torch.cat(ranks)


def ratio_interval(
    numerator: Tensor,
    denominator: Tensor,
    *,
    statistic: Centre = "median",
    level: float = 0.95,
    resamples: int = 1000,
    generator: torch.Generator | None = None,
) -> Interval:
    """Percentile bootstrap interval of a ratio of two means or medians over the same samples, ``[n]`` or ``[n, k]``.

    Samples are resampled, with all their ``k`` fields, and the same ones above and below the line, so that what they
    have in common cancels. NaN ends where some resample has nothing below the line.
    """
    above, below = torch.as_tensor(numerator), torch.as_tensor(denominator)
    n = len(above)
    if n != len(below):
        raise ValueError(f"ratio_interval: denominator must have one row per sample, got {len(below)} for {n}.")
    if not (all_finite(above) and all_finite(below)):
        raise ValueError("ratio_interval: numerator and denominator must be finite, got NaN or infinity among them.")
    counts = resample_counts(n, resamples=resamples, generator=generator)
    top, bottom = (resampled_centre(values, counts, statistic=statistic) for values in (above, below))
    return percentile_interval(relative_stability(above, below, statistic=statistic), top, bottom, n=n, level=level)


def percentile_interval(value: Tensor, above: Tensor, below: Tensor, *, n: int, level: float = 0.95) -> Interval:
    """The interval of a ratio ``value`` from its two sides in every resample ``[resamples]``; see ratio_interval.

    Resamples with NaN on a side (nothing was drawn) do not count.
    """
    check_level("ratio_interval", level)
    value = value.double().cpu()
    drawn = ~(above.isnan() | below.isnan())
    above, below = above[drawn], below[drawn]
    if not len(below) or not bool((below > 0).all()):
        return no_interval(value, n, level)
    ordered = (above / below).sort().values  # torch.quantile does the same in six times the time
    rank = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64) * (len(ordered) - 1)
    before = rank.floor().long()
    ends = torch.lerp(ordered[before], ordered[(before + 1).clamp(max=len(ordered) - 1)], rank - before)
    # A value outside its interval (few, tied samples) would be a contradiction on paper.
    return Interval(value, torch.minimum(ends[0], value), torch.maximum(ends[1], value), n, level)


def coordinate_medians(differences: Tensor) -> Tensor:
    r""":math:`\sum_k \mathrm{median}_x (\Delta f_k)^2` of ``[n, …]``: what the authors' public code takes in R_f.

    It is not invariant under rotations of the output, as the paper's own medians of norms are.
    """
    squares = torch.as_tensor(differences).flatten(1).double().square()
    if not len(squares) or not all_finite(squares):
        raise ValueError("coordinate_medians: differences must be finite and not empty, got NaN, infinity or none.")
    return median(squares).sum()


def coordinate_ratio_interval(
    numerator: Tensor,
    denominator: Tensor,
    *,
    level: float = 0.95,
    groups: int = 20,
    partners: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Interval:
    r"""Interval of the ratio of two :func:`coordinate_medians` over the same samples, ``[n, …, d]``.

    Jackknife by groups: with :math:`\theta_{(i)}` the logarithm of the ratio without the i-th of g random groups of
    samples, the variance of :math:`\log R` is :math:`\frac{g-1}{g}\sum_i(\theta_{(i)} - \bar\theta)^2` and the interval
    Student's with g - 1 degrees of freedom. Leaving out many samples at a time makes it hold for medians, where leaving
    out one does not; a bootstrap would cost a sort of ``[n, d]`` for every resample. NaN where a side is zero.

    Where the denominator is of pairs, ``partners`` ``[n]`` is the sample on the other side of each. A group that is
    left out then takes along all pairs that have one of its samples on either side, so that the interval also covers
    the choice of the partners; these are spread evenly over the groups.
    """
    above, below = (torch.as_tensor(values) for values in (numerator, denominator))
    n = len(above)
    if n != len(below):
        raise ValueError(
            f"coordinate_ratio_interval: denominator must have one row per sample, got {len(below)} for {n}."
        )
    check_level("coordinate_ratio_interval", level)
    groups = min(groups, n // 2)
    if groups < 2:
        raise ValueError(f"coordinate_ratio_interval: numerator must hold at least 4 samples, got {n}.")
    if partners is not None and partners.shape != (n,):
        raise ValueError(
            f"coordinate_ratio_interval: partners must have one entry per sample [{n}], got {list(partners.shape)}."
        )
    order = torch.randperm(n, generator=generator)
    if partners is not None:
        is_partner = torch.isin(order, partners)
        order = torch.cat([order[is_partner], order[~is_partner]])
    group = torch.empty(n, dtype=torch.int64)
    group[order] = torch.arange(n) % groups
    value = _coordinates(above) / _coordinates(below)
    without = []
    for i in range(groups):
        keep = group != i
        both = keep if partners is None else keep & keep[partners]
        without.append(_coordinates(above[keep]) / _coordinates(below[both]) if bool(both.any()) else value * torch.nan)
    logs = torch.stack(without).log()
    spread = ((groups - 1) / groups * (logs - logs.mean()).square().sum()).sqrt()
    half = student(groups - 1, level) * spread
    if not bool(torch.isfinite(value) & torch.isfinite(half)):
        return no_interval(value, n, level)
    return Interval(value, value * (-half).exp(), value * half.exp(), n, level)


def _coordinates(differences: Tensor) -> Tensor:
    """:func:`coordinate_medians` of ``[n, …, d]`` over samples and all axes between."""
    return coordinate_medians(differences.reshape(-1, differences.shape[-1]))


def _plain(*tensors: Tensor) -> bool:
    """Whether they are contiguous float32 on the CPU, and something to do: what the compiled loops take."""
    return all(x.device.type == "cpu" and x.dtype == torch.float32 and x.is_contiguous() and x.numel() for x in tensors)


def _summed_squares(loop: Any, a: Tensor, b: Tensor, rows: Tensor | None) -> Tensor:
    squares = np.empty(len(a), np.float32)
    first, second = a.detach().numpy(), b.detach().numpy()
    index = _in_order(len(a)) if rows is None else rows.cpu().numpy().astype(np.int64, copy=False)
    threads = min(torch.get_num_threads(), len(a), a.numel() // _ALONE + 1)
    cuts = [len(a) * k // threads for k in range(threads + 1)]
    parts = [(first[i:j], second, index[i:j], squares[i:j]) for i, j in itertools.pairwise(cuts)]
    in_turn(lambda part: loop(*part), parts, threads)
    return torch.from_numpy(squares)


@lru_cache(maxsize=4)
def _in_order(n: int) -> np.ndarray:
    return np.arange(n)
