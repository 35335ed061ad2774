"""What a model is, said out loud: :class:`ModelCard`, and :class:`Normalised`, which normalises images inside.

Preprocessing travels with the model. An image model of lisse takes floats in [0, 1] and nothing else; the mean and
the standard deviation that its weights were trained with are part of the module.
"""

from __future__ import annotations

import dataclasses
import math
import os
import warnings
import weakref
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from lisse.networks.answers import answer_of

InputKind = Literal["image", "text", "plain"]

# Channel means and standard deviations by name, for [0, 1] images.
STATISTICS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "mnist": ((0.1307,), (0.3081,)),
    "fashion-mnist": ((0.2860,), (0.3530,)),
}

# Noise and attacks leave [0, 1] by a little. Beyond SLACK images were probably scaled or normalised already; beyond
# FAR they are surely in other units, such as 0…255.
SLACK, FAR = 0.75, 7.0
# The range is looked at in the first SAMPLES of a batch, in the first LOOKS batches and in every LOOKS-th one after.
SAMPLES, LOOKS = 8, 16


@dataclass(frozen=True)
class ModelCard:
    """What travels with a model as ``model.lisse``.

    ``input_size`` is (c, h, w) for images, (d,) for vectors, ``None`` where any size goes or the input is text;
    ``mean`` and ``std`` are those subtracted and divided by inside (``None``: the input is taken as it is).
    ``spec`` is what :func:`lisse.load_model` was called with, ``architecture`` the spec that builds the same network
    without its weights (empty where a module was declared by hand). ``data`` is what the model brings to be measured
    on, where it cannot be measured on anything else.
    """

    name: str
    kind: InputKind
    spec: str = ""
    architecture: str = ""
    input_size: tuple[int, ...] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    classes: int | None = None
    tokenizer: Any = None
    data: Any = None

    # A training knows no models, only that a card can do these three.

    def save(self, model: nn.Module, path: str | os.PathLike[str]) -> None:
        """Write ``model`` as a checkpoint: :func:`lisse.models.save_checkpoint`."""
        from lisse.models.checkpoints import save_checkpoint

        save_checkpoint(model, path)

    def load(self, model: nn.Module, path: str | os.PathLike[str]) -> None:
        """Copy the weights of a checkpoint into ``model``: :func:`lisse.models.load_weights`."""
        from lisse.models.weights import load_weights, read_weights

        load_weights(model, read_weights(path), source=str(path))

    def with_classes(self, classes: int) -> ModelCard:
        """The card of the same network with another number of classes."""
        from lisse.models.specs import Spec, parse

        architecture = self.architecture
        if architecture.startswith("zoo:"):
            spec = parse(architecture)
            architecture = Spec(spec.hub, spec.name, {**spec.options, "classes": classes}).without()
        return dataclasses.replace(self, classes=classes, architecture=architecture)


