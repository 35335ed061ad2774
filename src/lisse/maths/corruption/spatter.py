"""Spatter: drops of water or mud on the lens. Edges and distances are found for a whole batch at once, in integers."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from lisse.maths.corruption.digital import grey
from lisse.maths.corruption.draws import Draws
from lisse.maths.corruption.filters import padded, smoothed

WATER, MUD = (175, 238, 238), (63, 42, 20)
_LOW, _HIGH = 50, 150  # thresholds of the edges
_DEEPEST = 20  # distances beyond it count as it
#: Steps of the distance: to a side, diagonally, a knight's move; in 1/65,536.
_ONE, _DIAGONAL, _KNIGHT = 65536, 91750, 143976


def spatter(x: Tensor, draws: Draws, *, level: tuple[float, ...]) -> Tensor:
    """Where smoothed normal noise exceeds a threshold there is liquid.

    Water brightens towards pale turquoise in proportion to the liquid and to its relief (:func:`relief`); mud covers
    with brown where the smoothed mask exceeds 0.8.
    """
    mean, std, sigma, threshold, last, muddy = level
    h, w = x.shape[-2:]
    liquid = smoothed(draws.normal(1, h, w).to(x).mul_(std).add_(mean), sigma)
    colour = x.new_tensor(MUD if muddy else WATER).reshape(1, 3, 1, 1) / 255
    if x.shape[1] == 1:
        colour = grey(colour)
    if muddy:
        cover = smoothed((liquid > threshold).to(x), last)
        cover = cover.masked_fill(cover < 0.8, 0)
        return x * (1 - cover) + colour * cover
    amount = liquid.masked_fill(liquid < threshold, 0).mul_(255).floor_().clamp_(0, 255)[:, 0]
    drops = amount * relief(amount.float()).to(x)
    drops = drops / drops.amax((1, 2), keepdim=True).clamp_min(1e-12) * last
    return x + colour * drops[:, None]


def relief(amount: Tensor) -> Tensor:
    """The relief of drops ``amount`` ``[n, h, w]`` (whole numbers 0 … 255, float32), as float32 0 … 255.

    Distances from the drops' edges, up to 20, smoothed and with their histogram made flat, through an embossing
    filter and smoothed.
    """
    depth = edge_distances(edges(amount)).float().div_(_ONE).clamp_max_(_DEEPEST)
    depth = _means(depth).add_(1e-4).floor_()
    wide = _framed(equalised(depth.long(), _DEEPEST + 1).float(), "mirror")
    raised = wide[:, 1:-1, 1:-1] + wide[:, 1:-1, 2:] + wide[:, 2:, 1:-1] + 2 * wide[:, 2:, 2:]
    raised -= 2 * wide[:, :-2, :-2] + wide[:, :-2, 1:-1] + wide[:, 1:-1, :-2]
    return _means(raised.clamp_(0, 255)).round_()


def edges(amount: Tensor) -> Tensor:
    """Canny's edges ``[n, h, w]`` (bool) of whole numbers 0 … 255: Sobel, thinned, with hysteresis from 50 to 150.

    float32 holds every number on the way exactly.
    """
    wide = _framed(amount, "edge")
    rows = wide[:, :-2] + 2 * wide[:, 1:-1] + wide[:, 2:]
    columns = wide[:, :, :-2] + 2 * wide[:, :, 1:-1] + wide[:, :, 2:]
    dx, dy = rows[:, :, 2:] - rows[:, :, :-2], columns[:, 2:] - columns[:, :-2]
    across, along = dx.abs(), dy.abs()
    size = across + along
    around = functional.pad(size, (1, 1, 1, 1))
    h, w = amount.shape[-2:]

    def at(down: int, right: int) -> Tensor:
        return around[:, 1 + down : 1 + down + h, 1 + right : 1 + right + w]

    # 13573 / 2^15 is tan 22.5° and 2 + that tan 67.5°, as OpenCV has them.
    flat = across * 13573
    level = along * 32768 < flat
    upright = (along - 2 * across) * 32768 > flat
    falling = (dx < 0) ^ (dy < 0)
    peak = torch.where(falling, (size > at(-1, 1)) & (size > at(1, -1)), (size > at(-1, -1)) & (size > at(1, 1)))
    peak = torch.where(upright, (size > at(-1, 0)) & (size >= at(1, 0)), peak)
    peak = torch.where(level, (size > at(0, -1)) & (size >= at(0, 1)), peak)
    weak = peak & (size > _LOW)
    strong = weak & (size > _HIGH)
    while True:
        near = functional.pad(strong, (1, 1, 1, 1))
        near = near[:, :-2] | near[:, 1:-1] | near[:, 2:]
        grown = weak & (near[:, :, :-2] | near[:, :, 1:-1] | near[:, :, 2:])
        if torch.equal(grown, strong):
            return strong
        strong = grown


def edge_distances(mask: Tensor) -> Tensor:
    """Distance of each pixel from the next one in the ``mask`` ``[n, h, w]``, in 1/65,536 (int32).

    The shortest path of steps to the eight neighbours and knight's moves (1, 1.4, 2.1969), found by one sweep down and
    one up; inside a row, :math:`\\min_{k \\le j} (d_k + j - k)` is a running minimum.
    """
    n, h, w = mask.shape
    far = 1 << 28
    table = torch.full((h + 4, n, w + 4), far, dtype=torch.int32, device=mask.device)
    table[2:-2, :, 2:-2].masked_fill_(mask.transpose(0, 1), 0)
    slope = torch.arange(w, dtype=torch.int32, device=mask.device) * _ONE
    for turned in (False, True):
        # the way up is the way down of the picture turned by 180°
        table = table.flip(0, 2) if turned else table
        for row in range(2, h + 2):
            above, second = table[row - 1], table[row - 2]
            best = torch.minimum(table[row, :, 2:-2], above[:, 2:-2] + _ONE)
            best = torch.minimum(best, torch.minimum(above[:, 1:-3], above[:, 3:-1]) + _DIAGONAL)
            knights = torch.minimum(
                torch.minimum(above[:, :-4], above[:, 4:]), torch.minimum(second[:, 1:-3], second[:, 3:-1])
            )
            best = torch.minimum(best, knights + _KNIGHT)
            table[row, :, 2:-2] = (best - slope).cummin(1).values + slope
    return table.flip(0, 2)[2:-2, :, 2:-2].transpose(0, 1)


def equalised(values: Tensor, kinds: int) -> Tensor:
    """Whole numbers ``[n, h, w]`` below ``kinds`` spread over 0 … 255 by their distribution function in each image."""
    n = len(values)
    flat = values.reshape(n, -1)
    total = flat.shape[1]
    counts = torch.zeros(n, kinds, dtype=torch.int64, device=values.device)
    counts.scatter_add_(1, flat, torch.ones_like(flat))
    least = flat.amin(1, keepdim=True)
    first = counts.gather(1, least)
    scale = 255.0 / (total - first).clamp_min(1)
    spread = ((counts.cumsum(1) - first) * scale).round().clamp_(0, 255).long()
    spread = torch.where(first == total, least, spread)  # a single value stays what it is
    return spread.gather(1, flat).reshape(values.shape)


def _means(x: Tensor) -> Tensor:
    """Means over 3 × 3 pixels, mirrored at the border."""
    wide = _framed(x, "mirror")
    rows = wide[:, :-2] + wide[:, 1:-1] + wide[:, 2:]
    return (rows[:, :, :-2] + rows[:, :, 1:-1] + rows[:, :, 2:]) / 9


def _framed(x: Tensor, border: Literal["edge", "mirror"]) -> Tensor:
    """``x`` ``[n, h, w]`` with one more pixel around."""
    return padded(x[:, None], 1, 1, border)[:, 0]
