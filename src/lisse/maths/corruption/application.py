"""corrupt: images, the name of a corruption and a severity give corrupted images."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lisse.maths.corruption import blur, digital, noise, weather
from lisse.maths.corruption.draws import Draws
from lisse.maths.corruption.parameters import CORRUPTIONS, PARAMETERS, Level, Strength, Variant
from lisse.maths.corruption.weather import spatter

#: Values worked on at a time: little enough to stay near the processor, and enough for all of a GPU.
_CHUNK, _GPU_CHUNK = 1 << 20, 1 << 25
_SMALLEST = 4


class _Setting(NamedTuple):
    """What corruptions take beside the images: random numbers, their parameters, whether the images were bytes."""

    draws: Draws
    level: Level
    strength: Strength
    variant: Variant
    textures: list[Tensor]
    bytes_: bool


# Each gives a new tensor that may leave [0, 1].
_BY_NAME: dict[str, Callable[[Tensor, _Setting], Tensor]] = {
    "gaussian_noise": lambda x, to: noise.gaussian_noise(x, to.draws, sigma=to.level[0]),
    "shot_noise": lambda x, to: noise.shot_noise(x, to.draws, photons=to.level[0], bytes_=to.bytes_),
    "impulse_noise": lambda x, to: noise.impulse_noise(x, to.draws, amount=to.level[0]),
    "speckle_noise": lambda x, to: noise.speckle_noise(x, to.draws, sigma=to.level[0]),
    "gaussian_blur": lambda x, to: blur.gaussian_blur(x, sigma=to.level[0]),
    "defocus_blur": lambda x, to: blur.defocus_blur(x, radius=to.level[0], softness=to.level[1]),
    "glass_blur": lambda x, to: blur.glass_blur(x, to.draws, level=to.level, variant=to.variant, bytes_=to.bytes_),
    "motion_blur": lambda x, to: blur.motion_blur(x, to.draws, radius=to.level[0], sigma=to.level[1]),
    "zoom_blur": lambda x, to: blur.zoom_blur(x, end=to.level[0], step=to.level[1]),
    "snow": lambda x, to: weather.snow(x, to.draws, level=to.level),
    "frost": lambda x, to: weather.frost(x, to.draws, level=to.level, textures=to.textures, variant=to.variant),
    "fog": lambda x, to: weather.fog(x, to.draws, amount=to.level[0], decay=to.level[1]),
    "spatter": lambda x, to: spatter(x, to.draws, level=to.level),
    "brightness": lambda x, to: digital.brightness(x, amount=to.level[0]),
    "contrast": lambda x, to: digital.contrast(x, factor=to.level[0]),
    "saturate": lambda x, to: digital.saturate(x, factor=to.level[0], offset=to.level[1]),
    "elastic_transform": lambda x, to: digital.elastic_transform(x, to.draws, level=to.level, strength=to.strength),
    "pixelate": lambda x, to: digital.pixelate(x, scale=to.level[0], bytes_=to.bytes_),
    "jpeg_compression": lambda x, to: digital.jpeg_compression(x, quality=int(to.level[0])),
}


@torch.no_grad()
def corrupt(
    images: Any,
    name: str,
    severity: int,
    *,
    strength: Strength = "cifar",
    generator: torch.Generator | None = None,
    textures: Sequence[Any] | Tensor | None = None,
    variant: Variant = "corrected",
) -> Tensor:
    r"""Images under one of the nineteen common corruptions ([hendrycks2019] sec. 4).

    Args:
        images: ``[n, c, h, w]``, one image ``[c, h, w]`` or one grey image ``[h, w]``; c is 1 or 3, both sides at least
            4 pixels; bytes (uint8) or floats in [0, 1].
        name: one of :data:`CORRUPTIONS`.
        severity: 1 (slight) to 5.
        strength: the parameters of CIFAR-10-C or the stronger ones of ImageNet-C, as the package imagecorruptions has
            them. Lengths are in pixels, but for elastic_transform's, which are fractions of the side.
        generator: the randomness (torch's default without one). Every image has its own. The numbers are drawn image
            by image: with a CPU generator that goes on from call to call, a batch gives the same images however it is
            cut into parts, on any device.
        textures: what frost needs and no other takes: byte pictures ``[3, H, W]`` of frost.
            ``lisse.data.frost_textures()`` gives the six published ones.
        variant: ``hendrycks`` keeps two slips of the published generator: glass_blur copies a neighbour where
            ``corrected`` exchanges the two pixels, frost never takes the last texture.

    Returns:
        Images of the same shape, dtype and device. Bytes are :math:`\lfloor 255 y + 10^{-3} \rfloor`: cut off, not
        rounded, as in the published files (the small number undoes rounding of floats). Floats are clipped to [0, 1]
        and not rounded, except by jpeg_compression, which works on bytes, and inside the masks of snow and spatter.
        float64 is computed in float64, anything shorter in float32. There is no gradient.

    Motion (motion_blur, snow) is a one-sided Gaussian at whole pixels, the edge repeated, without ImageMagick.
    Cost: some ten to a hundred passes over the images; memory: about a million values at a time, thirty on a GPU.
    """
    values, shape, bytes_ = _checked_images(images)
    level = _checked_level(name, severity, strength)
    if variant not in ("corrected", "hendrycks"):
        raise ValueError(f"corrupt: variant must be 'corrected' or 'hendrycks', got {variant!r}. Choose one of these.")
    result = torch.empty_like(values)
    work = torch.float64 if values.dtype == torch.float64 else torch.float32
    frosts: list[Tensor] = []
    if name == "frost":
        like = torch.empty(0, *values.shape[1:], dtype=work, device=values.device)
        frosts = weather.scaled_textures(_checked_textures(textures, values.device), like, strength=strength)
    chunk = _CHUNK if values.device.type == "cpu" else _GPU_CHUNK
    size = max(1, chunk // values[0].numel()) if len(values) else 1
    for begin in range(0, len(values), size):
        part = values[begin : begin + size]
        x = part.to(work).div_(255) if bytes_ else part.to(work)
        setting = _Setting(Draws(len(x), generator, x.device), level, strength, variant, frosts, bytes_)
        y = _BY_NAME[name](x, setting).clamp_(0, 1)
        result[begin : begin + size] = y.mul_(255).add_(1e-3).floor_() if bytes_ else y
    return result.reshape(shape)


def _checked_images(images: Any) -> tuple[Tensor, torch.Size, bool]:
    """The images ``[n, c, h, w]``, the shape they came in, and whether they are bytes."""
    try:
        values = torch.as_tensor(images)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"corrupt: images must be a tensor or an array, got {type(images).__name__}. Use torch.stack for a list."
        ) from error
    shape = values.shape
    if values.ndim not in (2, 3, 4):
        raise ValueError(
            f"corrupt: images must be [n, c, h, w], [c, h, w] or [h, w], got shape {tuple(shape)}. Add or drop axes."
        )
    values = values.reshape((1,) * (4 - values.ndim) + tuple(shape))
    if values.shape[1] not in (1, 3):
        last = values.shape[-1] in (1, 3)
        hint = "Move the channels first: images.permute(…)." if last else "Grey batches are [n, 1, h, w]."
        raise ValueError(f"corrupt: images must have 1 or 3 channels, got {values.shape[1]} of {tuple(shape)}. {hint}")
    if min(values.shape[-2:]) < _SMALLEST:
        raise ValueError(
            f"corrupt: images must be at least {_SMALLEST} pixels high and wide, got {tuple(values.shape[-2:])}. "
            "Enlarge them first."
        )
    if values.dtype == torch.uint8:
        return values, shape, True
    if not values.is_floating_point():
        raise TypeError(
            f"corrupt: images must be uint8 or floats in [0, 1], got {values.dtype}. "
            "Convert 0 … 255 with .to(torch.uint8)."
        )
    if values.numel():
        low, high = (float(end) for end in values.aminmax())
        if not (low >= 0 and high <= 1):
            got = "NaN" if low != low or high != high else f"{low:g} … {high:g}"
            raise ValueError(
                f"corrupt: images must lie in [0, 1] when they are floats, got {got}. "
                "Corrupt before normalising; bytes as floats are divided by 255."
            )
    return values, shape, False


def _checked_level(name: str, severity: int, strength: Strength) -> Level:
    if name not in CORRUPTIONS:
        near = difflib.get_close_matches(str(name).lower().replace("-", "_").replace(" ", "_"), CORRUPTIONS, 1, 0.5)
        ask = f" Did you mean {near[0]!r}?" if near else " Check the spelling."
        raise ValueError(f"corrupt: name must be one of {', '.join(CORRUPTIONS)}, got {name!r}.{ask}")
    if strength not in PARAMETERS:
        raise ValueError(f"corrupt: strength must be 'cifar' or 'imagenet', got {strength!r}. Choose one of these.")
    try:
        step = operator.index(severity)
    except TypeError:
        step = 0
    if not 1 <= step <= 5 or isinstance(severity, bool):
        raise ValueError(f"corrupt: severity must be an integer from 1 to 5, got {severity!r}. 1 is slight, 5 strong.")
    return PARAMETERS[strength][name][step - 1]


def _checked_textures(textures: Sequence[Any] | Tensor | None, device: torch.device) -> list[Tensor]:
    if textures is None or len(textures) == 0:
        raise ValueError(
            "corrupt: textures must hold at least one picture for frost, got none. The published ones are "
            "textures=lisse.data.frost_textures()."
        )
    pictures = [torch.as_tensor(texture) for texture in textures]
    for texture in pictures:
        if texture.dtype != torch.uint8 or texture.ndim != 3 or texture.shape[0] != 3 or min(texture.shape[1:]) < 8:
            raise ValueError(
                f"corrupt: textures must be byte pictures [3, H, W] (a list of them, or one tensor [k, 3, H, W]), "
                f"got {texture.dtype} of shape {tuple(texture.shape)}. lisse.data.frost_textures() gives such."
            )
    return [texture.to(device) for texture in pictures]
