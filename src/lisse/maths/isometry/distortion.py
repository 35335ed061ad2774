"""What a map does to the distances of a set of points: relative error, correlation, stretch, histograms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lisse.maths.given import Values, all_finite


@dataclass(frozen=True, slots=True)
class Distortion:
    """``error``: mean relative error of the distances; ``correlation`` of distances before and after (NaN where one
    side is constant); ``stretch``: quantiles of after / before, one per asked-for level; ``largest``: the largest of
    them, which bounds the map's Lipschitz constant from below; ``pairs``: how many pairs there were."""

    error: float
    correlation: float
    stretch: tuple[float, ...]
    largest: float
    pairs: int


def distortion(
    before: Values, after: Values, among: Values | None = None, *, quantiles: Sequence[float] = (0.05, 0.5, 0.95)
) -> Distortion:
    r"""How far the distances ``after`` ``[n, n]`` are from those ``before``, over unordered pairs.

    .. math:: \text{error} = \operatorname{mean} \frac{|D^z_{ij} - D^x_{ij}|}{D^x_{ij}}, \qquad
              \text{stretch}_{ij} = D^z_{ij} / D^x_{ij}

    ``among`` ``[n, n]`` chooses the pairs (true where a pair counts; symmetric). Pairs at distance 0 before have no
    relative error and are left out. An isometry has error 0, correlation 1 and stretch 1; a map of Lipschitz constant K
    has no stretch over K. All in float64; NaN where no pair is left. Cost O(n² log n).
    """
    x, z = (torch.as_tensor(distances).detach().double() for distances in (before, after))
    if x.ndim != 2 or x.shape[0] != x.shape[1] or x.shape != z.shape:
        raise ValueError(
            f"distortion: before and after must be distances [n, n] of the same points, got {list(x.shape)} and "
            f"{list(z.shape)}."
        )
    levels = tuple(float(level) for level in quantiles)
    if any(not 0 <= level <= 1 for level in levels):
        raise ValueError(f"distortion: quantiles must lie in [0, 1], got {quantiles}.")
    keep = _pairs(x, among) & (x > 0)
    x, z = x[keep], z[keep]
    if not bool(torch.isfinite(x).all() and torch.isfinite(z).all()):
        raise ValueError("distortion: distances must be finite, got NaN or infinity among the chosen pairs.")
    if not len(x):
        nan = float("nan")
        return Distortion(nan, nan, (nan,) * len(levels), nan, 0)
    ratio = z / x
    # np.quantile has no limit on the number of pairs, torch.quantile has.
    stretches = np.quantile(ratio.cpu().numpy(), levels) if levels else np.empty(0)
    return Distortion(
        error=float((ratio - 1).abs().mean()),
        correlation=pair_correlation(x, z),
        stretch=tuple(float(value) for value in stretches),
        largest=float(ratio.max()),
        pairs=len(x),
    )


def pair_correlation(x: Tensor, z: Tensor) -> float:
    """Pearson's correlation of two lists of numbers; NaN where one of them is constant, to rounding."""
    a, b = x.double() - x.double().mean(), z.double() - z.double().mean()
    first, second = float(torch.linalg.vector_norm(a)), float(torch.linalg.vector_norm(b))
    rounding = 1e-12 * len(x) ** 0.5
    if first <= rounding * float(x.abs().max()) or second <= rounding * float(z.abs().max()):
        return float("nan")
    return max(-1.0, min(1.0, float(a @ b) / (first * second)))


