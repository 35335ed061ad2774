"""Figure 3 of [beshkov2022] for both losses and all attacks, and what robustness costs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from lisse.maths.intervals import across_clouds
from lisse.reporting import save_figure
from lisse.reporting.figure import GREY, INK, PALETTE, panels, plain_text
from lisse_experiments.isometry.mnist.attacks import ATTACKS, BALL, SIZES, STEPS, Attack, Stood, over_beta
from lisse_experiments.isometry.mnist.networks import LOSSES, READINGS

TITLES: dict[Attack, str] = {
    "fgsm": "FGSM, by ε",
    "pgd": "PGD, by step",
    "authors": "the authors' PGD, by step",
    "error": "the same of the error alone",
}


def draw(everything: Sequence[Stood], betas: Sequence[float], out: Path) -> list[Path]:
    """All pictures."""
    return [
        save_figure(curves(everything, betas, clipped=True), out / "figure-3.png"),
        save_figure(curves(everything, betas, clipped=False), out / "figure-3-free.png"),
        save_figure(trade(everything, betas), out / "mnist-trade.png"),
    ]


def curves(everything: Sequence[Stood], betas: Sequence[float], *, clipped: bool) -> Figure:
    """Accuracy against the size of the attack: rows are losses, columns attacks, a line per β with its interval."""
    pixels = "kept in [0, 1]" if clipped else "free to leave [0, 1]"
    figure, axes = panels(
        len(READINGS) * len(ATTACKS),
        columns=len(ATTACKS),
        width=3.9,
        height=2.7,
        title="Accuracy under attack by the weight β of the isometric loss",
        says=f"Images {pixels}. PGD takes {STEPS} steps in an ℓ∞ ball of {BALL:g}; the authors' takes every gradient "
        "at the clean image, of cross-entropy plus isometric loss. Bands: 95 % over seeds.",
        foot=0.45,
        share=True,
    )
    for ax, (reading, attack) in zip(axes, [(r, a) for r in READINGS for a in ATTACKS], strict=True):
        for index, beta in enumerate(betas):
            shares = torch.stack([network.share(attack, clipped) for network in over_beta(everything, reading, beta)])
            _band(ax, SIZES, shares, PALETTE[index])
        ax.set_xscale("log")
        ax.set_ylim(-0.02, 1.02)
        plain_text(ax.set_title(f"{LOSSES[reading]}: {TITLES[attack]}", loc="left", size=9.5, color=INK))
    _legend(figure, betas)
    return figure


def trade(everything: Sequence[Stood], betas: Sequence[float]) -> Figure:
    """Accuracy under attack against clean accuracy, a point per β; and the gradients that FGSM follows."""
    figure, axes = panels(
        3,
        columns=3,
        width=3.9,
        height=2.9,
        title="What robustness costs, and whether small gradients explain it",
        says="Left and middle: accuracy under attack, mean over the sizes of Figure 3, against clean accuracy; lines "
        "go from β = 0 to the largest. Right: the median ℓ1 norm of the test images' gradients, by β. Bars: 95 % over "
        "seeds.",
        foot=0.45,
    )
    for ax, attack in zip(axes, ("fgsm", "authors"), strict=False):
        for reading, style in zip(READINGS, ("-", "--"), strict=True):
            points = []
            for index, beta in enumerate(betas):
                networks = over_beta(everything, reading, beta)
                clean = torch.tensor([network.clean / network.n for network in networks], dtype=torch.float64)
                under = torch.stack([network.share(attack, True).mean() for network in networks])  # type: ignore[arg-type]
                x, y = across_clouds(clean), across_clouds(under)
                points.append((float(x.value), float(y.value)))
                ax.errorbar(
                    [points[-1][0]], [points[-1][1]], xerr=float(x.high - x.value), yerr=float(y.high - y.value),
                    color=PALETTE[index], marker="o" if style == "-" else "s", ms=5, mec="white", mew=0.5, lw=1.2,
                )  # fmt: skip
            ax.plot(*zip(*points, strict=True), color=GREY, lw=0.8, ls=style, zorder=0)
        name = {"fgsm": "FGSM", "authors": "the authors' PGD"}[attack]
        ax.set_xlim(right=min(1.0, ax.get_xlim()[1]), left=max(0.0, ax.get_xlim()[0]))
        ax.set_ylim(bottom=0)
        ax.set_xlabel("clean accuracy", size=9, color=INK)
        plain_text(ax.set_title(f"accuracy under {name}", loc="left", size=9.5, color=INK))
    for reading, style in zip(READINGS, ("-", "--"), strict=True):
        norms = [
            across_clouds(
                torch.stack([network.steepness.double().median() for network in over_beta(everything, reading, beta)])
            )
            for beta in betas
        ]
        middle = [float(norm.value) for norm in norms]
        # On a logarithmic axis an interval that reaches below 0 ends at a tenth of the value.
        below = [min(value - float(norm.low), 0.9 * value) for value, norm in zip(middle, norms, strict=True)]
        above = [float(norm.high) - value for value, norm in zip(middle, norms, strict=True)]
        marker = "o" if style == "-" else "s"
        axes[2].errorbar(range(len(betas)), middle, yerr=[below, above], color=INK, ls=style, marker=marker, ms=4)
    axes[2].set_xticks(range(len(betas)), [f"{beta:g}" for beta in betas])
    axes[2].set_xlabel("β", size=9, color=INK)
    axes[2].set_yscale("log")
    plain_text(axes[2].set_title("median ℓ1 norm of the gradient", loc="left", size=9.5, color=INK))
    _legend(figure, betas, losses=True)
    return figure


def _band(ax: Axes, x: Sequence[float], shares: Tensor, colour: str) -> None:
    interval = across_clouds(shares)
    ax.plot(x, interval.value.tolist(), color=colour, lw=1.5, marker="o", ms=3)
    low, high = interval.low.clamp_min(0).tolist(), interval.high.clamp_max(1).tolist()
    ax.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)


def _legend(figure: Figure, betas: Sequence[float], *, losses: bool = False) -> None:
    handles = [
        Line2D([], [], color=PALETTE[index], marker="o", ms=4, label=f"β = {beta:g}")
        for index, beta in enumerate(betas)
    ]
    if losses:
        handles += [
            Line2D([], [], color=INK, ls=style, marker=marker, ms=4, label=LOSSES[reading])
            for reading, style, marker in zip(READINGS, ("-", "--"), ("o", "s"), strict=True)
        ]
    figure.legend(handles=handles, loc="lower center", ncols=len(handles), frameon=False, fontsize=9)
