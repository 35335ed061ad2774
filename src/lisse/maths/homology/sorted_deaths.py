"""Distances between diagrams whose bars are all born together, as in H0: one-dimensional, and so fast and exact."""

from __future__ import annotations

import heapq
import math

import numpy as np

_FIRST_BAND = 64
_NEARLY_EQUAL = 1e-5
_CANCELLED = 1e-8
_BLOCK_NUMBERS = 2**15


def deaths_distance(a: np.ndarray, b: np.ndarray, *, p: float, share: float) -> float:
    r"""W_p between two multisets of lengths, matched at :math:`|a - b|` or given up at ``share`` times the length.

    All births being equal, every ground norm gives :math:`|a - b|` between two bars; ``share`` is
    :math:`\kappa = 2^{1/q - 1} \in [1/2, 1]`, the distance of a bar of length 1 to the diagonal.
    """
    a, b = np.sort(a), np.sort(b)
    if math.isinf(p):
        return _bottleneck(a, b, share)
    if p == 1.0:
        distance = _first_order(a, b, share)
        if distance > _NEARLY_EQUAL * float(a.sum() + b.sum()):
            return distance
    return _alignment(a, b, p, share) ** (1.0 / p)


def _first_order(a: np.ndarray, b: np.ndarray, share: float) -> float:
    r"""W_1 by its dual, in O(N log N).

    For p = 1 the cost is that of a metric space, the half line with :math:`\min(|x - y|, \kappa (x + y))` and the
    diagonal as its origin, so that

    .. math:: W_1 = \max_u \sum_i u(a_i) - \sum_j u(b_j), \quad |u(x) - u(y)| \le |x - y|, \; |u(x)| \le \kappa x.

    Going up the line, let G(v) be the best sum so far with u(x) = v: concave and piecewise linear on
    :math:`[-\kappa x, \kappa x]`. A step of size s moves its breakpoints left of the maximum by -s and those right of
    it by +s, and what leaves the domain never comes back, since :math:`\kappa \le 1`. A bar of ``a`` adds v: the
    maximum moves to the next breakpoint on the right (or the end of the domain), and grows by its place; a bar of
    ``b`` likewise on the left. Two heaps hold the breakpoints.
    """
    lengths = np.concatenate([a, b])
    signs = np.concatenate([np.ones(len(a), bool), np.zeros(len(b), bool)])
    order = np.argsort(lengths, kind="stable")
    left: list[float] = []  # minus (place + x)
    right: list[float] = []  # place - x
    gains = []
    for x, up in zip(lengths[order].tolist(), signs[order].tolist(), strict=True):
        end = share * x
        if up:
            v = min(heapq.heappop(right) + x, end) if right else end
            gains.append(v)
            heapq.heappush(left, -(v + x))
        else:
            v = max(-heapq.heappop(left) - x, -end) if left else -end
            gains.append(-v)
            heapq.heappush(right, v - x)
    return max(0.0, math.fsum(gains))


def _bottleneck(a: np.ndarray, b: np.ndarray, share: float) -> float:
    r"""W_∞ in closed form: :math:`\min_k \max(\max_{r \le k} |a_r - b_r|, \kappa \max(a_{k+1}, b_{k+1}))`.

    Both sorted from the longest down. At a value t the bars with :math:`\kappa x > t` must be matched: the first i of
    a and the first j of b. In an uncrossed matching that covers them the partner of :math:`a_r`, r ≤ i, is
    :math:`b_r` or (r > j) some :math:`b_s \le b_r < a_r`, and then :math:`b_r` is nearer; so the first
    max(i, j) of both may be matched by rank, and the others given up.
    """
    a, b = a[::-1], b[::-1]
    k = min(len(a), len(b))
    matched = np.concatenate([[0.0], np.maximum.accumulate(np.abs(a[:k] - b[:k]))])
    following = np.zeros(k + 1)
    following[: len(a[: k + 1])] = a[: k + 1]
    following[: len(b[: k + 1])] = np.maximum(following[: len(b[: k + 1])], b[: k + 1])
    return float(np.maximum(matched, share * following).min())


