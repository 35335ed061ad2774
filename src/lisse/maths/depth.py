"""Which layers might have been read: regular sub-samplings of depth, for numbers that should not depend on it."""

from __future__ import annotations

from collections.abc import Sequence

from lisse.maths.given import check_integer


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
