"""as_dataset: whatever a person holds in Python becomes a Dataset."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sized
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from lisse.data.dataset import Batch, Dataset, check_seed
from lisse.data.pixels import eight_bits
from lisse.data.request import Request

#: Inputs of a text model that are not data of their own and carry the valid tokens.
MASK = "attention_mask"
TARGET_KEYS = ("labels", "label", "targets", "target")


def as_dataset(
    thing: Any, *, name: str | None = None, limit: int | None = None, seed: int | None = None, max_bytes: int = 8 << 30
) -> Dataset:
    """``thing`` as a :class:`Dataset`.

    - a Dataset: itself (cut to ``limit``);
    - a tensor or array, samples first; nested lists of numbers;
    - a tuple ``(inputs, targets)``; several inputs go into a dict;
    - a dict of tensors or a Hugging Face ``BatchEncoding``: ``attention_mask`` gives the lengths (padding must be on
      the right), ``labels`` or ``targets`` the targets; text in it is left out;
    - a torch ``Dataset``, or a list or iterable of samples (``(image, 5)``, a PIL image);
    - a ``DataLoader`` or any iterable of batches (each of the forms above). All of these are collected in memory.

    At most ``limit`` samples are taken: the first ones, or with a ``seed`` those that ``Dataset.sample`` would draw. Of
    a torch Dataset (or a DataLoader that keeps the order of one) only these are read. Other iterables are read no
    further than ``limit`` samples: they cannot be drawn from without reading all, so with a ``seed`` a warning says
    that these are the first ones. More than ``max_bytes`` is an error. ``name`` is what reports call it, by default the
    type's name. The global random state is left as it was.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise ValueError(
            f"as_dataset: limit must be a positive integer or None, got {limit!r}. Leave it out to take all."
        )
    if seed is not None:
        check_seed("as_dataset", seed)
    label = name or (thing.name if isinstance(thing, Dataset) else type(thing).__name__)
    if isinstance(thing, Dataset):
        data = thing if name in (None, thing.name) else _renamed(thing, label)
    elif _is_value(thing) or isinstance(thing, tuple | Mapping):
        data = _whole(thing, label)
    elif isinstance(thing, str | bytes):
        raise TypeError(
            f"as_dataset: thing must be data, got the string {thing[:60]!r}. lisse.load_data reads specs and files."
        )
    elif isinstance(thing, Iterable | torch.utils.data.Dataset):
        with torch.random.fork_rng(devices=[]):  # a DataLoader draws from the global state when it is iterated over
            data = _collected(*_batches(thing, Request(limit=limit, seed=seed), label), label, max_bytes)
    else:
        raise TypeError(
            f"as_dataset: thing must be a tensor, an array, (inputs, targets), a dict of tensors, a torch Dataset or a "
            f"DataLoader, got {type(thing).__name__}. Convert it to one of these."
        )
    return Request(limit=limit, seed=seed).cut(data)


def _batches(thing: Any, request: Request, name: str) -> tuple[Iterable[Any], int | None]:
    """What is to be collected, and after how many samples to stop."""
    if isinstance(thing, torch.utils.data.DataLoader):
        if (count := _ordered(thing)) is not None:
            chosen = request.choose(count)
            if chosen is None:
                return thing, None
            groups = chosen.split(thing.batch_size or 1)
            return (thing.collate_fn([thing.dataset[index] for index in group.tolist()]) for group in groups), None
    elif isinstance(thing, torch.utils.data.Dataset) and _has_length(thing):
        count = len(cast(Sized, thing))
        chosen = request.choose(count)
        return (_sample(thing[index]) for index in (range(count) if chosen is None else chosen.tolist())), None
    elif isinstance(thing, list):
        return (_sample(item) if _is_sample(item) else item for item in thing), None
    if request.limit is not None and request.seed is not None:
        warnings.warn(
            f"as_dataset: {name} can only be read in its order, so limit={request.limit} takes its first samples. "
            "A torch Dataset with a length can be drawn from at random.",
            stacklevel=3,
        )
    alone = isinstance(thing, torch.utils.data.Dataset)
    return (_sample(item) if alone or _is_sample(item) else item for item in iter(thing)), request.limit


