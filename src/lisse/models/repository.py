"""A Hugging Face repository as a folder on this machine, and a first look at what lies in it.

The network is used only where that was asked for (``?download=true`` or ``LISSE_DOWNLOAD=1``); otherwise the cache of
huggingface_hub is all there is.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from lisse.libraries import brings_code, extra, may_download, quarantine
from lisse.models.weights import header, metadata, read_weights, shortened

# Far above every model there is. A config is a small text, and can ask for any number of modules.
REPEATED, MOST_REPEATED = re.compile(r"(^|_)(layers?|depths?|blocks?|stages?|experts)($|_)"), 1000
LABELS, MOST_LABELS = re.compile(r"(labels|classes)$"), 1_000_000
_LARGEST_NUMBER = 10**10
_MOST_JSON = 16 << 20


def folder_of(name: str, revision: Any, download: Any) -> Path:
    """The folder of a model: ``name`` itself, or the repository's snapshot in the cache, fetched if it may be."""
    if not isinstance(download, bool):
        raise TypeError(f"load_model: download must be true or false, got {download!r}. Write download=true.")
    folder = Path(os.path.expanduser(name))
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ValueError(
                f"load_model: {name} must hold a config.json, got none. Name the folder with the model's files."
            )
        return folder
    if os.sep * 2 in name or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ValueError(f"load_model: hf: must name a directory or a repository, got {name!r}, which is not there.")
    hub = extra("huggingface_hub", "hf", "load_model")
    network = may_download(download)
    version = None if revision is None else str(revision)
    try:
        with quarantine(network):
            files = _needed(hub.list_repo_files(name, revision=version)) if network else None
            snapshot = hub.snapshot_download(name, revision=version, allow_patterns=files, local_files_only=not network)
    except Exception as error:  # the hub's many errors: no such name, no access, no connection, not in the cache
        text = (str(error).strip().splitlines() or [type(error).__name__])[0][:160].rstrip(".")
        if network:
            raise ValueError(f"load_model: {name} must be a model that can be fetched, got: {text}.") from error
        raise ValueError(
            f"load_model: {name} must be a folder or in the Hugging Face cache, got neither ({text}). The network is "
            "only used when asked: add ?download=true, or set LISSE_DOWNLOAD=1."
        ) from error
    return Path(snapshot)


def _needed(files: list[str]) -> list[str]:
    """Of a repository's files, those that a model in torch is read from."""
    top = [file for file in files if "/" not in file]
    weights = fnmatch.filter(top, "model*.safetensors") or fnmatch.filter(top, "pytorch_model*.bin")
    return weights + [file for file in top if file.endswith((".json", ".txt", ".model"))]


def check_config(folder: Path) -> None:
    """Refuse a config that asks for an absurd number of layers, labels or anything, before any of it is built."""
    config = read_json(folder / "config.json")
    strange = [f"{key}={value}" for key, value in _absurd(config or {})]
    if strange:
        raise ValueError(
            f"load_model: {folder} must have a config.json with sane sizes (at most {MOST_REPEATED} layers), got "
            f"{shortened(strange)}. Fetch it again."
        )


def _absurd(config: dict[str, Any]) -> Iterator[tuple[str, object]]:
    for key, value in config.items():
        if isinstance(value, dict) and not key.endswith(("2label", "2id")):
            yield from _absurd(value)
        numbers = [v for v in value if isinstance(v, int)] if isinstance(value, list) else [value]
        if not all(isinstance(number, int) for number in numbers):
            continue
        largest = max(map(abs, numbers), default=0)
        counted = sum(map(abs, numbers)) if REPEATED.search(key) else 0
        if (
            largest > _LARGEST_NUMBER
            or (not isinstance(value, list) and counted > MOST_REPEATED)
            or (key.startswith("depth") and counted > MOST_REPEATED)
            or (LABELS.search(key) and largest > MOST_LABELS)
        ):
            yield key, value if not isinstance(value, list) else f"{value[:3]}…"


def check_files(folder: Path, cls: Any, config: Any) -> tuple[bool, int]:
    """Whether the weights are pickles, after a look at every file (whole headers, no bombs, enough bytes); how many."""
    if (folder / "adapter_config.json").is_file():
        # Where peft is installed, transformers would put the adapter on top, from files that nobody looked at.
        raise ValueError(
            f"load_model: {folder} must hold a whole model, got an adapter (adapter_config.json). Merge it into its "
            "model and save that, or remove the adapter's files."
        )
    files = sorted(folder.glob("*.safetensors"))
    pickled = not files
    if pickled:
        files = sorted(folder.glob("pytorch_model*.bin"))
    if not files:
        raise ValueError(
            f"load_model: {folder} must hold *.safetensors or pytorch_model.bin, got neither. Download the weights too."
        )
    for file in files:
        # transformers would refuse the same files, in a page of text; these checks say it in a line.
        if pickled:
            kinds = {name: str(tensor.dtype) for name, tensor in read_weights(file).items()}
        else:
            metadata(file)
            kinds = {name: str(entry.get("dtype")) for name, entry in header(file).items() if isinstance(entry, dict)}
        strange = [name for name, kind in kinds.items() if re.fullmatch(r"C\d+|[IU]8|torch\.(complex\d+|u?int8)", kind)]
        if strange:
            raise ValueError(
                f"load_model: {file} must hold floating-point weights, got complex or 8-bit integer ones "
                f"({shortened(strange)}). Save them as floats."
            )
    # A config that asks for more parameters than the files can hold would have memory reserved for it before the
    # weights are found missing. One byte each is the least that a parameter can take.
    try:
        with torch.device("meta"):
            parameters = sum(p.numel() for p in cls(config).parameters())
    except Exception as error:  # whatever a model's constructor raises on a config that makes no sense
        raise unreadable(folder, error) from error
    size = sum(file.stat().st_size for file in files)
    if parameters > 2 * size:
        raise ValueError(
            f"load_model: {folder} must hold the {parameters} parameters of its config, got {size} bytes of weights. "
            "Fetch it again."
        )
    return pickled, parameters


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file, or ``None`` where there is no file."""
    if not path.is_file():
        return None
    if path.stat().st_size > _MOST_JSON:
        raise unreadable(path, f"more than {_MOST_JSON >> 20} MB of JSON")
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise unreadable(path, error) from error
    if not isinstance(content, dict):
        raise unreadable(path, "not an object")
    return content


def unreadable(name: object, why: object) -> ValueError:
    """The error for a model that cannot be read, with the reason in one line."""
    if brings_code(why):
        return ValueError(
            f"load_model: {name} must be a readable Hugging Face model, got one that brings code of its own "
            "(auto_map); it was not run. Write a factory around a model that you trust: package.module:factory."
        )
    # The second line of a field's error says what is wrong with it.
    text = " ".join(str(why).split("\n\n")[0].split())[:200].rstrip(".:") or type(why).__name__
    return ValueError(f"load_model: {name} must be a readable Hugging Face model, got: {text}. Fetch it again.")
