"""Prim's algorithm as machine code, without the lock of the interpreter: threads do not wait for each other.

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
