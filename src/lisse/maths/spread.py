r"""How large a cloud is: the unit in which its shape is measured, so that rotation, shift and scale do not matter."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from lisse.maths.given import Values, check_positive, check_word, floating
from lisse.maths.homology.metric import as_points, centred, distance_matrix
from lisse.maths.intervals import median

SpreadKind = Literal["centroid", "mean_pair", "median_pair"]


def spread(points: Values, *, kind: SpreadKind = "centroid") -> float:
    r"""How large a cloud ``[n, …]`` is; c times as large for c times the cloud, the same for it turned or shifted.

    - ``centroid``: root mean squared distance from the centroid,
      :math:`s^2 = \frac1n \sum_i \|x_i - \bar x\|^2 = \frac1{2 n^2} \sum_{i,j} \|x_i - x_j\|^2`. The usual choice: a
      closed form in O(n d) without the matrix of pairs; its square is a mean over samples (so it has a bootstrap, and
      splits into the square within groups and that between them); and a map of Lipschitz constant K makes it at most
      K times as large (all pairs are), a linear one :math:`\|A\|_F/\sqrt d` times for a cloud of unit covariance,
      which is what :func:`relative_stretch` divides by. Robust to nothing: a point at distance R adds about
      :math:`R^2/n` to :math:`s^2`.
    - ``mean_pair``: mean distance of two different points. A far point adds about 2R/n, not :math:`R^2/n`. O(n² d).
    - ``median_pair``: median distance of two different points. Bounded as long as the good pairs are the majority,
      :math:`(1 - \varepsilon)^2 > \frac12`: up to 29 % of the points may lie anywhere. 0 where more than 71 % of them
      coincide. O(n² d).

    In float64 whatever goes in.
    """
    check_word("spread", get_args(SpreadKind), kind=kind)
    cloud = as_points(points, name="spread")
    if kind == "centroid":
        return float(squared_radii(cloud).mean().sqrt())
    matrix = distance_matrix(cloud)
    lengths = matrix[torch.ones_like(matrix, dtype=torch.bool).triu(1)]
    return float(lengths.mean() if kind == "mean_pair" else median(lengths))


def squared_radii(points: Values) -> Tensor:
    r"""Squared distances ``[n]`` of points ``[n, …]`` from their centroid; their mean is the squared :func:`spread`."""
    _, squares, scale = centred(as_points(points, name="squared_radii"))
    return squares * scale**2


def relative_stretch(norms: Values, spread_in: float, spread_out: float) -> Tensor:
    r"""Local stretch over the stretch of the cloud as a whole: :math:`\|J(x_i)\| \, s_{in} / s_{out}`, ``[n]``.

    ``norms``: spectral norms of the Jacobian at the samples; the spreads are those of the clouds before and after.
    Multiplying the output by c multiplies the norm and :math:`s_{out}`, multiplying the input by c divides the norm and
    multiplies :math:`s_{in}`: neither is seen, nor are rotations, shifts, or a temperature of logits. 1 for a
    similarity (a map that keeps all ratios of distances), :math:`\sqrt d \, \|A\|/\|A\|_F` for a linear map of a cloud
    of unit covariance: between 1 and √d. Below 1 where the cloud is pulled apart elsewhere than at this sample.
    """
    values = floating("relative_stretch", "norms", norms)
    if bool((values < 0).any()):
        raise ValueError(f"relative_stretch: norms must be at least 0, got {float(values.min()):.3g}.")
    check_positive("relative_stretch", spread_in=spread_in, spread_out=spread_out)
    return values * (spread_in / spread_out)
