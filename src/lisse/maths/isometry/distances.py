"""Distance matrices with a gradient that is finite everywhere: Euclidean, cosine, along a graph of neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lisse.maths.homology.metric import Squares, distance_matrix


def euclidean(points: Tensor, *, rows: slice | None = None) -> Tensor:
    r"""Euclidean distances ``[n, n]`` of points ``[n, d]`` in their own precision, symmetric, with a zero diagonal.

    .. math:: \frac{\partial D_{ij}}{\partial x_i} = \frac{x_i - x_j}{D_{ij}}, \qquad 0 \text{ where } D_{ij} = 0

    (0 is a subgradient there; the plain square root gives NaN). ``rows`` gives only these rows, ``[r, n]``. Exact to
    rounding, also for pairs that nearly coincide (:func:`lisse.maths.homology.distance_matrix`; float32 points give
    about 1e-6 relative). Has second derivatives. Cost: one product of n² d, forward and backward, and n² numbers.
    """
    points = points.flatten(1)
    if len(points) < 2 or points.shape[1] == 0:
        count = len(points) if rows is None else len(points[rows])
        return (points * 0).sum() + points.new_zeros(count, len(points))
    start, stop = (0, len(points)) if rows is None else rows.indices(len(points))[:2]
    return _Euclidean.apply(points, start, stop)


class _Euclidean(torch.autograd.Function):
    """Rows ``start … stop - 1`` of a Euclidean distance matrix."""

    @staticmethod
    def forward(points: Tensor, start: int, stop: int) -> Tensor:
        cloud = points.detach()
        if (start, stop) == (0, len(cloud)):
            precise = torch.float64 if cloud.dtype == torch.float64 else torch.float32
            return distance_matrix(cloud, precision=precise).to(cloud.dtype)
        squares = Squares(cloud)
        block = squares.rows(torch.arange(start, stop, device=cloud.device)).sqrt_()
        return block.mul_(squares.scale).to(cloud.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, int], output: Tensor) -> None:
        points, ctx.start, ctx.stop = inputs
        ctx.save_for_backward(points, output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        points, distances = ctx.saved_tensors
        # Less their mean, which changes no difference: what is subtracted below is then no larger than it must be.
        points = points - points.detach().mean(0)
        weights = gradient / torch.where(distances > 0, distances, torch.inf)
        if (ctx.start, ctx.stop) == (0, len(points)):
            weights = weights + weights.T
            return weights.sum(1, keepdim=True) * points - weights @ points, None, None
        block = points[ctx.start : ctx.stop]
        as_rows = weights.sum(1, keepdim=True) * block - weights @ points
        as_columns = weights.sum(0)[:, None] * points - weights.T @ block
        before, after = as_columns[: ctx.start], as_columns[ctx.stop :]
        return torch.cat([before, as_columns[ctx.start : ctx.stop] + as_rows, after]), None, None


def cosine(points: Tensor, *, rows: slice | None = None) -> Tensor:
    r"""Cosine distances :math:`1 - \cos\angle(x_i, x_j)` ``[n, n]``, as :math:`\tfrac12 \|u_i - u_j\|^2` with units u.

    In this form small angles keep their digits. A zero vector has no angle: it is taken to be at distance 1 from all
    others, without gradient. No metric in the strict sense; its square root is one, up to a factor.
    """
    points = points.flatten(1)
    size = torch.linalg.vector_norm(points.detach(), dim=1, keepdim=True)
    nonzero = size > 0
    safe = torch.where(nonzero, points, 1.0)
    units = torch.where(nonzero, safe / torch.linalg.vector_norm(safe, dim=1, keepdim=True), 0.0)
    distances = euclidean(units, rows=rows).square() / 2
    if bool(nonzero.all()):
        return distances
    every = torch.eye(len(points), dtype=distances.dtype, device=distances.device)
    sources, diagonal = (nonzero, every) if rows is None else (nonzero[rows], every[rows])
    return torch.where(sources & nonzero.T, distances, 1 - diagonal)


def geodesic(points: Tensor, *, neighbours: int = 10) -> Tensor:
    r"""Lengths of shortest paths ``[n, n]`` in the graph that joins every point with its ``neighbours`` nearest ones.

    :math:`D_{ij} = \min \sum_{\text{edges}} \|x_a - x_b\|` over paths from i to j, as in Isomap ([tenenbaum2000]):
    distances within the shape that the points lie on. Points that no path joins are at distance infinity. The
    gradient is that of the edges on each shortest path, with the graph held fixed: right wherever the shortest paths
    are unique. ``neighbours`` 1 or more; with n - 1 or more the graph is complete and D is Euclidean.

    Cost: O(n² d + n² k log n) forward, O(n²) for every edge of the longest path backward, on the CPU. Differentiable
    once.
    """
    if isinstance(neighbours, bool) or not isinstance(neighbours, int) or neighbours < 1:
        raise ValueError(f"geodesic: neighbours must be a whole number of at least 1, got {neighbours!r}. Take 10.")
    points = points.flatten(1)
    if len(points) < 2:
        return euclidean(points)
    return _Geodesic.apply(points, neighbours)


class _Geodesic(torch.autograd.Function):
    """Shortest paths in the graph of nearest neighbours."""

    @staticmethod
    def forward(ctx: Any, points: Tensor, neighbours: int) -> Tensor:
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import dijkstra

        n = len(points)
        edges = euclidean(points.detach().double()).cpu().numpy()
        ranked = edges.copy()
        np.fill_diagonal(ranked, -1.0)  # a point comes before all others, also those that coincide with it
        near = np.argpartition(ranked, min(neighbours, n - 1), axis=1)[:, : min(neighbours, n - 1) + 1]
        joined = np.zeros((n, n), dtype=bool)
        np.put_along_axis(joined, near, True, axis=1)
        joined |= joined.T
        np.fill_diagonal(joined, False)
        first, second = joined.nonzero()
        # An explicit zero is no edge to SciPy: points that coincide are joined by the smallest number there is.
        lengths = np.maximum(edges[first, second], np.finfo(float).tiny)
        graph = csr_array((lengths, (first, second)), shape=(n, n))
        paths, before = dijkstra(graph, directed=False, return_predecessors=True)
        paths = np.minimum(paths, paths.T)
        ctx.save_for_backward(points, torch.from_numpy(paths), torch.from_numpy(before.astype(np.int64)))
        return torch.from_numpy(paths).to(points)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        points, paths, before = ctx.saved_tensors
        n = len(points)
        # What hangs on a path from i to j hangs on its last edge, and on the path to the point before j.
        carried = torch.where(torch.isfinite(paths), gradients[0].detach().double().cpu(), 0.0)
        flow = torch.zeros(n * n, dtype=torch.float64)
        for source, end in reversed(_levels(before)):
            parent = before[source, end]
            amount = carried[source, end]
            flow.index_add_(0, parent * n + end, amount)
            carried.index_put_((source, parent), amount, accumulate=True)
        wide = points.detach().double().cpu()
        edges = euclidean(wide)
        weights = flow.reshape(n, n) / torch.where(edges > 0, edges, torch.inf)
        weights = weights + weights.T
        wide = wide - wide.mean(0)
        return (weights.sum(1, keepdim=True) * wide - weights @ wide).to(points), None


def _levels(before: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The pairs (source, end) whose shortest path has 1, 2, … edges; ``before[i, j]`` is the last point before j."""
    current = before
    levels = []
    open_ = current >= 0
    hops = open_.long()
    while bool(open_.any()):
        current = torch.where(open_, before.gather(1, current.clamp(min=0)), -1)
        open_ = current >= 0
        hops += open_
    for count in range(1, int(hops.max()) + 1):
        source, end = (hops == count).nonzero(as_tuple=True)
        levels.append((source, end))
    return levels
