"""One pass of a model over batches, growing on demand, and the Recording that reads it."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from lisse.data import Batch, Dataset
from lisse.maths.given import overflow_advice
from lisse.networks.recorded import Recorded
from lisse.progress import Event, Listener
from lisse.recording.store import Store, budgets
from lisse.taps import Tap, Taps, feed, find, model_device, placed_on, prepared, reseed, still, tapped
from lisse.taps.stillness import Statistics

Readout = Literal["cls", "mean", "tokens"]
OnNonfinite = Literal["error", "keep"]


def record(
    model: nn.Module,
    batches: Any,
    *,
    layers: Sequence[str] | str | None = None,
    max_samples: int | None = None,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    memory: str | int | None = None,
    statistics: Statistics = "running",
    readout: Readout | None = None,
    on_nonfinite: OnNonfinite = "error",
    attention: bool = False,
    grad: bool = False,
    seed: int = 0,
    progress: Listener | None = None,
) -> Recording:
    """Activations of every layer over batches, as a mapping from layer name to a tensor with samples first.

    ``batches`` is a :class:`~lisse.data.Dataset`, a tensor or dict of tensors, a ``DataLoader``, or any iterable of
    batches (tensors, dicts, ``(inputs, targets)`` pairs). The names are known at once; the forward runs when a layer
    is first asked for. At most ``memory`` is held (2 GiB where nothing is said); what does not fit lies in temporary
    files that vanish with the recording. Layers of a model on a GPU stay there while ``memory`` of its own holds them
    (where nothing is said: half of what is free, 6 GiB at most), then go to the machine's. ``dtype`` stores
    floating-point activations in half precision, say.

    Text has padding, and padding is not data: ``readout`` takes from activations ``[n, t, d]`` the first token
    (``cls``), the mean over valid tokens (``mean``), or every valid token as a row of its own (``tokens``; then
    ``recording.owners`` says whose it is). ``attention`` records attention weights ``[n, heads, t, t]`` instead.

    The model runs in evaluation mode without gradients (``grad=True`` keeps them, all in memory) and is left as it
    was. Its own random numbers depend on ``seed`` and the place of the batch alone, so that the same batches give the
    same bits on a CPU, also cut into shards. NaN or infinity is an error that names layer and sample, unless
    ``on_nonfinite="keep"``. With ``device``, the model is moved there and stays.
    """
    if readout is not None and readout not in get_args(Readout):
        raise ValueError(f"record: readout must be one of {', '.join(get_args(Readout))} or None, got {readout!r}.")
    if on_nonfinite not in get_args(OnNonfinite):
        raise ValueError(f"record: on_nonfinite must be one of error, keep, got {on_nonfinite!r}.")
    if max_samples is not None and max_samples < 1:
        raise ValueError(f"record: max_samples must be at least 1, got {max_samples}.")
    model = placed_on(model, device)
    stream, total = batches_of(batches, model_device(model))
    first = next(stream, None)
    if first is None:
        raise ValueError("record: batches must hold at least one batch, got none.")
    taps = find(model, first.inputs, layers, attention=attention, statistics=statistics)
    if total is not None and max_samples is not None:
        total = min(total, max_samples)
    source = Pass(
        model,
        itertools.chain([first], stream),
        taps,
        memory=memory,
        dtype=dtype,
        statistics=statistics,
        readout=readout,
        on_nonfinite=on_nonfinite,
        grad=grad,
        seed=seed,
        total=total,
        progress=progress,
    )
    return Recording(source, max_samples)


class Pass:
    """A model going over batches, as far as it was asked to, once: what was recorded is never run again."""

    def __init__(
        self,
        model: nn.Module,
        batches: Iterator[Batch],
        taps: Taps,
        *,
        beside: Sequence[Tap] = (),
        memory: str | int | None = None,
        dtype: torch.dtype | None = None,
        statistics: Statistics = "running",
        readout: Readout | None = None,
        on_nonfinite: OnNonfinite = "error",
        grad: bool = False,
        seed: int = 0,
        total: int | None = None,
        expected: int = 0,
        progress: Listener | None = None,
        after: Callable[[Pass], None] | None = None,
    ) -> None:
        self.model, self.taps, self.total, self.progress = model, taps, total, progress
        # Places that are no layers, or are wanted without the readout: whole, under names that no layer has.
        self.beside = {tap: f"beside {index}" for index, tap in enumerate(beside)}
        self.expected = expected  # samples that will be asked for: room for them is made at once
        self.after = after  # called after every batch
        self.dtype, self.statistics, self.readout = dtype, statistics, readout
        self.on_nonfinite, self.grad, self.seed = on_nonfinite, grad, seed
        device = model_device(model)
        host, room = budgets(memory, device)
        self.store = Store(host, device=device, room=room)
        self.graph: dict[str, list[Tensor]] = {tap.name: [] for tap in taps}
        self.targets: list[Tensor] = []
        self.owners: list[Tensor] = []
        self.recorded = 0  # samples
        self.ended = False
        self.broken: str | None = None
        self._batches = batches
        self._mask: Tensor | None = None  # the valid tokens of the batch that runs
        self._sums: dict[str, Tensor] = {}

    def reach(self, samples: int | None) -> None:
        """Go on until ``samples`` are recorded (``None``: to the end), in whole batches."""
        if self.broken is not None:
            raise RuntimeError(f"record: this recording is no longer there ({self.broken}). Record again.")
        if self.ended or (samples is not None and self.recorded >= samples):
            return
        goal = samples if samples is not None else self.total
        room = None if self.grad else goal  # is made once, when the size of a batch is known
        try:
            with (
                still(self.model, statistics=self.statistics, grad=self.grad, seed=self.seed) as root,
                tapped(root, dict.fromkeys([*self.taps, *self.beside]), self._on),
            ):
                while samples is None or self.recorded < samples:
                    batch = next(self._batches, None)
                    if batch is None:
                        self.ended = True
                        break
                    self._forward(root, batch, room)
                    room = None
                    if self.progress is not None:
                        done = self.recorded if goal is None else min(self.recorded, goal)
                        self.progress(Event("forward", done, goal, "samples"))
                    if self.after is not None:
                        self.after(self)
                self.store.settle()
        except BaseException as error:
            self.store.close()
            self.broken = f"{type(error).__name__}: {error}"
            raise

    def _forward(self, root: nn.Module, batch: Batch, room: int | None) -> None:
        count = _count(batch.inputs)
        if count == 1 and self.statistics == "batch":
            raise ValueError(
                f"record: batches must hold at least 2 samples with statistics='batch', got 1 at sample {batch.start}. "
                "Choose another batch size or number of samples."
            )
        if room is not None:
            self._reserve(max(room - self.recorded, self.expected - self.recorded, count), count)
        self._mask = _mask(batch.inputs)
        self._sums.clear()
        reseed(root, batch_seed(self.seed, batch.start))
        feed(root, prepared(root, batch.inputs))
        sums = [total.double() for total in self._sums.values()]
        if sums and not bool(torch.isfinite(torch.stack(sums)).all()):
            self._refuse_nonfinite(batch.start, count)
        if batch.targets is not None:
            self.targets.append(batch.targets.detach().cpu())
        if self.readout == "tokens":
            owners = torch.arange(batch.start, batch.start + count)
            lengths = None if self._mask is None else self._mask.sum(1).cpu().long()
            self.owners.append(owners if lengths is None else owners.repeat_interleave(lengths))
        self.recorded += count

    def _on(self, tap: Tap, activation: Tensor) -> Tensor | None:
        if tap in self.beside:
            self.store.append(self.beside[tap], activation)
            if tap not in self.taps:
                return None
        rows = read_out(activation, self._mask, self.readout)
        if self.dtype is not None and rows.is_floating_point():
            rows = rows.to(self.dtype)
        if self.grad:
            self.graph[tap.name].append(rows)
            # The network goes on with a copy, so that an in-place activation after it changes nothing here.
            return activation.clone()
        self.store.append(tap.name, rows)
        if self.on_nonfinite == "error":
            # One pass over numbers just touched: a sum that is finite had none that was not. (One that is not may only
            # have overflowed: then each is looked at.)
            self._sums[tap.name] = rows.sum(dtype=torch.float64 if rows.dtype == torch.float64 else torch.float32)
        return None

    def restore(self, rows: Mapping[str, Tensor], samples: int) -> None:
        """Take rows of every layer that an earlier pass gave of so many samples; batches begin behind them."""
        for tap in self.taps:
            self.store.append(tap.name, rows[tap.name].to(self.dtype or tap.dtype))
        for name in self.beside.values():
            self.store.append(name, rows[name])
        if self.readout == "tokens":
            self.owners.append(rows["owners"])
        self.recorded += samples

    def rows_since(self, start: int) -> dict[str, Tensor]:
        """What :meth:`restore` takes: the rows of all samples from ``start`` on."""
        stored = {name: self.read(name) for name in self.taps.names}
        rows = {name: values[self.row_count(len(values), start) :] for name, values in stored.items()}
        rows |= {name: self.read(name)[start:] for name in self.beside.values()}
        if self.readout == "tokens":
            owners = torch.cat(self.owners)
            rows["owners"] = owners[owners >= start]
        return rows

    def row_count(self, rows: int, samples: int) -> int:
        """How many of a layer's ``rows`` are those of the first ``samples`` samples."""
        if self.readout != "tokens" or rows == self.recorded:
            return samples
        if rows == sum(map(len, self.owners)):
            return int((torch.cat(self.owners) < samples).sum())
        # No padding here (image patches): every sample has the same number of tokens.
        return samples * (rows // self.recorded)

    def read(self, name: str) -> Tensor:
        """What was recorded of one layer."""
        return torch.cat(self.graph[name]) if self.grad else self.store.read(name)

    def _refuse_nonfinite(self, start: int, count: int) -> None:
        """Name the first number of the last batch that is NaN or infinite, if there is one."""
        for name in self.taps.names:
            rows = self.store.read(name)
            single = self.readout != "tokens" or len(rows) == self.recorded + count  # one row a sample
            owners = torch.arange(count) if single or self._mask is None else self._mask.cpu().nonzero()[:, 0]
            rows = rows[len(rows) - len(owners) :]
            bad = (~torch.isfinite(rows)).flatten(1).sum(1)
            if bool(bad.any()):
                index = int(bad.nonzero()[0])
                value = rows[index][~torch.isfinite(rows[index])][0].item()
                raise ValueError(
                    f"record: activations must be finite, got {value} at layer {name}, "
                    f"sample {start + int(owners[index])} ({int(bad[index])} such numbers there). "
                    "Look at that sample, or record with on_nonfinite='keep' to go on knowingly."
                    f"{overflow_advice(rows)}"
                )

    def _reserve(self, samples: int, batch: int) -> None:
        if self.readout == "tokens":
            return
        samples = -(-samples // batch) * batch if self.total is None else min(-(-samples // batch) * batch, self.total)
        layout = {}
        for tap in self.taps:
            reduced = self.readout is not None and len(tap.shape) == 2
            layout[tap.name] = tap.shape[1:] if reduced else tap.shape, self.dtype or tap.dtype
        layout |= {name: (tap.shape, tap.dtype) for tap, name in self.beside.items()}
        self.store.reserve(layout, samples)


class Recording(Mapping[str, Tensor]):
    """An ordered mapping from layer name to activations ``[n, …]``, recorded when a layer is first asked for.

    ``taps`` describes the layers, ``targets`` and (for ``readout="tokens"``) ``owners`` go with the rows. Use it as a
    context manager, or :meth:`close` it, to give memory back early.
    """

    def __init__(self, source: Pass, samples: int | None) -> None:
        self._pass = source
        self._samples = samples

    @property
    def taps(self) -> Taps:
        """The layers, in order of depth."""
        return self._pass.taps

    @property
    def samples(self) -> int:
        """How many samples are recorded (runs the forward)."""
        self._pass.reach(self._samples)
        return self._pass.recorded if self._samples is None else min(self._samples, self._pass.recorded)

    @property
    def targets(self) -> Tensor | None:
        """The batches' targets, if they had any."""
        samples = self.samples
        return torch.cat(self._pass.targets)[:samples] if self._pass.targets else None

    @property
    def owners(self) -> Tensor:
        """For ``readout="tokens"``: which sample each row belongs to."""
        if self._pass.readout != "tokens":
            raise ValueError("owners: readout must be 'tokens' for rows to have owners, got one row per sample.")
        samples = self.samples
        owners = torch.cat(self._pass.owners)
        return owners[owners < samples]

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.taps.names:
            raise KeyError(f"Recording: no layer {name!r}; it has {', '.join(self.taps.names)}.")
        samples = self.samples
        rows = self._pass.read(name)
        return rows[: self._pass.row_count(len(rows), samples)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.taps.names)

    def __len__(self) -> int:
        return len(self.taps)

    def close(self) -> None:
        """Let go of memory and temporary files."""
        self._pass.store.close()
        self._pass.broken = "it was closed"

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @classmethod
    def merge(cls, shards: Iterable[Recording], *, memory: str | int | None = None) -> Recording:
        """Shards of one recording, cut at batch boundaries, as the recording they are parts of."""
        shards = list(shards)
        if not shards:
            raise ValueError("merge: shards must hold at least one recording, got none.")
        first = shards[0]
        if any(shard.taps.names != first.taps.names for shard in shards):
            raise ValueError("merge: shards must have the same layers in the same order, got different ones.")
        joined = Pass(first._pass.model, iter(()), first.taps, memory=memory, readout=first._pass.readout)
        for shard in shards:
            for name in first:
                joined.store.append(name, shard[name])
            if shard.targets is not None:
                joined.targets.append(shard.targets)
            if first._pass.readout == "tokens":
                joined.owners.append(shard.owners)
            joined.recorded += shard.samples
        joined.ended = True
        return cls(joined, None)


# -- batches ---------------------------------------------------------------------------------------------------------


def batches_of(batches: Any, device: torch.device | None, *, size: int = 100) -> tuple[Iterator[Batch], int | None]:
    """Anything that holds inputs, as an iterator of :class:`Batch` on ``device``, and how many samples it has."""
    if isinstance(batches, Dataset):
        return batches.batches(size, device=device), len(batches)
    if isinstance(batches, (Tensor, Mapping)):
        data = Dataset("tensors", batches if isinstance(batches, Tensor) else dict(batches))
        return data.batches(size, device=device), len(data)
    if not isinstance(batches, Iterable):
        raise TypeError(
            f"record: batches must be a Dataset, tensors or an iterable of batches, got {type(batches).__name__}."
        )
    return _numbered(batches, device), None


def _numbered(batches: Iterable[Any], device: torch.device | None) -> Iterator[Batch]:
    start = 0
    for item in batches:
        if isinstance(item, Batch):
            batch = Batch(_to(item.inputs, device), item.targets, item.start)
        elif isinstance(item, Mapping):
            inputs = {key: value for key, value in item.items() if key not in ("labels", "label")}
            batch = Batch(_to(inputs, device), item.get("labels", item.get("label")), start)
        elif isinstance(item, (tuple, list)) and len(item) == 2:
            batch = Batch(_to(item[0], device), item[1] if isinstance(item[1], Tensor) else None, start)
        else:
            batch = Batch(_to(item, device), None, start)
        yield batch
        start = batch.start + _count(batch.inputs)


def batch_seed(seed: int, start: int) -> int:
    """What a network's own random numbers are seeded with at the batch that begins at sample ``start``."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {start}".encode(), digest_size=7).digest(), "little")


def _to(inputs: Any, device: torch.device | None) -> Any:
    if isinstance(inputs, Mapping):
        return {key: _to(value, device) for key, value in inputs.items()}
    if isinstance(inputs, (tuple, list)) and inputs:
        return tuple(_to(value, device) for value in inputs)
    if isinstance(inputs, Tensor):
        return inputs.to(device)
    raise TypeError(
        f"record: a batch's inputs must be tensors, alone or in a dict or tuple, got {type(inputs).__name__}."
    )


def _count(inputs: Any) -> int:
    if isinstance(inputs, Mapping):
        return len(next(iter(inputs.values())))
    return len(inputs[0]) if isinstance(inputs, tuple) else len(inputs)


# -- what is kept of an activation -----------------------------------------------------------------------------------


def read_out(activation: Tensor, mask: Tensor | None, readout: Readout | None) -> Tensor:
    """Activations ``[n, t, d]`` by the readout; anything else (images, pooled vectors) as it is.

    ``mask`` ``[n, t]`` marks the valid tokens; without one, or where its length is another, all tokens are valid.
    """
    if readout is None or activation.ndim != 3:
        return activation
    if readout == "cls":
        return activation[:, 0]
    matching = mask is not None and mask.shape[1] == activation.shape[1]
    valid = (
        mask.bool() if matching and mask is not None else activation.new_ones(activation.shape[:2], dtype=torch.bool)
    )
    if readout == "tokens":
        return activation[valid]
    weights = valid.to(activation.dtype)
    return torch.einsum("ntd,nt->nd", activation, weights) / weights.sum(1, keepdim=True)


def _mask(inputs: Any) -> Tensor | None:
    mask = inputs.get("attention_mask") if isinstance(inputs, Mapping) else None
    return mask if isinstance(mask, Tensor) and mask.ndim == 2 else None


def recorded(folder: str | Path, *, memory: str | int | None = None) -> Recording:
    """A folder of ``.safetensors`` or ``.npz`` files, one array per layer and shard, as a :class:`Recording`.

    See :class:`~lisse.networks.recorded.Recorded` for names, order and labels. Files are mapped; at most ``memory`` of
    them is held at once.
    """
    player = Recorded(folder)
    return record(player, Dataset(Path(folder).name, player.samples, player.targets), memory=memory)
