r"""Images from few rows and columns, or few patches: the constructive form of Proposition 3.1 of [cao2022].

As printed, the proposition keeps one patch per row and column of the patch grid, which does not determine a low-rank
image: ``[[1, 1], [1, 1]]`` and ``[[1, 2], [1/2, 1]]`` agree on the diagonal. What does is a cross: the rows I and the
columns J of a matrix of rank r give it back where they meet in a matrix of rank r, :math:`u = C W^+ R`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from lisse.maths.given import floating
from lisse.maths.variation.seminorm import bv_seminorm

CrossMethod = Literal["aca", "aca_partial", "maxvol", "patchcross", "svd"]


@dataclass(frozen=True, slots=True)
class Cross:
    r"""An approximation :math:`u \approx C W^+ R` with C = u[:, J], R = u[I, :], W = u[I, J].

    ``rows`` I and ``columns`` J index pixels (empty for ``svd``). ``error`` is :math:`\|u - \hat u\|_F`, ``bv_error``
    :math:`|u - \hat u|_{BV}` (eq. 1), ``max_error`` the largest entry; ``optimum`` and ``bv_optimum`` are the same two
    for the truncated SVD of the same ``rank``. The first is the least Frobenius error that any rank allows; the BV
    seminorm has no such theorem, there it is a yardstick. ``rank`` is the rank used, at most the one asked for.
    ``condition`` is :math:`\sigma_1/\sigma_r` of W: rounding and what u has beyond rank r are amplified up to that
    much. ``visible`` ``[h, w]`` says which pixels were read, ``mask_ratio`` the share that were not.
    """

    rows: Tensor
    columns: Tensor
    reconstruction: Tensor
    error: Tensor
    bv_error: Tensor
    max_error: Tensor
    optimum: Tensor
    bv_optimum: Tensor
    rank: int
    condition: Tensor
    visible: Tensor
    mask_ratio: float


def cross_approximation(
    u: Tensor,
    rank: int,
    *,
    method: CrossMethod = "aca",
    n: int | None = None,
    position: tuple[int, int] = (0, 0),
    tol: float | None = None,
) -> Cross:
    r"""A matrix ``[h, w]`` from ``rank`` of its rows and columns.

    ``method``: ``"aca"`` chooses each row and column where what is left is largest (full pivoting, O(r h w));
    ``"aca_partial"`` looks at one row and one column at a time (O(r² (h + w)) entries, for matrices that are expensive
    to read, and it can miss what it does not look at); ``"maxvol"`` then swaps rows and columns until :math:`|\det W|`
    cannot grow by exchanging one (for the true maximum :math:`\max|u - \hat u| \le (r + 1) \sigma_{r+1}`
    [goreinov1997]); ``"patchcross"`` reads the patch-row and the patch-column at ``position`` of an ``n`` × ``n`` grid
    of patches, 2n - 1 patches, and truncates the pseudo-inverse of their meeting patch to ``rank``; ``"svd"`` is the
    optimum. The first three end early where nothing is left, so that a matrix of rank s < r comes back with
    ``rank`` = s. ``tol``: singular values of W below ``tol`` times the largest count as zero
    (default: max(h, w) · machine epsilon).

    A patch cross does not choose its rows and columns, so W can be singular to working precision where u still has more
    to give. The default ``tol`` then cuts below ``rank``: for u = 1/(1 + 4(x - y)² + xy) on 64 × 64 pixels, n = 8,
    position (3, 3), asked for rank 8, W has condition 1.6e16, ``rank`` comes back as 7 and the error is 0.506. With
    ``tol=0`` the eighth direction is divided by rounding noise, and the error is noise too: 0.37 in one place, 1.86 in
    another, for an optimum of 3.4e-4.

    Exact if and only if rank W = rank u. Reference: [cao2022] prop. 3.1 (corrected), [bebendorf2000], [goreinov1997].
    """
    image = _matrix("cross_approximation", u)
    if method not in get_args(CrossMethod):
        raise ValueError(
            f"cross_approximation: method must be one of {', '.join(get_args(CrossMethod))}, got {method!r}."
        )
    if int(rank) != rank or not 1 <= rank <= min(image.shape):
        raise ValueError(f"cross_approximation: rank must lie in 1 … {min(image.shape)}, got {rank}.")
    if method == "patchcross":
        if n is None:
            raise ValueError(
                "cross_approximation: n must be given for the patch cross, got None. Pass patches per side."
            )
        return patch_cross(image, n, rows=(position[0],), columns=(position[1],), rank=rank, tol=tol)
    nothing = torch.empty(0, dtype=torch.long, device=image.device)
    if method == "svd":
        return _result(image, nothing, nothing, _truncated(image, rank), rank, image.new_tensor(1.0), full=True)
    rows, columns = _partial_pivots(image, rank) if method == "aca_partial" else _full_pivots(image, rank)
    if method == "maxvol" and len(rows):
        rows, columns = _dominant(image, rows, columns)
    return _skeleton(image, rows, columns, None, tol)


def patch_cross(
    u: Tensor,
    n: int,
    *,
    rows: Sequence[int] = (0,),
    columns: Sequence[int] = (0,),
    rank: int | None = None,
    tol: float | None = None,
) -> Cross:
    r"""A matrix ``[h, w]`` from whole patch-rows and patch-columns of its n × n grid of patches.

    a patch-rows and b patch-columns are a n + b n - a b patches; they leave out the share (1 - a/n)(1 - b/n), 86.2 %
    for one of each at n = 14. ``rank`` truncates the pseudo-inverse of the meeting matrix W: without it W's small
    singular values multiply whatever the image has beyond W's rank (``condition`` says by how much). By default W's
    numerical rank, see ``tol`` of :func:`cross_approximation`.
    """
    image = _matrix("patch_cross", u)
    h, w = image.shape
    if n < 1 or h % n or w % n:
        raise ValueError(
            f"patch_cross: n must divide the image's sides, got {n} for {h} × {w}. Crop or resize the image, or choose "
            "another n."
        )
    pixels = []
    for name, patches, side in (("rows", rows, h), ("columns", columns, w)):
        picked = sorted(set(patches))
        if not picked or picked[0] < 0 or picked[-1] >= n or len(picked) < len(patches):
            raise ValueError(f"patch_cross: {name} must be different patches of 0 … {n - 1}, got {tuple(patches)}.")
        size = side // n
        pixels.append(torch.cat([torch.arange(i * size, (i + 1) * size, device=image.device) for i in picked]))
    most = min(len(pixels[0]), len(pixels[1]))
    if rank is not None and not 1 <= rank <= most:
        raise ValueError(
            f"patch_cross: rank must lie in 1 … {most} (the side of the meeting patches), got {rank}. Keep more "
            "patch-rows and patch-columns for a higher rank."
        )
    return _skeleton(image, pixels[0], pixels[1], rank, tol)


def dominant_rows(a: Tensor, *, tol: float = 0.01, max_iter: int = 1000) -> tuple[Tensor, bool]:
    r"""r rows of a tall matrix ``[m, r]`` whose determinant no exchange of one row enlarges by more than 1 + ``tol``.

    Maxvol: starting from pivoted elimination, swap in the row with the largest entry of :math:`A A_I^{-1}` while that
    is over 1 + ``tol``; each swap multiplies :math:`|\det A_I|` by it. Returns the rows, and whether no swap is left.
    ``a`` must have full column rank. Reference: [goreinov2010].
    """
    matrix = floating("dominant_rows", "a", a)
    if matrix.ndim != 2 or matrix.shape[0] < matrix.shape[1] or not matrix.shape[1]:
        raise ValueError(f"dominant_rows: a must be [m, r] with m ≥ r ≥ 1, got shape {list(matrix.shape)}.")
    r = matrix.shape[1]
    # An orthonormal basis of the same columns: the ratios of determinants are the same, the conditioning is not.
    basis, triangle = torch.linalg.qr(matrix)
    small = triangle.diagonal().abs().min()
    if not bool(small > torch.finfo(matrix.dtype).eps * matrix.shape[0] * triangle.abs().max()):
        raise ValueError(f"dominant_rows: a must have full column rank, got a pivot of {float(small):.2g}.")
    rows = _pivot_rows(basis)
    coefficients = torch.linalg.solve(basis[rows], basis, left=False)
    for _ in range(max_iter):
        entry = int(coefficients.abs().argmax())
        i, j = divmod(entry, r)
        if float(coefficients[i, j].abs()) <= 1 + tol:
            return rows, True
        # Rank-one update of A A_I⁻¹ for the exchange of row j by row i.
        step = coefficients[i].clone()
        step[j] -= 1
        coefficients = coefficients - torch.outer(coefficients[:, j] / coefficients[i, j], step)
        rows[j] = i
    return rows, False


def _matrix(where: str, u: Tensor) -> Tensor:
    image = floating(where, "u", u)
    if image.ndim != 2 or 0 in image.shape:
        raise ValueError(
            f"{where}: u must be a matrix [h, w], got shape {list(image.shape)}. Take the channels one at a time."
        )
    return image


def _full_pivots(u: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    remainder = u.detach().clone()
    floor = torch.finfo(u.dtype).eps * float(u.abs().max()) * max(u.shape)
    rows, columns = list[int](), list[int]()
    for _ in range(rank):
        entry = int(remainder.abs().argmax())
        i, j = divmod(entry, u.shape[1])
        pivot = remainder[i, j].clone()
        if not float(pivot.abs()) > floor:
            break
        rows.append(i)
        columns.append(j)
        remainder -= torch.outer(remainder[:, j] / pivot, remainder[i])
        remainder[i], remainder[:, j] = 0.0, 0.0
    return _indices(u, rows), _indices(u, columns)


def _partial_pivots(u: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """One row, its largest entry's column, that column's largest entry's row, and so on."""
    a = u.detach()
    floor = torch.finfo(u.dtype).eps * float(u.abs().max()) * max(u.shape)
    rows, columns = list[int](), list[int]()
    lefts, rights = list[Tensor](), list[Tensor]()
    looked, row = set[int](), 0
    while len(rows) < rank and len(looked) < len(a):
        looked.add(row)
        along = a[row] - sum((x[row] * y for x, y in zip(lefts, rights, strict=True)), a.new_zeros(a.shape[1]))
        along[columns] = 0.0
        j = int(along.abs().argmax())
        if float(along[j].abs()) > floor:
            down = a[:, j] - sum((x * y[j] for x, y in zip(lefts, rights, strict=True)), a.new_zeros(len(a)))
            rows.append(row)
            columns.append(j)
            lefts.append(down / along[j])
            rights.append(along)
            order = down.abs()
        else:  # this row is used up: go on at any other
            order = a.new_ones(len(a))
        order = order.clone()
        order[list(looked)] = -1.0
        row = int(order.argmax())
    return _indices(u, rows), _indices(u, columns)


