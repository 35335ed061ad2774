"""Proved ends of a network's outputs in a ball around a sample, and the radius that it certifies."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from lisse.maths.margin import competing_margins
from lisse.networks.attack.norms import Norm, norm_named
from lisse.networks.bounds.module import of_module
from lisse.networks.bounds.relaxation import Relaxation
from lisse.taps import is_shortage

_OCTAVES = 40  # below the largest radius in which one is searched


def ball_bounds(
    model: nn.Module, x: Tensor, eps: float | Tensor, *, norm: Norm | float | str, refine: int = 1024
) -> tuple[Tensor, Tensor]:
    r"""Proved ends ``[n, …]`` of the output for every input within ``eps`` of a sample of ``x`` ``[n, …]``.

    A finite ball, not a derivative: :class:`Relaxation` says how, which layers it knows, and how rounding is counted.
    ``eps`` is a number or one for each sample; ``refine`` is the most units of a layer from which a walk back makes
    intervals tighter (0: none; all of them is slow and best). Cost: one walk back for each output, and for each such
    unit one through the layers before it.
    """
    radius = torch.as_tensor(eps, dtype=torch.float64).expand(len(x)).to(x.device)
    if not bool((torch.isfinite(radius) & (radius >= 0)).all()):
        raise ValueError(f"ball_bounds: eps must be finite and not negative, got {eps}.")
    kind = norm_named("ball_bounds", norm)
    relaxation = Relaxation(model, tuple(x.shape[1:]), refine=refine)
    count = relaxation.end.shape.numel()
    units = torch.eye(count, dtype=torch.float64, device=x.device)
    rows = (
        torch.cat([units, -units])
        .reshape(1, 2 * count, *relaxation.end.shape)
        .expand(len(x), *[-1] * (1 + len(relaxation.end.shape)))
    )
    ends = relaxation.lower(x, radius, kind, rows, relaxation.tangents(x, kind))
    return ends[:, :count].reshape(-1, *relaxation.end.shape), -ends[:, count:].reshape(-1, *relaxation.end.shape)


def certified_radius(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    norm: Norm | float | str,
    largest: float,
    refine: int = 1024,
    batch: int = 16,
    steps: int = 8,
) -> Tensor:
    r"""A radius ``[n]`` in which no input has another answer than ``y``, proved, float64; 0 where the answer is wrong.

    .. math:: r_i = \max\{\epsilon \text{ tried}: \min_{c \ne y}\min_{\|x - x_i\| \le \epsilon} (z_y - z_c) > 0\}

    with the inner minimum from below by :class:`Relaxation`: ``r_i`` is a lower estimate of the distance to the nearest
    wrong answer, as :func:`lisse.networks.attack.attack_distance` is an upper one. Each sample has a search of its own,
    by octaves from where its tangent would lose the answer, no lower than 40 below ``largest``, then by halves:
    ``steps`` balls in all, about a tenth of the radius at 8. Where the weights alone promise more (networks that were
    kept Lipschitz), theirs is given: with L of :func:`of_module`,

    .. math:: r_i \ge \min_{c \ne y} (z_y - z_c) / (\sqrt2 L),

    over the root of the number of entries in ℓ∞, with margins at the sample that are proved too. What lies outside the
    box of images counts as well. Cost: ``steps`` times :func:`ball_bounds`.
    """
    kind = norm_named("certified_radius", norm)
    if not (math.isfinite(largest) and largest > 0):
        raise ValueError(f"certified_radius: largest must be positive and finite, got {largest}.")
    if steps < 1 or batch < 1 or len(x) != len(y):
        raise ValueError(
            f"certified_radius: steps and batch must be at least 1 and y as many as x, got {steps}, {batch}, {len(y)}."
        )
    relaxation = Relaxation(model, tuple(x.shape[1:]), refine=refine)
    if len(relaxation.end.shape) != 1:
        raise ValueError(f"certified_radius: model must give one number a class, got {list(relaxation.end.shape)}.")
    if not len(x):
        return torch.zeros(0, dtype=torch.float64, device=x.device)
    parts = zip(x.split(batch), y.split(batch), strict=True)
    ends = [_searched(relaxation, *part, kind, float(largest), steps) for part in parts]
    radius, margins = (torch.cat(side) for side in zip(*ends, strict=True))
    promise = margins.clamp_min(0) / (_promised(model, x, 1e-3) * (x[0].numel() ** 0.5 if kind == "linf" else 1.0))
    return torch.maximum(radius, promise.clamp_max(largest))


def least_refine(model: nn.Module, shape: tuple[int, ...]) -> float:
    """The least ``refine`` at which samples of ``shape`` have tangents; deep networks certify little below it."""
    return Relaxation(model, shape).least


def lipschitz_radius(model: nn.Module, x: Tensor, y: Tensor, *, tol: float = 1e-3) -> Tensor:
    r"""The radius ``[n]`` in ℓ2 that the weights alone certify: :math:`\min_{c \ne y} (z_y - z_c)/(\sqrt2 L)`, or 0.

    L is the bound of :func:`of_module`, and two logits differ by no more than √2 of it ([tsuzuku2018]). The margins are
    those of a forward in float64, of which 1e-9 of the largest logit is taken off for its rounding. A network without
    such a bound, or with one beyond a float, certifies nothing. Cost: one forward.
    """
    promised = _promised(model, x, tol)
    network = copy.deepcopy(model).double().eval()
    with torch.no_grad():
        logits = torch.cat([network(part.double()) for part in x.split(256)])
    margins = competing_margins(logits, y.to(logits.device)).amin(1) - 1e-9 * logits.abs().amax(1)
    return margins.clamp_min(0) / promised


def _promised(model: nn.Module, x: Tensor, tol: float) -> float:
    """√2 L, infinite where the weights promise nothing."""
    try:
        bound = of_module(model, radius=1.0, input_shape=tuple(x.shape[1:]), metric="euclidean", tol=tol)
    except TypeError as refusal:
        if is_shortage(refusal):
            raise
        return math.inf
    if bound.hypotheses or bound.value == 0:
        return math.inf
    return math.sqrt(2) * bound.value * (1 + 1e-12)


def _searched(
    relaxation: Relaxation, x: Tensor, y: Tensor, norm: Norm, largest: float, steps: int
) -> tuple[Tensor, Tensor]:
    """The radii, and the margins at the samples themselves."""
    classes = relaxation.end.shape.numel()
    units = torch.eye(classes, dtype=torch.float64, device=x.device)
    rows = units[y.to(x.device)][:, None] - units  # row c is z_y − z_c; that of y itself is 0
    labels = torch.nn.functional.one_hot(y.to(x.device), classes).bool()
    tangents = relaxation.tangents(x, norm)

    def margins(eps: Tensor) -> Tensor:
        least = relaxation.lower(x, eps, norm, rows, tangents).masked_fill(labels, math.inf).amin(1)
        return torch.where(least.isnan(), -math.inf, least)

    # In the smallest ball margins fall along the tangent: it says where to begin.
    top, bottom = math.log2(largest), math.log2(largest) - _OCTAVES
    first = torch.full((len(x),), 2.0**bottom, dtype=torch.float64, device=x.device)
    start, near = margins(torch.zeros_like(first)), margins(first)
    level = (torch.log2(first * start / (start - near)) - 2).nan_to_num(bottom, top, bottom).clamp(bottom, top)
    radius = torch.where(near > 0, first, 0.0)
    floor, ceiling = torch.full_like(first, -math.inf), torch.full_like(first, math.inf)
    for _ in range(steps):
        proofs = margins(torch.exp2(level)) > 0
        radius = torch.where(proofs, torch.maximum(radius, torch.exp2(level)), radius)
        floor, ceiling = torch.where(proofs, level, floor), torch.where(proofs, ceiling, level)
        level = torch.where(ceiling.isinf(), floor + 1, torch.where(floor.isinf(), ceiling - 2, (floor + ceiling) / 2))
        level = level.clamp(bottom, top)
    return torch.where(start > 0, radius.clamp_max(largest), 0.0), start.nan_to_num(0.0, 0.0, 0.0)
