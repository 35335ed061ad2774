"""AutoAttack [croce2020]: an ensemble of attacks without a step size to choose, through the package pyautoattack."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from lisse.networks.answers import Classifier, logits_at, resting
from lisse.networks.attack.checks import UNIT, Bounds, check_classes, checked_samples, checked_size
from lisse.networks.attack.norms import Norm, norm_named

Component = Literal["apgd-ce", "apgd-dlr", "fab", "square", "apgd-t", "fab-t"]
STANDARD: tuple[Component, ...] = ("apgd-ce", "apgd-t", "fab-t", "square")
#: Where there are too few classes for the targeted ones, which try nine others, and for the DLR loss, which needs four.
FEW_CLASSES: tuple[Component, ...] = ("apgd-ce", "fab", "square")
_TARGETS = 10


def auto_attack(
    model: Classifier,
    x: Any,
    y: Any,
    *,
    norm: Norm | float | str,
    eps: float,
    attacks: Sequence[Component] | None = None,
    bounds: Bounds | None = UNIT,
    seed: int = 0,
    batch: int = 250,
) -> Tensor:
    """The inputs ``[n, c, h, w]`` that AutoAttack finds within ``eps`` of ``x``; where it fails, ``x`` itself.

    ``attacks`` are by default the standard four (APGD by cross-entropy, targeted APGD and FAB, Square); with fewer than
    ten classes APGD, FAB and Square. Hundreds to thousands of passes over each image that withstands: use a few
    hundred images. It works in [0, 1] only. Needs ``pip install "lisse[attack]"``.
    """
    try:
        from pyautoattack import AutoAttack
    except ImportError as error:
        raise ImportError(
            f'auto_attack: AutoAttack needs the package pyautoattack ({error}). pip install "lisse[attack]"'
        ) from error
    values, labels = checked_samples("auto_attack", model, x, y, bounds)
    kind, radius = norm_named("auto_attack", norm), checked_size("auto_attack", "eps", eps)
    if bounds is None or tuple(float(end) for end in bounds) != (0.0, 1.0):
        raise ValueError(f"auto_attack: bounds must be (0, 1), got {bounds!r}. The package knows no other box.")
    unknown = [name for name in attacks or () if name not in get_args(Component)]
    if unknown or (attacks is not None and not attacks):
        raise ValueError(f"auto_attack: attacks must be among {', '.join(get_args(Component))}, got {unknown}.")
    if len(values) == 0 or radius == 0:
        return values.clone()
    # The package draws from the global generators: they are put back after it.
    with resting(model, grad=True), torch.inference_mode(False), torch.random.fork_rng(), torch.enable_grad():
        with torch.no_grad():
            logits = logits_at(model, values[:1], function="auto_attack")
        check_classes("auto_attack", logits, labels)
        components = attacks or (STANDARD if logits.shape[1] >= _TARGETS else FEW_CLASSES)
        # Square works on pictures: anything else is one of a single row.
        pictures = values if values.ndim == 4 else values.flatten(1)[:, None, None]
        logging.getLogger("auto-attack").setLevel(logging.ERROR)
        adversary = AutoAttack(
            _Logits(model, values.shape[1:]), norm={"linf": "Linf", "l2": "L2"}[kind], eps=radius, seed=seed,
            version="custom", attacks=list(components), device=str(logits.device),
        )  # fmt: skip
        moved, _ = adversary.run_standard_evaluation(pictures.contiguous(), labels, batch_size=batch)
    return moved.detach().reshape(values.shape).to(values)


class _Logits(nn.Module):
    """The model as the package wants it: pictures in, logits out, in float32 or the model's own precision."""

    def __init__(self, model: Classifier, shape: Sequence[int]) -> None:
        super().__init__()
        self.inner, self.shape = [model], tuple(shape)  # in a list: not a submodule, whose mode would be changed

    def forward(self, pictures: Tensor) -> Tensor:
        return logits_at(self.inner[0], pictures.reshape(-1, *self.shape), function="auto_attack").to(pictures)
