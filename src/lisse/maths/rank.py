"""The numerical rank of many matrices at once, from their Gram matrices."""

from __future__ import annotations

import torch
from torch import Tensor

_SHIFTS = 256  # places of a spectrum that are looked at together


def gram_rank(grams: Tensor, *, tol: float = 1e-3) -> Tensor:
    r"""How many singular values of X are above ``tol`` of the largest, from :math:`G = XX^\top`.

    ``grams`` ``[…, n, n]`` in float64; the counts ``[…]`` are of :math:`\lambda > \text{tol}^2\lambda_{\max}`. LAPACK's
    eigenvalues on the CPU; CUDA's solver takes matrices of this size one after the other, so that all are counted
    together there: :func:`sturm_rank`. :math:`O(n^3)` each.
    """
    if grams.is_cuda:
        return sturm_rank(grams.flatten(0, -3), tol=tol).reshape(grams.shape[:-2])
    values = torch.linalg.eigvalsh(grams).clamp_min(0)
    return (values > tol**2 * values[..., -1:]).sum(-1)


def sturm_rank(grams: Tensor, *, tol: float = 1e-3) -> Tensor:
    """:func:`gram_rank` of ``[b, n, n]`` by Householder's reflections and Sturm's sequences, both backward stable.

    About 20 n operations on the device, however many matrices there are, and none that waits for it.
    """
    n = grams.shape[-1]
    size = grams.diagonal(dim1=-2, dim2=-1).sum(-1).clamp_min(torch.finfo(grams.dtype).tiny)
    diagonal, beside = tridiagonal(grams / size[:, None, None])
    # The largest is between 1/n of the trace and all of it: cut into shares, and its share into shares again.
    low, step = torch.full_like(size, 0.5 / n), torch.full_like(size, 2.0)
    shares = torch.arange(1, _SHIFTS + 1, dtype=grams.dtype, device=grams.device) / (_SHIFTS + 1)
    for _ in range(6):  # down to rounding
        reached = below(diagonal, beside, low[:, None] + step[:, None] * shares) < n
        step = step / (_SHIFTS + 1)
        low = low + reached.sum(-1) * step
    return n - below(diagonal, beside, tol**2 * (low + step / 2)[:, None])[:, 0]


def tridiagonal(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Diagonal ``[b, n]`` and what lies beside it ``[b, n - 1]`` of matrices with the spectra of ``[b, n, n]``."""
    a = matrices.clone()
    n = a.shape[-1]
    beside = [a[:, 1, 0].clone()] if n == 2 else []
    for k in range(n - 2):
        v, block = a[:, k + 1 :, k].clone(), a[:, k + 1 :, k + 1 :]
        end = -torch.copysign(torch.linalg.vector_norm(v, dim=1), v[:, 0])
        v[:, 0] -= end
        # The reflection is 1 - v vᵀ: ‖v‖² was -2 · end · v_0.
        v *= (-end * v[:, 0]).clamp_min(torch.finfo(a.dtype).tiny).rsqrt()[:, None]
        moved = (block @ v[:, :, None])[:, :, 0]
        moved = moved - 0.5 * (v * moved).sum(1, keepdim=True) * v
        block.baddbmm_(torch.stack([v, moved], 2), torch.stack([moved, v], 1), alpha=-1)
        beside.append(end)
        if k == n - 3:
            beside.append(a[:, -1, -2].clone())
    return a.diagonal(dim1=1, dim2=2).clone(), torch.stack(beside, 1) if beside else a.new_zeros(len(a), 0)


def below(diagonal: Tensor, beside: Tensor, shifts: Tensor) -> Tensor:
    r"""How many eigenvalues of tridiagonal matrices are below each of ``shifts`` ``[b, s]``: ``[b, s]``.

    The negative :math:`q_i = a_i - x - b_{i-1}^2 / q_{i-1}`. A q of 0 counts as none, and the next one as one.
    """
    q = diagonal.T[:, :, None] - shifts  # [n, b, s]
    squares = (beside**2).clamp_min(torch.finfo(beside.dtype).tiny).T[:, :, None]  # never 0 / 0
    for i in range(1, len(q)):
        torch.addcdiv(q[i], squares[i - 1], q[i - 1], value=-1, out=q[i])
    return (q < 0).sum(0)
