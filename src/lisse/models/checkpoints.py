"""Lisse checkpoints: ``.safetensors`` files that say how their network is built; written atomically, never trusted."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from lisse.models.specs import CHECKPOINT, Spec, parse, text_of
from lisse.models.weights import bare, damaged, metadata
from lisse.networks import zoo

# Options of the zoo that matter while a network is trained or drawn, and not to what trained weights compute.
TRAINING = ("seed", "sigma", "dropout", "drop_path")


def save_checkpoint(model: nn.Module, path: str | os.PathLike[str], *, spec: str | None = None) -> Path:
    """Write a lisse checkpoint: the weights, and in the header the spec and the preprocessing.

    ``load_model(path)`` then rebuilds the model. ``spec`` says how to build the network without weights; it is taken
    from ``model.lisse`` where the model came from :func:`lisse.load_model`. The file appears whole or not at all: it is
    written beside its place and moved there, so that a run that is killed leaves the older checkpoint intact.
    """
    file = Path(path)
    if file.suffix != CHECKPOINT:
        raise ValueError(f"save_checkpoint: path must end in .safetensors, got {str(file)!r}. Rename it.")
    card = getattr(model, "lisse", None)
    origin = spec if spec is not None else getattr(card, "architecture", "")
    if not origin:
        raise ValueError(
            "save_checkpoint: spec must say how to build the network, got none. Give spec='zoo:NAME?…', or save a "
            "model that load_model made."
        )
    # The weights and the statistics are in the file; a spec that also named them could come to contradict it.
    described: dict[str, Any] = {"format": 1, "spec": parse(origin).without("weights", "mean", "std", "download")}
    for entry in ("kind", "input_size", "mean", "std", "classes"):
        if getattr(card, entry, None) is not None:
            described[entry] = getattr(card, entry)
    seen: set[tuple[int, tuple[int, ...], tuple[int, ...]]] = set()
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in bare(model.state_dict()).items():
        key = (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()))
        # safetensors refuses shared memory; a tied tensor is written once and found again by load_weights.
        if tensor.numel() and key in seen:
            continue
        seen.add(key)
        tensors[name] = tensor.detach().to("cpu").contiguous().clone()
    file.parent.mkdir(parents=True, exist_ok=True)
    # Not tempfile: its files are private, and the mode of any other new file is only known to the system.
    temporary = file.parent / f".{file.name}.{secrets.token_hex(8)}.tmp"
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    mode = temporary.stat().st_mode
    try:
        save_file(tensors, temporary, metadata={"lisse": json.dumps(described)})
        with open(temporary, "rb+") as stream:
            os.fsync(stream.fileno())
        temporary.chmod(mode)  # safetensors makes a private file, too
        os.replace(temporary, file)
    except BaseException:
        temporary.unlink(missing_ok=True)
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
        raise damaged(Path(path), "its lisse header cannot be read") from error
    if not isinstance(said, dict) or not isinstance(said.get("spec"), str) or said.get("format") != 1:
        raise damaged(Path(path), "its lisse header is not of a format that this version knows")
    return said


def declaration_of(weights: str | None) -> dict[str, Any] | None:
    """What a weights file says about itself if it is a lisse checkpoint, else ``None``."""
    file = Path(weights or "").expanduser()
    return read_declaration(file) if file.suffix == CHECKPOINT and file.is_file() else None


def check_architecture(said: Mapping[str, Any], asked: Spec, weights: str) -> None:
    """Raise where a checkpoint of a zoo network is asked for as another one that has the same shapes."""
    stored = parse(said["spec"])
    if stored.hub != "zoo" or stored.name not in zoo.NETWORKS:
        return
    differing = [f"{stored.name} instead of {asked.name}"] if stored.name != asked.name else []
    own = {key: value for key, value in stored.options.items() if key not in (*TRAINING, "mean", "std")}
    trained = zoo.settings(stored.name, own)
    wanted = zoo.settings(asked.name, {key: value for key, value in asked.options.items() if key not in TRAINING})
    differing += [
        f"{key}={text_of(trained[key])} instead of {text_of(wanted[key])}"
        for key in trained.keys() & wanted.keys()
        if key not in TRAINING and trained[key] != wanted[key] and not (key == "size" and "size" in asked.options)
    ]
    if differing:
        raise ValueError(
            f"load_model: weights must be of the network asked for, got a checkpoint of {said['spec']!r} "
            f"({', '.join(sorted(differing))}). Write {weights} alone, or "
            f"{Spec('zoo', stored.name, {**own, 'weights': weights}).without()}"
        )
