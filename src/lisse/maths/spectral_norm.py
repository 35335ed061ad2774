"""Spectral norms of matrices between two certain ends: Lanczos from below, a Cholesky certificate from above."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from lisse.maths.given import all_finite, check_least

ROUNDING = 2.0**-53
_RAISE = 10.0
_FEW = 8  # first steps of every matrix, and how many of the largest go on
_SMALL = 128  # sides up to which a batch is bounded at once


class NormInterval(NamedTuple):
    """``lower`` ≤ ‖A‖₂ ≤ ``upper``, rounding included."""

    lower: float
    upper: float

    @property
    def gap(self) -> float:
        """The width, relative to the upper end; 0 for a zero matrix."""
        return (self.upper - self.lower) / self.upper if self.upper > 0 else 0.0


def norm_interval(
    matrices: Tensor | Callable[[], Iterator[Tensor]], *, tol: float = 1e-5, steps: int = 40, error: float = 0.0
) -> NormInterval:
    r"""Ends for the largest spectral norm of a batch of matrices ``[…, m, n]``, real or complex.

    From below: Lanczos steps on the Gram matrix :math:`G = A^*A` (of the smaller side), eight of all matrices at once
    and the rest of the eight that are then the largest. From above: for :math:`\tau = \theta(1 + \text{tol})`, θ the
    largest Ritz value, a Cholesky factorisation of :math:`\tau I - G` that runs to its end proves
    :math:`\lambda_{max}(G) \le \tau + c`: the factors give the matrix up to
    :math:`\gamma_{r+1}\operatorname{tr}(\tau I - G)/(1 - \gamma_{r+1})`, and they make a positive matrix ([rump2006]).
    c also holds the rounding of G. If it breaks off, τ is raised, at last to the trace; so ``upper`` is above the exact
    norm whatever the Lanczos steps found.

    ``matrices`` may be a function that gives the batch in chunks (they are gone through two or more times).
    ``error`` is how far the given matrices may be from those meant (spectral norm); both ends are widened by it.
    Cost: O(m n r + r³/3) flops per matrix with r = min(m, n).
    """
    if not 0 < tol < 1:
        raise ValueError(f"norm_interval: tol must lie between 0 and 1, got {tol}.")
    check_least("norm_interval", 1, steps=steps)
    chunks = _chunks(matrices)
    largest, n = 0.0, 1
    for part in chunks():
        if not all_finite(part):
            raise ValueError("norm_interval: matrices must be finite, got NaN or infinity.")
        largest = max(largest, float(part.abs().max()) if part.numel() else 0.0)
        n = max(part.shape[-2:])
    if largest == 0.0:
        return NormInterval(0.0, error)
    # A power of two scales without rounding, and keeps squares away from overflow and underflow.
    scale = 2.0 ** -math.frexp(largest)[1]
    grams = _grams(chunks, scale, store=isinstance(matrices, Tensor))
    ritz, weight, r = 0.0, 0.0, 1
    for gram in grams():
        ritz = max(ritz, _lanczos(gram, steps))
        weight = max(weight, float(gram.diagonal(dim1=-2, dim2=-1).real.sum(-1).max()))
        r = gram.shape[-1]
    slack = 8 * (n + 8) * ROUNDING * weight  # of the Gram matrix's entries; 8 covers complex products
    top = weight * (1 + 8 * (n + 8) * ROUNDING)  # the Frobenius norm always bounds it
    excess = tol
    while (tau := ritz * (1 + excess)) < top:
        if all(_certified(gram, tau) for gram in grams()):
            top = tau * (1 + 8 * (r + 4) * ROUNDING * r) + slack
            break
        excess *= _RAISE
    below = max(0.0, ritz * (1 - 64 * ROUNDING * (steps + r)) - slack)
    edge = 1 + 8 * ROUNDING
    lower = max(0.0, math.sqrt(below) / scale / edge - error)
    return NormInterval(lower, math.sqrt(top) / scale * edge + error)


def norm_bounds(matrices: Tensor, *, tol: float = 1e-5) -> Tensor:
    """Upper bounds ``[…]`` of each spectral norm of a batch ``[…, m, n]``, within ``tol`` in exact arithmetic.

    Small matrices (the heads of attention) by :func:`gram_bound`, all at once and where they are, with as many
    iterations as ``tol`` asks for; larger ones by :func:`norm_interval`, one after the other.
    """
    r = min(matrices.shape[-2:])
    if r <= _SMALL:
        iterations = max(1, math.ceil(math.log2(max(2.0, math.log(max(r, 2)) / math.log1p(tol))) - 1))
        return gram_bound(matrices, iterations=iterations)
    uppers = [norm_interval(matrix, tol=tol).upper for matrix in matrices.flatten(0, -3)]
    return torch.tensor(uppers, dtype=torch.float64, device=matrices.device).reshape(matrices.shape[:-2])


def gram_bound(matrices: Tensor, *, iterations: int = 8) -> Tensor:
    r"""Upper bounds ``[…]`` of spectral norms by Gram iteration with rescaling ([delattre2023] Algorithm 1).

    :math:`B_0 = A,\; B_{k+1} = B_k^*B_k`, and :math:`\|A\| \le \|B_K\|_F^{2^{-K}}`, which exceeds it by a factor of at
    most :math:`r^{2^{-K-1}}`. Rounding is in the bound: a computed product is off by at most
    :math:`\gamma\|B_k\|_F^2`, so :math:`\|B_k\| \le (\|B_{k+1}\| + \gamma\|B_k\|_F^2)^{1/2}`, and this is
    followed back from the last step to the first; scaling is by powers of two, which is exact. Cost: K products of
    r × r matrices. :func:`norm_interval` is as close as asked, and cheaper for large matrices; this needs no lower
    estimate and is one formula.
    """
    check_least("gram_bound", 1, iterations=iterations)
    current = _wide(matrices)
    if not all_finite(current):
        raise ValueError("gram_bound: matrices must be finite, got NaN or infinity.")
    current = current.mH  # so that B*B is of the smaller side
    history: list[tuple[Tensor, Tensor]] = []
    for _ in range(iterations):
        exponent = torch.frexp(current.abs().amax((-2, -1)))[1].double()
        current = current * torch.exp2(-exponent)[..., None, None]
        gamma = 8 * (current.shape[-2] + 8) * ROUNDING
        history.append((exponent, gamma * _frobenius(current) ** 2))
        current = current.mH @ current
    bound = _frobenius(current)
    for exponent, off in reversed(history):
        bound = torch.sqrt(bound + off + 1e-300) * torch.exp2(exponent) * (1 + 8 * ROUNDING)
    return torch.where(matrices.abs().amax((-2, -1)) > 0, bound, torch.zeros_like(bound))


def _frobenius(x: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(x) * (1 + 8 * (x.shape[-1] + x.shape[-2]) * ROUNDING)


def _chunks(matrices: Tensor | Callable[[], Iterator[Tensor]]) -> Callable[[], Iterator[Tensor]]:
    if not isinstance(matrices, Tensor):
        return matrices
    if matrices.ndim < 2:
        raise ValueError(f"norm_interval: matrices must have two axes or more, got shape {tuple(matrices.shape)}.")
    values = matrices.detach()
    return lambda: iter((values,))


def _wide(matrices: Tensor) -> Tensor:
    """In double precision, no more rows than columns (the norm of the adjoint is the same)."""
    matrices = matrices.detach().to(torch.complex128 if matrices.is_complex() else torch.float64)
    return matrices if matrices.shape[-2] <= matrices.shape[-1] else matrices.mH


def _grams(chunks: Callable[[], Iterator[Tensor]], scale: float, *, store: bool) -> Callable[[], Iterator[Tensor]]:
    """The Gram matrices A A*, computed once where they may be stored."""

    def products() -> Iterator[Tensor]:
        for part in chunks():
            wide = _wide(part * scale)
            yield wide @ wide.mH

    stored = tuple(products()) if store else ()
    return (lambda: iter(stored)) if store else products


def _certified(gram: Tensor, tau: float) -> bool:
    shifted = -gram
    shifted.diagonal(dim1=-2, dim2=-1).add_(tau)
    return bool((torch.linalg.cholesky_ex(shifted)[1] == 0).all())


def _lanczos(gram: Tensor, steps: int) -> float:
    """Largest Ritz value of A A*, over the batch: the matrices that lead after a few steps go on."""
    batch = gram.flatten(0, -3) if gram.ndim > 2 else gram[None]
    if len(batch) > _FEW and min(steps, batch.shape[-1]) > _FEW:
        batch = batch[_ritz(batch, _FEW).topk(_FEW).indices]
    return float(_ritz(batch, steps).max())


def _ritz(batch: Tensor, steps: int) -> Tensor:
    """The largest Ritz value of each Gram matrix; every vector is orthogonalised twice against all before it."""
    rows, steps = batch.shape[-1], min(steps, batch.shape[-1])
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(len(batch), rows, 1, generator=generator, dtype=torch.float64).to(batch)
    vector = vector / torch.linalg.vector_norm(vector, dim=1, keepdim=True)
    basis, images = (batch.new_zeros(len(batch), rows, steps) for _ in range(2))
    for k in range(steps):
        basis[..., k : k + 1] = vector
        image = images[..., k : k + 1] = batch @ vector
        vectors = basis[..., : k + 1]
        residual = image
        for _ in range(2):
            residual = torch.baddbmm(residual, vectors, vectors.mH @ residual, alpha=-1)
        length = torch.linalg.vector_norm(residual, dim=1, keepdim=True)
        least = 1e-14 * image.abs().amax((1, 2), keepdim=True)
        if not batch.is_cuda and bool((length <= least).all()):  # a GPU would wait; vectors from here on are zero
            break
        vector = torch.where(length > least, residual / length, 0.0)
    # A few rows and columns: the CPU is the quicker one there.
    coordinates = torch.linalg.eigh((basis.mH @ images).cpu())[1][..., -1:]
    top = basis @ coordinates.to(basis)
    # The quotient of that very vector: never above the norm, even where the basis has lost its orthogonality. Its
    # rounding, some 4 r units of the trace, is within the slack of the Gram matrix.
    size = top.abs().square().sum((-2, -1))
    quotient = (top.conj() * (batch @ top)).sum((-2, -1)).real / size.clamp_min(1e-300)  # of a zero matrix 0
    return quotient.clamp_min(0.0)
