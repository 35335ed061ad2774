"""Krylov iterations for operators that are known by what they do: conjugate gradients and GMRES, with their history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Operator = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Iteration:
    """``solution``, the relative ``residual`` it has, whether that is under the tolerance, and the steps taken."""

    solution: Tensor
    residual: float
    converged: bool
    iterations: int


def conjugate_gradients(
    operator: Operator, z: Tensor, *, weights: Tensor | float = 1.0, tol: float = 1e-10, max_iter: int = 500
) -> Iteration:
    r"""Solve :math:`B u = z` ``[…, p, e]`` for B self-adjoint and positive in :math:`\sum_i \alpha_i u_i v_i`.

    ``weights`` α ``[…, p, 1]``. Every column and batch entry has its own step; all end together, when the largest
    relative residual is under ``tol``. One application of B a step, and one to check at the end: the residual is the
    true one. Reference: [hestenes1952].
    """

    def inner(x: Tensor, y: Tensor) -> Tensor:
        return (weights * x * y).sum(-2, keepdim=True)

    u = torch.zeros_like(z)
    r = z.clone()
    direction, size, whole = r.clone(), inner(r, r), inner(z, z)
    steps = 0
    for _ in range(max_iter):
        if bool((size <= (tol * 0.5) ** 2 * whole).all()):
            break
        steps += 1
        image = operator(direction)
        curve = inner(direction, image)
        step = torch.where(curve > 0, size / torch.where(curve > 0, curve, 1.0), 0.0)
        u, r = u + step * direction, r - step * image
        fresh = inner(r, r)
        direction = r + torch.where(size > 0, fresh / torch.where(size > 0, size, 1.0), 0.0) * direction
        size = fresh
    residual = _relative(operator, u, z)
    return Iteration(u, residual, residual <= tol, steps)


def gmres(operator: Operator, z: Tensor, *, tol: float = 1e-10, max_iter: int = 500, restart: int = 50) -> Iteration:
    r"""Solve :math:`B u = z` for any B, by the least residual over Krylov spaces of up to ``restart`` dimensions.

    The whole tensor is one vector. ``restart`` times its memory. Reference: [saad1986].
    """
    u, steps = torch.zeros_like(z), 0
    size = float(torch.linalg.vector_norm(z))
    if size == 0:
        return Iteration(u, 0.0, True, 0)
    while steps < max_iter:
        r = z - operator(u)
        beta = torch.linalg.vector_norm(r)
        if float(beta) <= tol * size:
            break
        basis, width = [r / beta], min(restart, max_iter - steps)
        hessenberg = z.new_zeros(width + 1, width)
        for j in range(width):
            steps += 1
            w = operator(basis[j])
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
            left = float(torch.linalg.vector_norm(small @ y - right))
            if left <= 0.5 * tol * size or float(hessenberg[j + 1, j]) <= torch.finfo(z.dtype).eps * float(beta):
                break
            basis.append(w / hessenberg[j + 1, j])
        u = u + sum((y[i] * basis[i] for i in range(len(y))), torch.zeros_like(z))
    residual = _relative(operator, u, z)
    return Iteration(u, residual, residual <= tol, steps)


def _relative(operator: Operator, u: Tensor, z: Tensor) -> float:
    """The largest relative residual over columns and batch entries."""
    norm = torch.linalg.vector_norm
    whole = norm(z, dim=-2)
    left = norm(z - operator(u), dim=-2)
    return float(torch.where(whole > 0, left / torch.where(whole > 0, whole, 1.0), left).max())
