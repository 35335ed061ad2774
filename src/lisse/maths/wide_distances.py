"""Distances within a cloud of few points in many dimensions, as a layer's activations are, read block by block."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lisse.maths.homology import distance_matrix

_FEATURES = 4096  # columns at a time: with 500 points, 16 MB of scratch
_CENTRE = 16  # rows whose mean is the centre; a power of two, so that equal rows have themselves for a mean
_NEAR = 1e-4  # of |x|² + |y|²: there the difference has lost four digits, and the pair is redone
_NUMBERS = 2**22


def wide_distances(points: Tensor, *, rows: Tensor | None = None, device: torch.device | str | None = None) -> Tensor:
    r"""Euclidean distances ``[n, n]`` in float64 of a cloud ``[n, …]``, or of its ``rows``: symmetric, diagonal 0.

    :math:`\|x_i - x_j\|^2 = g_{ii} + g_{jj} - 2 g_{ij}` with the Gram matrix g of the points less a common centre,
    added up in float64 over blocks of features. The cloud is never copied as a whole, so it may lie in a mapped file or
    be much larger in float64 than the memory there is; ``device`` is where the products are made (default: where the
    points are). Pairs nearer than a hundredth of their distance from the centre are redone by direct differences.

    Exact to about 1e-12 relative; equal points are at exactly 0. Cost: n² d / 2 multiply-adds (n² d on a
    GPU) and one pass over the cloud, O(n² + 4096 n) memory. For many points in few dimensions use
    :func:`lisse.maths.homology.distance_matrix`.
    """
    cloud = torch.as_tensor(points).detach()
    if cloud.ndim < 2:
        raise ValueError(f"wide_distances: points must have shape [n, …, d], got {list(cloud.shape)}.")
    cloud = cloud.flatten(1)
    if rows is not None:
        rows = torch.as_tensor(rows)
    n = len(cloud) if rows is None else len(rows)
    if n < 2:
        raise ValueError(f"wide_distances: points must hold at least 2 points, got {n}.")
    where = cloud.device if device is None else torch.device(device)
    gram = torch.zeros(n, n, dtype=torch.float64, device=where)
    scratch = torch.empty(n, _FEATURES, dtype=torch.float64, device=where)
    for start in range(0, cloud.shape[1], _FEATURES):
        some = cloud[:, start : start + _FEATURES]
        block = scratch[:, : some.shape[1]]
        block.copy_(some if rows is None else some[rows])
        block -= block[:_CENTRE].mean(0)
        if block.is_cpu:  # NumPy sees the product with its own transpose and makes one triangle of it: half the work
            values = block.numpy()
            with np.errstate(over="ignore", invalid="ignore"):  # seen below, in the norms
                gram += torch.from_numpy(values @ values.T)
        else:
            gram.addmm_(block, block.T)
    norms = gram.diagonal().clone()
    if not bool(norms.isfinite().all()):
        # NaN and infinity are refused there, by name; numbers whose squares overflow are scaled.
        return distance_matrix(cloud if rows is None else cloud[rows])
    sums = norms[:, None] + norms
    squares = (sums - 2 * gram).triu_(1)
    first, second = ((squares < _NEAR * sums) & (sums > 0)).triu_(1).nonzero(as_tuple=True)
    matrix = squares.clamp_(min=0).sqrt_()
    if len(first):
        matrix[first, second] = _lengths(cloud, rows, first.cpu(), second.cpu()).to(where)
    return matrix + matrix.T


def covering(distances: Tensor, count: int) -> tuple[Tensor, float]:
    r"""Maxmin landmarks of a cloud from its distances ``[n, n]``, and their covering radius.

    The first point, then always the point farthest from those taken; indices ``[count]`` in increasing order. No point
    is farther than the radius r from a landmark, so that the Vietoris-Rips diagrams of the landmarks and of the cloud
    are at most 2 r apart in bottleneck distance (diameter convention). Cost: O(count n).
    """
    if not 1 <= count <= len(distances):
        raise ValueError(f"covering: count must lie between 1 and the {len(distances)} points, got {count}.")
    nearest = distances[0].clone()
    picks = [0]
    while len(picks) < count:
        picks.append(int(nearest.argmax()))
        torch.minimum(nearest, distances[picks[-1]], out=nearest)
    return torch.tensor(sorted(picks), device=distances.device), float(nearest.max())


def _lengths(cloud: Tensor, rows: Tensor | None, first: Tensor, second: Tensor) -> Tensor:
    """Distances of the pairs by direct differences in float64, a bounded number of numbers at a time."""
    if rows is not None:
        first, second = rows[first], rows[second]
    step = max(1, _NUMBERS // max(1, cloud.shape[1]))
    parts = [
        torch.linalg.vector_norm(cloud[i].double() - cloud[j].double(), dim=1)
        for i, j in zip(first.split(step), second.split(step), strict=True)
    ]
    return torch.cat(parts)
