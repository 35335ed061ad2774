"""Keep a network Lipschitz: every layer's operator norm capped, so that the whole has a constant of one's choice."""

from __future__ import annotations

import copy
import math
import re
from typing import Any

import torch
from torch import nn

from lisse.networks.bounds.module import of_module
from lisse.networks.bounds.operators import Convolution, operator_norm
from lisse.taps import find, plain

_TOL = 1e-2
_CLOSE = 2e-3  # of logarithms: half a per cent


class Cap:
    r"""Caps the layers of ``model`` so that its bound of :func:`lisse.networks.bounds.of_module` is at most a constant.

    Every linear layer and convolution has the same share c: after :meth:`keep` none has an operator norm, for the size
    of its input in ``example`` and proved from above, over c. c is the largest at which the bound of the whole forward,
    residual sums, pools and normalisation inside the model included, is still ``constant``; in a chain of n layers it
    is :math:`(L/K)^{1/n}` with K what the other layers multiply. Of a matrix over its cap the singular values above c
    are set to it (the nearest matrix that is not over); a convolution is divided, whole, by as much as it is over. Any
    network of such layers, activations and pools can be converted in place; norms whose constant depends on the data or
    changes as they train, and attention, are refused. Cost of :meth:`keep`: an operator norm a layer.
    """

    def __init__(self, model: nn.Module, example: Any, constant: float) -> None:
        if not (isinstance(constant, int | float) and math.isfinite(constant) and constant > 0):
            raise ValueError(f"Cap: constant must be positive and finite, got {constant!r}. Give 10.0.")
        root = plain(model)
        for name, part in root.named_modules():
            if re.search(r"Norm(\dd)?$|Attention", type(part).__name__):
                raise ValueError(
                    f"Cap: model must have no normalisation layers and no attention, got {type(part).__name__} at "
                    f"{name}. Take a network of linear layers, convolutions, activations and pools."
                )
        sites = {tap.module: tap.shape for tap in find(root, example, ["**", "**:in"]) if tap.side == "in"}
        layers = {name: part for name, part in root.named_modules() if isinstance(part, nn.Linear | Convolution)}
        self.layers = [(part, sites[name]) for name, part in layers.items() if name in sites]
        if not self.layers:
            raise ValueError("Cap: model must have linear layers or convolutions, got none.")
        self.constant = float(constant)
        self.share = self._share(root, sites[""])

    def _share(self, root: nn.Module, shape: tuple[int, ...]) -> float:
        """The cap of a layer, where the whole network's bound is the constant.

        The bound's logarithm is convex in the cap's, a line in a chain: the chord leads there at once, or from below.
        """
        twin = copy.deepcopy(root)
        twins = dict(zip((part for part in root.modules()), twin.modules(), strict=True))
        weights = [nn.Parameter(part.weight.detach() / _norm(part, size)) for part, size in self.layers]
        parts = [twins[part] for part, _ in self.layers]

        def excess(share: float) -> float:
            for part, weight in zip(parts, weights, strict=True):
                part.weight = nn.Parameter(weight.detach() * 10**share)
            bound = of_module(twin, radius=1.0, input_shape=shape, metric="euclidean", tol=_TOL)
            return bound.log10 - math.log10(self.constant)

        low, high = -3.0, 3.0
        below, above = excess(low), excess(high)
        if below > 0:
            raise ValueError(
                f"Cap: constant must be above {self.constant * 10**below:.3g}, what is left of this network with "
                f"all its layers near 0, got {self.constant:g}. Give a larger one."
            )
        while high - low > _CLOSE and above > 0:
            chord = low + (high - low) * below / (below - above)
            for middle in (chord - _CLOSE / 8, chord + _CLOSE / 2, (low + high) / 2):
                if not low < middle < high or high - low <= _CLOSE:
                    continue
                value = excess(middle)
                low, below, high, above = (middle, value, high, above) if value <= 0 else (low, below, middle, value)
        return float(10**low) * (1 - _TOL)

    @torch.no_grad()
    def keep(self) -> float:
        """Divide the layers that are over their cap; the largest ratio of a norm to the cap that was met."""
        most = 0.0
        for part, shape in self.layers:
            if isinstance(part, nn.Linear):
                _clip(part, self.share * (1 - _TOL))
            ratio = _norm(part, shape) / self.share
            most = max(most, ratio)
            if ratio > 1:
                part.weight.div_(ratio * (1 + 1e-6))
        return most


def _clip(part: nn.Linear, most: float) -> None:
    """The nearest matrix whose singular values are at most ``most``: those above are set to it."""
    wide = part.weight.double()
    turned = wide if len(wide) <= wide.shape[1] else wide.T
    squares, vectors = torch.linalg.eigh(turned @ turned.T)
    if float(squares[-1]) > most**2:
        factors = (most / squares.clamp_min(most**2).sqrt()).clamp_max(1.0)
        clipped = (vectors * factors) @ (vectors.T @ turned)
        part.weight.copy_(clipped if turned is wide else clipped.T)


def _norm(part: nn.Module, shape: tuple[int, ...]) -> float:
    return operator_norm(part, shape, tol=_TOL, max_iter=0, dense=0).upper
