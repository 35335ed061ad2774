r"""Two maps that should agree: how far apart they are, what of it is new at a layer, and whether it is more than noise.

With :math:`a` and :math:`b` what reaches a layer in A and in B, the difference behind it is the sum of what the layer
itself adds on the same input and of what it makes of the difference that arrived:

.. math:: B_l(b) - A_l(a) = \underbrace{B_l(a) - A_l(a)}_{\text{injected}}
          + \underbrace{B_l(b) - B_l(a)}_{\text{inherited}}
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from lisse.maths.comparison import holm
from lisse.maths.given import check_integer, check_positive, floating

_TINY = 1e-300
_CACHE, _DEVICE = 2**17, 2**26  # numbers of a difference that are held: half a mebibyte, a quarter of a gibibyte


def norms(values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Euclidean norms of the samples of ``[n, …]``, of the tokens that ``mask`` ``[n, t]`` lets count: ``[n]``.

    In one pass, summed in float32 at least: good to 1e-5.
    """
    return torch.linalg.vector_norm(valid_part(values, mask).flatten(1), dim=1, dtype=_wide(values)).double()


class SplitNorms(NamedTuple):
    """Euclidean norms per sample: of both maps' outputs, of their difference, and of the two vectors it is the sum of.

    The last two are empty where nothing was forced.
    """

    a: Tensor
    b: Tensor
    difference: Tensor
    injected: Tensor
    inherited: Tensor


def split_norms(a: Tensor, b: Tensor, forced: Tensor | None = None, *, mask: Tensor | None = None) -> SplitNorms:
    """Of a layer's outputs ``[n, …]`` in A, in B, and in B where it was fed what A's was: ``[n]`` each.

    Numbers of 16 bits are subtracted in float32. A stretch of samples at a time: of three large tensors each is read
    once, and differences stay in a processor's cache.
    """
    parts = [part for part in (a, b, forced) if part is not None]
    if len({part.shape for part in parts}) > 1:
        raise ValueError(f"split_norms: outputs must have one shape, got {[list(part.shape) for part in parts]}.")
    dtype, size = _wide(*parts), (_DEVICE if a.is_cuda else _CACHE) // max(1, a[:1].numel())
    numbers: list[list[Tensor]] = []
    for start in range(0, max(1, len(a)), max(1, size)):
        rows = slice(start, start + max(1, size))
        first, second, *between = (part[rows].to(dtype) for part in parts)
        vectors = [first, second, second - first]
        vectors += [step for part in between for step in (part - first, second - part)]
        numbers.append([norms(vector, None if mask is None else mask[rows]) for vector in vectors])
    columns = [torch.cat(column) for column in zip(*numbers, strict=True)]
    return SplitNorms(*columns, *[columns[0].new_empty(0)] * (5 - len(columns)))


def relative_difference(a: Tensor, b: Tensor, *, mask: Tensor | None = None) -> Tensor:
    r""":math:`\|b_i - a_i\| / \|a_i\|` of every sample of ``[n, …]``: ``[n]``, 0 where both are 0."""
    parts = split_norms(a, b, mask=mask)
    return ratio(parts.difference, parts.a)


def ratio(above: Tensor, below: Tensor) -> Tensor:
    """``above / below``, and 0 where both are 0."""
    return torch.where(above == 0, 0.0, above / below)


def cosine_of_norms(a: Tensor, b: Tensor, difference: Tensor) -> Tensor:
    r"""Cosine of the angle between vectors of these norms and of this norm of their difference; NaN where one is 0.

    .. math:: \cos = \frac{\|a\|^2 + \|b\|^2 - \|b - a\|^2}{2 \|a\| \|b\|}
    """
    return ((a.square() + b.square() - difference.square()) / (2 * a * b)).clamp(-1, 1)


def aligned_difference(cross: Tensor, a_square: Tensor | float, b_square: Tensor | float) -> Tensor:
    r"""The relative difference of clouds ``[m, d]`` after the best scale and rotation, of three of their sums.

    .. math:: \min_{s,\,R^\top R = 1} \frac{\|Y - s X R\|_F}{\|Y\|_F}
              = \sqrt{1 - \frac{\|X^\top Y\|_*^2}{\|X\|_F^2 \|Y\|_F^2}}

    ``cross`` is :math:`X^\top Y` ``[d, d]``, the squares are those of the Frobenius norms: sums over samples, so that a
    stream gives them. 0 for clouds that differ by a rotation and a scale, at most 1; symmetric. Of fewer points than
    dimensions some rotation always fits. O(d³). Reference: [schonemann1966].
    """
    cross = floating("aligned_difference", "cross", cross).double()
    if cross.ndim != 2 or cross.shape[0] != cross.shape[1]:
        raise ValueError(f"aligned_difference: cross must be square, got shape {list(cross.shape)}.")
    nuclear = torch.linalg.svdvals(cross).sum()
    share = nuclear.square() / (torch.as_tensor(a_square) * torch.as_tensor(b_square)).to(nuclear).clamp_min(_TINY)
    return (1 - share).clamp(0, 1).sqrt()


