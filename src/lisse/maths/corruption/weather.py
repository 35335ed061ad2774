"""Weather: snow, frost, fog."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from lisse.maths.corruption.digital import grey
from lisse.maths.corruption.draws import Draws, box_muller, pairs
from lisse.maths.corruption.filters import cropped_size, streaked, zoomed
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
