"""Euclidean distance matrices, exact to rounding, at the speed of a matrix product; and checks of given ones."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

# Under this share of |x|² + |y|² the difference |x|² + |y|² - 2⟨x, y⟩ has lost two digits: those pairs are redone.
_NEAR = 1e-2
_BLOCK = 1024
_PAIR_NUMBERS = 2**24


def as_tensor(values: Tensor | np.ndarray) -> Tensor:
    """A tensor as it is; an array of any layout (a reversed one has strides that a tensor cannot have)."""
    return values if isinstance(values, Tensor) else torch.as_tensor(np.ascontiguousarray(values))


def as_points(points: Tensor | np.ndarray, *, name: str) -> Tensor:
    """The cloud ``[n, d]`` (further axes flattened), checked: two points or more, every number finite."""
    cloud = as_tensor(points)
    if cloud.ndim < 2:
        raise ValueError(
            f"{name}: points must have shape [n, d], got {list(cloud.shape)}. For points on a line give [n, 1]."
        )
    cloud = cloud.flatten(1)
    if len(cloud) < 2 or cloud.shape[1] < 1:
        raise ValueError(f"{name}: points must hold at least 2 points in 1 dimension or more, got {list(cloud.shape)}.")
    if cloud.is_complex():
        raise TypeError(f"{name}: points must be real, got {cloud.dtype}.")
    if not cloud.is_floating_point():
        cloud = cloud.double()
    if not bool(torch.isfinite(cloud).all()):
        bad = int((~torch.isfinite(cloud)).any(1).nonzero()[0])
        raise ValueError(f"{name}: points must be finite, got NaN or infinity in point {bad}.")
    return cloud


def as_distances(distances: Tensor | np.ndarray, *, name: str) -> Tensor:
    """A given distance matrix ``[n, n]`` in float64, checked and made exactly symmetric with a zero diagonal.

    Asymmetry and a diagonal of the size of rounding (1e-6 of the largest distance for float32 and below, 1e-12 for
    float64) are repaired: an engine that is told two values for one edge may never end. More than that is refused.
    """
    given = as_tensor(distances)
    if given.ndim != 2 or given.shape[0] != given.shape[1]:
        raise ValueError(f"{name}: distances must be a square matrix, got shape {list(given.shape)}.")
    if len(given) < 2:
        raise ValueError(f"{name}: distances must be those of at least 2 points, got {len(given)}.")
    if given.is_complex():
        raise TypeError(f"{name}: distances must be real, got {given.dtype}.")
    low = given.is_floating_point() and torch.finfo(given.dtype).eps > 1e-10
    matrix = given.detach().double()
    if not bool(torch.isfinite(matrix).all()):
        raise ValueError(f"{name}: distances must be finite, got NaN or infinity.")
    size = float(matrix.abs().max())
    slack = size * (1e-6 if low else 1e-12)
    worst = float((matrix - matrix.T).abs().max())
    if worst > slack:
        raise ValueError(
            f"{name}: distances must be symmetric, got entries that differ by {worst:.3g} from their mirror. "
            "Give (D + D.T) / 2 if that is what you mean."
        )
    diagonal = float(matrix.diagonal().abs().max())
    if diagonal > slack:
        raise ValueError(f"{name}: distances must be 0 on the diagonal, got {diagonal:.3g}.")
    least = float(matrix.min())
    if least < -slack:
        raise ValueError(f"{name}: distances must be at least 0, got {least:.3g}.")
    matrix = ((matrix + matrix.T) / 2).clamp_(min=0)
    return matrix.fill_diagonal_(0)


def centred(points: Tensor, *, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, float]:
    """Points less their mean, over a power of two; their squared norms; and that power of two.

    The scale keeps squares of very large or very small numbers within range and rounds nothing.
    """
    cloud = points.detach().to(torch.float64)
    cloud = cloud - cloud.mean(0)
    size = float(cloud.abs().max())
    scale = 2.0 ** max(-1000, min(1000, math.frexp(size)[1])) if size > 0 else 1.0
    cloud = (cloud / scale).to(dtype).contiguous()
    return cloud, cloud.square().sum(1), scale


def pair_lengths(points: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Euclidean distances of the pairs ``points[first], points[second]`` by direct differences in float64."""
    found = torch.empty(len(first), dtype=torch.float64, device=points.device)
    step = max(1, _PAIR_NUMBERS // max(1, points.shape[1]))
    for start in range(0, len(first), step):
        part = slice(start, start + step)
        difference = points[first[part]].double() - points[second[part]].double()
        found[part] = torch.linalg.vector_norm(difference, dim=1)
    return found


def distance_matrix(points: Tensor | np.ndarray, *, precision: torch.dtype = torch.float64) -> Tensor:
    r"""Euclidean distances of a cloud ``[n, d]``: ``[n, n]`` in float64, symmetric, 0 on the diagonal.

    :math:`\|x_i - x_j\|^2 = |x_i|^2 + |x_j|^2 - 2 \langle x_i, x_j\rangle` of the centred points, by matrix products
    of blocks of one triangle. Where the right side is under a hundredth of :math:`|x_i|^2 + |x_j|^2` the subtraction
    has lost digits, and that pair is redone from :math:`x_i - x_j`. In float64 this agrees with direct differences to
    about 1e-13 relative, coincident points are at exactly 0, and wide clouds are several times faster.
    ``precision=torch.float32`` does the products in float32 (about 1e-5 relative; near pairs are redone all the same).

    Cost: n² d multiplications and n² numbers; on the device of ``points``. Conventions: SPEC of [chen2024].
    """
    if precision not in (torch.float32, torch.float64):
        raise ValueError(f"distance_matrix: precision must be torch.float32 or torch.float64, got {precision}.")
    cloud = as_points(points, name="distance_matrix").detach()
    return _distance_matrix(cloud, precision)


def _distance_matrix(cloud: Tensor, precision: torch.dtype = torch.float64) -> Tensor:
    squares = Squares(cloud, precision=precision)
    return squares.matrix().sqrt_().mul_(squares.scale)


class Squares:
    """Squared distances of a checked cloud over ``scale`` squared, in blocks; exact to rounding as said above.

    One product makes a block: with |x|² and 1 as two more features, [-2x, |x|², 1] · [y, 1, |y|²] is the square.
    """

    def __init__(self, cloud: Tensor, *, precision: torch.dtype = torch.float64) -> None:
        self.cloud = cloud
        flat, self.norms, self.scale = centred(cloud, dtype=precision)
        one = torch.ones_like(self.norms)
        self.left = torch.cat([-2 * flat, self.norms[:, None], one[:, None]], 1)
        self.right = torch.cat([flat, one[:, None], self.norms[:, None]], 1)

    def rows(self, index: Tensor) -> Tensor:
        """``[len(index), n]``: the rows of these points, 0 at the points themselves."""
        block = self.left[index] @ self.right.T
        block[torch.arange(len(index), device=index.device), index] = torch.inf
        self._redo(block, index, None)
        block[torch.arange(len(index), device=index.device), index] = 0.0
        return block

    def matrix(self) -> Tensor:
        """``[n, n]`` in float64, symmetric, 0 on the diagonal; products of one triangle only."""
        n, device = len(self.norms), self.norms.device
        size = _BLOCK if device.type == "cpu" else 4 * _BLOCK
        index = torch.arange(n, device=device)
        full = torch.empty(n, n, dtype=torch.float64, device=device)
        for i in range(0, n, size):
            rows = slice(i, min(i + size, n))
            for j in range(i, n, size):
                columns = slice(j, min(j + size, n))
                block = full[rows, columns]
                if self.left.dtype == full.dtype:
                    torch.mm(self.left[rows], self.right[columns].T, out=block)
                else:
                    block.copy_(self.left[rows] @ self.right[columns].T)
                if i == j:
                    block.fill_diagonal_(torch.inf)
                self._redo(block, index[rows], columns)
                if i == j:
                    upper = block.triu(1)
                    torch.add(upper, upper.T, out=block)
                else:
                    full[columns, rows] = block.T
        return full

    def _redo(self, block: Tensor, index: Tensor, columns: slice | None) -> None:
        """Near pairs from direct differences; one pass over the block where there are none."""
        across = self.norms if columns is None else self.norms[columns]
        down = self.norms[index]
        if float(block.amin()) > _NEAR * float(down.max() + across.max()):
            return
        # At most, and not under: points that coincide at the centre of the cloud have sums of 0.
        first, second = (block <= _NEAR * (down[:, None] + across[None])).nonzero(as_tuple=True)
        lengths = pair_lengths(self.cloud, index[first], second + (0 if columns is None else columns.start))
        block[first, second] = (lengths / self.scale).square_().to(block.dtype)
