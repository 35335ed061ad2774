"""The worst diffeomorphism of a given size for a function of the deformed images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lisse.maths.diffeomorphism.ensemble import Diffeomorphism
from lisse.maths.diffeomorphism.field import Field
from lisse.maths.diffeomorphism.modes import normals
from lisse.maths.diffeomorphism.phase import warn_if_folding
from lisse.maths.diffeomorphism.warp import Interpolation, deform
from lisse.maths.given import all_finite, check_positive


@dataclass(frozen=True, slots=True)
class WorstField:
    """``field``: one per image; ``value`` ``[n]``: the objective there, a lower bound of its supremum over fields of
    that size; ``initial`` ``[n]``: at the random fields of the same size the ascent began with; ``bijective`` ``[n]``.
    """

    field: Field
    value: Tensor
    initial: Tensor
    bijective: Tensor
    steps: int


def worst_field(
    objective: Callable[[Tensor], Tensor],
    images: Tensor,
    ensemble: Diffeomorphism,
    temperature: float,
    *,
    steps: int = 20,
    step: float = 0.3,
    start: Tensor | None = None,
    interpolation: Interpolation = "bilinear",
    generator: torch.Generator | None = None,
) -> WorstField:
    r"""Gradient ascent on the coefficients: fields that make ``objective`` large, no larger than typical ones.

    ``objective`` takes deformed images ``[n, c, h, w]`` and gives ``[n]`` values, each of its own image (a network's
    squared change of output, a loss per sample). With whitened coefficients :math:`C_{ij} = \sqrt{T/(i^2 + j^2)}\,
    z_{ij}`, the search is over the ball

    .. math:: \|z\|^2 \le 2M \iff \|\nabla\tau\|^2 \le \tfrac{\pi^2}{2} T M,

    whose radius is the root mean square of the random fields' at ``temperature``: same size, worst direction instead of
    a typical one, as [petrini2021] sec. 8 proposes. ``ensemble.temperature(delta)`` gives the temperature of a δ. Steps
    have the length ``step`` :math:`\sqrt{2M}` along each image's own gradient, halved over the run, projected back onto
    the ball; the best point seen is kept. ``start`` ``[n, 2, M]`` replaces the random first point (on the sphere, from
    ``generator``). Images are not kept differentiable; ``nearest`` has no gradient and is refused.
    Warns where most random fields at ``temperature`` fold; which of the fields found do is in the result.

    Cost: steps + 1 evaluations of the objective with their backward passes.
    """
    images = torch.as_tensor(images).detach()
    if interpolation == "nearest":
        raise ValueError("worst_field: interpolation must be differentiable, got 'nearest'. Use 'bilinear'.")
    if not images.is_floating_point():
        raise TypeError(
            f"worst_field: images must be floating point, got {images.dtype}. Convert with x.float() / 255."
        )
    check_positive("worst_field", steps=steps, step=step)
    n, width = len(images), 2 * ensemble.mode_count
    radius = width**0.5
    if start is None:
        flat = normals(n, width, generator).to(images)
        flat = flat * (radius / flat.norm(dim=1, keepdim=True))
    else:
        start = torch.as_tensor(start)
        if start.shape != (n, 2, ensemble.mode_count):
            raise ValueError(
                f"worst_field: start must be [{n}, 2, {ensemble.mode_count}], got shape {list(start.shape)}."
            )
        flat = _in_ball(start.to(images).reshape(n, width), radius)
    warn_if_folding("worst_field", ensemble, float(torch.as_tensor(temperature).max()))
    best, value, initial = flat, images.new_full((n,), -torch.inf), images.new_zeros(n)
    for k in range(steps + 1):
        flat = flat.detach().requires_grad_()
        with torch.enable_grad():
            field = ensemble.whitened_field(flat.reshape(n, 2, -1), temperature)
            values = objective(deform(images, field, interpolation=interpolation, check=k == 0))
            if values.shape != (n,):
                raise ValueError(
                    f"worst_field: objective must give one value per image [{n}], got {list(values.shape)}."
                )
            (slope,) = torch.autograd.grad(values.sum(), flat, allow_unused=True) if values.requires_grad else (None,)
        if slope is None:
            raise ValueError(
                "worst_field: objective must depend on the images through operations with gradients, got values "
                "without. Leave out detach() and no_grad() in it."
            )
        if not (all_finite(slope) and all_finite(values)):
            raise ValueError("worst_field: objective must be finite with a finite gradient, got NaN or infinity.")
        values = values.detach()
        initial = values if k == 0 else initial
        best = torch.where((values > value)[:, None], flat.detach(), best)
        value = torch.maximum(values, value)
        length = step * radius * (1 - 0.5 * k / steps)
        flat = _in_ball(flat.detach() + length * slope / slope.norm(dim=1, keepdim=True).clamp_min(1e-30), radius)
    worst = ensemble.whitened_field(best.reshape(n, 2, -1), temperature)
    return WorstField(worst, value, initial, worst.bijective(), steps)


def _in_ball(flat: Tensor, radius: float) -> Tensor:
    size = flat.norm(dim=1, keepdim=True)
    return torch.where(size > radius, flat * (radius / size.clamp_min(1e-30)), flat)