def _indices(u: Tensor, indices: list[int]) -> Tensor:
    return torch.tensor(indices, dtype=torch.long, device=u.device)


def _dominant(u: Tensor, rows: Tensor, columns: Tensor, sweeps: int = 20) -> tuple[Tensor, Tensor]:
    """Rows of the columns, then columns of the rows, until neither changes."""
    a = u.detach()
    for _ in range(sweeps):
        new_rows, _ = dominant_rows(a[:, columns])
        new_columns, _ = dominant_rows(a[new_rows].T)
        stable = set(new_rows.tolist()) == set(rows.tolist()) and set(new_columns.tolist()) == set(columns.tolist())
        rows, columns = new_rows, new_columns
        if stable:
            break
    return rows, columns


def _pivot_rows(a: Tensor) -> Tensor:
    """Rows that Gaussian elimination with row pivoting takes, column by column."""
    remainder, rows = a.clone(), list[int]()
    for j in range(a.shape[1]):
        i = int(remainder[:, j].abs().argmax())
        rows.append(i)
        remainder = remainder - torch.outer(remainder[:, j] / remainder[i, j], remainder[i])
        remainder[i] = 0.0
    return torch.tensor(rows, device=a.device)


def _skeleton(u: Tensor, rows: Tensor, columns: Tensor, rank: int | None, tol: float | None) -> Cross:
    if not len(rows):  # the zero matrix
        return _result(u, rows, columns, torch.zeros_like(u), 0, u.new_tensor(1.0))
    left, sigma, right = torch.linalg.svd(u[rows][:, columns], full_matrices=False)
    cut = (max(u.shape) * torch.finfo(u.dtype).eps if tol is None else tol) * sigma[0]
    count = int((sigma > cut).sum())
    count = count if rank is None else min(count, rank)
    if count == 0:
        raise ValueError(
            "cross_approximation: the rows and columns must meet in something else than zeros, got a matrix W = 0. "
            "Choose another position."
        )
    # (C V Σ^-½)(Σ^-½ Uᵀ R): balanced, so that neither factor overflows where W is nearly singular.
    root = sigma[:count].rsqrt()
    reconstruction = (u[:, columns] @ right[:count].mH * root) @ (root[:, None] * (left[:, :count].mH @ u[rows]))
    return _result(u, rows, columns, reconstruction, count, sigma[0] / sigma[count - 1])


def _truncated(u: Tensor, rank: int) -> Tensor:
    left, sigma, right = torch.linalg.svd(u, full_matrices=False)
    return left[:, :rank] * sigma[:rank] @ right[:rank]


def _result(
    u: Tensor, rows: Tensor, columns: Tensor, approximation: Tensor, rank: int, condition: Tensor, *, full: bool = False
) -> Cross:
    """The result with its errors; ``full``: all pixels were read, not the rows and columns alone."""
    error, least = u - approximation, u - _truncated(u, rank)
    visible = torch.full(u.shape, full, device=u.device)
    visible[rows] = True
    visible[:, columns] = True
    norm = torch.linalg.matrix_norm
    return Cross(
        rows, columns, approximation, norm(error), bv_seminorm(error), error.abs().max(), norm(least),
        bv_seminorm(least), rank, condition, visible, 1 - float(visible.double().mean()),
    )  # fmt: skip
