"""Deprecated: attention as a map of measures is :class:`lisse.maths.markov.AttentionKernel`."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from lisse.maths.markov import AttentionKernel, Bilinear, Linear
from lisse.maths.transport import Measure


def _attention(measure: Measure, a: Tensor, value: Tensor) -> Measure:
    r"""One head with logits :math:`\langle Ax, y\rangle` and values Vy ([chen2024] Definition 4)."""
    a = torch.as_tensor(a)
    return AttentionKernel(Bilinear(a, torch.eye(len(a)).to(a)), Linear(value))(measure, measure)


def __getattr__(name: str) -> Any:
    if name != "attention":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(
        "lisse.maths.mean_field.attention will go: use lisse.maths.markov.AttentionKernel(Bilinear(a, eye), "
        "Linear(value)).",
        DeprecationWarning,
        stacklevel=2,
    )
    return _attention
