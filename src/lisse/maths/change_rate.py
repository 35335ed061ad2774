r"""How fast a sequence of distances between adjacent layers changes with depth ([chen2024] sec. 5).

With :math:`WD_l = W_p(Dg_{l-1}, Dg_l)` the distance between the diagrams of layers :math:`l - 1` and :math:`l`,
:math:`l = 1 … L`, everything here is a function of the list :math:`WD_1 … WD_L` alone. All functions take ``[…, L]``
and work along the last axis.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lisse.maths.given import check_least


def change_rate(distances: Tensor) -> Tensor:
    r"""Absolute change rates ``[…, L - 1]``: :math:`r_l = |WD_{l+1} - WD_l| / WD_l`, :math:`l = 1 … L - 1`.

    Where :math:`WD_l = 0` (two layers of the same shape) the rate has no value: NaN, which the other functions leave
    out. A NaN distance (a layer that could not be measured) makes the rates on both its sides NaN. Rates are at least
    0 and do not change when all distances are multiplied by one number. Reference: [chen2024] sec. 5.
    """
    distances = _distances("change_rate", distances)
    before, after = distances[..., :-1], distances[..., 1:]
    return (after - before).abs() / torch.where(before > 0, before, torch.nan)


def cumulative_rate(rates: Tensor) -> Tensor:
    r"""Cumulative change rates ``[…, m]``: :math:`c_l = \sum_{k \le l} r_k`; a rate that is NaN adds nothing.

    Cumulate first, then interpolate (:func:`rate_curve`): the other order would add up interpolated values.
    """
    return _rates("cumulative_rate", rates).nan_to_num(nan=0.0, posinf=torch.inf).cumsum(-1)


def topolip(rates: Tensor) -> Tensor:
    r"""The largest change rate ``[…]``, :math:`\max_l r_l`, before any interpolation; NaN where no rate is defined.

    This is section 5's TopoLip, called ``topolip_change_rate`` in a profile. It is not Definition 6's product of
    Lipschitz constants, which bears the same name in the paper. Reference: [chen2024] sec. 5.
    """
    rates = _rates("topolip", rates)
    largest = rates.nan_to_num(nan=-1.0, posinf=torch.inf).amax(-1)
    return torch.where(largest >= 0, largest, torch.nan)


def mean_rate(rates: Tensor) -> Tensor:
    r"""The mean change rate ``[…]`` over the rates that are defined; NaN where none is.

    The sum of all rates grows with the number of layers; this does not.
    """
    return _rates("mean_rate", rates).nanmean(-1)


def rate_curve(values: Tensor, *, points: int = 101) -> Tensor:
    r"""Values at :math:`i/(m - 1)`, :math:`i = 0 … m - 1`, interpolated linearly to ``points`` equal steps of [0, 1].

    ``[…, m]`` to ``[…, points]``: networks of different depths on one axis. A single value is constant. NaN leaves a
    gap between its two neighbours, no more. The maximum never exceeds that of the values, and falls short of it where
    the grid misses a node: take maxima before. Reference: [chen2024] sec. 5.
    """
    values = _rates("rate_curve", values)
    check_least("rate_curve", 2, points=points)
    count = values.shape[-1]
    position = torch.arange(points, dtype=torch.float64, device=values.device) * (count - 1) / (points - 1)
    left = position.floor().long().clamp(0, max(count - 2, 0))
    right = (left + 1).clamp_max(count - 1)
    share = (position - left).to(values.dtype)
    below, above = values[..., left], values[..., right]
    between = below + (above - below) * share
    # Rounding must not put a value outside the two it lies between.
    between = between.clamp(torch.minimum(below, above), torch.maximum(below, above))
    return torch.where(share == 0, below, torch.where(share == 1, above, between))


def _distances(where: str, distances: Tensor) -> Tensor:
    distances = _floating(where, "distances", distances)
    if distances.shape[-1] < 2:
        raise ValueError(
            f"{where}: distances must hold at least 2 values, got {distances.shape[-1]}. A rate compares two, "
            "so a network needs three layers, its input counted."
        )
    if bool((distances < 0).any()):
        raise ValueError(f"{where}: distances must not be negative, got {float(distances.nan_to_num(0).min()):g}.")
    if bool(distances.isinf().any()):
        raise ValueError(f"{where}: distances must be finite, got infinity among them.")
    return distances


def _rates(where: str, rates: Tensor) -> Tensor:
    rates = _floating(where, "values" if where == "rate_curve" else "rates", rates)
    if rates.shape[-1] < 1:
        raise ValueError(f"{where}: there must be at least one value, got none.")
    return rates


def _floating(where: str, argument: str, values: Tensor) -> Tensor:
    values = torch.as_tensor(values)
    if values.ndim == 0:
        raise ValueError(f"{where}: {argument} must have layers on the last axis, got a single number.")
    return values if values.is_floating_point() else values.double()
