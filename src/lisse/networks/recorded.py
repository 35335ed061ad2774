"""Activations that something else has recorded, as a network that gives them again: whatever reads layers reads these.

A folder holds ``.safetensors`` or ``.npz`` files (written by ``numpy.savez``), in each of them one array per layer, or
one array alone; a layer's shards are its arrays in the order of the files' names. Nothing is read but what is asked
for: files are mapped, and nothing in them is run.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn

from lisse.profile_file.container import npy_header, saying

TARGETS = ("targets", "target", "labels", "label")
SOURCES_OF_ALL = ("inputs", "input")  # layers that come before all others, whatever their names
_ORDER = "layers.json"
_NUMBER = re.compile(r"[-_.](shard|part|rank)?[-_.]?\d{3,}(-of-\d+)?$")


@dataclass(frozen=True)
class Shard:
    """One array in one file: ``rows`` samples of one layer."""

    file: Path
    key: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    def read(self, start: int, stop: int) -> Tensor:
        """Samples ``start … stop - 1`` of it, a copy."""
        if self.file.suffix == ".safetensors":
            with safe_open(self.file, "pt") as content:
                rows: Tensor = content.get_slice(self.key)[start:stop]
            return rows
        return torch.from_numpy(np.array(_mapped(self.file, self.key)[start:stop]))


class RecordedLayer(nn.Module):
    """A place among the names of the layers, and the shards that lie there: called with samples, it gives them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, 1), requires_grad=False)  # what says where to, and that it is a layer
        self.shards: tuple[Shard, ...] = ()

    def forward(self, samples: Tensor) -> Tensor:
        """Activations ``[n, …]`` of samples ``[n, 1, 1]``, numbers from 0 on."""
        numbers = samples.flatten().tolist()
        rows = [self._rows(start, stop) for start, stop in _stretches(numbers)]
        return torch.cat(rows).to(self.weight.device)

    def _rows(self, start: int, stop: int) -> Tensor:
        parts, position = [], 0
        for shard in self.shards:
            low, high = max(start, position) - position, min(stop, position + shard.shape[0]) - position
            if low < high:
                parts.append(shard.read(low, high))
            position += shard.shape[0]
        return torch.cat(parts)


class Recorded(nn.Module):
    """A network whose layers give what lies in a folder for the samples that it is called with.

    ``samples`` ``[n, 1, 1]`` are its inputs, all of them; ``targets`` what the folder holds under ``labels`` or
    ``targets``. Layers are in the order of ``layers.json`` (a list of names) where there is one, else ``inputs`` first
    and then by name, numbers by their size.
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        path = Path(folder).expanduser()
        shards = _shards(path)
        self.names = _ordered(path, [name for name in shards if name not in TARGETS])
        count = _count(path, {name: shards[name] for name in self.names})
        for name in self.names:
            node: nn.Module = self
            for part in name.split("."):
                if not isinstance(getattr(node, part, None), RecordedLayer):
                    node.add_module(part, RecordedLayer())
                node = getattr(node, part)
            assert isinstance(node, RecordedLayer)
            node.shards = tuple(shards[name])
        self.samples = torch.arange(count).reshape(-1, 1, 1)
        self.targets = next((_labels(shards[name], count, name) for name in TARGETS if name in shards), None)
        files = sorted({shard.file for parts in shards.values() for shard in parts})
        self.register_buffer("identity", torch.tensor(list(_identity(files))))

    def forward(self, samples: Tensor) -> Tensor:
        """Every layer for these samples, one after the other; the last one's."""
        for name in self.names:
            activation = self.get_submodule(name)(samples)
        result: Tensor = activation
        return result


def only_recorded(model: nn.Module, need: str) -> str | None:
    """Why an instrument that needs more (``it deforms images``) does not fit, where activations are all there is."""
    return f"{need}, and of this network there are recorded activations alone." if isinstance(model, Recorded) else None


def _shards(folder: Path) -> dict[str, list[Shard]]:
    """All arrays of a folder by layer, in the order of the files."""
    if not folder.is_dir():
        raise ValueError(f"Recorded: folder must be a folder of recorded layers, got {folder}, which is none.")
    files = sorted((file for file in folder.iterdir() if file.suffix in (".safetensors", ".npz")), key=_natural)
    if not files:
        raise ValueError(
            f"Recorded: {folder} must hold .safetensors or .npz files, got neither. Write an array per layer and shard."
        )
    shards: dict[str, list[Shard]] = {}
    for file in files:
        for key, shape, dtype in _arrays(file):
            name = _NUMBER.sub("", file.stem) if key == "arr_0" else key
            if not shape or "" in name.split("."):
                raise ValueError(f"Recorded: {file} must hold arrays [samples, …] by layer, got {key!r} {list(shape)}.")
            shard = Shard(file, key, shape, dtype)
            first = shards.setdefault(name, [shard])[0]
            if (shape[1:], dtype) != (first.shape[1:], first.dtype):
                raise ValueError(
                    f"Recorded: every shard of {name} must have one shape and dtype, got {list(shape[1:])} {dtype} in "
                    f"{file.name} and {list(first.shape[1:])} {first.dtype} in {first.file.name}. Pad them alike."
                )
            if shard is not first:
                shards[name].append(shard)
    return shards


