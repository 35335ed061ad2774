"""Exact Wasserstein distances of many pairs at once: the hot path for sentences and tokens."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from lisse.maths.given import Values, all_finite
from lisse.maths.machine_code import in_turn, loops
from lisse.maths.transport.device import COMPILED_CELLS, device_powers
from lisse.maths.transport.exact import (
    _array,
    _mass,
    _needs_point_gradient,
    _needs_weight_gradient,
    _options,
    _power,
    wasserstein,
)
from lisse.maths.transport.measure import Measure, as_measure, carried
from lisse.maths.transport.solvers import LOOPS

_Side = Tensor | np.ndarray | Sequence[Measure | Values]


def wasserstein_batch(
    xs: _Side,
    ys: _Side,
    *,
    p: float = 1.0,
    ground: float = 1,
    x_lengths: Tensor | Sequence[int] | None = None,
    y_lengths: Tensor | Sequence[int] | None = None,
    x_weights: Values | None = None,
    y_weights: Values | None = None,
) -> Tensor:
    """``wasserstein`` of many pairs ``[b]``, in as many threads as torch has: the hot path for sentences and tokens.

    Each side is a padded batch ``[b, n, d]`` or a list of measures or point sets of any sizes. In a padded batch the
    first ``lengths[k]`` tokens of pair k count, or those with positive ``weights`` ``[b, n]`` (rows that sum to 1).

    With numba, pairs of empirical measures (of unequal sizes only up to ``COMPILED_CELLS`` cells of the cost matrix)
    are solved as machine code, a stretch of pairs at a time; the others one by one. Both release the interpreter's
    lock. 1,000 pairs of 32 tokens in R^768: see ``benchmarks/results/transport.md``. Empirical measures on a GPU are
    compared there: :func:`~lisse.maths.transport.device.device_powers`.
    """
    where = "wasserstein_batch"
    _options(where, p, ground)
    left = _measures(where, "xs", xs, x_lengths, x_weights)
    right = _measures(where, "ys", ys, y_lengths, y_weights)
    if len(left) != len(right):
        raise ValueError(f"{where}: xs and ys must hold as many sets, got {len(left)} and {len(right)}.")
    if not left:
        raise ValueError(f"{where}: xs must hold at least one pair, got none.")
    for mu, nu in zip(left, right, strict=True):
        if mu.dim != nu.dim:
            raise ValueError(f"{where}: xs and ys must have one dimension, got {mu.dim} and {nu.dim}.")
    if _needs_point_gradient(*left, *right) or _needs_weight_gradient(*left, *right):
        return torch.stack([wasserstein(mu, nu, p=p, ground=ground) for mu, nu in zip(left, right, strict=True)])

    if left[0].points.is_cuda and left[0].dim > 1 and all(mu.weights is None for mu in (*left, *right)):
        return _by_device(left, right, p, ground)
    batches = [torch.as_tensor(side) if isinstance(side, (Tensor, np.ndarray)) and lengths is weights is None else None
             for side, lengths, weights in ((xs, x_lengths, x_weights), (ys, y_lengths, y_weights))]  # fmt: skip

    def distances(start: int, stop: int) -> list[float]:
        powers = _powers(
            left[start:stop], right[start:stop], p, ground, *(_part(side, start, stop) for side in batches)
        )
        return [power ** (1 / p) for power in powers]

    values = _threaded(distances, len(left))
    kind = torch.promote_types(left[0].points.dtype, right[0].points.dtype)
    return torch.tensor(values, dtype=kind, device=left[0].points.device)


# --- stretches of pairs --- -------------------------------------------------------------------------------------------


def _powers(
    left: Sequence[Measure],
    right: Sequence[Measure],
    p: float,
    ground: float,
    left_batch: Tensor | None,
    right_batch: Tensor | None,
) -> list[float]:
    """W_p^p of each pair; the compiled solver takes all that it can at once. The batches hold the same points."""
    compiled = loops(LOOPS) if ground in (1, 2) and left[0].dim > 1 else None
    quick = [compiled is not None and _compilable(mu, nu, left[0].dim) for mu, nu in zip(left, right, strict=True)]
    powers = np.empty(sum(quick))
    if compiled is not None and len(powers):
        x, x_ends = _joined(left, quick, left_batch)
        y, y_ends = _joined(right, quick, right_batch)
        compiled.batch_powers(x, x_ends, y, y_ends, float(ground), float(p), powers)
    solved = iter(powers.tolist())
    return [
        next(solved) if fast else _power(_array(mu.points), _array(nu.points), _mass(mu), _mass(nu), p, ground)
        for mu, nu, fast in zip(left, right, quick, strict=True)
    ]


def _by_device(left: Sequence[Measure], right: Sequence[Measure], p: float, ground: float) -> Tensor:
    """Distances between sets of one dimension, or of several in turn, where the first are."""
    kind, device = torch.promote_types(left[0].points.dtype, right[0].points.dtype), left[0].points.device
    kind = torch.promote_types(kind, torch.float32)  # sums of thousands of differences leave the range of halves
    values = torch.empty(len(left), dtype=kind, device=device)
    for dim in dict.fromkeys(mu.dim for mu in left):
        indices = [k for k, mu in enumerate(left) if mu.dim == dim]
        x, y = (
            torch.nn.utils.rnn.pad_sequence([side[k].points.detach().to(device) for k in indices], batch_first=True)
            for side in (left, right)
        )
        sizes = [[len(side[k]) for k in indices] for side in (left, right)]
        powers = device_powers(x, y, p=p, ground=ground, x_sizes=sizes[0], y_sizes=sizes[1])[:, 0]
        roots = (powers ** (1 / p)).to(kind)
        if len(indices) == len(left):
            return roots
        values[torch.tensor(indices, device=device)] = roots
    return values


def _compilable(mu: Measure, nu: Measure, dim: int) -> bool:
    small = len(mu) == len(nu) or len(mu) * len(nu) <= COMPILED_CELLS
    return mu.weights is None and nu.weights is None and small and mu.dim == dim


def _joined(side: Sequence[Measure], mask: Sequence[bool], batch: Tensor | None) -> tuple[np.ndarray, np.ndarray]:
    """The chosen sets' points one after another ``[t, d]``, and where each begins and the last ends."""
    measures = list(itertools.compress(side, mask))
    if batch is not None and all(mask):  # nothing is copied
        points = _array(batch).reshape(-1, batch.shape[-1])
    else:
        points = np.concatenate([_array(measure.points) for measure in measures])
    return np.ascontiguousarray(points), np.cumsum([0, *map(len, measures)])