def _has_length(thing: Any) -> bool:
    return hasattr(thing, "__len__") and not isinstance(thing, torch.utils.data.IterableDataset)


def _ordered(loader: torch.utils.data.DataLoader[Any]) -> int | None:
    """How many samples ``loader`` goes through, if they are those of its dataset in order."""
    if type(loader.sampler) is not torch.utils.data.SequentialSampler or loader.batch_size is None:
        return None
    if type(loader.batch_sampler) is not torch.utils.data.BatchSampler:
        return None
    count = len(loader.sampler)
    return count // loader.batch_size * loader.batch_size if loader.drop_last else count


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


def _is_scalar(thing: Any) -> bool:
    return isinstance(thing, bool | int | float | np.number) or (isinstance(thing, Tensor) and thing.ndim == 0)


def _is_sample(thing: Any) -> bool:
    """Whether ``thing`` can only be one sample: a picture, or something with a single number as its target."""
    if isinstance(thing, Mapping):
        return any(_is_scalar(thing[key]) for key in TARGET_KEYS if key in thing)
    if isinstance(thing, tuple | list) and not _is_value(thing) and len(thing) == 2:
        return _is_scalar(thing[1]) or _is_image(thing[0])
    return _is_image(thing)


def as_tensor(value: Any, what: str = "thing") -> Tensor:
    """A tensor, array, nested list or PIL image as a tensor (no copy where possible); float64 stays float64."""
    if isinstance(value, Tensor):
        return _signed(value.detach(), what)
    if _is_image(value):
        picture = eight_bits("as_dataset", what, value)
        pixels = np.array(picture if picture.mode in ("L", "RGB") else picture.convert("RGB"))
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
    if array.dtype.itemsize > (16 if array.dtype.kind == "c" else 8):
        array = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    if array.dtype.byteorder not in ("=", "|"):
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    return _signed(torch.from_numpy(array), what)


def _signed(value: Tensor, what: str) -> Tensor:
    """Unsigned integers beyond bytes as int64, since networks take no others; images of them are refused."""
    if value.dtype not in (torch.uint16, torch.uint32, torch.uint64):
        return value
    if value.ndim > 2:
        raise ValueError(
            f"as_dataset: {what} must be bytes (uint8) or floats in [0, 1] for images, got {value.dtype}. "
            "Which value is white is not known: 16 bits in full use become bytes by (x / 257).round()."
        )
    return value.long()


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
        _check_single(inputs, targets)
        return as_tensor(inputs, "inputs"), None if targets is None else as_tensor(targets, "targets"), None
    if isinstance(thing, Mapping):
        kept = {str(key): value for key, value in thing.items() if value is not None and not _is_text(value)}
        named = {key: as_tensor(value, key) for key, value in kept.items()}
        if not named:
            raise TypeError(
                f"as_dataset: a dict must hold tensors or numbers, got only text or nothing in {sorted(thing)}. "
                "Text goes through load_data('text:FILE')."
            )
        targets = next((named.pop(key) for key in TARGET_KEYS if key in named), None)
        lengths = mask_lengths(named[MASK]) if MASK in named else None
        return named, targets, lengths
    return as_tensor(thing, "inputs"), None, None


def _is_text(value: Any) -> bool:
    """A string, or strings in a list: names and sentences that travel with a batch and are no input."""
    if isinstance(value, tuple | list) and value:
        return all(isinstance(item, str | bytes) for item in value)
    return isinstance(value, str | bytes)


def _check_single(inputs: Any, targets: Any) -> None:
    """Refuse several inputs in a tuple or list: which argument each one is can only be said by name."""
    if not isinstance(inputs, tuple | list) or not any(
        isinstance(item, Tensor | np.ndarray | Mapping) for item in inputs
    ):
        return
    count = len(targets) if isinstance(targets, tuple | list) or np.ndim(targets) else None
    alike = len({tuple(getattr(item, "shape", ())) for item in inputs}) == 1
    if isinstance(inputs, list) and alike and len(inputs) == count and tuple(inputs[0].shape[:1]) != (count,):
        return  # one tensor per sample
    raise TypeError(
        f"as_dataset: inputs must be one tensor or a dict of tensors, got {len(inputs)} in a {type(inputs).__name__}. "
        "Name several inputs by the model's arguments: ({'a': x1, 'b': x2}, targets); stack samples with torch.stack."
    )


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


