"""Every training's loss and watched quantities over its steps, with the step at which the loss moved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lisse.reporting.figure import INK, PALETTE, panels, save_figure
from lisse_experiments.early_warning.alarms import moved
from lisse_experiments.early_warning.plan import WAYS, Settings
from lisse_experiments.early_warning.tables import Results


def draw(plan: Settings, results: Results, out: Path) -> Path:
    """A panel for the loss and one a quantity, a line a training, a dot where the loss moved."""
    names = sorted({name for result in results.values() for look in result["looks"] for name in look})
    figure, axes = panels(
        1 + len(names), columns=3, width=3.6, height=2.5, foot=0.1, title="Trainings, calm and driven",
        says="A line a training, a dot where its loss has moved by half a nat.",
    )  # fmt: skip
    for way, color in zip(WAYS, PALETTE, strict=False):
        label: str | None = way
        for training, result in results.items():
            if training.way != way:
                continue
            end = moved(result["losses"])
            for axis, name in zip(axes, ["loss", *names], strict=False):
                steps, values = _series(plan, result, name)
                axis.plot(steps, values, color=color, linewidth=0.8, alpha=0.7, label=label)
                if end is not None:
                    near = min(range(len(steps)), key=lambda index: abs(steps[index] - end))
                    axis.plot([steps[near]], [values[near]], "o", color=INK, markersize=3)
            label = None
    for axis, name in zip(axes, ["loss", *names], strict=False):
        axis.set_title(name.replace("_", " "), fontsize=9)
        axis.set_xlabel("step")
        axis.set_yscale("log")
    axes[0].legend(fontsize=7, frameon=False)
    return save_figure(figure, out / "trainings.png")


def _series(plan: Settings, result: Any, name: str) -> tuple[list[int], list[float]]:
    if name == "loss":
        return list(range(len(result["losses"]))), result["losses"]
    values = [look.get(name, float("nan")) for look in result["looks"]]
    return [index * plan.every for index in range(len(values))], values
