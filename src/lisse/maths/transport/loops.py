"""Ground distances and W_p^p of many pairs of empirical measures as machine code: costs and exact solvers in one loop.

Nearly all the time of a transport problem between two sentences goes into n·m·d absolute differences, of which SciPy's
loop does two a nanosecond. The tiles below keep sums in registers and let LLVM use the widest vectors there are.

Two solvers by shortest augmenting paths. Equal sizes: assignment in the manner of Jonker and Volgenant [jonker1987]
(column reduction, row transfer, then a shortest path for each row that is still free). Unequal sizes: the masses
1/n and 1/m are the whole numbers m/g and n/g, g = gcd(n, m), so the same paths carry more than one unit and nothing is
ever rounded but the costs. No loop holds the interpreter's lock. Importing this needs numba.
"""

from __future__ import annotations

from math import gcd
from typing import Any

import numpy as np

try:
    import numba  # type: ignore[import-not-found, import-untyped, unused-ignore]
except ImportError as error:
    raise ImportError(f'loops: the loops of transport need numba ({error}). pip install "lisse[fast]"') from error

_compiled: Any = numba.njit(nogil=True, cache=True)
# "reassoc" lets sums run in vector lanes; no other liberty, so that NaN and infinity stay what they are.
_summing: Any = numba.njit(nogil=True, cache=True, fastmath={"reassoc"})
_inlined: Any = numba.njit(inline="always")


@_inlined
def _term(difference: Any, squared: bool) -> Any:  # pragma: no cover - runs as machine code
    return difference * difference if squared else abs(difference)


@_summing
def _sums(x: Any, y: Any, out: Any, squared: bool) -> None:  # pragma: no cover - runs as machine code
    """``out`` ``[n, m]``: the sums of squared or of absolute differences, in tiles of 2 × 4."""
    n, m, d = x.shape[0], y.shape[0], x.shape[1]
    for i in range(0, n - n % 2, 2):
        a, b = x[i], x[i + 1]
        for j in range(0, m - m % 4, 4):
            u, v, w, z = y[j], y[j + 1], y[j + 2], y[j + 3]
            s0 = s1 = s2 = s3 = t0 = t1 = t2 = t3 = 0.0
            for k in range(d):
                p, q = a[k], b[k]
                s0 += _term(p - u[k], squared)
                s1 += _term(p - v[k], squared)
                s2 += _term(p - w[k], squared)
                s3 += _term(p - z[k], squared)
                t0 += _term(q - u[k], squared)
                t1 += _term(q - v[k], squared)
                t2 += _term(q - w[k], squared)
                t3 += _term(q - z[k], squared)
            out[i, j], out[i, j + 1], out[i, j + 2], out[i, j + 3] = s0, s1, s2, s3
            out[i + 1, j], out[i + 1, j + 1], out[i + 1, j + 2], out[i + 1, j + 3] = t0, t1, t2, t3
    for i in range(n):  # what no tile covers: the last columns, and all of an odd last row
        for j in range(m - m % 4 if i < n - n % 2 else 0, m):
            s = 0.0
            for k in range(d):
                s += _term(x[i, k] - y[j, k], squared)
            out[i, j] = s


@_compiled
def ground_costs(x: Any, y: Any, ground: float, out: Any) -> None:  # pragma: no cover - runs as machine code
    """``out`` ``[n, m]``: distances between float64 points ``[n, d]`` and ``[m, d]``, ``ground`` 1 or 2."""
    if ground == 1:
        _sums(x, y, out, False)
    else:
        _sums(x, y, out, True)
        for i in range(len(x)):
            for j in range(len(y)):
                out[i, j] = out[i, j] ** 0.5


@_compiled
def batch_powers(
    x: Any, x_ends: Any, y: Any, y_ends: Any, ground: float, p: float, out: Any
) -> None:  # pragma: no cover - runs as machine code
    """``out[k]`` = W_p^p of the points ``x[x_ends[k] : x_ends[k + 1]]`` and those of y, in the norm ground = 1 or 2."""
    for k in range(len(out)):
        left, right = x[x_ends[k] : x_ends[k + 1]], y[y_ends[k] : y_ends[k + 1]]
        cost = np.empty((len(left), len(right)))
        ground_costs(left, right, ground, cost)
        if p == 2:
            cost = cost * cost
        elif p != 1:
            cost = cost**p
        out[k] = assignment_cost(cost) if len(left) == len(right) else transport_cost(cost)


