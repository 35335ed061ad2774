"""Blurs: Gaussian, out of focus, through frosted glass, moved, zoomed."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from lisse.maths.corruption.draws import Draws
from lisse.maths.corruption.filters import cropped_size, disk, filtered, smoothed, streaked, zoomed
from lisse.maths.corruption.parameters import Variant


def gaussian_blur(x: Tensor, *, sigma: float) -> Tensor:
    """A Gaussian cut off at four sigma, the edge repeated beyond the border."""
    return smoothed(x, sigma)


def defocus_blur(x: Tensor, *, radius: float, softness: float) -> Tensor:
    """The image through :func:`~lisse.maths.corruption.filters.disk`, mirrored at its border."""
    return filtered(x, disk(radius, softness))


def motion_blur(x: Tensor, draws: Draws, *, radius: float, sigma: float) -> Tensor:
    """Streaks in a direction uniform in ±45°, the image's own."""
    (u,) = draws.uniform([])
    return streaked(x, 90 * u - 45, radius=radius, sigma=sigma)


def zoom_blur(x: Tensor, *, end: float, step: float) -> Tensor:
    """The mean of the image and of its zooms by 1, 1 + step, … up to ``end``."""
    zooms = np.arange(1, end, step).tolist()  # NumPy's, whose rounding decides whether the end is reached
    total = x.clone()
    h, w = x.shape[-2:]
    for zoom in zooms:
        (top, ch), (left, cw) = cropped_size(h, zoom), cropped_size(w, zoom)
        total += zoomed(x[..., top : top + ch, left : left + cw], zoom, (h, w))
    return total.div_(len(zooms) + 1)


def glass_blur(x: Tensor, draws: Draws, *, level: tuple[float, ...], variant: Variant, bytes_: bool) -> Tensor:
    """Smoothed, neighbouring pixels exchanged at random, smoothed again; ``level`` is sigma, reach, rounds.

    From the last pixel to the first, each is exchanged with one at most ``reach`` away (``-reach … reach - 1`` along
    both axes). Variant ``hendrycks`` copies that neighbour instead, as the published generator does by mistake.
    """
    n, c, h, w = x.shape
    sigma, reach, rounds = level[0], int(level[1]), int(level[2])
    x = smoothed(x, sigma)
    if bytes_:
        x = (x * 255 + 1e-3).floor_() / 255
    position, span = _wavefronts(h, w, reach)
    source = torch.arange(h * w, dtype=torch.int64, device=x.device)[:, None].repeat(1, n)  # pixel-major
    shifts = draws.uniform(*[[2, len(position)]] * rounds)
    position = position.to(x.device)
    for shift in shifts:
        down, right = (shift * (2 * reach)).long().sub_(reach).unbind(1)
        partner = (position + w * down + right).T.contiguous()
        for begin, end in span:
            pixels, partners = position[begin:end], partner[begin:end]
            new = source.gather(0, partners)
            if variant == "corrected":
                source.scatter_(0, partners, source[pixels])
            source[pixels] = new
    x = x.flatten(2).gather(2, source.T[:, None].expand(n, c, h * w)).reshape(x.shape)
    return smoothed(x, sigma)


@functools.lru_cache(maxsize=16)
def _wavefronts(h: int, w: int, reach: int) -> tuple[Tensor, tuple[tuple[int, int], ...]]:
    """The exchanges of one round in an order that allows many at once: pixels, and the spans to do together.

    Row by row from the end, the exchange at (r, c) touches rows r - reach … r + reach - 1 and the same columns, so it
    meets only those less than 2·reach away along both axes. At time 2·reach·r + c, r and c counted from the end, all of
    these that come before it have been done and none of those that come after: what happens at one time may happen
    together.
    """
    if min(h, w) <= 2 * reach:  # no pixel has all its neighbours
        return torch.zeros(0, dtype=torch.int64), ()
    rows, columns = torch.arange(h - reach, reach, -1), torch.arange(w - reach, reach, -1)
    time = (torch.arange(len(rows))[:, None] * (2 * reach) + torch.arange(len(columns))).flatten()
    position = (rows[:, None] * w + columns).flatten()
    order = time.argsort(stable=True)
    ends = time.bincount().cumsum(0).tolist()
    spans = [(begin, end) for begin, end in zip([0, *ends[:-1]], ends, strict=True) if end > begin]
    return position[order], tuple(spans)
