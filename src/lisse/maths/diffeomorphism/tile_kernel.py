"""The Triton kernel of :mod:`lisse.maths.diffeomorphism.fused`. Importing this needs Triton."""

try:
    import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
except ImportError as error:
    raise ImportError(
        f"tile_kernel: Triton comes with a CUDA build of torch, not with a lisse[…] extra ({error})."
    ) from error


@triton.jit
def warp(  # type: ignore[no-untyped-def]
    images,
    result,
    along,
    down,
    h,
    w,
    channels,
    first,
    each,
    CHANNELS: tl.constexpr,
    SIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """COLUMNS pixels of one row of one image: channels ``first`` … ``first + CHANNELS - 1``."""
    wide = tl.cdiv(w, COLUMNS)
    tile = tl.program_id(0) % (wide * h)
    sample = (tl.program_id(0) // (wide * h)).to(tl.int64)
    row = (tile // wide) + tl.arange(0, 1)[:, None]
    columns = ((tile % wide) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    u = tl.zeros((1, COLUMNS), tl.float32)
    v = tl.zeros((1, COLUMNS), tl.float32)
    # A sine for every lane, though all are the same: a scalar load would be waited for, one after the other.
    sines = row * SIDE + tl.zeros((1, COLUMNS), tl.int32)
    near = tl.minimum(columns, w - 1) + tl.zeros((1, COLUMNS), tl.int32)
    for j in tl.static_range(SIDE):
        sine = tl.load(down + sines + j)
        u += sine * tl.load(along + sample * each + j * w + near)
        v += sine * tl.load(along + sample * each + (SIDE + j) * w + near)
    x = tl.minimum(tl.maximum(columns - u, 0.0), w - 1.0)
    y = tl.minimum(tl.maximum(row - v, 0.0), h - 1.0)
    left = tl.floor(x)
    top = tl.floor(y)
    x -= left
    y -= top
    x0 = left.to(tl.int32)
    y0 = top.to(tl.int32)
    # Clamped positions are inside for every lane, also beyond the picture's edge: loads need no mask, only the store.
    start = y0 * w + x0
    right = tl.where(x0 < w - 1, 1, 0)
    below = start + tl.where(y0 < h - 1, w, 0)
    for channel in tl.static_range(CHANNELS):  # unrolled: the loads of all channels are in flight together
        plane = (sample * channels + first + channel) * h * w
        source = images + plane
        a = tl.load(source + start).to(tl.float32)
        b = tl.load(source + start + right).to(tl.float32)
        c = tl.load(source + below).to(tl.float32)
        d = tl.load(source + below + right).to(tl.float32)
        upper = a + x * (b - a)
        lower = c + x * (d - c)
        value = upper + y * (lower - upper)
        tl.store(result + plane + row * w + columns, value.to(result.dtype.element_ty), mask=columns < w)


@triton.jit
def warp_rows(  # type: ignore[no-untyped-def]
    images,
    result,
    along,
    down,
    h,
    w,
    channels,
    first,
    each,
    CHANNELS: tl.constexpr,
    SIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """COLUMNS columns, one on each lane, of ROWS = 4 or 8 rows: a column's numbers are read once for all of its rows.

    ``down`` is ``[SIDE, rows]`` with rows a multiple of 8: four sines are one load. Rows have names, because a tile
    of two axes would travel through shared memory between loads and stores.
    """
    wide = tl.cdiv(w, COLUMNS)
    tiles = wide * tl.cdiv(h, ROWS)
    tile = tl.program_id(0) % tiles
    sample = (tl.program_id(0) // tiles).to(tl.int64)
    row = (tile // wide) * ROWS
    columns = (tile % wide) * COLUMNS + tl.arange(0, COLUMNS)
    near = sample * each + tl.minimum(columns, w - 1)
    rows = tl.cdiv(h, 8) * 8
    sines = row + tl.zeros((COLUMNS,), tl.int32)
    u0 = tl.zeros((COLUMNS,), tl.float32)
    u1, u2, u3, u4, u5, u6, u7 = u0, u0, u0, u0, u0, u0, u0
    v0, v1, v2, v3, v4, v5, v6, v7 = u0, u0, u0, u0, u0, u0, u0, u0
    for j in tl.static_range(SIDE):
        a = tl.load(along + near + j * w)
        b = tl.load(along + near + (SIDE + j) * w)
        s, t, p, q = _four(down + sines + j * rows)
        u0 += s * a
        v0 += s * b
        u1 += t * a
        v1 += t * b
        u2 += p * a
        v2 += p * b
        u3 += q * a
        v3 += q * b
        if ROWS == 8:
            s, t, p, q = _four(down + sines + 4 + j * rows)
            u4 += s * a
            v4 += s * b
            u5 += t * a
            v5 += t * b
            u6 += p * a
            v6 += p * b
            u7 += q * a
            v7 += q * b
    _row(images, result, u0, v0, sample, row, columns, h, w, channels, first, CHANNELS)
    _row(images, result, u1, v1, sample, row + 1, columns, h, w, channels, first, CHANNELS)
    _row(images, result, u2, v2, sample, row + 2, columns, h, w, channels, first, CHANNELS)
    _row(images, result, u3, v3, sample, row + 3, columns, h, w, channels, first, CHANNELS)
    if ROWS == 8:
        _row(images, result, u4, v4, sample, row + 4, columns, h, w, channels, first, CHANNELS)
        _row(images, result, u5, v5, sample, row + 5, columns, h, w, channels, first, CHANNELS)
        _row(images, result, u6, v6, sample, row + 6, columns, h, w, channels, first, CHANNELS)
        _row(images, result, u7, v7, sample, row + 7, columns, h, w, channels, first, CHANNELS)


@triton.jit
def _four(place):  # type: ignore[no-untyped-def]
    """Four numbers side by side in one load of 16 bytes; Triton alone would make four of it."""
    return tl.inline_asm_elementwise(
        "ld.global.nc.v4.f32 {$0, $1, $2, $3}, [$4];",
        "=f,=f,=f,=f,l",
        [place],
        dtype=(tl.float32, tl.float32, tl.float32, tl.float32),
        is_pure=True,
        pack=1,
    )


@triton.jit
def _row(  # type: ignore[no-untyped-def]
    images, result, u, v, sample, row, columns, h, w, channels, first, CHANNELS: tl.constexpr
):
    """One row of pixels at the displacements ``u``, ``v``, a column on each lane."""
    x = tl.minimum(tl.maximum(columns - u, 0.0), w - 1.0)
    y = tl.minimum(tl.maximum(row - v, 0.0), h - 1.0)
    left = tl.floor(x)
    top = tl.floor(y)
    x -= left
    y -= top
    x0 = left.to(tl.int32)
    y0 = top.to(tl.int32)
    start = y0 * w + x0
    right = tl.where(x0 < w - 1, 1, 0)
    below = start + tl.where(y0 < h - 1, w, 0)
    inside = (columns < w) & (row < h)
    for channel in tl.static_range(CHANNELS):
        plane = (sample * channels + first + channel) * h * w
        source = images + plane
        a = tl.load(source + start).to(tl.float32)
        b = tl.load(source + start + right).to(tl.float32)
        c = tl.load(source + below).to(tl.float32)
        d = tl.load(source + below + right).to(tl.float32)
        upper = a + x * (b - a)
        lower = c + x * (d - c)
        value = upper + y * (lower - upper)
        tl.store(result + plane + row * w + columns, value.to(result.dtype.element_ty), mask=inside)