def _alignment(a: np.ndarray, b: np.ndarray, p: float, share: float) -> float:
    r""":math:`W_p^p` by the dynamic programme over two sorted lists, O(N) memory.

    :math:`|a - b|^p` is convex for p ≥ 1, so for any choice of the bars that are matched, matching them in order is
    optimal, and the optimum is the cheapest path f(n, m) of

    .. math:: f(i, j) = \min\{f(i-1, j) + \kappa^p a_i^p,\; f(i, j-1) + \kappa^p b_j^p,\;
       f(i-1, j-1) + |a_i - b_j|^p\}.

    It is run row by row, and only in a band of i - j. Bars of length 0
    are added to the shorter list (to give one up is free, and to match it is no cheaper than the diagonal), so n = m,
    and let :math:`\varphi_i + \psi_j \le |a_i - b_j|^p` be potentials with equality at i = j: the matching of all bars
    in order is an optimal transport of one list onto the other, and has them. A path that gives up k bars of each list
    then costs at least

    .. math:: \sum_i |a_i - b_i|^p + \sum_{\text{given up}} (\kappa^p a_i^p - \varphi_i)
       + \sum_{\text{given up}} (\kappa^p b_j^p - \psi_j),

    at least the sum over the k smallest terms of both kinds, which is convex in k. Where that is more than a value
    found, no better path gives up as many, and i - j is never more than what is given up. Often k = 0 is all that is
    left, and nothing is to be run.
    """
    pad = np.zeros(abs(len(a) - len(b)))
    a, b = (np.concatenate([pad, x]) if len(x) < n else x for n in [max(len(a), len(b))] for x in (a, b))
    skip_a, skip_b = (share * a) ** p, (share * b) ** p
    bound = _bound(a, b, skip_a, skip_b, p)
    value = float(bound[0])
    total = float(skip_a.sum() + skip_b.sum())
    reach = _reach(p, share)
    band = 0
    while True:
        allowed = int(np.flatnonzero(bound <= value + 1e-13 * total).max(initial=0)) if value > 0 else 0
        if allowed <= band:
            return value
        # A better value narrows the band: grow towards what is allowed rather than jump.
        band = min(allowed, max(_FIRST_BAND, 8 * band))
        cost = _by_rows(a, b, skip_a, skip_b, p, band, reach)
        if cost < _CANCELLED * total:
            cost = _banded(a, b, skip_a, skip_b, p, -band, band)
        value = min(value, cost)


def _bound(a: np.ndarray, b: np.ndarray, skip_a: np.ndarray, skip_b: np.ndarray, p: float) -> np.ndarray:
    """At place k: no path that gives up k bars of each of two lists of one length costs less; exact at 0."""
    # Steps of psi between c(a_{i+1}, b_{i+1}) - c(a_{i+1}, b_i) and c(a_i, b_{i+1}) - c(a_i, b_i) keep the potentials
    # feasible for neighbours, and so, the cost being that of a convex function, for all pairs.
    along = np.abs(a - b) ** p
    low = along[1:] - np.abs(a[1:] - b[:-1]) ** p
    high = np.abs(a[:-1] - b[1:]) ** p - along[:-1]
    psi = np.concatenate([[0.0], np.cumsum((low + high) / 2)])
    given_a, given_b = np.sort(skip_a - (along - psi)), np.sort(skip_b - psi)
    return float(along.sum()) + np.concatenate([[0.0], np.cumsum(given_a + given_b)])


def _by_rows(
    a: np.ndarray, b: np.ndarray, skip_a: np.ndarray, skip_b: np.ndarray, p: float, band: int, reach: float
) -> float:
    r"""The same as what matching saves, h(i, j) = max{h(i-1, j), h(i, j-1), h(i-1, j-1) + s_ij}: a running maximum.

    :math:`s_{ij} = \kappa^p (a_i^p + b_j^p) - |a_i - b_j|^p` is positive only where neither is more than ``reach``
    times the other, so row i has to be looked at only there, and beyond its end stays at its last value. Rows are kept
    small by taking their last value out after every block, and the parts are summed exactly, so that the difference
    from what all bars alone would cost keeps its digits.
    """
    n = len(a)
    rows = np.arange(1, n + 1)
    firsts = np.maximum(np.searchsorted(b, a / reach, "left") + 1, np.maximum(1, rows - band)).tolist()
    ends = np.full(n, np.inf) if math.isinf(reach) else a * reach
    lasts = np.minimum(np.searchsorted(b, ends, "right"), np.minimum(n, rows + band)).tolist()
    saved = np.zeros(n + 1)
    filled = 0  # saved is known up to here, and constant beyond
    parts: list[float] = []
    start = 0
    while start < n:
        begin = firsts[start]
        stop = start + 1
        # Both ends only grow, so the last row of a block ends it.
        while stop < n and stop - start < 64 and (lasts[stop] - begin) * (stop - start) < _BLOCK_NUMBERS:
            stop += 1
        right = max(begin, lasts[stop - 1])
        block = b[begin - 1 : right] - a[start:stop, None]
        _power(block, p)
        np.subtract(skip_b[begin - 1 : right], block, out=block)
        block += skip_a[start:stop, None]
        for i in range(start, stop):
            first, last = firsts[i], lasts[i]
            if first > last:
                continue
            if last > filled:
                saved[filled + 1 : last + 1] = saved[filled]
                filled = last
            row = block[i - start, first - begin : last - begin + 1]
            row += saved[first - 1 : last]
            best = saved[first : last + 1]
            np.maximum(row, best, out=row)
            np.maximum.accumulate(row, out=best)
            if last < filled:
                np.maximum(saved[last + 1 : filled + 1], best[-1], out=saved[last + 1 : filled + 1])
        middle = float(saved[filled])
        parts.append(-middle)
        saved[max(0, begin - 1) : filled + 1] -= middle
        start = stop
    return math.fsum([*skip_a.tolist(), *skip_b.tolist(), *parts])


