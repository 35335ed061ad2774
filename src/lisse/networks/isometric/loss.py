"""The isometric loss: how far a layer is from keeping the distances of its input, within classes or over all pairs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lisse.maths.given import all_finite
from lisse.maths.isometry import cosine, euclidean, geodesic
from lisse.networks.isometric.stress import stress

MetricName = Literal["euclidean", "cosine", "geodesic", "precomputed"]
PairMetric = MetricName | Callable[[Tensor], Tensor]
LossScaling = Literal["paper", "code"]
Groups = Tensor | np.ndarray | Sequence[int] | Sequence[str]

#: What multiplies the distances of the layer: 1 in the paper; the authors' code for MNIST asks for distances ten times
#: smaller than those of the input.
_FACTORS: dict[str, float] = {"paper": 1.0, "code": 10.0}


def isometric_loss(
    x: Tensor | np.ndarray,
    z: Tensor | np.ndarray,
    groups: Groups | None = None,
    *,
    metric: PairMetric = "euclidean",
    output_metric: PairMetric | None = None,
    scaling: LossScaling = "paper",
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

    (eq. 13 of [beshkov2022] is another derivative and half of it: docs/errata.md#isometric). Gradients are
    finite everywhere: at distance 0 they are taken as 0.

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
    if scaling not in _FACTORS:
        raise ValueError(
            f"isometric_loss: scaling must be 'paper' or 'code', got {scaling!r}. The paper's factor is 1."
        )
    labels = None if groups is None else partition(groups, n, z.device)
    before, after = _metrics(metric, output_metric)
    if before == "precomputed" and x.shape != (n, n):
        raise ValueError(
            f"isometric_loss: x must be the distances [{n}, {n}] where metric='precomputed', got {list(x.shape)}. "
            "Give the matrix of all pairs."
        )
    _check_chunk(chunk, before, after)
    dtype = torch.promote_types(x.dtype, z.dtype)
    x, z = x.to(dtype), z.to(dtype)
    if fixed_input:
        x = x.detach()
    if n < 2:
        return (z * 0).sum() + (x * 0).sum()
    squares = functools.partial(_squares, groups=labels, before=before, after=after, factor=_FACTORS[scaling])
    if after == "euclidean" and before in ("euclidean", "precomputed"):
        distances = before == "precomputed"
        return stress(x, z, labels, distances=distances, factor=_FACTORS[scaling], chunk=chunk, plain=squares) / n**2
    if chunk is None:
        return squares(x, z) / n**2
    total = (z * 0).sum()
    for start in range(0, n, chunk):
        rows = slice(start, min(start + chunk, n))
        # Computed again in the backward pass: that is what keeps the memory at one chunk.
        total = total + checkpoint(squares, x, z, rows=rows, use_reentrant=False)
    return total / n**2


def partition(groups: Groups, n: int, device: torch.device | str = "cpu") -> Tensor:
    """Labels ``[n]`` (numbers or names) as numbers of parts 0 … k - 1, checked."""
    if not isinstance(groups, Tensor):
        names = np.asarray(groups)
        if names.dtype.kind in "USO" and names.ndim == 1:
            names = np.unique(names.astype(str), return_inverse=True)[1]
        groups = torch.as_tensor(names)
    if groups.ndim != 1 or len(groups) != n:
        raise ValueError(
            f"isometric_loss: groups must hold one label for each of {n} samples, got shape {list(groups.shape)}. "
            "Give the labels of this batch, [n]."
        )
    if groups.is_complex() or (groups.is_floating_point() and not all_finite(groups)):
        raise ValueError("isometric_loss: groups must be labels, got NaN, infinity or complex numbers. Use integers.")
    return torch.unique(groups.to(device), return_inverse=True)[1] if n else groups.long()


def _squares(
    x: Tensor, z: Tensor, *, groups: Tensor | None, before: PairMetric, after: PairMetric, factor: float,
    rows: slice | None = None,
) -> Tensor:  # fmt: skip
    """The sum of squares over all pairs, or over those whose first sample is in ``rows``."""
    gap = _distances(x, before, rows) - factor * _distances(z, after, rows)
    if groups is not None:
        within = (groups if rows is None else groups[rows])[:, None] == groups[None]
        # Not a product: a distance between parts may be infinite (no path), and does not count.
        gap = torch.where(within, gap, 0.0)
    if not (_local(before) and _local(after)) and not all_finite(gap):
        raise ValueError(
            "isometric_loss: metric must give finite distances within every group, got others. In a graph of nearest "
            "neighbours they are points that no path joins: take functools.partial(geodesic, neighbours=…) with more."
        )
    return gap.square().sum()


def _distances(points: Tensor, metric: PairMetric, rows: slice | None) -> Tensor:
    if metric == "euclidean":
        return euclidean(points, rows=rows)
    if metric == "cosine":
        return cosine(points, rows=rows)
    if metric == "geodesic":
        return geodesic(points)
    if metric == "precomputed":
        return points if rows is None else points[rows]
    assert not isinstance(metric, str)
    matrix = metric(points)
    n = len(points)
    if not isinstance(matrix, Tensor) or matrix.shape != (n, n):
        got = list(matrix.shape) if isinstance(matrix, Tensor) else type(matrix).__name__
        raise ValueError(f"isometric_loss: metric must give distances [{n}, {n}], got {got}. It takes points [n, d].")
    # The diagonal is 0 whatever a function says: its slope (of a plain square root: NaN) must not count.
    return torch.where(torch.eye(n, dtype=torch.bool, device=matrix.device), 0.0, matrix)


def _local(metric: PairMetric) -> bool:
    """Whether the distances of some points do not depend on the others."""
    return metric in ("euclidean", "cosine", "precomputed")


def _metrics(metric: PairMetric, output_metric: PairMetric | None) -> tuple[PairMetric, PairMetric]:
    """The metrics of both sides, checked."""
    for argument, value in (("metric", metric), ("output_metric", output_metric)):
        if value is not None and not callable(value) and value not in get_args(MetricName):
            names = ", ".join(get_args(MetricName))
            raise ValueError(
                f"isometric_loss: {argument} must be {names} or a function, got {value!r}. Try 'euclidean'."
            )
    if output_metric == "precomputed":
        raise ValueError("isometric_loss: output_metric must be made from z, got 'precomputed'. Leave it out.")
    if output_metric is not None:
        return metric, output_metric
    return metric, "euclidean" if metric == "precomputed" else metric


def _check_chunk(chunk: int | None, before: PairMetric, after: PairMetric) -> None:
    if chunk is None:
        return
    if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1:
        raise ValueError(f"isometric_loss: chunk must be a whole number of at least 1, got {chunk!r}. Try 512.")
    if not (_local(before) and _local(after)):
        raise ValueError(
            "isometric_loss: chunk must go with euclidean, cosine or precomputed distances, whose rows stand alone, "
            "got another metric. Leave out chunk."
        )


def _points(argument: str, samples: Tensor | np.ndarray) -> Tensor:
    points = samples if isinstance(samples, Tensor) else torch.as_tensor(np.ascontiguousarray(samples))
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
    if not all_finite(points):
        raise ValueError(
            f"isometric_loss: {argument} must be finite, got NaN or infinity. Look at the layer before it, or lower "
            "the learning rate."
        )
    return points
