"""How far an attack has to go: the smallest change of each sample that it finds to lose the answer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lisse.maths.given import check_positive
from lisse.maths.margin import competing_margins
from lisse.networks.answers import Classifier, hits, logits_at, resting
from lisse.networks.attack.checks import UNIT, Bounds, checked_count, checked_samples
from lisse.networks.attack.gradient import _gradient
from lisse.networks.attack.norms import Norm, NormBall, norm_named, steepest

_LEVELS = 48  # radii between the largest and its 2^-12th, four for each doubling
_HALVINGS = 8  # of the way back from a lost answer


def attack_distance(
    model: Classifier,
    x: Any,
    y: Any,
    *,
    norm: Norm | float | str,
    largest: float,
    steps: int = 10,
    bounds: Bounds | None = UNIT,
    batch: int | None = None,
) -> Tensor:
    r"""The norm ``[n]`` of the smallest change of each sample found to lose its answer, float64; infinite without one.

    .. math:: \hat r_i = \min \{\|\delta\| : \hat y(x_i + \delta) \ne y_i, \; \delta \text{ that was tried}\}
              \ge r_i

    An upper estimate of the distance :math:`r_i` to the nearest wrong answer: 0 where the answer is wrong already.
    Each sample has a bisection of its own over 48 radii ε from ``largest`` to its 4,096th part, four for each doubling.
    At each, PGD takes ``steps`` of 2.5 ε/``steps`` from x, with the margin of the logits as its loss:

    .. math:: x_{k+1} = \Pi\left(x_k - \tfrac{2.5 \epsilon}{K} u(\nabla_x \min_{c \ne y} (z_y - z_c))\right)

    (u as in :func:`attack`). Unlike cross-entropy, whose gradient goes to 0 where the network is sure, the margin gives
    the same steps at any temperature of the logits. From every wrong answer the way back to x is halved eight times.

    ``largest``: the size beyond which nothing is tried, such as the width of the box. Cost: six times ``steps``
    forwards and backwards, and sixty forwards. Deterministic. Reference: [madry2018] sec. 2.1.
    """
    values, labels = checked_samples("attack_distance", model, x, y, bounds)
    kind, count = norm_named("attack_distance", norm), checked_count("attack_distance", "steps", steps)
    check_positive("attack_distance", largest=largest)

    if not len(values):
        return values.new_zeros(0, dtype=torch.float64)
    size = len(values) if batch is None else checked_count("attack_distance", "batch", batch)
    with torch.inference_mode(False), resting(model, grad=True), torch.enable_grad():
        parts = [
            _search(model, *part, kind, float(largest), count, bounds)
            for part in zip(values.split(size), labels.split(size), strict=True)
        ]
    return torch.cat(parts)


def _search(
    model: Classifier, x: Tensor, y: Tensor, norm: Norm, largest: float, steps: int, bounds: Bounds | None
) -> Tensor:
    """The bisection of all samples at once: level ``lost`` loses the answer (-1: none does), ``safe`` does not."""
    right = _right(model, x, y)
    distance = torch.where(right, torch.inf, 0.0).to(torch.float64)
    lost, safe = torch.full_like(y, -1), torch.full_like(y, _LEVELS + 1)
    for _ in range((_LEVELS + 1).bit_length()):
        level = (lost + safe) // 2
        eps = _like(largest * 2.0 ** (-level.double() / 4), x)
        moved = _climbed(model, x, y, norm, eps, steps, bounds)
        wrong = ~_right(model, moved, y)
        distance = torch.minimum(distance, torch.where(wrong, _way_back(model, x, moved, y, norm), torch.inf))
        open_ = safe - lost > 1
        lost, safe = torch.where(wrong & open_, level, lost), torch.where(~wrong & open_, level, safe)
    return distance


def _climbed(
    model: Classifier, x: Tensor, y: Tensor, norm: Norm, eps: Tensor, steps: int, bounds: Bounds | None
) -> Tensor:
    """PGD with a radius for each sample."""
    ball, moved = NormBall(x, norm, eps, bounds), x.clone()

    def lost_margin(_: Tensor, logits: Tensor) -> Tensor:
        return -competing_margins(logits, y.to(logits.device)).amin(1).sum()

    for turn in range(steps):
        slope = _gradient(model, moved, y, lost_margin, "attack_distance", first=turn == 0)
        moved = ball.back(moved + 2.5 * eps / steps * steepest(slope, norm))
    return moved


def _way_back(model: Classifier, x: Tensor, moved: Tensor, y: Tensor, norm: Norm) -> Tensor:
    """How far on the way to a wrong answer it is wrong already ``[n]``."""
    ends = torch.zeros(2, len(x), dtype=torch.float64, device=x.device)
    right, wrong = ends[0], ends[1] + 1
    for _ in range(_HALVINGS):
        middle = (right + wrong) / 2
        answers = _right(model, x + _like(middle, x) * (moved - x), y)
        right, wrong = torch.where(answers, middle, right), torch.where(answers, wrong, middle)
    shift = (moved - x).flatten(1).double()
    return wrong * torch.linalg.vector_norm(shift, ord=torch.inf if norm == "linf" else 2, dim=1)


def _right(model: Classifier, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        return hits(logits_at(model, x, function="attack_distance"), y).to(x.device)


def _like(values: Tensor, x: Tensor) -> Tensor:
    """Numbers ``[n]`` shaped to multiply samples ``[n, …]``."""
    return values.to(x).reshape(-1, *[1] * (x.ndim - 1))
