"""Distortion of distances up to one common factor: what is left of it when the unit of a layer does not count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lisse.maths.given import Values, all_finite


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
