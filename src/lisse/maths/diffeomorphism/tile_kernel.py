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
    channels,
    first,
    stride,
    H: tl.constexpr,
    W: tl.constexpr,
    CHANNELS: tl.constexpr,
    SIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """COLUMNS columns, one on each lane, of ROWS rows of one image: channels ``first`` … ``first + CHANNELS - 1``.

    A column's 2·SIDE numbers are read once and stay in registers for all of its rows. Sizes are constants, so that the
    four corners of every channel are one address and what an instruction adds to it.
    """
    wide: tl.constexpr = (W + COLUMNS - 1) // COLUMNS
    strips: tl.constexpr = (H + ROWS - 1) // ROWS
    strip = tl.program_id(0) % (wide * strips)
    sample = (tl.program_id(0) // (wide * strips)).to(tl.int64)
    columns = (strip % wide) * COLUMNS + tl.arange(0, COLUMNS)
    near = along + sample * stride + tl.minimum(columns, W - 1)
    a = ()
    b = ()
    for j in tl.static_range(SIDE):
        a = a + (tl.load(near + j * W),)  # type: ignore[assignment]  # noqa: RUF005 (Triton knows no stars)
        b = b + (tl.load(near + (SIDE + j) * W),)  # type: ignore[assignment]  # noqa: RUF005
    begin = (strip // wide) * ROWS
    source = images + (sample * channels + first) * (H * W)
    target = result + (sample * channels + first) * (H * W) + columns
    for row in range(begin, tl.minimum(begin + ROWS, H)):
        values = _row(source, a, b, down, row, columns, H, W, CHANNELS, SIDE)
        # After the loads of all channels: no load may go before a store, which might be to the same place.
        for channel in tl.static_range(CHANNELS):
            value = values[channel].to(result.dtype.element_ty)
            tl.store(target + row * W + channel * H * W, value, mask=columns < W)


@triton.jit
def _row(  # type: ignore[no-untyped-def]
    source,
    a,
    b,
    down,
    row,
    columns,
    H: tl.constexpr,
    W: tl.constexpr,
    CHANNELS: tl.constexpr,
    SIDE: tl.constexpr,
):
    """One row of pixels of every channel, at displacements :math:`u = \\sum_j s_j a_j`, :math:`v = \\sum_j s_j b_j`."""
    PADDED: tl.constexpr = (SIDE + 3) // 4 * 4
    sines = down + row * PADDED + columns * 0  # for every lane, though all are the same: then the four are one load
    u = tl.zeros(columns.shape, tl.float32)
    v = u
    for k in tl.static_range(0, SIDE, 4):
        s, t, p, q = _four(sines + k)
        u += s * a[k]
        v += s * b[k]
        if k + 1 < SIDE:
            u += t * a[k + 1]
            v += t * b[k + 1]
        if k + 2 < SIDE:
            u += p * a[k + 2]
            v += p * b[k + 2]
        if k + 3 < SIDE:
            u += q * a[k + 3]
            v += q * b[k + 3]
    x = tl.minimum(tl.maximum(columns - u, 0.0), W - 1.0)
    y = tl.minimum(tl.maximum(row - v, 0.0), H - 1.0)
    # At the far edge the corner before the last with weight one: all four corners are inside, no load needs a mask.
    x0 = tl.minimum(x.to(tl.int32), W - 2)
    y0 = tl.minimum(y.to(tl.int32), H - 2)
    x -= x0.to(tl.float32)
    y -= y0.to(tl.float32)
    corner = source + (y0 * W + x0)
    values = ()
    for channel in tl.static_range(CHANNELS):
        address = corner + channel * H * W
        # Weights 0 and 1 give a corner exactly.
        upper = tl.load(address).to(tl.float32) * (1 - x) + tl.load(address + 1).to(tl.float32) * x
        lower = tl.load(address + W).to(tl.float32) * (1 - x) + tl.load(address + (W + 1)).to(tl.float32) * x
        values = values + (upper * (1 - y) + lower * y,)  # type: ignore[assignment]  # noqa: RUF005
    return values


@triton.jit
def _four(address):  # type: ignore[no-untyped-def]
    """Four numbers side by side in one load of 16 bytes; Triton alone would make four of it."""
    return tl.inline_asm_elementwise(
        "ld.global.nc.v4.f32 {$0, $1, $2, $3}, [$4];",
        "=f,=f,=f,=f,l",
        [address],
        dtype=(tl.float32, tl.float32, tl.float32, tl.float32),
        is_pure=True,
        pack=1,
    )
