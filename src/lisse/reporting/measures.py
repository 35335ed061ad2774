"""Two measures and how one is carried to the other: figure 1 of [vuckovic2021], for any two token sets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from lisse.moved import moved_names
from lisse.reporting.figure import GREY, INK, PALETTE, plain_text

AREA = 1600  # of a disc of mass 1, in square points


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
    """Points ``[n, 2]`` and ``[m, 2]`` as discs, and lines between them: the coupling ``[n, m]``.

    The area of a disc is its mass (a row or column sum), the strength of a line the mass that goes along it. ``marks``
    puts a ring around one point of each, ``names`` writes a word at each.
    """
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


__getattr__ = moved_names(__name__)
