"""Weights files: read without running code and in bounded memory, matched to a network, written atomically.

A pickle can run any program, so ``.pt``, ``.pth``, ``.th`` and ``.bin`` files are read with torch's restricted
unpickler (``weights_only=True``), which knows tensors and plain containers only.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import struct
import tempfile
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from lisse.models.specs import parse

PICKLED = (".pt", ".pth", ".th", ".bin")
SUFFIXES = (".safetensors", *PICKLED)

# Where training scripts put the weights inside what they save.
WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "network")
# What DataParallel, torch.compile and lisse's Normalised put before every name.
PREFIXES = ("module.", "_orig_mod.", "network.")

SHOWN = 6


def read_weights(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """The tensors of a weights file by name, on the CPU.

    Accepts ``.safetensors``, ``.pt``, ``.pth``, ``.th`` and ``.bin``, with or without a ``state_dict`` around them.
    Anything else in the file that is not a tensor is ignored; a file that is damaged, holds no tensors, or wants to
    run code is refused with a ``ValueError`` that names it.
    """
    file = Path(path).expanduser()
    if file.suffix not in SUFFIXES:
        raise ValueError(
            f"read_weights: path must end in {', '.join(SUFFIXES)}, got {str(file)!r}. Rename it if it is one of these."
        )
    if not file.is_file():
        raise FileNotFoundError(
            f"read_weights: path must be a file, got {str(file)!r}, which is not there. "
            f"Relative paths start at {os.getcwd()}."
        )
    if file.suffix == ".safetensors":
        metadata(file)
        try:
            return load_file(file)
        except (SafetensorError, OSError, ValueError, RuntimeError, MemoryError, KeyError, TypeError) as error:
            raise _damaged(file, error) from error
    return _tensors(file, _unpickled(file))


def metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The metadata of a ``.safetensors`` file, read from its header alone."""
    file = Path(path)
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
        # The format allows a header of up to 100 MB; a longer one, or one beyond the file's end, is damage.
        if not 2 <= length <= min(size - 8, 100_000_000):
            raise _damaged(file, "its header is cut off or not one")
        try:
            header = json.loads(stream.read(length))
        except (ValueError, RecursionError) as error:
            raise _damaged(file, "its header cannot be read") from error
    found = header.get("__metadata__", {}) if isinstance(header, dict) else None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise _damaged(file, "its header is not one of the safetensors format")
    return found


def load_weights(network: nn.Module, weights: Mapping[str, torch.Tensor], *, source: str = "weights") -> None:
    """Copy ``weights`` into ``network``; every parameter must be there, with its shape, and nothing else.

    Prefixes that wrappers add to all names (``module.``, ``_orig_mod.``, ``network.``) are taken off. Two things may
    be missing: ``num_batches_tracked``, which old files lack and evaluation does not use, and names that share their
    tensor with one that is there (tied embeddings). Nothing is copied unless all fits.
    """
    given = fitted(network, weights, source=source)
    try:
        network.load_state_dict(given, strict=False)
    except RuntimeError as error:
        raise ValueError(
            f"load_weights: {source} must fit {type(network).__name__}, got {str(error).splitlines()[-1].strip()}. "
            "Check the architecture and its options."
        ) from error


def fitted(network: nn.Module, weights: Mapping[str, torch.Tensor], *, source: str) -> dict[str, torch.Tensor]:
    """``weights`` under the names of ``network`` (which may be on the meta device), or an error with what differs."""
    own = network.state_dict()
    given = _unprefixed(weights, own)
    partners = _tied(network)
    missing = [
        name for name in own
        if name not in given and not name.endswith("num_batches_tracked")
        and not partners.get(name, frozenset()) & given.keys()
    ]  # fmt: skip
    unexpected = [name for name in given if name not in own]
    shapes = [
        f"{name}: {list(given[name].shape)} instead of {list(tensor.shape)}"
        for name, tensor in own.items()
        if name in given and given[name].shape != tensor.shape
    ]
    faults = [
        f"{len(names)} {what} ({shortened(names)})"
        for what, names in (("missing", missing), ("unexpected", unexpected), ("of another shape", shapes))
        if names
    ]
    if faults:
        raise ValueError(
            f"load_weights: {source} must hold the parameters of {type(network).__name__}, got {'; '.join(faults)}. "
            "Check the architecture and its options (classes, in_channels, size)."
        )
    strange = [name for name, tensor in given.items() if tensor.layout != torch.strided or tensor.is_quantized]
    if strange:
        raise ValueError(
            f"load_weights: {source} must hold dense tensors, got sparse or quantised ones ({shortened(strange)}). "
            "Save them with .to_dense() or .dequantize()."
        )
    return given


