"""TopoLip's constants of attention and convolution at its initialisation: as printed, as corrected, as measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import nn

from lisse.maths.bounds import attention_order, convolution_order, topolip_attention, topolip_convolution
from lisse.maths.bounds.bound import Bound
from lisse.maths.intervals import across_clouds
from lisse.maths.jacobian import jacobian_norm
from lisse.networks.zoo.attention_only import FullWidthAttention

Layer = Literal["attention", "convolution"]
Source = Literal["order", "printed", "corrected", "measured"]


@dataclass(frozen=True, slots=True)
class Setting:
    """Sizes of both layers: weights of attention N(0, σ²), of the convolution N(0, σ²/(C(2k+1)²)), tokens N(0, σ²).

    ``p``, ``q`` and ``t`` choose the tails: attention's ball has radius p√d·σ, norms are at most qσ above their mean,
    and the convolution's variables stay within t deviations.
    """

    sigma: float = 0.05
    d: int = 128
    heads: int = 8
    k: int = 1
    channels: int = 128
    p: float = 2.0
    q: float = 4.0
    t: float = 3.0


SWEEPS: dict[str, tuple[float, ...]] = {
    "sigma": (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2),
    "d": (16, 32, 64, 128, 256, 512),
    "heads": (1, 2, 4, 8, 16),
    "k": (1, 2, 3, 4),
    "channels": (16, 32, 64, 128, 256),
}


@dataclass(frozen=True, slots=True)
class Constant:
    """One point of the plot: ``layer``'s constant by ``source`` where ``against`` has the value ``x``.

    ``kind`` and ``valid`` are a bound's; a measured one is ``lower`` (a Jacobian's norm at drawn tokens, or a linear
    layer's norm from below), the mean over ``n`` draws with its interval.
    """

    layer: Layer
    source: Source
    against: str
    x: float
    value: float
    log10: float
    kind: str
    valid: bool
    low: float = math.nan
    high: float = math.nan
    n: int = 1


def constants(
    setting: Setting = Setting(),  # noqa: B008 - frozen
    *,
    sweeps: dict[str, Sequence[float]] | None = None,
    tokens: int = 16,
    size: int = 16,
    draws: int = 3,
    seed: int = 0,
) -> list[Constant]:
    """The constants of both layers along each sweep of one number of ``setting``, the others held.

    ``order`` is the paper's O() with constant 1, ``printed`` and ``corrected`` the full bounds. ``measured`` draws the
    layer ``draws`` times: attention's Jacobian at ``tokens`` tokens, the convolution's norm on ``size`` × ``size``
    images with zero padding. Cost: two Lanczos runs per point and draw; half a minute on one core as it stands.
    """
    known = {field.name for field in fields(Setting)} - {"p", "q", "t"}
    chosen = SWEEPS if sweeps is None else sweeps
    for name in chosen:
        if name not in known:
            raise ValueError(f"constants: sweeps must be over {', '.join(sorted(known))}, got {name!r}.")
    if draws < 2:
        raise ValueError(f"constants: draws must be at least 2, got {draws}. One draw has no interval.")
    done: dict[tuple[object, ...], tuple[float, float, float]] = {}
    found: list[Constant] = []
    for name, values in chosen.items():
        for x in values:
            here = _changed(setting, name, x)
            found.extend(_formulas(here, name, x))
            for layer in ("attention", "convolution"):
                key = (layer, here.sigma, *((here.d, here.heads) if layer == "attention" else (here.k, here.channels)))
                if key not in done:
                    done[key] = _measured(here, layer, tokens, size, draws, seed)
                value, low, high = done[key]
                place: Layer = "attention" if layer == "attention" else "convolution"
                found.append(
                    Constant(place, "measured", name, x, value, math.log10(value), "lower", True, low, high, draws)
                )
    return found


def _changed(setting: Setting, name: str, x: float) -> Setting:
    changes: dict[str, Any] = {name: x if name == "sigma" else int(x)}
    return replace(setting, **changes)


def _formulas(here: Setting, name: str, x: float) -> Iterator[Constant]:
    t, s = here.p * math.sqrt(here.d), here.q * here.sigma

    def row(layer: Layer, source: Source, bound: Bound) -> Constant:
        return Constant(layer, source, name, x, bound.value, bound.log10, bound.kind, bound.valid)

    for source in ("printed", "corrected"):
        attention = topolip_attention(here.d, here.sigma, t, s, heads=here.heads, variant=source)
        yield row("attention", source, attention)
        convolution = topolip_convolution(here.k, here.channels, here.sigma, here.t, variant=source)
        yield row("convolution", source, convolution)
    orders: dict[Layer, float] = {
        "attention": attention_order(here.d, here.sigma, heads=here.heads),
        "convolution": convolution_order(here.k, here.channels, here.sigma),
    }
    for layer, value in orders.items():
        yield Constant(layer, "order", name, x, value, math.log10(value), "heuristic", False)


def _measured(
    here: Setting, layer: str, tokens: int, size: int, draws: int, seed: int
) -> tuple[float, float, float]:  # fmt: skip
    norms = []
    for draw in range(draws):
        generator = torch.Generator().manual_seed(seed + draw)
        if layer == "attention":
            module: nn.Module = FullWidthAttention(here.d, here.heads)
            std = here.sigma
            x = here.sigma * torch.randn(1, tokens, here.d, generator=generator)
        else:
            side = 2 * here.k + 1
            module = nn.Conv2d(here.channels, here.channels, side, padding=here.k, bias=False)
            std = here.sigma / math.sqrt(here.channels * side**2)
            x = torch.zeros(1, here.channels, size, size)
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=std, generator=generator)
        module.requires_grad_(False)
        x.requires_grad_()
        norms.append(jacobian_norm(module(x), x, max_iter=40, tol=1e-2, generator=generator).value[0])
    interval = across_clouds(torch.stack(norms))
    return float(interval.value), float(interval.low), float(interval.high)
