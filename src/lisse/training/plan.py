"""What a training is asked to do, checked before any work, and said in JSON so that a rerun can be told apart."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

import lisse
from lisse import taps
from lisse.data import Dataset, as_dataset
from lisse.data.augmentation import CropFlip
from lisse.data.dataset import check_seed
from lisse.identity import function_identity, hash_tensor
from lisse.networks.answers import answer_of, are_classes
from lisse.networks.attack import Adversary
from lisse.networks.cap import Cap
from lisse.training.feed import Augment
from lisse.training.heads import head_of
from lisse.training.overfitting import WATCHED
from lisse.training.penalty import Penalty, Reader, penalty_of
from lisse.training.recipes import Recipe
from lisse.training.result import Callback

Loss = Callable[[Any, Any], Tensor]


class Lesson(Protocol):
    """What a batch becomes before the network sees it, and the loss of the answers to that.

    :class:`lisse.networks.attack.Adversary`, :class:`lisse.networks.augmix.AugMix`, or one of your own.
    """

    def views(self, network: Callable[[Tensor], Any], x: Tensor, y: Tensor | None) -> Tensor:
        """A whole number of views of ``x`` ``[n, …]`` below each other: ``[k n, …]``."""

    def task(self, output: Tensor, y: Tensor, loss: Loss) -> Tensor:
        """The loss of the answers ``[k n, …]``, by ``loss`` of those to one view: one number."""


@dataclass(frozen=True)
class TrainingPlan:
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
    lesson: Lesson | None = None
    cap: Cap | None = None
    loss_tap: taps.Tap | None = None  # where a network that brings its own loss gives it

    def outcome(self, network: nn.Module, inputs: Any) -> tuple[Any, Tensor | None]:
        """The network's scores, and the loss that it brings itself (a masked autoencoder), where it does."""
        if self.loss_tap is None:
            return answer_of(taps.feed(network, inputs)), None
        losses: list[Tensor] = []
        with taps.tapped(self.model, [self.loss_tap], lambda _, value: losses.append(value)):
            output = answer_of(taps.feed(network, inputs))
        return output, losses[-1]


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
    lesson: Lesson | Literal["recipe"] | None = "recipe",
) -> TrainingPlan:
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
    penalties = _checked_penalties([*map(penalty_of, recipe.penalties), *penalties])
    crops, more = _augmentation(augment, recipe, data)
    _check_finite(model, data, test)
    classes = _classes(model, data, "data")
    if test is not None:
        _classes(model, test, "test")
    loss_tap = _inner_loss(model, data) if loss is None else None
    sets = [("data", data), *([] if test is None else [("test", test)])]
    labels = loss_tap is None and all(are_classes(part.targets, classes or 0) for _, part in sets)
    if loss_tap is None and loss is None:
        for which, part in sets:
            _check_targets(which, part, classes)
    lesson = _lesson(lesson, recipe, data, labels=labels)
    if any(penalty.inputs for penalty in penalties) and not _moves(data):
        raise ValueError(
            f"train: penalties on gradients by the input must have images or vectors of numbers, got {data!r}. Leave "
            "them out."
        )
    loss, loss_name = _loss(model, recipe, loss, loss_tap)
    reader = Reader(model, penalties, _example(model, data)) if penalties else None
    cap = None if recipe.lipschitz is None else Cap(model, _example(model, data), recipe.lipschitz)
    classifier = head_of(model, head)[1] if recipe.head_lr is not None or head is not None else None
    config = {
        "format": 1,
        "model": _model_config(model),
        "data": _data_config(data),
        "test": None if test is None else _data_config(test),
        "recipe": dataclasses.asdict(recipe),
        "seed": seed,
        "loss": loss_name,
        "penalties": {
            penalty.name: {
                "weight": penalty.weight,
                "layers": list(penalty.layers),
                "function": function_identity(penalty.function),
            }
            for penalty in penalties
        },
        **({} if lesson is None else {"lesson": function_identity(lesson)}),
        "augment": [function_identity(change) for change in ((crops,) if crops else ()) + more],
        "precision": precision or "32-true",
        "head": head,
        "_versions": {"lisse": lisse.__version__, "torch": str(torch.__version__)},
    }
    return TrainingPlan(
        model, data, test, recipe, seed, loss, reader, crops, more, callbacks, classifier, labels, config, lesson,
        cap, loss_tap,
    )  # fmt: skip


