"""One file that holds a whole moment of a run: weights, optimiser, position and log. Safetensors with JSON in its
header, so that the two cannot disagree; never a pickle.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

FORMAT = 1
KEY = "lisse-training"


def write_checkpoint(path: Path, tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> None:
    """Write beside ``path``, bring it to the disk, move it there: ``path`` is whole or not there at all."""
    seen: set[tuple[int, tuple[int, ...], tuple[int, ...]]] = set()
    kept: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        place = (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()))
        if tensor.numel() and place in seen:
            continue  # tied: written once
        seen.add(place)
        held = tensor.detach().to("cpu").contiguous()
        # safetensors refuses tensors that share memory: a view of another one is copied.
        alone = held.untyped_storage().nbytes() == held.numel() * held.element_size()
        kept[name] = held if alone else held.clone()
    text = json.dumps({"format": FORMAT, **document})
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        mode = temporary.stat().st_mode
        save_file(kept, temporary, metadata={KEY: text})
        temporary.chmod(mode)  # safetensors makes a private file
        with open(temporary, "rb+") as stream:
            os.fsync(stream.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, SafetensorError):
            raise OSError(errno.EIO, str(error)) from error
        raise


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the document of a file that :func:`write_checkpoint` wrote; a ``ValueError`` if it is none."""
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(KEY, "")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 -- not a dict
        document = json.loads(text)
    except (SafetensorError, ValueError, RuntimeError, RecursionError) as error:
        raise ValueError(f"train: {path} must be a checkpoint of a training, got a damaged file ({error}).") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"train: {path} must be a checkpoint of a training of this version, got another.")
    return tensors, document


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:  # some file systems cannot; the rename itself is still atomic
        pass
    finally:
        os.close(handle)


def model_tensors(model: torch.nn.Module) -> dict[str, Tensor]:
    """The weights and buffers of a model, as ``model/NAME``."""
    return {f"model/{name}": value for name, value in model.state_dict().items() if isinstance(value, Tensor)}


def load_model_tensors(model: torch.nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy what :func:`model_tensors` gave into a model of the same architecture."""
    given = {name.removeprefix("model/"): value for name, value in tensors.items() if name.startswith("model/")}
    own = model.state_dict()
    places = {(own[name].data_ptr(), tuple(own[name].shape)) for name in given if name in own}
    missing = [
        name for name, value in own.items()
        if name not in given and isinstance(value, Tensor)
        and value.numel() and (value.data_ptr(), tuple(value.shape)) not in places
    ]  # fmt: skip
    wrong = [name for name, value in given.items() if name not in own or own[name].shape != value.shape]
    if missing or wrong:
        raise ValueError(
            f"train: model must be that of the run's checkpoint, got another architecture "
            f"({', '.join((missing + wrong)[:4])} differ). Choose another folder with out=…"
        )
    model.load_state_dict(given, strict=False)
