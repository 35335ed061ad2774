"""The batches of a training, from tensors that stay where the network is: shuffled, augmented, made floats there."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lisse.data import Batch, Dataset
from lisse.data.augmentation import CropFlip

Augment = CropFlip | Callable[[Tensor], Tensor]

# Of the device's free memory, what the data may take at most; larger data stay with the host.
MEMORY_SHARE = 0.5


def keyed(seed: int, purpose: str, index: int) -> int:
    """A seed for one purpose at one place, the same in every process and after every resume."""
    text = f"{purpose} {seed} {index}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


class Feed:
    """One epoch's batches at a time; batch ``k`` of epoch ``e`` is a function of the seed, ``e`` and ``k`` alone.

    The order is a permutation and the crops and flips are draws from generators on the CPU, keyed by seed and epoch,
    so that they are the same on every device; they travel to the device once an epoch. Each process takes every
    ``world``-th sample of the batch from ``rank`` on. A last batch of one sample (or fewer than processes) is left
    out: batch norm has no statistics for it.
    """

    def __init__(
        self,
        data: Dataset,
        *,
        batch: int | None,
        seed: int,
        device: torch.device,
        dtype: torch.dtype,
        crops: CropFlip | None = None,
        channels_last: bool = False,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.count, self.seed, self.device, self.dtype = len(data), seed, device, dtype
        self.crops, self.rank, self.world = crops, rank, world
        self.full = batch is None
        self.batch = self.count if batch is None else min(batch, self.count)
        remainder = self.count % self.batch
        self.steps = self.count // self.batch + (remainder >= max(2, world))
        self.used = min(self.count, self.steps * self.batch)
        parts = data.inputs if isinstance(data.inputs, dict) else {"": data.inputs}
        self.keyed_inputs = isinstance(data.inputs, dict)
        self.images = not self.keyed_inputs and parts[""].ndim == 4
        self.bytes = {
            key for key, part in parts.items() if part.dtype == torch.uint8 and part.ndim >= (3 if key else 1)
        }
        self.resident = device.type == "cpu" or has_room(data, device, self.crops)
        self.last = self.images and (channels_last or crops is not None)
        self.contiguous = crops is not None and not channels_last
        home = device if self.resident else torch.device("cpu")
        self.parts = {key: self._stored(part.to(home)) for key, part in parts.items()}
        self.targets = None if data.targets is None else data.targets.to(home)
        self._epoch = -1
        self._order: Tensor | None = None
        self._draws: Tensor | None = None

    def _stored(self, part: Tensor) -> Tensor:
        if part.is_floating_point() and part.dtype != self.dtype:
            part = part.to(self.dtype)
        if not self.images or not self.last:
            return part
        return self.crops.padded(part) if self.crops is not None else part.permute(0, 2, 3, 1).contiguous()

    def size(self, k: int) -> int:
        """Samples of batch ``k`` over all processes."""
        return min(self.batch, self.count - k * self.batch)

    def get(self, epoch: int, k: int) -> Batch:
        """This process's share of batch ``k`` of ``epoch``, on the device; ``start`` is its place in the epoch."""
        if epoch != self._epoch:
            self._begin(epoch)
        start = k * self.batch
        stop = min(start + self.batch, self.count)
        share = slice(start + self.rank, stop, self.world)
        rows = None if self._order is None else self._order[share]
        if rows is None and (self.world > 1 or self.crops is not None):
            rows = torch.arange(start + self.rank, stop, self.world, device=self._home())
        inputs: Any = {key: self._batch(key, part, rows, share) for key, part in self.parts.items()}
        targets = None if self.targets is None else self._moved(_rows(self.targets, rows))
        return Batch(inputs if self.keyed_inputs else inputs[""], targets, start)

    def _begin(self, epoch: int) -> None:
        home = self._home()
        if not self.full:
            generator = torch.Generator().manual_seed(keyed(self.seed, "order", epoch))
            self._order = torch.randperm(self.count, generator=generator).to(home)
        if self.crops is not None:
            generator = torch.Generator().manual_seed(keyed(self.seed, "crops", epoch))
            self._draws = self.crops.draws(self.count, generator=generator).to(home)
        self._epoch = epoch

    def _batch(self, key: str, part: Tensor, rows: Tensor | None, share: slice) -> Tensor:
        if self.crops is not None:
            assert rows is not None
            assert self._draws is not None
            value = self.crops.cut(part, rows, self._draws[:, share])
        else:
            value = _rows(part, rows)
            value = value.permute(0, 3, 1, 2) if self.last else value
        value = self._moved(value)
        if key in self.bytes:
            value = value.to(self.dtype).div_(255)
        elif rows is None:
            value = value.clone()  # the data are not the network's to change
        return value.contiguous() if self.contiguous else value

    def _moved(self, value: Tensor) -> Tensor:
        if self.resident:
            return value
        return value.pin_memory().to(self.device, non_blocking=True)

    def _home(self) -> torch.device:
        return self.device if self.resident else torch.device("cpu")


def _rows(part: Tensor, rows: Tensor | None) -> Tensor:
    return part if rows is None else part.index_select(0, rows)


def has_room(data: Dataset, device: torch.device, crops: CropFlip | None = None) -> bool:
    """Whether the data may stay on the device: in its memory, with room for the work."""
    parts = list(data.inputs.values()) if isinstance(data.inputs, dict) else [data.inputs]
    needed = float(sum(part.numel() * part.element_size() for part in parts))
    if crops is not None and parts[0].ndim == 4:
        h, w = parts[0].shape[2:]
        needed *= 1 + (h + 2 * crops.padding) * (w + 2 * crops.padding) / (h * w)  # the data, and while they are padded
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return needed < MEMORY_SHARE * free
