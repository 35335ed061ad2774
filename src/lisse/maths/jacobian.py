"""Norms of Jacobians by Golub–Kahan–Lanczos iteration, and the effective rank of a cloud."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_LEAST_STEPS = 4
_NO_SECOND = "jacobian_norm: y must have second derivatives in x, got an operation without them on the way."


@dataclass(frozen=True, slots=True)
class JacobianNorm:
    """``value`` ``[n]``: a lower estimate of each sample's ‖J‖₂; ``direction`` ``[n, …]``: unit inputs that attain it.

    ``converged`` ``[n]``: whether the residual of that direction was under the tolerance.
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
    tol: float = 1e-2,
    generator: torch.Generator | None = None,
) -> JacobianNorm:
    r"""Spectral norm of each sample's Jacobian :math:`J_i = \partial y_i / \partial x_i`, from below.

    ``y`` ``[n, …]`` must have been computed from ``x`` ``[n, …]`` with gradients, sample by sample (no sample may act
    on another, as in batch statistics). Golub–Kahan–Lanczos bidiagonalisation :math:`J V_k = U_k B_k` with full
    reorthogonalisation, all samples at once: the power iteration's products, whose whole history is used, so that it
    does not rest on the plateau that a residual block :math:`I + g\,u u^\top` has. With :math:`(\sigma, p, q)` the
    top singular triplet of :math:`B_k`, the residual :math:`\|J^\top U p - \sigma V q\| = \beta_k |p_k|` under
    ``tol`` :math:`\sigma` (and at least four steps) ends a sample; each sample's answer is that of its own last
    step, whoever shares its batch. ``value`` is :math:`\|J v\|_2 \le \|J\|_2` of the unit vector :math:`v = V q`
    itself: a lower estimate whether or not it converged.

    ``start`` ``[n, …]`` is the first vector (random by default, from ``generator``).

    A vjp is a backward pass over the graph between ``x`` and ``y`` alone; a jvp is the derivative of the vjp in its
    vector, which is linear, so it costs one more backward over that pass. Cost: about 5 forwards of that part of the
    network per step; memory: ``max_iter`` times ``x`` and ``y``. Second derivatives must exist along the way (not so
    for some fused kernels). Reference: [golub1965] sec. 3.
    """
    if len(x) != len(y):
        raise ValueError(f"jacobian_norm: x and y must have as many samples, got {len(x)} and {len(y)}.")
    if max_iter < 1:
        raise ValueError(f"jacobian_norm: max_iter must be at least 1, got {max_iter}.")
    if not tol > 0:
        raise ValueError(f"jacobian_norm: tol must be positive, got {tol}.")
    covector = torch.zeros_like(y, requires_grad=True)
    (pulled,) = torch.autograd.grad(y, x, covector, create_graph=True, allow_unused=True)
    if pulled is None:
        raise ValueError("jacobian_norm: y must depend on x, got a graph in which it does not.")
    if not pulled.requires_grad:
        raise ValueError(_NO_SECOND)
    v = torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device) if start is None else start.to(x)
    vs, us = [_unit(v)], list[Tensor]()
    n = len(x)
    bidiagonal = torch.zeros(n, max_iter, max_iter, dtype=torch.float64, device=x.device)
    mixture = torch.zeros(n, max_iter, dtype=torch.float64, device=x.device)
    done = torch.zeros(n, dtype=torch.bool, device=x.device)
    steps = 0
    for k in range(max_iter):
        steps = k + 1
        u = _orthogonal(_jvp(pulled, covector, vs[k]), us)
        alpha = _norm(u)
        us.append(_unit(u))
        (back,) = torch.autograd.grad(y, x, us[k], retain_graph=True)
        w = _orthogonal(back, vs)
        beta = _norm(w)
        bidiagonal[:, k, k] = alpha
        left, sigma, right = torch.linalg.svd(bidiagonal[:, :steps, :steps])
        mixture[:, :steps] = torch.where(done[:, None], mixture[:, :steps], right[:, 0])
        residual = beta * left[:, k, 0].abs()
        enough = steps >= min(_LEAST_STEPS, max_iter)
        done |= (residual <= tol * sigma[:, 0]) if enough else torch.zeros_like(done)
        if bool(done.all()) or steps == max_iter:
            break
        bidiagonal[:, k, k + 1] = beta
        vs.append(_unit(w))
    direction = sum((_spread(mixture[:, k], x).to(x.dtype) * vs[k] for k in range(steps)), torch.zeros_like(x))
    direction = _unit(direction)
    return JacobianNorm(_norm(_jvp(pulled, covector, direction)), direction.detach(), done, steps)


def effective_rank(points: Tensor, *, rows: Tensor | None = None, chunk: int = 4096) -> Tensor:
    r"""Participation ratio of a cloud ``[n, …]``: :math:`(\sum_i \lambda_i)^2 / \sum_i \lambda_i^2`.

    :math:`\lambda` are the eigenvalues of the covariance of the flattened points. It is 1 for a line, d for an
    isotropic cloud in d dimensions, and at most n - 1: a cloud of n points cannot show more. A cloud that is a single
    point, to rounding, has none (NaN). Computed as :math:`(\operatorname{tr} G)^2 / \|G\|_F^2` from the centred Gram
    matrix in float64, ``chunk`` features at a time: O(n² d) time, O(n² + n·chunk) memory. ``rows`` takes the cloud out
    of ``points`` without a copy of it.
    """
    flat = points.detach().flatten(1)
    n = len(flat) if rows is None else len(rows)
    if n < 2:
        raise ValueError(f"effective_rank: points must hold at least 2 points, got {n}.")
    gram = torch.zeros(n, n, dtype=torch.float64, device=flat.device)
    size = torch.zeros((), dtype=torch.float64, device=flat.device)
    for start in range(0, flat.shape[1], chunk):
        part = flat[:, start : start + chunk]
        part = (part if rows is None else part[rows]).double()
        size += part.pow(2).sum()
        part = part - part.mean(0)
        gram.addmm_(part, part.T)
    trace, square = gram.trace(), gram.pow(2).sum()
    precision = torch.finfo(points.dtype).eps if points.is_floating_point() else 0.0
    return torch.where(trace > (4 * precision) ** 2 * size, trace**2 / square, torch.nan)


def _jvp(pulled: Tensor, covector: Tensor, v: Tensor) -> Tensor:
    (w,) = torch.autograd.grad(pulled, covector, v, retain_graph=True, allow_unused=True)
    if w is None:
        raise ValueError(_NO_SECOND)
    return w


def _norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x.detach().flatten(1), dim=1, dtype=torch.float64)


def _spread(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *([1] * (like.ndim - 1)))


def _unit(x: Tensor) -> Tensor:
    """Each sample over its norm; zero stays zero."""
    size = _norm(x)
    return x * _spread(torch.where(size > 0, 1 / size, 0.0), x).to(x.dtype)


def _orthogonal(x: Tensor, basis: list[Tensor]) -> Tensor:
    """``x`` less its parts along orthonormal vectors, taken out one after the other (modified Gram–Schmidt)."""
    for vector in basis:
        x = x - _spread((x * vector).flatten(1).sum(1), x) * vector
    return x
