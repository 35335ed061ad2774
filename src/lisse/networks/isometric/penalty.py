"""The isometric loss at chosen layers of any network: for :func:`lisse.train`, a plain loop, or another trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from lisse import taps
from lisse.maths.given import all_finite
from lisse.networks.isometric.loss import LossScaling, PairMetric, isometric_loss

Within = Literal["labels", "all"] | Callable[[Any], Tensor]


class BatchLike(Protocol):
    """Inputs and targets of one batch: :class:`lisse.data.Batch`, or anything with these two."""

    @property
    def inputs(self) -> Any:
        """What the network took."""

    @property
    def targets(self) -> Any:
        """Labels ``[n]``, or ``None``."""


@dataclass(frozen=True)
class IsometricTerm:
    r"""The isometric loss from the input to each given activation, averaged over the layers.

    A function of ``(activations, batch)``, as :class:`lisse.training.Penalty` takes one::

        train(model, data, penalties=[Penalty(IsometricTerm(), weight=0.1, layers=["blocks.*"])])

    ``within`` says which pairs count: those with the same ``labels``, ``all``, or those that a function of the batch
    puts into one part (it returns one number per sample). ``source`` is where distances are taken from: ``None`` is
    the network's input; for token ids, which have no distances, the name of one of the layers (the embedding).
    ``metric`` and ``scaling`` as in :func:`isometric_loss`.

    Distances grow with the number of units: with ``relative`` both sides are over their root mean square distance
    in the batch (which is not differentiated for the input), so that a wide layer is asked for the shape of its input
    and not for its size. Activations that are not finite give NaN, so that the training says *diverged*.
    """

    within: Within = "labels"
    source: str | None = None
    metric: PairMetric = "euclidean"
    scaling: LossScaling = "paper"
    relative: bool = False

    def __post_init__(self) -> None:
        """Check the options."""
        if not callable(self.within) and self.within not in ("labels", "all"):
            raise ValueError(
                f"IsometricTerm: within must be 'labels', 'all' or a function of the batch, got {self.within!r}."
            )

    @property
    def __name__(self) -> str:
        """What the log calls it."""
        return "isometric"

    def __call__(self, activations: Mapping[str, Tensor], batch: BatchLike) -> Tensor:
        """One number: the mean over layers."""
        before, layers = self._source(activations, batch)
        if not all(map(all_finite, (before, *layers))):
            return sum((layer.float().sum() for layer in layers), torch.zeros(())) * torch.nan
        groups = self._groups(batch)
        losses = []
        for layer in layers:
            x, z = before.flatten(1).to(layer.device), layer.flatten(1)
            if self.relative:
                x, z = x / _spread(x.detach()), z / _spread(z)
            losses.append(isometric_loss(x, z, groups, metric=self.metric, scaling=self.scaling))
        return torch.stack(losses).mean()

    def _source(self, activations: Mapping[str, Tensor], batch: BatchLike) -> tuple[Tensor, list[Tensor]]:
        if self.source is not None:
            if self.source not in activations:
                raise ValueError(
                    f"IsometricTerm: source must be one of the layers, got {self.source!r} of "
                    f"{', '.join(activations)}. Name it in layers too."
                )
            layers = [layer for name, layer in activations.items() if name != self.source]
            if not layers:
                raise ValueError("IsometricTerm: layers must hold another layer beside the source, got only that.")
            return activations[self.source].detach(), layers
        inputs = batch.inputs
        if isinstance(inputs, Mapping):
            floating = [v for v in inputs.values() if isinstance(v, Tensor) and v.is_floating_point() and v.ndim > 1]
            if len(floating) != 1:
                raise ValueError(
                    "IsometricTerm: the input must be one tensor of numbers, got "
                    f"{', '.join(map(str, inputs))}. Token ids have no distances: give source='…', a layer's name."
                )
            inputs = floating[0]
        if not isinstance(inputs, Tensor):
            raise TypeError(f"IsometricTerm: the input must be a tensor, got {type(inputs).__name__}. Give source=….")
        return inputs.detach(), list(activations.values())

    def _groups(self, batch: BatchLike) -> Tensor | None:
        if self.within == "all":
            return None
        labels = batch.targets if self.within == "labels" else self.within(batch)
        classes = isinstance(labels, Tensor) and labels.ndim == 1
        if not classes or (self.within == "labels" and labels.is_floating_point()):
            got = f"{labels.dtype} {list(labels.shape)}" if isinstance(labels, Tensor) else "none"
            raise ValueError(
                f"IsometricTerm: the batch must have one class per sample, got {got}. Use within='all', or a function "
                "of the batch that gives them."
            )
        return labels


def _spread(points: Tensor) -> Tensor:
    """Root mean square distance over ordered pairs, the diagonal among them: √2 times the spread around the mean."""
    centred = points - points.mean(0)
    return (2 * centred.square().sum(1).mean()).clamp_min(torch.finfo(points.dtype).tiny).sqrt()


class Isometrically(nn.Module):
    r"""Any network, with the isometric loss of some of its layers at hand: for loops that are not :func:`lisse.train`.

    It is called as the network is and gives what the network gives. In a plain loop::

        model = Isometrically(network, example, layers=["layer*"], weight=0.1)
        logits = model(x)
        loss = cross_entropy(logits, y) + model.penalty(y)

    A network that returns a ``loss`` of its own in training (as those of Hugging Face do when they are given
    ``labels``) gets the weighted penalty added to it, so that ``Trainer(model=Isometrically(…))`` trains with it. Give
    its arguments ``remove_unused_columns=False`` and ``label_names=["labels"]``: a Trainer looks for the names of
    columns in the signature, which is open here. In evaluation the loss is left alone.

    ``example`` is a batch as the network takes it, by which its layers are found
    (:func:`lisse.taps.find`). ``term`` says which distances count. The trained network is :attr:`network`.
    """

    def __init__(
        self,
        network: nn.Module,
        example: Any,
        *,
        layers: Sequence[str] | str,
        weight: float,
        term: IsometricTerm | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(weight, (int, float)) or isinstance(weight, bool) or not weight >= 0:
            raise ValueError(f"Isometrically: weight must be at least 0, got {weight!r}. Try 0.1.")
        self.network = network
        self.weight = float(weight)
        self.term = IsometricTerm() if term is None else term
        names = [layers] if isinstance(layers, str) else list(layers)
        if self.term.source is not None and self.term.source not in names:
            names.append(self.term.source)
        self.taps = tuple(taps.find(network, example, layers=names))
        self._inputs: Any = None
        self._activations: dict[str, Tensor] = {}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the network gives, with its layers read on the way."""
        activations: dict[str, Tensor] = {}

        def on(tap: taps.Tap, activation: Tensor) -> None:
            half = activation.dtype in (torch.float16, torch.bfloat16)
            activations[tap.name] = activation.float() if half else activation.clone()

        with taps.tapped(self.network, self.taps, on):
            output = self.network(*args, **kwargs)
        self._activations = activations
        self._inputs = args[0] if args else {k: v for k, v in kwargs.items() if k != "labels"}
        loss = output.get("loss") if isinstance(output, Mapping) else None
        if self.training and isinstance(loss, Tensor) and self.weight:
            output["loss"] = loss + self.weight * self._value(kwargs.get("labels"))
        return output

    def penalty(self, targets: Tensor | None = None) -> Tensor:
        """``weight`` times the isometric loss of the last call, with gradient; ``targets`` are its labels ``[n]``."""
        if not self._activations:
            raise RuntimeError(
                "Isometrically: penalty must follow a call of the network, got none. Run model(x) first."
            )
        return self.weight * self._value(targets)

    def _value(self, targets: Tensor | None) -> Tensor:
        return self.term(self._activations, _Batch(self._inputs, targets))


@dataclass(frozen=True)
class _Batch:
    inputs: Any
    targets: Any
