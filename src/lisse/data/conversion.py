"""as_dataset: whatever a person holds in Python becomes a Dataset."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Mapping, Sized
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from lisse.data.dataset import Batch, Dataset
from lisse.data.images import eight_bits
from lisse.data.request import Request

#: Inputs of a text model that are not data of their own and carry the valid tokens.
MASK = "attention_mask"
TARGET_KEYS = ("labels", "label", "targets", "target")


def as_dataset(
    samples: Any,
    *,
    name: str | None = None,
    limit: int | None = None,
    seed: int | None = None,
    max_bytes: int = 8 << 30,
) -> Dataset:
    """``samples`` as a :class:`Dataset`.

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
    request = Request(limit=limit, seed=seed)
    request.check("as_dataset")
    label = name or (samples.name if isinstance(samples, Dataset) else type(samples).__name__)
    if isinstance(samples, Dataset):
        data = samples if name in (None, samples.name) else _renamed(samples, label)
    elif _is_value(samples) or isinstance(samples, tuple | Mapping):
        data = Dataset(label, *_parts(samples))
    elif isinstance(samples, str | bytes):
        raise TypeError(
            f"as_dataset: samples must be data, got the string {samples[:60]!r}. lisse.load_data reads specs and files."
        )
    elif isinstance(samples, Iterable | torch.utils.data.Dataset):
        with torch.random.fork_rng(devices=[]):  # a DataLoader draws from the global state when it is iterated over
            data = _collected(*_batches(samples, request, label), label, max_bytes)
    else:
        raise TypeError(
            f"as_dataset: samples must be a tensor, an array, (inputs, targets), a dict of tensors, a torch Dataset or "
            f"a DataLoader, got {type(samples).__name__}. Convert it to one of these."
        )
    return request.cut(data)


def _batches(samples: Any, request: Request, name: str) -> tuple[Iterable[Any], int | None]:
    """What is to be collected, and after how many samples to stop."""
    if isinstance(samples, torch.utils.data.DataLoader):
        if (count := _ordered(samples)) is not None:
            order = request.choose(count)
            if order is None:
                return samples, None
            groups = order.split(samples.batch_size or 1)
            return (samples.collate_fn([samples.dataset[index] for index in group.tolist()]) for group in groups), None
    elif isinstance(samples, torch.utils.data.Dataset) and _has_length(samples):
        count = len(cast(Sized, samples))
        order = request.choose(count)
        return (_sample(samples[index]) for index in (range(count) if order is None else order.tolist())), None
    elif isinstance(samples, list):
        _check_vectors(samples)
        return (_sample(item) if _is_sample(item) else item for item in samples), None
    if request.limit is not None and request.seed is not None:
        warnings.warn(
            f"as_dataset: {name} can only be read in its order, so limit={request.limit} takes its first samples. "
            "A torch Dataset with a length can be drawn from at random.",
            stacklevel=3,
        )
    alone = isinstance(samples, torch.utils.data.Dataset)
    return (_sample(item) if alone or _is_sample(item) else item for item in iter(samples)), request.limit


def _check_vectors(samples: list[Any]) -> None:
    """A list of vectors is one of batches of numbers; where their lengths differ it was meant to be something else."""
    if all(isinstance(item, Tensor | np.ndarray) and item.ndim == 1 for item in samples):
        lengths = list(dict.fromkeys(len(item) for item in samples))
        if len(lengths) > 1:
            raise ValueError(
                f"as_dataset: samples must have one shape, got vectors of {lengths[0]} and {lengths[1]} numbers. Pad "
                "them, or join them with torch.cat if each number is a sample."
            )


def _has_length(samples: Any) -> bool:
    return hasattr(samples, "__len__") and not isinstance(samples, torch.utils.data.IterableDataset)


def _ordered(loader: torch.utils.data.DataLoader[Any]) -> int | None:
    """How many samples ``loader`` goes through, if they are those of its dataset in order."""
    if type(loader.sampler) is not torch.utils.data.SequentialSampler or loader.batch_size is None:
        return None
    if type(loader.batch_sampler) is not torch.utils.data.BatchSampler:
        return None
    count = len(loader.sampler)
    return count // loader.batch_size * loader.batch_size if loader.drop_last else count


