"""Which modes a cut-off keeps, the sines they are made of, and the normals their coefficients are drawn from."""

from __future__ import annotations

import functools
import math
import numbers
from typing import Literal, get_args

import torch
from torch import Tensor

from lisse.maths.given import check_word

ModeRule = Literal["paper", "code"]
GridRule = Literal["cell", "linspace"]
#: torch.randn on the CPU works in blocks of this many: rows that are multiples of it can be drawn in any batches.
BLOCK = 16
#: The largest cut-off: a field then has 16 million coefficients.
LARGEST_CUT = 4096


def check_rules(where: str, cut: float, modes: str, grid: str = "cell") -> None:
    """Refuse a cut-off without modes or with more than memory holds, and unknown rules."""
    check_word(where, get_args(ModeRule), modes=modes)
    check_word(where, get_args(GridRule), grid=grid)
    if isinstance(cut, bool) or not isinstance(cut, numbers.Real) or not math.isfinite(cut):
        raise TypeError(f"{where}: cut must be a finite number, got {cut!r}. 3 is usual.")
    if cut > LARGEST_CUT:
        raise ValueError(f"{where}: cut must be at most {LARGEST_CUT}, got {cut}. 3 is usual.")
    if cut < 1 or not bool(mode_mask(float(cut), modes).any()):
        least = "√2" if modes == "paper" else "1"
        raise ValueError(f"{where}: cut must be at least {least} to keep a mode, got {cut}. 3 is usual.")


@functools.lru_cache(maxsize=64)
def mode_mask(cut: float, modes: str) -> Tensor:
    """Booleans ``[c, c]``, index ``[i - 1, j - 1]``, c the whole part of the cut-off: the modes that are kept.

    ``paper``: i² + j² ≤ c² ([petrini2021] sec. 2.1). ``code``: √(i² + j²) < c + ½ and i, j ≤ c (the authors' public
    code). They keep 4 and 6 modes at c = 3.
    """
    i = torch.arange(1, math.floor(cut) + 1, dtype=torch.float64)
    square = i[:, None] ** 2 + i**2
    return square <= cut**2 if modes == "paper" else square.sqrt() < cut + 0.5


@functools.lru_cache(maxsize=64)
def mode_places(cut: float, modes: str) -> tuple[Tensor, Tensor]:
    """Where the kept modes stand in a flattened ``[c, c]`` (``[M]``), and their i² + j² (float64 ``[M]``)."""
    positions = mode_mask(cut, modes).flatten().nonzero()[:, 0]
    side = math.floor(cut)
    i, j = positions // side + 1, positions % side + 1
    return positions, (i**2 + j**2).double()


def coordinates(n: int, grid: str) -> Tensor:
    """Where the n pixels of a side lie in [0, 1], float64: ``cell`` (k + ½)/n, ``linspace`` k/(n - 1)."""
    k = torch.arange(n, dtype=torch.float64)
    return (k + 0.5) / n if grid == "cell" else k / (n - 1)


@functools.lru_cache(maxsize=64)
def sines(n: int, side: int, grid: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    """sin(iπu) ``[n, side]`` at the pixels of a side, i = 1…side; made in float64."""
    i = torch.arange(1, side + 1, dtype=torch.float64)
    return torch.sin(math.pi * coordinates(n, grid)[:, None] * i).to(device, dtype)


def normals(count: int, width: int, generator: torch.Generator | None) -> Tensor:
    """Standard normals ``[count, width]``, float32, row by row: two draws of 5 rows are one draw of 10.

    Rows are drawn in multiples of 16 numbers, which makes that true of a generator on the CPU (of one on a GPU it is
    not: its numbers depend on the size of the draw). They lie on the generator's device.
    """
    device = generator.device if generator is not None else torch.device("cpu")
    padded = -(-width // BLOCK) * BLOCK
    return torch.randn(count, padded, generator=generator, dtype=torch.float32, device=device)[:, :width]