def _moves(data: Dataset) -> bool:
    """Whether samples are points that can be moved a little: images as bytes, or floats."""
    inputs = data.inputs
    return isinstance(inputs, Tensor) and (
        inputs.is_floating_point() or (inputs.dtype == torch.uint8 and inputs.ndim >= 3)
    )


def box_of(data: Dataset) -> tuple[float, float] | None:
    """The box in which samples may be moved: [0, 1] where they all lie in it, as images do; else ``None``."""
    inputs = data.inputs
    if isinstance(inputs, Tensor) and inputs.is_floating_point() and inputs.numel():
        low, high = (float(end) for end in inputs.aminmax())
        return (0.0, 1.0) if low >= 0 and high <= 1 else None
    return 0.0, 1.0


def _lesson(lesson: Lesson | str | None, recipe: Recipe, data: Dataset, *, labels: bool) -> Lesson | None:
    """The lesson of the recipe or of one's own, where it can be taught."""
    if lesson == "recipe":
        lesson = recipe.lesson(box_of(data))
    if lesson is None:
        return None
    if isinstance(lesson, str) or not (hasattr(lesson, "views") and hasattr(lesson, "task")):
        raise TypeError(
            f"train: lesson must have views(network, x, y) and task(output, y, loss), got {lesson!r}. "
            "lisse.networks.attack.Adversary is one."
        )
    name = type(lesson).__name__
    if not _moves(data):
        raise ValueError(f"train: data must be images or vectors of numbers for {name}, got {data!r}. Leave it out.")
    if not labels:
        raise ValueError(
            f"train: data must have a class for each sample for {name}, got {data!r}, whose targets are none. Give "
            "labels, or leave it out."
        )
    if isinstance(lesson, Adversary) and isinstance(data.inputs, Tensor):
        lesson.check(data.inputs if data.inputs.is_floating_point() else data.inputs[:1] / 255)
    return lesson


def _checked_penalties(penalties: Sequence[Penalty]) -> tuple[Penalty, ...]:
    """The penalties, each with a column of its own in the log."""
    for penalty in penalties:
        if not isinstance(penalty, Penalty):
            raise TypeError(
                f"train: penalties must be Penalty(function, weight, layers), got {type(penalty).__name__}. Wrap it."
            )
    names = [penalty.name for penalty in penalties]
    columns = {"epoch", "step", "loss", "total", "accuracy", "lr", "seconds", "test_loss", "test_accuracy", *WATCHED}
    if len(set(names)) < len(names) or columns & set(names):
        raise ValueError(
            f"train: penalties must have different names, none of {', '.join(sorted(columns))}, got "
            f"{', '.join(names)}. Give name=…"
        )
    return tuple(penalties)


def _loss(model: nn.Module, recipe: Recipe, loss: Loss | None, loss_tap: taps.Tap | None) -> tuple[Loss, str]:
    """The loss, and what it is in the run's config."""
    if loss_tap is None and loss is None:
        smoothed = functools.partial(nn.functional.cross_entropy, label_smoothing=recipe.label_smoothing)
        return smoothed, "cross_entropy"
    if loss_tap is None and not callable(loss):
        raise TypeError(f"train: loss must be callable with (output, targets), got {loss!r}. Give a function.")
    if recipe.label_smoothing:
        case = (
            f"for {type(taps.plain(model)).__name__}, which brings its own loss"
            if loss_tap
            else "where a loss is given"
        )
        raise ValueError(
            f"train: label_smoothing must be 0 {case}, got {recipe.label_smoothing}. It belongs to the cross-entropy."
        )
    return (_single(loss), function_identity(loss)) if loss is not None else (_never, "of the network")


