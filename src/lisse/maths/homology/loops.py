"""Prim's algorithm and matchings of bars as machine code, without the lock of the interpreter: threads do not wait.

Importing this needs numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np

try:
    import numba  # type: ignore[import-not-found, import-untyped, unused-ignore]
except ImportError as error:
    raise ImportError(f'homology.loops: the loops need numba ({error}). pip install "lisse[fast]"') from error

_compiled: Any = numba.njit(nogil=True, cache=True)


@_compiled
def prim(matrix: Any, order: Any, parent: Any) -> None:  # pragma: no cover - runs as machine code
    """Vertices in the ``order`` ``[n - 1]`` in which they join vertex 0, and which they join, the first of several."""
    n = len(matrix)
    nearest, joins = matrix[0].copy(), np.zeros(n, np.int64)
    inside = np.zeros(n, np.bool_)
    inside[0] = True
    for step in range(n - 1):
        vertex, least = -1, np.inf
        for other in range(n):
            if not inside[other] and (vertex < 0 or nearest[other] < least):
                vertex, least = other, nearest[other]
        inside[vertex] = True
        order[step], parent[step] = vertex, joins[vertex]
        row = matrix[vertex]
        for other in range(n):
            closer = row[other] < nearest[other] or (row[other] == nearest[other] and vertex < joins[other])
            if closer and not inside[other]:
                nearest[other], joins[other] = row[other], vertex


@_compiled
def savings(cost: Any, alone_a: Any, alone_b: Any) -> tuple[Any, Any, Any]:  # pragma: no cover - runs as machine code
    """Pairs that cost less than both alone, row by row: where each row begins, their columns, what is left to pay.

    That is ``cost[i, j] - alone_b[j]``: the partner's way to the diagonal is saved.
    """
    n, m = cost.shape
    begins = np.zeros(n + 1, np.int64)
    for i in range(n):
        count = 0
        for j in range(m):
            count += cost[i, j] < alone_a[i] + alone_b[j]
        begins[i + 1] = begins[i] + count
    columns, weights = np.empty(begins[n], np.int64), np.empty(begins[n])
    for i in range(n):
        edge = begins[i]
        for j in range(m):
            if cost[i, j] < alone_a[i] + alone_b[j]:
                columns[edge], weights[edge] = j, cost[i, j] - alone_b[j]
                edge += 1
    return begins, columns, weights


@_compiled
def _relax(
    row: int, offset: float, edges: Any, columns: Any, weights: Any, price: Any, row_of: Any, near: Any, before: Any,
    by: Any, state: Any, reached: Any, reach: float, end: int, count: int,
) -> Any:  # fmt: skip  # pragma: no cover - runs as machine code
    """Columns that are nearer by way of a row; the nearest free one, how far it is, and how many taken are reached."""
    for edge in range(edges[0], edges[1]):
        j = columns[edge]
        far = weights[edge] - price[j] + offset
        if far >= reach or state[j] == 2 or (state[j] == 1 and far >= near[j]):
            continue
        near[j], before[j], by[j] = far, row, edge
        if row_of[j] < 0:
            reach, end = far, j
        elif state[j] == 0:
            state[j], reached[count] = 1, j
            count += 1
    return reach, end, count


@_compiled
def _nearest(columns: Any, state: Any, near: Any, reach: float) -> int:  # pragma: no cover - runs as machine code
    """Of columns that are reached and not gone through, the nearest within ``reach``; -1 where there is none."""
    step = -1
    for j in columns:
        if state[j] == 1 and near[j] < reach:
            step, reach = j, near[j]
    return step


@_compiled
def _carry_back(
    end: int, root: int, weights: Any, column_of: Any, row_of: Any, paid: Any, before: Any, by: Any
) -> None:  # pragma: no cover - runs as machine code
    """Every row on the path to ``end`` takes the column that the next one gives up; the path begins at ``root``."""
    row = -1
    while row != root and end >= 0:
        row = before[end]
        row_of[end], paid[end] = row, weights[by[end]]
        column_of[row], end = end, column_of[row]


@_compiled
def matched_columns(
    begins: Any, columns: Any, weights: Any, alone: Any, m: int
) -> Any:  # pragma: no cover - runs as machine code
    """The column ``[n]`` that each row has in a cheapest matching, or -1 where it pays what it costs ``alone``.

    Shortest augmenting paths (Jonker and Volgenant): each row in turn takes the nearest end that it reaches, a free
    column or the diagonal of a row on the way, which then gives its column up.
    """
    n = len(alone)
    column_of, row_of = np.full(n, -1, np.int64), np.full(m, -1, np.int64)
    price, paid = np.zeros(m), np.zeros(m)  # of columns, and the weight of the edge that holds each
    near, before, by = np.empty(m), np.empty(m, np.int64), np.empty(m, np.int64)
    state = np.zeros(m, np.int8)  # 0: not reached, 1: reached, 2: gone through
    reached = np.empty(m, np.int64)  # columns that are taken and nearer than the nearest end
    for root in range(n):
        count, row, offset = 0, root, 0.0
        reach, last, end = alone[root], root, -1  # the nearest end: a free column, or else the diagonal of a row
        while True:
            edges = begins[row], begins[row + 1]
            reach, end, count = _relax(
                row, offset, edges, columns, weights, price, row_of, near, before, by, state, reached, reach, end, count
            )
            step = _nearest(reached[:count], state, near, reach)
            if step < 0:
                break
            state[step] = 2
            row = row_of[step]
            offset = near[step] - (paid[step] - price[step])
            if offset + alone[row] < reach:
                reach, last, end = offset + alone[row], row, -1
        for j in reached[:count]:
            if state[j] == 2:
                price[j] += near[j] - reach
            state[j] = 0
        if end < 0 and last != root:  # it goes to the diagonal and leaves its column
            end = column_of[last]
            column_of[last] = -1
        if end >= 0:
            _carry_back(end, root, weights, column_of, row_of, paid, before, by)
    return column_of
