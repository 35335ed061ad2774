"""Dataset: samples in one order, held in memory, cut into batches: the one shape in which data travels."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lisse.identity import hash_tensor, tensor_identity


class Batch(NamedTuple):
    """Consecutive samples: ``inputs`` (images as floats in [0, 1]), ``targets`` if any, ``start`` the first's index."""

    inputs: Tensor | dict[str, Tensor]
    targets: Tensor | None
    start: int

    @property
    def size(self) -> int:
        """How many samples there are."""
        return len(next(iter(self.inputs.values())) if isinstance(self.inputs, dict) else self.inputs)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples in a fixed order.

    Args:
        name: what a report calls it.
        inputs: one tensor, samples first (``[n, c, h, w]`` images, ``[n, d]`` vectors, ``[n, t]`` tokens), or a dict of
            them by the model's keyword (``input_ids``, ``attention_mask``). Images that are bytes stay ``uint8``.
        targets: labels or other targets, samples first. Integer labels are held as int64.
        lengths: for text, the valid tokens of each sample ``[n]``: padding is not data.
        partner: the other side of pairs: a Dataset of as many samples in the same order.
        classes: the names of the labels 0, 1, …; then every label must be one of them.
        texts: for text, a digest of each text before it was tokenized, bytes ``[n, b]`` (:func:`text_digests`): what
            the samples are, whoever tokenizes them.
        tokenizer: what made tokens of the texts, in words.

    The tensors are not copied: do not change them afterwards, fingerprints are computed once.
    """

    name: str
    inputs: Tensor | dict[str, Tensor]
    targets: Tensor | None = None
    lengths: Tensor | None = None
    partner: Dataset | None = None
    classes: tuple[str, ...] | None = None
    texts: Tensor | None = None
    tokenizer: str = ""
    _digests: dict[str, str] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        """Check that everything speaks of the same samples."""
        parts = _keyed(self.inputs)
        count = len(next(iter(parts.values())))
        for key, value in parts.items():
            if len(value) != count:
                raise ValueError(
                    f"Dataset: inputs[{key!r}] must have as many samples as the others, got {len(value)} and {count}. "
                    "Samples are the first axis of every tensor."
                )
        if count == 0:
            raise ValueError(
                f"Dataset: inputs must hold at least one sample, got none in {self.name!r}. Check the source."
            )
        if self.targets is not None:
            targets = _tensor(self.targets, "targets")
            _same_count(targets, count, "targets")
            if targets.dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32):
                targets = targets.long()
            object.__setattr__(self, "targets", targets)
        if self.lengths is not None:
            lengths = _tensor(self.lengths, "lengths").long()
            _same_count(lengths, count, "lengths")
            object.__setattr__(self, "lengths", lengths)
            self._check_lengths(lengths, parts)
        if self.texts is not None:
            _same_count(_tensor(self.texts, "texts"), count, "texts")
        if self.partner is not None and len(self.partner) != count:
            raise ValueError(
                f"Dataset: partner must have {count} samples, one for each of {self.name!r}, got {len(self.partner)}. "
                "Pairs are matched by position."
            )
        if self.classes is not None:
            object.__setattr__(self, "classes", tuple(str(name) for name in self.classes))
            self._check_labels()

    def _check_lengths(self, lengths: Tensor, parts: Mapping[str, Tensor]) -> None:
        if lengths.ndim != 1:
            raise ValueError(
                f"Dataset: lengths must be one number per sample, got shape {tuple(lengths.shape)}. "
                "Give the count of valid tokens."
            )
        # A decoder may be given fewer tokens than the encoder, whose lengths these are.
        masked = [parts["attention_mask"]] if "attention_mask" in parts else parts.values()
        longest = min((value.shape[1] for value in masked if value.ndim > 1), default=0)
        low, high = int(lengths.min()), int(lengths.max())
        if low < 1 or high > longest:
            raise ValueError(
                f"Dataset: lengths must lie in 1 … {longest} (the tokens of a sample), got {low} … {high}. "
                "A sample without any token cannot be measured: remove it."
            )

    def _check_labels(self) -> None:
        if self.targets is None:
            return
        names = self.classes or ()
        if self.targets.is_floating_point() or self.targets.is_complex() or self.targets.dtype == torch.bool:
            raise TypeError(
                f"Dataset: targets must be integers when classes are given, got {self.targets.dtype}. "
                "Labels count from 0; leave classes out for a regression."
            )
        wrong = (self.targets < 0) | (self.targets >= len(names))
        if bool(wrong.any()):
            where = tuple(int(i) for i in wrong.nonzero()[0])
            raise ValueError(
                f"Dataset: targets must lie in 0 … {len(names) - 1} ({len(names)} classes), "
                f"got {int(self.targets[where])} at sample {where[0]} of {self.name!r}. Labels count from 0."
            )

    def __len__(self) -> int:
        """The number of samples."""
        return len(next(iter(_keyed(self.form).values())))

    def __repr__(self) -> str:
        shapes = {
            key: (tuple(value.shape), str(value.dtype).removeprefix("torch."))
            for key, value in _keyed(self.form).items()
        }
        inputs = shapes if isinstance(self.form, dict) else next(iter(shapes.values()))
        more = [f"targets {tuple(self.targets.shape)}"] if self.targets is not None else []
        more += [f"{len(self.classes)} classes"] if self.classes else []
        more += ["lengths"] if self.lengths is not None else []
        more += [f"partner {self.partner.name!r}"] if self.partner is not None else []
        return f"Dataset({self.name!r}, {len(self)} samples, inputs {inputs}{''.join(', ' + m for m in more)})"

    @property
    def form(self) -> Tensor | dict[str, Tensor]:
        """Shapes and dtypes of the inputs: tensors without numbers (on the device ``meta``)."""
        inputs = self.inputs
        if isinstance(inputs, dict):
            return {key: torch.empty_like(value, device="meta") for key, value in inputs.items()}
        return torch.empty_like(inputs, device="meta")

    @property
    def is_text(self) -> bool:
        """Whether samples are sequences of tokens: their lengths are known, or a tensor ``[n, t]`` holds token ids.

        Token ids are ``input_ids``, or a lone tensor of integers; bytes are pixels.
        """
        form = self.form
        ids = form.get("input_ids") if isinstance(form, dict) else form
        return self.lengths is not None or (
            ids is not None and ids.ndim == 2 and ids.dtype in (torch.int16, torch.int32, torch.int64)
        )

    def batches(
        self, size: int, start: int = 0, stop: int | None = None, *, device: str | torch.device | None = None
    ) -> Iterator[Batch]:
        """Samples ``start … stop - 1`` in order, ``size`` at a time (the last batch may be smaller).

        Bytes become float32 in [0, 1] (``x / 255``) after they have travelled to ``device``; every other dtype passes
        through. In a dict of inputs only uint8 tensors with at least three axes are images.
        """
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"batches: size must be a positive integer, got {size!r}. 100 is a good start.")
        last = len(self) if stop is None else stop
        if not 0 <= start <= last <= len(self):
            raise ValueError(
                f"batches: start and stop must satisfy 0 <= start <= stop <= {len(self)}, got {start} and {stop}. "
                f"{self.name!r} has {len(self)} samples."
            )
        return self._batches(size, start, last, device)

    def _batches(self, size: int, start: int, stop: int, device: str | torch.device | None) -> Iterator[Batch]:
        for begin in range(start, stop, size):
            part = slice(begin, min(begin + size, stop))
            inputs: Tensor | dict[str, Tensor]
            if isinstance(self.inputs, dict):
                inputs = {key: _floats(_move(value[part], device), axes=3) for key, value in self.inputs.items()}
            else:
                inputs = _floats(_move(self.inputs[part], device), axes=1)
            targets = None if self.targets is None else _move(self.targets[part], device)
            yield Batch(inputs, targets, begin)

    def take(self, n: int) -> Dataset:
        """The first ``n`` samples, in order (views, no copy)."""
        self._count("take", n)
        return self._changed(lambda value: value[:n], self.partner and self.partner.take(n))

    def subset(self, indices: Sequence[int] | Tensor) -> Dataset:
        """The samples at ``indices``, in that order; an index may repeat."""
        rows = self._indices(indices)
        return self._changed(lambda value: value[rows.to(value.device)], self.partner and self.partner.subset(rows))

    def _indices(self, indices: Sequence[int] | Tensor) -> Tensor:
        rows = torch.as_tensor(indices)
        if rows.ndim != 1 or rows.is_floating_point() or rows.dtype == torch.bool or len(rows) == 0:
            raise ValueError(
                f"subset: indices must be a non-empty list of integers, "
                f"got {rows.dtype} of shape {tuple(rows.shape)}. "
                "Turn a mask into indices with mask.nonzero().flatten()."
            )
        rows = rows.long().cpu()
        if int(rows.min()) < 0 or int(rows.max()) >= len(self):
            raise ValueError(
                f"subset: indices must lie in 0 … {len(self) - 1}, got {int(rows.min())} … {int(rows.max())}. "
                f"{self.name!r} has {len(self)} samples."
            )
        return rows

    def sample(self, n: int, seed: int) -> Dataset:
        """``n`` different samples drawn with ``seed``, in the order drawn.

        For one seed the draws are nested: ``sample(p, seed)`` is ``sample(q, seed).take(p)`` for p <= q, so that
        training sets of growing size P (``[petrini2021]`` Fig. 3) only gain samples.
        """
        self._count("sample", n)
        check_seed("sample", seed)
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        return self.subset(order[:n])

    def to(self, device: str | torch.device) -> Dataset:
        """The same data on ``device``, bytes still bytes: a whole CIFAR-10 is 150 MB there."""
        moved = self._changed(lambda value: value.to(device), self.partner and self.partner.to(device))
        moved._digests.update(self._digests)
        return moved

    def fingerprint(self) -> str:
        """A digest of the samples: of the texts, where the data are text, else of what a network is given.

        Two datasets with the same fingerprint hold the same samples with the same targets, classes and partners in the
        same order; the name and the device do not matter. Neither does the tokenizer: two networks that read one file
        by tokenizers of their own are measured on the same data, and :meth:`tensor_fingerprint` tells them apart.
        """
        if self.texts is None:
            return self.tensor_fingerprint()
        if "samples" not in self._digests:
            partner = "alone" if self.partner is None else self.partner.fingerprint()
            self._digests["samples"] = self._digest({"/texts": self.texts, "/targets": self.targets}, partner)
        return self._digests["samples"]

    def tensor_fingerprint(self) -> str:
        """A digest of all that a network is given and answers are judged by: what its numbers depend on.

        Dtype, shape and bytes of inputs, targets and lengths, class names, the partner.
        """
        if "tensors" not in self._digests:
            partner = "alone" if self.partner is None else self.partner.tensor_fingerprint()
            tensors = {**dict(sorted(_keyed(self.inputs).items())), "/targets": self.targets, "/lengths": self.lengths}
            self._digests["tensors"] = self._digest(tensors, partner)
        return self._digests["tensors"]

    def distinct(self) -> int:
        """How many of the samples are different ones: by their texts, else by all that a network is given of them."""
        if "distinct" not in self._digests:
            tensors = list(_keyed(self.inputs).values()) if self.texts is None else [self.texts]
            if self.partner is not None:
                tensors += _keyed(self.partner.inputs).values()
            self._digests["distinct"] = str(len(set(_row_digests(tensors, len(self)))))
        return int(self._digests["distinct"])

    def _digest(self, tensors: Mapping[str, Tensor | None], partner: str) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for key, value in tensors.items():
            if value is None:
                digest.update(f"{key}: none\n".encode())
                continue
            digest.update(f"{key}: {value.dtype} {tuple(value.shape)}\n".encode())
            hash_tensor(digest, value)
        digest.update(repr(self.classes).encode())
        digest.update(partner.encode())
        return digest.hexdigest()

    def _changed(self, change: Any, partner: Dataset | None) -> Dataset:
        inputs = (
            {k: change(v) for k, v in self.inputs.items()} if isinstance(self.inputs, dict) else change(self.inputs)
        )
        targets = None if self.targets is None else change(self.targets)
        lengths = None if self.lengths is None else change(self.lengths)
        texts = None if self.texts is None else change(self.texts)
        return Dataset(self.name, inputs, targets, lengths, partner, self.classes, texts, self.tokenizer)

    def _count(self, function: str, n: int) -> None:
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= len(self):
            raise ValueError(
                f"{function}: n must be an integer in 1 … {len(self)}, got {n!r}. "
                f"{self.name!r} has {len(self)} samples."
            )


def text_digests(texts: Sequence[str]) -> Tensor:
    """A digest of each text, bytes ``[n, 16]``."""
    digests = (hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() for text in texts)
    return torch.frombuffer(bytearray(b"".join(digests)), dtype=torch.uint8).view(len(texts), 16)


def check_seed(function: str, seed: int) -> None:
    """Refuse what torch does not take as a seed."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not -(1 << 63) <= seed < 1 << 64:
        error = ValueError if isinstance(seed, int) and not isinstance(seed, bool) else TypeError
        raise error(
            f"{function}: seed must be an integer of at most 64 bits, got {seed!r}. Any number such as 0 will do."
        )