def step_share(before: Tensor, after: Tensor, start: Tensor, end: Tensor) -> Tensor:
    r"""What one step of a way from A's answer to B's is of the total change, for answers ``[n, …]``: ``[n]``.

    .. math:: s_j = \frac{\langle z_j - z_{j-1},\, z_k - z_0 \rangle}{\|z_k - z_0\|^2}

    The states :math:`z` are answers while one layer after the other is swapped; ``before`` and ``after`` are two that
    follow each other, ``start`` and ``end`` the first and the last. The shares of all steps sum to 1; one can be below
    0, where it leads back. Where nothing changes they are NaN.
    """
    parts = [_pair("step_share", start, part)[1].flatten(1) for part in (before, after, start, end)]
    parts = [part.to(_answer_dtype(*parts)) for part in parts]
    total = parts[3] - parts[2]
    return ((parts[1] - parts[0]) * total).sum(1) / total.square().sum(1)


def prediction_divergence(a: Tensor, b: Tensor, *, mask: Tensor | None = None) -> Tensor:
    r"""Kullback–Leibler divergence :math:`\sum_c p_c \log(p_c/q_c)` of two sets of logits ``[n, …, classes]``: ``[n]``.

    :math:`p` is that of ``a``. Of several answers per sample (tokens) the mean of those that ``mask`` lets count.
    """
    a, b = _pair("prediction_divergence", a, b)
    p, q = (part.log_softmax(-1, dtype=_answer_dtype(a, b)) for part in (a, b))
    return _per_sample((p.exp() * (p - q)).sum(-1).clamp_min(0), mask)


def changed_decisions(a: Tensor, b: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The share of each sample's answers ``[n, …, classes]`` whose largest logit is another one: ``[n]``."""
    a, b = _pair("changed_decisions", a, b)
    return _per_sample((a.argmax(-1) != b.argmax(-1)).double(), mask)


def precedence_p(hits: int, n: int, m: int) -> float:
    r"""The chance that of ``n`` values at least ``hits`` lie above the largest of ``m`` others, all of one law.

    .. math:: \binom{n + m - k}{m} \Big/ \binom{n + m}{m}

    Exact whatever the law, where values are exchangeable. Reference: [balakrishnan2006].
    """
    check_integer("precedence_p", 0, hits=hits)
    check_integer("precedence_p", 1, n=n, m=m)
    if hits > n:
        raise ValueError(f"precedence_p: hits must be at most n, got {hits} of {n}.")
    return math.exp(
        math.lgamma(n + m - hits + 1) - math.lgamma(n - hits + 1) - math.lgamma(n + m + 1) + math.lgamma(n + 1)
    )


def parting(values: Tensor, floors: Tensor, *, margin: float = 1.0, least: float = 0.0) -> Tensor:
    """p values, layer by layer, of differences ``[n, L]`` that are more than noise ``[m, L]``; Holm's correction for L.

    A hit is a sample above ``margin`` times the layer's largest noise (and at least ``least``); of the hits
    :func:`precedence_p` gives the chance. The margin can only make calls rarer.
    """
    check_positive("parting", margin=margin)
    if values.ndim != 2 or floors.ndim != 2 or values.shape[1] != floors.shape[1]:
        raise ValueError(
            f"parting: values and floors must be of the same layers, got shapes {list(values.shape)} and "
            f"{list(floors.shape)}."
        )
    hits = (values > floor_of(floors, margin=margin, least=least)).sum(0).tolist()
    return holm([min(1.0, precedence_p(count, len(values), len(floors))) for count in hits])


def floor_of(floors: Tensor, *, margin: float = 1.0, least: float = 0.0) -> Tensor:
    """What a difference must be above, layer by layer: ``margin`` times the largest noise of ``[m, L]``."""
    return (margin * floors.amax(0)).clamp_min(least)


def _pair(where: str, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Two tensors of one shape; what is not finite in them is not in what comes of it, and is not waited for here."""
    if a.shape != b.shape:
        raise ValueError(f"{where}: a and b must have one shape, got {list(a.shape)} and {list(b.shape)}.")
    return a, b


def valid_part(values: Tensor, mask: Tensor | None) -> Tensor:
    """Values of tokens that do not count are 0, where a mask ``[n, t]`` fits ``[n, t, …]``."""
    if mask is None or values.ndim < 3 or values.shape[:2] != mask.shape:
        return values
    return values.masked_fill(~mask.bool().reshape(*mask.shape, *[1] * (values.ndim - 2)).to(values.device), 0)


def _wide(*parts: Tensor) -> torch.dtype:
    """The finest precision of these, float32 at least."""
    return functools.reduce(torch.promote_types, [part.dtype for part in parts], torch.float32)


def _answer_dtype(*parts: Tensor) -> torch.dtype:
    """float64, but float32 for answers of 16 bits: a device has little room for a vocabulary of these in float64."""
    return torch.float32 if all(part.dtype.itemsize == 2 for part in parts) else torch.float64


def _per_sample(values: Tensor, mask: Tensor | None) -> Tensor:
    if values.ndim == 1:
        return values
    if mask is not None and values.shape[:2] == mask.shape:
        weights = mask.to(values).reshape(*mask.shape, *[1] * (values.ndim - 2)).expand_as(values)
        return (values * weights).flatten(1).sum(1) / weights.flatten(1).sum(1).clamp_min(1)
    return values.flatten(1).mean(1)
