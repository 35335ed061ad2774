"""Colours, elastic deformation and compression."""

from __future__ import annotations

import io

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lisse.maths.corruption.draws import Draws
from lisse.maths.corruption.filters import box_matrix, gaussian_matrix
from lisse.maths.corruption.parameters import Strength


def grey(x: Tensor) -> Tensor:
    """The luma ``[n, 1, h, w]`` of red, green and blue; a grey image is its own."""
    if x.shape[1] == 1:
        return x
    return x[:, :1] * 0.299 + x[:, 1:2] * 0.587 + x[:, 2:] * 0.114


def brightness(x: Tensor, *, amount: float) -> Tensor:
    r"""``amount`` added to the V of HSV, the largest channel: :math:`x \min(V + a, 1) / V`; black turns grey."""
    value = x.amax(1, keepdim=True)
    new = (value + amount).clamp_max(1)
    return torch.where(value > 0, x * (new / value.clamp_min(1e-12)), new)


def contrast(x: Tensor, *, factor: float) -> Tensor:
    r""":math:`m + f (x - m)`, m the mean of each channel."""
    mean = x.mean((2, 3), keepdim=True)
    return torch.lerp(mean, x, factor)


def saturate(x: Tensor, *, factor: float, offset: float) -> Tensor:
    r"""The S of HSV becomes :math:`S' = \operatorname{clip}(f S + o)`: :math:`V - (V - x) S' / S`.

    Greys have no hue; like HSV itself they count as red, so that an offset tints them. Grey images stay as they are.
    """
    if x.shape[1] == 1:
        return x.clone()
    value, least = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    chroma = value - least
    saturation = chroma / value.clamp_min(1e-12)
    new = saturation.mul(factor).add_(offset).clamp_(0, 1)
    red = torch.cat([value, *[value * (1 - new)] * 2], 1)
    return torch.where(chroma > 0, value - (value - x) * (new / saturation.clamp_min(1e-12)), red)


def pixelate(x: Tensor, *, scale: float, bytes_: bool) -> Tensor:
    """Shrunk to ⌊scale · side⌋ pixels with a box, and enlarged again without smoothing.

    Bytes are rounded after each axis, which is what Pillow does.
    """
    h, w = x.shape[-2:]
    small = max(1, int(h * scale)), max(1, int(w * scale))
    for axis, (size, to) in ((-1, (w, small[1])), (-2, (h, small[0]))):
        matrix = box_matrix(size, to, x)
        x = x @ matrix.T if axis == -1 else matrix @ x
        if bytes_:
            x = (x * 255 + 1e-3).round_() / 255
    for axis, (size, have) in ((-2, (h, small[0])), (-1, (w, small[1]))):
        source = ((torch.arange(size, dtype=torch.float64) + 0.5) * (have / size)).long().clamp_max_(have - 1)
        x = x.index_select(axis, source.to(x.device))
    return x


def jpeg_compression(x: Tensor, *, quality: int) -> Tensor:
    """Through Pillow's JPEG of that quality (chroma at half resolution), in bytes whatever comes in.

    One after the other: Pillow holds Python's lock, so that threads do not help.
    """
    from PIL import Image

    pixels = x.mul(255).round_().to(torch.uint8).cpu().permute(0, 2, 3, 1).contiguous().numpy()
    restored = np.empty_like(pixels)
    h, w, c = pixels.shape[1:]
    mode = "L" if c == 1 else "RGB"
    for image, into in zip(pixels, restored, strict=True):
        buffer = io.BytesIO()
        Image.fromarray(image[..., 0] if c == 1 else image).save(buffer, "JPEG", quality=quality)
        # the decoder itself: size and mode are known, and Image.open would parse every header in Python
        decoded = Image.frombytes(mode, (w, h), buffer.getvalue(), "jpeg", mode, "")
        into[...] = np.frombuffer(decoded.tobytes(), np.uint8).reshape(h, w, c)
    return torch.from_numpy(restored).permute(0, 3, 1, 2).to(x).div_(255)


def elastic_transform(x: Tensor, draws: Draws, *, level: tuple[float, ...], strength: Strength) -> Tensor:
    r"""Deformed by a smooth random field: bilinear, reflected at the border.

    At CIFAR strength three points near the middle first move at random by up to the affine parameter, and the image
    with them (mirrored at its border); the field is uniform noise in ±1 smoothed with a Gaussian, times alpha. All
    three numbers are fractions of the shorter side (32 in CIFAR). At ImageNet strength there is no affine part, the
    noise is uniform in ±0.005 h, and sigma is 0.01 of each side.
    """
    h, w = x.shape[-2:]
    rows, columns = torch.arange(h, device=x.device, dtype=x.dtype), torch.arange(w, device=x.device, dtype=x.dtype)
    if strength == "cifar":
        alpha, sigma, affine = (value * min(h, w) for value in level)
        sides, amplitude = (sigma, sigma), 1.0
        noise, corners = draws.uniform([2, h, w], [3, 2])
        x = _moved(x, (2 * corners.to(x) - 1) * affine, rows, columns)
    else:
        alpha, fraction, shift = level
        sides, amplitude = (fraction * h, fraction * w), shift * h
        (noise,) = draws.uniform([2, h, w])
    if alpha == 0:
        return x
    left = gaussian_matrix(h, sides[0], x, border="reflect", truncate=3.0)
    right = gaussian_matrix(w, sides[1], x, border="reflect", truncate=3.0)
    field = (left @ ((2 * noise.to(x) - 1) @ right.T)) * (alpha * amplitude)
    at = torch.stack(
        [(columns + field[:, 0]).mul_(2).add_(1) / w, (rows[:, None] + field[:, 1]).mul_(2).add_(1) / h], -1
    )
    return functional.grid_sample(x, at - 1, mode="bilinear", padding_mode="reflection", align_corners=False)


def _moved(x: Tensor, shifts: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The image under the affine map that moves three points around its middle by ``shifts`` ``[n, 3, 2]`` pixels."""
    n, _, h, w = x.shape
    reach = min(h, w) // 3
    # As published, the middle is (h, w) // 2 read as (x, y), which only a square image does not notice.
    centre = torch.tensor([w // 2, h // 2], dtype=torch.float64, device=x.device)
    points = centre + reach * torch.tensor(
        [[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]], dtype=torch.float64, device=x.device
    )
    homogeneous = torch.cat([points + shifts.double(), torch.ones(n, 3, 1, dtype=torch.float64, device=x.device)], 2)
    back = torch.linalg.solve(homogeneous, points.expand(n, 3, 2)).to(x)  # [n, 3, 2]: where each pixel comes from
    across = columns * back[:, 0, :, None, None] + rows[:, None] * back[:, 1, :, None, None] + back[:, 2, :, None, None]
    size = torch.tensor([max(w - 1, 1), max(h - 1, 1)], device=x.device, dtype=x.dtype)
    at = across.permute(0, 2, 3, 1) * (2 / size) - 1
    return functional.grid_sample(x, at, mode="bilinear", padding_mode="reflection", align_corners=True)
