"""The matrix of ground distances between two point sets, at the speed of the machine.

Nearly all the time of a transport problem between two sentences is here: n·m·d absolute differences against a solver
that takes microseconds. SciPy's loop does two of them a nanosecond. The kernels below keep a tile of sums in registers
and let LLVM use the widest vectors there are, without the interpreter's lock, so that threads work side by side. They
need numba; without it SciPy gives the same numbers, slower.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

Kernel = Callable[[np.ndarray, np.ndarray, np.ndarray], None]
# x, where each set of x begins and the last ends, the same of y, ground, p, what is found
BatchSolver = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float, float, np.ndarray], None]
# costs [b, n, m], the sizes of each pair [b, 2], what is found
CostSolver = Callable[[np.ndarray, np.ndarray, np.ndarray], None]
_METRICS = {1.0: "cityblock", 2.0: "euclidean", float("inf"): "chebyshev"}


def ground_distances(x: np.ndarray, y: np.ndarray, ground: float) -> np.ndarray:
    """Distances ``[n, m]`` in the norm ``ground`` (1, 2, inf) between float64 points ``[n, d]`` and ``[m, d]``.

    Exact zeros between equal points, and no cancellation: differences first, whatever the dimension.
    """
    kernel = kernels().get(ground)
    if kernel is None:
        from scipy.spatial.distance import cdist

        return cdist(x, y, _METRICS[ground])
    out = np.empty((len(x), len(y)))
    kernel(np.ascontiguousarray(x), np.ascontiguousarray(y), out)
    return out


@cache
def kernels() -> dict[float, Kernel]:
    """The compiled kernels by norm; empty without numba. The machine code is kept between processes."""
    try:
        import numba  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        return {}
    # "reassoc" lets sums run in vector lanes; no other liberty, so that NaN and infinity stay what they are.
    compiled: Any = numba.njit(
        "void(float64[:, ::1], float64[:, ::1], float64[:, ::1])", nogil=True, cache=True, fastmath={"reassoc"}
    )
    return {1.0: compiled(_manhattan), 2.0: compiled(_euclidean)}


@cache
def batch_solver() -> BatchSolver | None:
    """``compiled_batch.batch_powers``; ``None`` without numba."""
    try:
        from lisse.maths.transport.compiled_batch import batch_powers
    except ImportError:
        return None
    found: BatchSolver = batch_powers
    return found


@cache
def cost_solver() -> CostSolver | None:
    """``compiled_batch.cost_powers``; ``None`` without numba."""
    try:
        from lisse.maths.transport.compiled_batch import cost_powers
    except ImportError:
        return None
    found: CostSolver = cost_powers
    return found


def _manhattan(x: Any, y: Any, out: Any) -> None:  # pragma: no cover - runs as machine code
    n, m, d = x.shape[0], y.shape[0], x.shape[1]
    for i in range(0, n - n % 2, 2):
        a, b = x[i], x[i + 1]
        for j in range(0, m - m % 4, 4):
            u, v, w, z = y[j], y[j + 1], y[j + 2], y[j + 3]
            s0 = s1 = s2 = s3 = t0 = t1 = t2 = t3 = 0.0
            for k in range(d):
                p, q = a[k], b[k]
                s0 += abs(p - u[k])
                s1 += abs(p - v[k])
                s2 += abs(p - w[k])
                s3 += abs(p - z[k])
                t0 += abs(q - u[k])
                t1 += abs(q - v[k])
                t2 += abs(q - w[k])
                t3 += abs(q - z[k])
            out[i, j], out[i, j + 1], out[i, j + 2], out[i, j + 3] = s0, s1, s2, s3
            out[i + 1, j], out[i + 1, j + 1], out[i + 1, j + 2], out[i + 1, j + 3] = t0, t1, t2, t3
        for j in range(m - m % 4, m):
            for r in range(2):
                s = 0.0
                for k in range(d):
                    s += abs(x[i + r, k] - y[j, k])
                out[i + r, j] = s
    if n % 2:
        for j in range(m):
            s = 0.0
            for k in range(d):
                s += abs(x[n - 1, k] - y[j, k])
            out[n - 1, j] = s


def _euclidean(x: Any, y: Any, out: Any) -> None:  # pragma: no cover - runs as machine code
    n, m, d = x.shape[0], y.shape[0], x.shape[1]
    for i in range(0, n - n % 2, 2):
        a, b = x[i], x[i + 1]
        for j in range(0, m - m % 4, 4):
            u, v, w, z = y[j], y[j + 1], y[j + 2], y[j + 3]
            s0 = s1 = s2 = s3 = t0 = t1 = t2 = t3 = 0.0
            for k in range(d):
                p, q = a[k], b[k]
                s0 += (p - u[k]) ** 2
                s1 += (p - v[k]) ** 2
                s2 += (p - w[k]) ** 2
                s3 += (p - z[k]) ** 2
                t0 += (q - u[k]) ** 2
                t1 += (q - v[k]) ** 2
                t2 += (q - w[k]) ** 2
                t3 += (q - z[k]) ** 2
            out[i, j], out[i, j + 1], out[i, j + 2], out[i, j + 3] = s0**0.5, s1**0.5, s2**0.5, s3**0.5
            out[i + 1, j], out[i + 1, j + 1], out[i + 1, j + 2], out[i + 1, j + 3] = t0**0.5, t1**0.5, t2**0.5, t3**0.5
        for j in range(m - m % 4, m):
            for r in range(2):
                s = 0.0
                for k in range(d):
                    s += (x[i + r, k] - y[j, k]) ** 2
                out[i + r, j] = s**0.5
    if n % 2:
        for j in range(m):
            s = 0.0
            for k in range(d):
                s += (x[n - 1, k] - y[j, k]) ** 2
            out[n - 1, j] = s**0.5
