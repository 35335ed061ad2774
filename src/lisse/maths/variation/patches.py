r"""Patches as a non-overlapping domain decomposition: :math:`u = \sum_i E_i u_i` ([cao2022] sec. 3)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lisse.maths.given import floating, square_grid
from lisse.maths.variation.seminorm import Neighbours, VariationScaling, bv_seminorm


def patchify(u: Tensor, n: int | tuple[int, int]) -> Tensor:
    r"""An image cut into ``n`` patches per side: one row per patch.

    ``[h, w]`` gives ``[n², (h/n)(w/n)]``, ``[c, h, w]`` gives ``[n², (h/n)(w/n) c]``, ``[b, c, h, w]`` gives
    ``[b, n², (h/n)(w/n) c]``. Patches run row by row over the image, pixels row by row inside a patch, channels last:
    the order of MAE's targets. ``n`` may be (patches down, patches across). Linear, a permutation of the entries, so
    norms stay; :func:`unpatchify` is its inverse. Bytes stay bytes.
    """
    image = _tensor("patchify", "u", u)
    if image.ndim not in (2, 3, 4):
        raise ValueError(f"patchify: u must be [h, w], [c, h, w] or [b, c, h, w], got shape {list(image.shape)}.")
    rows, columns = _sides("patchify", n)
    h, w = image.shape[-2:]
    for side, count, name in ((h, rows, "height"), (w, columns, "width")):
        if side % count or side == 0:
            raise ValueError(
                f"patchify: n must divide the image's {name}, got {count} patches for {side} pixels. Crop or resize "
                "the image, or choose another n."
            )
    full = image if image.ndim == 4 else image.reshape(1, -1, h, w)
    c = full.shape[1]
    cut = full.reshape(len(full), c, rows, h // rows, columns, w // columns)
    patches = cut.permute(0, 2, 4, 3, 5, 1).reshape(len(full), rows * columns, -1)
    return patches if image.ndim == 4 else patches[0]


def unpatchify(
    patches: Tensor,
    *,
    channels: int | None = None,
    grid: tuple[int, int] | None = None,
    patch: tuple[int, int] | None = None,
) -> Tensor:
    r"""The image whose patches these are: the inverse of :func:`patchify`.

    ``[p, d]`` gives ``[h, w]`` (``[c, h, w]`` where there are channels), ``[b, p, d]`` gives ``[b, c, h, w]``.
    ``channels`` is needed only where it is ambiguous: by default the smallest number for which patches are square (1
    for d = 256, 3 for d = 768). Given, even as 1, the channel axis stays. ``grid`` (patches down, patches across) is
    needed where p is not a square, ``patch`` (pixels down, pixels across) where patches are not.
    """
    pieces = _tensor("unpatchify", "patches", patches)
    if pieces.ndim not in (2, 3):
        raise ValueError(f"unpatchify: patches must be [p, d] or [b, p, d], got shape {list(pieces.shape)}.")
    p, d = pieces.shape[-2:]
    rows, columns = square_grid("unpatchify", p, grid)
    c = channels if channels is not None else _squarefree(d) if patch is None else d // max(math.prod(patch), 1)
    if channels is None and patch is None and c > 4:  # oblong patches of few channels, rather than square ones of many
        raise ValueError(
            f"unpatchify: patches must be square with at most 4 channels if nothing else is said, got {d} numbers "
            "each. Pass channels= and patch=(pixels down, pixels across)."
        )
    if c < 1 or d % c:
        raise ValueError(f"unpatchify: channels must divide the length of a patch, got {c} for {d}.")
    if patch is None:
        side = math.isqrt(d // c)
        patch = (side, side)
    if patch[0] * patch[1] * c != d:
        raise ValueError(
            f"unpatchify: patches must hold patch[0] · patch[1] · channels numbers each, got {d} for {patch[0]} × "
            f"{patch[1]} × {c}. Pass channels= and patch=(pixels down, pixels across)."
        )
    full = pieces.reshape(-1, rows, columns, *patch, c).permute(0, 5, 1, 3, 2, 4)
    images = full.reshape(len(full), c, rows * patch[0], columns * patch[1])
    if pieces.ndim == 3:
        return images
    return images[0, 0] if c == 1 and channels is None else images[0]


def extension(patch: Tensor, index: int, n: int | tuple[int, int], *, channels: int | None = None) -> Tensor:
    r"""The extension operator :math:`E_i`: a patch ``[d]`` in its place ``index``, zero elsewhere.

    The image has ``n`` patches per side, in :func:`patchify`'s order; :math:`\sum_i E_i u_i = u`. Channels as in
    :func:`unpatchify`.
    """
    pixels = _tensor("extension", "patch", patch)
    if pixels.ndim != 1:
        raise ValueError(f"extension: patch must be one row of patchify, got shape {list(pixels.shape)}.")
    rows, columns = _sides("extension", n)
    if not 0 <= index < rows * columns:
        raise ValueError(f"extension: index must lie in [0, {rows * columns}), got {index}.")
    indicator = torch.nn.functional.one_hot(torch.tensor(index), rows * columns).to(pixels)
    return unpatchify(indicator[:, None] * pixels, channels=channels, grid=(rows, columns))


def patch_variation(
    u: Tensor,
    n: int | tuple[int, int],
    *,
    weights: float = 1.0,
    neighbours: Neighbours = 4,
    scaling: VariationScaling = "discrete",
) -> Tensor:
    r""":math:`|u_i|_{BV(\Omega_i)}` of every patch: ``[n²]``, or ``[b, n²]`` for a batch.

    Their sum is at most :math:`|u|_{BV(\Omega)}` (for the discrete scaling): patches do not see the edges between them,
    which is why BV(Ω) is only a part of the product space. ``scaling`` ``"continuum"`` keeps the image's pixel spacing,
    so that here too the sum tends to the integral over the cut image.
    """
    image = floating("patch_variation", "u", u)
    rows, columns = _sides("patch_variation", n)
    patches = patchify(image, n)
    h, w = image.shape[-2] // rows, image.shape[-1] // columns
    c = patches.shape[-1] // (h * w)
    images = patches.reshape(-1, h, w, c).permute(0, 3, 1, 2)
    variations = bv_seminorm(images, weights=weights, neighbours=neighbours, scaling=scaling)
    if scaling == "continuum":
        # A patch was scaled as a unit square of h × w pixels; it is the fraction h/H × w/W of one. Lengths shrink by n
        # in the gradient's denominator and areas by n²: for square cuts the integral is 1/n of the patch's own.
        if rows != columns:
            raise ValueError(f"patch_variation: n must be the same both ways for the continuum scaling, got {n}.")
        variations = variations / rows
    return variations.reshape(patches.shape[:-1])


def _tensor(where: str, name: str, value: Any) -> Tensor:
    """A tensor as it is: cutting needs no floats."""
    tensor = torch.as_tensor(value)
    if tensor.is_floating_point():
        return floating(where, name, tensor)
    return tensor


def _sides(where: str, n: int | tuple[int, int]) -> tuple[int, int]:
    rows, columns = n if isinstance(n, (tuple, list)) else (n, n)
    if int(rows) != rows or int(columns) != columns or rows < 1 or columns < 1:
        raise ValueError(f"{where}: n must be a positive number of patches per side, got {n}.")
    return int(rows), int(columns)


def _squarefree(d: int) -> int:
    """The smallest c for which d / c is a square."""
    return next((c for c in range(1, d + 1) if d % c == 0 and math.isqrt(d // c) ** 2 == d // c), 1)
