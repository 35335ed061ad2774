"""What is measured of one trained network: a number, its n and its interval by key, as JSON."""

from __future__ import annotations

import functools
import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from lisse.data import Dataset, frost_textures
from lisse.instruments import Isometry, Sensitivity, Stability, Topology
from lisse.maths.corruption import CORRUPTIONS, corrupt
from lisse.maths.intervals import bootstrap, share_interval
from lisse.networks.attack import attack, right, standing
from lisse.profile import Profile
from lisse.reporting.page.headline import headline_rows, profile_headings
from lisse.run import measure
from lisse_experiments.recipes.plan import Settings

Numbers = dict[str, dict[str, Any]]
_BATCH = 500


def numbers(model: nn.Module, test: Dataset, plan: Settings, *, seed: int, device: str, printed: bool) -> Numbers:
    """Everything but the clean accuracy, which the training tells."""
    x, y = _pixels(test, plan.images, device)
    table: Numbers = {}
    for norm, eps in plan.radii:
        stood = standing(
            model, x, y, norm=norm, eps=eps, steps=plan.steps, restarts=plan.restarts, seed=seed, batch=_BATCH
        )  # fmt: skip
        table[f"attack/{norm}/{eps:.4g}"] = share(stood)
    if printed:
        norm, eps = plan.radii[0]
        x, y = _pixels(test, plan.comparison, device)
        stood = right(model, x, y, batch=_BATCH)
        generator = torch.Generator().manual_seed(seed)
        moved = attack(  # what is wrong as it is need not be moved
            model, x[stood], y[stood], method="pgd", norm=norm, eps=eps, step=eps / 4, steps=50, start="random",
            restarts=10, loss="cross-entropy", generator=generator, batch=_BATCH,
        )  # fmt: skip
        stood[stood.clone()] = right(model, moved, y[stood], batch=_BATCH)
        table["pgd-50-10"] = share(stood)
    table["corruptions"] = corruption_accuracy(model, test, plan, device)
    profile = headlines(model, test, plan, seed=seed, device=device)
    judging = {heading.label for heading in profile_headings(profile) if heading.quantity.judges}
    for label, row in headline_rows(profile).items():
        if label in judging and math.isfinite(row.value):
            table[f"headline/{label}"] = {
                "value": row.value, "low": row.low, "high": row.high, "n": row.n, "quantity": row.quantity,
            }  # fmt: skip
    return table


def answers(model: nn.Module, test: Dataset, count: int, device: str) -> Tensor:
    """Which of the first ``count`` clean images are answered right."""
    return right(model, *_pixels(test, count, device), batch=_BATCH)


def share(hits: Tensor) -> dict[str, Any]:
    """A share with Wilson's interval."""
    value, n = float(hits.double().mean()), len(hits)
    interval = share_interval(value, n)
    return {"value": value, "low": float(interval.low), "high": float(interval.high), "n": n}


def corruption_accuracy(model: nn.Module, test: Dataset, plan: Settings, device: str) -> dict[str, Any]:
    """The mean accuracy over corruptions and severities, each image seen under all of them."""
    y = test.targets
    assert y is not None
    means = torch.stack([
        right(model, images.to(device).float().div(255), y[: len(images)].to(device), batch=_BATCH).double().cpu()
        for images in _corrupted(test, plan.corrupted, plan.severities)
    ]).mean(0)  # fmt: skip
    interval = bootstrap(means, generator=torch.Generator().manual_seed(0))
    value, low, high = (float(end) for end in (interval.value, interval.low, interval.high))
    return {"value": value, "low": low, "high": high, "n": len(means)}


@functools.lru_cache(maxsize=1)
def _corrupted(test: Dataset, count: int, severities: tuple[int, ...]) -> list[Tensor]:
    """The first images of the test data under every corruption: made once for all networks of a start."""
    images = _bytes(test, count)
    try:
        textures: Any = frost_textures()
    except (ValueError, OSError):
        textures = None
    names = [name for name in CORRUPTIONS if name != "frost" or textures is not None]
    return [
        corrupt(
            images, name, severity, generator=torch.Generator().manual_seed(severity),
            textures=textures if name == "frost" else None,
        )
        for name in names
        for severity in severities
    ]  # fmt: skip


def headlines(model: nn.Module, test: Dataset, plan: Settings, *, seed: int, device: str) -> Profile:
    """R_f and the headlines that judge, from few samples."""
    n = plan.samples
    instruments = [
        Stability(samples=n), Sensitivity(samples=n // 3, clouds=3, points=8, max_iter=10),
        Isometry(samples=n // 3, clouds=3, holes=False, points=0), Topology(samples=n // 3, clouds=3),
    ]  # fmt: skip
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Normalised: images must lie")  # noise is not clipped
        return measure(model, test, instruments, seed=seed, device=device, batch=_BATCH, on_error="note")


def _bytes(data: Dataset, count: int) -> Tensor:
    inputs = data.inputs
    assert isinstance(inputs, Tensor)
    few = inputs[:count]
    return few if few.dtype == torch.uint8 else (few * 255).round().to(torch.uint8)


def _pixels(data: Dataset, count: int, device: str) -> tuple[Tensor, Tensor]:
    assert data.targets is not None
    return _bytes(data, count).to(device).float().div(255), data.targets[:count].to(device)
