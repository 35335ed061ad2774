"""Weather: snow, frost, fog, and spatter of rain or mud on the lens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from lisse.maths.corruption.digital import grey
from lisse.maths.corruption.draws import Draws, box_muller, pairs
from lisse.maths.corruption.filters import cropped_size, padded, smoothed, streaked, zoomed
from lisse.maths.corruption.parameters import Strength, Variant


def snow(x: Tensor, draws: Draws, *, level: tuple[float, ...]) -> Tensor:
    r"""Flakes that fall in streaks, on an image turned paler.

    A normal layer is enlarged, cut off below the threshold, moved at an angle uniform in -135° … -45° and rounded to
    1/255: f. The result is :math:`a x + (1 - a) \max(x, 1.5 g + 0.5) + f + f_{180°}`, g the luma.
    """
    mean, std, zoom, threshold, radius, sigma, weight = level
    h, w = x.shape[-2:]
    ch, cw = cropped_size(h, zoom)[1], cropped_size(w, zoom)[1]  # only the middle of the layer is ever seen
    uniform, turn = draws.uniform([pairs(ch * cw)], [])
    layer = box_muller(uniform, [1, ch, cw]).to(x).mul_(std).add_(mean)
    layer = zoomed(layer, zoom, (h, w))
    layer = layer.masked_fill(layer < threshold, 0).clamp_(0, 1)
    flakes = streaked(layer, 90 * turn - 135, radius=radius, sigma=sigma).mul_(255).round_().div_(255)
    pale = torch.maximum(x, grey(x) * 1.5 + 0.5)
    return x * weight + pale * (1 - weight) + flakes + flakes.flip(-2, -1)


def frost_scale(texture: tuple[int, int], image: tuple[int, int], strength: Strength) -> float:
    """How much a texture is enlarged: 0.2 (CIFAR) or 1.1 (ImageNet), more if it would not cover the image."""
    need = max(have / of for have, of in zip(image, texture, strict=True))
    if strength == "cifar":
        return 0.2 if need < 0.2 else 1.1 * need
    return 1.1 * max(1.0, need)


def scaled_textures(textures: Sequence[Tensor], like: Tensor, *, strength: Strength) -> list[Tensor]:
    """The ``textures`` (bytes ``[3, H, W]``) at the size that goes with images ``like``, floats in [0, 1]."""
    h, w = like.shape[-2:]
    scaled = []
    for texture in textures:
        scale = frost_scale((texture.shape[1], texture.shape[2]), (h, w), strength)
        if scale == 0.2:  # halfway between pixels, a bilinear fifth is just every fifth pixel
            small = texture[:, 2::5, 2::5].to(like) / 255
        else:
            size = [-int(-side * scale // 1) for side in texture.shape[1:]]
            mode = "bilinear" if strength == "cifar" else "bicubic"
            small = functional.interpolate(texture[None].to(like) / 255, size=size, mode=mode, align_corners=False)[0]
        small = small.clamp(0, 1)
        scaled.append(grey(small[None])[0] if like.shape[1] == 1 else small)
    return scaled


def frost(x: Tensor, draws: Draws, *, level: tuple[float, ...], textures: Sequence[Tensor], variant: Variant) -> Tensor:
    """The weighted sum of the image and of a random piece of a random texture.

    Variant ``hendrycks`` never takes the last texture, as the published generator, which draws among five of six.
    """
    weight, cover = level
    h, w = x.shape[-2:]
    (u,) = draws.uniform([3])
    kinds = max(1, len(textures) - 1) if variant == "hendrycks" else len(textures)
    which = (u[:, 0] * kinds).long()
    frosted = x * weight
    for index in range(kinds):
        samples = (which == index).nonzero().flatten()
        if len(samples) == 0:
            continue
        pieces = textures[index].unfold(1, h, 1).unfold(2, w, 1)  # [c, H - h + 1, W - w + 1, h, w], a view
        top = (u[samples, 1] * pieces.shape[1]).long()
        left = (u[samples, 2] * pieces.shape[2]).long()
        frosted[samples] += cover * pieces[:, top, left].transpose(0, 1)
    return frosted


def fog(x: Tensor, draws: Draws, *, amount: float, decay: float) -> Tensor:
    r""":math:`(x + a f)\, m / (m + a)`: a fractal f in [0, 1] added, the image's maximum m kept."""
    h, w = x.shape[-2:]
    brightest = x.amax((1, 2, 3), keepdim=True)
    cloud = plasma(draws, max(h, w), decay, x)[:, None, :h, :w]
    return (x + amount * cloud) * (brightest / (brightest + amount))


def plasma(draws: Draws, side: int, decay: float, like: Tensor) -> Tensor:
    r"""Fractals ``[n, m, m]`` in [0, 1] by diamond and square, m the power of two from ``side`` on; they tile.

    From a grid of step s to s/2, each new point is a quarter of the sum of its four neighbours plus a number uniform
    in :math:`\pm \omega^2`; :math:`\omega` begins at 100 and is divided by ``decay`` each time.
    """
    m = 1 << max(1, (side - 1).bit_length())
    (u,) = draws.uniform([m * m - 1])
    u = u.to(like).mul_(2).sub_(1)
    grid = like.new_zeros(len(u), 1, 1)
    wibble, used = 100.0, 0
    while grid.shape[-1] < m:
        k = grid.shape[-1]
        noise = u[:, used : used + 3 * k * k].reshape(-1, 3, k, k) * wibble**2
        used += 3 * k * k
        below = grid.roll(-1, -2)
        middle = (grid + below + grid.roll(-1, -1) + below.roll(-1, -1)) / 4 + noise[:, 0]
        across = (middle + middle.roll(1, -2) + grid + grid.roll(-1, -1)) / 4 + noise[:, 1]
        down = (middle + middle.roll(1, -1) + grid + below) / 4 + noise[:, 2]
        finer = torch.stack([torch.stack([grid, across], -1), torch.stack([down, middle], -1)], -3)
        grid = finer.reshape(-1, 2 * k, 2 * k)
        wibble /= decay
    low, high = grid.amin((1, 2), keepdim=True), grid.amax((1, 2), keepdim=True)
    return (grid - low) / (high - low).clamp_min(1e-30)


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