def _part(batch: Tensor | None, start: int, stop: int) -> Tensor | None:
    return None if batch is None else batch[start:stop]


# --- arguments --- ----------------------------------------------------------------------------------------------------


def _measures(
    where: str, name: str, side: _Side, lengths: Tensor | Sequence[int] | None, weights: Values | None
) -> list[Measure]:
    if not isinstance(side, (Tensor, np.ndarray)):
        if lengths is not None or weights is not None:
            raise ValueError(f"{where}: lengths and weights must come with a padded batch, got a list for {name}.")
        return [as_measure(where, f"{name}[{k}]", points) for k, points in enumerate(side)]
    batch = torch.as_tensor(side)
    if batch.ndim != 3:
        raise ValueError(f"{where}: {name} must have shape [b, n, d], got {list(batch.shape)}. Or give a list.")
    if lengths is not None and weights is not None:
        raise ValueError(f"{where}: {name} must have lengths or weights, got both.")
    if lengths is not None:
        sizes = [int(size) for size in lengths]
        if len(sizes) != len(batch) or min(sizes) < 1 or max(sizes) > batch.shape[1]:
            raise ValueError(
                f"{where}: lengths of {name} must be {len(batch)} numbers from 1 to {batch.shape[1]}, got {sizes}."
            )
        return [Measure(points[:size]) for points, size in zip(batch, sizes, strict=True)]
    if weights is None:
        return _empirical(where, name, batch)
    mass = torch.as_tensor(weights)
    if mass.shape != batch.shape[:2]:
        raise ValueError(f"{where}: weights of {name} must be {list(batch.shape[:2])}, got {list(mass.shape)}.")
    return [Measure(points[row > 0], row[row > 0]) for points, row in zip(batch, mass, strict=True)]


def _empirical(where: str, name: str, batch: Tensor) -> list[Measure]:
    """Measures of all points of a batch, which is looked through once."""
    if not all_finite(batch):
        raise ValueError(f"{where}: {name} must be finite, got NaN or infinity among the points.")
    if 0 in batch.shape[1:]:
        raise ValueError(f"{where}: {name} must hold at least one token and dimension, got {list(batch.shape)}.")
    if not len(batch):
        return []
    batch = batch if batch.is_floating_point() else batch.to(torch.get_default_dtype())
    first = Measure(batch[0])
    return [carried(first, points) for points in batch.unbind()]


def _threaded(work: Callable[[int, int], list[float]], count: int) -> list[float]:
    """``work(start, stop)`` over 0 … count - 1, in stretches long enough that threads cost nothing."""
    threads = min(torch.get_num_threads(), count)
    edges = np.linspace(0, count, min(count, max(8 * threads, count // 64)) + 1).astype(int).tolist()
    parts: dict[int, list[float]] = {}

    def take(ends: tuple[int, int]) -> None:
        parts[ends[0]] = work(*ends)

    in_turn(take, itertools.pairwise(edges), threads)
    return [value for start in sorted(parts) for value in parts[start]]
