r"""What Theorem 5.1 of [cao2022] says of a layer, as numbers: ‖Δv‖, ‖v‖, |v|_BV and n·ρ."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lisse.maths.given import floating, square_grid
from lisse.maths.variation.seminorm import token_variation


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
    given = floating("token_norm", "v", v)
    return torch.linalg.vector_norm(given, dim=(-2, -1)) / given.shape[-2] ** 0.5
