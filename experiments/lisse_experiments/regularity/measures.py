"""Two measures and how one is carried to the other: figure 1 of [vuckovic2021], for any two token sets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from lisse.reporting.figure import panels, plain_text
from lisse.reporting.measures import draw_measures


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
