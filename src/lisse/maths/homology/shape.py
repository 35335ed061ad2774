"""A cloud as its distances, with the unit they are measured in and how far they may be off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

from lisse.maths.given import Values, check_least, check_word
from lisse.maths.intervals import median
from lisse.maths.spread import SpreadKind

from .metric import as_cloud, distance_matrices, distance_matrix

_DISTANCES = 1e-12  # relative error of distance_matrix at worst
_ROWS = 2**22  # numbers whose norms are taken at a time


@dataclass(frozen=True, slots=True)
class Shape:
    """``distances`` ``[n, n]`` of a cloud, on the CPU; ``spread``: its size; ``slack``: what each may be off by.

    All in the unit of the points. :attr:`error` is the slack in units of the spread.
    """

    distances: Tensor
    spread: float
    slack: float

    @property
    def error(self) -> float:
        """How far a distance over the spread may be off; from 1 on the cloud is a point as far as anybody can tell."""
        return self.slack / self.spread if self.spread > 0 else float("inf")

    @property
    def pairs(self) -> Tensor:
        """The distances of pairs of different points, each once."""
        return upper_triangle(self.distances)


def shape_of(
    points: Values,
    *,
    rows: Values | None = None,
    device: torch.device | str | None = None,
    kind: SpreadKind = "centroid",
    rounding: float | None = None,
) -> Shape:
    r"""The shape of a cloud ``[n, …]``, or of its ``rows``: all that homology and divergence ask of it, in two passes.

    ``distances`` are those of :func:`distance_matrix` (made on ``device``, kept on the CPU, where homology is
    computed). The ``spread`` is read off them, :math:`s^2 = \frac1{2n^2} \sum_{ij} D_{ij}^2` for ``kind="centroid"``
    (see :func:`~lisse.maths.spread.spread`); the largest distance from the centroid likewise,
    :math:`r_i^2 = \frac1n \sum_j D_{ij}^2 - s^2`.

    ``slack`` is :math:`2 \rho \max_i \|x_i\| + 2 \cdot 10^{-12} \max_i r_i`: a point whose coordinates are right to a
    share ρ is off by at most ρ‖x‖, so a distance by at most twice that; the second term is the arithmetic of the
    distances. ``rounding`` ρ is half the precision of the points' dtype unless given; say more (1e-5) for activations
    that went through many layers in float32. What differs by less is not known to differ.

    Cost: n² d / 2 multiply-adds and two passes over the cloud, which is never copied as a whole.
    """
    cloud = as_cloud(points, name="shape_of").detach()
    share = torch.finfo(cloud.dtype).eps / 2 if rounding is None else rounding
    check_least("shape_of", 0, rounding=share)
    check_word("shape_of", get_args(SpreadKind), kind=kind)
    distances = distance_matrix(cloud, rows=rows, device=device).cpu()
    index = torch.arange(len(cloud)) if rows is None else torch.as_tensor(rows)
    norms = [
        torch.linalg.vector_norm(cloud[part], dim=1, dtype=torch.float64).max()
        for part in index.to(cloud.device).split(max(1, _ROWS // cloud.shape[1]))
    ]
    return _shape(distances, float(torch.stack(norms).max()), share, kind)


def shapes_of(points: Values, rows: Tensor, *, device: torch.device | str | None = None) -> list[Shape]:
    """:func:`shape_of` for every row of ``rows`` ``[k, n]``: on a GPU all clouds at once, fetched together."""
    cloud = as_cloud(points, name="shapes_of").detach()
    if torch.device(cloud.device if device is None else device).type == "cpu":
        return [shape_of(cloud, rows=index, device=device) for index in rows]
    matrices = distance_matrices(cloud, rows, device=device)
    parts = cloud.split(max(1, _ROWS // cloud.shape[1]))  # each is widened as a whole
    lengths = torch.cat([torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in parts])
    norms = lengths[rows.to(cloud.device)].amax(1)
    share = torch.finfo(cloud.dtype).eps / 2
    pairs = zip(matrices.cpu(), norms.tolist(), strict=True)
    return [_shape(distances, norm, share, "centroid") for distances, norm in pairs]


def _shape(distances: Tensor, norm: float, share: float, kind: SpreadKind) -> Shape:
    """The shape of a cloud from its distances, its largest norm, and what a number of it may be off by."""
    largest = float(distances.max())
    if largest == 0:
        return Shape(distances, 0.0, share)
    means = (distances / largest).square().mean(1)  # of numbers whose squares stay in range
    centroid = means.mean() / 2
    radius = largest * float((means.max() - centroid).clamp_min(0).sqrt())
    if kind == "centroid":
        size = largest * float(centroid.sqrt())
    else:
        lengths = upper_triangle(distances)
        size = float(lengths.mean() if kind == "mean_pair" else median(lengths))
    return Shape(distances, size, 2 * (share * norm + _DISTANCES * radius))


def upper_triangle(matrix: Tensor) -> Tensor:
    """The numbers above the diagonal of a square matrix, in rows."""
    return matrix[torch.ones_like(matrix, dtype=torch.bool).triu(1)]
