"""Two measures and how one is carried to the other: figure 1 of [vuckovic2021], for any two token sets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from lisse.reporting.figure import GREY, INK, PALETTE, panels, plain_text

AREA = 1600  # of a disc of mass 1, in square points


def two_measures(
    left: np.ndarray,
    right: np.ndarray,
    coupling: np.ndarray,
    *,
    labels: tuple[str, str],
    title: str,
    says: str,
    marks: tuple[int | None, int | None] = (None, None),
    names: tuple[Sequence[str], Sequence[str]] | None = None,
) -> Figure:
    """Points ``[n, d]`` and ``[m, d]`` as discs, in the plane of the main directions of all; lines are the coupling.

    The area of a disc is its mass (the row or column sum of ``coupling`` ``[n, m]``), the strength of a line the mass
    that goes along it. ``marks`` puts a ring around one point of each, ``names`` writes a word at each.
    """
    if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[1]:
        raise ValueError(f"two_measures: left and right must be [n, d] and [m, d], got {left.shape} and {right.shape}.")
    if coupling.shape != (len(left), len(right)):
        raise ValueError(f"two_measures: coupling must be [{len(left)}, {len(right)}], got {list(coupling.shape)}.")
    both = np.concatenate([left, right])
    middle = both.mean(0)
    axes = np.linalg.svd(both - middle, full_matrices=False)[2][:2]
    flat = [np.pad((points - middle) @ axes.T, ((0, 0), (0, 2 - len(axes)))) for points in (left, right)]
    figure, (ax,) = panels(1, columns=1, width=7.0, height=4.6, title=title, says=says, foot=0.3)
    draw_measures(ax, flat[0], flat[1], coupling, labels=labels, marks=marks, names=names)
    legend = figure.legend(loc="lower center", ncols=2, fontsize=9, frameon=False, markerscale=0.5)
    for text in legend.get_texts():
        plain_text(text)
    return figure


def draw_measures(
    ax: Axes,
    left: np.ndarray,
    right: np.ndarray,
    coupling: np.ndarray,
    *,
    labels: tuple[str, str] = ("", ""),
    marks: tuple[int | None, int | None] = (None, None),
    names: tuple[Sequence[str], Sequence[str]] | None = None,
) -> None:
    """One panel of :func:`two_measures`, of points that lie in a plane already: ``[n, 2]`` and ``[m, 2]``."""
    largest = coupling.max()
    moving = np.argwhere(coupling > 1e-9 * largest)
    ax.add_collection(
        LineCollection(
            [[left[i], right[j]] for i, j in moving],
            colors=GREY,
            linewidths=[0.4 + 1.6 * coupling[i, j] / largest for i, j in moving],
            alpha=0.7,
            zorder=1,
        )
    )
    for side, (points, mass) in enumerate(((left, coupling.sum(1)), (right, coupling.sum(0)))):
        colour = PALETTE[side]
        ax.scatter(
            points[:, 0],
            points[:, 1],
            s=AREA * mass,
            color=colour,
            alpha=0.75,
            linewidths=0,
            label=labels[side],
            zorder=2,
        )
        ring = marks[side]
        if ring is not None:
            at, size = points[ring], 1.6 * AREA * mass[ring]
            ax.scatter(at[0], at[1], s=size, facecolors="none", edgecolors=colour, linewidths=1.6, zorder=3)
        for point, name in zip(points, names[side] if names else (), strict=False):
            if side and names and _written_nearby(name, point, names[0], left):
                continue
            where = (0, 9 if side == 0 else -15)
            plain_text(ax.annotate(name, point, where, textcoords="offset points", size=8.5, color=colour, ha="center"))
    ax.set_xlabel("first main direction", size=9, color=INK)
    ax.set_ylabel("second", size=9, color=INK)
    ax.margins(0.14)


def _written_nearby(name: str, point: np.ndarray, names: Sequence[str], points: np.ndarray) -> bool:
    """Whether the other side has written the same word here: a tenth of the picture away."""
    near = 0.1 * np.ptp(points, axis=0).max()
    return any(other == name and np.abs(where - point).max() < near for other, where in zip(names, points, strict=True))
