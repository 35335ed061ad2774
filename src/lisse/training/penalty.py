"""Weighted terms of the loss that read activations inside the network, with gradient."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lisse import taps
from lisse.data import Batch
from lisse.networks.input_gradient import gradient_penalty, jacobian_penalty
from lisse.networks.isometric import IsometricTerm
from lisse.training.heads import head_of

PenaltyFunction = Callable[[dict[str, Tensor], Batch], Tensor]
#: What the answers of the network are called among the activations of a penalty that asks for inputs.
OUTPUT = "output"
#: What enters the classifier, whatever the network calls it.
HEAD = "head:in"


@dataclass(frozen=True)
class Penalty:
    """``weight`` times ``function(activations, batch)``, added to the loss.

    ``activations`` maps each of ``layers`` (names or globs, as :func:`lisse.taps.find` takes them) to what it gives
    for the batch, samples first, with gradient, at least in float32; ``batch`` is the :class:`lisse.data.Batch` that
    the network saw. The function returns one number. ``name`` is its column in the log. The layer ``head:in`` is what
    enters the classifier of any network.

    With ``inputs`` the batch's inputs require gradients, and the activations hold the network's answer too, as
    ``output``: for penalties on slopes by the input, which the loss's gradient goes through once more. Attention then
    takes its plain form, for its fast ones have no second derivative. A compiled network runs uncompiled under any
    penalty: its fast form has no second derivative either, and no layers that could be read.

    With several processes each sees its own share of the batch: a function of pairs of samples sees fewer pairs.
    """

    function: PenaltyFunction
    weight: float
    layers: Sequence[str] = ()
    name: str = ""
    inputs: bool = False

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
        if not layers and not self.inputs:
            raise ValueError("Penalty: layers must name at least one layer, got none. `lisse layers MODEL` lists them.")
        object.__setattr__(self, "name", self.name or getattr(self.function, "__name__", type(self.function).__name__))


def _gradient(activations: dict[str, Tensor], batch: Batch) -> Tensor:
    assert isinstance(batch.inputs, Tensor)
    return gradient_penalty(batch.inputs, activations[OUTPUT], batch.targets)  # type: ignore[arg-type]


def _jacobian(activations: dict[str, Tensor], batch: Batch) -> Tensor:
    assert isinstance(batch.inputs, Tensor)
    return jacobian_penalty(batch.inputs, activations[OUTPUT])


#: The penalties that have a word: ``isometric=0.1@LAYER``, ``gradient=0.1``, ``jacobian=0.01``.
_WORDS: dict[str, tuple[PenaltyFunction, bool]] = {
    "isometric": (IsometricTerm(), True),
    "gradient": (_gradient, False),
    "jacobian": (_jacobian, False),
}


def penalty_of(text: str) -> Penalty:
    """A penalty as a recipe and the command line write it: ``NAME=WEIGHT``, or ``NAME=WEIGHT@LAYER,LAYER``.

    ``isometric`` keeps the distances of the input within classes at its layers, ``gradient`` and ``jacobian`` are
    :func:`~lisse.networks.input_gradient.gradient_penalty` and its neighbour.
    """
    name, equals, more = str(text).partition("=")
    number, _, layers = more.partition("@")
    if name not in _WORDS:
        near = difflib.get_close_matches(name, _WORDS, n=1, cutoff=0.5)
        hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(_WORDS)}."
        raise ValueError(f"penalty: the name must be one of {', '.join(_WORDS)}, got {text!r}. {hint}")
    function, reads = _WORDS[name]
    try:
        weight = float(number)
    except ValueError:
        weight = math.nan
    where = f"@{HEAD}" if reads else ""
    if not equals or not 0 <= weight < math.inf:
        raise ValueError(f"penalty: the weight must be a number of at least 0, got {text!r}. Write {name}=0.1{where}.")
    names = tuple(layer for layer in layers.split(",") if layer)
    if reads != bool(names):
        how = f"Write {name}={weight:g}{where}{', or the name of another layer' if reads else ''}."
        raise ValueError(f"penalty: layers must be {'named' if reads else 'left out'} for {name}, got {text!r}. {how}")
    return Penalty(function, weight, names, name=name, inputs=not reads)


class Reader:
    """The activations of every penalty's layers in one forward."""

    def __init__(self, model: nn.Module, penalties: Sequence[Penalty], example: object) -> None:
        self.model = model
        self.penalties = tuple(penalties)
        #: Whether one of them wants slopes by the inputs.
        self.inputs = any(penalty.inputs for penalty in penalties)
        self.layers: list[list[str]] = []
        self.taps: dict[str, taps.Tap] = {}
        for penalty in penalties:
            if not penalty.layers:
                self.layers.append([])
                continue
            names = [f"{head_of(model)[0]}:in" if layer == HEAD else layer for layer in penalty.layers]
            layers = taps.find(model, example, layers=names)
            self.layers.append(layers.names)
            self.taps.update({tap.name: tap for tap in layers})

    @contextmanager
    def reading(self) -> Iterator[dict[str, Tensor]]:
        """A dict that fills while the network runs inside the block."""
        activations: dict[str, Tensor] = {}

        def on(tap: taps.Tap, activation: Tensor) -> None:
            # A copy: the network may overwrite its own tensor in place (a ReLU, a residual sum).
            half = activation.dtype in (torch.float16, torch.bfloat16)
            activations[tap.name] = activation.float() if half else activation.clone()

        with ExitStack() as stack:
            if self.taps:
                stack.enter_context(taps.tapped(self.model, self.taps.values(), on))
            if self.inputs:
                stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            if any(hasattr(part, "_orig_mod") or part._compiled_call_impl is not None for part in self.model.modules()):
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            yield activations

    def values(self, activations: dict[str, Tensor], output: object, batch: Batch) -> list[Tensor]:
        """Each penalty's value, not weighted."""
        values = []
        for penalty, layers in zip(self.penalties, self.layers, strict=True):
            parts = {layer: activations[layer] for layer in layers}
            if penalty.inputs and isinstance(output, Tensor):
                parts[OUTPUT] = output.float() if output.dtype in (torch.float16, torch.bfloat16) else output
            value = penalty.function(parts, batch)
            if not isinstance(value, Tensor) or value.numel() != 1:
                got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                raise ValueError(
                    f"train: penalty {penalty.name} must return one number as a tensor, got {got}. Take the mean."
                )
            values.append(value.reshape(()))
        return values
