"""Noise: each value on its own. Images here and in the files beside are floats ``[n, c, h, w]`` in [0, 1]."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from lisse.maths.corruption.draws import Draws

_CELLS = 4096


def gaussian_noise(x: Tensor, draws: Draws, *, sigma: float) -> Tensor:
    r""":math:`x + \sigma z`, z standard normal."""
    return torch.add(x, draws.normal(*x.shape[1:]).to(x), alpha=sigma)


def speckle_noise(x: Tensor, draws: Draws, *, sigma: float) -> Tensor:
    r""":math:`x (1 + \sigma z)`: noise in proportion to brightness."""
    return x * draws.normal(*x.shape[1:]).to(x).mul_(sigma).add_(1)


def impulse_noise(x: Tensor, draws: Draws, *, amount: float) -> Tensor:
    """A fraction ``amount`` of the values (each channel on its own) turns to 0 or 1, one as likely as the other."""
    (u,) = draws.uniform(x.shape[1:])
    return x.masked_fill(u < amount / 2, 0.0).masked_fill_(u >= 1 - amount / 2, 1.0)


def shot_noise(x: Tensor, draws: Draws, *, photons: float, bytes_: bool) -> Tensor:
    r""":math:`\mathrm{Poisson}(\lambda x) / \lambda`, :math:`\lambda` the ``photons`` that white sends.

    Bytes have only 256 rates: then the distribution functions are tabulated once and inverted at 24-bit uniform
    numbers, which is exact to 6e-8.
    """
    if not bytes_:
        return draws.poisson(x * photons) / photons
    (u,) = draws.uniform(x.shape[1:])
    first, steps, starts = _poisson_table(photons)
    level = (x * 255).round_().int()
    cell = u.mul(_CELLS).int().add_(level, alpha=_CELLS)
    counts = first.to(x.device)[cell]
    open_ = (counts < 0).flatten().nonzero().flatten()
    if len(open_):  # the cell holds a step of the distribution function: look it up
        which = level.flatten()[open_]
        rank = torch.searchsorted(steps.to(x.device), which + u.flatten()[open_].double(), right=True)
        counts.view(-1)[open_] = (rank - starts.to(x.device)[which]).to(counts.dtype)
    return counts.to(x).div_(photons)


@functools.lru_cache(maxsize=16)
def _poisson_table(photons: float) -> tuple[Tensor, Tensor, Tensor]:
    """The inverse distribution functions of Poisson(photons · level / 255), for levels 0 … 255.

    ``first`` ``[256 · cells]``: the value for all uniform numbers in a cell, or -1 where the cell holds a step;
    ``steps``: level + distribution function, ascending; ``starts`` ``[256]``: where each level's begin.
    """
    rate = photons * torch.arange(256, dtype=torch.float64) / 255
    most = int(photons + 12 * photons**0.5 + 20)
    k = torch.arange(most, dtype=torch.float64)
    logs = k * rate.clamp_min(1e-300).log()[:, None] - rate[:, None] - torch.lgamma(k + 1)
    below = logs.exp().cumsum(1).clamp_max(1.0)  # P(value <= k)
    below[:, -1] = 1.0
    edges = torch.arange(_CELLS + 1, dtype=torch.float64).repeat(256, 1) / _CELLS
    low = torch.searchsorted(below, edges[:, :-1].contiguous(), right=True)
    high = torch.searchsorted(below, edges[:, 1:].contiguous())
    first = torch.where(low == high, low, -1)
    levels = torch.arange(256)
    return first.flatten().short(), (below + levels[:, None]).flatten(), levels * most
