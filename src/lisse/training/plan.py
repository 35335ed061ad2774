"""What a training is asked to do, checked before any work, and said in JSON so that a rerun can be told apart."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

import lisse
from lisse import taps
from lisse.data import Dataset, as_dataset
from lisse.data.augmentation import CropFlip
from lisse.data.dataset import check_seed
from lisse.training.feed import Augment
from lisse.training.heads import head_of
from lisse.training.identity import described
from lisse.training.moment import Callback
from lisse.training.penalty import Penalty, Reader
from lisse.training.recipes import Recipe

Loss = Callable[[Any, Any], Tensor]


@dataclass(frozen=True)
class Plan:
    """Everything about a training but the machine, sound."""

    model: nn.Module
    data: Dataset
    test: Dataset | None
    recipe: Recipe
    seed: int
    loss: Loss
    reader: Reader | None
    crops: CropFlip | None
    augment: tuple[Callable[[Tensor], Tensor], ...]
    callbacks: tuple[Callback, ...]
    head: nn.Module | None
    labels: bool
    config: dict[str, Any]
    own: taps.Tap | None = None  # where a network that brings its own loss gives it

    def outcome(self, network: nn.Module, inputs: Any) -> tuple[Any, Tensor | None]:
        """The network's scores, and the loss that it brings itself (a masked autoencoder), where it does."""
        if self.own is None:
            return output_of(taps.feed(network, inputs)), None
        seen: list[Tensor] = []
        with taps.tapped(self.model, [self.own], lambda _, value: seen.append(value)):
            output = output_of(taps.feed(network, inputs))
        return output, seen[-1]


def planned(
    model: nn.Module,
    data: Any,
    *,
    recipe: Recipe,
    epochs: int | None,
    seed: int,
    test: Any,
    loss: Loss | None,
    penalties: Sequence[Penalty],
    augment: Augment | Sequence[Augment] | Literal["recipe"] | None,
    callbacks: Sequence[Callback],
    precision: str | None,
    head: str | None,
) -> Plan:
    """Check everything that can be checked without training."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"train: model must be an nn.Module, got {type(model).__name__}. lisse.load_model(spec) makes one."
        )
    if not isinstance(recipe, Recipe):
        raise TypeError(
            f"train: recipe must be a Recipe, got {type(recipe).__name__}. lisse.training.RECIPES has the papers'."
        )
    if epochs is not None:
        recipe = dataclasses.replace(recipe, epochs=epochs)
    check_seed("train", seed)
    data = as_dataset(data)
    test = None if test is None else as_dataset(test)
    if recipe.batch is not None and recipe.batch > len(data):
        raise ValueError(
            f"train: batch must not exceed the {len(data)} samples of {data.name!r}, got {recipe.batch}. Make it "
            "smaller, or None for all of them."
        )
    for callback in (callbacks := tuple(callbacks)):
        if not callable(callback):
            raise TypeError(f"train: callbacks must be callable with a Moment, got {callback!r}. Give a function.")
    for penalty in (penalties := tuple(penalties)):
        if not isinstance(penalty, Penalty):
            raise TypeError(
                f"train: penalties must be Penalty(function, weight, layers), got {type(penalty).__name__}. Wrap it."
            )
    names = [penalty.name for penalty in penalties]
    taken = {"epoch", "step", "loss", "total", "accuracy", "lr", "seconds", "test_loss", "test_accuracy"}
    if len(set(names)) < len(names) or taken & set(names):
        raise ValueError(
            f"train: penalties must have different names, none of {', '.join(sorted(taken))}, got {', '.join(names)}. "
            "Give name=…"
        )
    crops, more = _augmentation(augment, recipe, data)
    _check_finite(model, data, test)
    classes = _classes(model, data, "data")
    if test is not None:
        _classes(model, test, "test")
    own = _own_loss(model, data) if loss is None else None
    labels = own is None and all(_are_labels(some, classes) for some in (data, test) if some is not None)
    for which, some in (("data", data), ("test", test)):
        if some is not None and own is None:
            _check_targets(which, some, classes, loss)
    if own is not None:
        loss, said_loss = _never, "of the network"
        if recipe.label_smoothing:
            raise ValueError(
                f"train: label_smoothing must be 0 for {type(taps.plain(model)).__name__}, which brings its own loss, "
                f"got {recipe.label_smoothing}. It belongs to the cross-entropy."
            )
    elif loss is None:
        loss = functools.partial(nn.functional.cross_entropy, label_smoothing=recipe.label_smoothing)
        said_loss = "cross_entropy"
    else:
        if not callable(loss):
            raise TypeError(f"train: loss must be callable with (output, targets), got {loss!r}. Give a function.")
        said_loss = described(loss)
        loss = _single(loss)
        if recipe.label_smoothing:
            raise ValueError(
                "train: label_smoothing must be 0 where a loss is given, got "
                f"{recipe.label_smoothing}. It belongs to the cross-entropy."
            )
    reader = Reader(model, penalties, _example(model, data)) if penalties else None
    found = head_of(model, head)[1] if recipe.head_lr is not None or head is not None else None
    config = {
        "format": 1,
        "model": _model_config(model),
        "data": _data_config(data),
        "test": None if test is None else _data_config(test),
        "recipe": dataclasses.asdict(recipe),
        "seed": seed,
        "loss": said_loss,
        "penalties": {
            penalty.name: {
                "weight": penalty.weight,
                "layers": list(penalty.layers),
                "function": described(penalty.function),
            }
            for penalty in penalties
        },
        "augment": [described(one) for one in ((crops,) if crops else ()) + more],
        "precision": precision or "32-true",
        "head": head,
        "_versions": {"lisse": lisse.__version__, "torch": str(torch.__version__)},
    }
    return Plan(model, data, test, recipe, seed, loss, reader, crops, more, callbacks, found, labels, config, own)


def output_of(output: Any) -> Any:
    """A network's scores: the tensor itself, or ``logits`` (or the first entry) of what transformers returns."""
    if isinstance(output, Tensor) or not hasattr(output, "keys"):
        return output
    return output[next((key for key in ("logits", "last_hidden_state") if key in output), next(iter(output)))]


