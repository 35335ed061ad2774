"""The optimiser of a recipe, and its state as plain tensors by the names of the parameters."""

from __future__ import annotations

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
        kind, _, rest = key.partition("/")
        if kind == "optimizer":
            name, _, entry = rest.rpartition("/")
            entries.setdefault(name, {})[entry] = value
    own = dict(model.named_parameters())
    position = {id(p): i for i, p in enumerate(p for group in optimiser.param_groups for p in group["params"])}
    state = {position[id(own[name])]: values for name, values in entries.items()}
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
    for name in entries:
        parameter = own[name]
        for entry, value in optimiser.state[parameter].items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                # load_state_dict keeps the file's layout; fused kernels want the parameter's (channels last).
                laid = torch.empty_like(parameter, dtype=value.dtype)
                optimiser.state[parameter][entry] = laid.copy_(value)
