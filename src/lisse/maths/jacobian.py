"""Norms of Jacobians by Golub–Kahan–Lanczos iteration, and the effective rank of a cloud."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lisse.maths.given import check_least, check_positive

_LEAST_STEPS = 4
_CUTS = 64  # parts of a vector
_NUMBERS = 2**24  # of a cloud on a GPU in float64 at a time
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
    pulled, covector = _pulled(y, x)
    v = torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device) if start is None else start.to(x)
    n = len(x)
    host = x.device.type == "cpu"
    vs, us = (
        torch.empty(
            max_iter, n, math.prod(like.shape[1:]), dtype=_wide(like.dtype) if host else like.dtype, device=like.device
        )
        for like in (x, y)
    )
    live = _unit_into(vs[0], v.flatten(1)) > 0
    finite = torch.ones(n, dtype=torch.bool, device=x.device)
    # On a GPU the host waits for a few numbers a step, and makes the small decompositions itself.
    bidiagonal = torch.zeros(n, max_iter, max_iter, dtype=torch.float64)
    mixture = torch.zeros(n, max_iter, dtype=torch.float64)
    converged = torch.zeros(n, dtype=torch.bool)

    def forward(vector: Tensor) -> Tensor:
        return _jvp(pulled, covector, vector.to(x.dtype).reshape(x.shape)).flatten(1)

    def backward(vector: Tensor) -> Tensor:
        return torch.autograd.grad(y, x, vector.to(y.dtype).reshape(y.shape), retain_graph=True)[0].flatten(1)

    def step(k: int, *, again: bool) -> tuple[Tensor, Tensor]:
        """αₖ, βₖ, whether all was finite and whether products left the range ``[4, n]``; and which vₖ₊₁ are not 0."""
        image, scale, before, out = _in_range(forward, vs[k], live, finite, x.dtype, again=again)
        alpha = _unit_into(us[k], _orthogonal(image, us[:k]))
        image, back, after, far = _in_range(backward, us[k], alpha > 0, before, y.dtype, again=again)
        beta = _unit_into(vs[k + 1] if k + 1 < max_iter else None, _orthogonal(image, vs[: k + 1]))
        return torch.stack([alpha * scale, beta * back, after.double(), (out | far).double()]), beta > 0

    steps, again = 0, host
    for k in range(max_iter):
        steps = k + 1
        numbers, ahead = step(k, again=again)
        alpha, beta, regular, out = numbers.cpu()
        if not again and bool(out.any()):  # that rarely happens, and asking before each product makes a GPU wait
            again = True
            numbers, ahead = step(k, again=again)
            alpha, beta, regular, _ = numbers.cpu()
        live, finite = ahead, numbers[2].bool()
        bidiagonal[:, k, k] = alpha
        rows = (~converged).nonzero()[:, 0]
        left, sigma, right = torch.linalg.svd(bidiagonal[rows, :steps, :steps])
        mixture[rows, :steps] = right[:, 0]
        if steps >= min(_LEAST_STEPS, max_iter):
            converged[rows] = beta[rows] * left[:, k, 0].abs() <= tol * sigma[:, 0]
        if bool((converged | ~regular.bool()).all()) or steps == max_iter:
            break
        bidiagonal[:, k, k + 1] = beta
    direction = torch.bmm(mixture[:, None, :steps].to(vs), vs[:steps].transpose(0, 1))[:, 0]
    live = _unit_into(direction, direction) > 0
    image, scale, finite, _ = _in_range(forward, direction, live, finite, x.dtype, again=True)
    value = torch.where(finite, _norm(image) * scale, torch.nan)
    return JacobianNorm(value, direction.reshape(x.shape), converged.to(x.device) & finite, steps)


def _pulled(y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The vjp of a covector that is zero, with a graph, and that covector."""
    covector = torch.zeros_like(y, requires_grad=True)
    (pulled,) = torch.autograd.grad(y, x, covector, create_graph=True, allow_unused=True)
    if pulled is None:
        raise ValueError("jacobian_norm: y must depend on x, got a graph in which it does not.")
    if not pulled.requires_grad:
        raise ValueError(_NO_SECOND)
    return pulled, covector


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


