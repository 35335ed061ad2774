"""The paper's figures 1A, 2 and 4 from our networks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from lisse.data import Dataset
from lisse.experiments.form import Task
from lisse.experiments.isometry import rings, torus
from lisse.experiments.outputs import png_files
from lisse.instruments import Isometry
from lisse.profile import Profile
from lisse.reporting.figure import Figure
from lisse.reporting.isometry import histogram_figure, isometry_figure
from lisse.reporting.planes import Method, planes_figure
from lisse.run import measure


def draw(task: Task, ringed: Sequence[rings.Ringed], cuts: Sequence[torus.Cut]) -> list[Path]:
    """All of them, and the profiles that they are drawn from.

    At the smoke scale points are projected on their two main directions: UMAP alone takes longer to start than all
    else.
    """
    method: Method = "umap" if task.scale == "paper" else "principal"
    x, y = rings.points(task)
    first = [next(one for one in ringed if one.condition == name) for name, _, _, _ in rings.CONDITIONS]
    profiles = [_profile(task, one, x, y) for one in first]
    shown = "UMAP with 40 neighbours" if method == "umap" else "The two directions of largest variance"
    with torch.no_grad():
        hidden = {rings.LABELS[one.condition]: one.network.representation(x) for one in first}
    made: dict[str, Figure] = {
        "figure-1a": planes_figure(
            {"the rings": x, **hidden}, y, title="Three kinds of maps",
            says=f"{shown} of the last hidden layer. Colours: the two rings.", names=rings.RINGS, method=method,
            seed=task.seed,
        ),
        "figure-2b": histogram_figure(profiles[:2]),
        "figure-2b-log": histogram_figure(profiles[:2], log=True),
        "figure-2-depth": isometry_figure(profiles),
    }  # fmt: skip
    for cut in cuts:
        with torch.no_grad():
            stages = cut.network.representations(cut.x)
        panels = {"torus": cut.x}
        panels |= {f"stage {k + 1}: {n} parts": stages[k] for k, n in enumerate(torus.LEVELS)}
        labels: dict[str, Tensor] = dict(zip(panels, (cut.targets[-1], *cut.targets), strict=True))
        made[f"figure-4-{cut.noise}"] = planes_figure(
            panels, labels, title="A torus cut finer and finer",
            says=f"{shown} of each stage's representation, coloured by the stage's own labels.", method=method,
            seed=task.seed,
        )  # fmt: skip
    return png_files(made.items(), task.out)


def _profile(task: Task, one: rings.Ringed, x: Tensor, y: Tensor) -> Profile:
    data = Dataset("rings", x, y, classes=rings.RINGS)
    found = measure(
        one.network, data, Isometry(samples=len(x)), seed=task.seed, cache=task.out / "cache",
        name=rings.LABELS[one.condition],
    )  # fmt: skip
    found.save(task.out / "profiles" / f"rings-{one.condition}.profile")
    return found