def distance_histogram(
    distances: Values, among: Values | None = None, *, bins: int = 40, top: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Counts ``[bins]`` and edges ``[bins + 1]`` of the distances of unordered pairs, from 0 to ``top`` (the largest).

    ``among`` chooses pairs, as in :func:`distortion`. With ``top`` given, larger distances are not counted.
    """
    if bins < 1:
        raise ValueError(f"distance_histogram: bins must be at least 1, got {bins}.")
    values = torch.as_tensor(distances).detach().double()
    selected = values[_pairs(values, among)].cpu().numpy()
    end = float(top) if top is not None else float(selected.max()) if len(selected) else 1.0
    counts, edges = np.histogram(selected, bins=bins, range=(0.0, end or 1.0))
    return counts, edges


def _pairs(distances: Tensor, among: Values | None) -> Tensor:
    """One of (i, j) and (j, i), without the diagonal, where ``among`` says so."""
    upper = torch.ones_like(distances, dtype=torch.bool).triu(1)
    if among is None:
        return upper
    mask = torch.as_tensor(among, device=distances.device).bool()
    if mask.shape != distances.shape:
        raise ValueError(f"distortion: among must have shape {list(distances.shape)}, got {list(mask.shape)}.")
    return upper & mask


@dataclass(frozen=True, slots=True)
class ScaleFreeDistortion:
    """``error``: mean relative error of the distances after the best common factor ``scale``, between 0 and 1.

    ``within`` and ``between``: the same, at that same factor, over pairs of one group and of two (NaN without groups,
    or without such pairs). ``influence`` ``[n]``: a value per point, whose mean is the error and whose spread over
    points is the error's own; ``pairs``: how many pairs there were.
    """

    error: float
    scale: float
    within: float
    between: float
    influence: Tensor
    pairs: int


def scale_free_distortion(
    before: Values, after: Values, *, groups: Values | Sequence[int] | None = None
) -> ScaleFreeDistortion:
    r"""How far the distances ``after`` ``[n, n]`` are from a multiple of those ``before``, over unordered pairs.

    .. math:: \min_{a \ge 0} \operatorname*{mean}_{i < j} \frac{|a D^z_{ij} - D^x_{ij}|}{D^x_{ij}}
              = \min_a \operatorname{mean} r_{ij} \Bigl|a - \frac1{r_{ij}}\Bigr|, \qquad
              r_{ij} = \frac{D^z_{ij}}{D^x_{ij}}

    Exact: that is convex and piecewise linear in a, with slope :math:`\sum_{1/r \le a} r - \sum_{1/r > a} r` (over the
    number of pairs), which changes its sign at the median of the points 1/r under the weights r: the least a at which
    the weights up to it are half of all. (Pairs with r = 0 add 1 whatever a is.) Never over 1, which a = 0 gives; 0
    for a similarity, and only then. Pairs at distance 0 before have no relative error and are left out.

    ``influence``: a pair has two points, so the bootstrap of the means :math:`e_i` over the pairs of a point, which are
    right on average, would have half the error's spread. What a point does to a mean over pairs is, to first order,
    twice its deviation ([hoeffding1948]): :math:`\text{error} + \frac{n}{P} \sum_j (h_{ij} - \text{error})`, with
    the terms h of its pairs and P pairs in all; :math:`2 e_i - \text{error}` where no pair is left out. That the factor
    is fitted does not count: at the least error its derivative is 0.

    ``groups`` ``[n]``: labels, for errors within and between. All in float64; a cloud that falls into one point has
    error 1 and scale NaN. Cost: a sort of n²/2 numbers.
    """
    name = "scale_free_distortion"
    x, z = (torch.as_tensor(distances).detach().double() for distances in (before, after))
    if x.ndim != 2 or x.shape[0] != x.shape[1] or x.shape != z.shape or len(x) < 2:
        raise ValueError(
            f"{name}: before and after must be distances [n, n] of the same 2 points or more, got {list(x.shape)} and "
            f"{list(z.shape)}."
        )
    if not (all_finite(x) and all_finite(z)):
        raise ValueError(f"{name}: distances must be finite, got NaN or infinity.")
    if bool((x < 0).any()) or bool((z < 0).any()):
        raise ValueError(f"{name}: distances must be at least 0, got {min(float(x.min()), float(z.min())):.3g}.")
    first, second = torch.triu_indices(len(x), len(x), 1, device=x.device)
    counted = x[first, second] > 0
    first, second = first[counted], second[counted]
    if not len(first):
        raise ValueError(f"{name}: before must hold points that differ, got all of them at distance 0.")
    ratio = z[first, second] / x[first, second]
    scale = _best_scale(ratio)
    terms = (scale * ratio - 1).abs() if scale == scale else torch.ones_like(ratio)
    error = terms.mean()
    moves = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    for ends in (first, second):
        moves.index_add_(0, ends, terms - error)
    within = between = float("nan")
    if groups is not None:
        labels = torch.as_tensor(groups, device=x.device)
        if labels.shape != x.shape[:1]:
            raise ValueError(f"{name}: groups must be one label per point, got shape {list(labels.shape)}.")
        equal = labels[first] == labels[second]
        within, between = float(terms[equal].mean()), float(terms[~equal].mean())
    return ScaleFreeDistortion(
        error=float(error),
        scale=scale,
        within=within,
        between=between,
        influence=(error + len(x) / len(terms) * moves).cpu(),
        pairs=len(terms),
    )


def _best_scale(ratio: Tensor) -> float:
    weights = ratio[ratio > 0].sort(descending=True).values  # the points 1/r upwards
    if not len(weights):
        return float("nan")
    total = weights.cumsum(0)
    return float(1 / weights[int(torch.searchsorted(total, total[-1] / 2))])
