"""Pictures of layers in the plane: UMAP, or the two directions in which the points spread most."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lisse.reporting.figure import INK, PALETTE, panels, plain_text

Flattening = Literal["umap", "principal"]
Array = Tensor | np.ndarray


def plane(
    points: Array, *, method: Flattening = "umap", neighbours: int = 40, min_dist: float = 0.25, seed: int = 0
) -> np.ndarray:
    """Points ``[n, …]`` in the plane, ``[n, 2]``.

    ``umap`` ([mcinnes2018]; ``pip install "lisse[umap]"``) keeps neighbours and distorts distances; 40 ``neighbours``
    and ``min_dist`` 0.25 are those of [beshkov2022] figures 2 and 4. ``principal`` is the orthogonal projection on the
    two directions of largest variance: it distorts less and shows less. Either is a function of points and seed.
    """
    if method not in ("umap", "principal"):
        raise ValueError(f"plane: method must be 'umap' or 'principal', got {method!r}.")
    cloud = torch.as_tensor(points).detach().double().cpu().flatten(1)
    if len(cloud) < 3 or not bool(torch.isfinite(cloud).all()):
        raise ValueError(f"plane: points must be at least 3 and finite, got {len(cloud)}.")
    if method == "principal":
        centred = cloud - cloud.mean(0)
        _, _, right = torch.linalg.svd(centred, full_matrices=False)
        flat = torch.nn.functional.pad(centred @ right[:2].T, (0, max(0, 2 - len(right))))
        # An axis has no sign of its own: the farthest point lies on the positive side.
        farthest = flat.gather(0, flat.abs().argmax(0)[None])
        return np.asarray((flat * torch.where(farthest < 0, -1.0, 1.0)).numpy())
    try:
        from umap import UMAP
    except ImportError as error:
        raise ImportError(f'plane: umap-learn must be installed ({error}). pip install "lisse[umap]"') from error
    threads = torch.get_num_threads()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a seed means one thread
        flat = UMAP(
            n_neighbors=min(neighbours, len(cloud) - 1), min_dist=min_dist, random_state=seed, n_jobs=1
        ).fit_transform(cloud.numpy())
    torch.set_num_threads(threads)  # OpenMP's own number, which UMAP leaves changed
    return np.asarray(flat, dtype=np.float64)


def planes_figure(
    layers: Mapping[str, Array],
    labels: Array | Mapping[str, Array],
    *,
    title: str,
    says: str,
    names: Sequence[str] | None = None,
    method: Flattening = "umap",
    columns: int = 4,
    neighbours: int = 40,
    min_dist: float = 0.25,
    seed: int = 0,
) -> Figure:
    """A panel per layer, coloured by label: ``layers`` maps a title to points ``[n, …]``.

    ``labels`` ``[n]`` are those of all panels, or a mapping with those of each. ``names`` of the labels go into a
    legend. Axes have no numbers: in such a picture only what is near what means something.
    """
    figure, axes = panels(
        len(layers), columns=columns, width=2.7, height=2.7, title=title, says=says, foot=0.4 if names else 0.1
    )
    for ax, (layer, points) in zip(axes, layers.items(), strict=True):
        flat = plane(points, method=method, neighbours=neighbours, min_dist=min_dist, seed=seed)
        classes = torch.as_tensor(labels[layer] if isinstance(labels, Mapping) else labels).numpy()
        for label in np.unique(classes):
            members = flat[classes == label]
            ax.plot(
                members[:, 0], members[:, 1], "o", ms=2.4, mew=0, alpha=0.8, color=PALETTE[int(label) % len(PALETTE)]
            )
        ax.grid(False)
        ax.set_xticks([])
        ax.set_yticks([])
        ax.set_aspect("equal", adjustable="datalim")
        plain_text(ax.set_title(layer, loc="left", size=9.5, color=INK))
    if names:
        from matplotlib.lines import Line2D

        handles = [
            Line2D([], [], marker="o", ls="", color=PALETTE[k % len(PALETTE)], label=name)
            for k, name in enumerate(names)
        ]
        figure.legend(handles=handles, loc="lower left", ncols=min(8, len(handles)), frameon=False, fontsize=9)
    return figure
