"""Wasserstein and bottleneck distances between persistence diagrams, exact."""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import (
    maximum_bipartite_matching,
    min_weight_full_bipartite_matching,
)

from lisse.maths.machine_code import loops

from .diagram import Bars, Diagram, as_bars
from .sorted_deaths import deaths_distance

_SMALL = 200  # bars up to which a full matrix is no slower than a sparse one
_BITS = 50  # of the largest weight in a sparse problem; the other three of a float are for sums
_ROUNDING = 1e-8  # how far, relatively and at worst, these bits may take the p-th power of a distance
_MUTUAL = 0.6  # share of bars that are the nearest to their nearest: from here on diagrams count as nearly equal


def diagram_distance(a: Bars, b: Bars, *, dim: int | None = None, p: float = 1.0, ground: float = math.inf) -> float:
    r"""W_p between two diagrams: the cheapest way to match bars with each other or with the diagonal.

    .. math:: W_p(D, E)^p = \min_{\gamma} \sum_{(x, y) \in \gamma} \|x - y\|_q^p
       + \sum_{x \text{ unmatched}} \bigl(2^{1/q - 1} (d_x - b_x)\bigr)^p

    over partial matchings γ; ``ground`` is q ≥ 1 (inf: :math:`(d - b)/2` to the diagonal), ``p`` ≥ 1, and ``p=inf``
    the bottleneck distance, with the maximum for the sum. ``dim=None`` combines the dimensions of two
    :class:`Diagram` s: :math:`(\sum_k W_p(H_k)^p)^{1/p}`, or their maximum for p = inf. ``a`` and ``b`` are Diagrams,
    or bars ``[m, 2]`` (then ``dim`` is only a name). The sums are not divided by the number of bars, so here
    :math:`W_\infty \le W_2 \le W_1`.

    Only finite bars count; infinite ones are left out, however many each side has.

    Exact, to rounding. Bars that are all born together (H0): a one-dimensional problem, see
    :mod:`~lisse.maths.homology.sorted_deaths`: O(N log N) for p = 1 and inf, a banded O(N²) in O(N) memory else.
    Otherwise: pairs that cost no less than both ways to the diagonal are dropped, and the sparse problem that is left
    is solved by shortest augmenting paths (O(N³) at worst, N² memory), with numba (``lisse[fast]``) outside of the
    interpreter's lock, which SciPy's solver holds; the bottleneck by bipartite matchings in a binary search over the N²
    costs. References: [chen2024] appendix A; [edelsbrunner2010] VIII.
    """
    if isinstance(p, bool | str) or not p >= 1:
        raise ValueError(f"diagram_distance: p must be at least 1 (inf: bottleneck), got {p!r}.")
    if isinstance(ground, bool | str) or not ground >= 1:
        raise ValueError(f"diagram_distance: ground must be a norm's order, at least 1 (or inf), got {ground!r}.")
    if dim is None and isinstance(a, Diagram) and isinstance(b, Diagram):
        if a.dims != b.dims:
            raise ValueError(
                f"diagram_distance: a and b must have the same dims to be combined, got {a.dims} and {b.dims}."
            )
        distances = np.array([bars_distance(a[k].numpy(), b[k].numpy(), p=p, ground=ground) for k in a.dims])
        return float(distances.max(initial=0.0) if math.isinf(p) else np.linalg.norm(distances, ord=p))
    return bars_distance(_bars(a, dim), _bars(b, dim), p=float(p), ground=float(ground))


def _bars(diagram: Bars, dim: int | None) -> np.ndarray:
    if isinstance(diagram, Diagram):
        if dim is None:
            raise ValueError("diagram_distance: dim must be given to compare a Diagram with bars, got None.")
        if dim not in diagram:
            raise ValueError(f"diagram_distance: dim must be in both diagrams, got {dim} for one with {diagram.dims}.")
        return diagram[dim].numpy()
    return as_bars(diagram, name="diagram_distance").numpy()


