"""Rows of tensors within budgets: on the device while they fit, then in memory, then in plain temporary files."""

from __future__ import annotations

import mmap
import re
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO

import numpy as np
import torch
from torch import Tensor

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_bytes(memory: str | int) -> int:
    """``"2GiB"``, ``"500 MB"`` or a number of bytes, as a number of bytes."""
    if isinstance(memory, int) and not isinstance(memory, bool):
        number, unit = str(memory), ""
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(memory))
        number, unit = match.groups() if match else ("", "?")
    if unit.upper() not in _UNITS or not number.replace(".", "", 1).isdigit() or float(number) <= 0:
        raise ValueError(f"parse_bytes: memory must be bytes or a size such as '2GiB', got {memory!r}.")
    return int(float(number) * _UNITS[unit.upper()])


_HOST, _DEVICE = "2GiB", 6 * 2**30  # what a recording may take where nobody says: in memory, and on a GPU


def budgets(memory: str | int | None, device: torch.device) -> tuple[int, int]:
    """Bytes of memory, and of the device's own (0 where that is memory): ``memory`` of each.

    ``None``: 2 GiB, and on a GPU half of what nobody uses, 6 GiB at most.
    """
    host = parse_bytes(_HOST if memory is None else memory)
    if device.type != "cuda":
        return host, 0
    if memory is not None:
        return host, host
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return host, min(_DEVICE, (torch.cuda.mem_get_info(device)[0] + cached) // 2)


@dataclass
class _Slot:
    shape: tuple[int, ...]
    dtype: torch.dtype
    rows: int = 0
    segments: list[Tensor] = field(default_factory=list)
    room: int = 0
    apart: bool = False  # the rows lie on the device: all of them, or none
    file: IO[bytes] | None = None

    @property
    def row_bytes(self) -> int:
        return int(torch.Size(self.shape).numel()) * self.dtype.itemsize

    @property
    def size(self) -> int:
        return sum(segment.numel() * segment.element_size() for segment in self.segments)


class Store:
    """Named stacks of equal-shaped rows that hold at most ``budget`` bytes in memory, and ``room`` on ``device``.

    A stack lies on the device as a whole, while there is room for it, or in memory, or in a file.
    Rows that were reserved are copied into one allocation; others are kept as they come, and joined when they are
    read. Whatever does not fit is appended to an unnamed temporary file (it has no directory entry, so nothing is left
    behind however the process ends) and mapped privately for reading: the mapping counts as memory only while the
    tensor is alive, and writing to that tensor changes neither the file nor what others read.
    """

    def __init__(
        self, budget: int, *, device: torch.device | None = None, room: int = 0, folder: str | None = None
    ) -> None:
        self.budget = budget
        self.device = device
        self.room = room if device is not None else 0
        self.folder = folder
        self._slots: dict[str, _Slot] = {}
        self._staging = _Staging()

    @property
    def resident(self) -> int:
        """Bytes held in memory now."""
        return sum(slot.size for slot in self._slots.values() if not slot.apart)

    @property
    def on_device(self) -> int:
        """Bytes held on the device now."""
        return sum(slot.size for slot in self._slots.values() if slot.apart)

    def rows(self, name: str) -> int:
        """How many rows a stack has."""
        return self._slots[name].rows if name in self._slots else 0

    def reserve(self, layout: Mapping[str, tuple[tuple[int, ...], torch.dtype]], rows: int) -> None:
        """Make room for ``rows`` more rows in each stack: the small ones first, in files what fits nowhere else.

        Joining what came before needs one stack twice for a moment; that is counted in.
        """
        self._staging.finish()
        slots = [self._slots.setdefault(name, _Slot(shape, dtype)) for name, (shape, dtype) in layout.items()]
        joined = max((slot.row_bytes * (slot.rows + rows) for slot in slots if slot.rows), default=0)
        for slot in sorted(slots, key=lambda slot: slot.row_bytes):
            if slot.file is not None or slot.room >= rows:
                continue
            _trim(slot)
            segment = self._device_segment(slot, rows, joined)
            if segment is None:
                self._leave_device(slot, slot.row_bytes * rows + joined)
                if slot.file is not None or self.resident + slot.row_bytes * rows + joined > self.budget:
                    self._spill(slot)
                    continue
                segment = _BLOCKS.empty((rows, *slot.shape), slot.dtype)
            slot.segments.append(segment)
            slot.room = rows

    def append(self, name: str, rows: Tensor) -> None:
        """Copy rows onto a stack, in the stack's dtype; rows on a GPU arrive while the next ones are computed."""
        slot = self._slots.get(name)
        if slot is None:
            slot = self._slots[name] = _Slot(tuple(rows.shape[1:]), rows.dtype)
        if tuple(rows.shape[1:]) != slot.shape:
            raise ValueError(
                f"record: every batch must give {name} the shape {slot.shape} per sample, got {tuple(rows.shape[1:])}. "
                "Pad all batches to one length, or choose a readout ('cls', 'mean' or 'tokens')."
            )
        count = len(rows)
        if slot.file is not None:
            self._write(slot, rows.to("cpu", slot.dtype).contiguous())
        elif slot.room >= count:
            segment = slot.segments[-1]
            target = segment[len(segment) - slot.room :][:count]
            if rows.device.type == "cuda" and not slot.apart:
                self._staging.send(rows, target)
            else:
                target.copy_(rows)
            slot.room -= count
        else:
            self._staging.finish()
            _trim(slot)
            room = self._device_segment(slot, count, self.on_device)
            if room is not None:
                slot.segments.append(room.copy_(rows))
            else:
                self._leave_device(slot, self.resident + 2 * slot.row_bytes * count)
                if slot.file is not None:
                    self._write(slot, rows.to("cpu", slot.dtype).contiguous())
                else:
                    slot.segments.append(rows.to("cpu", slot.dtype, copy=True).contiguous())
                    self._keep_to_half()
        slot.rows += count

    def read(self, name: str) -> Tensor:
        """All rows of a stack ``[rows, …]`` where they lie, without a copy where that is one piece."""
        self._staging.finish()
        slot = self._slots[name]
        if slot.file is not None:
            slot.file.flush()
            if slot.rows * slot.row_bytes == 0:
                return torch.empty((slot.rows, *slot.shape), dtype=slot.dtype)
            mapped = np.memmap(slot.file, dtype=np.uint8, mode="c", shape=(slot.rows * slot.row_bytes,))
            return torch.from_numpy(mapped).view(slot.dtype).view(slot.rows, *slot.shape)
        if len(slot.segments) > 1:
            _trim(slot)
            slot.segments = [torch.cat(slot.segments)]
        return slot.segments[0][: slot.rows] if slot.segments else torch.empty((0, *slot.shape), dtype=slot.dtype)

    def settle(self) -> None:
        """Wait for what is still on its way: threads may read from here on."""
        self._staging.finish()

    def close(self, *, release: bool = True) -> None:
        """Let go of memory and files. Tensors already read stay valid.

        Without ``release``, up to a gigabyte of touched memory waits for the next recording, which is then faster.
        """
        self._staging = _Staging()
        for slot in self._slots.values():
            slot.segments.clear()
            if slot.file is not None:
                slot.file.close()
        self._slots.clear()
        if release:
            _BLOCKS.release()

    def _device_segment(self, slot: _Slot, rows: int, spare: int) -> Tensor | None:
        """Unset memory on the device for more rows of a stack, ``spare`` bytes left beside it; ``None``: no room."""
        elsewhere = bool(slot.segments) and not slot.apart
        if elsewhere or self.on_device + slot.row_bytes * rows + spare > self.room:
            return None
        with suppress(torch.OutOfMemoryError):  # the network may take more than it did
            segment = torch.empty((rows, *slot.shape), dtype=slot.dtype, device=self.device)
            slot.apart = True
            return segment
        return None

    def _leave_device(self, slot: _Slot, more: int) -> None:
        """Bring a stack that has no room on the device to memory, ``more`` bytes beside it, or else to its file."""
        if not slot.apart:
            return
        if self.resident + slot.size + more > self.budget:
            self._spill(slot)
        else:
            slot.segments, slot.apart = [segment.cpu() for segment in slot.segments], False

    def _keep_to_half(self) -> None:
        # How many rows will come is not known here, and joining a stack when it is read needs it twice.
        for slot in sorted(self._slots.values(), key=lambda slot: -slot.size):
            if 2 * self.resident <= self.budget:
                return
            if not slot.apart:
                self._spill(slot)

    def _spill(self, slot: _Slot) -> None:
        _trim(slot)
        segments, slot.segments, slot.apart = slot.segments, [], False
        if slot.file is None:
            slot.file = tempfile.TemporaryFile(prefix="lisse-", dir=self.folder)  # noqa: SIM115  (lives with the store)
        while segments:
            for rows in segments.pop(0).split(max(1, 2**26 // max(1, slot.row_bytes))):
                self._write(slot, rows.cpu())

    def _write(self, slot: _Slot, rows: Tensor) -> None:
        assert slot.file is not None
        try:
            slot.file.write(rows.reshape(-1).view(torch.uint8).numpy().data)
            slot.file.flush()
        except OSError as error:
            where = self.folder or tempfile.gettempdir()
            raise OSError(
                error.errno,
                f"record: activations beyond the memory budget go to {where}, which took no more ({error.strerror}). "
                "Give it room, set TMPDIR, or record fewer samples or layers",
            ) from error


class _Staging:
    """Two page-locked buffers between a GPU and memory: one is filled while the other is emptied.

    An ordinary copy from a GPU goes through a small locked buffer of the driver's, a few GB/s; this one runs at the
    speed of the bus, and the copy into the recording runs beside the next layer's.
    """

    def __init__(self) -> None:
        self._buffers: list[Tensor | None] = [None, None]
        self._turn = 0
        self._pending: tuple[Tensor, Tensor, torch.cuda.Event] | None = None

    def send(self, rows: Tensor, target: Tensor) -> None:
        rows = rows.to(target.dtype).contiguous()
        size = rows.numel() * rows.element_size()
        buffer = self._buffers[self._turn]
        if buffer is None or len(buffer) < size:
            buffer = self._buffers[self._turn] = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        locked = buffer[:size].view(rows.dtype).view(rows.shape)
        with torch.cuda.device(rows.device):
            locked.copy_(rows, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        self.finish()
        self._pending = target, locked, event
        self._turn = 1 - self._turn

    def finish(self) -> None:
        if self._pending is not None:
            target, locked, event = self._pending
            event.synchronize()
            target.copy_(locked)
            self._pending = None


def _trim(slot: _Slot) -> None:
    """Give back the part of the last reservation that was not used."""
    if slot.room:
        last = slot.segments.pop()
        if slot.room < len(last):
            slot.segments.append(last[: len(last) - slot.room].clone())
        slot.room = 0


class _Blocks:
    """Memory of recordings that are gone, kept for the next one: at most ``most`` bytes.

    A recording touches a gigabyte once, and fresh pages are its main cost: 0.27 ms per MB page by page inside the
    copies, 0.11 when the system lays them out in one call (which is done for the first), nothing when they were
    touched before. A block is free when no tensor lies in it any more, so what was read stays valid whatever happens
    to its recording. (Not in huge pages: a virtual machine may have to fetch each from its host, up to 1.6 ms per MB.)
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._blocks: list[mmap.mmap] = []
        self._lock = threading.Lock()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Unset memory of that shape."""
        size = int(torch.Size(shape).numel()) * dtype.itemsize
        if size < 2**20 or not hasattr(mmap, "MAP_POPULATE"):
            return torch.empty(shape, dtype=dtype)
        with self._lock:
            fitting = [block for block in self._free() if size <= len(block) <= 1.25 * size]
            block = min(fitting, key=len, default=None)
            if block is None:
                block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
                self._blocks.append(block)
            del fitting
            tensor = torch.frombuffer(block, dtype=torch.uint8, count=size).view(dtype).view(shape)
            del block
            self._give_back(self.most)
        return tensor

    def release(self) -> None:
        """Give all free blocks back to the system."""
        with self._lock:
            self._give_back(0)

    def _free(self) -> list[mmap.mmap]:
        # Held by the list, by the loop and by the call that counts: every further holder is a tensor.
        return [block for block in self._blocks if sys.getrefcount(block) <= 3]

    def _give_back(self, most: int) -> None:
        free = self._free()
        size = sum(len(block) for block in free)
        while free and size > most:
            block = free.pop(0)
            size -= len(block)
            self._blocks.remove(block)


_BLOCKS = _Blocks(2**30)
