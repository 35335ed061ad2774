"""Probability measures on finitely many atoms: what attention acts on and what transport compares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from lisse.maths.given import Values, all_finite

# What float32 weights can miss, also after they became float64. A forgotten mass is more than that.
_MASS_TOL = {torch.float64: 1e-6, torch.float32: 1e-5}


@dataclass(frozen=True, eq=False)
class Measure:
    r"""A probability measure :math:`\mu = \sum_i w_i \delta_{x_i}` with atoms ``points`` ``[n, d]``.

    ``weights`` ``[n]`` are non-negative and sum to 1; ``None`` stands for the empirical measure :math:`m(X)` with
    :math:`w_i = 1/n` ([vuckovic2021] sec. 4.1) and is kept, so that what is cheaper for equal weights can see it.
    Atoms may repeat and may have weight 0. Points of shape ``[n]`` are numbers on the line. NumPy arrays become
    tensors; integers become the default floating type. Gradients flow through points and weights.
    """

    points: Tensor
    weights: Tensor | None = None

    def __post_init__(self) -> None:
        points = _floating(self.points)
        if points.ndim == 1:
            points = points[:, None]
        if points.ndim != 2:
            raise ValueError(f"Measure: points must have shape [n, d], got {list(points.shape)}.")
        if len(points) == 0:
            raise ValueError("Measure: points must hold at least one atom, got an empty measure.")
        if points.shape[1] == 0:
            raise ValueError(f"Measure: points must have at least one coordinate, got shape {list(points.shape)}.")
        if not all_finite(points):
            raise ValueError("Measure: points must be finite, got NaN or infinity among them.")
        object.__setattr__(self, "points", points)
        if self.weights is not None:
            object.__setattr__(self, "weights", _checked_weights(self.weights, points))

    @property
    def uniform(self) -> bool:
        """Whether it was given as an empirical measure, without weights."""
        return self.weights is None

    @property
    def mass(self) -> Tensor:
        """The weights ``[n]``, also where they are equal."""
        if self.weights is not None:
            return self.weights
        return self.points.new_full((len(self.points),), 1 / len(self.points))

    @property
    def mean(self) -> Tensor:
        """The barycentre ``[d]``: :math:`\\int x \\, d\\mu`."""
        return self.points.mean(0) if self.weights is None else self.weights @ self.points

    @property
    def dim(self) -> int:
        """The number of coordinates d."""
        return self.points.shape[1]

    def __len__(self) -> int:
        return len(self.points)

    def push(self, points: Tensor) -> Measure:
        """The same weights on other atoms, one for each of ours: a push-forward."""
        if len(points) != len(self.points):
            raise ValueError(f"Measure.push: points must be one per atom, got {len(points)} for {len(self.points)}.")
        return Measure(points, self.weights)

    def __repr__(self) -> str:
        kind = "uniform" if self.uniform else "weighted"
        return f"Measure({len(self)} atoms in R^{self.dim}, {kind}, {self.points.dtype})"


def carried(measure: Measure, points: Tensor) -> Measure:
    """``measure.push(points)`` for points that were checked already, one for each atom."""
    moved = object.__new__(Measure)
    object.__setattr__(moved, "points", points)
    object.__setattr__(moved, "weights", measure.weights)
    return moved


def as_measure(where: str, name: str, value: Measure | Values) -> Measure:
    """A measure as it is, and points as their empirical measure."""
    if isinstance(value, Measure):
        return value
    if isinstance(value, (Tensor, np.ndarray)):
        return Measure(cast(Tensor, value))
    raise TypeError(f"{where}: {name} must be a Measure, a tensor or an array, got {type(value).__name__}.")


def _floating(values: Values) -> Tensor:
    tensor = torch.as_tensor(values)
    return tensor if tensor.is_floating_point() else tensor.to(torch.get_default_dtype())


def _checked_weights(weights: Values, points: Tensor) -> Tensor:
    values = _floating(weights)
    if values.shape != (len(points),):
        raise ValueError(f"Measure: weights must have shape [{len(points)}], got {list(values.shape)}.")
    if not all_finite(values):
        raise ValueError("Measure: weights must be finite, got NaN or infinity among them.")
    least = float(values.detach().min())
    if least < 0:
        raise ValueError(f"Measure: weights must not be negative, got {least:g}.")
    total = float(values.detach().double().sum())
    if abs(total - 1) > _MASS_TOL.get(values.dtype, 1e-2):
        raise ValueError(f"Measure: weights must sum to 1, got {total:.12g}. Divide them by their sum.")
    mass = values.to(points)
    # Weights that came from float32 are made to sum to 1 in float64; those that do already are left alone.
    return mass / mass.sum() if abs(total - 1) > 1e-12 and points.dtype == torch.float64 else mass
