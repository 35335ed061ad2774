"""A persistence diagram: finite bars by dimension, and the bars that never end apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from lisse.maths.given import Values, all_finite

from .metric import plain_tensor


@dataclass(frozen=True, slots=True, eq=False)
class Diagram:
    """Bars of persistent homology.

    ``diagram[dim]`` ``[m, 2]``: (birth, death) of the finite bars of positive length in float64, sorted by birth, then
    by death. ``diagram.infinite[dim]`` ``[k]``: births of the bars that never end, sorted. ``dim in diagram`` and
    iteration go over the dimensions that were computed, in increasing order.
    """

    finite: Mapping[int, Tensor]
    infinite: Mapping[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        finite = {int(dim): sorted_bars(as_bars(self.finite[dim], name="Diagram")) for dim in sorted(self.finite)}
        infinite = {
            dim: torch.as_tensor(self.infinite.get(dim, []), dtype=torch.float64).reshape(-1).sort().values
            for dim in finite
        }
        object.__setattr__(self, "finite", finite)
        object.__setattr__(self, "infinite", infinite)

    def __getitem__(self, dim: int) -> Tensor:
        if dim not in self.finite:
            raise KeyError(f"Diagram: dim must be one of {self.dims}, got {dim}. Ask persistence for it with dims=….")
        return self.finite[dim]

    def __contains__(self, dim: object) -> bool:
        return dim in self.finite

    def __iter__(self) -> Iterator[int]:
        return iter(self.finite)

    def __len__(self) -> int:
        return len(self.finite)

    def __repr__(self) -> str:
        counts = ", ".join(f"H{dim}: {len(bars)} + {len(self.infinite[dim])}∞" for dim, bars in self.finite.items())
        return f"Diagram({counts})"

    @property
    def dims(self) -> tuple[int, ...]:
        """The dimensions that were computed, in increasing order."""
        return tuple(self.finite)

    def lifetimes(self, dim: int) -> Tensor:
        """``[m]``: death - birth of each finite bar, in the order of ``diagram[dim]``."""
        bars = self[dim]
        return bars[:, 1] - bars[:, 0]


Bars = Diagram | Values


def as_bars(bars: Values, *, name: str) -> Tensor:
    """Bars ``[m, 2]`` in float64 on the CPU, checked: finite, and no death before its birth."""
    values = finite_bars(bars, name=name).detach().to("cpu", torch.float64)
    if bool((values[:, 1] < values[:, 0]).any()):
        raise ValueError(f"{name}: bars must not die before they are born, got a death less than its birth.")
    return values


def finite_bars(bars: Values, *, name: str) -> Tensor:
    """Bars ``[m, 2]`` as they are (none: float64), checked to be finite; gradients pass."""
    values = plain_tensor(bars)
    if values.numel() == 0:
        return values.reshape(0, 2).to(torch.float64)
    if values.ndim != 2 or values.shape[1] != 2:
        raise ValueError(f"{name}: bars must have shape [m, 2], got {list(values.shape)}.")
    if not all_finite(values):
        raise ValueError(f"{name}: bars must be finite, got NaN or infinity. Leave infinite bars out.")
    return values


def sorted_bars(bars: Tensor) -> Tensor:
    """Bars of positive length, by birth, then by death."""
    bars = bars[bars[:, 1] > bars[:, 0]]
    values = bars.numpy()
    return bars[torch.from_numpy(np.lexsort((values[:, 1], values[:, 0])))]
