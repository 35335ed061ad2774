"""Bilinear deformation on a CUDA device as one Triton kernel: images in, images out, the field only in registers.

Reading a field back from memory costs two thirds of the images' own traffic at three channels; here a strip of rows
makes its displacements from c numbers a column and c a row. Positions stay in pixels, so zero fields are the identity.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lisse.maths.diffeomorphism.field import Field
from lisse.maths.diffeomorphism.modes import sines
from lisse.maths.machine_code import loops

#: What one program does: so many columns of so many rows, 32 columns to a warp. Of 1 … 224 rows and 32 … 256 columns,
#: the fastest on an H200 at c = 3 and 15 together. Tiles as tensors of two axes, and products on tensor cores, were
#: slower: values that travel between rows and columns go through shared memory.
_ROWS, _COLUMNS = 16, 128
#: Channels of one launch: their loads are in flight together.
_TOGETHER = 4
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def kernel_deformed(images: Tensor, field: Field) -> Tensor | None:
    """``images`` ``[n, c, h, w]`` deformed by n fields (or one), bilinear, as :func:`deform` defines it.

    None where the kernel cannot do it: it needs a CUDA device with Triton, takes floats up to 32 bits and gives no
    gradients. Triton compiles it once for every height, width and number of modes, which takes about a second.
    """
    if not images.is_cuda or images.dtype not in _DTYPES or images.numel() == 0:
        return None
    if torch.is_grad_enabled() and any(x.requires_grad for x in (images, field.cu, field.cv)):
        return None
    kernel = loops("lisse.maths.diffeomorphism.tile_kernel")
    if kernel is None:
        return None
    images = images.contiguous()
    n, channels, h, w = images.shape
    side = field.cu.shape[-1]
    across, down = (sines(k, side, field.grid, torch.float32, images.device) for k in (w, h))
    down = torch.nn.functional.pad(down, (0, -side % 4)).contiguous()  # [h, side], four sines to a load
    both = torch.stack([field.cu * w, field.cv * h], 1).float()
    with torch.autocast("cuda", enabled=False):
        along = (both.transpose(2, 3) @ across.T).contiguous()  # [count, 2, j, w]
    result = torch.empty_like(images)
    strips = -(-h // _ROWS) * -(-w // _COLUMNS)
    stride = 2 * side * w if len(field) > 1 else 0
    with torch.cuda.device(images.device):
        for first in range(0, channels, _TOGETHER):
            kernel.warp[(strips * n,)](
                images, result, along, down, channels, first, stride,
                H=h, W=w, CHANNELS=min(_TOGETHER, channels - first), SIDE=side, COLUMNS=_COLUMNS, ROWS=_ROWS,
                num_warps=_COLUMNS // 32,
            )  # fmt: skip
    return result