def _arrays(file: Path) -> list[tuple[str, tuple[int, ...], torch.dtype]]:
    """The names, shapes and dtypes of a file's arrays, from its header."""
    with saying("Recorded", f"{file} must be a whole file of arrays, stored as they are"):
        parts = _headers(file)
    return [(key, tuple(shape), dtype) for key, shape, dtype in parts]


def _headers(file: Path) -> list[tuple[str, Sequence[int], torch.dtype]]:
    if file.suffix == ".safetensors":
        with safe_open(file, "pt") as content:
            slices = {key: content.get_slice(key) for key in content.keys()}  # noqa: SIM118  (it is no dict)
            return [(key, part.get_shape(), part[:0].dtype) for key, part in slices.items()]
    with zipfile.ZipFile(file) as archive:
        keys = [name.removesuffix(".npy") for name in archive.namelist()]
    arrays = {key: _mapped(file, key) for key in keys}
    return [(key, array.shape, torch.from_numpy(array[:0].copy()).dtype) for key, array in arrays.items()]


def _mapped(file: Path, key: str) -> np.ndarray:
    """An array of an ``.npz`` file where it lies, without reading it."""
    with zipfile.ZipFile(file) as archive, file.open("rb") as raw:
        member = archive.getinfo(f"{key}.npy")
        if member.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{key!r} is compressed and cannot be mapped; use numpy.savez")
        raw.seek(member.header_offset + 26)
        lengths = np.frombuffer(raw.read(4), "<u2")
        raw.seek(member.header_offset + 30 + int(lengths.sum()))
        dtype, layout, shape, _ = npy_header(raw, member)
        if dtype.kind not in "biuf" or layout == "F":
            raise ValueError(f"{key!r} holds no numbers, rows first, but {dtype}; save it anew")
        if math.prod(shape) * dtype.itemsize > member.file_size:
            raise ValueError(f"{key!r} has fewer bytes than it says")
        if 0 in shape:
            return np.empty(shape, dtype)
        return np.memmap(raw, dtype, "r", raw.tell(), shape)


def _ordered(folder: Path, names: list[str]) -> list[str]:
    """The layers along depth."""
    if not names:
        raise ValueError(f"Recorded: {folder} must hold layers, got only {', '.join(TARGETS)}.")
    index = folder / _ORDER
    if not index.is_file():
        return sorted(names, key=lambda name: (name not in SOURCES_OF_ALL, _natural(name)))
    try:
        order: Any = json.loads(index.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"Recorded: {index} must be a list of layers in JSON, got: {error}.") from error
    if not isinstance(order, list) or not all(isinstance(name, str) for name in order):
        raise ValueError(f"Recorded: {index} must be a list of layers in JSON, got {type(order).__name__}.")
    missing = [name for name in order if name not in names]
    if missing:
        raise ValueError(
            f"Recorded: {folder} must hold the layers of its {_ORDER}, got none of {', '.join(missing[:5])}. "
            f"It has {', '.join(names[:5])}."
        )
    return order


def _count(folder: Path, shards: dict[str, list[Shard]]) -> int:
    """How many samples there are, where every layer has as many in as many shards."""
    sizes = {name: tuple(shard.shape[0] for shard in parts) for name, parts in shards.items()}
    usual = Counter(sizes.values()).most_common(1)[0][0]
    for name, rows in sizes.items():
        if sum(rows) != sum(usual):
            files = {shard.file for shard in next(shards[other] for other in sizes if sizes[other] == usual)}
            absent = sorted(file.name for file in files - {shard.file for shard in shards[name]})
            hint = f" Not in {', '.join(absent[:3])}." if absent and len(rows) < len(usual) else ""
            raise ValueError(
                f"Recorded: every layer of {folder} must have the same samples, got {sum(rows)} in {len(rows)} shards "
                f"of {name} and {sum(usual)} in {len(usual)} of the others.{hint} Record it again, or leave it out."
            )
    return sum(usual)


def _identity(files: list[Path]) -> bytes:
    """A hash by which a cache knows files again: their sizes, their times, and how each ends."""
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        state = file.stat()
        digest.update(repr((file.name, state.st_size, state.st_mtime_ns)).encode())
        with file.open("rb") as content:
            content.seek(max(0, state.st_size - (1 << 16)))
            digest.update(content.read())
    return digest.digest()


def _labels(shards: list[Shard], count: int, name: str) -> Tensor:
    values = torch.cat([shard.read(0, shard.shape[0]) for shard in shards])
    if len(values) != count:
        raise ValueError(f"Recorded: {name} must hold one for each of {count} samples, got {len(values)}.")
    return values


def _stretches(numbers: list[int]) -> list[tuple[int, int]]:
    """Runs of consecutive numbers, as (first, last + 1)."""
    cuts = [0, *(i for i, (a, b) in enumerate(pairwise(numbers), 1) if b != a + 1), len(numbers)]
    return [(numbers[a], numbers[b - 1] + 1) for a, b in pairwise(cuts)]


def _natural(name: str | Path) -> list[tuple[int, str]]:
    """A key by which ``layer.2`` comes before ``layer.10``."""
    text = name.name if isinstance(name, Path) else name
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]