class Normalised(nn.Module):
    """``network((images - mean) / std)`` for float images in [0, 1]; the network is the child ``network``.

    ``mean`` and ``std`` are buffers, so that they follow the device and the precision, but not persistent: they
    belong to the declaration, not to the trained weights. ``state_dict`` then holds the weights alone, weights of
    others load without inventing entries, and a lisse checkpoint stores the declaration beside them.

    A transformers output is unwrapped to its ``logits`` (or last hidden state), so that every image model gives a
    tensor.

    Images far outside [0, 1] are refused, and those that look normalised already are warned about. ``size`` is the
    (height, width) that the network was made for: where it cannot take another, the error names both; where it can,
    it is used with a warning.
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(
        self, network: nn.Module, mean: Sequence[float], std: Sequence[float], size: Sequence[int] | None = None
    ) -> None:
        super().__init__()
        self.network = network
        self.channels = len(mean)
        self.size = None if size is None else tuple(size)
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.get_default_dtype()).view(-1, 1, 1), False)
        self.register_buffer("std", torch.tensor(std, dtype=torch.get_default_dtype()).view(-1, 1, 1), False)

    def forward(self, images: torch.Tensor) -> Any:
        """``images`` [n, c, h, w], floats in [0, 1], to the network's output."""
        if not images.is_floating_point():
            raise TypeError(
                f"Normalised: images must be floats in [0, 1], got {images.dtype}. Divide uint8 images by 255."
            )
        # A single-channel image would broadcast against three means without a word.
        if images.dim() != 4 or images.shape[1] != self.channels:
            raise ValueError(
                f"Normalised: images must have shape [n, {self.channels}, h, w], got {list(images.shape)}. "
                f"This model takes {self.channels} channel{'s' if self.channels > 1 else ''}."
            )
        compiling = torch.compiler.is_compiling()
        if not compiling:
            self._check_range(images)
        normal = (images - self.mean) / self.std
        if compiling or self.size is None or tuple(images.shape[2:]) == self.size:
            output = self.network(normal)
        else:
            output = self._of_another_size(normal)
        return answer_of(output)

    def _check_range(self, images: torch.Tensor) -> None:
        if images.is_meta or torch.jit.is_tracing() or not images.numel():
            return
        batches = _BATCHES[self] = _BATCHES.get(self, -1) + 1
        # Reading a number waits for a device that is not the CPU: there, only the first batches are looked at.
        if batches >= LOOKS and (images.device.type != "cpu" or batches % LOOKS):
            return
        if images.is_cuda and torch.cuda.is_current_stream_capturing():
            return
        try:
            low, high = (float(end) for end in torch.aminmax(images.detach()[:SAMPLES]))
        except RuntimeError:  # inside vmap, or a tensor without values: there is no number to look at
            return
        if low < -FAR or high > 1 + FAR:
            raise ValueError(
                f"Normalised: images must lie in [0, 1], got values from {low:.4g} to {high:.4g}. "
                "Divide images of 0…255 by 255; the normalisation is inside the model."
            )
        if (low < -SLACK or high > 1 + SLACK) and self not in _WARNED:
            _WARNED.add(self)
            warnings.warn(
                f"Normalised: images must lie in [0, 1], got values from {low:.4g} to {high:.4g}. If they are "
                "normalised or scaled already, leave that out: it happens inside the model.",
                stacklevel=4,
            )

    def _of_another_size(self, normal: torch.Tensor) -> Any:
        assert self.size is not None
        expected, actual = (f"{h}×{w}" for h, w in (self.size, normal.shape[2:]))
        try:
            output = self.network(normal)
        except (RuntimeError, ValueError) as error:
            if type(error) not in (RuntimeError, ValueError):  # out of memory, and whatever else has its own name
                raise
            text = (str(error).strip().splitlines() or [""])[0][:120].rstrip(".")
            raise ValueError(
                f"Normalised: images must be {expected} for this network, got {actual} ({text}). Resize them, or load "
                "the network for that size."
            ) from error
        warnings.warn(
            f"Normalised: images must be {expected} to give what this model was made for, got {actual}, which it also "
            "takes. Resize them, or load the network for that size.",
            stacklevel=4,
        )
        return output


# Batches that a model has seen, and models that were warned of. Not attributes: a model's attributes say what it
# computes, and are hashed for that.
_BATCHES: MutableMapping[Normalised, int] = weakref.WeakKeyDictionary()
_WARNED: weakref.WeakSet[Normalised] = weakref.WeakSet()


