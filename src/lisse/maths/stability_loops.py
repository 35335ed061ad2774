"""The compiled loops of :mod:`lisse.maths.relative_stability`: one pass over memory where PyTorch needs several.

Needs numba (``lisse[fast]``); without it the same numbers come from PyTorch's own operations.
"""

from __future__ import annotations

import itertools
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lisse.maths.workers import in_turn

#: Differences that are summed in float32, side by side in the processor's lanes, before they go to float64.
CHUNK = 4096
#: Resamples whose counts, so far and so many wanted, stay in the fastest cache.
LANES = 1024
#: Numbers for every thread, at least. PyTorch's own threads still spin where another one is to start, right after a
#: layer was computed: on two cores a second thread made 4e5 numbers take twice as long, and 6e6 as long as alone.
ALONE = 1 << 21


def fits(*given: Tensor) -> bool:
    """Whether the loops can do it: numba, contiguous float32 on the CPU, and something to do."""
    for x in given:
        if x.device.type != "cpu" or x.dtype != torch.float32 or not x.is_contiguous() or not x.numel():
            return False
    return _loops() is not None


def squared_distances(a: Tensor, b: Tensor, rows: Tensor | None) -> Tensor:
    """``|a_i - b_i|²`` (with ``rows``: ``b_{rows_i}``) of ``[n, d]``, float32 ``[n]``."""
    found = np.empty(len(a), np.float32)
    here, there = a.detach().numpy(), b.detach().numpy()
    where = _in_order(len(a)) if rows is None else rows.cpu().numpy().astype(np.int64, copy=False)
    loop = _loops()[0]
    threads = min(torch.get_num_threads(), len(a), a.numel() // ALONE + 1)
    if threads == 1:
        loop(here, there, where, found)
        return torch.from_numpy(found)
    cuts = [len(a) * k // threads for k in range(threads + 1)]
    parts = [(here[i:j], there, where[i:j], found[i:j]) for i, j in itertools.pairwise(cuts)]
    in_turn(lambda part: loop(*part), parts, threads)
    return torch.from_numpy(found)


@lru_cache(maxsize=4)
def _in_order(n: int) -> Any:
    return np.arange(n)


def middle_ranks(by_sample: Tensor, owner: Tensor, drawn: Tensor) -> Tensor:
    """Ranks ``[resamples, 2]`` of the two middle values of every resample.

    ``by_sample`` ``[n, resamples]`` int16: how often a sample was drawn; ``owner`` ``[n k]``: whose value has each
    rank; ``drawn`` ``[resamples]``: how many values a resample has, at least one.
    """
    middles = torch.stack([(drawn + 1) // 2, drawn // 2 + 1]).to(torch.int32).contiguous().numpy()
    found = np.zeros((2, by_sample.shape[1]), np.int32)
    _loops()[1](by_sample.contiguous().numpy(), owner.numpy(), middles, found)
    return torch.from_numpy(found).long().T


@cache
def _loops() -> Any:
    """The compiled loops, or None without numba. The machine code is kept between processes."""
    try:
        import numba  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        return None
    # Sums may be taken in another order, products and sums may fuse; NaN and infinity stay what they are.
    options: dict[str, Any] = {"nogil": True, "cache": True, "fastmath": {"reassoc", "contract", "nsz"}}
    floats = "float32[:, ::1]"
    return (
        numba.njit(f"void({floats}, {floats}, int64[::1], float32[::1])", **options)(_distances),
        numba.njit("void(int16[:, ::1], int64[::1], int32[:, ::1], int32[:, ::1])", **options)(_ranks),
    )


def _distances(a: Any, b: Any, rows: Any, found: Any) -> None:  # pragma: no cover - runs as machine code
    n, d = a.shape
    for i in range(n):
        total: Any = 0.0
        for start in range(0, d, CHUNK):
            x, y = a[i, start : start + CHUNK], b[rows[i], start : start + CHUNK]
            part: Any = np.float32(0)
            for k in range(len(x)):  # from 0 on: an index that might be negative is not vectorised
                step = x[k] - y[k]
                part += step * step
            total += part
        found[i] = total


def _ranks(counts: Any, owner: Any, middles: Any, found: Any) -> None:  # pragma: no cover - runs as machine code
    for begin in range(0, counts.shape[1], LANES):
        first, second = middles[0, begin : begin + LANES], middles[1, begin : begin + LANES]
        upto = np.zeros(len(first), np.int32)
        low, high = np.zeros(len(first), np.int32), np.zeros(len(first), np.int32)
        for place in range(len(owner)):
            row = counts[owner[place], begin : begin + LANES]
            for b in range(len(row)):  # how many values lie before the first up to which enough were drawn
                total = upto[b] + np.int32(row[b])
                upto[b] = total
                low[b] += np.int32(1) if total < first[b] else np.int32(0)
                high[b] += np.int32(1) if total < second[b] else np.int32(0)
        found[0, begin : begin + LANES] = low
        found[1, begin : begin + LANES] = high