def _reach(p: float, share: float) -> float:
    """The greatest ratio of two lengths that are worth matching: (r - 1)^p = share^p (r^p + 1), rounded up."""
    if share >= 1.0:
        return math.inf
    low, high = 1.0, 2.0

    def worth(ratio: float) -> bool:
        # Divided by ratio^p, so that no power overflows.
        return p * math.log1p(-1.0 / ratio) < p * math.log(share) + math.log1p(ratio**-p)

    while worth(high):
        if high > 1e12:
            return math.inf
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if worth(middle) else (low, middle)
    return high * (1 + 1e-9)


def _banded(
    a: np.ndarray, b: np.ndarray, skip_a: np.ndarray, skip_b: np.ndarray, p: float, low: int, high: int
) -> float:
    """f(n, m) over paths with low ≤ i - j ≤ high, along anti-diagonals s = i + j, as sums of positive terms.

    For values so small that savings have no digits left. Kept by i; b is reversed, so that j = s - i runs along it.
    """
    n, m = len(a), len(b)
    back_b, back_skip = np.ascontiguousarray(b[::-1]), np.ascontiguousarray(skip_b[::-1])
    previous, earlier, new = (np.full(n + 2, np.inf) for _ in range(3))  # f at s - 1, at s - 2, at s; place i + 1
    spare = np.empty(n + 2)
    previous[1] = 0.0
    for s in range(1, n + m + 1):
        first = max(0, s - m, -((-s - low) // 2))
        last = min(n, s, (s + high) // 2)
        # Neighbours just outside this anti-diagonal's band must read as unreachable when the next ones look there.
        span = slice(first + 1, last + 2)
        before = slice(first, last + 1)
        width = last - first + 1
        out, work = new[span], spare[:width]
        # Skip b_j, j = s - i: place m - j of the reversed list; j = 0 has none to skip.
        offset = m - s + first
        usable = min(width, m - offset)
        out[usable:] = np.inf
        np.add(previous[first + 1 : first + 1 + usable], back_skip[offset : offset + usable], out=out[:usable])
        # Skip a_i and match (a_i, b_j) need i ≥ 1.
        k = 1 if first == 0 else 0
        shifted = slice(before.start + k, before.stop)
        tail = slice(first + k - 1, last)
        np.add(previous[shifted], skip_a[tail], out=work[k:])
        np.minimum(out[k:], work[k:], out=out[k:])
        if usable > k:
            match = work[k:usable]
            np.subtract(a[first + k - 1 : first + usable - 1], back_b[offset + k : offset + usable], out=match)
            _power(match, p)
            np.add(match, earlier[first + k : first + usable], out=match)
            np.minimum(out[k:usable], match, out=out[k:usable])
        new[first] = np.inf
        if last + 2 < n + 2:
            new[last + 2] = np.inf
        previous, earlier, new = new, previous, earlier
    return float(previous[n + 1])


def _power(values: np.ndarray, p: float) -> None:
    """|values|^p, in place."""
    if p == 2.0:
        np.multiply(values, values, out=values)
        return
    np.abs(values, out=values)
    if p != 1.0:
        np.power(values, p, out=values)
