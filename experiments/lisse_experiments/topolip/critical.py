"""Which edges make the bars, persistence that can be trained through, and the loops behind the bars of H1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import breadth_first_order, connected_components
from torch import Tensor

from lisse.maths.given import Values, check_least
from lisse.maths.homology.metric import _distance_matrix, as_cloud, as_distances, check_either
from lisse.maths.homology.rips import _ROUNDING, _bars
from lisse.maths.homology.spanning import matrix_tree


@dataclass(frozen=True, slots=True)
class CriticalEdges:
    """The pairs of points whose distance is the birth and the death of each bar of H1.

    ``birth`` and ``death`` ``[m, 2]``: indices, smaller first, in the order of ``persistence(…)[1]``.
    """

    birth: Tensor
    death: Tensor


@dataclass(frozen=True, slots=True)
class Cycle:
    """A loop behind one bar of H1: ``edges`` ``[k, 2]`` of the complex at ``birth`` that bounds from ``death`` on."""

    birth: float
    death: float
    edges: Tensor

    @property
    def vertices(self) -> Tensor:
        """The points on the loop, as sorted indices."""
        return self.edges.unique()


class _Ranks:
    """The filtration with its ties broken by index: every edge has a rank of its own, so that a value names an edge."""

    def __init__(self, matrix: np.ndarray) -> None:
        n = len(matrix)
        self.values = matrix
        self.first, self.second = np.triu_indices(n, 1)
        lengths = matrix[self.first, self.second]
        order = np.argsort(lengths, kind="stable")
        self.first, self.second = self.first[order].astype(np.int64), self.second[order].astype(np.int64)
        self.lengths = lengths[order]
        # Rank 0 is kept for the diagonal.
        self.matrix = np.zeros((n, n))
        self.matrix[self.first, self.second] = np.arange(1, len(order) + 1)
        self.matrix += self.matrix.T
        self.tree = matrix_tree(torch.from_numpy(self.matrix)).edges.numpy()

    def bars(self) -> np.ndarray:
        """Ranks (birth, death) of all bars of H1, also of those that ties make 0 long."""
        if len(self.matrix) < 4:
            return np.empty((0, 2), dtype=np.int64)
        longest = self.matrix[self.tree[:, 0], self.tree[:, 1]].max()
        return _bars(self.matrix, 1, float(longest))[1].astype(np.int64)

    def edges(self, ranks: np.ndarray) -> np.ndarray:
        return np.stack([self.first[ranks - 1], self.second[ranks - 1]], 1)


def _sorted_pairs(ranks: _Ranks, bars: np.ndarray, slack: float) -> np.ndarray:
    births, deaths = ranks.lengths[bars[:, 0] - 1], ranks.lengths[bars[:, 1] - 1]
    long = deaths - births > slack
    bars, births, deaths = bars[long], births[long], deaths[long]
    return bars[np.lexsort((deaths, births))]


def _source(points: Values | None, distances: Values | None, name: str) -> tuple[Tensor, float]:
    check_either(name, points, distances)
    if distances is not None:
        return as_distances(distances, name=name).cpu(), 0.0
    assert points is not None
    matrix = _distance_matrix(as_cloud(points, name=name).detach(), name=name).cpu()
    return matrix, _ROUNDING * float(matrix.max())


def critical_edges(points: Values | None = None, *, distances: Values | None = None) -> CriticalEdges:
    """The edges that give birth to the bars of H1 and those that end them.

    The engine is given the ranks of the edges in place of their lengths (equal lengths by index), so each end of a bar
    names one edge, also where lengths are tied. Cost: that of :func:`persistence` and a sort of n² numbers.
    """
    matrix, slack = _source(points, distances, "critical_edges")
    ranks = _Ranks(matrix.numpy())
    bars = _sorted_pairs(ranks, ranks.bars(), slack)
    return CriticalEdges(torch.from_numpy(ranks.edges(bars[:, 0])), torch.from_numpy(ranks.edges(bars[:, 1])))


def differentiable_persistence(points: Tensor, *, dims: Sequence[int] = (0, 1)) -> dict[int, Tensor]:
    r"""Bars ``[m, 2]`` of H0 and H1 of a cloud ``[n, d]`` as functions of it, by dimension, on its device.

    Each end of a bar is the length of one edge, :math:`\|x_i - x_j\|`, and that edge stays the same in a neighbourhood
    of almost every cloud; so the derivative is :math:`(x_i - x_j) / \|x_i - x_j\|` at i and minus that at j. The bars
    are those of :func:`persistence`, in its order and in the dtype of the points; births of H0 are 0. At ties of
    lengths, where bars are not differentiable, it is the derivative of one of the sides.

    A penalty is any function of the bars: ``differentiable_persistence(z)[1].diff(dim=1).sum()`` makes loops shorter.
    References: [leygonie2022]; [chen2024] for the filtration.
    """
    degrees = tuple(sorted({int(dim) for dim in dims}))
    if not degrees or degrees[0] < 0 or degrees[-1] > 1:
        raise ValueError(f"differentiable_persistence: dims must be some of 0 and 1, got {dims!r}.")
    if not isinstance(points, Tensor) or not points.is_floating_point():
        raise TypeError("differentiable_persistence: points must be a tensor of floating-point numbers.")
    name = "differentiable_persistence"
    cloud = as_cloud(points, name=name)
    matrix = _distance_matrix(cloud.detach(), name=name)
    slack = _ROUNDING * float(matrix.max())
    bars_by_dim: dict[int, Tensor] = {}
    if 0 in degrees:
        tree = matrix_tree(matrix)
        edges = tree.edges[tree.lengths > 0]
        deaths = _lengths(cloud, edges)
        bars_by_dim[0] = torch.stack([torch.zeros_like(deaths), deaths], 1)
    if 1 in degrees:
        ranks = _Ranks(matrix.cpu().numpy())
        bars = _sorted_pairs(ranks, ranks.bars(), slack)
        ends = [_lengths(cloud, torch.from_numpy(ranks.edges(bars[:, k])).to(cloud.device)) for k in (0, 1)]
        bars_by_dim[1] = torch.stack(ends, 1)
    return bars_by_dim


def _lengths(cloud: Tensor, edges: Tensor) -> Tensor:
    return torch.linalg.vector_norm(cloud[edges[:, 0]] - cloud[edges[:, 1]], dim=1)


def representative_cycles(
    points: Values | None = None, *, distances: Values | None = None, count: int | None = None
) -> list[Cycle]:
    r"""A loop for each of the ``count`` longest bars of H1 (all by default), the longest first.

    Each is a cycle over Z/2 that contains the bar's critical birth edge, lives in the complex at the bar's birth, and
    becomes a boundary exactly at its death: the reduced column of the persistence algorithm. It need not be the
    shortest loop of its class.

    An edge with a third point nearer to both ends is homologous to the two edges by that point, so every edge is,
    after repeated replacement, a sum of edges that give birth to bars and of tree edges; over the spanning tree a cycle
    is determined by the former. A death edge joins the components of the points near both of its ends: for each
    component beyond the first one column, reduced by the earlier ones. Bars come from the engine, loops from this
    reduction, and the two are checked against each other. O(bars · (n² + bars)) at worst.
    """
    name = "representative_cycles"
    check_least(name, 1, count=1 if count is None else count)
    matrix, slack = _source(points, distances, name)
    ranks = _Ranks(matrix.numpy())
    bars = ranks.bars()
    reduction = _Reduction(ranks, bars)
    longest = _sorted_pairs(ranks, bars, slack)
    lengths = ranks.lengths[longest[:, 1] - 1] - ranks.lengths[longest[:, 0] - 1]
    longest = longest[np.argsort(-lengths, kind="stable")][:count]
    cycles = []
    for birth, death in longest:
        edges = torch.from_numpy(reduction.cycle(int(birth), int(death)))
        cycles.append(Cycle(float(ranks.lengths[birth - 1]), float(ranks.lengths[death - 1]), edges))
    return cycles


class _Reduction:
    """Columns over Z/2 as Python integers: bit k is the k-th birth edge, in the order of births."""

    def __init__(self, ranks: _Ranks, bars: np.ndarray) -> None:
        self.ranks = ranks
        self.order = np.sort(bars[:, 0])
        self.bit = {int(rank): 1 << k for k, rank in enumerate(self.order)}
        self.memo: dict[int, int] = {}
        self.columns: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        for a, b in ranks.tree:
            self.memo[int(ranks.matrix[a, b])] = 0
        for death in np.unique(bars[:, 1]):
            self._close(int(death))
        n = len(ranks.matrix)
        a, b = ranks.tree.T
        graph = csr_matrix((np.ones(n - 1), (a, b)), shape=(n, n))
        order, self.parent = breadth_first_order(graph, 0, directed=False)
        self.depth = np.zeros(n, dtype=np.int64)
        for vertex in order[1:]:
            self.depth[vertex] = self.depth[self.parent[vertex]] + 1

    def _chain(self, rank: int) -> int:
        """The edge of this rank as a sum of birth edges, modulo the tree and the triangles that came before."""
        matrix, memo = self.ranks.matrix, self.memo
        stack = [rank]
        while stack:
            top = stack[-1]
            if top in memo:
                stack.pop()
                continue
            u, v = int(self.ranks.first[top - 1]), int(self.ranks.second[top - 1])
            if top in self.bit:
                memo[top] = self.bit[top]
                continue
            longer = np.maximum(matrix[u], matrix[v])
            longer[[u, v]] = np.inf
            w = int(longer.argmin())
            if not longer[w] < top:
                raise RuntimeError("representative_cycles: an edge without a nearer third point gave no birth.")
            parts = [int(matrix[u, w]), int(matrix[w, v])]
            missing = [part for part in parts if part not in memo]
            if missing:
                stack += missing
            else:
                memo[top] = memo[parts[0]] ^ memo[parts[1]]
        return memo[rank]

    def _close(self, death: int) -> None:
        matrix = self.ranks.matrix
        u, v = int(self.ranks.first[death - 1]), int(self.ranks.second[death - 1])
        near = np.flatnonzero(np.maximum(matrix[u], matrix[v]) < death)
        _, label = connected_components(csr_matrix(matrix[np.ix_(near, near)] < death), directed=False)
        firsts = near[np.unique(label, return_index=True)[1]]
        sides = [self._chain(int(matrix[u, w])) ^ self._chain(int(matrix[w, v])) for w in firsts]
        for side in sides[1:]:
            column = sides[0] ^ side
            while column:
                pivot = column.bit_length() - 1
                if pivot not in self.columns:
                    self.columns[pivot], self.ends[pivot] = column, death
                    break
                column ^= self.columns[pivot]

    def cycle(self, birth: int, death: int) -> np.ndarray:
        """Edges ``[k, 2]``: the column's birth edges, closed by paths of the tree, which are shorter than they are."""
        pivot = self.bit[birth].bit_length() - 1
        if self.ends.get(pivot) != death:
            raise RuntimeError("representative_cycles: the reduction and the engine disagree about a bar.")
        column = self.columns[pivot]
        edges: set[tuple[int, int]] = set()
        for k, rank in enumerate(self.order):
            if column >> k & 1:
                u, v = int(self.ranks.first[rank - 1]), int(self.ranks.second[rank - 1])
                edges ^= {(u, v)}
                while u != v:
                    if self.depth[u] < self.depth[v]:
                        u, v = v, u
                    above = int(self.parent[u])
                    edges ^= {(min(u, above), max(u, above))}
                    u = above
        return np.array(sorted(edges), dtype=np.int64).reshape(-1, 2)
