"""Minimum spanning trees: the homology of dimension 0, on the device the points are on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lisse.maths.given import Values
from lisse.maths.machine_code import loops

from .metric import Squares, as_cloud, as_distances, as_points, check_either, pair_lengths, squares

_GIGABYTE = 2**30
_LOOPS = "lisse.maths.homology.loops"


@dataclass(frozen=True, slots=True)
class SpanningTree:
    """``edges`` ``[n - 1, 2]`` (smaller index first) and their ``lengths`` ``[n - 1]`` in float64, ascending."""

    edges: Tensor
    lengths: Tensor


def spanning_tree(
    points: Values | None = None, *, distances: Values | None = None, memory: int = 4 * _GIGABYTE
) -> SpanningTree:
    r"""A minimum spanning tree of a cloud ``[n, d]``, or of a distance matrix ``[n, n]``.

    Its lengths are the deaths of H0. On the CPU, with a matrix of squared distances that fits into
    ``memory`` bytes: Prim's algorithm, n passes over a row. Otherwise, and on a GPU: Borůvka's: in each round every
    component but the largest takes its shortest edge outwards, found from blocks of rows made by products in float64,
    so that the n × n matrix is kept only where it fits. A point's row is made again only in rounds in which its
    component still grows and its own nearest outside point was swallowed.

    Exactness: comparisons are made on squared distances from a centred float64 product; the lengths returned are
    those of the chosen edges by direct differences in float64. Two candidate edges that agree to about 1e-13 may be
    exchanged for each other, which moves a length by no more than that.

    Cost: n² d multiplications once (and about as much again for all later rounds where the matrix does not fit).
    """
    name = "spanning_tree"
    check_either(name, points, distances)
    if distances is not None:
        return matrix_tree(as_distances(distances, name=name))
    assert points is not None
    return cloud_tree(as_cloud(points, name=name).detach(), name=name, memory=memory)


def matrix_tree(matrix: Tensor) -> SpanningTree:
    """The tree of a checked distance matrix, with lengths taken from it."""
    if matrix.is_cuda:
        first, second = _boruvka(_Stored(matrix), len(matrix), matrix.device)
    else:
        first, second = _prim(matrix.numpy())
    return _tree(first, second, matrix[first, second])


def cloud_tree(cloud: Tensor, *, name: str, memory: int = 4 * _GIGABYTE) -> SpanningTree:
    """The tree of a cloud, with lengths by direct differences."""
    if 8 * len(cloud) ** 2 <= memory:
        matrix, _ = squares(cloud, name=name)
        if matrix.is_cuda:
            first, second = _boruvka(_Stored(matrix), len(cloud), cloud.device)
        else:
            first, second = _prim(matrix.numpy())
    else:
        rows = Squares(as_points(cloud, name=name))
        first, second = _boruvka(rows, len(cloud), cloud.device, block=max(1, memory // (32 * len(cloud))))
    return _tree(first, second, pair_lengths(cloud, first, second))


def _tree(first: Tensor, second: Tensor, lengths: Tensor) -> SpanningTree:
    edges = torch.stack([torch.minimum(first, second), torch.maximum(first, second)], 1)
    lengths, order = lengths.sort(stable=True)
    return SpanningTree(edges[order], lengths)


def _prim(matrix: np.ndarray) -> tuple[Tensor, Tensor]:
    """Prim's algorithm on a full matrix: vertices in the order in which they join vertex 0, and which they join.

    Where several are as near, the first. Without numba (``lisse[fast]``) the parent is found afterwards, by value: the
    same edges, in some six times the time.
    """
    n = len(matrix)
    compiled = loops(_LOOPS)
    if compiled is not None:
        order, parent = np.empty(n - 1, dtype=np.int64), np.empty(n - 1, dtype=np.int64)
        compiled.prim(np.ascontiguousarray(matrix), order, parent)
        return torch.from_numpy(order), torch.from_numpy(parent)
    nearest = matrix[0].copy()
    outside = np.zeros(n)
    outside[0] = np.inf
    masked = np.empty(n)
    order = np.zeros(n, dtype=np.int64)
    reached = np.zeros(n)
    for step in range(1, n):
        np.add(nearest, outside, out=masked)
        vertex = int(masked.argmin())
        order[step], reached[step] = vertex, masked[vertex]
        outside[vertex] = np.inf
        np.minimum(nearest, matrix[vertex], out=nearest)
    parent = np.empty(n - 1, dtype=np.int64)
    position = np.empty(n, dtype=np.int64)
    position[order] = np.arange(n)
    for start in range(1, n, 256):
        steps = np.arange(start, min(n, start + 256))
        joins = (matrix[order[steps]] == reached[steps, None]) & (position < steps[:, None])
        parent[steps - 1] = joins.argmax(1)
    return torch.from_numpy(order[1:].copy()), torch.from_numpy(parent)


class _Stored:
    """Rows of a matrix that is in memory."""

    def __init__(self, matrix: Tensor) -> None:
        self.full = matrix

    def rows(self, index: Tensor) -> Tensor:
        return self.full[index]


def _boruvka(source: _Stored | Squares, n: int, device: torch.device, *, block: int = 4096) -> tuple[Tensor, Tensor]:
    """Borůvka's rounds; an edge is the triple (square, smaller index, larger index), so that ties are no loops."""
    label = torch.arange(n, device=device)
    best = torch.full((n,), torch.inf, dtype=torch.float64, device=device)
    target = torch.full((n,), -1, dtype=torch.long, device=device)
    stale = torch.ones(n, dtype=torch.bool, device=device)
    edges: list[tuple[Tensor, Tensor]] = []
    parts = n
    while parts > 1:
        # The largest component may wait: the others' edges are minima of cuts all the same.
        largest = torch.bincount(label, minlength=n).argmax()
        waiting = (stale & (label != largest)).nonzero()[:, 0]
        for start in range(0, len(waiting), block):
            index = waiting[start : start + block]
            values = source.rows(index)
            values = values.masked_fill(label[index, None] == label[None], torch.inf)
            best[index], target[index] = values.min(1)
        stale[waiting] = False
        active = (label != largest).nonzero()[:, 0]
        first, second = _cheapest(label, active, best, target, n)
        joined = _merged(label, first, second, n)
        remaining = int(joined.unique().numel())
        if len(first) != parts - remaining:
            # A square read from two ends may differ in its last bit, and tied edges then close a loop.
            first, second = _without_loops(label, first, second)
        edges.append((first, second))
        label, parts = joined, remaining
        stale |= label == label[target.clamp(min=0)]
        stale |= target < 0
    return torch.cat([a for a, _ in edges]), torch.cat([b for _, b in edges])