def _row_digests(tensors: Sequence[Tensor], n: int) -> Iterator[bytes]:
    """A digest of every row of all tensors together, a few rows in memory at a time."""
    for start in range(0, n, 1000):
        parts = [tensor[start : start + 1000].detach().cpu().contiguous() for tensor in tensors]
        blocks = [part.reshape(len(part), -1).view(torch.uint8).numpy() for part in parts if part.numel()]
        for row in range(min(1000, n - start)):
            yield hashlib.blake2b(b"".join(block[row].tobytes() for block in blocks), digest_size=16).digest()


def _keyed(inputs: Any) -> dict[str, Tensor]:
    """The inputs as a dict, checked; a lone tensor is called ``inputs``."""
    if isinstance(inputs, Tensor):
        return {"inputs": _tensor(inputs, "inputs")}
    if isinstance(inputs, dict) and inputs:
        return {key: _tensor(value, f"inputs[{key!r}]") for key, value in inputs.items()}
    got = "an empty dict" if isinstance(inputs, dict) else type(inputs).__name__
    raise TypeError(
        f"Dataset: inputs must be a tensor or a dict of tensors, got {got}. "
        "lisse.data.as_dataset converts other things."
    )


def _tensor(value: Any, label: str) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(
            f"Dataset: {label} must be a tensor, got {type(value).__name__}. "
            "lisse.data.as_dataset converts arrays and lists."
        )
    if value.ndim == 0:
        raise ValueError(f"Dataset: {label} must have samples as its first axis, got a single number. Use x[None].")
    return value