def bars_distance(a: np.ndarray, b: np.ndarray, *, p: float, ground: float) -> float:
    """W_p between bars ``[m, 2]`` that are known to be finite."""
    share = 2.0 ** ((0.0 if math.isinf(ground) else 1.0 / ground) - 1.0)
    a, b = a[a[:, 1] > a[:, 0]], b[b[:, 1] > b[:, 0]]
    if len(a) == 0 or len(b) == 0:
        lengths = share * np.concatenate([a[:, 1] - a[:, 0], b[:, 1] - b[:, 0]])
        return float(np.linalg.norm(lengths, ord=p)) if len(lengths) else 0.0
    births = np.concatenate([a[:, 0], b[:, 0]])
    if (births == births[0]).all():
        start = births[0]
        return deaths_distance(a[:, 1] - start, b[:, 1] - start, p=p, share=share)
    if math.isinf(p):
        return _bottleneck(a, b, ground, share)
    if a.shape == b.shape and np.array_equal(a[np.lexsort(a.T)], b[np.lexsort(b.T)]):
        return 0.0  # also where powers of the differences between their bars are too small for a float
    return _assignment(a, b, p, ground, share)


def _ground_costs(a: np.ndarray, b: np.ndarray, ground: float) -> np.ndarray:
    births, deaths = np.abs(a[:, 0, None] - b[None, :, 0]), np.abs(a[:, 1, None] - b[None, :, 1])
    if math.isinf(ground):
        return np.maximum(births, deaths, out=births)
    if ground == 1:
        return births + deaths
    if ground == 2:
        return np.hypot(births, deaths)
    # Scaled by the larger of the two, so that no power overflows.
    larger = np.maximum(births, deaths)
    ratio = np.divide(np.minimum(births, deaths), larger, out=np.zeros_like(larger), where=larger > 0)
    return larger * (1.0 + ratio**ground) ** (1.0 / ground)


def _assignment(a: np.ndarray, b: np.ndarray, p: float, ground: float, share: float) -> float:
    """A matching of most savings: to match x and y saves what both would have paid to the diagonal."""
    # The shortest bars first: what has no use for a partner is settled before the searches become long.
    a, b = (bars[np.argsort(bars[:, 1] - bars[:, 0], kind="stable")] for bars in (a, b))
    cost = _ground_costs(a, b, ground)
    if p != 1:
        cost **= p
    alone_a, alone_b = (share * (a[:, 1] - a[:, 0])) ** p, (share * (b[:, 1] - b[:, 0])) ** p
    compiled, bars = loops("lisse.maths.homology.loops"), len(a) + len(b)
    if compiled is not None:
        begins, columns, weights = compiled.savings(cost, alone_a, alone_b)
        column = compiled.matched_columns(begins, columns, weights, alone_a, len(b))
        total = _total((np.flatnonzero(column >= 0), column[column >= 0]), cost, alone_a, alone_b)
        largest = max(weights.max(initial=0.0), alone_a.max(), alone_b.max())
        if bars * largest * 2.0**-_BITS <= _ROUNDING * total:
            return total ** (1.0 / p)
    i, j = np.nonzero(cost < alone_a[:, None] + alone_b[None])
    near = cost.argmin(1)
    mutual = np.count_nonzero(cost.argmin(0)[near] == np.arange(len(a)))
    # Both are exact. Diagrams that are nearly equal are done at once when every bar has a place on the diagonal.
    solve = _with_all_places if mutual > _MUTUAL * min(cost.shape) else _with_places_of_rows
    total = 0.0
    if bars > _SMALL and compiled is None:
        total = _total(solve(i, j, cost[i, j], alone_a, alone_b, full=False), cost, alone_a, alone_b)
    largest = max(cost[i, j].max(initial=0.0), alone_a.max(), alone_b.max())
    # How far rounded costs may be off: too far only for many bars that are nearly where their partners are.
    if bars <= _SMALL or bars * largest * 2.0**-_BITS > _ROUNDING * total:
        total = _total(solve(i, j, cost[i, j], alone_a, alone_b, full=True), cost, alone_a, alone_b)
    return total ** (1.0 / p)


