"""Weights files: read without running code and in bounded memory, and matched to a network.

A pickle can run any program, so ``.pt``, ``.pth``, ``.th``, ``.bin`` and ``.ckpt`` files are read with torch's
restricted unpickler (``weights_only=True``), which knows tensors and plain containers only.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import struct
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from lisse.models.specs import CHECKPOINT, PICKLED

SUFFIXES = (CHECKPOINT, *PICKLED)

# Where training scripts put the weights inside what they save.
WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "network")
# What DataParallel, torch.compile, lisse's Normalised and Lightning modules put before every name.
PREFIXES = ("module.", "_orig_mod.", "network.", "model.")

SHOWN = 6


def read_weights(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """The tensors of a weights file by name, on the CPU.

    Accepts ``.safetensors``, ``.pt``, ``.pth``, ``.th``, ``.bin``, ``.ckpt``, with or without a ``state_dict`` around
    them. Anything else in the file that is not a tensor is ignored; a file that is damaged, holds no tensors, or wants
    to run code is refused with a ``ValueError`` that names it.
    """
    file = Path(os.path.expanduser(path))
    if file.suffix not in SUFFIXES and not file.is_dir():
        raise ValueError(
            f"read_weights: path must end in {', '.join(SUFFIXES)}, got {str(file)!r}. Rename it if it is one of these."
        )
    if file.is_dir():
        raise IsADirectoryError(f"read_weights: path must be a file, got {str(file)!r}, a folder. Name a file in it.")
    if not file.is_file():
        raise FileNotFoundError(
            f"read_weights: path must be a file, got {str(file)!r}, which is not there. "
            f"Relative paths start at {os.getcwd()}."
        )
    if file.suffix == CHECKPOINT:
        metadata(file)
        try:
            return load_file(file)
        except (SafetensorError, OSError, ValueError, RuntimeError, MemoryError, KeyError, TypeError) as error:
            raise damaged(file, error) from error
    return _tensors(file, _unpickled(file))


def header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The header of a ``.safetensors`` file: shape and type of every tensor, and the metadata."""
    file = Path(path)
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
        # The format allows a header of up to 100 MB; a longer one, or one beyond the file's end, is damage.
        if not 2 <= length <= min(size - 8, 100_000_000):
            raise damaged(file, "its header is cut off or not one")
        try:
            content = json.loads(stream.read(length))
        except (ValueError, RecursionError) as error:
            raise damaged(file, "its header cannot be read") from error
    if not isinstance(content, dict):
        raise damaged(file, "its header is not one of the safetensors format")
    return content


def metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The metadata of a ``.safetensors`` file, read from its header alone."""
    entries = header(path).get("__metadata__", {})
    if not isinstance(entries, dict) or not all(isinstance(value, str) for value in entries.values()):
        raise damaged(Path(path), "its header is not one of the safetensors format")
    return entries


def load_weights(network: nn.Module, weights: Mapping[str, torch.Tensor], *, source: str = "weights") -> None:
    """Copy ``weights`` into ``network``; every parameter must be there, with its shape, and nothing else.

    Prefixes that wrappers add to all names (``module.``, ``_orig_mod.``, ``network.``, ``model.``) are taken off. Two
    things may be missing: ``num_batches_tracked``, which old files lack and evaluation does not use, and names that
    share their tensor with one that is there (tied embeddings). Nothing is copied unless all fits. Numbers that are
    not finite are copied with a warning.
    """
    tensors = fitted(network, weights, source=source)
    warn_not_finite(tensors, source)
    try:
        network.load_state_dict(tensors, strict=False)
    except RuntimeError as error:
        raise ValueError(
            f"load_weights: {source} must fit {type(network).__name__}, got {str(error).splitlines()[-1].strip()}. "
            "Check the architecture and its options."
        ) from error


def fitted(network: nn.Module, weights: Mapping[str, torch.Tensor], *, source: str) -> dict[str, torch.Tensor]:
    """``weights`` under the names of ``network`` (which may be on the meta device), or an error with what differs."""
    state = network.state_dict()
    tensors = _unprefixed(weights, state)
    partners = _tied(network)
    missing = [
        name for name in state
        if name not in tensors and not name.endswith("num_batches_tracked")
        and not partners.get(name, frozenset()) & tensors.keys()
    ]  # fmt: skip
    unexpected = [name for name in tensors if name not in state]
    shapes = [
        f"{name}: {list(tensors[name].shape)} instead of {list(tensor.shape)}"
        for name, tensor in state.items()
        if name in tensors and tensors[name].shape != tensor.shape
    ]
    faults = [
        f"{len(names)} {fault} ({shortened(names)})"
        for fault, names in (("missing", missing), ("unexpected", unexpected), ("of another shape", shapes))
        if names
    ]
    if faults:
        raise ValueError(
            f"load_weights: {source} must hold the parameters of {type(network).__name__}, got {'; '.join(faults)}. "
            "Check the architecture and its options (classes, in_channels, size)."
        )
    strange = [name for name, tensor in tensors.items() if tensor.layout != torch.strided or tensor.is_quantized]
    if strange:
        raise ValueError(
            f"load_weights: {source} must hold dense tensors, got sparse or quantised ones ({shortened(strange)}). "
            "Save them with .to_dense() or .dequantize()."
        )
    kinds = [
        f"{name}: {_kind(tensors[name])} instead of {_kind(tensor)}"
        for name, tensor in state.items()
        if name in tensors
        and (
            (tensors[name].is_complex() and not tensor.is_complex())
            or (_numeric(tensor) and not _numeric(tensors[name]))
        )
    ]
    if kinds:
        raise ValueError(
            f"load_weights: {source} must hold floating-point numbers where {type(network).__name__} has them, got "
            f"{len(kinds)} of another kind ({shortened(kinds)}). Save them as floats, with their scale where they "
            "were quantised."
        )
    return tensors


def warn_not_finite(tensors: Mapping[str, torch.Tensor], source: str) -> None:
    """Warn of tensors that hold NaN or infinity, by name."""
    strange = [
        name
        for name, tensor in tensors.items()
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor.float()).all())
    ]
    if strange:
        warnings.warn(
            f"load_model: {source} must hold finite numbers, got NaN or infinity in {len(strange)} tensors "
            f"({shortened(strange)}). The training has probably failed: take another checkpoint.",
            stacklevel=4,
        )


def _numeric(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _kind(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def check_pickle(file: Path) -> None:
    """Refuse an archive that would unpack to more than it is: torch never compresses what it saves.

    Files in torch's older, unzipped format have nothing to unpack and pass; they are pickles of protocol 2.
    """
    if not zipfile.is_zipfile(file):
        with file.open("rb") as stream:
            start = stream.read(2)
        if len(start) == 2 and start[0] == 0x80 and start[1] > 2:
            raise ValueError(
                f"read_weights: {file} must be written by torch.save, got a plain pickle (protocol {start[1]}), which "
                "could run any code; it was not opened. Save its tensors as .safetensors where you trust it."
            )
        return
    size = file.stat().st_size
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
        raise damaged(file, error) from error
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries) or sum(e.file_size for e in entries) > size:
        raise ValueError(
            f"read_weights: {file} must be stored uncompressed, as torch.save writes it, got compressed or overlapping "
            "entries, which can unpack to any size. Unpack and save it again where you trust it."
        )


class _Ignored:
    """Stands in for a NumPy number and its type while a file is read, so that none of NumPy's own code is called.

    Training scripts put their accuracy (``numpy.float64``) beside the weights; it is not used.
    """

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


STAND_INS: list[Any] = [
    (_Ignored, name)
    for name in (
        "numpy.dtype",
        *(f"numpy.{core}.multiarray.scalar" for core in ("core", "_core")),
        *(f"numpy.dtypes.{kind}DType" for kind in ("Bool", "Int32", "Int64", "Float16", "Float32", "Float64")),
    )
]


def _unpickled(file: Path) -> Any:
    check_pickle(file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.serialization.safe_globals(STAND_INS):
                return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle can raise anything: IndexError, struct.error, UnicodeDecodeError, …
        text = str(error)
        called = re.search(r"GLOBAL ([\w.<>]+)|unrecognized function (\S+)|but got <class '([\w.]+)'>", text)
        if isinstance(error, pickle.UnpicklingError) and called is not None:
            target = next(name for name in called.groups() if name)
            raise ValueError(
                f"read_weights: {file} must hold tensors only, got a pickle that wants to call {target[:80]} while "
                "loading, which could run any code; it was not run. Save its state_dict as .safetensors where you "
                "trust it."
            ) from None
        # torch's message is a page about its own history; its reason stands alone between empty lines.
        reasons = [part.strip() for part in text.split("\n\n") if part.strip()]
        lone = isinstance(error, pickle.UnpicklingError) and len(reasons) > 1
        raise damaged(file, reasons[1] if lone else error) from error


def _tensors(file: Path, content: Any) -> dict[str, torch.Tensor]:
    """The state dict inside what a training script saved."""
    for _ in range(3):
        if not isinstance(content, Mapping):
            break
        inner = next((content[key] for key in WRAPPERS if isinstance(content.get(key), Mapping)), None)
        if inner is None:
            break
        content = inner
    if isinstance(content, Mapping):
        tensors = {
            key: value for key, value in content.items() if isinstance(key, str) and isinstance(value, torch.Tensor)
        }
        if tensors:
            return tensors
    raise ValueError(
        f"read_weights: {file} must hold a state dict (names and tensors), got a {type(content).__name__} without any. "
        "Save it with torch.save(model.state_dict(), path)."
    )


def _unprefixed(weights: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """``weights`` without the prefixes that all names share, and with those that all names of ``state`` have."""
    prefix = next(iter(state), "").removesuffix(next(iter(bare(state)), ""))
    return {prefix + name: tensor for name, tensor in bare(weights).items()}


def bare(names: Mapping[str, Any]) -> dict[str, Any]:
    """A state dict without the prefixes that wrappers put before all its names."""
    result = dict(names)
    while prefix := next((p for p in PREFIXES if result and all(name.startswith(p) for name in result)), None):
        result = {name.removeprefix(prefix): value for name, value in result.items()}
    return result


def _tied(network: nn.Module) -> dict[str, frozenset[str]]:
    """For every parameter's name, all names of the same parameter."""
    # By identity, not by memory address: on the meta device all addresses are the same.
    groups: dict[int, set[str]] = {}
    parameters = list(network.named_parameters(remove_duplicate=False))
    for name, parameter in parameters:
        groups.setdefault(id(parameter), set()).add(name)
    return {name: frozenset(groups[id(parameter)]) for name, parameter in parameters}


def shortened(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    listed = list(names)
    more = f", … and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return ", ".join(listed[:SHOWN]) + more


def damaged(file: Path, why: object) -> ValueError:
    """The error for a file that cannot be read, with the reason."""
    # Only the first line and not too much of it: a hostile file may put anything into the library's message.
    text = (str(why).strip().splitlines() or [type(why).__name__])[0][:160].rstrip(".")
    return ValueError(f"read_weights: {file} must be a whole weights file, got a damaged one ({text}). Fetch it again.")
