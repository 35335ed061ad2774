r"""How far attention looks on the grid of patches, against attention that is uniform ([cao2022] prop. 6.2)."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from lisse.maths.given import square_grid, whole_grid
from lisse.maths.integral.structure import square_matrix

_Metric = Literal["euclidean", "chebyshev"]


def grid_distances(grid: tuple[int, int], *, metric: _Metric = "euclidean") -> Tensor:
    """Distances ``[p, p]`` between the places of a grid (rows, columns), row by row, in patches; float64."""
    if metric not in ("euclidean", "chebyshev"):
        raise ValueError(f"grid_distances: metric must be euclidean or chebyshev, got {metric!r}.")
    rows, columns = whole_grid("grid_distances", grid)
    index = torch.arange(rows * columns, dtype=torch.float64)
    down, right = (index // columns), index % columns
    apart = torch.stack([down[:, None] - down, right[:, None] - right]).abs()
    return apart.amax(0) if metric == "chebyshev" else apart.square().sum(0).sqrt()


def attention_distance(
    attention: Tensor,
    *,
    grid: tuple[int, int] | None = None,
    queries: Tensor | None = None,
    keys: Tensor | None = None,
) -> Tensor:
    r"""Mean distance that each query looks: :math:`\sum_j A_{ij} \|pos_i - pos_j\|_2` in patches.

    ``attention`` ``[…, p, p]`` gives ``[…, p]``. ``queries`` and ``keys`` (indices, or masks of p) take the masked
    queries and the unmasked keys alone, say: then ``[…, queries]``, with each row's weights over ``keys`` scaled to sum
    to 1. ``grid`` (rows, columns) is needed where p is not a square; leave out class tokens. Absolute weights are
    taken, so that the interpolation weights of (25), which can be negative, may be given too.
    """
    weights, apart = _selected("attention_distance", attention, grid, queries, keys, "euclidean")
    return (weights * apart.to(weights)).sum(-1)


def attention_mass(
    attention: Tensor,
    radius: float,
    *,
    grid: tuple[int, int] | None = None,
    queries: Tensor | None = None,
    keys: Tensor | None = None,
) -> Tensor:
    r"""Share of attention within ``radius`` patches of the query (Chebyshev: a square of side 2·radius + 1).

    Shapes and options as :func:`attention_distance`.
    """
    if not radius >= 0:
        raise ValueError(f"attention_mass: radius must not be negative, got {radius}.")
    weights, apart = _selected("attention_mass", attention, grid, queries, keys, "chebyshev")
    return torch.where(apart.to(weights.device) <= radius, weights, 0.0).sum(-1)


def mass_profile(
    attention: Tensor,
    *,
    grid: tuple[int, int] | None = None,
    queries: Tensor | None = None,
    keys: Tensor | None = None,
) -> Tensor:
    r"""Share of attention within every radius 0, 1, … at once: ``[…, p, radii]``, the last column is 1."""
    weights, apart = _selected("mass_profile", attention, grid, queries, keys, "chebyshev")
    rows, columns = square_grid("mass_profile", attention.shape[-1], grid)
    rings = apart.to(weights.device).long()
    masses = weights.new_zeros(*weights.shape[:-1], max(rows, columns))
    return masses.scatter_add_(-1, rings.expand(weights.shape), weights).cumsum(-1)


def uniform_attention(p: int, *, like: Tensor | None = None) -> Tensor:
    """Attention that is the same everywhere, ``[p, p]``: the baseline to give to the other functions."""
    if p < 1:
        raise ValueError(f"uniform_attention: p must be at least 1, got {p}.")
    weights = torch.full((p, p), 1 / p, dtype=torch.float64)
    return weights if like is None else weights.to(like)


def _selected(
    where: str, attention: Any, grid: tuple[int, int] | None, queries: Any, keys: Any, metric: _Metric
) -> tuple[Tensor, Tensor]:
    """Rows of weights that sum to 1, and the distances that go with them."""
    matrix = square_matrix(where, attention, name="attention")
    p = matrix.shape[-1]
    apart = grid_distances(square_grid(where, p, grid), metric=metric)
    rows, columns = _indices(where, "queries", queries, p), _indices(where, "keys", keys, p)
    weights = matrix[..., rows.to(matrix.device)[:, None], columns.to(matrix.device)].abs()
    total = weights.sum(-1, keepdim=True)
    if not bool((total > 0).all()):
        raise ValueError(f"{where}: attention must have weight on the keys in every row, got a row of zeros.")
    return weights / total, apart[rows[:, None], columns]


def _indices(where: str, name: str, selection: Any, p: int) -> Tensor:
    if selection is None:
        return torch.arange(p)
    index = torch.as_tensor(selection).cpu()
    if index.dtype == torch.bool and index.shape == (p,):
        index = index.nonzero()[:, 0]
    if index.ndim != 1 or not len(index) or index.is_floating_point() or int(index.min()) < 0 or int(index.max()) >= p:
        raise ValueError(f"{where}: {name} must be indices below {p} or a mask of {p}, got shape {list(index.shape)}.")
    return index.long()
