"""Norms of Jacobians by Golub–Kahan–Lanczos iteration, and the effective rank of a cloud."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lisse.maths.given import check_least, check_positive

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

    ``start`` ``[n, …]`` is the first vector (random by default, from ``generator``). Where a product leaves the range
    of its dtype (a hundred layers that each shrink or stretch), it is taken again of a vector scaled by a power of two;
    a sample whose derivative is not finite even so has the value NaN.

    A vjp is a backward pass over the graph between ``x`` and ``y`` alone; a jvp is the derivative of the vjp in its
    vector, which is linear, so it costs one more backward over that pass. Cost: about 5 forwards of that part of the
    network per step; memory: ``max_iter`` times ``x`` and ``y``. Second derivatives must exist along the way (not so
    for some fused kernels). Reference: [golub1965] sec. 3.
    """
    if len(x) != len(y):
        raise ValueError(f"jacobian_norm: x and y must have as many samples, got {len(x)} and {len(y)}.")
    check_least("jacobian_norm", 1, max_iter=max_iter)
    check_positive("jacobian_norm", tol=tol)
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
    converged = torch.zeros(n, dtype=torch.bool, device=x.device)
    finite = torch.ones_like(converged)

    def forward(vector: Tensor) -> tuple[Tensor, Tensor]:
        return _in_range(lambda scaled: _jvp(pulled, covector, scaled), vector, finite)

    def backward(vector: Tensor) -> tuple[Tensor, Tensor]:
        return _in_range(lambda scaled: torch.autograd.grad(y, x, scaled, retain_graph=True)[0], vector, finite)

    steps = 0
    for k in range(max_iter):
        steps = k + 1
        image, scale = forward(vs[k])
        u = _orthogonal(image, us)
        alpha = _norm(u) * scale
        us.append(_unit(u))
        image, scale = backward(us[k])
        w = _orthogonal(image, vs)
        beta = _norm(w) * scale
        bidiagonal[:, k, k] = alpha
        left, sigma, right = torch.linalg.svd(bidiagonal[:, :steps, :steps])
        mixture[:, :steps] = torch.where(converged[:, None], mixture[:, :steps], right[:, 0])
        residual = beta * left[:, k, 0].abs()
        enough = steps >= min(_LEAST_STEPS, max_iter)
        converged |= (residual <= tol * sigma[:, 0]) if enough else torch.zeros_like(converged)
        if bool((converged | ~finite).all()) or steps == max_iter:
            break
        bidiagonal[:, k, k + 1] = beta
        vs.append(_unit(w))
    direction = sum((_spread(mixture[:, k], x).to(x.dtype) * vs[k] for k in range(steps)), torch.zeros_like(x))
    direction = _unit(direction)
    image, scale = forward(direction)
    value = torch.where(finite, _norm(image) * scale, torch.nan)
    return JacobianNorm(value, direction.detach(), converged & finite, steps)


def worst_token_stretch(
    f: Callable[[Tensor], Tensor], x: Tensor, *, steps: int = 20, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    r"""How far f moves the worst token for a small move of tokens, :math:`\max_i\|(J\delta)_i\|`, from below.

    ``x`` ``[t, d]``, f(x) ``[t', d']``; at most one move per token, :math:`\max_j\|\delta_j\| \le 1`. With i the worst
    token and u its direction, :math:`\langle u, (J\delta)_i\rangle` is largest at :math:`\delta_j = (J^\top u)_j /
    \|(J^\top u)_j\|`, so that iterating never gets worse. Returns the stretch and the move δ that attains it. Cost:
    a jvp and a vjp per step.
    """
    check_least("worst_token_stretch", 1, steps=steps)
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        y = f(x)
        covector = torch.zeros_like(y, requires_grad=True)
        (pulled,) = torch.autograd.grad(y, x, covector, create_graph=True)
    delta = torch.nn.functional.normalize(torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device), dim=-1)
    best = y.new_zeros(()), delta
    for _ in range(steps):
        moved = _jvp(pulled, covector, delta)
        sizes = moved.norm(dim=-1)
        worst = sizes.argmax()
        if not sizes[worst] > best[0] * (1 + 1e-9):
            break
        best = sizes[worst], delta
        direction = torch.zeros_like(y)
        direction[worst] = moved[worst] / sizes[worst]
        (back,) = torch.autograd.grad(y, x, direction, retain_graph=True)
        delta = torch.nn.functional.normalize(back, dim=-1)
    return best


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


def _in_range(product: Callable[[Tensor], Tensor], vector: Tensor, finite: Tensor) -> tuple[Tensor, Tensor]:
    """A linear map's ``product(vector)`` as images of norm 0 or in [½, 1), and the scale ``[n]`` of each.

    Products that may have left the range of the dtype on their way are taken once more, of ``vector`` over or times a
    power of two, which is exact. Rows that are not finite even so are zero, and are taken out of ``finite``.
    """
    image = product(vector)
    least = math.log2(torch.finfo(vector.dtype).tiny)
    reach = 2.0 ** int(-0.75 * least)
    size = _norm(image)
    shift = torch.ones_like(size).masked_fill_(size < 1 / reach, reach).masked_fill_(~(size < reach), 1 / reach)
    if bool((shift != 1).any()):
        image = product(vector * _spread(shift, vector).to(vector.dtype))
        size = _norm(image)
    finite &= size.isfinite()
    exponent = torch.frexp(torch.where(finite, size, 0.0))[1].double().clamp_min(least)
    image = torch.where(_spread(finite, image), image, 0.0) * _spread(torch.exp2(-exponent), image).to(image.dtype)
    return image, torch.exp2(exponent) / shift


def _norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x.detach().flatten(1), dim=1, dtype=torch.float64)


def _spread(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *([1] * (like.ndim - 1)))


def _unit(x: Tensor) -> Tensor:
    """Each sample over its norm; zero stays zero."""
    size = _norm(x)
    return x * _spread(torch.where(size > torch.finfo(x.dtype).tiny, 1 / size, 0.0), x).to(x.dtype)


def _orthogonal(x: Tensor, basis: list[Tensor]) -> Tensor:
    """``x`` less its parts along orthonormal vectors, taken out one after the other (modified Gram–Schmidt)."""
    for vector in basis:
        x = x - _spread((x * vector).flatten(1).sum(1), x) * vector
    return x
