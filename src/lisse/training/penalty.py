"""Weighted terms of the loss that read activations inside the network, with gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lisse import taps
from lisse.data import Batch

PenaltyFunction = Callable[[dict[str, Tensor], Batch], Tensor]


@dataclass(frozen=True)
class Penalty:
    """``weight`` times ``function(activations, batch)``, added to the loss.

    ``activations`` maps each of ``layers`` (names or globs, as :func:`lisse.taps.find` takes them) to what it gives
    for the batch, samples first, with gradient, at least in float32; ``batch`` is the :class:`lisse.data.Batch` that
    the network saw. The function returns one number. ``name`` is its column in the log.

    With several processes each sees its own share of the batch: a function of pairs of samples sees fewer pairs.
    """

    function: PenaltyFunction
    weight: float
    layers: Sequence[str] = ()
    name: str = ""

    def __post_init__(self) -> None:
        """Check what can be checked without the network."""
        if not callable(self.function):
            raise TypeError(
                f"Penalty: function must be callable with (activations, batch), got {type(self.function).__name__}."
                " Give a plain function."
            )
        number = isinstance(self.weight, (int, float)) and not isinstance(self.weight, bool)
        if not number or not math.isfinite(self.weight):
            raise ValueError(f"Penalty: weight must be a finite number, got {self.weight!r}. Give weight=0.1.")
        layers = (self.layers,) if isinstance(self.layers, str) else tuple(self.layers)
        object.__setattr__(self, "layers", layers)
        if not layers:
            raise ValueError("Penalty: layers must name at least one layer, got none. `lisse layers MODEL` lists them.")
        object.__setattr__(self, "name", self.name or getattr(self.function, "__name__", type(self.function).__name__))


class Reader:
    """The activations of every penalty's layers in one forward."""

    def __init__(self, model: nn.Module, penalties: Sequence[Penalty], example: object) -> None:
        self.model = model
        self.penalties = tuple(penalties)
        self.layers: list[list[str]] = []
        self.taps: dict[str, taps.Tap] = {}
        for penalty in penalties:
            found = taps.find(model, example, layers=list(penalty.layers))
            self.layers.append(found.names)
            self.taps.update({tap.name: tap for tap in found})

    @contextmanager
    def reading(self) -> Iterator[dict[str, Tensor]]:
        """A dict that fills while the network runs inside the block."""
        seen: dict[str, Tensor] = {}

        def on(tap: taps.Tap, activation: Tensor) -> None:
            # A copy: the network may overwrite its own tensor in place (a ReLU, a residual sum).
            half = activation.dtype in (torch.float16, torch.bfloat16)
            seen[tap.name] = activation.float() if half else activation.clone()

        with taps.tapped(self.model, self.taps.values(), on):
            yield seen

    def values(self, seen: dict[str, Tensor], batch: Batch) -> list[Tensor]:
        """Each penalty's value, not weighted."""
        values = []
        for penalty, layers in zip(self.penalties, self.layers, strict=True):
            value = penalty.function({layer: seen[layer] for layer in layers}, batch)
            if not isinstance(value, Tensor) or value.numel() != 1:
                got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                raise ValueError(
                    f"train: penalty {penalty.name} must return one number as a tensor, got {got}. Take the mean."
                )
            values.append(value.reshape(()))
        return values