def _augmentation(
    augment: Augment | Sequence[Augment] | str | None, recipe: Recipe, data: Dataset
) -> tuple[CropFlip | None, tuple[Any, ...]]:
    both = [change for change in (recipe.augmentation, recipe.deformation) if change is not None]
    changes: Any = both if augment == "recipe" else augment
    if not isinstance(changes, (tuple, list)):
        changes = () if changes is None else (changes,)
    images = isinstance(data.inputs, Tensor) and data.inputs.ndim == 4
    if changes and not images:
        raise ValueError(
            f"train: augment must be left out for data that are no images, got it for {data!r}. Give augment=None, or "
            "a recipe without crop and flip."
        )
    crops = [change for change in changes if isinstance(change, CropFlip)]
    more = tuple(change for change in changes if not isinstance(change, CropFlip))
    if len(crops) > 1 or (crops and changes[0] is not crops[0]) or not all(map(callable, more)):
        raise ValueError(
            f"train: augment must be one CropFlip, then functions of images, got {(*changes,)!r}. Put CropFlip first."
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
    for which, samples in (("data", data), ("test", test)):
        if samples is None:
            continue
        parts = list(samples.inputs.values()) if isinstance(samples.inputs, dict) else [samples.inputs]
        for part in [*parts, *([] if samples.targets is None else [samples.targets])]:
            if part.is_floating_point() and not bool((fine := torch.isfinite(part)).all()):
                sample = int(fine.reshape(len(part), -1).all(1).logical_not().nonzero()[0])
                raise ValueError(
                    f"train: {which} must hold finite numbers, got nan or inf in sample {sample} of {samples.name!r}. "
                    "Leave it out, or mend it."
                )


def _inner_loss(model: nn.Module, data: Dataset) -> taps.Tap | None:
    """Where a network puts its own loss: ``loss`` in its output, or in that of the network inside a normalised one."""
    example, root = _example(model, data), taps.plain(model)
    names = {name for name, _ in root.named_modules()}
    for module in ("", "network"):
        tap = taps.Tap("loss", module, path=("loss",))
        losses: list[Tensor] = []
        if module not in names:
            continue

        def on(_: taps.Tap, value: Tensor, losses: list[Tensor] = losses) -> None:
            losses.append(value)

        with taps.still(model, seed=0):
            try:
                with taps.tapped(model, [tap], on) as running:
                    taps.feed(running, example)
            except RuntimeError:  # there is no tensor of that name
                continue
        if [value.ndim for value in losses] == [0]:
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
            output = answer_of(taps.feed(root, _example(model, data)))
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


def _check_targets(which: str, data: Dataset, classes: int | None) -> None:
    """What the cross-entropy needs; a loss of one's own reads what it likes."""
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
    config: dict[str, Any] = {"network": type(root).__qualname__, "parameters": shape.hexdigest()}
    if getattr(card, "architecture", ""):
        # Made from a spec: the same spec gives the same weights. Those of other modules may differ from start to start.
        config |= {"name": card.name, "architecture": card.architecture, "weights": weights_digest(root)}
        config |= {"mean": card.mean, "std": card.std, "_spec": card.spec}
    return config


def weights_digest(model: nn.Module) -> str:
    """A hash of all weights and buffers."""
    digest = hashlib.blake2b(digest_size=12)
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, Tensor):
            digest.update(name.encode())
            hash_tensor(digest, tensor)
    return digest.hexdigest()


def _data_config(data: Dataset) -> dict[str, Any]:
    return {"_name": data.name, "samples": len(data), "fingerprint": data.tensor_fingerprint()}


def folder_path(out: str | Path | None) -> Path | None:
    """``out`` as a path, if a folder can be there."""
    if out is None:
        return None
    path = Path(os.path.expanduser(out))
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"train: out must be a folder, got the file {path}. Choose another place.")
    return path