def _augmentation(
    augment: Augment | Sequence[Augment] | str | None, recipe: Recipe, data: Dataset
) -> tuple[CropFlip | None, tuple[Any, ...]]:
    chosen: Any
    if augment == "recipe":
        chosen = (recipe.augmentation,) if recipe.augmentation is not None else ()
    elif augment is None:
        chosen = ()
    else:
        chosen = tuple(augment) if isinstance(augment, (tuple, list)) else (augment,)
    images = isinstance(data.inputs, Tensor) and data.inputs.ndim == 4
    if chosen and not images:
        raise ValueError(
            f"train: augment must be left out for data that are no images, got it for {data!r}. Give augment=None, or "
            "a recipe without crop and flip."
        )
    crops = [one for one in chosen if isinstance(one, CropFlip)]
    more = tuple(one for one in chosen if not isinstance(one, CropFlip))
    if len(crops) > 1 or (crops and chosen[0] is not crops[0]) or not all(callable(one) for one in more):
        raise ValueError(
            f"train: augment must be one CropFlip, then functions of images, got {chosen!r}. Put CropFlip first."
        )
    return (crops[0] if crops else None), more


def _example(model: nn.Module, data: Dataset) -> Any:
    batch = next(data.batches(min(3, len(data)), 0, min(3, len(data))))
    return taps.prepared(model, batch.inputs)


def _check_finite(model: nn.Module, data: Dataset, test: Dataset | None) -> None:
    """A number that is none would only be seen as a divergence, steps later and without its place."""
    for name, weight in model.named_parameters():
        if weight.is_floating_point() and not bool(torch.isfinite(weight.detach()).all()):
            raise ValueError(f"train: model must have finite weights, got nan or inf in {name}. Load it anew.")
    for which, some in (("data", data), ("test", test)):
        if some is None:
            continue
        parts = list(some.inputs.values()) if isinstance(some.inputs, dict) else [some.inputs]
        for part in [*parts, *([] if some.targets is None else [some.targets])]:
            if part.is_floating_point() and not bool((fine := torch.isfinite(part)).all()):
                sample = int(fine.reshape(len(part), -1).all(1).logical_not().nonzero()[0])
                raise ValueError(
                    f"train: {which} must hold finite numbers, got nan or inf in sample {sample} of {some.name!r}. "
                    "Leave it out, or mend it."
                )


def _own_loss(model: nn.Module, data: Dataset) -> taps.Tap | None:
    """Where a network puts its own loss: ``loss`` in its output, or in that of the network inside a normalised one."""
    example, root = _example(model, data), taps.plain(model)
    names = {name for name, _ in root.named_modules()}
    for module in ("", "network"):
        tap = taps.Tap("loss", module, path=("loss",))
        seen: list[Tensor] = []
        if module not in names:
            continue

        def on(_: taps.Tap, value: Tensor, seen: list[Tensor] = seen) -> None:
            seen.append(value)

        with taps.still(model, seed=0):
            try:
                with taps.tapped(model, [tap], on) as running:
                    taps.feed(running, example)
            except RuntimeError:  # there is no tensor of that name
                continue
        if [value.ndim for value in seen] == [0]:
            return tap
    return None


