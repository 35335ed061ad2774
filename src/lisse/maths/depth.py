"""Numbers over depth, and what is left of them when other layers are read: regular sub-samplings of the layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lisse.maths.given import Values, check_integer, floating


@dataclass(frozen=True, slots=True)
class OverDepth:
    """A statistic over all layers (``value``), and the least and the largest over sub-samplings (all layers too).

    ``values`` are those of each sub-sampling, in the order of :func:`subsamplings`, the first of all layers.
    """

    value: float
    low: float
    high: float
    values: tuple[float, ...]


def subsamplings(count: int, *, steps: Sequence[int] = (1, 2, 3)) -> list[list[int]]:
    r"""Regular choices among ``count`` layers: all; every second from 0 and from 1; every third from 0, 1 and 2; …

    :math:`\{\varphi + k s\} \cup \{0, \text{count} - 1\}` for each step s and phase φ < s, sorted, without repeats; all
    layers come first. The first and the last layer are always read, so that all choices span the same stretch of
    network. At most :math:`\sum s` of them.
    """
    check_integer("subsamplings", 1, count=count, **{f"steps[{index}]": step for index, step in enumerate(steps)})
    choices = {tuple(range(count)): None}
    for step in steps:
        for phase in range(step):
            choices[tuple(sorted({0, count - 1, *range(phase, count, step)}))] = None
    return [list(choice) for choice in choices]


def over_subsamplings(
    values: Values,
    statistic: Callable[[Tensor], Tensor | float],
    *,
    steps: Sequence[int] = (1, 2, 3),
    pairs: bool = False,
) -> OverDepth:
    r"""A statistic of values per layer ``[L, …]``, over all layers and over each regular choice of them.

    ``statistic`` takes the values of the layers that are read and gives one number. ``pairs``: values are of pairs of
    layers ``[L, L]``, and both axes are restricted, as a number between *neighbouring* layers needs: who neighbours
    whom depends on what is read (``lambda d: d.diagonal(1).max()``). A number whose range is wide says more about the
    choice of layers than about the network.
    """
    table = floating("over_subsamplings", "values", values)
    if table.ndim < 1 + pairs or not len(table) or (pairs and table.shape[0] != table.shape[1]):
        form = "[L, L, …]" if pairs else "[L, …]"
        raise ValueError(f"over_subsamplings: values must be {form}, got shape {list(table.shape)}.")
    numbers = []
    for choice in subsamplings(len(table), steps=steps):
        rows = table[choice]
        number = torch.as_tensor(statistic(rows[:, choice] if pairs else rows))
        if number.numel() != 1:
            raise ValueError(f"over_subsamplings: statistic must give one number, got shape {list(number.shape)}.")
        numbers.append(float(number))
    return OverDepth(numbers[0], min(numbers), max(numbers), tuple(numbers))