def save_checkpoint(model: nn.Module, path: str | os.PathLike[str], *, spec: str | None = None) -> Path:
    """Write a lisse checkpoint: the weights, and in the header the spec and the preprocessing.

    ``load_model(path)`` then rebuilds the model. ``spec`` says how to build the network without weights; it is taken
    from ``model.lisse`` where the model came from :func:`lisse.load_model`. The file appears whole or not at all: it is
    written beside its place and moved there, so that a run that is killed leaves the older checkpoint intact.
    """
    file = Path(path)
    if file.suffix != ".safetensors":
        raise ValueError(f"save_checkpoint: path must end in .safetensors, got {str(file)!r}. Rename it.")
    card = getattr(model, "lisse", None)
    origin = spec if spec is not None else getattr(card, "architecture", "")
    if not origin:
        raise ValueError(
            "save_checkpoint: spec must say how to build the network, got none. Give spec='zoo:NAME?…', or save a "
            "model that load_model made."
        )
    # The weights and the statistics are in the file; a spec that also named them could come to contradict it.
    described: dict[str, Any] = {"format": 1, "spec": parse(origin).without("weights", "mean", "std")}
    for entry in ("kind", "input_size", "mean", "std", "classes"):
        if getattr(card, entry, None) is not None:
            described[entry] = getattr(card, entry)
    seen: set[tuple[int, tuple[int, ...], tuple[int, ...]]] = set()
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in _unprefixed(model.state_dict(), {}).items():
        key = (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()))
        # safetensors refuses shared memory; a tied tensor is written once and found again by load_weights.
        if tensor.numel() and key in seen:
            continue
        seen.add(key)
        tensors[name] = tensor.detach().to("cpu").contiguous().clone()
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.", suffix=".tmp")
    os.close(handle)
    try:
        save_file(tensors, temporary, metadata={"lisse": json.dumps(described)})
        with open(temporary, "rb+") as stream:
            os.fsync(stream.fileno())
        # mkstemp makes the file private; give it the mode that any new file would have.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return file


def read_declaration(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """What a lisse checkpoint says about itself (spec, mean, std, …), or ``None`` for any other ``.safetensors``."""
    text = metadata(path).get("lisse")
    if text is None:
        return None
    try:
        said = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(Path(path), "its lisse header cannot be read") from error
    if not isinstance(said, dict) or not isinstance(said.get("spec"), str) or said.get("format") != 1:
        raise _damaged(Path(path), "its lisse header is not of a format that this version knows")
    return said


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
        raise _damaged(file, error) from error
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries) or sum(e.file_size for e in entries) > size:
        raise ValueError(
            f"read_weights: {file} must be stored uncompressed, as torch.save writes it, got compressed or overlapping "
            "entries, which can unpack to any size. Unpack and save it again where you trust it."
        )


def _unpickled(file: Path) -> Any:
    check_pickle(file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle can raise anything: IndexError, struct.error, UnicodeDecodeError, …
        text = str(error)
        called = re.search(r"GLOBAL ([\w.<>]+)|unrecognized function (\S+)|but got <class '([\w.]+)'>", text)
        if isinstance(error, pickle.UnpicklingError) and called is not None:
            what = next(name for name in called.groups() if name)
            raise ValueError(
                f"read_weights: {file} must hold tensors only, got a pickle that wants to call {what[:80]} while "
                "loading, which could run any code; it was not run. Save its state_dict as .safetensors where you "
                "trust it."
            ) from None
        # torch's message is a page about its own history; its reason stands alone between empty lines.
        reasons = [part.strip() for part in text.split("\n\n") if part.strip()]
        lone = isinstance(error, pickle.UnpicklingError) and len(reasons) > 1
        raise _damaged(file, reasons[1] if lone else error) from error


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


def _unprefixed(weights: Mapping[str, torch.Tensor], own: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """``weights`` without the prefixes that all names share and that ``own`` names do not."""
    result = dict(weights)
    while result:
        prefix = next((p for p in PREFIXES if all(name.startswith(p) for name in result)), None)
        if prefix is None or (own and all(name.startswith(prefix) for name in own)):
            break
        result = {name.removeprefix(prefix): tensor for name, tensor in result.items()}
    if own and all(name.startswith("network.") for name in own) and not result.keys() & own.keys():
        # The other way round: weights of the bare network for one that lisse has wrapped.
        result = {f"network.{name}": tensor for name, tensor in result.items()}
    return result


def _tied(network: nn.Module) -> dict[str, frozenset[str]]:
    """For every parameter's name, all names of the same parameter."""
    # By identity, not by memory address: on the meta device all addresses are the same.
    groups: dict[int, set[str]] = {}
    named = list(network.named_parameters(remove_duplicate=False))
    for name, parameter in named:
        groups.setdefault(id(parameter), set()).add(name)
    return {name: frozenset(groups[id(parameter)]) for name, parameter in named}


def shortened(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    listed = list(names)
    more = f", … and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return ", ".join(listed[:SHOWN]) + more


def _damaged(file: Path, why: object) -> ValueError:
    # Only the first line and not too much of it: a hostile file may put anything into the library's message.
    text = (str(why).strip().splitlines() or [type(why).__name__])[0][:160].rstrip(".")
    return ValueError(f"read_weights: {file} must be a whole weights file, got a damaged one ({text}). Fetch it again.")
