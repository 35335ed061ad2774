r"""Fredholm integral equations of both kinds, and Tikhonov's functional: [cao2022] (20)–(23), corrected.

:math:`A = \alpha^{-1} K` is the row-normalised kernel. The first kind :math:`A v = z` is ill-posed; the second
:math:`\beta v + A v = z` is not. A skip connection *applies* :math:`\beta I + A` to v; it does not *solve* the
equation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lisse.maths.given import floating
from lisse.maths.integral.kernels import TokenKernel
from lisse.maths.integral.operators import IntegralOperator
from lisse.maths.integral.structure import kernel_matrix, symmetric_matrix

_Operator = Callable[[Tensor], Tensor]
# A residual z - Bu has a rounding error of some epsilons of ‖B‖‖u‖, which no iteration goes below. Where the operator's
# condition times a few epsilons is under the tolerance, it can be reached: up to 10² in float32, up to 10⁵ in float64.
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5}
_COARSE = 1e-2  # of half precision


@dataclass(frozen=True, slots=True)
class Iteration:
    """``solution``, the relative ``residual`` it has, whether that is under the tolerance, and the steps taken.

    ``indefinite``: conjugate gradients met a direction along which the operator is not positive, and ended there.
    """

    solution: Tensor
    residual: float
    converged: bool
    iterations: int
    indefinite: bool = False


def tolerance(tol: float | None, dtype: torch.dtype) -> float:
    """``tol``, or the default of a dtype: 1e-10 in float64, 1e-5 in float32, 1e-2 in half precision."""
    return TOLERANCES.get(dtype, _COARSE) if tol is None else tol


def conjugate_gradients(
    operator: _Operator, z: Tensor, *, weights: Tensor | float = 1.0, tol: float | None = None, max_iter: int = 500
) -> Iteration:
    r"""Solve :math:`B u = z` ``[…, p, e]`` for B self-adjoint and positive in :math:`\sum_i \alpha_i u_i v_i`.

    ``weights`` α ``[…, p, 1]``. Every column and batch entry has its own step; all end together, when the largest
    relative residual :math:`\|z - B u\|_2 / \|z\|_2` is under ``tol`` (default: :func:`tolerance` of the dtype). The
    recurrence's residual, in that same norm, says when to look; the true one decides, and where the two have drifted
    apart the iteration begins again from the true one, as long as that helps. One application of B a step, and one a
    look. A direction along which :math:`\langle v, B v\rangle_\alpha` is negative beyond rounding ends it: B is not
    positive, which ``indefinite`` says, and ``converged`` is false. Reference: [hestenes1952].
    """
    goal = tolerance(tol, z.dtype)

    def inner(x: Tensor, y: Tensor) -> Tensor:
        return (weights * x * y).sum(-2, keepdim=True)

    norm = torch.linalg.vector_norm
    u, r, lengths = torch.zeros_like(z), z, norm(z.detach(), dim=-2, keepdim=True)
    steps, indefinite = 0, False
    residual, best = _relative(r, z), torch.inf
    while goal < residual < 0.5 * best and steps < max_iter and not indefinite:
        best = residual
        direction, size = r, inner(r, r)
        while steps < max_iter:
            away = norm(r.detach(), dim=-2, keepdim=True) > 0.5 * goal * lengths  # columns that have not arrived
            if not bool(away.any()):
                break
            steps += 1
            image = operator(direction)
            curve = inner(direction, image)
            flat = curve <= 0
            if bool((flat & away).any()):
                # Curvature that is lost in rounding says nothing of B; the true residual then decides.
                sizes = (inner(direction, direction) * inner(image, image)).sqrt()
                slack = z.shape[-2] * torch.finfo(z.dtype).eps * sizes
                indefinite = bool((away & (curve < -slack)).any())
                break
            step = torch.where(flat, 0.0, size / torch.where(flat, 1.0, curve))
            u, r = u + step * direction, r - step * image
            fresh = inner(r, r)
            direction = r + torch.where(size > 0, fresh / torch.where(size > 0, size, 1.0), 0.0) * direction
            size = fresh
        r = z - operator(u)
        residual = _relative(r, z)
    return Iteration(u, residual, residual <= goal and not indefinite, steps, indefinite)


def gmres(
    operator: _Operator, z: Tensor, *, tol: float | None = None, max_iter: int = 500, restart: int = 50
) -> Iteration:
    r"""Solve :math:`B u = z` for any B, by the least residual over Krylov spaces of up to ``restart`` dimensions.

    The whole tensor is one vector, and it ends when the largest relative residual of its columns is under ``tol``
    (default: :func:`tolerance` of the dtype), or when a restart no longer helps. ``restart`` times its memory.
    Reference: [saad1986].
    """
    goal = tolerance(tol, z.dtype)
    u, r, steps = torch.zeros_like(z), z, 0
    residual, beta, best = _relative(r, z), torch.linalg.vector_norm(z), torch.inf
    # Of the whole vector, what is enough for every column: the smallest that is not zero.
    columns = torch.linalg.vector_norm(z, dim=-2)
    enough = 0.5 * goal * float(columns[columns > 0].min()) if bool((columns > 0).any()) else 0.0
    while residual > goal and float(beta) < best and steps < max_iter:
        best = float(beta)
        basis, width = [r / beta], min(restart, max_iter - steps)
        hessenberg = z.new_zeros(width + 1, width)
        for j in range(width):
            steps += 1
            w = operator(basis[j])
            reach = float(torch.linalg.vector_norm(w))
            for _ in range(2):  # twice is enough for orthogonality to rounding
                for i, vector in enumerate(basis):
                    along = (w * vector).sum()
                    hessenberg[i, j] += along
                    w = w - along * vector
            hessenberg[j + 1, j] = torch.linalg.vector_norm(w)
            right = z.new_zeros(j + 2)
            right[0] = beta
            small = hessenberg[: j + 2, : j + 1]
            y = torch.linalg.lstsq(small, right[:, None]).solution[:, 0]
            residual_norm = float(torch.linalg.vector_norm(small @ y - right))
            # Nothing new: the space holds what the operator makes of it.
            if residual_norm <= enough or float(hessenberg[j + 1, j]) <= torch.finfo(z.dtype).eps * reach:
                break
            basis.append(w / hessenberg[j + 1, j])
        u = u + sum((y[i] * basis[i] for i in range(len(y))), torch.zeros_like(z))
        r = z - operator(u)
        residual, beta = _relative(r, z), torch.linalg.vector_norm(r)
    return Iteration(u, residual, residual <= goal, steps)


def _relative(r: Tensor, z: Tensor) -> float:
    """The largest norm of a residual ``[…, p, e]`` over that of its right-hand side, over columns and batch entries."""
    residuals, sizes = (torch.linalg.vector_norm(x.detach(), dim=-2) for x in (r, z))
    return float(torch.where(sizes > 0, residuals / torch.where(sizes > 0, sizes, 1.0), residuals).max())


AnyKernel = TokenKernel | IntegralOperator | Tensor
Weighting = Literal["none", "alpha"]
Coefficient = Literal["eq37", "eq22"]
_Method = Literal["direct", "iterative"]


@dataclass(frozen=True, slots=True)
class Solution:
    r"""``solution`` u of an integral equation, with the shape of z.

    ``residual``: the largest entry of what is left of the equation. ``condition``: the condition number of its matrix
    (NaN for an iterative solve). ``converged``: whether the iteration reached its tolerance (a direct solve has).
    """

    solution: Tensor
    residual: Tensor
    condition: Tensor
    converged: bool
    iterations: int


@dataclass(frozen=True, slots=True)
class Tikhonov:
    r"""The minimiser of Tikhonov's functional.

    ``solution`` u has the shape of z; ``functional`` is its value there. ``residual`` is :math:`\max|\beta u +
    \alpha^{-1} K u - z|`, how far u is from solving (23): zero to rounding with ``weighting`` ``"alpha"`` or α = 1, and
    not otherwise, which is the correction of Theorem 5.2. ``gradient`` is the largest entry of the equation that u does
    solve, zero to rounding for either weighting.
    """

    solution: Tensor
    residual: Tensor
    functional: Tensor
    gradient: Tensor
    converged: bool
    iterations: int


def tikhonov(
    kernel: AnyKernel,
    z: Tensor,
    beta: float,
    *,
    weighting: Weighting = "none",
    alpha: Tensor | float | None = None,
    coefficient: Coefficient = "eq37",
    method: _Method | None = None,
    tol: float | None = None,
    max_iter: int = 500,
) -> Tikhonov:
    r"""The minimiser of Tikhonov's functional for a symmetric, positive semidefinite kernel.

    .. math:: \mathcal L(v) = \tfrac12 \sum_i \omega_i \big(\alpha_i^{-1} (Kv)_i - z_i\big)^2
              + \tfrac\beta2 \langle K v, v \rangle

    ``weighting`` ``"none"``: :math:`\omega = 1`, and the minimiser solves :math:`(\beta\,\mathrm{diag}\,\alpha +
    \alpha^{-1} K) u = z`. ``"alpha"``: :math:`\omega = \alpha`, and it solves :math:`(\beta I + \alpha^{-1} K) u = z`,
    which is (23): only so, or for α = 1, does Theorem 5.2 hold as printed.

    ``kernel``: an :class:`TokenKernel`, an :class:`IntegralOperator` (never made a matrix; of its kinds ``rbf_w``), or
    K itself ``[…, p, p]``. ``z`` is a vector ``[p]``, a vector per kernel of a batch ``[…, p]`` with one axis less than
    the kernel, or columns ``[…, p, e]`` (the functional then sums over them): beside one kernel ``[p, p]`` a matrix is
    always columns, a square one too. ``alpha`` is by default the row sums of K; a number or ``[…, p]`` replaces them (a
    constant c with ``weighting="alpha"`` gives :math:`(\beta I + K/c) u = z`). ``coefficient`` ``"eq37"`` puts β/2
    before the second term, ``"eq22"`` β, as that formula is printed: the same as twice the β. ``method`` ``"direct"``
    (default for matrices): Cholesky, O(p³); ``"iterative"``: conjugate gradients in the α-weighted product, one
    application of the kernel a step, to the relative residual ``tol`` (by default 1e-10 in float64, 1e-5 in float32,
    where rounding allows no more). A matrix is tried for its sign in either case, O(p³).

    Where K is singular u is one of the minimisers: they differ by what K does not see. Reference: [cao2022] (22), (23),
    (37), thm. 5.2.
    """
    where = "tikhonov"
    _check_positive(where, beta)
    strength = _strength(where, beta, weighting, coefficient)
    equation = _Equation(where, kernel, z, alpha, method, symmetric=True)
    diagonal = strength * (equation.alpha if weighting == "none" else torch.ones_like(equation.alpha))
    equation.semidefinite()
    if equation.matrix is not None:
        # Both equations times α are symmetric and positive: (diag(αδ) + K) u = α z.
        system = equation.matrix + torch.diag_embed((equation.alpha * diagonal)[..., 0])
        u = torch.cholesky_solve(equation.alpha * equation.z, torch.linalg.cholesky(system))
        converged, steps = True, 0
    else:
        iteration = equation.iteration(diagonal, tol, max_iter, positive=True)
        u, converged, steps = iteration.solution, iteration.converged, iteration.iterations
    image = equation(u)
    value = _functional(equation, u, image, strength, weighting)
    residual, gradient = equation.defect(strength, u, image), equation.defect(diagonal, u, image)
    return Tikhonov(equation.shaped(u), residual, value, gradient, converged, steps)


def tikhonov_functional(
    kernel: AnyKernel,
    v: Tensor,
    z: Tensor,
    beta: float,
    *,
    weighting: Weighting = "none",
    alpha: Tensor | float | None = None,
    coefficient: Coefficient = "eq37",
) -> Tensor:
    """The functional that :func:`tikhonov` minimises, at any ``v`` of z's shape."""
    where = "tikhonov_functional"
    strength = _strength(where, beta, weighting, coefficient)
    equation = _Equation(where, kernel, z, alpha, symmetric=True)
    u = floating(where, "v", v)
    u = u[..., None] if equation.vector else u
    if u.shape[-2:] != equation.z.shape[-2:] or not _together(u.shape[:-2], equation.z.shape[:-2]):
        raise ValueError(
            f"{where}: v must have the shape of z, {list(equation.shaped(equation.z).shape)}, got "
            f"{list(equation.shaped(u).shape)}."
        )
    u = u.to(equation.z)
    return _functional(equation, u, equation(u), strength, weighting)