def _never(output: Any, targets: Any) -> Tensor:
    raise RuntimeError("train: the network brings its own loss")


def _single(loss: Loss) -> Loss:
    """A loss that is seen to give one number."""

    def single(output: Any, targets: Any) -> Tensor:
        value = loss(output, targets)
        if not isinstance(value, Tensor) or value.numel() != 1:
            got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"train: loss must return one number as a tensor, got {got}. Take the mean over samples.")
        return value.reshape(())

    return single


def _classes(model: nn.Module, data: Dataset, which: str) -> int | None:
    """Run the network on a few samples: the number of its scores, or ``None`` where it gives no matrix."""
    with taps.still(model, seed=0) as root:
        try:
            output = output_of(taps.feed(root, _example(model, data)))
        except (RuntimeError, TypeError, IndexError, ValueError) as error:
            size = getattr(getattr(model, "lisse", None), "input_size", None)
            takes = f", which takes {list(size)}" if size else ""
            shapes = (
                {key: list(part.shape[1:]) for key, part in data.inputs.items()}
                if isinstance(data.inputs, dict)
                else list(data.inputs.shape[1:])
            )
            text = (str(error).splitlines() or [""])[0][:160]
            raise ValueError(
                f"train: {which} must fit the model{takes}, got samples of {shapes} ({text.rstrip('.')}). Images of "
                "one channel and 28 × 28 need ?in_channels=1&size=28 in a zoo spec."
            ) from error
    return int(output.shape[1]) if isinstance(output, Tensor) and output.ndim == 2 else None


def _are_labels(data: Dataset, classes: int | None) -> bool:
    """Whether accuracy means something: one class per sample, out of those that the network scores."""
    targets = data.targets
    if targets is None or classes is None or targets.ndim != 1 or targets.dtype != torch.int64:
        return False
    return int(targets.min()) >= 0 and int(targets.max()) < classes


def _check_targets(which: str, data: Dataset, classes: int | None, loss: Loss | None) -> None:
    if loss is not None:
        return  # a loss of one's own reads what it likes
    targets = data.targets
    if targets is None:
        raise ValueError(
            f"train: {which} must have targets, got {data.name!r} without any. Give labels, or loss=… that needs none."
        )
    if targets.is_floating_point() or targets.ndim != 1 or targets.dtype == torch.bool:
        raise ValueError(
            f"train: {which} must have one integer label per sample for the cross-entropy, got {targets.dtype} of shape"
            f" {tuple(targets.shape)}. Give loss=… for other targets."
        )
    if classes is None:
        raise ValueError(
            "train: model must give a row of scores per sample for the cross-entropy, got something else. Give loss=…"
        )
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= classes:
        more = f"; lisse.training.with_classes(model, {high + 1}) or --classes {high + 1} replaces the classifier"
        raise ValueError(
            f"train: {which} must have labels in 0 … {classes - 1}, the model's {classes} classes, got {low} … {high} "
            f"in {data.name!r}. Labels count from 0{more if low >= 0 else ''}."
        )


def _model_config(model: nn.Module) -> dict[str, Any]:
    card: Any = getattr(model, "lisse", None)
    root = taps.plain(model)
    state = root.state_dict()
    shape = hashlib.blake2b(digest_size=12)
    for name, tensor in state.items():
        if isinstance(tensor, Tensor):
            shape.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
    said: dict[str, Any] = {"network": type(root).__qualname__, "parameters": shape.hexdigest()}
    if getattr(card, "architecture", ""):
        # Made from a spec: the same spec gives the same weights. Those of other modules may differ from start to start.
        said |= {"name": card.name, "architecture": card.architecture, "weights": weights_digest(root)}
        said |= {"mean": card.mean, "std": card.std, "_spec": card.spec}
    return said


def weights_digest(model: nn.Module) -> str:
    """A hash of all weights and buffers."""
    digest = hashlib.blake2b(digest_size=12)
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, Tensor):
            digest.update(name.encode())
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
    return digest.hexdigest()


def _data_config(data: Dataset) -> dict[str, Any]:
    return {"_name": data.name, "samples": len(data), "fingerprint": data.fingerprint()}


def folder_path(out: str | Path | None) -> Path | None:
    """``out`` as a path, if a folder can be there."""
    if out is None:
        return None
    path = Path(out).expanduser()
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"train: out must be a folder, got the file {path}. Choose another place.")
    return path
