"""Which answers stand: the strong attack of one line."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lisse.networks.answers import Classifier, right
from lisse.networks.attack.checks import UNIT, Bounds, checked_samples
from lisse.networks.attack.gradient import attack
from lisse.networks.attack.norms import Norm


def standing(
    model: Classifier,
    x: Any,
    y: Any,
    *,
    norm: Norm | float | str,
    eps: float,
    steps: int = 50,
    restarts: int = 1,
    bounds: Bounds | None = UNIT,
    seed: int = 0,
    batch: int = 500,
) -> Tensor:
    """Which answers ``[n]`` are right at ``x`` and at all that APGD finds within ``eps``: by two losses, in turn.

    The cross-entropy first, then, on what still stands, the margin over the gap of the logits (DLR; the plain margin
    where there are two classes), each from ``restarts`` random points, ``steps`` at a time. The scale of the logits
    changes nothing of the second; the first adds less to it where a network is very sure. An upper estimate of what
    would stand under any attack: :func:`auto_attack` takes one to three points more from most networks, at many times
    the cost. Reference: [croce2020].
    """
    values, labels = checked_samples("standing", model, x, y, bounds)
    stood = right(model, values, labels, batch=batch)
    box = None if bounds is None else (bounds[0], bounds[1])  # said: no attack asks again
    for loss in ("cross-entropy", "dlr"):
        index = stood.nonzero()[:, 0]
        if not len(index):
            break
        rows, target = values[index], labels[index]
        few = int(labels.max()) < 2 and loss == "dlr"
        generator = torch.Generator().manual_seed(seed)
        moved = attack(
            model, rows, target, method="apgd", norm=norm, eps=eps, steps=steps, restarts=restarts, start="random",
            loss="margin" if few else loss, bounds=box, generator=generator, batch=batch,
        )  # fmt: skip
        stood[index] = right(model, moved, target, batch=batch)
    return stood
