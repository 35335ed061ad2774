"""Figures of the experiments without a network: n·ρ against n, the skip connection, images from crosses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from torch import Tensor

from lisse.reporting.figure import GREY, INK, PALETTE, panels, save_figure

if TYPE_CHECKING:
    from lisse_experiments.masked_autoencoders.operators import Crosses, Ratio
    from lisse_experiments.masked_autoencoders.operators.skip import Skip


def ratio_figure(ratios: Mapping[tuple[str, str], Ratio], path: Path) -> Path:
    """n·ρ against patches per side, in L² and in the supremum: flat is what Theorem 5.1 says."""
    figure, axes = panels(
        2,
        columns=2,
        width=4.6,
        height=3.6,
        title="Theorem 5.1: how n·ρ grows with the number of patches",
        says="The theorem bounds n·ρ by a constant. It grows with n for a kernel of fixed width, and for an input with "
        "a jump even where the kernel shrinks with the patches; only for smooth inputs under a shrinking kernel is it "
        "bounded.",
        foot=0.75,
    )
    for ax, name in zip(axes, ("mean", "supremum"), strict=True):
        for (input_, kernel), ratio in ratios.items():
            ax.plot(
                ratio.sides,
                getattr(ratio, name),
                color=PALETTE[0] if input_ == "smooth" else PALETTE[1],
                linestyle="-" if kernel == "shrinking" else "--",
                marker="o" if input_ == "smooth" else "s",
                markersize=4.5,
                label=f"{input_} input, γ {'= n²' if kernel == 'shrinking' else 'fixed'}",
            )
        _logarithmic(ax)
        sides = next(iter(ratios.values())).sides
        ax.set_xticks(sides, [str(n) for n in sides])
        _few_ticks(ax)
        ax.set_title("L² norm" if name == "mean" else "supremum norm", size=10, color=INK, loc="left")
        ax.set_xlabel("patches per side n", size=10, color=INK)
        ax.set_ylabel("n·ρ", size=10, color=INK)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=2, frameon=False, fontsize=9)
    return save_figure(figure, path)


def skip_figure(skip: Skip, path: Path) -> Path:
    """What is left of (23) by the solve, the unweighted minimiser and the skip connection; how errors grow."""
    figure, axes = panels(
        2,
        columns=2,
        width=4.6,
        height=3.6,
        title="Theorem 5.2: the skip connection against the solve",
        says="Left: what each leaves of βu + α⁻¹Ku = z. The α-weighted minimiser solves it; the unweighted one and "
        "the skip connection's output, even its best multiple, do not. Right: how much larger a small error of z comes "
        "out.",
        foot=0.55,
    )
    left, right = axes
    floor = 1e-16
    series = (("α-weighted minimiser", skip.solve), ("unweighted minimiser", skip.unweighted), ("skip", skip.skip))
    for k, (name, values) in enumerate(series):
        clipped = [max(value, floor) for value in values]
        left.plot(skip.betas, clipped, color=PALETTE[k], marker="osD"[k], markersize=4.5, label=name)
    right.plot(skip.betas, skip.amplified, color=PALETTE[0], marker="o", markersize=4.5)
    right.plot(skip.betas, skip.skip_amplified, color=PALETTE[2], marker="D", markersize=4.5)
    right.plot(skip.betas, skip.condition, color=GREY, linestyle=":", label="condition number of (23)")
    for ax, name in ((left, "residual of (23), relative to z"), (right, "growth of a relative error of z")):
        _logarithmic(ax)
        ax.set_xlabel("β", size=10, color=INK)
        ax.set_ylabel(name, size=10, color=INK)
    handles, labels = left.get_legend_handles_labels()
    more, names = right.get_legend_handles_labels()
    figure.legend(handles + more, labels + names, loc="lower center", ncols=4, frameon=False, fontsize=9)
    return save_figure(figure, path)


def cross_figure(crosses: Crosses, methods: Sequence[str], ranks: Sequence[int], path: Path) -> Path:
    """Relative error against rank and against the share of masked patches; one thin line per picture."""
    figure, axes = panels(
        2,
        columns=2,
        width=4.6,
        height=3.6,
        title="Proposition 3.1, constructively: pictures from few rows, columns and patches",
        says=f"Frobenius error relative to the image less its mean, {len(crosses.names)} pictures: 1 is what the mean "
        "grey value alone leaves. Thick: mean over pictures. Left: crosses of single rows and columns. Right: crosses "
        "of whole patch-rows and patch-columns of a 14 × 14 grid, thin lines are pictures.",
        foot=0.55,
    )
    left, right = axes
    for m, method in enumerate(methods):
        left.plot(
            ranks,
            crosses.by_rank[:, m].mean(0).numpy(),
            color=PALETTE[m],
            marker="osD"[m],
            markersize=4.5,
            label=method,
        )
    for row in crosses.by_mask.numpy():
        right.plot(crosses.masks, row, color=PALETTE[3], linewidth=0.7, alpha=0.5)
    right.plot(
        crosses.masks, crosses.by_mask.mean(0).numpy(), color=PALETTE[3], marker="^", linewidth=2.2, label="patch cross"
    )
    right.plot(crosses.masks, crosses.optimum.mean(0).numpy(), color=PALETTE[0], marker="o", markersize=4.5)
    for ax in axes:
        _logarithmic(ax)
        _few_ticks(ax)
        ax.axhline(1, color=GREY, linestyle=":", linewidth=1.2)
        ax.set_ylabel("relative error", size=10, color=INK)
    left.set_xticks(ranks, [str(r) for r in ranks])
    left.set_xlabel("rank", size=10, color=INK)
    right.set_xscale("linear")
    right.set_xlabel("share of patches masked (SVD: of the same rank)", size=10, color=INK)
    handles, labels = left.get_legend_handles_labels()
    more, names = right.get_legend_handles_labels()
    figure.legend(handles + more, labels + names, loc="lower center", ncols=4, frameon=False, fontsize=9)
    return save_figure(figure, path)


def picture_figure(pictures: Sequence[tuple[str, Tensor]], path: Path) -> Path:
    """A picture and what crosses make of it."""
    figure, axes = panels(
        len(pictures),
        columns=4,
        width=2.3,
        height=2.5,
        title="A picture from few rows, columns and patches",
        says="First the picture and the optimum of rank 1; then the optimum and two crosses of single rows and columns "
        "at the largest rank; last, patch crosses by the share of patches they do not see.",
        foot=0.1,
    )
    for ax, (name, picture) in zip(axes, pictures, strict=True):
        ax.grid(False)
        ax.imshow(picture.clamp(0, 1).numpy(), cmap="gray", vmin=0, vmax=1)
        ax.set_xticks([])
        ax.set_yticks([])
        ax.spines[:].set_visible(False)
        ax.set_title(name, size=9, color=INK)
    return save_figure(figure, path)


def _logarithmic(ax: Axes) -> None:
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.minorticks_off()


def _few_ticks(ax: Axes) -> None:
    """1, 2, 5 of each decade: a range of one decade has more than one number then."""
    low, high = ax.get_ylim()
    ticks = [step * 10.0**power for power in range(-3, 4) for step in (1, 2, 5)]
    visible = [tick for tick in ticks if low <= tick <= high]
    ax.set_yticks(visible, [f"{tick:g}" for tick in visible])
