"""as_dataset: whatever a person holds in Python becomes a Dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lisse.data.dataset import Batch, Dataset

#: Inputs of a text model that are not data of their own and carry the valid tokens.
MASK = "attention_mask"
TARGET_KEYS = ("labels", "label", "targets", "target")


def as_dataset(thing: Any, *, name: str | None = None, limit: int | None = None, max_bytes: int = 8 << 30) -> Dataset:
    """``thing`` as a :class:`Dataset`.

    - a Dataset: itself (cut to ``limit``);
    - a tensor or array, samples first; nested lists of numbers;
    - a tuple ``(inputs, targets)``;
    - a dict of tensors or a Hugging Face ``BatchEncoding``: ``attention_mask`` gives the lengths (padding must be on
      the right), ``labels`` or ``targets`` the targets;
    - a torch ``Dataset`` (of samples), a ``DataLoader`` or any iterable of batches (each of the forms above), collected
      in memory: its first ``limit`` samples, or an error beyond ``max_bytes``.

    ``name`` is what reports call it, by default the type's name.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise ValueError(
            f"as_dataset: limit must be a positive integer or None, got {limit!r}. Leave it out to take all."
        )
    label = name or (thing.name if isinstance(thing, Dataset) else type(thing).__name__)
    if isinstance(thing, Dataset):
        data = thing if name in (None, thing.name) else _renamed(thing, label)
    elif isinstance(thing, torch.utils.data.Dataset):
        data = _collected(([_sample(item)] for item in _items(thing)), label, limit, max_bytes, stacked=True)
    elif _is_value(thing) or isinstance(thing, tuple | Mapping):
        data = _whole(thing, label)
    elif isinstance(thing, str | bytes):
        raise TypeError(
            f"as_dataset: thing must be data, got the string {thing[:60]!r}. lisse.load_data reads specs and files."
        )
    elif isinstance(thing, Iterable):
        data = _collected(([item] for item in thing), label, limit, max_bytes, stacked=False)
    else:
        raise TypeError(
            f"as_dataset: thing must be a tensor, an array, (inputs, targets), a dict of tensors, a torch Dataset or a "
            f"DataLoader, got {type(thing).__name__}. Convert it to one of these."
        )
    return data.take(limit) if limit is not None and limit < len(data) else data


def _renamed(data: Dataset, name: str) -> Dataset:
    return Dataset(name, data.inputs, data.targets, data.lengths, data.partner, data.classes)


def _is_value(thing: Any) -> bool:
    """Whether ``thing`` alone is one tensor's worth of numbers."""
    if isinstance(thing, Tensor | np.ndarray):
        return True
    while isinstance(thing, list) and thing:
        thing = thing[0]
    return isinstance(thing, bool | int | float | np.number)


def _is_image(thing: Any) -> bool:
    return hasattr(thing, "convert") and hasattr(thing, "mode") and hasattr(thing, "size")


def as_tensor(value: Any, what: str = "thing") -> Tensor:
    """A tensor, array, nested list or PIL image as a tensor (no copy where possible); float64 stays float64."""
    if isinstance(value, Tensor):
        return value.detach()
    if _is_image(value):
        pixels = np.array(value if value.mode in ("L", "RGB") else value.convert("RGB"))
        return torch.from_numpy(pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1)))
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(
            f"as_dataset: {what} must be rectangular, got rows of different sizes. Pad or crop them."
        ) from error
    if array.dtype.hasobject or array.dtype.kind not in "biufc":
        raise TypeError(
            f"as_dataset: {what} must hold numbers, got dtype {array.dtype}. Text goes through load_data('text:FILE')."
        )
    if array.dtype.byteorder not in ("=", "|"):
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array)


def _whole(thing: Any, name: str) -> Dataset:
    """One value, pair or dict that holds all samples."""
    inputs, targets, lengths = _parts(thing)
    return Dataset(name, inputs, targets, lengths)


def _parts(thing: Any) -> tuple[Tensor | dict[str, Tensor], Tensor | None, Tensor | None]:
    """Inputs, targets and lengths of one batch in any of the accepted forms."""
    if isinstance(thing, Batch):
        thing = (thing.inputs, thing.targets)
    if isinstance(thing, tuple | list) and not _is_value(thing):
        if not 1 <= len(thing) <= 2:
            raise ValueError(
                f"as_dataset: a tuple must be (inputs, targets), got {len(thing)} items. Choose the two to use."
            )
        inputs, targets = thing[0], (thing[1] if len(thing) == 2 else None)
        if isinstance(inputs, Mapping):
            found, inner, lengths = _parts(inputs)
            return found, as_tensor(targets, "targets") if targets is not None else inner, lengths
        return as_tensor(inputs, "inputs"), None if targets is None else as_tensor(targets, "targets"), None
    if isinstance(thing, Mapping):
        named = {str(key): as_tensor(value, str(key)) for key, value in thing.items() if value is not None}
        targets = next((named.pop(key) for key in TARGET_KEYS if key in named), None)
        lengths = mask_lengths(named[MASK]) if MASK in named else None
        return named, targets, lengths
    return as_tensor(thing, "inputs"), None, None


