r"""The BV seminorm of [cao2022] eq. 1: an image as a function on a graph of pixels, a layer on one of tokens.

:func:`propagated` has what Theorem 5.1 says of a layer, as numbers: ‖Δv‖, ‖v‖, \|v\|_BV and n·ρ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from lisse.maths.given import floating, square_grid

Neighbours = Literal[4, 8]
VariationScaling = Literal["discrete", "continuum"]
#: One number for all edges, or one (a number or a tensor) per direction of edges.
Weights = float | Tensor | Sequence[float | Tensor]

# Steps (rows, columns) from the first end of an undirected edge to the second.
_DIRECTIONS: dict[int, tuple[tuple[int, int], ...]] = {4: ((1, 0), (0, 1)), 8: ((1, 0), (0, 1), (1, 1), (1, -1))}


def bv_seminorm(
    u: Tensor, *, weights: Weights = 1.0, neighbours: Neighbours = 4, scaling: VariationScaling = "discrete"
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
    u: Tensor, *, weights: Weights = 1.0, neighbours: Neighbours = 4, scaling: VariationScaling = "discrete"
) -> Tensor:
    r"""The terms of :func:`bv_seminorm` pixel by pixel: ``[h, w]``, or ``[n, h, w]`` for a batch."""
    return _field("bv_seminorm", u, weights, neighbours, scaling)


def token_variation(
    v: Tensor,
    *,
    grid: tuple[int, int] | None = None,
    weights: Weights = 1.0,
    neighbours: Neighbours = 4,
    scaling: VariationScaling = "continuum",
) -> Tensor:
    r"""BV seminorm of vectors on a grid of patches: tokens ``[…, p, d]``, row by row, give ``[…]``.

    .. math:: |v|_{BV} = \frac{1}{n^2} \sum_i \Big\{ \sum_{j \in N_i} \frac{n^2}{2} \|v_i - v_j\|_2^2 \Big\}^{1/2}

    for ``scaling`` ``"continuum"`` on n × n patches, the one that Theorem 5.1 of [cao2022] can be read with at several
    n; ``"discrete"`` is eq. 1 as printed. ``grid`` (rows, columns) is needed where p is not a square. Class tokens have
    no place on the grid: leave them out.
    """
    tokens = floating("token_variation", "v", v)
    if tokens.ndim < 2:
        raise ValueError(f"token_variation: v must be [..., tokens, features], got shape {list(tokens.shape)}.")
    rows, columns = square_grid("token_variation", tokens.shape[-2], grid)
    images = tokens.reshape(-1, rows, columns, tokens.shape[-1]).permute(0, 3, 1, 2)
    variations = _field("token_variation", images, weights, neighbours, scaling).sum((-2, -1))
    return variations.reshape(tokens.shape[:-2])


@dataclass(frozen=True, slots=True)
class Propagated:
    r"""One step :math:`v \mapsto v'` of tokens; every field has the leading shape of the tokens.

    ``change`` :math:`\|v' - v\|`, ``norm`` :math:`\|v\|`, ``variation`` :math:`|v|_{BV}`, ``ratio``
    :math:`\rho = \|v' - v\| / (\|v\| + |v|_{BV})`, ``scaled`` :math:`n \rho`, which the theorem bounds by a constant;
    ``supremum`` and ``scaled_supremum`` the same with :math:`\max_i \|v'_i - v_i\|` and :math:`\max_i \|v_i\|`, the
    norm in which its proof works. On a grid that is not square n is :math:`\sqrt p`.
    """

    change: Tensor
    norm: Tensor
    variation: Tensor
    ratio: Tensor
    scaled: Tensor
    supremum: Tensor
    scaled_supremum: Tensor


def propagated(before: Tensor, after: Tensor, *, grid: tuple[int, int] | None = None) -> Propagated:
    r"""The two sides of Theorem 5.1 for tokens ``before``, ``after`` ``[…, p, d]``, without the constant.

    .. math:: \rho = \frac{\|v^{(t+1)} - v^{(t)}\|}{\|v^{(t)}\| + |v^{(t)}|_{BV}}, \quad
              \|v\| = \Big(\frac1p \sum_i \|v_i\|_2^2\Big)^{1/2}

    with :func:`token_variation` in the continuum scaling. O(p d). Tokens that are all zero give NaN.
    """
    v, w = floating("propagated", "before", before), floating("propagated", "after", after)
    if v.shape != w.shape:
        raise ValueError(
            f"propagated: before and after must have the same shape, got {list(v.shape)} and {list(w.shape)}."
        )
    rows, columns = square_grid("propagated", v.shape[-2] if v.ndim > 1 else 0, grid)
    variation = token_variation(v, grid=grid)
    change, norm = token_norm(w - v), token_norm(v)
    largest = torch.linalg.vector_norm(w - v, dim=-1).amax(-1)
    peak = torch.linalg.vector_norm(v, dim=-1).amax(-1)
    ratio, supremum = change / (norm + variation), largest / (peak + variation)
    n = (rows * columns) ** 0.5
    return Propagated(change, norm, variation, ratio, n * ratio, supremum, n * supremum)


def token_norm(v: Tensor) -> Tensor:
    r""":math:`\|v\| = \sqrt{\frac1p \sum_i \|v_i\|_2^2}` of tokens ``[…, p, d]``: the L² norm over the unit square."""
    tokens = floating("token_norm", "v", v)
    return torch.linalg.vector_norm(tokens, dim=(-2, -1)) / tokens.shape[-2] ** 0.5


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
        variations = _root(down).sum((-2, -1)) + _root(right).sum((-2, -1))
    else:
        pad = torch.nn.functional.pad
        variations = _root(pad(down, (0, 0, 0, 1)) + pad(right, (0, 1))).sum((-2, -1))
    return variations if batched else variations[0]


def _field(where: str, u: Any, weights: Weights, neighbours: Neighbours, scaling: VariationScaling) -> Tensor:
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
        starts, ends = _ends(h, w, down, right)
        edge = (images[:, :, *starts] - images[:, :, *ends]).square().sum(1)
        edge = edge * _edges(where, weight, edge) * factor
        pad = torch.nn.functional.pad
        total = total + pad(edge, _margins(starts, h, w)) + pad(edge, _margins(ends, h, w))
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
    image = floating(where, "u", u)
    if image.ndim not in (2, 3, 4) or 0 in image.shape:
        raise ValueError(f"{where}: u must be [h, w], [c, h, w] or [n, c, h, w], got shape {list(image.shape)}.")
    return image.reshape(-1 if image.ndim == 4 else 1, *(1,) * (3 - image.ndim), *image.shape[-3:]), image.ndim == 4


def _ends(h: int, w: int, down: int, right: int) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """Where the first and where the second ends of all edges in a direction lie."""
    first = slice(0, w - 1) if right > 0 else slice(1, w) if right < 0 else slice(0, w)
    second = slice(1, w) if right > 0 else slice(0, w - 1) if right < 0 else slice(0, w)
    return (slice(0, h - down), first), (slice(down, h), second)


def _margins(block: tuple[slice, slice], h: int, w: int) -> tuple[int, int, int, int]:
    rows, columns = block
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
    factors = floating(where, "weights", weight).to(edge)
    if bool((factors < 0).any()):
        raise ValueError(f"{where}: weights must not be negative, got {float(factors.min())}.")
    try:
        return factors.broadcast_to(edge.shape[-2:]) if factors.ndim < 3 else factors.broadcast_to(edge.shape)
    except RuntimeError as error:
        raise ValueError(
            f"{where}: weights must fit the edges {list(edge.shape[-2:])} of their direction, got shape "
            f"{list(factors.shape)}. Give one tensor per direction."
        ) from error


def _root(square: Tensor) -> Tensor:
    """The square root, whose derivative at 0 is taken as 0."""
    positive = square > 0
    return torch.where(positive, torch.where(positive, square, 1.0).sqrt(), 0.0)
