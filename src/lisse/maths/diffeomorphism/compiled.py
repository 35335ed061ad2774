"""Bilinear and Gaussian deformation on a CPU as one compiled loop each.

A row's displacements stay in the cache, and no grid is written. ``grid_sample`` needs one of two numbers a pixel, which
goes through memory that was never touched before; at 224² that costs as much as the interpolation. It also takes
positions to [-1, 1] and back, which rounds; here they stay in pixels, so that zero fields are the identity. Needs numba
(``lisse[fast]``); without it :func:`~lisse.maths.diffeomorphism.deform` uses ``grid_sample``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lisse.maths.diffeomorphism.field import Field
from lisse.maths.diffeomorphism.modes import sines
from lisse.maths.workers import in_turn

#: Images of one piece of work, in pixels: large enough for a thread, small enough for its factors to stay in the cache.
PIXELS = 1 << 18
#: Pixels below which a second thread costs more than it saves.
ALONE = 1 << 15
#: Parts of a batch for every thread, at least: a thread that has less of its core takes fewer.
PARTS = 4
#: Factors held at a time, so that memory does not grow with the number of images.
FACTORS = 1 << 24


def fits(images: Tensor, field: Field) -> bool:
    """Whether the loop can do it: numba, float32 on the CPU, no gradients asked for."""
    if images.device.type != "cpu" or images.dtype != torch.float32 or images.numel() == 0:
        return False
    if torch.is_grad_enabled() and any(x.requires_grad for x in (images, field.cu, field.cv)):
        return False
    return _kernel() is not None


def bilinear(images: Tensor, field: Field) -> Tensor:
    """Contiguous float32 ``images`` ``[n, c, h, w]`` deformed by n fields (or one), as :func:`deform` defines it."""
    return _deformed(images, field, _kernel(), ())


def gaussian(images: Tensor, field: Field, *, sigma: float) -> Tensor:
    """The same with Gaussian weights of width ``sigma`` pixels, over 6 × 6 pixels."""
    return _deformed(images, field, _gaussian_kernel(), (np.float32(1 / sigma**2),))


def _deformed(images: Tensor, field: Field, kernel: Callable[..., None], more: tuple[Any, ...]) -> Tensor:
    n, _, h, w = images.shape
    side = field.cu.shape[-1]
    across, down = (sines(k, side, field.grid, torch.float32, images.device) for k in (w, h))
    result = np.empty(images.shape, np.float32)  # NumPy asks for huge pages: fresh memory costs less
    source = images.detach().numpy()
    rows = down.contiguous().numpy()
    share = n if n * h * w <= ALONE else -(-n // (PARTS * torch.get_num_threads()))
    size = max(1, min(PIXELS // (h * w), share))

    # The factors are made here and not by the workers: a matrix product in a new thread starts threads of its own.
    for first in range(0, n, block := max(1, FACTORS // (2 * side * w))):
        own = slice(first, min(first + block, n)) if len(field) > 1 else slice(0, 1)
        both = torch.stack([field.cu[own].detach() * w, field.cv[own].detach() * h], 1).float()
        with torch.autocast("cpu", enabled=False):
            product = both.transpose(2, 3).reshape(-1, side) @ across.T  # one, not one a field
        along = product.reshape(-1, 2, side, w).numpy()  # [count, 2, j, w]

        def work(start: int, first: int = first, along: np.ndarray = along, block: int = block) -> None:
            stop = min(start + size, first + block, n)
            mine = along[start - first : stop - first] if len(field) > 1 else along
            kernel(source[start:stop], mine, rows, result[start:stop], *more)

        starts = range(first, min(first + block, n), size)
        in_turn(work, starts, min(torch.get_num_threads(), len(starts)))
    return torch.from_numpy(result)


@cache
def _kernel() -> Callable[..., None] | Any:
    """The compiled loop, or None without numba. The machine code is kept between processes."""
    # Products and sums may fuse; NaN and infinity stay what they are.
    return _compiled(_warp, "", {"contract", "nsz"})


@cache
def _gaussian_kernel() -> Any:
    return _compiled(_gaussian_warp, ", float32", {"contract", "nsz", "reassoc"})


def _compiled(loop: Callable[..., None], more: str, fastmath: set[str]) -> Any:
    try:
        import numba  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        return None
    images, factors = "float32[:, :, :, ::1]", "float32[:, ::1]"
    signature = f"void({images}, {images}, {factors}, {images}{more})"
    return numba.njit(signature, nogil=True, cache=True, fastmath=fastmath)(loop)


def _warp(images: Any, along: Any, down: Any, result: Any) -> None:  # pragma: no cover - runs as machine code
    n, channels, h, w = images.shape
    side = along.shape[2]
    u, v = np.empty(w, np.float32), np.empty(w, np.float32)
    start, right, below = np.empty(w, np.int32), np.empty(w, np.int32), np.empty(w, np.int32)
    zero, last, bottom = np.float32(0), np.float32(w - 1), np.float32(h - 1)
    for k in range(n):
        factors = along[k if along.shape[0] > 1 else 0]
        for y in range(h):
            u[:] = zero
            v[:] = zero
            for j in range(side):
                sine = down[y, j]
                across, up = factors[0, j], factors[1, j]
                for x in range(w):
                    u[x] += sine * across[x]
                    v[x] += sine * up[x]
            for x in range(w):
                # Written so that NaN becomes 0: an index must never leave the picture.
                column, row = np.float32(x) - u[x], np.float32(y) - v[x]
                column = column if column > zero else zero
                row = row if row > zero else zero
                column = column if column < last else last
                row = row if row < bottom else bottom
                x0, y0 = np.int32(column), np.int32(row)
                u[x] = column - np.float32(x0)
                v[x] = row - np.float32(y0)
                start[x] = y0 * np.int32(w) + x0
                right[x] = np.int32(1) if x0 < w - 1 else np.int32(0)
                below[x] = np.int32(w) if y0 < h - 1 else np.int32(0)
            for channel in range(channels):
                pixels = images[k, channel].ravel()
                out = result[k, channel, y]
                for x in range(w):
                    # Unsigned: a negative index would be checked for, and wrap.
                    a = np.uint64(start[x])
                    b = np.uint64(start[x] + right[x])
                    c = np.uint64(start[x] + below[x])
                    d = np.uint64(start[x] + below[x] + right[x])
                    upper = pixels[a] + u[x] * (pixels[b] - pixels[a])
                    lower = pixels[c] + u[x] * (pixels[d] - pixels[c])
                    out[x] = upper + v[x] * (lower - upper)


def _gaussian_warp(  # pragma: no cover - runs as machine code
    images: Any, along: Any, down: Any, result: Any, sharpness: Any
) -> None:
    n, channels, h, w = images.shape
    side = along.shape[2]
    u, v = np.empty(w, np.float32), np.empty(w, np.float32)
    zero, last, bottom, half = np.float32(0), np.float32(w - 1), np.float32(h - 1), np.float32(0.5)
    across, up = np.empty(6, np.float32), np.empty(6, np.float32)
    # With f the part of a position after the point, exp(-(f - k)²/2σ²) is exp(-k²/2σ²) qᵏ, q = exp(f/σ²), up to a
    # factor that the normalisation takes out: one exponential along each axis in place of six.
    fixed = np.empty(6, np.float32)
    for k in range(6):
        fixed[k] = np.exp(-half * sharpness * np.float32((k - 2) * (k - 2)))
    for m in range(n):
        factors = along[m if along.shape[0] > 1 else 0]
        for y in range(h):
            u[:] = zero
            v[:] = zero
            for j in range(side):
                sine = down[y, j]
                for x in range(w):
                    u[x] += sine * factors[0, j, x]
                    v[x] += sine * factors[1, j, x]
            for x in range(w):
                # Relative to the pixel: the part after the point keeps the digits that a position of 60 would take.
                # Written so that NaN goes to the edge: an index must never leave the picture.
                column, row = -u[x], -v[x]
                column = column if column > np.float32(-x) else np.float32(-x)
                row = row if row > np.float32(-y) else np.float32(-y)
                column = column if column < last - np.float32(x) else last - np.float32(x)
                row = row if row < bottom - np.float32(y) else bottom - np.float32(y)
                left, top = np.floor(column), np.floor(row)
                x0, y0 = x + np.int64(left), y + np.int64(top)
                for axis in range(2):
                    weights = across if axis == 0 else up
                    place, size = (x0, w) if axis == 0 else (y0, h)
                    part = column - left if axis == 0 else row - top
                    q = np.exp(sharpness * part)
                    power, total = np.float32(1) / (q * q), zero
                    for k in range(6):
                        inside = place + k >= 2 and place + k < size + 2
                        weights[k] = fixed[k] * power if inside else zero
                        total += weights[k]
                        power *= q
                    for k in range(6):
                        weights[k] /= total
                whole = x0 >= 2 and x0 < w - 3
                for channel in range(channels):
                    value = zero
                    for i in range(6):
                        below = y0 + i - 2
                        if below < 0 or below >= h:
                            continue
                        line = images[m, channel, below]
                        sum_ = zero
                        if whole:
                            some = line[x0 - 2 : x0 + 4]
                            for k in range(6):
                                sum_ += across[k] * some[k]
                        else:
                            begin: Any = max(0, 2 - x0)
                            for k in range(begin, min(6, w + 2 - x0)):
                                sum_ += across[k] * line[x0 + k - 2]
                        value += up[i] * sum_
                    result[m, channel, y, x] = value
