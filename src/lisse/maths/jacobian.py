"""Norms of Jacobians by power iteration, and the effective rank of a cloud."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class JacobianNorm:
    """``value`` ``[n]``: a lower estimate of each sample's ‖J‖₂; ``direction`` ``[n, …]``: unit inputs that attain it.

    ``converged`` ``[n]``: whether the last iteration changed the value by less than the tolerance.
    """

    value: Tensor
    direction: Tensor
    converged: Tensor
    iterations: int


def jacobian_norm(
    y: Tensor,
    x: Tensor,
    *,
    start: Tensor | None = None,
    max_iter: int = 30,
    tol: float = 1e-3,
    generator: torch.Generator | None = None,
) -> JacobianNorm:
    r"""Spectral norm of each sample's Jacobian :math:`J_i = \partial y_i / \partial x_i`, from below.

    ``y`` ``[n, …]`` must have been computed from ``x`` ``[n, …]`` with gradients, sample by sample (no sample may act
    on another, as in batch statistics). Power iteration :math:`v \leftarrow J^\top J v / \|J^\top J v\|` with all
    samples at once; every iterate gives :math:`\|J v\|_2 \le \|J\|_2`, so the largest one seen is a lower estimate
    whatever the convergence. ``start`` ``[n, …]`` warm-starts it (a random direction is mixed in, so that an unlucky
    one is not orthogonal to the answer).

    A vjp is a backward pass over the graph between ``x`` and ``y`` alone; a jvp is the derivative of the vjp in its
    vector, which is linear, so it costs one more backward over that pass. Cost: about 5 forwards of that part of the
    network per iteration. Second derivatives must exist along the way (not so for some fused kernels).
    """
    if len(x) != len(y):
        raise ValueError(f"jacobian_norm: x and y must have as many samples, got {len(x)} and {len(y)}.")
    if max_iter < 1:
        raise ValueError(f"jacobian_norm: max_iter must be at least 1, got {max_iter}.")
    covector = torch.zeros_like(y, requires_grad=True)
    (pulled,) = torch.autograd.grad(y, x, covector, create_graph=True, allow_unused=True)
    if pulled is None:
        raise ValueError("jacobian_norm: y must depend on x, got a graph in which it does not.")
    noise = torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
    v = _unit(noise)
    if start is not None:
        v = _unit(_unit(start.to(x)) + 0.1 * v)
    best = x.new_zeros(len(x))
    direction = v
    converged = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    iteration = 0
    for iteration in range(1, max_iter + 1):
        w = _jvp(pulled, covector, v)
        size = _norm(w)
        better = size > best
        converged = (size - best).abs() <= tol * torch.maximum(size, best)
        direction = torch.where(_spread(better, v), v, direction)
        best = torch.maximum(best, size)
        if bool(converged.all()) or iteration == max_iter:
            break
        (back,) = torch.autograd.grad(y, x, w / _spread(size.clamp_min(_tiny(size)), w), retain_graph=True)
        v = _unit(back, fallback=v)
    return JacobianNorm(best.detach(), direction.detach(), converged, iteration)


def effective_rank(points: Tensor, *, chunk: int = 4096) -> Tensor:
    r"""Participation ratio of a cloud ``[n, …]``: :math:`(\sum_i \lambda_i)^2 / \sum_i \lambda_i^2`.

    :math:`\lambda` are the eigenvalues of the covariance of the flattened points. It is 1 for a line, d for an
    isotropic cloud in d dimensions, and at most n - 1: a cloud of n points cannot show more. A cloud that is a single
    point has none (NaN). Computed as :math:`(\operatorname{tr} G)^2 / \|G\|_F^2` from the centred Gram matrix in
    float64, ``chunk`` features at a time: O(n² d) time, O(n² + n·chunk) memory.
    """
    flat = points.detach().flatten(1)
    n = len(flat)
    if n < 2:
        raise ValueError(f"effective_rank: points must hold at least 2 points, got {n}.")
    gram = torch.zeros(n, n, dtype=torch.float64, device=flat.device)
    for start in range(0, flat.shape[1], chunk):
        part = flat[:, start : start + chunk].double()
        part = part - part.mean(0)
        gram.addmm_(part, part.T)
    square = gram.pow(2).sum()
    return torch.where(square > 0, gram.trace() ** 2 / square, torch.nan)


def _jvp(pulled: Tensor, covector: Tensor, v: Tensor) -> Tensor:
    (w,) = torch.autograd.grad(pulled, covector, v, retain_graph=True, allow_unused=True)
    return torch.zeros_like(covector) if w is None else w


def _norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x.detach().flatten(1), dim=1)


def _tiny(x: Tensor) -> float:
    return torch.finfo(x.dtype).tiny


def _spread(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *([1] * (like.ndim - 1)))


def _unit(x: Tensor, fallback: Tensor | None = None) -> Tensor:
    size = _spread(_norm(x), x)
    unit = x / size.clamp_min(_tiny(x))
    return unit if fallback is None else torch.where(size > 0, unit, fallback)