def fredholm_first(
    kernel: AnyKernel, z: Tensor, *, alpha: Tensor | float | None = None, rank: int | None = None
) -> Solution:
    r"""Solve :math:`\alpha^{-1} K v = z`, the Fredholm equation of the first kind (20). O(p³).

    The singular values of a smooth kernel fall to rounding within a few, and the solution is as large as their inverse:
    a kernel that is singular to working precision is refused. ``rank`` keeps that many singular values and gives the
    least-squares solution in their span; :func:`tikhonov` is the other way out.
    """
    where = "fredholm_first"
    equation = _Equation(where, kernel, z, alpha, "direct")
    assert equation.matrix is not None
    a = equation.matrix / equation.alpha
    p = a.shape[-1]
    if rank is not None and not 1 <= rank <= p:
        raise ValueError(f"{where}: rank must lie in 1 … {p}, got {rank}.")
    outputs, sigma, inputs = torch.linalg.svd(a)
    last = sigma[..., (p if rank is None else rank) - 1]
    if bool((last <= p * torch.finfo(a.dtype).eps * sigma[..., 0]).any()):
        worst = float((last / sigma[..., 0]).nan_to_num(0.0).min())  # 0 / 0: a kernel of zeros
        raise ValueError(
            f"{where}: kernel must not be singular, got singular values down to {worst:.2g} of the largest. Keep fewer "
            "with rank=, or regularise with tikhonov."
        )
    count = p if rank is None else rank
    u = inputs[..., :count, :].mT @ ((outputs[..., :count].mT @ equation.z) / sigma[..., :count, None])
    return Solution(equation.shaped(u), (a @ u - equation.z).abs().amax((-2, -1)), sigma[..., 0] / last, True, 0)


