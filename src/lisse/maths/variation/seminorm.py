r"""The BV seminorm of [cao2022] eq. 1: an image as a function on a graph of pixels, a layer on one of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from lisse.maths.given import floating, square_grid

Neighbours = Literal[4, 8]
Scaling = Literal["discrete", "continuum"]
#: One number for all edges, or one (a number or a tensor) per direction of edges.
Weights = float | Tensor | Sequence[float | Tensor]

# Steps (rows, columns) from the first end of an undirected edge to the second.
_DIRECTIONS: dict[int, tuple[tuple[int, int], ...]] = {4: ((1, 0), (0, 1)), 8: ((1, 0), (0, 1), (1, 1), (1, -1))}


def bv_seminorm(
    u: Tensor, *, weights: Weights = 1.0, neighbours: Neighbours = 4, scaling: Scaling = "discrete"
) -> Tensor:
    r"""Bounded variation of an image on its pixel graph, [cao2022] eq. 1.

    .. math:: |u|_{BV} = \sum_{x_i} \Big\{ \sum_{x_j \in N_{x_i}} w_{ij} \|u(x_i) - u(x_j)\|_2^2 \Big\}^{1/2}

    ``u`` ``[h, w]`` gives a number; ``[c, h, w]`` too (one seminorm of the vector-valued image: the square runs over
    channels); ``[n, c, h, w]`` gives ``[n]``. Every undirected edge is seen from both of its ends, as printed.

    ``neighbours`` is 4 or 8. ``weights`` is one number, or one per direction: down ``[h-1, w]``, right ``[h, w-1]``,
    and with 8 neighbours down-right and down-left ``[h-1, w-1]`` (numbers or tensors that broadcast to these).
    ``scaling`` ``"continuum"`` chooses weights and divides by h·w so that samples of a smooth function on the unit
    square tend to :math:`\int |\nabla u|`: with 4 neighbours and N² pixels :math:`w = N^2/2`, and ``weights`` then
    multiply that.

    Zero exactly for constants, 1-homogeneous, a seminorm. Differentiable almost everywhere; at a pixel that equals all
    its neighbours the subgradient 0 is taken. O(h w c).
    """
    return variation_field(u, weights=weights, neighbours=neighbours, scaling=scaling).sum((-2, -1))


def variation_field(
    u: Tensor, *, weights: Weights = 1.0, neighbours: Neighbours = 4, scaling: Scaling = "discrete"
) -> Tensor:
    r"""The terms of :func:`bv_seminorm` pixel by pixel: ``[h, w]``, or ``[n, h, w]`` for a batch."""
    return _field("bv_seminorm", u, weights, neighbours, scaling)


def token_variation(
    v: Tensor,
    *,
    grid: tuple[int, int] | None = None,
    weights: Weights = 1.0,
    neighbours: Neighbours = 4,
    scaling: Scaling = "continuum",
) -> Tensor:
    r"""BV seminorm of vectors on a grid of patches: tokens ``[…, p, d]``, row by row, give ``[…]``.

    .. math:: |v|_{BV} = \frac{1}{n^2} \sum_i \Big\{ \sum_{j \in N_i} \frac{n^2}{2} \|v_i - v_j\|_2^2 \Big\}^{1/2}

    for ``scaling`` ``"continuum"`` on n × n patches, the one that Theorem 5.1 of [cao2022] can be read with at several
    n; ``"discrete"`` is eq. 1 as printed. ``grid`` (rows, columns) is needed where p is not a square. Class tokens have
    no place on the grid: leave them out.
    """
    given = floating("token_variation", "v", v)
    if given.ndim < 2:
        raise ValueError(f"token_variation: v must be [..., tokens, features], got shape {list(given.shape)}.")
    rows, columns = square_grid("token_variation", given.shape[-2], grid)
    images = given.reshape(-1, rows, columns, given.shape[-1]).permute(0, 3, 1, 2)
    found = _field("token_variation", images, weights, neighbours, scaling).sum((-2, -1))
    return found.reshape(given.shape[:-2])


def total_variation(u: Tensor, *, kind: Literal["forward", "anisotropic"] = "forward") -> Tensor:
    r"""Total variation by forward differences, for comparison with :func:`bv_seminorm`; shapes as there.

    ``forward``: :math:`\sum \sqrt{\|\partial_x u\|^2 + \|\partial_y u\|^2}` with differences 0 beyond the border;
    ``anisotropic``: :math:`\sum \|\partial_x u\| + \|\partial_y u\|`, which sees each edge once.
    """
    if kind not in ("forward", "anisotropic"):
        raise ValueError(f"total_variation: kind must be forward or anisotropic, got {kind!r}.")
    images, batched = _images("total_variation", u)
    down = (images[:, :, 1:] - images[:, :, :-1]).square().sum(1)
    right = (images[:, :, :, 1:] - images[:, :, :, :-1]).square().sum(1)
    if kind == "anisotropic":
        found = _root(down).sum((-2, -1)) + _root(right).sum((-2, -1))
    else:
        pad = torch.nn.functional.pad
        found = _root(pad(down, (0, 0, 0, 1)) + pad(right, (0, 1))).sum((-2, -1))
    return found if batched else found[0]


def _field(where: str, u: Any, weights: Weights, neighbours: Neighbours, scaling: Scaling) -> Tensor:
    if neighbours not in _DIRECTIONS:
        raise ValueError(f"{where}: neighbours must be 4 or 8, got {neighbours!r}.")
    if scaling not in ("discrete", "continuum"):
        raise ValueError(f"{where}: scaling must be discrete or continuum, got {scaling!r}.")
    images, batched = _images(where, u)
    h, w = images.shape[-2:]
    directions = _DIRECTIONS[neighbours]
    factors = _continuum(h, w, neighbours) if scaling == "continuum" else (1.0,) * len(directions)
    total = images.new_zeros(len(images), h, w)
    for (down, right), weight, factor in zip(
        directions, _per_direction(where, weights, directions), factors, strict=True
    ):
        here, there = _ends(h, w, down, right)
        edge = (images[:, :, *here] - images[:, :, *there]).square().sum(1)
        edge = edge * _edges(where, weight, edge) * factor
        pad = torch.nn.functional.pad
        total = total + pad(edge, _margins(here, h, w)) + pad(edge, _margins(there, h, w))
    field = _root(total)
    if scaling == "continuum":
        field = field / (h * w)
    return field if batched else field[0]


def _continuum(h: int, w: int, neighbours: int) -> tuple[float, ...]:
    """Weights with which Σ_j w_ij (u_i - u_j)² is |∇u|² of a function on the unit square, for a linear one."""
    if neighbours == 4:
        return h * h / 2, w * w / 2
    diagonal = min(h, w) ** 2 / 6  # an equal share per edge on a square grid, and none is negative on any other
    return h * h / 2 - 2 * diagonal, w * w / 2 - 2 * diagonal, diagonal, diagonal


def _images(where: str, u: Any) -> tuple[Tensor, bool]:
    """``[n, c, h, w]``, and whether it was a batch."""
    given = floating(where, "u", u)
    if given.ndim not in (2, 3, 4) or 0 in given.shape:
        raise ValueError(f"{where}: u must be [h, w], [c, h, w] or [n, c, h, w], got shape {list(given.shape)}.")
    return given.reshape(-1 if given.ndim == 4 else 1, *(1,) * (3 - given.ndim), *given.shape[-3:]), given.ndim == 4


def _ends(h: int, w: int, down: int, right: int) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """Where the first and where the second ends of all edges in a direction lie."""
    first = slice(0, w - 1) if right > 0 else slice(1, w) if right < 0 else slice(0, w)
    second = slice(1, w) if right > 0 else slice(0, w - 1) if right < 0 else slice(0, w)
    return (slice(0, h - down), first), (slice(down, h), second)


def _margins(place: tuple[slice, slice], h: int, w: int) -> tuple[int, int, int, int]:
    rows, columns = place
    return columns.start, w - columns.stop, rows.start, h - rows.stop


def _per_direction(where: str, weights: Weights, directions: Sequence[tuple[int, int]]) -> list[Any]:
    if isinstance(weights, (list, tuple)):
        if len(weights) != len(directions):
            raise ValueError(
                f"{where}: weights must be one number or one per direction ({len(directions)}: down, right"
                f"{', down-right, down-left' if len(directions) == 4 else ''}), got {len(weights)}."
            )
        return list(weights)
    return [weights] * len(directions)


def _edges(where: str, weight: Any, edge: Tensor) -> Tensor:
    given = floating(where, "weights", weight).to(edge)
    if bool((given < 0).any()):
        raise ValueError(f"{where}: weights must not be negative, got {float(given.min())}.")
    try:
        return given.broadcast_to(edge.shape[-2:]) if given.ndim < 3 else given.broadcast_to(edge.shape)
    except RuntimeError as error:
        raise ValueError(
            f"{where}: weights must fit the edges {list(edge.shape[-2:])} of their direction, got shape "
            f"{list(given.shape)}. Give one tensor per direction."
        ) from error


def _root(square: Tensor) -> Tensor:
    """The square root, whose derivative at 0 is taken as 0."""
    positive = square > 0
    return torch.where(positive, torch.where(positive, square, 1.0).sqrt(), 0.0)
