"""The sum of squares behind the isometric loss for Euclidean distances, with its gradient made in the same pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from lisse.maths.homology.metric import Squares, distance_matrix, pair_lengths

# Classes are looked at one by one where they hold so many points on average: their squares are then worth the loop.
_BLOCK = 64
# Up to so many dimensions a product costs less than what distance_matrix does to halve it.
_NARROW = 128
# Squares under this share of |x|² + |y|² are redone from the difference: others are right to 1e-10, 1e-4 in float32.
_NEAR = {torch.float64: 1e-6, torch.float32: 1e-3}


def stress(
    x: Tensor,
    z: Tensor,
    groups: Tensor | None,
    *,
    distances: bool,
    factor: float,
    chunk: int | None,
    plain: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    r""":math:`\sum_{ij} G_{ij} (D^x_{ij} - s D^z_{ij})^2`; ``distances``: x holds :math:`D^x` itself.

    The gradients are made while the distances are there, so that what waits for the backward pass is as large as x and
    z, not n². ``plain`` is the same sum in differentiable steps, for second derivatives.
    """
    return _Stress.apply(x, z, groups, distances, factor, chunk, plain)


class _Stress(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        z: Tensor,
        groups: Tensor | None,
        distances: bool,
        factor: float,
        chunk: int | None,
        plain: Callable[[Tensor, Tensor], Tensor],
    ) -> Tensor:
        into_x = torch.zeros_like(x) if ctx.needs_input_grad[0] else None
        into_z = torch.zeros_like(z) if ctx.needs_input_grad[1] else None
        total = torch.zeros((), dtype=torch.float64, device=z.device)
        for part, labels in _parts(groups, len(z)):
            xs = x if part is None else x[part][:, part] if distances else x[part]
            zs = z if part is None else z[part]
            for rows, before, after in _pairs(xs, zs, distances, chunk):
                total += _block(xs, zs, labels, rows, before, after, distances, factor, part, into_x, into_z)
        ctx.plain = plain
        ctx.save_for_backward(x, z, into_x, into_z)
        return total.to(z.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, z, into_x, into_z = ctx.saved_tensors
        none = (None,) * 5
        if torch.is_grad_enabled():  # asked for with create_graph: in steps that can be differentiated again
            leaves = [leaf for leaf, into in ((x, into_x), (z, into_z)) if into is not None]
            slopes = iter(torch.autograd.grad(ctx.plain(x, z), leaves, gradients[0], create_graph=True))
            return *(None if into is None else next(slopes) for into in (into_x, into_z)), *none
        return *(None if into is None else gradients[0] * into for into in (into_x, into_z)), *none


def _parts(groups: Tensor | None, n: int) -> Iterator[tuple[Tensor | None, Tensor | None]]:
    """``(indices, labels)``: one part per class where classes are large, else all points with their labels."""
    if groups is None:
        yield None, None
        return
    counts = torch.bincount(groups)
    if n < _BLOCK * len(counts):
        yield None, groups
        return
    for part in torch.argsort(groups, stable=True).split(counts.tolist()):
        if len(part) > 1:
            yield part, None


def _pairs(xs: Tensor, zs: Tensor, distances: bool, chunk: int | None) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Rows, and the distances of these rows before and after."""
    n = len(zs)
    if n < 2:
        return
    if chunk is None or chunk >= n:
        yield slice(0, n), xs if distances else _matrix(xs), _matrix(zs)
        return
    x_squares, z_squares = None if distances else Squares(xs), Squares(zs)
    for start in range(0, n, chunk):
        rows = slice(start, min(start + chunk, n))
        index = torch.arange(rows.start, rows.stop, device=zs.device)
        before = xs[rows] if x_squares is None else _roots(x_squares, index).to(zs.dtype)
        yield rows, before, _roots(z_squares, index).to(zs.dtype)


def _matrix(points: Tensor) -> Tensor:
    """Distances of all pairs, diagonal 0, in the points' precision."""
    if points.shape[1] > _NARROW:
        return distance_matrix(points, precision=points.dtype).to(points.dtype)
    centred = points - points.mean(0)
    norms = centred.square().sum(1)
    sums = norms[:, None] + norms
    squares = torch.addmm(sums, centred, centred.T, alpha=-2.0).fill_diagonal_(torch.inf)
    share = _NEAR[points.dtype]
    if float(squares.min()) <= 2 * share * float(norms.max()):
        first, second = (squares <= sums.mul_(share)).nonzero(as_tuple=True)
        squares[first, second] = pair_lengths(points, first, second).square_().to(squares.dtype)
    return squares.sqrt_().fill_diagonal_(0.0)


def _roots(squares: Squares, index: Tensor) -> Tensor:
    return squares.rows(index).sqrt_().mul_(squares.scale)


def _block(
    xs: Tensor,
    zs: Tensor,
    labels: Tensor | None,
    rows: slice,
    before: Tensor,
    after: Tensor,
    distances: bool,
    factor: float,
    part: Tensor | None,
    into_x: Tensor | None,
    into_z: Tensor | None,
) -> Tensor:
    """The sum over some rows; their gradients are added to ``into_x`` and ``into_z``. Overwrites the distances."""
    gap = torch.sub(before, after, alpha=factor)
    if labels is not None:
        gap.masked_fill_(labels[rows, None] != labels[None], 0.0)
    flat = gap.flatten()
    total = torch.dot(flat, flat).double()
    where = torch.arange(rows.start, rows.stop, device=zs.device)
    if into_z is not None:
        into_z[where if part is None else part[where]] = _pull(gap, after, zs, rows, -4 * factor)
    if into_x is not None:
        if distances:
            index = (where[:, None], torch.arange(len(zs), device=zs.device)[None])
            into_x[index if part is None else (part[index[0]], part[index[1]])] = 2 * gap
        else:
            into_x[where if part is None else part[where]] = _pull(gap, before, xs, rows, 4.0)
    return total


def _pull(gap: Tensor, distances: Tensor, points: Tensor, rows: slice, factor: float) -> Tensor:
    r""":math:`c \sum_j H_{kj} (p_k - p_j)/d_{kj}` for k in rows, 0 where the distance is 0."""
    diagonal = torch.arange(rows.start, rows.stop, device=points.device)
    distances[diagonal - rows.start, diagonal] = torch.inf
    if float(distances.min()) == 0:
        distances.masked_fill_(distances == 0, torch.inf)
    weights = torch.div(gap, distances, out=distances)
    centred = points - points.mean(0)
    return (weights.sum(1, keepdim=True) * centred[rows] - weights @ centred).mul_(factor)
