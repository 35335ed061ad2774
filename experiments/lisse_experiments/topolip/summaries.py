"""Curves and numbers read off a diagram; those of bars that carry gradients pass them on."""

from __future__ import annotations

import torch
from torch import Tensor

from lisse.maths.given import Values, all_finite, check_least, check_positive
from lisse.maths.homology.diagram import Bars, Diagram, finite_bars
from lisse.maths.homology.metric import plain_tensor


def betti_curve(diagram: Bars, grid: Values, *, dim: int | None = None) -> Tensor:
    r"""Number of bars alive at each scale: :math:`\beta(t) = \#\{(b, d) : b \le t < d\}`, ``[len(grid)]`` integers.

    The infinite bars of a :class:`Diagram` count from their birth on; bars ``[m, 2]`` are taken as they are.
    O((m + g) log m).
    """
    bars = _bars(diagram, dim, "betti_curve").detach()
    scales = _grid(grid, bars, "betti_curve")
    births, deaths = bars[:, 0].sort().values, bars[:, 1].sort().values
    alive = torch.searchsorted(births, scales, right=True) - torch.searchsorted(deaths, scales, right=True)
    if isinstance(diagram, Diagram) and dim is not None:
        alive = alive + torch.searchsorted(diagram.infinite[dim].to(scales), scales, right=True)
    return alive


def landscape(diagram: Bars, grid: Values, *, dim: int | None = None, levels: int = 5) -> Tensor:
    r"""Persistence landscape ``[levels, len(grid)]`` of the finite bars ([bubenik2015]).

    :math:`\lambda_k(t)` is the k-th largest of :math:`\max(0, \min(t - b, d - t))` over the bars, 0 where there are
    fewer. O(m g).
    """
    check_least("landscape", 1, levels=levels)
    bars = _bars(diagram, dim, "landscape")
    scales = _grid(grid, bars, "landscape")
    tents = torch.minimum(scales[None] - bars[:, :1], bars[:, 1:] - scales[None]).clamp(min=0)
    top = tents.topk(min(levels, len(bars)), dim=0).values
    return torch.cat([top, top.new_zeros(levels - len(top), len(scales))])


def persistence_entropy(diagram: Bars, *, dim: int | None = None) -> Tensor:
    r"""Shannon entropy (in nats) of the lengths :math:`\ell_i`: :math:`-\sum_i p_i \ln p_i`, :math:`p_i = \ell_i / L`.

    0 for one bar or none, ln m for m bars of equal length. Of the finite bars.
    """
    lengths = _lengths(diagram, dim, "persistence_entropy")
    if len(lengths) == 0:
        return lengths.new_zeros(())
    return torch.special.entr(lengths / lengths.sum()).sum()


def total_persistence(diagram: Bars, *, dim: int | None = None, p: float = 1.0) -> Tensor:
    r"""Sum of powers of the finite lengths, :math:`\sum_i \ell_i^p`, p > 0.

    With :func:`diagram_distance`: :math:`W_p(D, \emptyset) = 2^{1/q - 1} (\sum_i \ell_i^p)^{1/p}`.
    """
    check_positive("total_persistence", p=p)
    return _lengths(diagram, dim, "total_persistence").pow(p).sum()


def _lengths(diagram: Bars, dim: int | None, name: str) -> Tensor:
    bars = _bars(diagram, dim, name)
    lengths = bars[:, 1] - bars[:, 0]
    return lengths[lengths > 0]


def _bars(diagram: Bars, dim: int | None, name: str) -> Tensor:
    if isinstance(diagram, Diagram):
        if dim is None:
            raise ValueError(f"{name}: dim must be given for a Diagram, got None. It has {diagram.dims}.")
        return diagram[dim]
    return finite_bars(diagram, name=name)


def _grid(grid: Values, bars: Tensor, name: str) -> Tensor:
    scales = plain_tensor(grid).to(bars).detach()
    if scales.ndim != 1 or not all_finite(scales):
        raise ValueError(f"{name}: grid must be a list of finite scales, got shape {list(scales.shape)}.")
    return scales
