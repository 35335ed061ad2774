"""Exact transport of many small point sets where they are: on a CUDA device, costs and assignments in two kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lisse.maths.machine_code import in_turn, loops
from lisse.maths.transport.exact import coupled
from lisse.maths.transport.solvers import LOOPS

# Above this the network simplex, which prunes, is faster than shortest paths, which look at every cell.
COMPILED_CELLS = 3072
_KERNELS = "lisse.maths.transport.device_kernels"
_TILE, _CHUNK, _WARPS = 64, 32, 4
# Columns that the registers of a few warps hold, and bytes of costs that exist at once.
_WIDEST, _BYTES = 1024, 2**30


def device_powers(
    x: Tensor, y: Tensor, *, p: float, ground: float, heads: int = 1, x_sizes: Sequence[int] | None = None,
    y_sizes: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    r""":math:`W_p^p` of pairs of sets ``[b, n, d]``, ``[b, m, d]``, for each of ``heads`` parts of d: ``[b, heads]``.

    The first ``sizes[k]`` points of set k count (all of them without), with equal weights. float64, on the device, and
    nothing waits for it where both sides of all pairs have as many points: those are assigned by a kernel, one problem
    a warp (:mod:`~lisse.maths.transport.device_kernels`). Others, of more than 1,024 points, or without Triton, are
    solved on the CPU. Costs are made in float32 for inputs of up to 32 bits, in partial sums of 32 differences, and in
    float64 for others.
    """
    (b, n, _), m = x.shape, y.shape[1]
    left, right = list(x_sizes or [n] * b), list(y_sizes or [m] * b)
    step = max(1, min(_BYTES // (8 * heads * n * m), 65_535 // heads))  # no launch has more rows of programs
    powers = []
    for start in range(0, b, step):
        part = slice(start, start + step)
        costs = device_costs(x[part], y[part], ground=ground, heads=heads)
        costs = costs if p == 1 else costs.double().pow_(p)  # large powers leave the range of float32
        sizes = [(i, j) for i, j in zip(left[part], right[part], strict=True) for _ in range(heads)]
        powers.append(_solved(costs, sizes, metric=p == 1))
    return torch.cat(powers).unflatten(0, (b, heads))


def device_costs(x: Tensor, y: Tensor, *, ground: float, heads: int = 1) -> Tensor:
    """Distances ``[b · heads, n, m]`` in the norm ``ground`` between the points of each pair, head by head."""
    kernels = loops(_KERNELS) if x.is_cuda and ground in (1, 2) else None
    wide = torch.float64 in (x.dtype, y.dtype)
    kind = torch.float64 if wide else torch.float32
    left, right = (side.detach().unflatten(2, (heads, -1)).transpose(1, 2).flatten(0, 1) for side in (x, y))
    if kernels is None:  # differences first: the product formula loses the digits of points that are near each other
        mode = "donot_use_mm_for_euclid_dist"
        return torch.cdist(left.to(kind), right.to(kind), p=float(ground), compute_mode=mode)
    # Coordinates behind each other, points side by side; coordinates of zero add nothing.
    left, right = (torch.nn.functional.pad(side.mT, (0, 0, 0, -side.shape[2] % _CHUNK)).contiguous()
                   for side in (left, right))  # fmt: skip
    (pairs, d, n), m = left.shape, right.shape[2]
    costs = torch.empty(pairs, n, m, dtype=kind, device=x.device)
    tiles = (-(-n // _TILE), -(-m // _TILE))
    with torch.cuda.device(x.device):
        kernels.tile_costs[(tiles[0] * tiles[1], pairs)](
            left, right, costs, n, m, d, tiles[1], SQUARED=ground == 2, WIDE=wide, CHUNK=_CHUNK, TILE=_TILE,
            num_warps=_WARPS,
        )  # fmt: skip
    return costs


def _solved(costs: Tensor, sizes: Sequence[tuple[int, int]], *, metric: bool) -> Tensor:
    """The optimal mean costs ``[b]`` of the corners of these sizes."""
    kernels = loops(_KERNELS) if costs.is_cuda else None
    squares = [kernels is not None and n == m <= _WIDEST for n, m in sizes]
    powers = torch.empty(len(costs), dtype=torch.float64, device=costs.device)
    if kernels is not None and any(squares):
        block = max(32, 1 << (min(costs.shape[1:]) - 1).bit_length())
        if all(squares) and len(set(sizes)) == 1:
            counts = torch.full((len(costs),), sizes[0][0], dtype=torch.int32, device=costs.device)
        else:  # of none where the CPU solves it
            host = [n if square else 0 for (n, _), square in zip(sizes, squares, strict=True)]
            counts = torch.tensor(host, dtype=torch.int32).to(costs.device)
        with torch.cuda.device(costs.device):
            kernels.assignment_costs[(len(costs),)](
                costs, counts, powers, costs.shape[1], costs.shape[2], BLOCK=block, num_warps=max(1, block // 256)
            )
    far = [k for k, square in enumerate(squares) if not square]
    if far:
        tables = (costs if len(far) == len(costs) else costs[torch.tensor(far, device=costs.device)]).double().cpu()
        solved = _solved_here(tables.numpy(), [sizes[k] for k in far], metric)
        powers[torch.tensor(far, device=costs.device)] = torch.from_numpy(solved).to(costs.device)
    return powers


def _solved_here(costs: np.ndarray, sizes: Sequence[tuple[int, int]], metric: bool) -> np.ndarray:
    """The same on the CPU, by all its threads."""
    compiled, powers = loops(LOOPS), np.empty(len(costs))
    if not np.isfinite(costs).all():
        raise ValueError(
            "device_powers: distances to the power p must be finite, got infinity or NaN. Give a smaller p."
        )

    def solve(k: int) -> None:
        n, m = sizes[k]
        cost = costs[k, :n, :m]
        if compiled is not None and (n == m or n * m <= COMPILED_CELLS):
            compiled.cost_powers(cost[None], np.array([[n, m]]), powers[k : k + 1])
        else:
            coupling = coupled(cost, None, None, metric=metric)
            powers[k] = coupling.mass @ cost[coupling.rows, coupling.columns]

    in_turn(solve, range(len(costs)), min(torch.get_num_threads(), len(costs)))
    return powers
