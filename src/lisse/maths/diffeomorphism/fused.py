"""Bilinear deformation on a CUDA device as one Triton kernel: images in, images out, the field only in registers.

Reading a field back from memory costs two thirds of the images' own traffic at three channels; here a piece of a row
makes its displacements from c numbers a column and c a row. Positions stay in pixels, so zero fields are the identity.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lisse.maths.diffeomorphism.field import Field
from lisse.maths.diffeomorphism.modes import sines


@dataclass(frozen=True, slots=True)
class Tile:
    """The pixels of one program: ``rows`` 1, 4 or 8, ``columns`` a power of 2 of at least 32, in ``warps`` warps."""

    rows: int
    columns: int
    warps: int


#: A piece of one row in one warp: the only one that was measured on a device so far (an H200). Tiles as tensors of two
#: axes, and products on tensor cores, were slower: values that travel between rows and columns go through shared
#: memory.
TILE = Tile(1, 128, 1)
#: Compiled for an H200's instructions, but not timed yet: benchmarks/diffeomorphism_gpu.py --tiles does that.
OTHER_TILES = (
    *(Tile(1, columns, columns // 32) for columns in (32, 64, 128, 256)),
    *(Tile(rows, columns, columns // 32) for rows in (4, 8) for columns in (32, 64, 128, 256)),
)
#: Channels of one launch: their loads are in flight together.
TOGETHER = 4
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def fits(images: Tensor, field: Field) -> bool:
    """Whether the kernel can do it: a CUDA device with Triton, floats up to 32 bits, no gradients asked for."""
    if not images.is_cuda or images.dtype not in DTYPES or images.numel() == 0 or _kernel() is None:
        return False
    return not (torch.is_grad_enabled() and any(x.requires_grad for x in (images, field.cu, field.cv)))


def bilinear(images: Tensor, field: Field, *, tile: Tile = TILE) -> Tensor:
    """Contiguous ``images`` ``[n, c, h, w]`` deformed by n fields (or one), as :func:`deform` defines it.

    ``tile`` changes the time alone.
    """
    n, channels, h, w = images.shape
    side = field.cu.shape[-1]
    across, down = (sines(k, side, field.grid, torch.float32, images.device) for k in (w, h))
    both = torch.stack([field.cu * w, field.cv * h], 1).float()
    with torch.autocast("cuda", enabled=False):
        along = (both.transpose(2, 3) @ across.T).contiguous()  # [count, 2, j, w]
    result = torch.empty_like(images)
    tiles = -(-h // tile.rows) * -(-w // tile.columns)
    each = 2 * side * w if len(field) > 1 else 0
    more = {"SIDE": side, "COLUMNS": tile.columns, "num_warps": tile.warps}
    kernel = _kernel().warp
    if tile.rows > 1:
        kernel, more["ROWS"] = _kernel().warp_rows, tile.rows
        down = torch.nn.functional.pad(down.T, (0, -h % 8)).contiguous()
    with torch.cuda.device(images.device):
        for first in range(0, channels, TOGETHER):
            kernel[(tiles * n,)](
                images, result, along, down, h, w, channels, first, each,
                CHANNELS=min(TOGETHER, channels - first), **more,
            )  # fmt: skip
    return result


@functools.cache
def _kernel() -> Any:
    """The module of the kernels, or None without Triton."""
    try:
        from lisse.maths.diffeomorphism import tile_kernel
    except ImportError:
        return None
    return tile_kernel
