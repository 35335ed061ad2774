"""The optimiser of a recipe, and its state as plain tensors by the names of the parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lisse.training.recipes import Recipe


def optimiser_for(model: nn.Module, recipe: Recipe, head: nn.Module | None, device: torch.device) -> Any:
    """SGD, Adam or AdamW over the parameters that learn; the head apart where the recipe gives it a rate.

    The fused kernels of torch are used where there are some: one launch for all parameters.
    """
    heads = {id(parameter) for parameter in head.parameters()} if head is not None and recipe.head_lr else set()
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not learning:
        raise ValueError(
            "train: model must have parameters that learn, got none. Set requires_grad=True on some of them."
        )
    groups = [{"params": [p for p in learning if id(p) not in heads], "lr": recipe.lr}]
    if heads:
        groups.append({"params": [p for p in learning if id(p) in heads], "lr": recipe.head_lr or recipe.lr})
    groups = [group for group in groups if group["params"]]
    plain = all(parameter.is_floating_point() for parameter in learning)
    options: dict[str, Any] = {"weight_decay": recipe.weight_decay}
    if plain and device.type in ("cpu", "cuda"):
        options["fused"] = True
    if recipe.optimizer == "sgd":
        optimiser: Any = torch.optim.SGD(groups, momentum=recipe.momentum, nesterov=recipe.nesterov, **options)
    else:
        optimiser = (torch.optim.Adam if recipe.optimizer == "adam" else torch.optim.AdamW)(groups, **options)
    for group in optimiser.param_groups:
        group["peak"] = group["lr"]
    return optimiser


def state_tensors(model: nn.Module, optimiser: Any) -> dict[str, Tensor]:
    """``optimizer/PARAMETER/ENTRY`` to tensor, for everything the optimiser remembers."""
    tensors = {}
    for name, parameter in model.named_parameters():
        for entry, value in optimiser.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"optimizer/{name}/{entry}"] = value
    return tensors


def load_state(model: nn.Module, optimiser: Any, tensors: Mapping[str, Tensor]) -> None:
    """Put back what :func:`state_tensors` gave, on each parameter's device and in its memory layout."""
    entries: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        kind, _, path = key.partition("/")
        if kind == "optimizer":
            name, _, entry = path.rpartition("/")
            entries.setdefault(name, {})[entry] = value
    parameters = dict(model.named_parameters())
    position = {id(p): i for i, p in enumerate(p for group in optimiser.param_groups for p in group["params"])}
    state = {position[id(parameters[name])]: values for name, values in entries.items()}
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
    for name in entries:
        parameter = parameters[name]
        for entry, value in optimiser.state[parameter].items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                # load_state_dict keeps the file's layout; fused kernels want the parameter's (channels last).
                laid = torch.empty_like(parameter, dtype=value.dtype)
                optimiser.state[parameter][entry] = laid.copy_(value)


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