def _same_count(value: Tensor, count: int, label: str) -> None:
    if len(value) != count:
        raise ValueError(
            f"Dataset: {label} must have one entry per sample, got {len(value)} for {count} samples. "
            "Check that both come from the same file or split."
        )


def _move(value: Tensor, device: str | torch.device | None) -> Tensor:
    return value if device is None else value.to(device, non_blocking=True)


def _floats(value: Tensor, *, axes: int) -> Tensor:
    return value.float().div_(255) if value.dtype == torch.uint8 and value.ndim >= axes else value


class Drawn(Dataset):
    """The samples of ``data`` in an order drawn with ``seed``: the first n are those of ``data.sample(n, seed)``.

    A file may be sorted by class, by date or by difficulty; the first samples of a drawn order are a sample of all, and
    those that one measurement takes are among those of a larger one. ``batches``, ``take`` and ``subset`` read the rows
    they need and nothing else; ``inputs`` as a whole is a copy, made when it is first asked for (``form`` has its
    shapes). Partners stay beside their samples. The fingerprint is that of the data: the order stands beside it
    (:attr:`digest`). Drawn again, the data have the new order.
    """

    def __init__(self, data: Dataset, seed: int) -> None:
        base = data.base if isinstance(data, Drawn) else data
        check_seed("Drawn", seed)
        order = torch.randperm(len(base), generator=torch.Generator().manual_seed(seed))
        words = {"name": base.name, "classes": base.classes, "tokenizer": base.tokenizer, "_digests": base._digests}
        vars(self).update(words, base=base, order=order, seed=seed)

    base: Dataset
    order: Tensor  # [n]: the row of each sample in the data
    seed: int

    @cached_property
    def digest(self) -> str:
        """A digest of the order: two runs with the same one on the same data have seen the same samples."""
        return tensor_identity(self.order)

    def _row(self, values: Tensor | None) -> Any:
        return None if values is None else values[self.order.to(values.device)]

    @cached_property
    def inputs(self) -> Tensor | dict[str, Tensor]:
        """All inputs in this order: a copy."""
        inputs = self.base.inputs
        return (
            {key: self._row(value) for key, value in inputs.items()} if isinstance(inputs, dict) else self._row(inputs)
        )

    @cached_property
    def targets(self) -> Tensor | None:
        """The targets in this order."""
        return self._row(self.base.targets)

    @cached_property
    def lengths(self) -> Tensor | None:
        """The lengths in this order."""
        return self._row(self.base.lengths)

    @cached_property
    def texts(self) -> Tensor | None:
        """The texts' digests in this order."""
        return self._row(self.base.texts)

    @cached_property
    def partner(self) -> Dataset | None:
        """The other sides of the pairs, in this order."""
        return None if self.base.partner is None else Drawn(self.base.partner, self.seed)

    @property
    def form(self) -> Tensor | dict[str, Tensor]:
        """Shapes and dtypes of the inputs, without reading any."""
        return self.base.form

    def _batches(self, size: int, start: int, stop: int, device: str | torch.device | None) -> Iterator[Batch]:
        for begin in range(start, stop, size):
            rows = self.base.subset(self.order[begin : min(begin + size, stop)])
            (batch,) = rows.batches(len(rows), device=device)
            yield batch._replace(start=begin)

    def take(self, n: int) -> Dataset:
        """The first ``n`` samples in this order: a copy of these rows."""
        self._count("take", n)
        return self.base.subset(self.order[:n])

    def subset(self, indices: Sequence[int] | Tensor) -> Dataset:
        """The samples at ``indices`` of this order."""
        return self.base.subset(self.order[self._indices(indices)])

    def to(self, device: str | torch.device) -> Dataset:
        """The same data in the same order on ``device``."""
        return Drawn(self.base.to(device), self.seed)

    def fingerprint(self) -> str:
        """That of the data, whatever the order."""
        return self.base.fingerprint()

    def tensor_fingerprint(self) -> str:
        """That of the data, whatever the order."""
        return self.base.tensor_fingerprint()

    def distinct(self) -> int:
        """That of the data, whatever the order."""
        return self.base.distinct()