def _sample(item: Any) -> Any:
    """A lone sample as a batch of one."""
    if isinstance(item, Mapping):
        return {key: _one(value) for key, value in item.items() if value is not None and not _is_text(value)}
    if isinstance(item, tuple | list) and not _is_value(item):
        _check_single(item[0], None)
        first = _sample(item[0]) if isinstance(item[0], Mapping) else _one(item[0])
        return (first, *(_one(value) for value in item[1:]))
    return _one(item)


def _one(value: Any) -> Tensor:
    return as_tensor(value, "a sample")[None]


#: What Python and torch need for a batch besides its numbers; counted, so that many tiny ones are bounded too.
OVERHEAD = 1 << 10


def _collected(batches: Iterable[Any], stop: int | None, name: str, max_bytes: int) -> Dataset:
    """Batches put one after the other, within bounds."""
    kept: list[tuple[dict[str, Tensor], Tensor | None, Tensor | None]] = []
    count, size, single = 0, 0, True
    for item in batches:
        inputs, targets, lengths = _parts(item)
        single = isinstance(inputs, Tensor)
        named = inputs if isinstance(inputs, dict) else {"inputs": inputs}
        named = {key: value.cpu() for key, value in named.items()}
        if lone := [key for key, value in named.items() if value.ndim == 0]:
            raise ValueError(
                f"as_dataset: every batch of {name} must have samples as its first axis, "
                f"got a single number for {lone[0]!r}. Use x[None], or leave it out."
            )
        count += len(next(iter(named.values())))
        size += OVERHEAD + sum(value.numel() * value.element_size() for value in named.values())
        if size > max_bytes:
            raise ValueError(
                f"as_dataset: {name} must fit in max_bytes={max_bytes:,}, got more after {count:,} samples. "
                "Give limit= (how many samples to take) or a larger max_bytes."
            )
        kept.append((named, targets, lengths))
        if stop is not None and count >= stop:
            break
    if not kept:
        raise ValueError(
            f"as_dataset: {name} must hold at least one sample, got none. An iterator can be used only once."
        )
    first = kept[0][0]
    masked = MASK in first  # then padding batch by batch is known as padding
    joined = {key: _joined([_key(named, key) for named, _, _ in kept], key, pad=masked) for key in first}
    targets = None if kept[0][1] is None else _joined([t for _, t, _ in kept if t is not None], "targets")
    lengths = None if kept[0][2] is None else _joined([n for _, _, n in kept if n is not None], "lengths")
    data = Dataset(name, joined["inputs"] if single else joined, targets, lengths)
    return data if stop is None or stop >= len(data) else data.take(stop)


def _key(named: dict[str, Tensor], key: str) -> Tensor:
    if key not in named:
        raise ValueError(
            f"as_dataset: every batch must have {key!r}, got one with {sorted(named)}. Use the same keys throughout."
        )
    return named[key]


def _joined(values: list[Tensor], key: str, *, pad: bool = False) -> Tensor:
    shapes = {(tuple(value.shape[1:]), value.dtype) for value in values}
    if len(shapes) > 1 and pad and all(v.ndim == 2 and not v.is_floating_point() for v in values):
        width = max(value.shape[1] for value in values)  # tokens, padded batch by batch: pad to the longest
        values = [torch.nn.functional.pad(value, (0, width - value.shape[1])) for value in values]
    elif len(shapes) > 1:
        seen = ", ".join(f"{list(shape)} {dtype}" for shape, dtype in sorted(shapes, key=str)[:3])
        raise ValueError(
            f"as_dataset: {key} must have one shape and dtype in every sample and batch, got {seen}. "
            "Resize, crop or pad them alike."
        )
    return torch.cat(values)
