"""What a person gives to a function of the mathematics: made into finite tensors of floats, numbers checked."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: What is taken where a tensor is meant.
Values = Tensor | np.ndarray


def floating(where: str, name: str, value: Any) -> Tensor:
    """``value`` as a tensor of floats: tensors and arrays of floats keep their dtype, all else becomes float64.

    NaN and infinity are refused.
    """
    try:
        # A Python number has the digits of float64, whatever torch's default is.
        plain = isinstance(value, (float, list, tuple)) and not _holds_tensors(value)
        values = torch.as_tensor(value, dtype=torch.float64 if plain else None)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{where}: {name} must be a tensor or an array, got {type(value).__name__}.") from error
    if values.is_complex():
        raise TypeError(f"{where}: {name} must be real, got {values.dtype}.")
    if not values.is_floating_point():
        values = values.double()
    if not all_finite(values):
        raise ValueError(f"{where}: {name} must be finite, got NaN or infinity in it.")
    return values


def all_finite(values: Tensor) -> bool:
    """Whether no entry is NaN or infinite: one pass over the numbers, a second only where their sum overflows."""
    values = values.detach()
    return bool(torch.isfinite(values.sum())) or bool(torch.isfinite(values).all())


def finiteness(values: Tensor) -> Tensor:
    """:func:`all_finite` as a tensor where the values are: nothing waits for a device. Their sum in float64 is finite.

    On the CPU, where that would take longer, as there.
    """
    if values.is_cuda:
        return values.detach().sum(dtype=torch.float64).isfinite()
    return torch.tensor(all_finite(values))


def check_least(where: str, least: float, **numbers: float) -> None:
    """Refuse a number below ``least``; NaN is."""
    for name, number in numbers.items():
        if not number >= least:
            raise ValueError(f"{where}: {name} must be at least {least}, got {number}.")


def check_integer(where: str, least: int, **numbers: Any) -> None:
    """Refuse what is no integer of at least ``least``."""
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, Integral) or number < least:
            raise ValueError(f"{where}: {name} must be an integer of at least {least}, got {number!r}.")


def check_positive(where: str, **numbers: float) -> None:
    """Refuse 0, what is below it, and NaN."""
    for name, number in numbers.items():
        if not number > 0:
            raise ValueError(f"{where}: {name} must be positive, got {number}.")


def check_level(where: str, level: float) -> None:
    """Refuse a level of confidence that is none."""
    if not 0 < level < 1:
        raise ValueError(f"{where}: level must lie in (0, 1), got {level}.")


def check_word(where: str, choices: Sequence[str], **words: str) -> None:
    """Refuse a word that is not one of ``choices``."""
    for name, word in words.items():
        if word not in choices:
            raise ValueError(f"{where}: {name} must be one of {', '.join(choices)}, got {word!r}.")


def overflow_advice(values: Tensor) -> str:
    """What to say where ``values`` are not finite: half precision ends at 65504."""
    if values.dtype != torch.float16:
        return ""
    return " float16 ends at 65504, and this layer goes beyond: take bfloat16 or float32 (?dtype=bfloat16)."


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
