"""The paper's ten figures, and TopoLip against the drop. Needs matplotlib: ``pip install "lisse[report]"``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

try:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
except ImportError as error:
    raise ImportError(f'reproduce: figures need matplotlib ({error}). pip install "lisse[report]"') from error

from lisse.maths.intervals import across_clouds
from lisse.reporting.figure import PALETTE
from lisse_experiments.outputs import png_files
from lisse_experiments.topolip.accuracy import ALL
from lisse_experiments.topolip.alpha import cech_persistence
from lisse_experiments.topolip.cech import PARTS, draw_complex, draw_diagram
from lisse_experiments.topolip.result import Result
from lisse_experiments.topolip.tables import NAMES, ORDERS

# A colour per family, from light to dark by size; blue and orange are told apart by everyone.
COLOURS = {
    "attention_small": "#56B4E9", "attention_large": "#00527F",
    "convolution_small": "#E69F00", "convolution_large": "#B34700",
    "vit_small": "#7CC8F2", "vit_base": "#0072B2", "vit_large": "#003049",
    "resnet18": "#F2B84B", "resnet50": "#D55E00", "resnet101": "#7A2E00",
}  # fmt: skip
MARKERS = {"Attn": "o", "Conv": "s", "ViT": "^", "ResNet": "D"}
INK, GREY = "#222222", "#6b6b6b"
SIMPLE, DEEP = ("Attn", "Conv"), ("ViT", "ResNet")
CURVES = {
    "change_rate": "absolute change rate",
    "cumulative_change_rate": "cumulative change rate",
    "diagram_distance": "distance between diagrams",
}


def draw(results: Sequence[Result], folder: Path) -> list[Path]:
    """All figures as ``figure-N.png`` and ``correlation.png``."""
    simple = [result for result in results if result.network.family in SIMPLE]
    deep = [result for result in results if result.network.family in DEEP]
    figures: dict[str, Callable[[], Figure]] = {
        "figure-1": lambda: shape_along_depth(simple, "change_rate"),
        "figure-2": lambda: shape_along_depth(simple, "cumulative_change_rate"),
        "figure-3": lambda: shape_along_depth(deep, "change_rate"),
        "figure-4": lambda: shape_along_depth(deep, "cumulative_change_rate"),
        "figure-5": construction,
        "figure-6": bars,
        "figure-7": lambda: over_epochs(deep),
        "figure-8": lambda: over_epochs(simple),
        "figure-9": lambda: shape_along_depth(deep, "diagram_distance"),
        "figure-10": lambda: shape_along_depth(simple, "diagram_distance"),
        "correlation": lambda: against_drop(results),
    }
    return png_files(((name, figure()) for name, figure in figures.items()), folder, dpi=160)


def shape_along_depth(results: Sequence[Result], quantity: str) -> Figure:
    """A quantity over normalised depth, W1 left and W2 right, H0 and H1 together; bands are intervals over clouds."""
    figure, axes = _panels(2, f"{CURVES[quantity].capitalize()} along depth")
    depth = np.linspace(0, 1, 101)
    for ax, p in zip(axes, ORDERS, strict=True):
        tops = []
        for result in results:
            part = result.part("topology")
            landscape = None if part is None else part.arrays.get(f"landscape/{quantity}/p={p}/dim=all")
            if landscape is None:
                continue
            colour = COLOURS[result.network.name]
            finite = np.isfinite(landscape).all(0)
            values = np.where(finite, landscape, np.nan)
            ax.plot(depth, values.mean(0), color=colour, lw=1.7)
            tops.append(float(np.nanmax(values.mean(0))))
            if len(landscape) > 1 and finite.all():
                interval = across_clouds(torch.from_numpy(landscape))
                low, high = interval.low.clamp_min(0).numpy(), interval.high.numpy()
                ax.fill_between(depth, low, high, color=colour, alpha=0.15, lw=0)
        ax.set_title(f"W{p}", loc="left", size=10, color=INK)
        ax.set_xlabel("normalised depth", size=9, color=INK)
        if quantity == "diagram_distance":
            ax.set_yscale("log")
        elif tops and max(tops) > 20 * np.median(tops):
            ax.set_yscale("symlog", linthresh=1.0)
            ax.set_ylim(bottom=0)
        else:
            ax.set_ylim(bottom=0)
    _legend(figure, results)
    return figure


def over_epochs(results: Sequence[Result]) -> Figure:
    """Accuracy and loss over the training: dashed on training data, solid on test data."""
    figure, axes = _panels(2, "Training")
    for ax, (trained, tested, label) in zip(
        axes, (("accuracy", "test_accuracy", "accuracy"), ("loss", "test_loss", "loss")), strict=True
    ):
        for result in results:
            colour = COLOURS[result.network.name]
            for column, style in ((trained, "--"), (tested, "-")):
                points = [(row["epoch"], row[column]) for row in result.log if column in row]
                ax.plot([x for x, _ in points], [y for _, y in points], color=colour, lw=1.4, ls=style)
            if result.diverged and result.steps:
                ax.axvline(result.network.recipe.epochs * result.step / result.steps, color=colour, lw=1.0, ls=":")
        ax.set_title(f"{label}: dashed training, solid test", loc="left", size=10, color=INK)
        ax.set_xlabel("epoch", size=9, color=INK)
        losses = [
            row[column] for result in results for row in result.log for column in (trained, tested) if column in row
        ]
        if label == "accuracy":
            ax.set_ylim(0, 1.02)
        elif losses and max(losses) > 20 * np.median(losses):
            ax.set_yscale("log")
        else:
            ax.set_ylim(bottom=0)
    _legend(figure, results)
    return figure


def against_drop(results: Sequence[Result]) -> Figure:
    """The change rates of the networks against what corruption costs them, with intervals."""
    figure, axes = _panels(6, "Changes of shape against the drop under corruption", columns=2)
    for ax, (statistic, p) in zip(axes, itertools.product(NAMES, ORDERS), strict=True):
        for result in results:
            rate, drop = result.rate(statistic, p), result.accuracy("drop", ALL)
            if rate is None or drop is None:
                continue
            ax.errorbar(
                rate.value, 100 * drop.value, xerr=_bars(rate.value, rate.low, rate.high),
                yerr=_bars(100 * drop.value, _times(drop.low), _times(drop.high)),
                color=COLOURS[result.network.name], marker=MARKERS[result.network.family], ms=6, lw=1.0,
            )  # fmt: skip
        ax.set_title(f"{NAMES[statistic]}, W{p}", loc="left", size=10, color=INK)
        ax.set_ylabel("drop (points)", size=9, color=INK)
    _legend(figure, results, markers=True)
    return figure


# --- figures 5 and 6: what a diagram is -----------------------------------------------------------------------------

RADII = (0.0, 0.3, 0.45, 0.8)


def cloud() -> np.ndarray:
    """Points on a circle with a little noise, and a pair beside it: parts that merge, one loop that lasts."""
    generator = torch.Generator().manual_seed(4)
    angle = 2 * math.pi * (torch.arange(11) + 0.5 * torch.rand(11, generator=generator)) / 11
    ring = torch.stack([angle.cos(), angle.sin()], 1) + 0.06 * torch.randn(11, 2, generator=generator)
    return np.asarray(torch.cat([ring, torch.tensor([[2.0, 0.4], [2.3, 0.1]])]).double().numpy())


def construction() -> Figure:
    """The Čech complex of a small cloud at growing radii (Figure 5)."""
    points = cloud()
    figure, axes = _panels(
        4, "The Čech complex: balls grow, those that meet are joined and filled", columns=4, side=2.6
    )
    for ax, radius in zip(axes, RADII, strict=True):
        draw_complex(ax, points, radius)
        ax.set_xlim(-1.9, 3.2)
        ax.set_ylim(-1.9, 1.9)
        ax.set_aspect("equal")
        ax.set_axis_off()
        ax.set_title(f"radius {radius:g}", loc="left", size=10, color=INK)
    return figure


def bars() -> Figure:
    """Its barcode and its persistence diagram, in the radius convention (Figure 6)."""
    figure, (left, right) = _panels(2, "Barcode and persistence diagram")
    draw_diagram(left, right, cech_persistence(cloud(), dims=tuple(PARTS)))
    handles = [Line2D([], [], color=PALETTE[dim], lw=3, label=label) for dim, label in PARTS.items()]
    right.legend(handles=handles, frameon=False, fontsize=9, loc="lower right")
    return figure


# --- the frame ------------------------------------------------------------------------------------------------------


def _panels(count: int, title: str, *, columns: int = 2, side: float = 3.2) -> tuple[Figure, list[Axes]]:
    rows = -(-count // columns)
    wide, tall = (1.0, 0.75) if columns == 4 else (1.4, 1.03)
    size = (side * columns * wide, side * rows * tall + 0.7)
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", size=12, weight="bold", color=INK)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.spines[["left", "bottom"]].set_color(GREY)
        ax.tick_params(colors=INK, labelsize=9)
        ax.grid(axis="y", color="#e4e4e4", lw=0.8)
        ax.set_axisbelow(True)
    return figure, axes


def _legend(figure: Figure, results: Sequence[Result], *, markers: bool = False) -> None:
    handles = [
        Line2D(
            [], [], color=COLOURS[result.network.name], lw=0 if markers else 2.5,
            marker=MARKERS[result.network.family] if markers else "",
            label=result.network.label + (" (diverged)" if result.diverged else ""),
        )
        for result in results
    ]  # fmt: skip
    figure.legend(
        handles=handles,
        loc="outside lower left",
        ncols=6 if len(results) == 6 else 5,
        frameon=False,
        fontsize=9,
        labelcolor=INK,
    )


def _bars(value: float, low: float | None, high: float | None) -> list[list[float]] | None:
    return None if low is None or high is None else [[max(0.0, value - low)], [max(0.0, high - value)]]


def _times(value: float | None) -> float | None:
    return None if value is None else 100 * value