def _renamed(data: Dataset, name: str) -> Dataset:
    return dataclasses.replace(data, name=name)


def _is_value(samples: Any) -> bool:
    """Whether ``samples`` alone is one tensor's worth of numbers."""
    if isinstance(samples, Tensor | np.ndarray):
        return True
    while isinstance(samples, list) and samples:
        samples = samples[0]
    return isinstance(samples, bool | int | float | np.number)


def _is_image(samples: Any) -> bool:
    return hasattr(samples, "convert") and hasattr(samples, "mode") and hasattr(samples, "size")


def _is_scalar(samples: Any) -> bool:
    return isinstance(samples, bool | int | float | np.number) or (isinstance(samples, Tensor) and samples.ndim == 0)


def _is_sample(samples: Any) -> bool:
    """Whether ``samples`` can only be one sample: a picture, or something with a single number as its target."""
    if isinstance(samples, Mapping):
        return any(_is_scalar(samples[key]) for key in TARGET_KEYS if key in samples)
    if isinstance(samples, tuple | list) and not _is_value(samples) and len(samples) == 2:
        return _is_scalar(samples[1]) or _is_image(samples[0])
    return _is_image(samples)


def tensor_of(value: Any, label: str = "samples") -> Tensor:
    """A tensor, array, nested list or PIL image as a tensor (no copy where possible); float64 stays float64."""
    if isinstance(value, Tensor):
        return _signed(value.detach(), label)
    if _is_image(value):
        picture = eight_bits("as_dataset", label, value)
        pixels = np.array(picture if picture.mode in ("L", "RGB") else picture.convert("RGB"))
        return torch.from_numpy(pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1)))
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(
            f"as_dataset: {label} must be rectangular, got rows of different sizes. Pad or crop them."
        ) from error
    if array.dtype.hasobject or array.dtype.kind not in "biufc":
        raise TypeError(
            f"as_dataset: {label} must hold numbers, got dtype {array.dtype}. Text goes through load_data('text:FILE')."
        )
    if array.dtype.itemsize > (16 if array.dtype.kind == "c" else 8):
        array = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    if array.dtype.byteorder not in ("=", "|"):
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    return _signed(torch.from_numpy(array), label)


def _signed(value: Tensor, label: str) -> Tensor:
    """Unsigned integers beyond bytes as int64, since networks take no others; images of them are refused."""
    if value.dtype not in (torch.uint16, torch.uint32, torch.uint64):
        return value
    if value.ndim > 2:
        raise ValueError(
            f"as_dataset: {label} must be bytes (uint8) or floats in [0, 1] for images, got {value.dtype}. "
            "Which value is white is not known: 16 bits in full use become bytes by (x / 257).round()."
        )
    return value.long()


def _parts(samples: Any) -> tuple[Tensor | dict[str, Tensor], Tensor | None, Tensor | None]:
    """Inputs, targets and lengths of one batch in any of the accepted forms."""
    if isinstance(samples, Batch):
        samples = (samples.inputs, samples.targets)
    if isinstance(samples, tuple | list) and not _is_value(samples):
        if not 1 <= len(samples) <= 2:
            raise ValueError(
                f"as_dataset: a tuple must be (inputs, targets), got {len(samples)} items. Choose the two to use."
            )
        inputs, targets = samples[0], (samples[1] if len(samples) == 2 else None)
        if isinstance(inputs, Mapping):
            values, inner, lengths = _parts(inputs)
            return values, tensor_of(targets, "targets") if targets is not None else inner, lengths
        _check_single(inputs, targets)
        return tensor_of(inputs, "inputs"), None if targets is None else tensor_of(targets, "targets"), None
    if isinstance(samples, Mapping):
        numeric = {str(key): value for key, value in samples.items() if value is not None and not _is_text(value)}
        tensors = {key: tensor_of(value, key) for key, value in numeric.items()}
        if not tensors:
            raise TypeError(
                f"as_dataset: a dict must hold tensors or numbers, got only text or nothing in {sorted(samples)}. "
                "Text goes through load_data('text:FILE')."
            )
        targets = next((tensors.pop(key) for key in TARGET_KEYS if key in tensors), None)
        lengths = mask_lengths(tensors[MASK]) if MASK in tensors else None
        return tensors, targets, lengths
    return tensor_of(samples, "inputs"), None, None


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
    wrong = ((mask != 0) != (torch.arange(mask.shape[1], device=mask.device)[None] < lengths[:, None])).any(1)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise ValueError(
            f"as_dataset: {MASK} must have its ones first, got a row with padding before a token (sample {row}). "
            "Use tokenizer(…, padding_side='right')."
        )
    return lengths