@_compiled
def cost_powers(costs: Any, sizes: Any, out: Any) -> None:  # pragma: no cover - runs as machine code
    """``out[k]`` = the optimal mean cost of the corner ``costs[k, :n, :m]``, ``n, m = sizes[k]``; left where n is 0."""
    for k in range(len(out)):
        n, m = sizes[k]
        if n > 0:
            cost = np.ascontiguousarray(costs[k, :n, :m])
            out[k] = assignment_cost(cost) if n == m else transport_cost(cost)


@_compiled
def _cheapest_row(cost: Any, j: int) -> int:  # pragma: no cover - runs as machine code
    best = 0
    for i in range(1, len(cost)):
        if cost[i, j] < cost[best, j]:
            best = i
    return best


@_compiled
def _relax(
    cost: Any, i: int, offset: float, v: Any, near: Any, scanned: Any, before: Any
) -> None:  # pragma: no cover - runs as machine code
    """Columns that are nearer by way of row ``i``."""
    for k in range(len(v)):
        far = cost[i, k] - v[k] + offset
        if not scanned[k] and far < near[k]:
            near[k], before[k] = far, i


@_compiled
def _nearest(near: Any, scanned: Any, state: Any) -> int:  # pragma: no cover - runs as machine code
    """The nearest column that is not scanned; of several a free one, whose ``state`` is below 0."""
    j, reach = -1, np.inf
    for k in range(len(near)):
        if not scanned[k] and (near[k] < reach or (near[k] == reach and state[k] < 0)):
            reach, j = near[k], k
    return j


# --- equal sizes ------------------------------------------------------------------------------------------------------


@_compiled
def assignment_cost(cost: Any) -> float:  # pragma: no cover - runs as machine code
    """The mean cost of the best permutation, ``cost`` ``[n, n]``."""
    n = len(cost)
    row_of, column_of = np.full(n, -1), np.full(n, -1)
    v = np.empty(n)
    for j in range(n):  # each column's cheapest row; a row keeps the first column that wants it
        best = _cheapest_row(cost, j)
        v[j] = cost[best, j]
        if column_of[best] < 0:
            column_of[best], row_of[j] = j, best
    free = np.flatnonzero(column_of < 0)
    count = len(free)
    for _ in range(2):
        count = _row_reduction(cost, v, row_of, column_of, free, count)
    near, scanned, before = np.empty(n), np.empty(n, np.bool_), np.empty(n, np.int64)
    order = np.empty(n, np.int64)
    for root in free[:count]:
        end = _free_column(cost, v, row_of, root, near, scanned, before, order)
        while True:
            i = before[end]
            row_of[end] = i
            column_of[i], end = end, column_of[i]
            if i == root:
                break
    total = 0.0
    for i in range(n):
        total += cost[i, column_of[i]]
    return total / n


@_compiled
def _row_reduction(
    cost: Any, v: Any, row_of: Any, column_of: Any, free: Any, count: int
) -> int:  # pragma: no cover - runs as machine code
    """Free rows take their cheapest column at the price of the second cheapest, and put out who was there."""
    n = len(cost)
    waiting, index, tries = 0, 0, 0
    while index < count:
        i = free[index]
        index += 1
        first, second, j, other = np.inf, np.inf, -1, -1
        for k in range(n):
            h = cost[i, k] - v[k]
            if h < second:
                if h < first:
                    second, other, first, j = first, j, h, k
                else:
                    second, other = h, k
        holder = row_of[j]
        lower = first < second and v[j] - (second - first) < v[j]
        if lower and second < np.inf:
            v[j] -= second - first
        elif holder >= 0 and other >= 0:
            j = other
            holder = row_of[j]
        column_of[i], row_of[j] = j, i
        if holder >= 0:
            column_of[holder] = -1
            tries += 1
            # Rounding may make the chase endless: after a while the rows that are put out wait for the exact paths.
            if lower and tries < 8 * n:
                index -= 1
                free[index] = holder
            else:
                free[waiting] = holder
                waiting += 1
    return waiting


@_compiled
def _free_column(
    cost: Any, v: Any, row_of: Any, root: int, near: Any, scanned: Any, before: Any, order: Any
) -> int:  # pragma: no cover - runs as machine code
    """The column without a row that is nearest to ``root``; ``before`` leads back, the prices ``v`` follow."""
    n = len(cost)
    for j in range(n):
        near[j], scanned[j], before[j] = cost[root, j] - v[j], False, root
    count = 0
    while True:
        j = _nearest(near, scanned, row_of)
        scanned[j] = True
        if row_of[j] < 0:
            break
        order[count] = j
        count += 1
        i = row_of[j]
        _relax(cost, i, near[j] - (cost[i, j] - v[j]), v, near, scanned, before)
    for k in order[:count]:
        v[k] += near[k] - near[j]
    return j


