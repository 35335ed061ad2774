r"""What a kernel is like: row sums, symmetry, spectrum, distance from translation invariance."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lisse.maths.given import floating, square_grid
from lisse.maths.integral.kernels import TokenKernel

KernelLike = TokenKernel | Tensor


def row_sum_error(matrix: Tensor) -> Tensor:
    r""":math:`\max_i |\sum_j A_{ij} - 1|` of ``[…, p, p']``: how far (15) is from holding."""
    return (floating("row_sum_error", "matrix", matrix).sum(-1) - 1).abs().amax(-1)


def symmetry_defect(matrix: Tensor, *, alpha: Tensor | None = None) -> Tensor:
    r""":math:`\|K - K^\top\|_F / 2\|K\|_F` of ``[…, p, p]``: 0 for a symmetric, 1 for an antisymmetric matrix.

    Row normalisation destroys symmetry: :math:`A = D^{-1} K` is self-adjoint only in
    :math:`\langle u, v\rangle_\alpha = \sum_i \alpha_i u_i v_i`. ``alpha`` ``[…, p]`` measures that: the defect of
    :math:`D A`, with α scaled freely.
    """
    given = square_matrix("symmetry_defect", matrix)
    if alpha is not None:
        weights = floating("symmetry_defect", "alpha", alpha).to(given)
        given = (weights / weights.amax(-1, keepdim=True))[..., None] * given
    norm = torch.linalg.matrix_norm
    return norm(given - given.mT) / (2 * norm(given))


def row_distance(a: Tensor, b: Tensor) -> Tensor:
    r"""Mean total variation distance of the rows of two row-stochastic matrices: :math:`\frac1{2p} \sum_{ij} |A_{ij} -
    B_{ij}|`.

    Between 0 and 1. Of an attention matrix and its ``gauss_qk`` or ``rbf_w`` reading: how far the kernel is from the
    translation-invariant one that [cao2022] puts in its place.
    """
    x, y = floating("row_distance", "a", a), floating("row_distance", "b", b)
    if x.shape[-2:] != y.shape[-2:]:
        raise ValueError(f"row_distance: a and b must have the same shape, got {list(x.shape)} and {list(y.shape)}.")
    return (x - y).abs().sum(-1).mean(-1) / 2


def offset_average(matrix: Tensor, *, grid: tuple[int, int] | None = None) -> Tensor:
    r"""The matrix ``[…, p, p]`` nearest in Frobenius norm that depends on the offset of positions alone.

    Entry (i, j) becomes the mean over all pairs with the same :math:`pos_j - pos_i` on the grid. "Translation
    invariant" in [cao2022] is meant in the space of features; a convolution is so in the space of positions, which is
    what this looks at.
    """
    given = square_matrix("offset_average", matrix)
    rows, columns = square_grid("offset_average", given.shape[-1], grid)
    index = _offsets(rows, columns).to(given.device)
    count = (2 * rows - 1) * (2 * columns - 1)
    flat = given.reshape(-1, index.numel())
    sums = flat.new_zeros(len(flat), count).index_add_(1, index.reshape(-1), flat)
    sizes = torch.bincount(index.reshape(-1), minlength=count).to(given)
    return (sums / sizes)[:, index].reshape(given.shape)


def offset_defect(matrix: Tensor, *, grid: tuple[int, int] | None = None) -> Tensor:
    r""":math:`\|A - \bar A\|_F / \|A\|_F` with :func:`offset_average`: 0 for a convolution, at most 1."""
    given = square_matrix("offset_defect", matrix)
    norm = torch.linalg.matrix_norm
    return norm(given - offset_average(given, grid=grid)) / norm(given)


@dataclass(frozen=True, slots=True)
class Mercer:
    r"""Eigenvalues and eigenfunctions of a symmetric kernel, largest first.

    ``values`` ``[…, p]`` and ``functions`` ``[…, p, p]`` (one per column): :math:`A \psi_k = \lambda_k \psi_k` with
    :math:`A = D^{-1} K`, :math:`\sum_i \alpha_i \psi_k(i) \psi_l(i) = \delta_{kl}`; then :math:`K_{ij} = \sum_k
    \lambda_k \alpha_i \psi_k(i) \psi_k(j) \alpha_j`. ``positive``: no eigenvalue below zero, but for rounding.
    """

    values: Tensor
    functions: Tensor
    positive: bool


def mercer(kernel: KernelLike, *, alpha: Tensor | float | None = None) -> Mercer:
    r"""The Mercer expansion of a symmetric kernel ``[…, p, p]`` in the α-weighted product. O(p³).

    ``alpha`` is by default the row sums, for which the eigenvalues are those of the row-stochastic matrix: the largest
    is 1, with constant functions, and all lie in [0, 1] if K is positive semidefinite, in [-1, 1] if not. ``alpha=1.0``
    gives those of K itself; ``alpha=p`` of K with the uniform probability measure. From the symmetric
    :math:`D^{-1/2} K D^{-1/2}`, so they are real and the functions orthogonal.
    """
    k = symmetric_matrix("mercer", kernel)
    weights = k.sum(-1) if alpha is None else floating("mercer", "alpha", alpha).to(k).expand(k.shape[:-1])
    if not bool((weights > 0).all()):
        raise ValueError(f"mercer: alpha must be positive, got {float(weights.min())}.")
    root = weights.rsqrt()
    values, vectors = torch.linalg.eigh(root[..., :, None] * k * root[..., None, :])
    values, vectors = values.flip(-1), vectors.flip(-1)
    floor = -values.abs().amax() * values.shape[-1] * torch.finfo(values.dtype).eps
    return Mercer(values, root[..., :, None] * vectors, bool((values >= floor).all()))


@dataclass(frozen=True, slots=True)
class Decay:
    r"""How a spectrum falls: :math:`\lambda_k \approx e^{-rk}` or :math:`\lambda_k \approx k^{-s}`.

    ``rate`` r and ``power`` s are least-squares slopes of :math:`\log \lambda_k`; ``exponential_fit`` and ``power_fit``
    their R². ``effective_rank`` is :math:`(\sum\lambda)^2/\sum\lambda^2`, ``n`` the eigenvalues above the floor.
    """

    rate: float
    exponential_fit: float
    power: float
    power_fit: float
    effective_rank: float
    n: int


def spectral_decay(values: Tensor, *, tol: float | None = None) -> Decay:
    r"""The decay of eigenvalues ``[p]``, largest first, down to ``tol`` times the largest (default p · epsilon)."""
    given = floating("spectral_decay", "values", values).double()
    if given.ndim != 1 or not len(given):
        raise ValueError(f"spectral_decay: values must be numbers in one row, got shape {list(given.shape)}.")
    given = given.sort(descending=True).values
    epsilon = torch.finfo(torch.as_tensor(values).dtype if torch.is_tensor(values) else torch.float64).eps
    kept = given[given > (len(given) * epsilon if tol is None else tol) * given[0]]
    if len(kept) < 3:
        raise ValueError(f"spectral_decay: values must hold at least 3 above the floor, got {len(kept)}.")
    place = torch.arange(1, len(kept) + 1, dtype=torch.float64, device=kept.device)
    rate, exponential = _line(place, kept.log())
    power, straight = _line(place.log(), kept.log())
    positive = given.clamp_min(0)
    rank = float(positive.sum() ** 2 / positive.square().sum())
    return Decay(-rate, exponential, -power, straight, rank, len(kept))


def _line(x: Tensor, y: Tensor) -> tuple[float, float]:
    """Slope and R² of a least-squares line."""
    dx, dy = x - x.mean(), y - y.mean()
    slope = (dx @ dy) / (dx @ dx)
    total = dy @ dy
    return float(slope), float(1 - (dy - slope * dx).square().sum() / total) if float(total) > 0 else 1.0


def _offsets(rows: int, columns: int) -> Tensor:
    """A number for the offset of every pair of places, ``[p, p]``."""
    place = torch.arange(rows * columns)
    down = (place // columns)[None, :] - (place // columns)[:, None]
    right = (place % columns)[None, :] - (place % columns)[:, None]
    return (down + rows - 1) * (2 * columns - 1) + right + columns - 1


def square_matrix(where: str, matrix: Tensor, *, name: str = "matrix") -> Tensor:
    """The matrix, if it is square."""
    given = floating(where, name, matrix)
    if given.ndim < 2 or given.shape[-1] != given.shape[-2]:
        raise ValueError(f"{where}: {name} must be [..., p, p], got shape {list(given.shape)}.")
    return given


def symmetric_matrix(where: str, kernel: KernelLike) -> Tensor:
    """K itself, symmetric to rounding; a row-normalised or asymmetric one is refused."""
    k = square_matrix(where, kernel.raw if isinstance(kernel, TokenKernel) else kernel, name="kernel")
    slack = 100 * torch.finfo(k.dtype).eps * k.detach().abs().amax()
    if not bool(((k - k.mT).detach().abs() <= slack).all()):
        raise ValueError(
            f"{where}: kernel must be symmetric, got one that differs from its transpose by "
            f"{float((k - k.mT).detach().abs().amax()):.3g}. Give the raw kernel, not the row-normalised one; "
            "of the four kinds rbf_w and eq11_literal are symmetric."
        )
    return (k + k.mT) / 2
