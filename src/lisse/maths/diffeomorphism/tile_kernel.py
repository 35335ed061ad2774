"""The Triton kernel of :mod:`lisse.maths.diffeomorphism.fused`. Importing this needs Triton."""

import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]


@triton.jit
def warp(  # type: ignore[no-untyped-def]
    images,
    result,
    along,
    down,
    h,
    w,
    channels,
    each,
    SIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One tile of ROWS × COLUMNS pixels of one image, all its channels."""
    wide = tl.cdiv(w, COLUMNS)
    tiles = wide * tl.cdiv(h, ROWS)
    tile = tl.program_id(0) % tiles
    sample = (tl.program_id(0) // tiles).to(tl.int64)
    rows = (tile // wide) * ROWS + tl.arange(0, ROWS)
    columns = (tile % wide) * COLUMNS + tl.arange(0, COLUMNS)
    u = tl.zeros((ROWS, COLUMNS), tl.float32)
    v = tl.zeros((ROWS, COLUMNS), tl.float32)
    for j in range(SIDE):
        sine = tl.load(down + rows * SIDE + j, mask=rows < h, other=0.0)[:, None]
        here = along + sample * each + j * w + columns
        u += sine * tl.load(here, mask=columns < w, other=0.0)[None, :]
        v += sine * tl.load(here + SIDE * w, mask=columns < w, other=0.0)[None, :]
    x = tl.minimum(tl.maximum(columns[None, :] - u, 0.0), w - 1.0)
    y = tl.minimum(tl.maximum(rows[:, None] - v, 0.0), h - 1.0)
    left = tl.floor(x)
    top = tl.floor(y)
    x -= left
    y -= top
    x0 = left.to(tl.int32)
    y0 = top.to(tl.int32)
    x1 = tl.minimum(x0 + 1, w - 1)
    y1 = tl.minimum(y0 + 1, h - 1)
    inside = (rows < h)[:, None] & (columns < w)[None, :]
    for channel in range(channels):
        plane = (sample * channels + channel) * h * w
        source = images + plane
        a = tl.load(source + y0 * w + x0, mask=inside, other=0.0).to(tl.float32)
        b = tl.load(source + y0 * w + x1, mask=inside, other=0.0).to(tl.float32)
        c = tl.load(source + y1 * w + x0, mask=inside, other=0.0).to(tl.float32)
        d = tl.load(source + y1 * w + x1, mask=inside, other=0.0).to(tl.float32)
        upper = a + x * (b - a)
        lower = c + x * (d - c)
        value = upper + y * (lower - upper)
        tl.store(result + plane + rows[:, None] * w + columns[None, :], value.to(result.dtype.element_ty), mask=inside)