def effective_rank(points: Tensor, *, rows: Tensor | None = None, chunk: int | None = None) -> Tensor:
    r"""Participation ratio of a cloud ``[n, …]``: :math:`(\sum_i \lambda_i)^2 / \sum_i \lambda_i^2`.

    :math:`\lambda` are the eigenvalues of the covariance of the flattened points. It is 1 for a line, d for an
    isotropic cloud in d dimensions, and at most n - 1: a cloud of n points cannot show more. A cloud that is a single
    point, to rounding, has none (NaN). Computed as :math:`(\operatorname{tr} G)^2 / \|G\|_F^2` from the centred Gram
    matrix in float64, ``chunk`` features at a time (4096, and more on a GPU): O(n² d) time, O(n² + n·chunk) memory.
    ``rows`` takes the cloud out of ``points`` without a copy of it.
    """
    flat = points.detach().flatten(1)
    n = len(flat) if rows is None else len(rows)
    if n < 2:
        raise ValueError(f"effective_rank: points must hold at least 2 points, got {n}.")
    if chunk is None:
        chunk = 4096 if flat.device.type == "cpu" else max(4096, _NUMBERS // n)
    index = None if rows is None else rows.to(flat.device)
    gram = torch.zeros(n, n, dtype=torch.float64, device=flat.device)
    size = torch.zeros((), dtype=torch.float64, device=flat.device)
    for start in range(0, flat.shape[1], chunk):
        part = flat[:, start : start + chunk]
        part = (part if index is None else part[index]).double()
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


def _in_range(
    product: Callable[[Tensor], Tensor],
    vector: Tensor,
    live: Tensor,
    finite: Tensor,
    dtype: torch.dtype,
    *,
    again: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A linear map's ``product(vector)`` ``[n, d]`` as images of norm 0 or in [½, 1), and the scale ``[n]`` of each.

    ``dtype`` is that in which the product is made. Products of ``live`` vectors (not 0) that may have left its range on
    their way are taken once more (``again``), of ``vector`` over or times a power of two, which is exact. Rows that are
    not finite even so are zero. Also which rows are ``finite`` still, and which products may have left the range.
    """
    image = product(vector)
    least = math.log2(torch.finfo(dtype).tiny)
    reach = 2.0 ** int(-0.75 * least)
    size = _norm(image)
    shift = torch.ones_like(size).masked_fill_(size < 1 / reach, reach).masked_fill_(~(size < reach), 1 / reach)
    out = (shift != 1) & live
    if again and bool(out.any()):
        image = product(vector * shift[:, None].to(vector.dtype))
        size = _norm(image)
    finite = finite & size.isfinite()
    exponent = torch.frexp(torch.where(finite, size, 0.0))[1].double().clamp_min(least)
    image = torch.where(finite[:, None], image, 0.0) * torch.exp2(-exponent)[:, None].to(image.dtype)
    return image, torch.exp2(exponent) / shift, finite, out


def _norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=1, dtype=torch.float64)


def _unit_into(unit: Tensor | None, x: Tensor) -> Tensor:
    """Each row over its norm, written into ``unit``, and the norms ``[n]``; what is next to zero is zero."""
    size = _norm(x)
    factor = torch.where(size > torch.finfo(x.dtype).tiny, 1 / size, 0.0)
    if unit is not None:
        # A short dtype in float32: rounding the factor would put all of the row off.
        unit.copy_(x * factor[:, None].to(_wide(x.dtype)))
    return size


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _orthogonal(x: Tensor, basis: Tensor) -> Tensor:
    """``x`` ``[n, d]`` less its parts along the orthonormal vectors of ``basis`` ``[k, n, d]``.

    Twice by classical Gram–Schmidt ([giraud2005]): two products with the whole basis each, where the modified one takes
    k vectors one after the other. A row that loses half of its length the second time too lies in the span, and what
    is left of it is rounding: it is zero.
    """
    if not len(basis):
        return x
    k, n, d = basis.shape
    # A GPU shares out what is several products: of one with few rows it uses a corner.
    cuts = 1 if x.device.type == "cpu" else math.gcd(d, _CUTS)
    parts = basis.view(k, n * cuts, d // cuts).transpose(0, 1)
    x, sizes = x.to(basis.dtype), []
    for _ in range(2):
        rows = x.reshape(n * cuts, 1, d // cuts)
        shares = torch.bmm(rows, parts.transpose(1, 2)).reshape(n, cuts, k).sum(1, keepdim=True)
        x = torch.baddbmm(rows, shares.expand(-1, cuts, -1).reshape(n * cuts, 1, k), parts, alpha=-1).reshape(n, d)
        sizes.append(_norm(x))
    return torch.where((sizes[1] > sizes[0] / 2)[:, None], x, 0.0)
