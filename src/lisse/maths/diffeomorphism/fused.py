"""Bilinear deformation on a CUDA device as one Triton kernel: images in, images out, the field only in registers.

Reading a field back from memory costs two thirds of the images' own traffic at three channels; here a strip of rows
makes its displacements from c numbers a column and c a row. Positions stay in pixels, so zero fields are the identity.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from lisse.maths.diffeomorphism.field import Field
from lisse.maths.diffeomorphism.modes import sines

#: What one program does: so many columns of so many rows, 32 columns to a warp. Of 1 … 224 rows and 32 … 256 columns,
#: the fastest on an H200 at c = 3 and 15 together. Tiles as tensors of two axes, and products on tensor cores, were
#: slower: values that travel between rows and columns go through shared memory.
ROWS, COLUMNS = 16, 128
#: Channels of one launch: their loads are in flight together.
TOGETHER = 4
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def fits(images: Tensor, field: Field) -> bool:
    """Whether the kernel can do it: a CUDA device with Triton, floats up to 32 bits, no gradients asked for."""
    if not images.is_cuda or images.dtype not in DTYPES or images.numel() == 0 or _kernel() is None:
        return False
    return not (torch.is_grad_enabled() and any(x.requires_grad for x in (images, field.cu, field.cv)))


def bilinear(images: Tensor, field: Field) -> Tensor:
    """Contiguous ``images`` ``[n, c, h, w]`` deformed by n fields (or one), as :func:`deform` defines it.

    Triton compiles the kernel once for every height, width and number of modes, which takes about a second.
    """
    n, channels, h, w = images.shape
    side = field.cu.shape[-1]
    across, down = (sines(k, side, field.grid, torch.float32, images.device) for k in (w, h))
    down = torch.nn.functional.pad(down, (0, -side % 4)).contiguous()  # [h, side], four sines to a load
    both = torch.stack([field.cu * w, field.cv * h], 1).float()
    with torch.autocast("cuda", enabled=False):
        along = (both.transpose(2, 3) @ across.T).contiguous()  # [count, 2, j, w]
    result = torch.empty_like(images)
    strips = -(-h // ROWS) * -(-w // COLUMNS)
    each = 2 * side * w if len(field) > 1 else 0
    with torch.cuda.device(images.device):
        for first in range(0, channels, TOGETHER):
            _kernel().warp[(strips * n,)](
                images, result, along, down, channels, first, each,
                H=h, W=w, CHANNELS=min(TOGETHER, channels - first), SIDE=side, COLUMNS=COLUMNS, ROWS=ROWS,
                num_warps=COLUMNS // 32,
            )  # fmt: skip
    return result


@functools.cache
def _kernel() -> Any:
    """The module of the kernel, or None without Triton."""
    try:
        from lisse.maths.diffeomorphism import tile_kernel
    except ImportError:
        return None
    return tile_kernel
