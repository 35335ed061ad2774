"""The input gradient of the isometric loss in closed form: per sample, under a common translation, and as printed."""

from __future__ import annotations

import torch
from torch import Tensor

from lisse.maths.given import Values
from lisse.maths.isometry.distances import euclidean


def isometric_gradient(
    x: Values, z: Values, jacobian: Values, groups: Values | None = None, *, fixed_input: bool = False
) -> Tensor:
    r"""Gradient of the isometric loss in each sample ``[n, d]``, from z and its Jacobians ``[n, m, d]``.

    .. math:: \frac{\partial L}{\partial x_k} = \frac4{N^2} \sum_j G_{kj} H_{kj} \Big[\frac{x_k - x_j}{d_{kj}} -
              \nabla\Phi(x_k)^\top J_{kj}\Big], \quad H = D^x - D^z,\ J_{kj} = \frac{z_k - z_j}{D^z_{kj}}

    This is what FGSM differentiates, sample by sample; ``fixed_input`` drops the first term (:math:`D^x` constant).
    What autograd gives for ``isometric_loss(x, Φ(x), groups, fixed_input=…)``; float64. Cost O(n² (d + m)).
    """
    points, images, slopes, related = _checked("isometric_gradient", x, z, jacobian, groups)
    n = len(points)
    before, after = euclidean(points), euclidean(images)
    gap = (before - after) * related
    pulled = torch.einsum("kh,khd->kd", _directions(gap, after, images), slopes)
    directions = -pulled if fixed_input else _directions(gap, before, points) - pulled
    return 4 / n**2 * directions


def translation_gradient(x: Values, z: Values, jacobian: Values, groups: Values | None = None) -> Tensor:
    r"""Derivative ``[d]`` of the isometric loss when all samples move together: the sum of the per-sample gradients.

    .. math:: \sum_k \frac{\partial L}{\partial x_k} = \frac4{N^2} \sum_{i>j} G_{ij} H_{ij}
              \left[\nabla\Phi(x_j) - \nabla\Phi(x_i)\right]^\top J_{ij}

    The input distances do not change, so their term cancels; 0 where Φ is affine. Twice :func:`printed_gradient`.
    """
    return isometric_gradient(x, z, jacobian, groups).sum(0)


def printed_gradient(
    x: Values, z: Values, jacobian: Values, groups: Values | None = None, *, beta: float = 1.0
) -> Tensor:
    r"""The right-hand side of [beshkov2022] eq. (13) (eq. 6 without its inequality) as it is printed, ``[d]``.

    .. math:: \frac{2\beta}{N^2} \sum_{i>j} G_{ij} H_{ij} \left[\nabla\Phi(x_j) - \nabla\Phi(x_i)\right]^\top J_{ij}

    Not the gradient that an attack sees: it is the derivative under a common translation of all samples, and half of
    it (:func:`translation_gradient`). The products are contracted over the output's components, which eq. (11) leaves
    out. Kept to compare with the paper.
    """
    points, images, slopes, related = _checked("printed_gradient", x, z, jacobian, groups)
    n = len(points)
    after = euclidean(images)
    gap = (euclidean(points) - after) * related
    total = torch.zeros(points.shape[1], dtype=torch.float64, device=points.device)
    for i in range(1, n):
        weights = torch.where(after[i, :i] > 0, gap[i, :i] / after[i, :i].clamp_min(1e-300), 0.0)
        unit = weights[:, None] * (images[i] - images[:i])  # H J of the pairs i > j
        total += torch.einsum("jh,jhd->d", unit, slopes[:i] - slopes[i])
    return 2 * beta / n**2 * total


def gap_sums(x: Values, z: Values, groups: Values | None = None) -> Tensor:
    r""":math:`\sum_j G_{kj} |H_{kj}|` of each sample ``[n]``, float64: how far its distances are from kept."""
    points, images, _, related = _checked("gap_sums", x, z, None, groups)
    return ((euclidean(points) - euclidean(images)).abs() * related).sum(1)


def gap_direction(x: Values, z: Values, groups: Values | None = None) -> Tensor:
    r""":math:`\sum_{i>j} G_{ij} H_{ij} J_{ij}` ``[m]``, float64: the vector in the printed bounds (6) and (14)."""
    points, images, _, related = _checked("gap_direction", x, z, None, groups)
    after = euclidean(images)
    gap = ((euclidean(points) - after) * related).tril(-1)
    weights = gap / torch.where(after > 0, after, torch.inf)
    return weights.sum(1) @ images - weights.sum(0) @ images


def _directions(gap: Tensor, distances: Tensor, points: Tensor) -> Tensor:
    r""":math:`\sum_j H_{kj} (p_k - p_j)/d_{kj}` ``[n, …]``."""
    weights = gap / torch.where(distances > 0, distances, torch.inf)
    points = points - points.mean(0)
    return weights.sum(1, keepdim=True) * points - weights @ points


def _checked(
    name: str, x: Values, z: Values, jacobian: Values | None, groups: Values | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    points, images = (torch.as_tensor(values).detach().double().flatten(1) for values in (x, z))
    n = len(points)
    if len(images) != n:
        raise ValueError(f"{name}: x and z must hold the same samples, got {n} and {len(images)}.")
    for argument, values in (("x", points), ("z", images)):
        if not bool(torch.isfinite(values).all()):
            raise ValueError(f"{name}: {argument} must be finite, got NaN or infinity.")
    slopes = torch.zeros(0) if jacobian is None else torch.as_tensor(jacobian).detach().double()
    if jacobian is not None:
        shape = (n, images.shape[1], points.shape[1])
        if slopes.shape != shape:
            raise ValueError(f"{name}: jacobian must have shape {list(shape)}, got {list(slopes.shape)}.")
    if groups is None:
        return points, images, slopes, torch.ones(n, n, dtype=torch.float64, device=points.device)
    labels = torch.as_tensor(groups, device=points.device)
    if labels.shape != (n,):
        raise ValueError(f"{name}: groups must hold one label for each of {n} samples, got {list(labels.shape)}.")
    return points, images, slopes, (labels[:, None] == labels[None]).double()
