"""Lisse checkpoints: ``.safetensors`` files that say how their network is built; written atomically, never trusted."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from lisse.models.specs import CHECKPOINT, Spec, parse, text_of
from lisse.models.weights import bare, damaged, metadata
from lisse.networks import zoo
from lisse.profile_file.replacement import write_tensors

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
    declaration: dict[str, Any] = {"format": 1, "spec": parse(origin).without("weights", "mean", "std", "download")}
    for entry in ("kind", "input_size", "mean", "std", "classes"):
        if getattr(card, entry, None) is not None:
            declaration[entry] = getattr(card, entry)
    # A tied tensor is written once and found again by load_weights.
    write_tensors(file, bare(model.state_dict()), {"lisse": json.dumps(declaration)})
    return file


def read_declaration(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """What a lisse checkpoint says about itself (spec, mean, std, …), or ``None`` for any other ``.safetensors``."""
    text = metadata(path).get("lisse")
    if text is None:
        return None
    try:
        declaration = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise damaged(Path(path), "its lisse header cannot be read") from error
    sound = isinstance(declaration, dict) and isinstance(declaration.get("spec"), str)
    if not sound or declaration.get("format") != 1:
        raise damaged(Path(path), "its lisse header is not of a format that this version knows")
    return declaration


def declaration_of(weights: str | None) -> dict[str, Any] | None:
    """What a weights file says about itself if it is a lisse checkpoint, else ``None``."""
    file = Path(os.path.expanduser(weights or ""))
    return read_declaration(file) if file.suffix == CHECKPOINT and file.is_file() else None


def check_architecture(declaration: Mapping[str, Any], spec: Spec, weights: str) -> None:
    """Raise where a checkpoint of a zoo network is asked for as another one that has the same shapes."""
    stored = parse(declaration["spec"])
    if stored.hub != "zoo" or stored.name not in zoo.NETWORKS:
        return
    differing = [f"{stored.name} instead of {spec.name}"] if stored.name != spec.name else []
    options = {key: value for key, value in stored.options.items() if key not in (*TRAINING, "mean", "std")}
    trained = zoo.settings(stored.name, options)
    expected = zoo.settings(spec.name, {key: value for key, value in spec.options.items() if key not in TRAINING})
    differing += [
        f"{key}={text_of(trained[key])} instead of {text_of(expected[key])}"
        for key in trained.keys() & expected.keys()
        if key not in TRAINING and trained[key] != expected[key] and not (key == "size" and "size" in spec.options)
    ]
    if differing:
        raise ValueError(
            f"load_model: weights must be of the network asked for, got a checkpoint of {declaration['spec']!r} "
            f"({', '.join(sorted(differing))}). Write {weights} alone, or "
            f"{Spec('zoo', stored.name, {**options, 'weights': weights}).without()}"
        )
