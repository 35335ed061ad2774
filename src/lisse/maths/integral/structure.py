r"""What a kernel is like: row sums, symmetry, distance from translation invariance."""

from __future__ import annotations

import torch
from torch import Tensor

from lisse.maths.given import floating, square_grid
from lisse.maths.integral.kernels import TokenKernel


def row_sum_error(matrix: Tensor) -> Tensor:
    r""":math:`\max_i |\sum_j A_{ij} - 1|` of ``[…, p, p']``: how far (15) is from holding."""
    return (floating("row_sum_error", "matrix", matrix).sum(-1) - 1).abs().amax(-1)


def symmetry_defect(matrix: Tensor, *, alpha: Tensor | None = None) -> Tensor:
    r""":math:`\|K - K^\top\|_F / 2\|K\|_F` of ``[…, p, p]``: 0 for a symmetric, 1 for an antisymmetric matrix.

    Row normalisation destroys symmetry: :math:`A = D^{-1} K` is self-adjoint only in
    :math:`\langle u, v\rangle_\alpha = \sum_i \alpha_i u_i v_i`. ``alpha`` ``[…, p]`` measures that: the defect of
    :math:`D A`, with α scaled freely.
    """
    values = square_matrix("symmetry_defect", matrix)
    if alpha is not None:
        weights = floating("symmetry_defect", "alpha", alpha).to(values)
        values = (weights / weights.amax(-1, keepdim=True))[..., None] * values
    norm = torch.linalg.matrix_norm
    return norm(values - values.mT) / (2 * norm(values))


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
    values = square_matrix("offset_average", matrix)
    rows, columns = square_grid("offset_average", values.shape[-1], grid)
    index = _offsets(rows, columns).to(values.device)
    count = (2 * rows - 1) * (2 * columns - 1)
    flat = values.reshape(-1, index.numel())
    sums = flat.new_zeros(len(flat), count).index_add_(1, index.reshape(-1), flat)
    sizes = torch.bincount(index.reshape(-1), minlength=count).to(values)
    return (sums / sizes)[:, index].reshape(values.shape)


def offset_defect(matrix: Tensor, *, grid: tuple[int, int] | None = None) -> Tensor:
    r""":math:`\|A - \bar A\|_F / \|A\|_F` with :func:`offset_average`: 0 for a convolution, at most 1."""
    values = square_matrix("offset_defect", matrix)
    norm = torch.linalg.matrix_norm
    return norm(values - offset_average(values, grid=grid)) / norm(values)


def _offsets(rows: int, columns: int) -> Tensor:
    """A number for the offset of every pair of places, ``[p, p]``."""
    index = torch.arange(rows * columns)
    down = (index // columns)[None, :] - (index // columns)[:, None]
    right = (index % columns)[None, :] - (index % columns)[:, None]
    return (down + rows - 1) * (2 * columns - 1) + right + columns - 1


def square_matrix(where: str, matrix: Tensor, *, name: str = "matrix") -> Tensor:
    """The matrix, if it is square."""
    values = floating(where, name, matrix)
    if values.ndim < 2 or values.shape[-1] != values.shape[-2]:
        raise ValueError(f"{where}: {name} must be [..., p, p], got shape {list(values.shape)}.")
    return values


def kernel_matrix(where: str, kernel: TokenKernel | Tensor) -> Tensor:
    """K itself."""
    return square_matrix(where, kernel.raw if isinstance(kernel, TokenKernel) else kernel, name="kernel")


def symmetric_matrix(where: str, kernel: TokenKernel | Tensor) -> Tensor:
    """K itself, symmetric to rounding; a row-normalised or asymmetric one is refused."""
    k = kernel_matrix(where, kernel)
    slack = 100 * torch.finfo(k.dtype).eps * k.detach().abs().amax()
    if not bool(((k - k.mT).detach().abs() <= slack).all()):
        raise ValueError(
            f"{where}: kernel must be symmetric, got one that differs from its transpose by "
            f"{float((k - k.mT).detach().abs().amax()):.3g}. Give the raw kernel, not the row-normalised one; "
            "of the four kinds rbf_w and eq11_literal are symmetric."
        )
    return (k + k.mT) / 2
