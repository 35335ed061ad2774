"""W_p^p of many pairs of empirical measures as machine code: costs and exact solvers in one loop.

Two solvers by shortest augmenting paths. Equal sizes: assignment in the manner of Jonker and Volgenant [jonker1987]
(column reduction, row transfer, then a shortest path for each row that is still free). Unequal sizes: the masses
1/n and 1/m are the whole numbers m/g and n/g, g = gcd(n, m), so the same paths carry more than one unit and nothing is
ever rounded but the costs. Importing this needs numba.
"""

from __future__ import annotations

from math import gcd
from typing import Any

import numpy as np

try:
    import numba  # type: ignore[import-not-found, import-untyped, unused-ignore]
except ImportError as error:
    raise ImportError(f'compiled_batch: the loops need numba ({error}). pip install "lisse[fast]"') from error

from lisse.maths.transport.compiled import _euclidean, _manhattan

# "reassoc" lets sums run in vector lanes; no other liberty, so that NaN and infinity stay what they are.
_compiled: Any = numba.njit(nogil=True, cache=True)
_summing: Any = numba.njit(nogil=True, cache=True, fastmath={"reassoc"})
_manhattan_into = _summing(_manhattan)
_euclidean_into = _summing(_euclidean)


@_compiled
def batch_powers(
    x: Any, x_ends: Any, y: Any, y_ends: Any, ground: float, p: float, out: Any
) -> None:  # pragma: no cover - runs as machine code
    """``out[k]`` = W_p^p of the points ``x[x_ends[k] : x_ends[k + 1]]`` and those of y, in the norm ground = 1 or 2."""
    for k in range(len(out)):
        left, right = x[x_ends[k] : x_ends[k + 1]], y[y_ends[k] : y_ends[k + 1]]
        cost = np.empty((len(left), len(right)))
        if ground == 1:
            _manhattan_into(left, right, cost)
        else:
            _euclidean_into(left, right, cost)
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
def assignment_cost(cost: Any) -> float:  # pragma: no cover - runs as machine code
    """The mean cost of the best permutation, ``cost`` ``[n, n]``."""
    n = len(cost)
    row_of, column_of = np.full(n, -1), np.full(n, -1)
    v = np.empty(n)
    for j in range(n):  # each column's cheapest row; a row keeps the first column that wants it
        best = 0
        for i in range(1, n):
            if cost[i, j] < cost[best, j]:
                best = i
        v[j] = cost[best, j]
        if column_of[best] < 0:
            column_of[best], row_of[j] = j, best
    free = np.empty(n, np.int64)
    count = 0
    for i in range(n):
        if column_of[i] < 0:
            free[count] = i
            count += 1
    for _ in range(2):
        count = _row_reduction(cost, v, row_of, column_of, free, count)
    near, done, before = np.empty(n), np.empty(n, np.bool_), np.empty(n, np.int64)
    order = np.empty(n, np.int64)
    for place in range(count):
        root = free[place]
        for j in range(n):
            near[j], done[j], before[j] = cost[root, j] - v[j], False, root
        scanned, end, reach = 0, -1, 0.0
        while end < 0:
            j = -1
            reach = np.inf
            for k in range(n):
                if not done[k] and (near[k] < reach or (near[k] == reach and row_of[k] < 0)):
                    reach, j = near[k], k
            done[j] = True
            if row_of[j] < 0:
                end = j
                break
            order[scanned] = j
            scanned += 1
            i = row_of[j]
            offset = cost[i, j] - v[j] - reach
            for k in range(n):
                if not done[k]:
                    far = cost[i, k] - v[k] - offset
                    if far < near[k]:
                        near[k], before[k] = far, i
        for k in range(scanned):
            v[order[k]] += near[order[k]] - reach
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
    kept, place, tries = 0, 0, 0
    while place < count:
        i = free[place]
        place += 1
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
                place -= 1
                free[place] = holder
            else:
                free[kept] = holder
                kept += 1
    return kept


@_compiled
def transport_cost(cost: Any) -> float:  # pragma: no cover - runs as machine code
    """The least mean cost of carrying equal masses on n rows to equal masses on m columns, ``cost`` ``[n, m]``."""
    n, m = cost.shape
    units = gcd(n, m)
    supply, demand = np.full(n, m // units), np.full(m, n // units)
    u, v = np.zeros(n), np.empty(m)
    flow = np.zeros((m, n), np.int64)  # by column: who ships there is what a path asks
    for j in range(m):
        best = 0
        for i in range(1, n):
            if cost[i, j] < cost[best, j]:
                best = i
        v[j] = cost[best, j]
        sent = min(supply[best], demand[j])
        flow[j, best] += sent
        supply[best] -= sent
        demand[j] -= sent
    near, done, before = np.empty(m), np.empty(m, np.bool_), np.empty(m, np.int64)
    seen, through = np.empty(n, np.bool_), np.empty(n, np.int64)
    for root in range(n):
        while supply[root] > 0:
            for i in range(n):
                seen[i] = False
            seen[root] = True
            for j in range(m):
                near[j], done[j], before[j] = cost[root, j] - u[root] - v[j], False, root
            end, reach = -1, 0.0
            while end < 0:
                j = -1
                reach = np.inf
                for k in range(m):
                    if not done[k] and (near[k] < reach or (near[k] == reach and demand[k] > 0)):
                        reach, j = near[k], k
                if demand[j] > 0:
                    end = j
                    break
                done[j] = True
                for i in range(n):
                    if flow[j, i] > 0 and not seen[i]:
                        seen[i], through[i] = True, j
                        offset = reach - u[i]
                        for k in range(m):
                            if not done[k]:
                                far = cost[i, k] - v[k] + offset
                                if far < near[k]:
                                    near[k], before[k] = far, i
            for i in range(n):
                if seen[i]:
                    u[i] += reach if i == root else reach - near[through[i]]
            for k in range(m):
                if done[k]:
                    v[k] += near[k] - reach
            sent, i = min(supply[root], demand[end]), before[end]
            while i != root:
                sent = min(sent, flow[through[i], i])
                i = before[through[i]]
            j = end
            while True:
                i = before[j]
                flow[j, i] += sent
                if i == root:
                    break
                j = through[i]
                flow[j, i] -= sent
            supply[root] -= sent
            demand[end] -= sent
    total = 0.0
    for j in range(m):
        for i in range(n):
            if flow[j, i] > 0:
                total += flow[j, i] * cost[i, j]
    return total / (n * (m // units))
