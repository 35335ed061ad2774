"""TopoLip's constants of attention and convolution at its initialisation: as printed, as corrected, as measured.

:func:`constants` makes the table, :func:`constants_figure` draws it against the sizes the constants depend on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import nn

from lisse.maths.bounds import topolip_attention, topolip_convolution
from lisse.maths.bounds.bound import Bound
from lisse.maths.intervals import across_clouds
from lisse.maths.jacobian import jacobian_norm
from lisse.networks.zoo.attention_only import FullWidthAttention
from lisse.reporting.figure import GREY, INK, PALETTE, panels
from lisse_experiments.topolip.orders import attention_order, convolution_order

Layer = Literal["attention", "convolution"]
LAYERS: tuple[Layer, ...] = ("attention", "convolution")
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
    sizes = {field.name for field in fields(Setting)} - {"p", "q", "t"}
    selected = SWEEPS if sweeps is None else sweeps
    for name in selected:
        if name not in sizes:
            raise ValueError(f"constants: sweeps must be over {', '.join(sorted(sizes))}, got {name!r}.")
    if draws < 2:
        raise ValueError(f"constants: draws must be at least 2, got {draws}. One draw has no interval.")
    measured: dict[tuple[object, ...], tuple[float, float, float]] = {}
    table: list[Constant] = []
    for name, values in selected.items():
        for x in values:
            changed = _changed(setting, name, x)
            table.extend(_formulas(changed, name, x))
            for layer in LAYERS:
                key = (
                    layer,
                    changed.sigma,
                    *((changed.d, changed.heads) if layer == "attention" else (changed.k, changed.channels)),
                )
                if key not in measured:
                    measured[key] = _measured(changed, layer, tokens, size, draws, seed)
                value, low, high = measured[key]
                table.append(
                    Constant(layer, "measured", name, x, value, math.log10(value), "lower", True, low, high, draws)
                )
    return table


def _changed(setting: Setting, name: str, x: float) -> Setting:
    changes: dict[str, Any] = {name: x if name == "sigma" else int(x)}
    return replace(setting, **changes)


def _formulas(setting: Setting, name: str, x: float) -> Iterator[Constant]:
    t, s = setting.p * math.sqrt(setting.d), setting.q * setting.sigma

    def row(layer: Layer, source: Source, bound: Bound) -> Constant:
        return Constant(layer, source, name, x, bound.value, bound.log10, bound.kind, bound.valid)

    for source in ("printed", "corrected"):
        attention = topolip_attention(setting.d, setting.sigma, t, s, heads=setting.heads, variant=source)
        yield row("attention", source, attention)
        convolution = topolip_convolution(setting.k, setting.channels, setting.sigma, setting.t, variant=source)
        yield row("convolution", source, convolution)
    orders: dict[Layer, float] = {
        "attention": attention_order(setting.d, setting.sigma, heads=setting.heads),
        "convolution": convolution_order(setting.k, setting.channels, setting.sigma),
    }
    for layer, value in orders.items():
        yield Constant(layer, "order", name, x, value, math.log10(value), "heuristic", False)


def _measured(
    setting: Setting, layer: Layer, tokens: int, size: int, draws: int, seed: int
) -> tuple[float, float, float]:  # fmt: skip
    norms = []
    for draw in range(draws):
        generator = torch.Generator().manual_seed(seed + draw)
        if layer == "attention":
            module: nn.Module = FullWidthAttention(setting.d, setting.heads)
            std = setting.sigma
            x = setting.sigma * torch.randn(1, tokens, setting.d, generator=generator)
        else:
            side = 2 * setting.k + 1
            module = nn.Conv2d(setting.channels, setting.channels, side, padding=setting.k, bias=False)
            std = setting.sigma / math.sqrt(setting.channels * side**2)
            x = torch.zeros(1, setting.channels, size, size)
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=std, generator=generator)
        module.requires_grad_(False)
        x.requires_grad_()
        norms.append(jacobian_norm(module(x), x, max_iter=40, tol=1e-2, generator=generator).value[0])
    interval = across_clouds(torch.stack(norms))
    return float(interval.value), float(interval.low), float(interval.high)


# --- the figure -----------------------------------------------------------------------------------------------------

_COLOURS: dict[Layer, str] = {"attention": PALETTE[0], "convolution": PALETTE[1]}
_SOURCES = {
    "order": ("the paper's O(), not a bound", (0, (1, 1.6)), None),
    "printed": ("printed formula in full, not a bound", (0, (5, 2)), None),
    "corrected": ("corrected, proved upper bound (hollow: its tail bound promises nothing here)", "-", None),
    "measured": ("measured, mean of draws with interval", "none", "o"),
}
_NAMES = {
    "sigma": "σ, spread of the weights",
    "d": "d, width of tokens",
    "heads": "M, heads",
    "k": "k, kernels of 2k + 1 pixels",
    "channels": "C, channels",
}
_TOP, _BOTTOM = 7.0, -6.0


def constants_figure(table: Sequence[Constant], setting: Setting = Setting(), *, title: str = "") -> Figure:  # noqa: B008
    """One panel per sweep of :func:`constants`, all on one logarithmic axis.

    What is not a theorem is dotted or dashed; a full line is a proved bound; points are measured. Under each panel
    stands which layer the measurement and which the printed O() calls the smoother one. Bounds above 10⁷ leave the
    panel, and an arrow says so.
    """
    if not table:
        raise ValueError("constants_figure: table must hold at least one constant, got none.")
    sweeps = list(dict.fromkeys(row.against for row in table))
    says = (
        "Lipschitz constants at TopoLip's initialisation, the other sizes held at "
        f"σ = {setting.sigma:g}, d = {setting.d}, M = {setting.heads}, k = {setting.k}, C = {setting.channels}. "
        "Over each panel: which of the two the paper's O() calls the smoother layer, and which one measurement finds."
    )
    figure, axes = panels(
        len(sweeps), columns=3, width=3.6, height=3.3, title=title or "Which layer is smoother?", says=says, foot=0.7,
        share=True,
    )  # fmt: skip
    for ax, name in zip(axes, sweeps, strict=True):
        rows = [row for row in table if row.against == name]
        for layer, source in itertools.product(LAYERS, _SOURCES):
            _series(ax, source, sorted((r for r in rows if (r.layer, r.source) == (layer, source)), key=lambda r: r.x))
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_ylim(10**_BOTTOM, 10**_TOP)
        ticks = sorted({row.x for row in rows})
        if name != "sigma":
            ax.set_xticks(ticks, [f"{x:g}" for x in ticks])
            ax.minorticks_off()
        ax.set_xlabel(_NAMES.get(name, name), color=INK, size=9.5)
        ax.set_title(_verdict(rows), size=8.5, color=GREY, loc="left")
    handles = [Line2D([], [], color=colour, lw=4, label=layer) for layer, colour in _COLOURS.items()]
    for source, (label, style, mark) in _SOURCES.items():
        shape = "D" if source == "corrected" else mark
        handles.append(Line2D([], [], color=INK, linestyle=style, marker=shape, ms=4.5, lw=1.7, label=label))
    figure.legend(handles=handles, loc="lower left", ncols=3, frameon=False, fontsize=8.5, bbox_to_anchor=(0.01, 0.01))
    return figure


def _series(ax: Axes, source: str, rows: Sequence[Constant]) -> None:
    """One layer's constants by one source, in the order of x."""
    if not rows:
        return
    colour, (_, style, mark) = _COLOURS[rows[0].layer], _SOURCES[source]
    xs, heights = [row.x for row in rows], [10 ** min(row.log10, 30.0) for row in rows]
    if source == "measured":
        spread = [
            [max(0.0, row.value - max(row.low, 10**_BOTTOM)) for row in rows],
            [max(0.0, row.high - row.value) for row in rows],
        ]
        ax.errorbar(xs, heights, spread, fmt=mark or "o", color=colour, ms=4.5, lw=1.2, capsize=2, zorder=4)
        return
    ax.plot(xs, heights, color=colour, linestyle=style, lw=1.7, zorder=3)
    if source == "corrected":
        for row in rows:
            if row.log10 <= _TOP:
                face = colour if row.valid else "white"
                ax.plot([row.x], [row.value], "D", ms=4, color=colour, mfc=face, zorder=4)
        outside = [row for row in rows if row.log10 > _TOP]
        if outside:
            ax.annotate(
                f"↑ 10^{outside[-1].log10:,.0f}", (outside[-1].x, 10**_TOP), xytext=(0, -30), size=7.5,
                textcoords="offset points", ha="right", color=colour,
            )  # fmt: skip


def _verdict(rows: Sequence[Constant]) -> str:
    """Which layer is the smoother one, by the paper's O() and by measurement, along one sweep."""
    lines = []
    for source, word in (("order", "O()"), ("measured", "measured")):
        pairs = {layer: {r.x: r.value for r in rows if r.source == source and r.layer == layer} for layer in _COLOURS}
        shared = sorted(pairs["attention"].keys() & pairs["convolution"].keys())
        wins = [x for x in shared if pairs["attention"][x] < pairs["convolution"][x]]
        if not shared:
            continue
        if len(wins) == len(shared):
            text = "attention smoother"
        elif not wins:
            text = "convolution smoother"
        elif wins == shared[: len(wins)]:
            text = f"attention smoother up to {wins[-1]:g}"
        elif wins == shared[-len(wins) :]:
            text = f"attention smoother from {wins[0]:g}"
        else:
            text = f"attention smoother at {len(wins)} of {len(shared)}"
        lines.append(f"{word}: {text}")
    return "\n".join(lines)
