"""Attacks without gradients: what any other has to beat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lisse.networks.answers import Classifier, logits_at, resting
from lisse.networks.attack.checks import UNIT, Bounds, check_classes, checked_count, checked_samples, checked_size
from lisse.networks.attack.norms import Norm, NormBall, norm_named, steepest


def random_shift(
    x: Any, *, norm: Norm | float | str, eps: float, bounds: Bounds | None = UNIT,
    generator: torch.Generator | None = None, directions: Tensor | None = None,
) -> Tensor:  # fmt: skip
    r"""Noise of the size of an attack: ``x`` moved by ``eps`` in a random direction, then brought into ``bounds``.

    For ℓ∞ every coordinate moves by :math:`\pm\epsilon`, a corner of the ball, as a gradient's sign does; for ℓ2 the
    direction is uniform on the sphere. ``directions``, standard normal numbers like ``x``, may be given instead of a
    ``generator``. What an attack gains over it is owed to the direction alone.
    """
    kind, radius = norm_named("random_shift", norm), checked_size("random_shift", "eps", eps)
    values = torch.as_tensor(x).detach()
    if directions is None:
        directions = torch.randn(values.shape, generator=generator, dtype=torch.float64)
    elif directions.shape != values.shape:
        raise ValueError(
            f"random_shift: directions must have the shape of x, {list(values.shape)}, got {list(directions.shape)}."
        )
    return NormBall(values, kind, radius, bounds).back(values + radius * steepest(directions.to(values), kind))


def random_search(
    model: Classifier,
    x: Any,
    y: Any,
    *,
    norm: Norm | float | str,
    eps: float,
    queries: int = 20,
    bounds: Bounds | None = UNIT,
    generator: torch.Generator | None = None,
    draw: Callable[[int], Tensor] | None = None,
    batch: int | None = None,
) -> Tensor:
    """The worst of ``queries`` random points at distance ``eps`` (:func:`random_shift`), by cross-entropy: black-box.

    It sees answers only. Where it does better than an attack along the gradient, the gradient is not to be trusted.
    ``draw(k)`` may give the k-th query's directions, standard normal numbers like ``x``, instead of a ``generator``.
    Cost: ``queries`` forwards.
    """
    values, labels = checked_samples("random_search", model, x, y, bounds)
    kind = norm_named("random_search", norm)
    rounds = checked_count("random_search", "queries", queries)
    size = max(1, len(values)) if batch is None else checked_count("random_search", "batch", batch)
    best, worst = values.clone(), torch.full((len(values),), -torch.inf, dtype=torch.float64, device=values.device)
    with resting(model, grad=False), torch.no_grad():
        for query in range(rounds):
            ways = None if draw is None else draw(query)
            moved = random_shift(values, norm=kind, eps=eps, bounds=bounds, generator=generator, directions=ways)
            losses = []
            for part, target in zip(moved.split(size), labels.split(size), strict=True):
                logits = logits_at(model, part, function="random_search")
                check_classes("random_search", logits, target)
                losses.append(functional.cross_entropy(logits, target.to(logits.device), reduction="none").double())
            loss = torch.cat(losses).to(values.device) if losses else worst
            better = loss > worst
            worst = torch.where(better, loss, worst)
            best[better] = moved[better]
    return best