def fredholm_second(
    kernel: AnyKernel,
    z: Tensor,
    beta: float,
    *,
    alpha: Tensor | float | None = None,
    method: _Method | None = None,
    tol: float | None = None,
    max_iter: int = 500,
) -> Solution:
    r"""Solve :math:`\beta v + \alpha^{-1} K v = z`, the equation of the second kind (21), for any kernel.

    With a positive semidefinite K and its row sums the spectrum lies in [β, β + 1], so that it is well posed for every
    β > 0. For other kernels (``dot``) a small β can meet an eigenvalue -β; a singular system is refused. ``method``
    ``"direct"``: LU, O(p³); ``"iterative"`` (default for an :class:`IntegralOperator`): conjugate gradients in the
    α-weighted product for ``rbf_w``, GMRES for kinds that are not symmetric and positive. ``z`` and ``tol`` as in
    :func:`tikhonov`.
    """
    where = "fredholm_second"
    _check_positive(where, beta)
    equation = _Equation(where, kernel, z, alpha, method)
    if equation.matrix is not None:
        system = equation.matrix / equation.alpha + beta * torch.eye(equation.matrix.shape[-1]).to(equation.matrix)
        sigma = torch.linalg.svdvals(system.detach())
        if bool((sigma[..., -1] <= sigma.shape[-1] * torch.finfo(system.dtype).eps * sigma[..., 0]).any()):
            raise ValueError(
                f"{where}: beta must not be minus an eigenvalue of the kernel, got {beta}. Choose another."
            )
        u = torch.linalg.solve(system, equation.z)
        condition, converged, steps = sigma[..., 0] / sigma[..., -1], True, 0
    else:
        iteration = equation.iteration(beta, tol, max_iter, positive=equation.kind == "rbf_w")
        u, converged, steps = iteration.solution, iteration.converged, iteration.iterations
        condition = u.new_tensor(torch.nan)
    return Solution(equation.shaped(u), equation.defect(beta, u, equation(u)), condition, converged, steps)


