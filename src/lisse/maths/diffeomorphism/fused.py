"""Bilinear deformation on a CUDA device as one Triton kernel: images in, images out, the field only in registers.

Reading a field back from memory costs two thirds of the images' own traffic at three channels; here a tile of pixels
makes its displacements from c numbers a column and c a row. Positions stay in pixels, so zero fields are the identity.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from lisse.maths.diffeomorphism.field import Field
from lisse.maths.diffeomorphism.modes import sines

ROWS, COLUMNS = 8, 64
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def fits(images: Tensor, field: Field) -> bool:
    """Whether the kernel can do it: a CUDA device with Triton, floats up to 32 bits, no gradients asked for."""
    if not images.is_cuda or images.dtype not in DTYPES or images.numel() == 0 or _kernel() is None:
        return False
    return not (torch.is_grad_enabled() and any(x.requires_grad for x in (images, field.cu, field.cv)))


def bilinear(images: Tensor, field: Field) -> Tensor:
    """Contiguous ``images`` ``[n, c, h, w]`` deformed by n fields (or one), as :func:`deform` defines it."""
    n, channels, h, w = images.shape
    side = field.cu.shape[-1]
    across, down = (sines(k, side, field.grid, torch.float32, images.device) for k in (w, h))
    both = torch.stack([field.cu * w, field.cv * h], 1).float()
    with torch.autocast("cuda", enabled=False):
        along = (both.transpose(2, 3) @ across.T).contiguous()  # [count, 2, j, w]
    result = torch.empty_like(images)
    tiles = -(-h // ROWS) * -(-w // COLUMNS)
    each = 2 * side * w if len(field) > 1 else 0
    with torch.cuda.device(images.device):
        _kernel()[(tiles * n,)](
            images, result, along, down, h, w, channels, each, SIDE=side, ROWS=ROWS, COLUMNS=COLUMNS
        )
    return result


@functools.cache
def _kernel() -> Any:
    """The kernel, or None without Triton."""
    try:
        from lisse.maths.diffeomorphism import tile_kernel
    except ImportError:
        return None
    return tile_kernel.warp
