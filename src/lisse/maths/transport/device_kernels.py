"""Ground costs and exact assignments of many pairs of point sets on a CUDA device, as Triton kernels.

A tile of costs stays in registers while the coordinates stream past: n·m·d absolute differences at the speed of the
device's additions, which ``torch.cdist`` reaches a tenth of. An assignment is one warp, or a few, whose lanes hold the
columns: prices, partners and distances never leave the registers, and thousands of problems run at once. Importing
this needs Triton.
"""

from __future__ import annotations

try:
    import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
except ImportError as error:
    raise ImportError(
        f"device_kernels: Triton comes with a CUDA build of torch, not with a lisse[…] extra ({error})."
    ) from error


@triton.jit
def tile_costs(  # type: ignore[no-untyped-def]
    x, y, out, n, m, d, across, SQUARED: tl.constexpr, WIDE: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr
):
    """``out`` ``[b, n, m]``: distances by sums of absolute or squared differences of x ``[b, d, n]``, y ``[b, d, m]``.

    CHUNK divides d: so many differences are summed in float32 (WIDE: float64), and these sums in float64. A program
    makes a tile of one pair, of which there are ``across`` beside each other.
    """
    pair = tl.program_id(1).to(tl.int64)
    rows = (tl.program_id(0) // across) * TILE + tl.arange(0, TILE)
    columns = (tl.program_id(0) % across) * TILE + tl.arange(0, TILE)
    left = x + pair * d * n + rows
    right = y + pair * d * m + columns
    kind = tl.float64 if WIDE else tl.float32
    total = tl.zeros((TILE, TILE), dtype=tl.float64)
    for start in range(0, d, CHUNK):
        part = tl.zeros((TILE, TILE), dtype=kind)
        for k in tl.static_range(CHUNK):
            a = tl.load(left + (start + k) * n, mask=rows < n, other=0.0).to(kind)
            b = tl.load(right + (start + k) * m, mask=columns < m, other=0.0).to(kind)
            apart = a[:, None] - b[None, :]
            part += apart * apart if SQUARED else tl.abs(apart)
        total += part.to(tl.float64)
    if SQUARED:
        total = tl.sqrt(total)
    inside = (rows < n)[:, None] & (columns < m)[None, :]
    cells = out + pair * n * m + rows[:, None] * m + columns[None, :]
    tl.store(cells, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def assignment_costs(costs, sizes, out, side, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """``out[k]`` = the mean cost of the best permutation of the corner ``costs[k, :n, :n]``, ``n = sizes[k]``, float64.

    As in :func:`lisse.maths.transport.loops.assignment_cost`: column reduction, row reduction, shortest paths. NaN
    where the costs are not finite.
    """
    pair = tl.program_id(0).to(tl.int64)
    n = tl.load(sizes + pair)
    base = costs + pair * side * width
    index = tl.arange(0, BLOCK)
    inside = index < n
    far_away = float("inf")
    # Each column's cheapest row; a row keeps the first column that wants it.
    v = tl.full((BLOCK,), far_away, tl.float64)
    cheapest = tl.zeros((BLOCK,), tl.int32)
    for i in range(0, n):
        row = tl.load(base + i * width + index, mask=inside, other=far_away).to(tl.float64)
        cheapest = tl.where(row < v, i, cheapest)
        v = tl.minimum(row, v)
    row_of = tl.full((BLOCK,), -1, tl.int32)
    for i in range(0, n):
        first = tl.min(tl.where((cheapest == i) & inside, index, BLOCK), 0)
        row_of = tl.where(index == first, i, row_of)
    v = tl.where(inside, v, 0.0)
    # Free rows take their cheapest column at the price of the second cheapest, and put out who was there.
    tries = 0
    for turn in range(0, 2 * n):
        i = turn % n
        chasing = tl.max(tl.where(row_of == i, 1, 0), 0) == 0
        while chasing:
            tries += 1
            row = tl.load(base + i * width + index, mask=inside, other=far_away).to(tl.float64) - v
            low = tl.min(row, 0)
            j = tl.min(tl.where(row == low, index, BLOCK), 0)
            dearer = tl.where(index == j, far_away, row)
            second = tl.min(dearer, 0)
            gap = tl.where(second < far_away, second - low, 0.0)
            v = tl.where(index == j, v - gap, v)
            holder = tl.max(tl.where(index == j, row_of, -1), 0)
            other = tl.min(tl.where(dearer == second, index, j), 0)
            j = tl.where((gap <= 0.0) & (holder >= 0), other, j)  # as cheap
            holder = tl.max(tl.where(index == j, row_of, -1), 0)
            row_of = tl.where(index == j, i, row_of)
            # Rounding may make the chase endless: after a while the rows that are put out wait for the exact paths.
            chasing = (holder >= 0) & (gap > 0.0) & (tries < 8 * n)
            i = tl.where(chasing, holder, i)
    # Rows that are still free: the nearest free column along a shortest path, and the prices follow.
    for root in range(0, n):
        if tl.max(tl.where(row_of == root, 1, 0), 0) == 0:
            near = tl.load(base + root * width + index, mask=inside, other=far_away).to(tl.float64) - v
            waiting = inside
            before = tl.full((BLOCK,), 0, tl.int32) + root
            reach = tl.min(near, 0)
            steps = 0
            end = -1
            while (end < 0) & (steps <= n):
                steps += 1
                open_columns = tl.where(waiting, near, far_away)
                reach = tl.min(open_columns, 0)
                rank = index + tl.where(row_of < 0, 0, BLOCK)  # of equally near columns a free one
                pick = tl.min(tl.where(waiting & (open_columns == reach), rank, 2 * BLOCK), 0)
                if pick < BLOCK:
                    end = pick
                else:
                    scanned = index == pick - BLOCK
                    waiting = waiting & (scanned == 0)
                    i = tl.max(tl.where(scanned, row_of, 0), 0)
                    row = tl.load(base + i * width + index, mask=inside, other=far_away).to(tl.float64) - v
                    far = row - tl.sum(tl.where(scanned, row, 0.0), 0) + reach
                    nearer = waiting & (far < near)
                    near = tl.where(nearer, far, near)
                    before = tl.where(nearer, i, before)
            v = tl.where(inside & (waiting == 0), v + near - reach, v)
            steps = 0
            while (end >= 0) & (steps <= n):
                steps += 1
                i = tl.max(tl.where(index == end, before, -1), 0)
                former = tl.max(tl.where(row_of == i, index, -1), 0)
                row_of = tl.where(index == end, i, row_of)
                end = tl.where(i == root, -1, former)
    cells = tl.load(base + row_of * width + index, mask=inside & (row_of >= 0), other=0.0).to(tl.float64)
    complete = tl.min(tl.where(inside, row_of, 0), 0) >= 0
    tl.store(out + pair, tl.where(complete, tl.sum(cells, 0) / n, float("nan")))