def skip_connection(kernel: AnyKernel, v: Tensor, beta: float, *, alpha: Tensor | float | None = None) -> Tensor:
    r""":math:`\beta v + \alpha^{-1} K v`: what an attention layer with a skip connection computes, for values ``[…, p,
    e]`` or ``[…, p]``.

    It evaluates the left-hand side of (21). The v that (21) asks for, given the layer's output z, is
    :func:`fredholm_second`.
    """
    equation = _Equation("skip_connection", kernel, v, alpha)
    return equation.shaped(beta * equation.z + equation(equation.z))


class _Equation:
    """A kernel, its α ``[…, p, 1]`` and a right-hand side ``[…, p, e]``; called with values it gives α⁻¹ K v."""

    def __init__(
        self,
        where: str,
        kernel: AnyKernel,
        z: Tensor,
        alpha: Tensor | float | None,
        method: _Method | None = None,
        *,
        symmetric: bool = False,
    ) -> None:
        if method not in (None, "direct", "iterative"):
            raise ValueError(f"{where}: method must be direct or iterative, got {method!r}.")
        right = floating(where, "z", z)
        self.where, self.kind, self.own_alpha = where, getattr(kernel, "kind", None), alpha is None
        #: The kernel that is never made a matrix, if it is one; K itself otherwise.
        self.operator = kernel if isinstance(kernel, IntegralOperator) and method != "direct" else None
        if self.operator is not None:
            if symmetric and not self.operator.symmetric:
                kind = self.operator.kind
                raise ValueError(f"{where}: kernel must be symmetric, got {kind}. Of the four kinds rbf_w is.")
            shape, like = (*self.operator.q.shape[:-2], self.operator.tokens), self.operator.q
        else:
            raw = kernel.dense() if isinstance(kernel, IntegralOperator) else kernel
            self.raw = symmetric_matrix(where, raw) if symmetric else kernel_matrix(where, raw)
            shape, like = tuple(self.raw.shape[:-1]), self.raw
        dtype = torch.promote_types(right.dtype, like.dtype)
        #: K in the precision of the equation, for a direct solve.
        self.matrix = self.raw.to(dtype) if self.operator is None and method != "iterative" else None
        if alpha is not None:
            weights = _fitting(where, "alpha", floating(where, "alpha", alpha), shape).to(like)
        else:
            weights = self.raw.sum(-1) if self.operator is None else self.operator.alpha()
        if not bool((weights > 0).all()):
            raise ValueError(
                f"{where}: alpha must be positive, got {float(weights.min()):.3g}. By default it is the kernel's row "
                "sums; give alpha= for a kernel whose sums are not."
            )
        self.alpha = weights.to(dtype)[..., None]
        p, batch = shape[-1], shape[:-1]
        self.vector = right.ndim > 0 and right.shape[-1] == p and right.ndim in (1, len(shape))
        right = right[..., None] if self.vector else right
        if right.ndim < 2 or right.shape[-2] != p or not _together(right.shape[:-2], batch):
            vectors, shared = (f", {[*batch, p]}", ", those that all kernels share as z[None]") if batch else ("", "")
            raise ValueError(
                f"{where}: z must be [{p}]{vectors} or [..., {p}, e] for a kernel {[*shape, p]}, got "
                f"{list(self.shaped(right).shape)}. Give several vectors as columns (z.mT){shared}."
            )
        right = right.to(like.device, dtype)
        self.z = right.expand(*torch.broadcast_shapes(right.shape[:-2], batch), *right.shape[-2:])

    def __call__(self, v: Tensor) -> Tensor:
        if self.operator is None:
            return (self.raw.to(v.dtype) @ v) / self.alpha
        if self.own_alpha:
            return self.operator(v).to(v.dtype)
        return self.operator.raw(v).to(v.dtype) / self.alpha

    def shaped(self, u: Tensor) -> Tensor:
        return u[..., 0] if self.vector else u

    def defect(self, diagonal: Tensor | float, u: Tensor, image: Tensor) -> Tensor:
        """The largest entry of δu + α⁻¹ K u - z, ``image`` being α⁻¹ K u."""
        return (diagonal * u + image - self.z).abs().amax((-2, -1))

    def iteration(self, diagonal: Tensor | float, tol: float | None, max_iter: int, *, positive: bool) -> Iteration:
        """(δ + α⁻¹ K) u = z by conjugate gradients where K is positive, by GMRES elsewhere."""
        # An operator works in its own precision, whatever z has.
        dtype = self.z.dtype if self.operator is None else self.operator.q.dtype
        goal = max(tolerance(tol, dtype), tolerance(tol, self.z.dtype))
        if positive:
            return conjugate_gradients(
                lambda v: diagonal * v + self(v), self.z, weights=self.alpha, tol=goal, max_iter=max_iter
            )
        return gmres(lambda v: diagonal * v + self(v), self.z, tol=goal, max_iter=max_iter)

    def semidefinite(self) -> None:
        """Refuse a kernel with a negative eigenvalue: a solution of the equation is then a saddle, not a minimum."""
        says = f"{self.where}: kernel must be positive semidefinite, got"
        why = "the functional has no minimum. Of the four kinds rbf_w is."
        if self.operator is not None:
            if self.operator.kind != "rbf_w":
                raise ValueError(f"{says} {self.operator.kind}: {why}")
            return
        matrix = self.raw.detach()
        slack = 10 * matrix.shape[-1] * torch.finfo(matrix.dtype).eps * matrix.abs().amax()
        shifted = matrix + slack * torch.eye(matrix.shape[-1]).to(matrix)
        if bool((torch.linalg.cholesky_ex(shifted).info == 0).all()):
            return  # far cheaper than eigenvalues, which decide where it fails
        lowest = torch.linalg.eigvalsh(matrix).amin(-1)
        if not bool((lowest >= -slack).all()):
            raise ValueError(f"{says} an eigenvalue of {float(lowest.min()):.3g}: {why}")


