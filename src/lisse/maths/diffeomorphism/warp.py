"""Images deformed by fields: bilinear, bicubic, Gaussian, nearest."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from lisse.maths.diffeomorphism.compiled import loop_deformed
from lisse.maths.diffeomorphism.field import Field
from lisse.maths.diffeomorphism.fused import kernel_deformed
from lisse.maths.diffeomorphism.modes import sines
from lisse.maths.given import all_finite, check_word

Interpolation = Literal["bilinear", "bicubic", "gaussian", "nearest"]
INTERPOLATIONS: tuple[str, ...] = get_args(Interpolation)
#: Width in pixels of the Gaussian interpolation, of the authors' public code.
SIGMA = 0.4715
#: Taps of the Gaussian's window, around the pixel to the left: the nearest one left out weighs under 3e-9.
_TAPS = range(-2, 4)
#: Pixels in flight on the CPU: what stays in its cache between the grid and the sampling. Elsewhere: bounded memory.
_PIXELS = {"cpu": 1 << 19}
_PIXELS_ELSEWHERE = 1 << 24


def deform(
    images: Tensor, field: Field | Tensor, *, interpolation: Interpolation = "bilinear", check: bool = True
) -> Tensor:
    r"""The deformed images :math:`[\tau x](s) = x(s - \tau(s))`, ``[n, c, h, w]`` like ``images``.

    ``field`` has one field per image, or a single one for all; a tensor ``[n or 1, 2, h, w]`` of displacements in
    pixels (columns, then rows) works as well. The output pixel (row, column) is the image at (row - v, column - u),
    that position clamped to the picture ([petrini2021] sec. 2.1).

    - ``bilinear``: the paper's default. The identity, bit for bit, where a field is zero; outputs stay within the range
      of the inputs.
    - ``bicubic``: cubic convolution with a = -0.75, border pixels repeated. The identity where a field is zero; may
      overshoot.
    - ``gaussian``: weights :math:`e^{-d^2/2\sigma^2}`, σ = 0.4715 pixels, normalised over the picture; of the full
      sum over all pixels a window of 6 × 6 is kept, which changes the result by under 1e-8 of the range. **A blur where
      a field is zero**: compare with :func:`blurred` (or :func:`undeformed`), not with the image.
    - ``nearest``: halves round to even. Keeps the values as they are.

    Bytes (uint8) give bytes, rounded to nearest with halves to even and clamped to 0…255; float16 and bfloat16 are
    worked in float32; float32 and float64 in themselves, the field too. Differentiable in images and coefficients
    (``nearest``: in images). ``check`` refuses NaN and infinite pixels, one pass over them (on a GPU, it waits), and
    fields that are not finite; without it these give wrong pixels, or an error of torch's.

    Cost: O(c) per pixel for the field and O(1) for the interpolation, in chunks, so that beside the result memory does
    not grow with n. Bilinear never writes the field to memory: on a CUDA device it is one Triton kernel, on a CPU with
    numba (``lisse[fast]``) one compiled loop, as is Gaussian; they differ from ``grid_sample`` in the last bits of
    positions.
    """
    images = torch.as_tensor(images)
    field = torch.as_tensor(field) if isinstance(field, np.ndarray) else field
    check_word("deform", INTERPOLATIONS, interpolation=interpolation)
    _check_images("deform", images, finite=check)
    _check_field(images, field)
    dtype = _working_dtype(images)
    if isinstance(field, Field):
        if check and not (all_finite(field.cu) and all_finite(field.cv)):
            raise ValueError("deform: field must be finite, got NaN or infinity among its coefficients.")
        field = field.to(images.device, dtype)
        if interpolation == "bilinear" and (result := kernel_deformed(images, field)) is not None:
            return result
        if (result := _in_one_loop(images, field, interpolation)) is not None:
            return result
    else:
        field = field.to(images.device, dtype)
        if check and not all_finite(field):
            raise ValueError("deform: field must be finite, got NaN or infinity among the displacements.")
    sampler = functools.partial(_sampled, interpolation=interpolation)
    with torch.autocast(images.device.type, enabled=False):  # half-precision positions would tear the image
        return _in_chunks(images, field, sampler, dtype)


def blurred(images: Tensor) -> Tensor:
    """The images under the zero field with Gaussian interpolation: what deformed ones must be compared with.

    Exact (the full sum, as two matrix products with row-normalised Gaussian weights). dtype and rounding as
    :func:`deform`.
    """
    images = torch.as_tensor(images)
    _check_images("blurred", images, finite=True)
    return _blurred(images)


def _blurred(images: Tensor) -> Tensor:
    dtype = _working_dtype(images)
    h, w = images.shape[-2:]
    down, across = (_gaussian_matrix(n, dtype, images.device) for n in (h, w))
    return _back(down @ images.to(dtype) @ across.T, images.dtype)


def undeformed(images: Tensor, *, interpolation: Interpolation = "bilinear", check: bool = True) -> Tensor:
    """What :func:`deform` makes of images at temperature 0: the images, or blurred ones for ``gaussian``.

    The reference x of R_f: in its numerator, in the radius ‖τx - x‖ and in its denominator. ``check`` as in
    :func:`deform`.
    """
    images = torch.as_tensor(images)
    check_word("undeformed", INTERPOLATIONS, interpolation=interpolation)
    _check_images("undeformed", images, finite=check)
    return _blurred(images) if interpolation == "gaussian" else images


def _working_dtype(images: Tensor) -> torch.dtype:
    return images.dtype if images.dtype in (torch.float32, torch.float64) else torch.float32


def _check_images(where: str, images: Tensor, *, finite: bool) -> None:
    if images.ndim != 4:
        raise ValueError(
            f"{where}: images must be [n, c, h, w], got shape {list(images.shape)}. Add a sample axis with x[None]."
        )
    if min(images.shape[-2:]) < 2:
        raise ValueError(f"{where}: images must be at least 2 pixels a side, got {list(images.shape[-2:])}.")
    if not (images.is_floating_point() or images.dtype == torch.uint8):
        raise TypeError(f"{where}: images must be uint8 or floating point, got {images.dtype}. Convert with x.float().")
    if finite and images.is_floating_point() and not all_finite(images):
        raise ValueError(f"{where}: images must be finite, got NaN or infinity among them.")


def _check_field(images: Tensor, field: Field | Tensor) -> None:
    if isinstance(field, Field):
        count, size = len(field), field.size
    elif isinstance(field, Tensor) and field.ndim == 4 and field.shape[1] == 2 and field.is_floating_point():
        count, size = len(field), (field.shape[2], field.shape[3])
    else:
        got = list(field.shape) if isinstance(field, Tensor) else type(field).__name__
        raise TypeError(f"deform: field must be a Field or displacements [n, 2, h, w] in pixels, got {got}.")
    if size != tuple(images.shape[-2:]):
        raise ValueError(
            f"deform: field must be made for images of {list(images.shape[-2:])} pixels, got one for {list(size)}. "
            f"Use Diffeomorphism(size={tuple(images.shape[-2:])}, …)."
        )
    if count not in (1, len(images)):
        raise ValueError(f"deform: field must have one field per image ({len(images)}) or a single one, got {count}.")


def _in_chunks(
    images: Tensor, field: Field | Tensor, sampler: Callable[[Tensor, Field | Tensor], Tensor], dtype: torch.dtype
) -> Tensor:
    n, _, h, w = images.shape
    inner = (field.cu, field.cv) if isinstance(field, Field) else (field,)
    graph = torch.is_grad_enabled() and any(x.requires_grad for x in (images, *inner))
    pixels = _PIXELS.get(images.device.type, _PIXELS_ELSEWHERE)
    size = max(torch.get_num_threads(), pixels // (h * w))
    result = None if graph or n <= size else _empty_like(images)
    parts = [images[:0]]
    for start in range(0, n, size):
        chunk = slice(start, start + size)
        fields = field[chunk] if len(inner[0]) > 1 else field
        part = _back(sampler(images[chunk].to(dtype), fields), images.dtype)
        if result is None:
            parts.append(part)
        else:
            result[chunk] = part
    if result is None:
        return parts[-1] if len(parts) == 2 else torch.cat(parts)
    return result


def _empty_like(images: Tensor) -> Tensor:
    """Memory for the result. On the CPU NumPy's, which asks for huge pages: first touching 4 KiB ones costs as much as
    the interpolation.
    """
    if images.device.type == "cpu" and images.dtype != torch.bfloat16:
        kind = {torch.uint8: np.uint8, torch.float16: np.float16, torch.float32: np.float32, torch.float64: np.float64}
        return torch.from_numpy(np.empty(images.shape, kind[images.dtype]))
    return torch.empty(images.shape, dtype=images.dtype, device=images.device)


def _back(values: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype == torch.uint8:
        return values.round_().clamp_(0, 255).to(dtype)
    return values.to(dtype)


def _sampled(images: Tensor, field: Field | Tensor, *, interpolation: str) -> Tensor:
    if interpolation == "nearest":
        return _nearest(images, *_positions(field))
    if (moved := _in_one_loop(images, field, interpolation)) is not None:  # bytes and half precision, converted
        return moved
    if interpolation == "gaussian":
        return _gaussian(images, *_positions(field))
    grid = _normalised(field).expand(len(images), -1, -1, -1)
    if interpolation == "bicubic":
        grid = grid.clamp(-1, 1)  # bicubic sampling clamps the neighbours it reads, not the position
    moved = _grid_sample(images, grid, interpolation)
    # Positions went through [-1, 1] and back, which rounds: the identity is put back where it is meant.
    inner = (field.cu, field.cv) if isinstance(field, Field) else (field,)
    still = functools.reduce(torch.logical_and, ((x == 0).flatten(1).all(1) for x in inner))
    if images.device.type != "cpu" or bool(still.any()):
        moved = torch.where(still[:, None, None, None], images, moved)
    return moved


def _in_one_loop(images: Tensor, field: Field | Tensor, interpolation: str) -> Tensor | None:
    if isinstance(field, Field) and interpolation in ("bilinear", "gaussian"):
        return loop_deformed(images, field, interpolation, sigma=SIGMA)
    return None


def _grid_sample(images: Tensor, grid: Tensor, mode: str) -> Tensor:
    return torch.nn.functional.grid_sample(images, grid, mode=mode, padding_mode="border", align_corners=True)


def _normalised(field: Field | Tensor) -> Tensor:
    """Where to read, ``[n, h, w, 2]`` in [-1, 1] from the first to the last pixel (columns, then rows)."""
    if isinstance(field, Tensor):
        h, w = field.shape[-2:]
        scale = torch.tensor([2 / (w - 1), 2 / (h - 1)], dtype=field.dtype, device=field.device)
        return _identity(h, w, field.dtype, field.device) - field.permute(0, 2, 3, 1) * scale
    h, w = field.size
    n, side, _ = field.cu.shape
    dtype, device = field.cu.dtype, field.cu.device
    across, down = (sines(length, side, field.grid, dtype, device) for length in (w, h))
    both = torch.stack([field.cu * (-2 * w / (w - 1)), field.cv * (-2 * h / (h - 1))], 2)  # [n, i, axis, j]
    if device.type != "cpu":
        # A matrix product there may be set to round to ten bits (TF32): the identity is added, not multiplied.
        along = (both.permute(0, 3, 2, 1) @ across.T).transpose(2, 3).reshape(n, side, 2 * w)
        base = _identity(h, w, dtype, device).reshape(1, h, 2 * w).expand(n, -1, -1)
        return torch.baddbmm(base, down.expand(n, -1, -1), along).reshape(n, h, w, 2)
    # The identity is two more modes, (place, 1) for columns and (1, place) for rows, so that products alone give
    # positions. The large one is a single product over all images, with columns and rows side by side as grid_sample
    # wants them: its right factor is half zeros, which costs less than to interleave the two afterwards.
    side += 2
    across, down = (
        torch.cat([waves, _line(len(waves), dtype, device)[:, None], torch.ones_like(waves[:, :1])], 1)
        for waves in (across, down)
    )
    unit = both.new_zeros(side, 2, side)
    unit[-2, 0, -1] = unit[-1, 1, -2] = 1
    both = torch.nn.functional.pad(both, (0, 2, 0, 0, 0, 2)) + unit
    left = (down @ both.reshape(n, 2 * side, side).mT).reshape(n * h, 2 * side)
    right = across.new_zeros(side, 2, w, 2)
    right[:, 0, :, 0] = right[:, 1, :, 1] = across.T
    return (left @ right.reshape(2 * side, 2 * w)).reshape(n, h, w, 2)


def _line(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.linspace(-1, 1, n, dtype=torch.float64).to(device, dtype)


def _identity(h: int, w: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    rows, columns = torch.meshgrid(_line(h, dtype, device), _line(w, dtype, device), indexing="ij")
    return torch.stack([columns, rows], -1)


def _positions(field: Field | Tensor) -> tuple[Tensor, Tensor]:
    """Columns and rows to read, in pixels, clamped to the picture, each ``[n, h, w]``."""
    moves = field.displacement if isinstance(field, Field) else field
    h, w = moves.shape[-2:]
    columns = torch.arange(w, dtype=moves.dtype, device=moves.device) - moves[:, 0]
    rows = torch.arange(h, dtype=moves.dtype, device=moves.device)[:, None] - moves[:, 1]
    return columns.clamp(0, w - 1), rows.clamp(0, h - 1)


def _nearest(images: Tensor, columns: Tensor, rows: Tensor) -> Tensor:
    n, c, h, w = images.shape
    index = rows.round() * w + columns.round() if h * w < 1 << 23 else rows.round().double() * w + columns.round()
    index = index.long().flatten(1)[:, None].expand(n, c, -1)
    return images.flatten(2).gather(2, index).reshape(images.shape)


def _gaussian(images: Tensor, columns: Tensor, rows: Tensor) -> Tensor:
    r"""36 taps by 9 bilinear samples: two neighbours of weights a, b are one sample at b/(a + b), weighing a + b.

    The weights factor into columns and rows, and so does their sum over the picture; neighbours outside weigh 0.
    """
    h, w = images.shape[-2:]
    across, down = _pairs(columns, w), _pairs(rows, h)
    result = torch.zeros_like(images)
    for x, weight_x in across:
        for y, weight_y in down:
            grid = torch.stack([x * (2 / (w - 1)) - 1, y * (2 / (h - 1)) - 1], -1).expand(len(images), -1, -1, -1)
            result = torch.addcmul(result, _grid_sample(images, grid, "bilinear"), (weight_x * weight_y)[:, None])
    return result


def _pairs(position: Tensor, n: int) -> list[tuple[Tensor, Tensor]]:
    """Three places to read along one axis, and their weights, which add up to 1."""
    floor = position.detach().floor()
    weights = []
    for tap in _TAPS:
        pixel = floor + tap
        inside = (pixel >= 0) & (pixel <= n - 1)
        weights.append(torch.where(inside, torch.exp(-((position - pixel) ** 2) / (2 * SIGMA**2)), 0.0))
    total = functools.reduce(torch.add, weights)
    samples = []
    for k in range(0, len(weights), 2):
        both = weights[k] + weights[k + 1]
        # Where both are outside, whatever is read there weighs nothing.
        share = weights[k + 1] / torch.where(both > 0, both, 1.0)
        samples.append((floor + _TAPS[k] + share, both / total))
    return samples


@functools.lru_cache(maxsize=16)
def _gaussian_matrix(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    k = torch.arange(n, dtype=torch.float64)
    weights = torch.exp(-((k[:, None] - k) ** 2) / (2 * SIGMA**2))
    return (weights / weights.sum(1, keepdim=True)).to(device, dtype)