@_compiled
def _within_reach(
    cost: Any, root: int, t: float, row_of: Any, near: Any, before: Any, scanned: Any
) -> Any:  # pragma: no cover - runs as machine code
    """The free column to which a path of the least largest step leads from a row, and that step, t at least."""
    n = len(cost)
    for j in range(n):
        near[j], scanned[j], before[j] = max(t, cost[root, j]), False, root
    for j in range(n):
        if near[j] <= t and row_of[j] < 0:
            return j, t
    while True:
        j = _nearest(near, scanned, row_of)
        if row_of[j] < 0:
            return j, near[j]
        scanned[j] = True
        for k in range(n):
            far = max(near[j], cost[row_of[j], k])
            if not scanned[k] and far < near[k]:
                near[k], before[k] = far, row_of[j]


@_compiled
def bottleneck_cost(cost: Any) -> float:  # pragma: no cover - runs as machine code
    """The least over permutations of their largest cost, ``cost`` ``[n, n]``.

    The pairs so far carry as many rows as there were with the least largest cost t that a permutation can have: every
    further row finds a path to a free column whose largest step is least, and no permutation does with less.
    """
    n = len(cost)
    row_of, near, before = np.full(n, -1), np.empty(n), np.empty(n, np.int64)
    scanned = np.empty(n, np.bool_)
    t = -np.inf
    for i in range(n):  # every row and every column has a partner
        t = max(t, cost[i].min())
        t = max(t, cost[:, i].min())
    for root in range(n):
        end, t = _within_reach(cost, root, t, row_of, near, before, scanned)
        while True:
            i = before[end]
            former = -1
            for k in range(n):
                if row_of[k] == i:
                    former = k
            row_of[end] = i
            if i == root:
                break
            end = former
    return t


# --- unequal sizes ----------------------------------------------------------------------------------------------------


@_compiled
def transport_cost(cost: Any) -> float:  # pragma: no cover - runs as machine code
    """The least mean cost of carrying equal masses on n rows to equal masses on m columns, ``cost`` ``[n, m]``."""
    n, m = cost.shape
    units = gcd(n, m)
    supply, demand = np.full(n, m // units), np.full(m, n // units)
    u, v = np.zeros(n), np.empty(m)
    flow = np.zeros((m, n), np.int64)  # by column: who ships there is what a path asks
    for j in range(m):
        best = _cheapest_row(cost, j)
        v[j] = cost[best, j]
        sent = min(supply[best], demand[j])
        flow[j, best] += sent
        supply[best] -= sent
        demand[j] -= sent
    near, scanned, before = np.empty(m), np.empty(m, np.bool_), np.empty(m, np.int64)
    reached, through = np.empty(n, np.bool_), np.empty(n, np.int64)
    for root in range(n):
        while supply[root] > 0:
            end = _open_column(cost, u, v, flow, demand, root, near, scanned, before, reached, through)
            sent = _shipped(flow, min(supply[root], demand[end]), root, end, before, through)
            supply[root] -= sent
            demand[end] -= sent
    total = 0.0
    for j in range(m):
        for i in range(n):
            if flow[j, i] > 0:
                total += flow[j, i] * cost[i, j]
    return total / (n * (m // units))


@_compiled
def _open_column(
    cost: Any, u: Any, v: Any, flow: Any, demand: Any, root: int, near: Any, scanned: Any, before: Any, reached: Any,
    through: Any,
) -> int:  # fmt: skip  # pragma: no cover - runs as machine code
    """The column with demand that is nearest to ``root``: ``before`` and ``through`` lead back, the prices follow."""
    n, m = cost.shape
    reached[:] = False
    reached[root] = True
    state = -demand
    for j in range(m):
        near[j], scanned[j], before[j] = cost[root, j] - u[root] - v[j], False, root
    while True:
        j = _nearest(near, scanned, state)
        reach = near[j]
        if state[j] < 0:
            break
        scanned[j] = True
        for i in range(n):
            if flow[j, i] > 0 and not reached[i]:
                reached[i], through[i] = True, j
                _relax(cost, i, reach - u[i], v, near, scanned, before)
    for i in range(n):
        if reached[i]:
            u[i] += reach if i == root else reach - near[through[i]]
    v += np.where(scanned, near - reach, 0.0)
    return j


@_compiled
def _shipped(
    flow: Any, most: int, root: int, end: int, before: Any, through: Any
) -> int:  # pragma: no cover - runs as machine code
    """As many units as the path from ``root`` to ``end`` bears, at most ``most``, sent along it."""
    i = before[end]
    while i != root:
        most = min(most, flow[through[i], i])
        i = before[through[i]]
    j = end
    while True:
        i = before[j]
        flow[j, i] += most
        if i == root:
            return most
        j = through[i]
        flow[j, i] -= most
