"""What a person gives to a function of the mathematics, made into finite tensors of floats."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def floating(where: str, name: str, value: Any) -> Tensor:
    """``value`` as a tensor of floats: tensors and arrays of floats keep their dtype, all else becomes float64.

    NaN and infinity are refused.
    """
    try:
        # A Python number has the digits of float64, whatever torch's default is.
        plain = isinstance(value, (float, list, tuple)) and not _holds_tensors(value)
        given = torch.as_tensor(value, dtype=torch.float64 if plain else None)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{where}: {name} must be a tensor or an array, got {type(value).__name__}.") from error
    if given.is_complex():
        raise TypeError(f"{where}: {name} must be real, got {given.dtype}.")
    if not given.is_floating_point():
        given = given.double()
    if not all_finite(given):
        raise ValueError(f"{where}: {name} must be finite, got NaN or infinity in it.")
    return given


def all_finite(given: Tensor) -> bool:
    """Whether no entry is NaN or infinite: from the two extremes, one pass without a mask of the same size."""
    if given.numel() == 0:
        return True
    low, high = given.detach().aminmax()  # NaN goes into both
    return bool(torch.isfinite(low) & torch.isfinite(high))


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and any(isinstance(part, Tensor) for part in value)


def square_grid(where: str, tokens: int, grid: tuple[int, int] | None) -> tuple[int, int]:
    """Rows and columns of the grid that ``tokens`` lie on: ``grid``, or a square."""
    if grid is None:
        side = round(tokens**0.5)
        if side * side != tokens:
            raise ValueError(
                f"{where}: tokens must fill a square grid, got {tokens}. Leave out a class token, or pass grid=(rows, "
                "columns)."
            )
        return side, side
    rows, columns = whole_grid(where, grid)
    if rows * columns != tokens:
        raise ValueError(f"{where}: grid must have as many places as there are tokens, got {grid} for {tokens}.")
    return rows, columns


def whole_grid(where: str, grid: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns that were given, if they are two whole numbers of at least 1."""
    sides = tuple(grid)
    if len(sides) != 2 or any(int(side) != side or side < 1 for side in sides):
        raise ValueError(f"{where}: grid must be (rows, columns), whole numbers of at least 1, got {grid}.")
    return int(sides[0]), int(sides[1])
