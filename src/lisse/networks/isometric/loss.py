"""The isometric loss: how far a layer is from keeping the distances of its input, within classes or over all pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lisse.maths.isometry import cosine, euclidean, geodesic
from lisse.networks.isometric.stress import stress

Named = Literal["euclidean", "cosine", "geodesic", "precomputed"]
Metric = Named | Callable[[Tensor], Tensor]
Scaling = Literal["paper", "code"]
Groups = Tensor | np.ndarray | Sequence[int] | Sequence[str]

#: What multiplies the distances of the layer: 1 in the paper; the authors' code for MNIST asks for distances ten times
#: smaller than those of the input.
FACTORS: dict[str, float] = {"paper": 1.0, "code": 10.0}


def isometric_loss(
    x: Tensor | np.ndarray,
    z: Tensor | np.ndarray,
    groups: Groups | None = None,
    *,
    metric: Metric = "euclidean",
    output_metric: Metric | None = None,
    scaling: Scaling = "paper",
    fixed_input: bool = True,
    chunk: int | None = None,
) -> Tensor:
    r"""Mean square of what a map :math:`x \mapsto z` does to the distances within ``groups``, or to all of them.

    .. math:: L = \frac1{N^2} \sum_{ij} G_{ij} (D^x_{ij} - s D^z_{ij})^2, \qquad
              G_{ij} = 1 \text{ if } i, j \text{ are in one group, else } 0

    over ordered pairs (the diagonal adds 0), with s = 1 (``scaling="paper"``, [beshkov2022] eq. 1, 2) or s = 10
    (``"code"``: what the authors' program does on MNIST; its :math:`\lambda_1` is the weight β of this loss).
    ``x`` ``[n, …]`` and ``z`` ``[n, …]`` are the same samples before and after, further axes flattened. ``groups``
    ``[n]`` holds labels, numbers or names, or the parts of any other partition; ``None`` is global isometry (G = 1). A
    group of one sample adds nothing; one sample alone gives 0.

    ``metric`` is that of both sides, ``output_metric`` another one for z: ``euclidean``, ``cosine``
    (:math:`1 - \cos`), ``geodesic`` (shortest paths over the 10 nearest neighbours), or a function from points
    ``[n, d]`` to distances ``[n, n]``, such as ``functools.partial(geodesic, neighbours=5)``. With
    ``metric="precomputed"`` x holds the input's distances ``[n, n]`` itself, and z is Euclidean by default: for a fixed
    set of points they need not be made again in every step.

    ``fixed_input`` takes :math:`D^x` as a constant: what training wants, since weights do not move the input. With
    ``False`` the gradient also reaches x through :math:`D^x`; with respect to an input that z was computed from it is

    .. math:: \frac{\partial L}{\partial x_k} = \frac4{N^2} \sum_j G_{kj} H_{kj} \Big[\frac{x_k - x_j}{d_{kj}} -
              s\,\nabla\Phi(x_k)^\top J_{kj}\Big], \quad H = D^x - s D^z,\ J_{kj} = \frac{z_k - z_j}{D^z_{kj}}

    (SPEC of [beshkov2022]; its eq. 13 is another derivative and half of it, see :func:`printed_gradient`). Gradients
    are finite everywhere: at distance 0 they are taken as 0.

    Cost: two products n² d, and n² numbers while it runs; within groups of more than 64 points their own squares only.
    ``chunk`` rows at a time: O(chunk · n) memory. For Euclidean distances the gradient is made in the forward pass, and
    nothing of size n² waits for the backward one. float64 points give float64; halves are computed in float32.
    """
    x, z = _points("x", x), _points("z", z)
    n = len(z)
    if len(x) != n:
        raise ValueError(
            f"isometric_loss: x and z must hold the same samples, got {len(x)} and {n}. Give the layer's own input."
        )
    if scaling not in FACTORS:
        raise ValueError(
            f"isometric_loss: scaling must be 'paper' or 'code', got {scaling!r}. The paper's factor is 1."
        )
    same = None if groups is None else partition(groups, n, z.device)
    before = _metric("metric", metric)
    after = _metric("output_metric", output_metric) if output_metric is not None else before
    if after == "precomputed":
        if output_metric is not None:
            raise ValueError("isometric_loss: output_metric must be made from z, got 'precomputed'. Leave it out.")
        after = "euclidean"
    if before == "precomputed" and x.shape != (n, n):
        raise ValueError(
            f"isometric_loss: x must be the distances [{n}, {n}] where metric='precomputed', got {list(x.shape)}. "
            "Give the matrix of all pairs."
        )
    dtype = torch.promote_types(x.dtype, z.dtype)
    x, z = x.to(dtype), z.to(dtype)
    if fixed_input:
        x = x.detach()
    factor = FACTORS[scaling]
    if chunk is not None and (isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1):
        raise ValueError(f"isometric_loss: chunk must be a whole number of at least 1, got {chunk!r}. Try 512.")
    if chunk is not None and not (_local(before) and _local(after)):
        raise ValueError(
            "isometric_loss: chunk must go with euclidean, cosine or precomputed distances, whose rows stand alone, "
            "got another metric. Leave out chunk."
        )
    if n < 2:
        return (z * 0).sum() + (x * 0).sum()
    if after == "euclidean" and before in ("euclidean", "precomputed"):

        def plain(x: Tensor, z: Tensor) -> Tensor:
            return _squares(x, z, same, before, after, factor)

        known = before == "precomputed"
        return stress(x, z, same, known=known, factor=factor, chunk=chunk, plain=plain) / n**2
    if chunk is None:
        return _squares(x, z, same, before, after, factor) / n**2
    total = (z * 0).sum()
    for start in range(0, n, chunk):
        rows = slice(start, min(start + chunk, n))
        # Computed again in the backward pass: that is what keeps the memory at one chunk.
        total = total + checkpoint(_squares, x, z, same, before, after, factor, rows, use_reentrant=False)
    return total / n**2


def partition(groups: Groups, n: int, device: torch.device | str = "cpu") -> Tensor:
    """Labels ``[n]`` (numbers or names) as numbers of parts 0 … k - 1, checked."""
    if not isinstance(groups, Tensor):
        given = np.asarray(groups)
        if given.dtype.kind in "USO" and given.ndim == 1:
            given = np.unique(given.astype(str), return_inverse=True)[1]
        groups = torch.as_tensor(given)
    found = groups
    if found.ndim != 1 or len(found) != n:
        raise ValueError(
            f"isometric_loss: groups must hold one label for each of {n} samples, got shape {list(found.shape)}. "
            "Give the labels of this batch, [n]."
        )
    if found.is_complex() or (found.is_floating_point() and not bool(torch.isfinite(found).all())):
        raise ValueError("isometric_loss: groups must be labels, got NaN, infinity or complex numbers. Use integers.")
    return torch.unique(found.to(device), return_inverse=True)[1] if n else found.long()


def _squares(
    x: Tensor, z: Tensor, same: Tensor | None, before: Metric, after: Metric, factor: float, rows: slice | None = None
) -> Tensor:
    """The sum of squares over all pairs, or over those whose first sample is in ``rows``."""
    gap = _distances(x, before, rows) - factor * _distances(z, after, rows)
    if same is not None:
        within = (same if rows is None else same[rows])[:, None] == same[None]
        # Not a product: a distance between parts may be infinite (no path), and does not count.
        gap = torch.where(within, gap, 0.0)
    if not (_local(before) and _local(after)) and not bool(torch.isfinite(gap.detach()).all()):
        raise ValueError(
            "isometric_loss: metric must give finite distances within every group, got others. In a graph of nearest "
            "neighbours they are points that no path joins: take functools.partial(geodesic, neighbours=…) with more."
        )
    return gap.square().sum()


def _distances(points: Tensor, metric: Metric, rows: slice | None) -> Tensor:
    if metric == "euclidean":
        return euclidean(points, rows=rows)
    if metric == "cosine":
        return cosine(points, rows=rows)
    if metric == "geodesic":
        return geodesic(points)
    if metric == "precomputed":
        return points if rows is None else points[rows]
    assert not isinstance(metric, str)
    found = metric(points)
    n = len(points)
    if not isinstance(found, Tensor) or found.shape != (n, n):
        got = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ValueError(f"isometric_loss: metric must give distances [{n}, {n}], got {got}. It takes points [n, d].")
    # The diagonal is 0 whatever a function says: its slope (of a plain square root: NaN) must not count.
    every = torch.eye(n, dtype=torch.bool, device=found.device)
    return torch.where(every, 0.0, found)


def _local(metric: Metric) -> bool:
    """Whether the distances of some points do not depend on the others."""
    return metric in ("euclidean", "cosine", "precomputed")


def _metric(argument: str, metric: Metric) -> Metric:
    if not callable(metric) and metric not in get_args(Named):
        known = ", ".join(get_args(Named))
        raise ValueError(f"isometric_loss: {argument} must be {known} or a function, got {metric!r}. Try 'euclidean'.")
    return metric


def _points(argument: str, given: Tensor | np.ndarray) -> Tensor:
    points = given if isinstance(given, Tensor) else torch.as_tensor(np.ascontiguousarray(given))
    if points.ndim < 1 or points.is_complex():
        raise ValueError(
            f"isometric_loss: {argument} must be real samples [n, …], got shape {list(points.shape)} of "
            f"{points.dtype}. For one number per sample give [n, 1]."
        )
    if len(points) == 0:
        raise ValueError(f"isometric_loss: {argument} must hold at least one sample, got none. Skip empty batches.")
    points = points.reshape(len(points), -1)
    if points.dtype not in (torch.float32, torch.float64):
        points = points.float()
    # A sum shows NaN and infinity in one quick pass; only where it is not finite (or too large) is each number asked.
    values = points.detach()
    if not bool(torch.isfinite(values.sum())) and not bool(torch.isfinite(values).all()):
        raise ValueError(
            f"isometric_loss: {argument} must be finite, got NaN or infinity. Look at the layer before it, or lower "
            "the learning rate."
        )
    return points
