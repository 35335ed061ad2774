"""Bilinear and Gaussian deformation on a CPU as one compiled loop each.

A row's displacements stay in the cache, and no grid is written. ``grid_sample`` needs one of two numbers a pixel, which
goes through memory that was never touched before; at 224² that costs as much as the interpolation. It also takes
positions to [-1, 1] and back, which rounds; here they stay in pixels, so that zero fields are the identity. Needs numba
(``lisse[fast]``); without it :func:`~lisse.maths.diffeomorphism.deform` uses ``grid_sample``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lisse.maths.diffeomorphism.field import Field
from lisse.maths.diffeomorphism.modes import sines
from lisse.maths.machine_code import in_turn, loops

#: Images of one piece of work, in pixels: large enough for a thread, small enough for its factors to stay in the cache.
_PIXELS = 1 << 18
#: Pixels below which a second thread costs more than it saves.
_ALONE = 1 << 15
#: Parts of a batch for every thread, at least: a thread that has less of its core takes fewer.
_PARTS = 4
#: Factors held at a time, so that memory does not grow with the number of images.
_FACTORS = 1 << 24


def loop_deformed(images: Tensor, field: Field, interpolation: str, *, sigma: float) -> Tensor | None:
    """``images`` ``[n, c, h, w]`` deformed by n fields (or one): ``bilinear``, or ``gaussian`` of width ``sigma``.

    None where the loops cannot do it: they take float32 on the CPU, need numba, and give no gradients.
    """
    if images.device.type != "cpu" or images.dtype != torch.float32 or images.numel() == 0:
        return None
    if torch.is_grad_enabled() and any(x.requires_grad for x in (images, field.cu, field.cv)):
        return None
    compiled = loops("lisse.maths.diffeomorphism.loops")
    if compiled is None:
        return None
    if interpolation == "bilinear":
        return _deformed(images.contiguous(), field, compiled.bilinear, ())
    return _deformed(images.contiguous(), field, compiled.gaussian, (np.float32(1 / sigma**2),))


def _deformed(images: Tensor, field: Field, kernel: Callable[..., None], more: tuple[Any, ...]) -> Tensor:
    n, _, h, w = images.shape
    side = field.cu.shape[-1]
    across, down = (sines(k, side, field.grid, torch.float32, images.device) for k in (w, h))
    result = np.empty(images.shape, np.float32)  # NumPy asks for huge pages: fresh memory costs less
    source = images.detach().numpy()
    rows = down.contiguous().numpy()
    share = n if n * h * w <= _ALONE else -(-n // (_PARTS * torch.get_num_threads()))
    size = max(1, min(_PIXELS // (h * w), share))

    # The factors are made here and not by the workers: a matrix product in a new thread starts threads of its own.
    for first in range(0, n, block := max(1, _FACTORS // (2 * side * w))):
        part = slice(first, min(first + block, n)) if len(field) > 1 else slice(0, 1)
        both = torch.stack([field.cu[part].detach() * w, field.cv[part].detach() * h], 1).float()
        with torch.autocast("cpu", enabled=False):
            product = both.transpose(2, 3).reshape(-1, side) @ across.T  # one, not one a field
        along = product.reshape(-1, 2, side, w).numpy()  # [count, 2, j, w]

        def work(start: int, first: int = first, along: np.ndarray = along, block: int = block) -> None:
            stop = min(start + size, first + block, n)
            factors = along[start - first : stop - first] if len(field) > 1 else along
            kernel(source[start:stop], factors, rows, result[start:stop], *more)

        starts = range(first, min(first + block, n), size)
        in_turn(work, starts, min(torch.get_num_threads(), len(starts)))
    return torch.from_numpy(result)
