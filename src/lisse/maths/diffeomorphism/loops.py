"""The loops of :mod:`lisse.maths.diffeomorphism.compiled` as machine code. Importing this needs numba."""

from __future__ import annotations

from typing import Any

import numpy as np

try:
    import numba  # type: ignore[import-not-found, import-untyped, unused-ignore]
except ImportError as error:
    raise ImportError(f'loops: the loops of deformations need numba ({error}). pip install "lisse[fast]"') from error

# Products and sums may fuse; NaN and infinity stay what they are.
_compiled: Any = numba.njit(nogil=True, cache=True, fastmath={"contract", "nsz"})
_summing: Any = numba.njit(nogil=True, cache=True, fastmath={"contract", "nsz", "reassoc"})
# Calls would pass arrays with their counts of references: half of the time of a pixel.
_inlined: Any = numba.njit(inline="always")
_ZERO = np.float32(0)


@_compiled
def _displace(factors: Any, sines: Any, u: Any, v: Any) -> None:  # pragma: no cover - runs as machine code
    """A row's displacements ``[w]``: Σ_j s_j a_j and Σ_j s_j b_j, ``factors`` ``[2, j, w]``."""
    u[:] = _ZERO
    v[:] = _ZERO
    for j in range(factors.shape[1]):
        sine = sines[j]
        across, up = factors[0, j], factors[1, j]
        for x in range(len(u)):
            u[x] += sine * across[x]
            v[x] += sine * up[x]


@_compiled
def bilinear(images: Any, along: Any, down: Any, result: Any) -> None:  # pragma: no cover - runs as machine code
    """``result`` ``[n, c, h, w]``: the images at positions moved by the products of ``along`` and ``down``."""
    n, channels, h, w = images.shape
    u, v = np.empty(w, np.float32), np.empty(w, np.float32)
    start, right, below = np.empty(w, np.int32), np.empty(w, np.int32), np.empty(w, np.int32)
    last, bottom = np.float32(w - 1), np.float32(h - 1)
    for k in range(n):
        factors = along[k if along.shape[0] > 1 else 0]
        for y in range(h):
            _displace(factors, down[y], u, v)
            for x in range(w):
                # Written so that NaN becomes 0: an index must never leave the picture.
                column, row = np.float32(x) - u[x], np.float32(y) - v[x]
                column = column if column > _ZERO else _ZERO
                row = row if row > _ZERO else _ZERO
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


@_summing
def gaussian(
    images: Any, along: Any, down: Any, result: Any, sharpness: Any
) -> None:  # pragma: no cover - runs as machine code
    """The same with Gaussian weights over 6 × 6 pixels; ``sharpness`` is 1/σ²."""
    n, channels, h, w = images.shape
    u, v = np.empty(w, np.float32), np.empty(w, np.float32)
    last, bottom = np.float32(w - 1), np.float32(h - 1)
    across, up = np.empty(6, np.float32), np.empty(6, np.float32)
    fixed = _fixed_weights(sharpness)
    for m in range(n):
        factors = along[m if along.shape[0] > 1 else 0]
        for y in range(h):
            _displace(factors, down[y], u, v)
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
                _weigh(column - left, x0, w, sharpness, fixed, across)
                _weigh(row - top, y0, h, sharpness, fixed, up)
                for channel in range(channels):
                    result[m, channel, y, x] = _weighted_sum(images[m, channel], x0, y0, across, up)


@_summing
def _fixed_weights(sharpness: Any) -> Any:  # pragma: no cover - runs as machine code
    """exp(-k²/2σ²), k = -2 … 3."""
    # With f the part of a position after the point, exp(-(f - k)²/2σ²) is exp(-k²/2σ²) qᵏ, q = exp(f/σ²), up to a
    # factor that the normalisation takes out: one exponential along each axis in place of six.
    fixed = np.empty(6, np.float32)
    for k in range(6):
        fixed[k] = np.exp(-np.float32(0.5) * sharpness * np.float32((k - 2) * (k - 2)))
    return fixed


@_inlined
def _weigh(
    part: Any, pixel: int, size: int, sharpness: Any, fixed: Any, weights: Any
) -> None:  # pragma: no cover - runs as machine code
    """The weights of the six pixels around ``pixel`` + ``part``, 0 outside the picture, 1 together."""
    q = np.exp(sharpness * part)
    power, total = np.float32(1) / (q * q), _ZERO
    for k in range(6):
        inside = pixel + k >= 2 and pixel + k < size + 2
        weights[k] = fixed[k] * power if inside else _ZERO
        total += weights[k]
        power *= q
    for k in range(6):
        weights[k] /= total


@_inlined
def _weighted_sum(image: Any, x0: int, y0: int, across: Any, up: Any) -> Any:  # pragma: no cover - machine code
    h, w = image.shape
    interior = x0 >= 2 and x0 < w - 3
    value = _ZERO
    for i in range(6):
        below = y0 + i - 2
        if below < 0 or below >= h:
            continue
        line = image[below]
        sum_ = _ZERO
        if interior:
            window = line[x0 - 2 : x0 + 4]
            for k in range(6):
                sum_ += across[k] * window[k]
        else:
            begin: Any = max(0, 2 - x0)
            for k in range(begin, min(6, w + 2 - x0)):
                sum_ += across[k] * line[x0 + k - 2]
        value += up[i] * sum_
    return value