def _cheapest(label: Tensor, active: Tensor, best: Tensor, target: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Each component's least edge in the order (square, smaller, larger), each edge once."""
    low, high = torch.minimum(active, target[active]), torch.maximum(active, target[active])
    code = low * n + high
    component = label[active]
    least = torch.full((n,), torch.inf, dtype=best.dtype, device=best.device)
    least.scatter_reduce_(0, component, best[active], "amin")
    tied = best[active] == least[component]
    codes = torch.full((n,), n * n, dtype=torch.long, device=best.device)
    codes.scatter_reduce_(0, component[tied], code[tied], "amin")
    edges = codes[codes < n * n].unique()
    return edges // n, edges % n


def _without_loops(label: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """The edges in turn, less those whose ends are joined already."""
    parent = dict[int, int]()

    def root(x: int) -> int:
        while (above := parent.get(x, x)) != x:
            parent[x] = parent.get(above, above)
            x = above
        return x

    useful = []
    for k, (a, b) in enumerate(zip(label[first].tolist(), label[second].tolist(), strict=True)):
        a, b = root(a), root(b)
        if a != b:
            parent[a] = b
            useful.append(k)
    return first[useful], second[useful]


def _merged(label: Tensor, first: Tensor, second: Tensor, n: int) -> Tensor:
    """Labels after joining along edges: every label falls to the least one it is joined with, by pointer jumping."""
    parent = torch.arange(n, device=label.device)
    a, b = label[first], label[second]
    while True:
        ra, rb = parent[a], parent[b]
        low, high = torch.minimum(ra, rb), torch.maximum(ra, rb)
        if bool((low == high).all()):
            return parent[label]
        parent.scatter_reduce_(0, high, low, "amin")
        while True:
            jumped = parent[parent]
            if torch.equal(jumped, parent):
                break
            parent = jumped
