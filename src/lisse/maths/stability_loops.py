"""The loops of :mod:`lisse.maths.relative_stability` as machine code: one pass over memory where PyTorch needs several.

Importing this needs numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np

try:
    import numba  # type: ignore[import-not-found, import-untyped, unused-ignore]
except ImportError as error:
    raise ImportError(f'stability_loops: the loops need numba ({error}). pip install "lisse[fast]"') from error

#: Differences that are summed in float32, side by side in the processor's lanes, before they go to float64.
_CHUNK = 4096
#: Resamples whose counts, so far and so many wanted, stay in the fastest cache.
_LANES = 1024
# Sums may be taken in another order, products and sums may fuse; NaN and infinity stay what they are.
_compiled: Any = numba.njit(nogil=True, cache=True, fastmath={"reassoc", "contract", "nsz"})


@_compiled
def sum_squares(a: Any, b: Any, rows: Any, squares: Any) -> None:  # pragma: no cover - runs as machine code
    """``squares[i]`` = |a_i - b_j|², j = ``rows[i]``, of float32 ``[n, d]``."""
    n, d = a.shape
    for i in range(n):
        total: Any = 0.0
        for start in range(0, d, _CHUNK):
            x, y = a[i, start : start + _CHUNK], b[rows[i], start : start + _CHUNK]
            part: Any = np.float32(0)
            for k in range(len(x)):  # from 0 on: an index that might be negative is not vectorised
                step = x[k] - y[k]
                part += step * step
            total += part
        squares[i] = total


@_compiled
def rank_middles(counts: Any, owner: Any, middles: Any, ranks: Any) -> None:  # pragma: no cover - machine code
    """``ranks`` ``[2, resamples]`` of the two middle values of every resample.

    ``counts`` ``[n, resamples]`` int16: how often a sample was drawn; ``owner`` ``[n k]``: whose value has each rank;
    ``middles`` ``[2, resamples]``: how many of the drawn values there are up to either middle one.
    """
    for begin in range(0, counts.shape[1], _LANES):
        first, second = middles[0, begin : begin + _LANES], middles[1, begin : begin + _LANES]
        upto = np.zeros(len(first), np.int32)
        low, high = np.zeros(len(first), np.int32), np.zeros(len(first), np.int32)
        for rank in range(len(owner)):
            row = counts[owner[rank], begin : begin + _LANES]
            for b in range(len(row)):  # how many values lie before the first up to which enough were drawn
                total = upto[b] + np.int32(row[b])
                upto[b] = total
                low[b] += np.int32(1) if total < first[b] else np.int32(0)
                high[b] += np.int32(1) if total < second[b] else np.int32(0)
        ranks[0, begin : begin + _LANES] = low
        ranks[1, begin : begin + _LANES] = high