def _together(shape: torch.Size, other: tuple[int, ...]) -> bool:
    """Whether two shapes can be broadcast."""
    return all(a == b or 1 in (a, b) for a, b in zip(reversed(shape), reversed(other), strict=False))


def _fitting(where: str, name: str, value: Tensor, shape: tuple[int, ...]) -> Tensor:
    if value.ndim > len(shape) or any(
        a not in (1, b) for a, b in zip(reversed(value.shape), reversed(shape), strict=False)
    ):
        raise ValueError(f"{where}: {name} must be a number or {list(shape)}, got shape {list(value.shape)}.")
    return value.expand(shape)


def _functional(equation: _Equation, u: Tensor, image: Tensor, strength: float, weighting: Weighting) -> Tensor:
    weights = equation.alpha if weighting == "alpha" else torch.ones_like(equation.alpha)
    data = (weights * (image - equation.z).square()).sum((-2, -1)) / 2
    return data + strength / 2 * (equation.alpha * image * u).sum((-2, -1))


def _strength(where: str, beta: float, weighting: Weighting, coefficient: Coefficient) -> float:
    """β of (37), from the β of either formula."""
    if weighting not in ("none", "alpha"):
        raise ValueError(f"{where}: weighting must be none or alpha, got {weighting!r}.")
    if coefficient not in ("eq37", "eq22"):
        raise ValueError(f"{where}: coefficient must be eq37 or eq22, got {coefficient!r}.")
    return beta if coefficient == "eq37" else 2 * beta


def _check_positive(where: str, beta: float) -> None:
    if not 0 < beta < float("inf"):
        raise ValueError(
            f"{where}: beta must be positive, got {beta}. Without it this is the equation of the first kind: "
            "fredholm_first."
        )
