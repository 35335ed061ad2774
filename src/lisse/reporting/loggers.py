"""Profiles in the logger that a person has already: TensorBoard, W&B, MLflow, and any logger of Lightning."""

from __future__ import annotations

import io
import math
import re
import sys
from collections.abc import Mapping
from typing import Any

from lisse.profile import Profile
from lisse.reporting.kinds import interval
from lisse.reporting.page.headline import headline_rows

PREFIX = "lisse"


def log_profile(
    profile: Profile, target: Any = None, *, step: int | None = None, layers: bool = False, figure: bool = False
) -> int:
    """Send a profile's headline numbers to a logger as scalars, and return how many there were.

    ``target`` is a ``SummaryWriter``, a W&B run, the ``mlflow`` module (or one of its runs), or anything with
    ``log_metrics(numbers, step=)`` such as a logger of Lightning; without one, the W&B or MLflow run that is open in
    this process. ``step`` is that of the training: by default what the profile says of it, or 0. Scalars are called
    ``lisse/R_f``, with ``lisse/R_f.low`` and ``….high`` for the interval; ``layers`` adds every row that stands at a
    layer, ``lisse/layers/QUANTITY/LAYER``; ``figure`` a picture of all quantities over depth. Numbers that are not
    finite are left out. Nothing is opened, closed or sent over the network that the logger would not do itself.
    """
    step = int(profile.about("training").get("step", 0)) if step is None else step
    target = _open_run() if target is None else target
    numbers = scalars(profile, layers=layers)
    _send(target, numbers, step)
    if figure:
        _send_figure(target, profile, step)
    return len(numbers)


def scalars(profile: Profile, *, layers: bool = False) -> dict[str, float]:
    """The numbers of :func:`log_profile` by name: letters, digits and ``_-./`` alone, as all loggers take them."""
    numbers: dict[str, float] = {}
    for label, row in headline_rows(profile).items():
        low, high = interval(row) or (math.nan, math.nan)
        numbers |= {_tag(label): row.value, _tag(f"{label}.low"): low, _tag(f"{label}.high"): high}
    for row in profile.rows if layers else ():
        if row.layer is not None:
            numbers[_tag("layers", row.quantity, row.where(), row.layer)] = row.value
    return {tag: float(value) for tag, value in numbers.items() if math.isfinite(value)}


def _tag(*words: str) -> str:
    return "/".join(re.sub(r"[^\w.-]+", "_", word) for word in (PREFIX, *words) if word)


def _open_run() -> Any:
    """The run of W&B or MLflow that this process has open; only of what is imported already."""
    wandb, mlflow = sys.modules.get("wandb"), sys.modules.get("mlflow")
    if wandb is not None and wandb.run is not None:
        return wandb.run
    if mlflow is not None and mlflow.active_run() is not None:
        return mlflow
    raise ValueError(
        "log: target must be given where no run of W&B or MLflow is open, got None. "
        "Pass a SummaryWriter, a run, the mlflow module or a logger of Lightning."
    )


def _send(target: Any, numbers: Mapping[str, float], step: int) -> None:
    if hasattr(target, "add_scalar"):  # TensorBoard
        for tag, value in numbers.items():
            target.add_scalar(tag, value, step)
        target.flush()
    elif hasattr(target, "log_metrics"):  # mlflow, loggers of Lightning
        target.log_metrics(dict(numbers), step=step)
    elif run_id := getattr(getattr(target, "info", None), "run_id", None):  # a run of MLflow
        sys.modules["mlflow"].log_metrics(dict(numbers), step=step, run_id=run_id)
    elif hasattr(target, "define_metric"):  # a run of W&B, whose own steps only go up: ours is a number beside it
        target.define_metric(f"{PREFIX}/*", step_metric=f"{PREFIX}/step")
        target.log({**numbers, f"{PREFIX}/step": step})
    else:
        raise TypeError(
            "log: target must be a SummaryWriter, a run of W&B or MLflow or a logger with log_metrics, "
            f"got {type(target).__name__}."
        )


def _send_figure(target: Any, profile: Profile, step: int) -> None:
    """One picture of all quantities over depth, where the logger takes pictures."""
    name = f"{PREFIX}/overview"
    experiment = getattr(target, "experiment", target)  # what is behind a logger of Lightning
    figure = profile.plot()
    if hasattr(experiment, "add_figure"):
        experiment.add_figure(name, figure, step)
        experiment.flush()
    elif hasattr(experiment, "log_figure"):  # the mlflow module, or its client
        path = f"{name}-step-{step:08d}.png"
        run_id = getattr(target, "run_id", None)
        experiment.log_figure(run_id, figure, path) if run_id else experiment.log_figure(figure, path)
    elif hasattr(experiment, "define_metric"):
        from PIL import Image

        picture = Image.open(io.BytesIO(figure._repr_png_()))
        experiment.log({name: sys.modules["wandb"].Image(picture), f"{PREFIX}/step": step})
