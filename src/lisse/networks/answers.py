"""What a model answers: its logits, wherever it puts them, and which of its answers are right.

The one place that reads a model's output: attacks, instruments, training and the survey of a report all count by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from lisse.taps import still

Classifier = nn.Module | Callable[[Tensor], Any]
_HOW = "Wrap it in a module that returns them, or a dict with the key 'logits'."


def answer_of(output: Any) -> Any:
    """A dict or Hugging Face output by its ``logits``, else ``last_hidden_state``, else first entry; others as is."""
    if isinstance(output, Tensor) or not hasattr(output, "keys"):
        return output
    return output[next((key for key in ("logits", "last_hidden_state") if key in output), next(iter(output)))]


def logits_of(output: Any, count: int, *, function: str = "logits_of") -> Tensor:
    """The logits ``[count, classes]`` in a model's output, or an error that says what is there instead.

    A tensor; the ``logits`` of a dict or of a Hugging Face output; the first entry of a tuple or list. Anything of
    another shape is refused (``[n, t, classes]``: one answer per token is no answer per sample).
    """
    logits = output
    if isinstance(output, Mapping):
        logits = output.get("logits")
    elif not isinstance(output, Tensor):
        logits = getattr(output, "logits", output[0] if isinstance(output, (tuple, list)) and output else None)
    if not isinstance(logits, Tensor):
        names = f" with {', '.join(map(str, list(output)[:6]))}" if isinstance(output, Mapping) else ""
        raise TypeError(f"{function}: model must give logits [n, classes], got {type(output).__name__}{names}. {_HOW}")
    if logits.ndim != 2 or len(logits) != count or not logits.is_floating_point() or logits.shape[1] < 2:
        raise ValueError(
            f"{function}: model must give logits [{count}, classes], got {logits.dtype} of shape "
            f"{list(logits.shape)}. {_HOW}"
        )
    return logits


def unsquashed(logits: Tensor) -> Tensor:
    """Logits ``[n, classes]``; where a network answers probabilities, their logarithms, which are logits again.

    Margins of probabilities are not those of the logits behind them, though every decision is the same.
    """
    with torch.no_grad():
        probabilities = len(logits) > 0 and bool((logits >= 0).all())
        probabilities = probabilities and bool(((logits.double().sum(1) - 1).abs() < 1e-3).all())
    return logits.clamp_min(torch.finfo(logits.dtype).tiny).log() if probabilities else logits


def are_classes(labels: Tensor | None, classes: int) -> bool:
    """Whether ``labels`` are one of 0, …, ``classes`` - 1 for each sample: whether accuracy means something."""
    if labels is None or labels.ndim != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
        return False
    return not len(labels) or (int(labels.min()) >= 0 and int(labels.max()) < classes)


def hits(logits: Tensor, labels: Tensor) -> Tensor:
    """Which rows of ``logits`` ``[n, classes]`` are largest at their label, ``[n]`` (bool, where the logits are)."""
    return logits.argmax(1) == labels.to(logits.device)


def logits_at(model: Classifier, x: Tensor, *, function: str) -> Tensor:
    """The model's logits of ``x``, which it gets in its own precision and on its own device."""
    weights = model.parameters() if isinstance(model, nn.Module) else ()
    weight = next((weight for weight in weights if weight.is_floating_point()), None)
    return logits_of(model(x if weight is None else x.to(weight)), len(x), function=function)


def right(model: Classifier, x: Tensor, y: Tensor, *, batch: int = 500) -> Tensor:
    """Which samples a classifier gets right, ``[n]`` (bool)."""
    with resting(model, grad=False), torch.no_grad():
        parts = [
            hits(logits_at(model, part, function="right"), labels).to(y.device)
            for part, labels in zip(x.split(batch), y.split(batch), strict=True)
        ]
    return torch.cat(parts) if parts else y.new_zeros(0, dtype=torch.bool)


def resting(model: Classifier, *, grad: bool) -> AbstractContextManager[Any]:
    """Evaluation mode inside the block, everything as it was after it (see ``lisse.taps.still``)."""
    return still(model, grad=grad) if isinstance(model, nn.Module) else nullcontext(model)
