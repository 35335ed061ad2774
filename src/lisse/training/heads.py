"""The classifier at a network's end: found for its own learning rate, replaced where the classes are others."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lisse.taps import plain
from lisse.training.feed import keyed


def head_of(model: nn.Module, name: str | None = None) -> tuple[str, nn.Module]:
    """Name and module of the classifier: the one called ``name``, or the last linear layer of the network."""
    root = plain(model)
    modules = dict(root.named_modules())
    if name is not None:
        if name not in modules or not any(True for _ in modules[name].parameters()):
            linear = [key for key, module in modules.items() if isinstance(module, nn.Linear)]
            raise ValueError(
                f"train: head must name a module with parameters, got {name!r}. Linear layers: "
                f"{', '.join(linear[-4:]) or 'none'}."
            )
        return name, modules[name]
    linear = [key for key, module in modules.items() if isinstance(module, nn.Linear)]
    if not linear:
        raise ValueError(
            f"train: model must have a linear classifier for a head, got {type(root).__name__} without any linear "
            "layer. Name the module with head=…"
        )
    return linear[-1], modules[linear[-1]]


def with_classes(model: nn.Module, classes: int, *, seed: int = 0, head: str | None = None) -> nn.Module:
    """The model with a new classifier for ``classes`` classes in place of its last linear layer, drawn with ``seed``.

    For fine-tuning: everything else keeps its weights. The model is changed in place and returned; its card says the
    new number, so that a checkpoint of a network of the zoo loads by itself. A model that has that many classes
    already is returned as it is.
    """
    if isinstance(classes, bool) or not isinstance(classes, int) or classes < 1:
        raise ValueError(f"with_classes: classes must be a positive integer, got {classes!r}. Count the labels.")
    name, old = head_of(model, head)
    if not isinstance(old, nn.Linear):
        raise ValueError(f"with_classes: head must be a linear layer, got {type(old).__name__} ({name}). Name another.")
    if old.out_features == classes:
        return model
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(keyed(seed, "head", classes))
        new = nn.Linear(old.in_features, classes, bias=old.bias is not None)
    new.to(old.weight.device, old.weight.dtype).train(old.training)
    root: Any = plain(model)
    parent, _, last = name.rpartition(".")
    setattr(root.get_submodule(parent), last, new)
    card: Any = getattr(model, "lisse", None)
    if hasattr(card, "with_classes"):
        model.lisse = card.with_classes(classes)
    return model
