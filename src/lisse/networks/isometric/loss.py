"""The isometric loss: how far a layer is from keeping the distances of its input, within classes or over all pairs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lisse.maths.given import all_finite
from lisse.maths.homology.metric import Squares, distance_matrix, pair_lengths
from lisse.maths.isometry import cosine, euclidean, geodesic

# Classes are looked at one by one where they hold so many points on average: their squares are then worth the loop.
_BLOCK = 64
# Up to so many dimensions a product costs less than what distance_matrix does to halve it.
_NARROW = 128
# Squares under this share of |x|² + |y|² are redone from the difference: others are right to 1e-10, 1e-4 in float32.
_NEAR = {torch.float64: 1e-6, torch.float32: 1e-3}


def stress(
    x: Tensor,
    z: Tensor,
    groups: Tensor | None,
    *,
    distances: bool,
    factor: float,
    chunk: int | None,
    plain: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    r""":math:`\sum_{ij} G_{ij} (D^x_{ij} - s D^z_{ij})^2`; ``distances``: x holds :math:`D^x` itself.

    The gradients are made while the distances are there, so that what waits for the backward pass is as large as x and
    z, not n². ``plain`` is the same sum in differentiable steps, for second derivatives.
    """
    return _Stress.apply(x, z, groups, distances, factor, chunk, plain)


class _Stress(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        z: Tensor,
        groups: Tensor | None,
        distances: bool,
        factor: float,
        chunk: int | None,
        plain: Callable[[Tensor, Tensor], Tensor],
    ) -> Tensor:
        into_x = torch.zeros_like(x) if ctx.needs_input_grad[0] else None
        into_z = torch.zeros_like(z) if ctx.needs_input_grad[1] else None
        total = torch.zeros((), dtype=torch.float64, device=z.device)
        for part, labels in _parts(groups, len(z)):
            xs = x if part is None else x[part][:, part] if distances else x[part]
            zs = z if part is None else z[part]
            for rows, before, after in _pairs(xs, zs, distances, chunk):
                total += _block(xs, zs, labels, rows, before, after, distances, factor, part, into_x, into_z)
        ctx.plain = plain
        ctx.save_for_backward(x, z, into_x, into_z)
        return total.to(z.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, z, into_x, into_z = ctx.saved_tensors
        none = (None,) * 5
        if torch.is_grad_enabled():  # asked for with create_graph: in steps that can be differentiated again
            leaves = [leaf for leaf, into in ((x, into_x), (z, into_z)) if into is not None]
            slopes = iter(torch.autograd.grad(ctx.plain(x, z), leaves, gradients[0], create_graph=True))
            return *(None if into is None else next(slopes) for into in (into_x, into_z)), *none
        return *(None if into is None else gradients[0] * into for into in (into_x, into_z)), *none


def _parts(groups: Tensor | None, n: int) -> Iterator[tuple[Tensor | None, Tensor | None]]:
    """``(indices, labels)``: one part per class where classes are large, else all points with their labels."""
    if groups is None:
        yield None, None
        return
    counts = torch.bincount(groups)
    if n < _BLOCK * len(counts):
        yield None, groups
        return
    for part in torch.argsort(groups, stable=True).split(counts.tolist()):
        if len(part) > 1:
            yield part, None


def _pairs(xs: Tensor, zs: Tensor, distances: bool, chunk: int | None) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Rows, and the distances of these rows before and after."""
    n = len(zs)
    if n < 2:
        return
    if chunk is None or chunk >= n:
        yield slice(0, n), xs if distances else _matrix(xs), _matrix(zs)
        return
    x_squares, z_squares = None if distances else Squares(xs), Squares(zs)
    for start in range(0, n, chunk):
        rows = slice(start, min(start + chunk, n))
        index = torch.arange(rows.start, rows.stop, device=zs.device)
        before = xs[rows] if x_squares is None else _roots(x_squares, index).to(zs.dtype)
        yield rows, before, _roots(z_squares, index).to(zs.dtype)


def _matrix(points: Tensor) -> Tensor:
    """Distances of all pairs, diagonal 0, in the points' precision."""
    if points.shape[1] > _NARROW:
        return distance_matrix(points, precision=points.dtype).to(points.dtype)
    centred = points - points.mean(0)
    norms = centred.square().sum(1)
    sums = norms[:, None] + norms
    squares = torch.addmm(sums, centred, centred.T, alpha=-2.0).fill_diagonal_(torch.inf)
    share = _NEAR[points.dtype]
    if float(squares.min()) <= 2 * share * float(norms.max()):
        first, second = (squares <= sums.mul_(share)).nonzero(as_tuple=True)
        squares[first, second] = pair_lengths(points, first, second).square_().to(squares.dtype)
    return squares.sqrt_().fill_diagonal_(0.0)


def _roots(squares: Squares, index: Tensor) -> Tensor:
    return squares.rows(index).sqrt_().mul_(squares.scale)


def _block(
    xs: Tensor,
    zs: Tensor,
    labels: Tensor | None,
    rows: slice,
    before: Tensor,
    after: Tensor,
    distances: bool,
    factor: float,
    part: Tensor | None,
    into_x: Tensor | None,
    into_z: Tensor | None,
) -> Tensor:
    """The sum over some rows; their gradients are added to ``into_x`` and ``into_z``. Overwrites the distances."""
    gap = torch.sub(before, after, alpha=factor)
    if labels is not None:
        gap.masked_fill_(labels[rows, None] != labels[None], 0.0)
    flat = gap.flatten()
    total = torch.dot(flat, flat).double()
    where = torch.arange(rows.start, rows.stop, device=zs.device)
    if into_z is not None:
        into_z[where if part is None else part[where]] = _pull(gap, after, zs, rows, -4 * factor)
    if into_x is not None:
        if distances:
            index = (where[:, None], torch.arange(len(zs), device=zs.device)[None])
            into_x[index if part is None else (part[index[0]], part[index[1]])] = 2 * gap
        else:
            into_x[where if part is None else part[where]] = _pull(gap, before, xs, rows, 4.0)
    return total


def _pull(gap: Tensor, distances: Tensor, points: Tensor, rows: slice, factor: float) -> Tensor:
    r""":math:`c \sum_j H_{kj} (p_k - p_j)/d_{kj}` for k in rows, 0 where the distance is 0."""
    diagonal = torch.arange(rows.start, rows.stop, device=points.device)
    distances[diagonal - rows.start, diagonal] = torch.inf
    if float(distances.min()) == 0:
        distances.masked_fill_(distances == 0, torch.inf)
    weights = torch.div(gap, distances, out=distances)
    centred = points - points.mean(0)
    return (weights.sum(1, keepdim=True) * centred[rows] - weights @ centred).mul_(factor)


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
