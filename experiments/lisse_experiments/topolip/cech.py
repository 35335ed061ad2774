"""The Čech construction of a small cloud in the plane, step by step ([chen2024] figures 5 and 6)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Polygon
from torch import Tensor

from lisse.maths.homology import Diagram
from lisse.reporting.figure import GREY, INK, PALETTE, panels, plain_text
from lisse_experiments.topolip.alpha import cech_persistence

MOST_POINTS = 60
PARTS = {0: "H0: parts", 1: "H1: loops"}


def cech_figure(points: Tensor | np.ndarray, radii: Sequence[float]) -> Figure:
    """Balls around points in the plane at growing radii, and the edges and triangles where they meet.

    The last two panels are the barcode and the diagram in the radius convention, with the radii marked. For at most 60
    points: every triangle is looked at.
    """
    cloud = np.asarray(torch.as_tensor(points).detach().cpu().double())
    if cloud.ndim != 2 or cloud.shape[1] != 2:
        raise ValueError(f"cech_figure: points must lie in the plane, [n, 2], got {list(cloud.shape)}.")
    if not 2 <= len(cloud) <= MOST_POINTS:
        raise ValueError(f"cech_figure: points must be 2 to {MOST_POINTS}, got {len(cloud)}.")
    if not radii or any(not radius >= 0 for radius in radii):
        raise ValueError(f"cech_figure: radii must be numbers, at least 0, got {list(radii)}.")
    diagram = cech_persistence(cloud, dims=tuple(PARTS))
    figure, axes = panels(
        len(radii) + 2,
        columns=3,
        width=3.0,
        height=3.0,
        title="The Čech complex of a cloud",
        says="Balls grow around the points. Two that meet are joined, three that meet in a point are filled. A part "
        "ends when it is joined to another, a loop begins when it closes and ends when it is filled.",
        foot=0.4,
    )
    margin = max(radii) + 0.05 * float(np.ptp(cloud, axis=0).max())
    low, high = cloud.min(0) - margin, cloud.max(0) + margin
    for ax, radius in zip(axes, radii, strict=False):
        draw_complex(ax, cloud, radius)
        ax.set_xlim(low[0], high[0])
        ax.set_ylim(low[1], high[1])
        ax.set_aspect("equal")
        ax.set_xticks([])
        ax.set_yticks([])
        ax.grid(visible=False)
        for spine in ax.spines.values():
            spine.set_visible(False)
        plain_text(ax.set_title(f"radius {radius:g}", loc="left", size=10, color=INK))
    draw_diagram(axes[-2], axes[-1], diagram, radii)
    handles = [Line2D([], [], color=PALETTE[dim], lw=3, label=label) for dim, label in PARTS.items()]
    figure.legend(handles=handles, loc="lower left", ncols=2, frameon=False, fontsize=8.5, labelcolor=INK)
    return figure


def draw_diagram(left: Axes, right: Axes, diagram: Diagram, radii: Sequence[float] = ()) -> None:
    """Bars from the bottom up, parts first, longer ones higher; beside them the points. ``radii`` are marked."""
    bars = {dim: diagram[dim].numpy() for dim in PARTS}
    top = 1.1 * max([*(float(finite.max()) for finite in bars.values() if len(finite)), *radii]) or 1.0
    height = 0
    for dim, finite in bars.items():
        endless = np.stack([diagram.infinite[dim].numpy(), np.full(len(diagram.infinite[dim]), top)], 1)
        drawn = np.concatenate([finite[np.argsort(finite[:, 1] - finite[:, 0], kind="stable")], endless])
        left.hlines(np.arange(height, height + len(drawn)), drawn[:, 0], drawn[:, 1], color=PALETTE[dim], lw=3)
        height += len(drawn) + 1
        right.scatter(finite[:, 0], finite[:, 1], s=22, color=PALETTE[dim], alpha=0.8, linewidths=0, zorder=3)
    left.set_yticks([])
    left.set_xlim(0, top)
    left.grid(visible=False)
    for radius in radii:
        left.axvline(radius, color=GREY, lw=0.8, ls=":")
    plain_text(left.set_title("barcode, over the radius", loc="left", size=10, color=INK))
    right.plot([0, top], [0, top], color=GREY, lw=0.8)
    right.set_xlim(-0.03 * top, top)
    right.set_ylim(-0.03 * top, top)
    right.set_aspect("equal")
    plain_text(right.set_title("diagram: birth along, death up", loc="left", size=10, color=INK))


def draw_complex(ax: Axes, cloud: np.ndarray, radius: float) -> None:
    """Balls of one radius around the points of a cloud, edges where two meet, triangles where three do."""
    ax.add_collection(PatchCollection([Circle(tuple(point), radius) for point in cloud], fc=PALETTE[4], alpha=0.18))
    distance = np.linalg.norm(cloud[:, None] - cloud[None], axis=-1)
    meeting = [
        cloud[list(three)]
        for three in itertools.combinations(range(len(cloud)), 3)
        if enclosing_radius(cloud[list(three)]) <= radius
    ]
    ax.add_collection(PatchCollection([Polygon(three) for three in meeting], fc=PALETTE[5], alpha=0.35))
    i, j = np.nonzero(np.triu(distance <= 2 * radius, 1))
    ax.add_collection(LineCollection(list(zip(cloud[i], cloud[j], strict=True)), colors=INK, linewidths=0.9))
    ax.scatter(cloud[:, 0], cloud[:, 1], s=14, color=INK, zorder=3)


def enclosing_radius(triangle: np.ndarray) -> float:
    """The radius of the smallest disc around three points: half the longest side, or the circumradius if acute."""
    a, b, c = sorted(float(np.linalg.norm(triangle[i] - triangle[j])) for i, j in ((0, 1), (0, 2), (1, 2)))
    if a**2 + b**2 <= c**2:
        return c / 2
    (x1, y1), (x2, y2) = triangle[1] - triangle[0], triangle[2] - triangle[0]
    return a * b * c / (2 * abs(float(x1 * y2 - x2 * y1)))
