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
    from matplotlib.patches import Circle, Polygon
except ImportError as error:
    raise ImportError(f'reproduce: figures need matplotlib ({error}). pip install "lisse[report]"') from error

from lisse.experiments.outputs import png_files
from lisse.experiments.topolip.accuracy import ALL
from lisse.experiments.topolip.result import Result
from lisse.experiments.topolip.tables import NAMES, ORDERS
from lisse.maths.homology import cech_persistence
from lisse.maths.intervals import across_clouds

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
    made: dict[str, Callable[[], Figure]] = {
        "figure-1": lambda: along_depth(simple, "change_rate"),
        "figure-2": lambda: along_depth(simple, "cumulative_change_rate"),
        "figure-3": lambda: along_depth(deep, "change_rate"),
        "figure-4": lambda: along_depth(deep, "cumulative_change_rate"),
        "figure-5": construction,
        "figure-6": bars,
        "figure-7": lambda: over_epochs(deep),
        "figure-8": lambda: over_epochs(simple),
        "figure-9": lambda: along_depth(deep, "diagram_distance"),
        "figure-10": lambda: along_depth(simple, "diagram_distance"),
        "correlation": lambda: against_drop(results),
    }
    return png_files(((name, figure()) for name, figure in made.items()), folder, dpi=160)


def along_depth(results: Sequence[Result], quantity: str) -> Figure:
    """A quantity over normalised depth, W1 left and W2 right, H0 and H1 together; bands are intervals over clouds."""
    figure, axes = _panels(2, f"{CURVES[quantity].capitalize()} along depth")
    depth = np.linspace(0, 1, 101)
    for ax, p in zip(axes, ORDERS, strict=True):
        tops = []
        for result in results:
            part = result.part("topology")
            found = None if part is None else part.arrays.get(f"landscape/{quantity}/p={p}/dim=all")
            if found is None:
                continue
            colour = COLOURS[result.network.name]
            there = np.isfinite(found).all(0)
            values = np.where(there, found, np.nan)
            ax.plot(depth, values.mean(0), color=colour, lw=1.7)
            tops.append(float(np.nanmax(values.mean(0))))
            if len(found) > 1 and there.all():
                interval = across_clouds(torch.from_numpy(found))
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
    for ax, (seen, tested, said) in zip(
        axes, (("accuracy", "test_accuracy", "accuracy"), ("loss", "test_loss", "loss")), strict=True
    ):
        for result in results:
            colour = COLOURS[result.network.name]
            for column, style in ((seen, "--"), (tested, "-")):
                points = [(row["epoch"], row[column]) for row in result.log if column in row]
                ax.plot([x for x, _ in points], [y for _, y in points], color=colour, lw=1.4, ls=style)
            if result.diverged and result.steps:
                ax.axvline(result.network.recipe.epochs * result.step / result.steps, color=colour, lw=1.0, ls=":")
        ax.set_title(f"{said}: dashed training, solid test", loc="left", size=10, color=INK)
        ax.set_xlabel("epoch", size=9, color=INK)
        losses = [row[column] for result in results for row in result.log for column in (seen, tested) if column in row]
        if said == "accuracy":
            ax.set_ylim(0, 1.02)
        elif losses and max(losses) > 20 * np.median(losses):
            ax.set_yscale("log")
        else:
            ax.set_ylim(bottom=0)
    _legend(figure, results)
    return figure


def against_drop(results: Sequence[Result]) -> Figure:
    """The change rates of the networks against what corruption costs them, with intervals."""
    figure, axes = _panels(4, "Change rate against the drop under corruption", columns=2)
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
        for point in points:
            ax.add_patch(Circle(tuple(point), radius, fc="#56B4E9", alpha=0.15, lw=0))
        for three in itertools.combinations(points, 3):
            if _enclosing_radius(*three) <= radius:
                ax.add_patch(Polygon(np.stack(three), fc="#E69F00", alpha=0.3, lw=0))
        for a, b in itertools.combinations(points, 2):
            if np.linalg.norm(a - b) <= 2 * radius:
                ax.plot(*np.stack([a, b]).T, color=INK, lw=0.9)
        ax.scatter(points[:, 0], points[:, 1], s=14, color=INK, zorder=3)
        ax.set_xlim(-1.9, 3.2)
        ax.set_ylim(-1.9, 1.9)
        ax.set_aspect("equal")
        ax.set_axis_off()
        ax.set_title(f"radius {radius:g}", loc="left", size=10, color=INK)
    return figure


def bars() -> Figure:
    """Its barcode and its persistence diagram, in the radius convention (Figure 6)."""
    diagram = cech_persistence(cloud(), dims=(0, 1))
    figure, (left, right) = _panels(2, "Barcode and persistence diagram")
    top = 1.15 * max(float(diagram[dim].max()) for dim in (0, 1) if len(diagram[dim]))
    height = 0
    for dim, colour in ((0, "#0072B2"), (1, "#D55E00")):
        found = diagram[dim].numpy()
        found = found[np.argsort(found[:, 1] - found[:, 0], kind="stable")]
        endless = [(float(birth), top) for birth in diagram.infinite[dim]]
        drawn = [*map(tuple, found), *endless]
        left.hlines(
            range(height, height + len(drawn)), [b for b, _ in drawn], [d for _, d in drawn], color=colour, lw=3
        )
        height += len(drawn) + 1
        right.scatter(found[:, 0], found[:, 1], s=24, color=colour, label=("H0: parts", "H1: loops")[dim], zorder=3)
    left.set_yticks([])
    left.set_xlim(0, top)
    left.set_xlabel("radius", size=9, color=INK)
    left.set_title("barcode", loc="left", size=10, color=INK)
    right.plot([0, top], [0, top], color=GREY, lw=0.8)
    right.set_xlim(-0.03 * top, top)
    right.set_ylim(-0.03 * top, top)
    right.set_xlabel("birth", size=9, color=INK)
    right.set_ylabel("death", size=9, color=INK)
    right.set_title("diagram", loc="left", size=10, color=INK)
    right.legend(frameon=False, fontsize=9, loc="lower right")
    return figure


def _enclosing_radius(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> float:
    """Of the smallest disc around three points: half the longest side, or the circumradius of an acute triangle."""
    short, middle, long = sorted(float(np.linalg.norm(u - v)) for u, v in ((a, b), (a, c), (b, c)))
    if short**2 + middle**2 <= long**2:
        return long / 2
    (x1, y1), (x2, y2) = b - a, c - a
    return short * middle * long / (2 * abs(float(x1 * y2 - x2 * y1)))


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