def _sample(item: Any) -> Any:
    """A lone sample as a batch of one."""
    if isinstance(item, Mapping):
        return {key: _single(value) for key, value in item.items() if value is not None and not _is_text(value)}
    if isinstance(item, tuple | list) and not _is_value(item):
        _check_single(item[0], None)
        first = _sample(item[0]) if isinstance(item[0], Mapping) else _single(item[0])
        return (first, *(_single(value) for value in item[1:]))
    return _single(item)


def _single(value: Any) -> Tensor:
    return tensor_of(value, "a sample")[None]


#: What Python and torch need for a batch besides its numbers; counted, so that many tiny ones are bounded too.
OVERHEAD = 1 << 10


def _collected(batches: Iterable[Any], stop: int | None, name: str, max_bytes: int) -> Dataset:
    """Batches put one after the other, within bounds."""
    parts: list[tuple[dict[str, Tensor], Tensor | None, Tensor | None]] = []
    count, size, single = 0, 0, True
    for item in batches:
        inputs, targets, lengths = _parts(item)
        single = isinstance(inputs, Tensor)
        tensors = inputs if isinstance(inputs, dict) else {"inputs": inputs}
        tensors = {key: value.cpu() for key, value in tensors.items()}
        if lone := [key for key, value in tensors.items() if value.ndim == 0]:
            raise ValueError(
                f"as_dataset: every batch of {name} must have samples as its first axis, "
                f"got a single number for {lone[0]!r}. Use x[None], or leave it out."
            )
        count += len(next(iter(tensors.values())))
        size += OVERHEAD + sum(value.numel() * value.element_size() for value in tensors.values())
        if size > max_bytes:
            raise ValueError(
                f"as_dataset: {name} must fit in max_bytes={max_bytes:,}, got more after {count:,} samples. "
                "Give limit= (how many samples to take) or a larger max_bytes."
            )
        parts.append((tensors, targets, lengths))
        if stop is not None and count >= stop:
            break
    if not parts:
        raise ValueError(
            f"as_dataset: {name} must hold at least one sample, got none. An iterator can be used only once."
        )
    first = parts[0][0]
    masked = MASK in first  # then padding batch by batch is known as padding
    joined = {key: _joined([_key(tensors, key) for tensors, _, _ in parts], key, pad=masked) for key in first}
    targets = None if parts[0][1] is None else _joined([t for _, t, _ in parts if t is not None], "targets")
    lengths = None if parts[0][2] is None else _joined([n for _, _, n in parts if n is not None], "lengths")
    data = Dataset(name, joined["inputs"] if single else joined, targets, lengths)
    return data if stop is None or stop >= len(data) else data.take(stop)


def _key(tensors: dict[str, Tensor], key: str) -> Tensor:
    if key not in tensors:
        raise ValueError(
            f"as_dataset: every batch must have {key!r}, got one with {sorted(tensors)}. Use the same keys throughout."
        )
    return tensors[key]


def _joined(values: list[Tensor], key: str, *, pad: bool = False) -> Tensor:
    shapes = {(tuple(value.shape[1:]), value.dtype) for value in values}
    if len(shapes) > 1 and pad and all(v.ndim == 2 and not v.is_floating_point() for v in values):
        width = max(value.shape[1] for value in values)  # tokens, padded batch by batch: pad to the longest
        values = [torch.nn.functional.pad(value, (0, width - value.shape[1])) for value in values]
    elif len(shapes) > 1:
        kinds = ", ".join(f"{list(shape)} {dtype}" for shape, dtype in sorted(shapes, key=str)[:3])
        raise ValueError(
            f"as_dataset: {key} must have one shape and dtype in every sample and batch, got {kinds}. "
            "Resize, crop or pad them alike."
        )
    return torch.cat(values)
