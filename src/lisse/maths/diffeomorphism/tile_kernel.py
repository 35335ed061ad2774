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