def mask_lengths(mask: Tensor) -> Tensor:
    """The count of ones in each row of a padding mask ``[n, t]`` that has its ones first."""
    if mask.ndim != 2:
        raise ValueError(
            f"as_dataset: {MASK} must be [samples, tokens], got shape {tuple(mask.shape)}. One row per sample."
        )
    lengths = (mask != 0).sum(1)
    if not torch.equal(mask != 0, torch.arange(mask.shape[1], device=mask.device)[None] < lengths[:, None]):
        row = int(
            ((mask != 0) != (torch.arange(mask.shape[1], device=mask.device)[None] < lengths[:, None]))
            .any(1)
            .nonzero()[0]
        )
        raise ValueError(
            f"as_dataset: {MASK} must have its ones first, got a row with padding before a token (sample {row}). "
            "Use tokenizer(…, padding_side='right')."
        )
    return lengths


def _items(dataset: Any) -> Iterable[Any]:
    """The samples of a torch dataset: by index where it has a length, else by iteration."""
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        return (dataset[index] for index in range(len(dataset)))
    return iter(dataset)


def _sample(item: Any) -> Any:
    """A lone sample as a batch of one."""
    if isinstance(item, Mapping):
        return {key: _one(value) for key, value in item.items()}
    if isinstance(item, tuple | list) and not _is_value(item):
        first = _sample(item[0]) if isinstance(item[0], Mapping) else _one(item[0])
        return (first, *(_one(value) for value in item[1:]))
    return _one(item)


def _one(value: Any) -> Tensor:
    return as_tensor(value, "a sample")[None]


def _collected(
    groups: Iterable[Sequence[Any]], name: str, limit: int | None, max_bytes: int, *, stacked: bool
) -> Dataset:
    """Batches put one after the other, within bounds."""
    kept: list[tuple[dict[str, Tensor], Tensor | None, Tensor | None]] = []
    count, size, single = 0, 0, True
    for group in groups:
        for item in group:
            inputs, targets, lengths = _parts(item)
            single = isinstance(inputs, Tensor)
            named = inputs if isinstance(inputs, dict) else {"inputs": inputs}
            named = {key: value.cpu() for key, value in named.items()}
            count += len(next(iter(named.values())))
            size += sum(value.numel() * value.element_size() for value in named.values())
            if size > max_bytes:
                raise ValueError(
                    f"as_dataset: {name} must fit in max_bytes={max_bytes:,}, got more after {count:,} samples. "
                    "Give limit= (how many samples to take) or a larger max_bytes."
                )
            kept.append((named, targets, lengths))
        if limit is not None and count >= limit:
            break
    if not kept:
        raise ValueError(
            f"as_dataset: {name} must hold at least one sample, got none. An iterator can be used only once."
        )
    what = "sample" if stacked else "batch"
    first = kept[0][0]
    masked = MASK in first  # then padding batch by batch is known as padding
    joined = {key: _joined([_key(named, key, what) for named, _, _ in kept], key, what, pad=masked) for key in first}
    targets = None if kept[0][1] is None else _joined([t for _, t, _ in kept if t is not None], "targets", what)
    lengths = None if kept[0][2] is None else _joined([n for _, _, n in kept if n is not None], "lengths", what)
    return Dataset(name, joined["inputs"] if single else joined, targets, lengths)


def _key(named: dict[str, Tensor], key: str, what: str) -> Tensor:
    if key not in named:
        raise ValueError(
            f"as_dataset: every {what} must have {key!r}, got one with {sorted(named)}. Use the same keys throughout."
        )
    return named[key]


def _joined(values: list[Tensor], key: str, what: str, *, pad: bool = False) -> Tensor:
    shapes = {(tuple(value.shape[1:]), value.dtype) for value in values}
    if len(shapes) > 1 and pad and all(v.ndim == 2 and not v.is_floating_point() for v in values):
        width = max(value.shape[1] for value in values)  # tokens, padded batch by batch: pad to the longest
        values = [torch.nn.functional.pad(value, (0, width - value.shape[1])) for value in values]
    elif len(shapes) > 1:
        seen = ", ".join(f"{list(shape)} {dtype}" for shape, dtype in sorted(shapes, key=str)[:3])
        raise ValueError(
            f"as_dataset: {key} must have one shape and dtype in every {what}, got {seen}. "
            "Resize, crop or pad them alike."
        )
    return torch.cat(values)
