"""APGD: ascent that halves its own step and goes back to the best point where it stops gaining [croce2020]."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lisse.networks.attack.norms import NormBall, steepest

#: ``slopes(x, first)``: gradients like x, what is climbed ``[n]``, and lost margins ``[n]``.
Slopes = Callable[[Tensor, bool], tuple[Tensor, Tensor, Tensor]]

_INERTIA = 0.75  # α: how much of a step is the new one
_RISING = 0.75  # ρ: the share of steps that have to gain


def checkpoints(steps: int) -> list[int]:
    r"""The steps after which APGD looks back.

    .. math:: w_j = \lceil p_j K \rceil, \quad p_0 = 0, \; p_1 = 0.22, \;
              p_{j+1} = p_j + \max(p_j - p_{j-1} - 0.03, 0.06)

    as the authors' program rounds it: the gaps are whole numbers of steps, at least one.
    """
    gap, least, less = max(int(0.22 * steps), 1), max(int(0.06 * steps), 1), max(int(0.03 * steps), 1)
    marks = []
    last = 0
    while last + gap <= steps:
        last += gap
        marks.append(last)
        gap = max(gap - less, least)
    return marks


def climbed_adaptively(slopes: Slopes, ball: NormBall, begin: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    r"""The point of the largest lost margin on the way of APGD from ``begin``, and that margin ``[n]``.

    .. math:: z = \Pi(x_k + \eta_k u(\nabla_k)), \quad x_{k+1} = \Pi(x_k + 0.75 (z - x_k) + 0.25 (x_k - x_{k-1}))

    η is 2ε at first. At every checkpoint it is halved, and the way goes on from the best point, for each sample whose
    loss rose in less than three quarters of the steps since the last one, or whose η and best loss are those of the
    last one. Reference: [croce2020] algorithm 1. Cost: ``steps`` + 1 forwards and backwards.
    """
    marks, kind = set(checkpoints(steps)), ball.norm
    shape = (-1, *[1] * (begin.ndim - 1))
    slope, value, margin = slopes(begin, True)
    point = before = best = worst = begin
    best_slope, best_value, worst_margin = slope, value, margin
    length = torch.full_like(value, 2.0) * (ball.eps if isinstance(ball.eps, float) else ball.eps.flatten())
    rises, since = torch.zeros_like(value), 0
    checked, halved = best_value, torch.ones_like(value, dtype=torch.bool)
    for turn in range(steps):
        z = ball.back(point + length.reshape(shape) * steepest(slope, kind))
        inertia = _INERTIA if turn else 1.0
        point, before = ball.back(point + inertia * (z - point) + (1 - inertia) * (point - before)), point
        last = value
        slope, value, margin = slopes(point, False)
        rises, since = rises + (value > last), since + 1
        better, lost = value > best_value, margin > worst_margin
        best = torch.where(better.reshape(shape), point, best)
        best_slope = torch.where(better.reshape(shape), slope, best_slope)
        best_value = torch.maximum(value, best_value)
        worst, worst_margin = torch.where(lost.reshape(shape), point, worst), torch.maximum(margin, worst_margin)
        if turn + 1 in marks:
            halved = (rises <= _RISING * since) | (~halved & (checked >= best_value))
            checked = best_value
            length = torch.where(halved, length / 2, length)
            point = torch.where(halved.reshape(shape), best, point)
            slope = torch.where(halved.reshape(shape), best_slope, slope)
            value = torch.where(halved, best_value, value)
            rises, since = torch.zeros_like(rises), 0
    return worst, worst_margin
