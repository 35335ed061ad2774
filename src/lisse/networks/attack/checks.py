"""What every attack asks of its input, and how a model's normalisation has to be declared."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor

from lisse.maths.given import all_finite
from lisse.networks.answers import are_classes

Bounds = tuple[float, float]
#: What image models of lisse take. The default of every attack; anything else is a person's own word.
UNIT: Bounds = (0, 1)
#: How a plain module says what it takes.
DECLARE = (
    "model = lisse.models.declare(network, input_size=(c, h, w), mean=…, std=…) takes [0, 1] and normalises inside "
    "(kind='plain' for a network that takes x as it is)"
)


def _checked_input(function: str, model: Any, x: Any, bounds: Bounds | None) -> Tensor:
    """``x`` as a tensor of floats inside ``bounds``."""
    if not callable(model):
        raise TypeError(f"{function}: model must be an nn.Module, got {type(model).__name__}. Give the network itself.")
    if isinstance(x, (dict, list, tuple, str)):
        raise TypeError(f"{function}: x must be one tensor, got {type(x).__name__}. Only images and vectors have ε.")
    values = torch.as_tensor(x).detach()  # an input of a person's own graph stays out of it
    if not values.is_floating_point():
        how = "Divide bytes by 255." if values.dtype == torch.uint8 else "Token ids and counts cannot be attacked so."
        raise TypeError(f"{function}: x must hold floats, got {values.dtype}. {how}")
    if values.ndim < 2:
        raise ValueError(f"{function}: x must be [n, …], got shape {list(values.shape)}. Add an axis: x[None].")
    if values.is_inference():
        with torch.inference_mode(False):
            values = values.clone()  # a tensor of inference mode can carry no gradient
    if not all_finite(values):
        raise ValueError(f"{function}: x must be finite, got NaN or infinity in it. Clean the data first.")
    if bounds is not None:
        _check_box(function, model, values, bounds)
    return values


def checked_samples(function: str, model: Any, x: Any, y: Any, bounds: Bounds | None) -> tuple[Tensor, Tensor]:
    """``x`` as a tensor of floats inside ``bounds``, and its classes ``y`` ``[n]`` beside it."""
    values = _checked_input(function, model, x, bounds)
    return values, checked_labels(function, y, len(values)).to(values.device)


def _check_box(function: str, model: Any, values: Tensor, bounds: Bounds) -> None:
    """See that ``values`` lie in the box; warn where nobody said that it is the model's."""
    _check_bounds(function, bounds)
    declared = getattr(model, "lisse", None) is not None
    hint = (
        "This model normalises inside: give it images in [0, 1]."
        if declared
        else f"The model declares no normalisation. Declare it ({DECLARE}), or say which values it takes: "
        "bounds=(low, high), with eps in the same unit; bounds=None where there is no limit."
    )
    check_inside(function, values, bounds, hint)
    if not declared and bounds is UNIT:
        warnings.warn(
            f"{function}: the model declares no normalisation; it is given x as it is, in [0, 1]. If it was trained on "
            f"normalised images this is another network. Declare it: {DECLARE}; or give bounds=(low, high).",
            stacklevel=5,
        )


def check_inside(function: str, values: Tensor, bounds: Bounds, hint: str) -> None:
    """See that ``values`` lie in the box; ``hint`` says what to do. Waits for their device."""
    if values.numel():
        low, high = (float(end) for end in values.aminmax())
        if low < bounds[0] or high > bounds[1]:
            raise ValueError(
                f"{function}: x must lie in bounds [{bounds[0]:g}, {bounds[1]:g}], got {low:g} … {high:g}. {hint}"
            )


def _check_bounds(function: str, bounds: Any) -> None:
    try:
        low, high = (float(end) for end in bounds)
        good = low < high
    except (TypeError, ValueError):
        good = False
    if not good:
        raise ValueError(f"{function}: bounds must be (low, high) or None, got {bounds!r}. Images have (0, 1).")


def checked_labels(function: str, y: Any, n: int) -> Tensor:
    """``y`` as int64 ``[n]``."""
    labels = torch.as_tensor(y)
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(f"{function}: y must hold whole numbers, got {labels.dtype}. They are the classes 0, 1, ….")
    if labels.shape != (n,):
        raise ValueError(
            f"{function}: y must have a label for each of the {n} samples, got shape {list(labels.shape)}. "
            "Give one class each."
        )
    if n and int(labels.min()) < 0:
        raise ValueError(f"{function}: y must hold the classes 0, 1, …, got {int(labels.min())}. Number them from 0.")
    return labels.long()


def check_classes(function: str, logits: Tensor, y: Tensor) -> None:
    """See that every label is one of the model's classes."""
    if not are_classes(y, logits.shape[1]):
        raise ValueError(
            f"{function}: y must hold classes below {logits.shape[1]}, the model's number, got {int(y.max())}. "
            "Are these the labels that it was trained on?"
        )


def checked_size(function: str, name: str, value: Any) -> float:
    """A length that is finite and not negative."""
    try:
        size = float(value)
    except (TypeError, ValueError):
        size = math.nan
    if not 0 <= size < math.inf or isinstance(value, bool):
        raise ValueError(f"{function}: {name} must be a number of at least 0, got {value!r}. It is in the unit of x.")
    return size


def check_unit(function: str, eps: float, norm: str, bounds: Bounds | None, size: int | None = None) -> None:
    """See that a radius is in the unit of the box: 8 is not 8/255. An ℓ2 radius needs the ``size`` of a sample."""
    if bounds is None or (norm == "l2" and size is None):
        return
    widest = (bounds[1] - bounds[0]) * (math.sqrt(size) if norm == "l2" and size else 1.0)
    if eps > widest:
        most = "the width of the bounds" if norm == "linf" else f"{widest:.4g}, the diagonal of the bounds"
        hint = f" Is it in grey levels? Write {eps:g} / 255." if tuple(bounds) == UNIT and eps <= 255 * widest else ""
        raise ValueError(
            f"{function}: eps must be at most {most} [{bounds[0]:g}, {bounds[1]:g}] in which x lies, got {eps:g}.{hint}"
        )


def checked_count(function: str, name: str, value: Any) -> int:
    """A whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{function}: {name} must be a whole number of at least 1, got {value!r}.")
    return value