def statistics(
    mean: Any, std: Any, channels: int, *, function: str = "load_model"
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation from what a person may write: numbers, one number for all channels, or a name.

    Names are those of :data:`STATISTICS`, and ``none`` for (0, 1). A name given for the mean alone means both.
    """
    if isinstance(mean, str) and std is None:
        std = mean
    if mean is None and std is None:
        return (0.0,) * channels, (1.0,) * channels
    if mean is None or std is None:
        missing, present = ("std", "mean") if std is None else ("mean", "std")
        raise ValueError(
            f"{function}: mean and std must be given together, got only {present}. Add {missing}=…, or name one of "
            f"{', '.join(STATISTICS)}."
        )
    pair = [_per_channel(which, value, channels, function) for which, value in (("mean", mean), ("std", std))]
    if max(pair[0]) > 1 or max(pair[1]) > 10:
        raise ValueError(
            f"{function}: mean and std must be those of [0, 1] images, got {mean} and {std}, in the units of 0…255. "
            "Divide them by 255."
        )
    if min(pair[1]) <= 0:
        raise ValueError(f"{function}: std must be positive, got {pair[1]}. Images are divided by it.")
    return pair[0], pair[1]


def _per_channel(which: str, value: Any, channels: int, function: str) -> tuple[float, ...]:
    """The numbers of each channel that a name, a number or a sequence of them stands for."""
    if isinstance(value, str):
        if value not in STATISTICS:
            raise ValueError(
                f"{function}: {which} must be numbers or one of {', '.join(STATISTICS)}, none, got {value!r}. "
                f"Write {which}=0.5,0.5,0.5."
            )
        value = STATISTICS[value][0 if which == "mean" else 1]
        if len(value) == 3 and channels == 1:
            # Grey value of the three: only sensible where a grey image stands in for a coloured one.
            raise ValueError(
                f"{function}: {which} must have one value per channel (1), got the three of a name. "
                f"Write {which}=mnist or a number."
            )
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if len(values) == 1:
        values *= channels
    if len(values) != channels or not all(
        isinstance(number, (int, float)) and not isinstance(number, bool) and math.isfinite(number) for number in values
    ):
        raise ValueError(
            f"{function}: {which} must be one finite number per channel ({channels}), got {value!r}. "
            f"Write {which}={','.join(['0.5'] * channels)}."
        )
    return tuple(float(number) for number in values)


def declare(
    module: nn.Module,
    *,
    input_size: tuple[int, ...] | None = None,
    mean: Sequence[float] | float | str | None = None,
    std: Sequence[float] | float | str | None = None,
    kind: InputKind = "image",
    name: str | None = None,
    classes: int | None = None,
    tokenizer: Any = None,
) -> nn.Module:
    """Say what a plain ``nn.Module`` takes, so that lisse can use it: the module, with a :class:`ModelCard`.

    With ``kind="image"`` the result takes [0, 1] images and normalises them with ``mean`` and ``std`` (numbers, or a
    name such as ``"imagenet"``; left out: the module already takes [0, 1]); ``input_size`` is then (c, h, w).
    Otherwise the module itself comes back with its card.

    >>> model = declare(my_network, input_size=(3, 32, 32), mean="cifar10")  # doctest: +SKIP
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"declare: module must be an nn.Module, got {type(module).__name__}. Build the network first.")
    if kind not in ("image", "text", "plain"):
        raise ValueError(f"declare: kind must be image, text or plain, got {kind!r}. Images are normalised inside.")
    if input_size is not None and not all(isinstance(side, int) and side > 0 for side in input_size):
        raise ValueError(f"declare: input_size must be positive integers, got {input_size}. Write (3, 32, 32).")
    if isinstance(getattr(module, "lisse", None), ModelCard):
        raise ValueError(
            f"declare: module must not be declared yet, got one that is ({module.lisse.name}). Declare the bare "  # type: ignore[union-attr]
            "network, once."
        )
    if mean is not None and any(isinstance(part, Normalised) for part in module.modules()):
        raise ValueError(
            f"declare: module must not normalise inside if it is given mean and std, got {type(module).__name__} with "
            "a Normalised in it. Leave mean and std out."
        )
    result = module
    means: tuple[float, ...] | None = None
    stds: tuple[float, ...] | None = None
    if kind == "image":
        if input_size is None or len(input_size) != 3:
            raise ValueError(
                f"declare: input_size must be (channels, height, width) for images, got {input_size}. "
                "Write input_size=(3, 32, 32)."
            )
        means, stds = statistics(mean, std, input_size[0], function="declare")
        result = Normalised(module, means, stds, input_size[1:])
        result.train(module.training)
    elif mean is not None or std is not None:
        raise ValueError(f"declare: mean and std must be left out for kind={kind!r}, got {mean}, {std}. Drop them.")
    title = name or type(module).__name__
    result.lisse = ModelCard(title, kind, "", "", input_size, means, stds, classes, tokenizer)  # type: ignore[assignment]
    return result


def tokenizer_for(model: nn.Module) -> Any:
    """What ``load_data(…, tokenizer=…)`` needs for ``model``: its tokenizer, or ``None`` where any token ids will do.

    Trained weights know their own tokens only. For an ``hf:`` text model that came without its tokenizer this is a
    function that refuses every text, so that no stand-in is taken unless the data's spec names one (``?tokenizer=``).
    """
    card = getattr(model, "lisse", None)
    if not isinstance(card, ModelCard) or card.kind != "text" or card.tokenizer is not None:
        return getattr(card, "tokenizer", None)
    return _refused if card.spec.startswith("hf:") else None


def _refused(text: str) -> list[int]:
    raise ValueError(
        f"load_data: tokenizer must be the model's own, got a model without one for {text[:40]!r}. Name it in the "
        "data's spec: ?tokenizer=FOLDER_OR_NAME (or words, bytes to try it without)."
    )
