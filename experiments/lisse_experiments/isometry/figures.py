"""The paper's figures 1A, 2 and 4 from our networks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from lisse.data import Dataset
from lisse.instruments import Isometry
from lisse.profile import Profile
from lisse.reporting.charts import chart_figure
from lisse.reporting.figure import Figure
from lisse.run import measure
from lisse_experiments.form import Task
from lisse_experiments.isometry import rings, torus
from lisse_experiments.isometry.planes import Flattening, planes_figure
from lisse_experiments.outputs import png_files


def draw(task: Task, ringed: Sequence[rings.Ringed], cuts: Sequence[torus.Cut]) -> list[Path]:
    """All of them, and the profiles that they are drawn from.

    At the smoke scale points are projected on their two main directions: UMAP alone takes longer to start than all
    else.
    """
    method: Flattening = "umap" if task.scale == "paper" else "principal"
    view = "UMAP with 40 neighbours" if method == "umap" else "The two directions of largest variance"
    figures = _rings(task, ringed, method, view) if ringed else {}
    for cut in cuts:
        with torch.no_grad():
            stages = cut.network.representations(cut.x)
        panels = {"torus": cut.x}
        panels |= {f"stage {k + 1}: {n} parts": stages[k] for k, n in enumerate(torus.LEVELS)}
        labels: dict[str, Tensor] = dict(zip(panels, (cut.targets[-1], *cut.targets), strict=True))
        figures[f"figure-4-{cut.noise}"] = planes_figure(
            panels, labels, title="A torus cut finer and finer",
            says=f"{view} of each stage's representation, coloured by the stage's own labels.", method=method,
            seed=task.seed,
        )  # fmt: skip
    return png_files(figures.items(), task.out)


def _rings(task: Task, ringed: Sequence[rings.Ringed], method: Flattening, view: str) -> dict[str, Figure]:
    """Figures 1A and 2."""
    x, y = rings.points(task)
    first = [next(ring for ring in ringed if ring.condition == name) for name, _, _, _ in rings.CONDITIONS]
    profiles = [_profile(task, ring, x, y) for ring in first]
    with torch.no_grad():
        hidden = {rings.LABELS[ring.condition]: ring.network.representation(x) for ring in first}
    return {
        "figure-1a": planes_figure(
            {"the rings": x, **hidden}, y, title="Three kinds of maps",
            says=f"{view} of the last hidden layer. Colours: the two rings.", names=rings.RINGS, method=method,
            seed=task.seed,
        ),
        "figure-2b": chart_figure(profiles[:2], "histograms"),
        "figure-2b-log": chart_figure(profiles[:2], "histograms", where={"log": True}),
        "figure-2-depth": chart_figure(profiles, "isometry"),
    }  # fmt: skip


def _profile(task: Task, ringed: rings.Ringed, x: Tensor, y: Tensor) -> Profile:
    data = Dataset("rings", x, y, classes=rings.RINGS)
    profile = measure(
        ringed.network, data, Isometry(samples=len(x)), seed=task.seed, order="given", cache=task.out / "cache",
        name=rings.LABELS[ringed.condition],
    )  # fmt: skip
    profile.save(task.out / "profiles" / f"rings-{ringed.condition}.profile")
    return profile
