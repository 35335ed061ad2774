"""Krylov iterations for operators that are known by what they do: conjugate gradients and GMRES, with their history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

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
