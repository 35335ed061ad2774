"""The learning rate as a closed form of the step, so that a resumed run is at the rate of an unbroken one."""

from __future__ import annotations

import math

from lisse.training.recipes import Recipe

# Of one-cycle: where the rate starts, and how far below that it ends, as in torch's OneCycleLR.
START, END = 25.0, 1e4


def rate_factor(recipe: Recipe, step: int, steps: int, per_epoch: int) -> float:
    r"""What the peak rate is multiplied by in step ``step`` (from 0) of ``steps``, ``per_epoch`` of them an epoch.

    With :math:`t` the step, :math:`T` all steps, :math:`w` the warm-up share:

    - ``constant``: 1;
    - ``cosine``: :math:`(1 + \cos(\pi t / (f T)))/2`, :math:`f` = ``cosine_fraction``; beyond :math:`f T` it rises
      again, as torch's ``CosineAnnealingLR`` does;
    - ``exponential``: :math:`\gamma^e`, :math:`e` the epoch from 0;
    - ``onecycle``: a half cosine from 1/25 to 1 at step :math:`w T - 1`, another down to 1/250,000 at the last step
      (torch's ``OneCycleLR``; the momentum stays).

    The first three are multiplied by :math:`\min(1, (t + 1)/(w T))`: a linear warm-up.
    """
    if recipe.schedule == "onecycle":
        top, last = recipe.warmup * steps - 1, steps - 1
        if step <= top:
            return _between(1 / START, 1.0, step / top if top > 0 else 1.0)
        return _between(1.0, 1 / START / END, (step - max(top, 0.0)) / max(last - max(top, 0.0), 1.0))
    warm = min(1.0, (step + 1) / (recipe.warmup * steps)) if recipe.warmup else 1.0
    if recipe.schedule == "cosine":
        return warm * (1 + math.cos(math.pi * step / (recipe.cosine_fraction * steps))) / 2
    if recipe.schedule == "exponential":
        return warm * recipe.gamma ** (step // per_epoch)
    return warm


def _between(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2