def _total(pairs: tuple[np.ndarray, np.ndarray], cost: np.ndarray, alone_a: np.ndarray, alone_b: np.ndarray) -> float:
    """What a matching costs, with those that are left alone."""
    k, l = pairs
    left_a, left_b = np.ones(len(alone_a), bool), np.ones(len(alone_b), bool)
    left_a[k], left_b[l] = False, False
    return float(cost[k, l].sum() + alone_a[left_a].sum() + alone_b[left_b].sum())


def _with_places_of_rows(
    i: np.ndarray, j: np.ndarray, cost: np.ndarray, alone_a: np.ndarray, alone_b: np.ndarray, *, full: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Every bar of a is matched, at its cost less what its partner of b saves, or goes to its place on the diagonal."""
    n, m = len(alone_a), len(alone_b)
    rows, columns = np.concatenate([i, np.arange(n)]), np.concatenate([j, m + np.arange(n)])
    return _cheapest(np.concatenate([cost - alone_b[j], alone_a]), rows, columns, (n, m + n), m, full)


def _with_all_places(
    i: np.ndarray, j: np.ndarray, cost: np.ndarray, alone_a: np.ndarray, alone_b: np.ndarray, *, full: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Every bar is matched, with a bar or with its place on the diagonal; places of matched bars match for nothing."""
    n, m = len(alone_a), len(alone_b)
    rows = np.concatenate([i, np.arange(n), n + np.arange(m), n + j])
    columns = np.concatenate([j, m + np.arange(n), np.arange(m), m + i])
    weights = np.concatenate([cost, alone_a, alone_b, np.zeros(len(i))])
    k, l = _cheapest(weights, rows, columns, (n + m, n + m), m, full)
    return k[k < n], l[k < n]


def _cheapest(
    weights: np.ndarray, rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int], bars: int, full: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The pairs of a cheapest matching of all rows whose column is one of the first ``bars``.

    By a full matrix, or else by a sparse one of weights rounded to :math:`2^{-50}` of the largest.
    """
    if full:
        dense = np.full(shape, np.inf)
        dense[rows, columns] = weights
        k, l = linear_sum_assignment(dense)
    else:
        # The sparse solver compares sums of weights, and where rounding makes equal ones differ it may go on for ever.
        # Whole numbers have exact sums; from 1, because it takes 0 for no edge.
        integers = np.rint(weights / (np.abs(weights).max() or 1.0) * 2.0**_BITS)
        integers += 1.0 - integers.min()
        k, l = min_weight_full_bipartite_matching(csr_matrix((integers, (rows, columns)), shape=shape))
    return k[l < bars], l[l < bars]


def _bottleneck(a: np.ndarray, b: np.ndarray, ground: float, share: float) -> float:
    """The least t at which every bar longer than t / share has a partner within t.

    Bars that must be matched on either side can be matched together if each side's can be (Mendelsohn and Dulmage), so
    two bipartite matchings decide. Only costs are tried: the answer is one of them.
    """
    cost = _ground_costs(a, b, ground)
    alone_a, alone_b = share * (a[:, 1] - a[:, 0]), share * (b[:, 1] - b[:, 0])
    ceiling = max(alone_a.max(), alone_b.max())
    values = np.unique(np.concatenate([[0.0], cost[cost < ceiling], alone_a, alone_b]))
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high) // 2
        t = values[middle]
        if _covers(cost[alone_a > t] <= t) and _covers((cost[:, alone_b > t] <= t).T):
            high = middle
        else:
            low = middle + 1
    return float(values[low])


def _covers(near: np.ndarray) -> bool:
    """Whether every row has a partner of its own."""
    if len(near) == 0:
        return True
    if len(near) > near.shape[1] or not near.any(1).all():
        return False
    return bool((maximum_bipartite_matching(csr_matrix(near), perm_type="column") >= 0).all())
