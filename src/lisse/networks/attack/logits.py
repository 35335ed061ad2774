"""What a classifier answers: its logits, wherever it puts them, and whether they are right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from lisse.taps import still

Classifier = nn.Module | Callable[[Tensor], Any]
_HOW = "Wrap it in a module that returns them, or a dict with the key 'logits'."


def logits_of(output: Any, count: int, *, function: str = "logits_of") -> Tensor:
    """The logits ``[count, classes]`` in a model's output.

    A tensor; the ``logits`` of a dict or of a Hugging Face output; the first element of a tuple.
    """
    found = output
    if isinstance(output, Mapping):
        found = output.get("logits")
    elif not isinstance(output, Tensor):
        found = getattr(output, "logits", output[0] if isinstance(output, (tuple, list)) and output else None)
    if not isinstance(found, Tensor):
        names = f" with {', '.join(map(str, list(output)[:6]))}" if isinstance(output, Mapping) else ""
        raise TypeError(f"{function}: model must give logits [n, classes], got {type(output).__name__}{names}. {_HOW}")
    if found.ndim != 2 or len(found) != count or not found.is_floating_point() or found.shape[1] < 2:
        raise ValueError(
            f"{function}: model must give logits [{count}, classes], got {found.dtype} of shape {list(found.shape)}. "
            f"{_HOW}"
        )
    return found


def answered(model: Classifier, x: Tensor, *, function: str) -> Tensor:
    """The model's logits of ``x``, which it gets in its own precision and on its own device."""
    return logits_of(model(fed(model, x)), len(x), function=function)


def fed(model: Classifier, x: Tensor) -> Tensor:
    """``x`` in the model's precision and on its device."""
    if not isinstance(model, nn.Module):
        return x
    weight = next((weight for weight in model.parameters() if weight.is_floating_point()), None)
    return x if weight is None else x.to(weight)


def resting(model: Classifier, *, grad: bool) -> AbstractContextManager[Any]:
    """Evaluation mode inside the block, everything as it was after it (see ``lisse.taps.still``)."""
    return still(model, grad=grad) if isinstance(model, nn.Module) else nullcontext(model)


def right(model: Classifier, x: Tensor, y: Tensor, *, batch: int = 500) -> Tensor:
    """Which samples a classifier gets right, ``[n]`` (bool)."""
    with resting(model, grad=False), torch.no_grad():
        found = [
            answered(model, part, function="right").argmax(1).to(target.device) == target
            for part, target in zip(x.split(batch), y.split(batch), strict=True)
        ]
    return torch.cat(found) if found else y.new_zeros(0, dtype=torch.bool)
