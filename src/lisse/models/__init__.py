"""Models from anywhere, ready to measure: :func:`load_model`, :func:`declare`, :func:`save_checkpoint`."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lisse.models.checkpoints import check_architecture, declaration_of, read_declaration, save_checkpoint
from lisse.models.declaration import STATISTICS, ModelCard, Normalised, declare, tokenizer_for
from lisse.models.factory import from_factory
from lisse.models.huggingface import from_huggingface
from lisse.models.specs import Spec, parse
from lisse.models.vision import from_timm, from_torchvision
from lisse.models.weights import fitted, load_weights, metadata, read_weights
from lisse.networks import zoo

__all__ = [
    "STATISTICS",
    "ModelCard",
    "Normalised",
    "declare",
    "load_model",
    "load_weights",
    "read_weights",
    "save_checkpoint",
    "tokenizer_for",
]

# Published weights that were trained with ImageNet's statistics (akamaster/pytorch_resnet_cifar10), by their SHA-256.
PUBLISHED = {
    "12fca82f0bebc4135bf1f32f6e3710e61d5108578464b84fd6d7f5c1b04036c8": "resnet20",
    "d509ac1820d7f25398913559d7e81a13229b1e7adc5648e3bfa5e22dc137f850": "resnet32",
    "014dd6541728a1c700b1642ab640e211dc6eb8ed507d70697458dc8f8a0ae2e4": "resnet44",
    "4bfd97631478d6b638d2764fd2baff3edb1d7d82252d54439343b6596b9b5367": "resnet56",
}


def load_model(spec: str, *, device: str | torch.device = "cpu") -> nn.Module:
    """A model in evaluation mode that carries its preprocessing; ``model.lisse`` is its :class:`ModelCard`.

    ``spec`` is one of

    - ``zoo:NAME?weights=FILE&option=…``: a network of :data:`lisse.networks.zoo.NETWORKS`;
    - ``hf:DIRECTORY_OR_REPOSITORY``, ``timm:NAME``, ``torchvision:NAME`` (extras ``hf``, ``timm``, ``torchvision``);
    - ``package.module:factory?option=…``: ``factory(**options)`` of your own code;
    - ``FILE.safetensors`` written by :func:`save_checkpoint`.

    Image models take float images in [0, 1] and normalise them inside. ``mean`` and ``std`` set the statistics
    (numbers, or ``imagenet``, ``cifar10``, ``mnist``, ``fashion-mnist``, ``none``); for the zoo the default is
    ImageNet's with three channels, MNIST's with one, and none otherwise. ``weights=FILE`` goes with every kind of spec.
    The network is used only when asked: ``?download=true`` (``hf:``, ``timm:``, ``torchvision:``) or
    ``LISSE_DOWNLOAD=1``.

    >>> model = load_model("zoo:resnet20?classes=10&seed=1")
    >>> model.lisse.input_size
    (3, 32, 32)
    """
    where = _device(device)
    parsed = parse(spec)
    # A default device set by the person must not change which random numbers a network starts from.
    with torch.device("cpu"):
        model = _made(parsed, spec)
    card: ModelCard = model.lisse  # type: ignore[assignment]
    architecture = card.architecture or parsed.without("weights", "mean", "std", "input_size", "download")
    model.lisse = dataclasses.replace(card, spec=spec, architecture=architecture)  # type: ignore[assignment]
    return model.to(where).eval()


def _made(parsed: Spec, spec: str) -> nn.Module:
    options = dict(parsed.options)
    weights = options.pop("weights", None)
    if weights == "":
        raise ValueError(f"load_model: weights must be a file, got nothing in {spec!r}. Write weights=FILE.")
    if parsed.hub == "checkpoint":
        if weights is not None or options:
            raise ValueError(
                f"load_model: a checkpoint must be loaded as it is, got options in {spec!r}. It holds its own."
            )
        return _from_checkpoint(parsed.name)
    if parsed.hub == "zoo":
        return _from_zoo(parsed.name, options, weights)
    said = declaration_of(weights) or {}
    if parsed.hub == "factory":
        model = _from_factory(parsed.name, options, said)
    elif not {"mean", "std"} & options.keys() and said.get("kind") == "image":
        options |= {key: _tuple(said[key]) for key in ("mean", "std") if key in said}
    if parsed.hub == "hf":
        model = from_huggingface(parsed.name, options)
    elif parsed.hub != "factory":
        model = _from_vision(parsed.hub, parsed.name, options, weights is not None)
    if weights is not None:
        load_weights(model, read_weights(weights), source=weights)
    return model


def _from_zoo(name: str, options: dict[str, Any], weights: str | None) -> nn.Module:
    chosen: dict[str, Any] = {key: options.pop(key) for key in ("mean", "std") if key in options}
    seed = options.pop("seed", 0)
    settings = zoo.settings(name, options)
    said = declaration_of(weights)
    if said is not None:
        check_architecture(said, Spec("zoo", name, options), str(weights))
    if weights is None:
        network = zoo.build(name, seed=seed, **options)
    else:
        given = read_weights(weights)
        # First without memory: options that do not fit the file (or absurd ones inside it) allocate nothing.
        with torch.device("meta"):
            fitted(zoo.build(name, seed=seed, **options), given, source=weights)
        network = zoo.build(name, seed=seed, **options)
        load_weights(network, given, source=weights)
    classes = settings.get("classes")
    if "size" not in settings:
        _refuse_statistics(name, chosen, "takes tokens")
        return declare(network, kind="text", name=name)
    if settings.get("features") is not None:
        _refuse_statistics(name, chosen, "takes vectors")
        size: tuple[int, ...] = (settings["features"],)
        return declare(network, kind="plain", input_size=size, name=name, classes=classes)
    channels = settings["in_channels"]
    if not chosen and said is not None and said.get("mean") is not None:
        chosen = {"mean": said["mean"], "std": said.get("std")}
    elif not chosen:
        default = {1: "mnist", 3: "imagenet"}.get(channels)
        chosen = {"mean": default}
        if weights is not None and not _published(name, weights):
            warnings.warn(
                f"load_model: {weights} does not say which normalisation it was trained with; {default or 'none'} is "
                f"used. Add ?mean=…&std=… (numbers, or {', '.join(STATISTICS)}, none) to be sure.",
                stacklevel=4,
            )
    return declare(
        network,
        input_size=(channels, settings["size"], settings["size"]),
        mean=chosen.get("mean"),
        std=chosen.get("std"),
        name=name,
        classes=classes,
    )


def _from_vision(hub: str, name: str, options: dict[str, Any], weighted: bool) -> nn.Module:
    chosen = {key: options.pop(key) for key in ("mean", "std") if key in options}
    if weighted:
        # The file replaces all weights; there is nothing to fetch.
        options["pretrained"] = False
    network, (size, mean, std), classes = (from_timm if hub == "timm" else from_torchvision)(name, options)
    return declare(
        network,
        input_size=size,
        mean=chosen.get("mean") if chosen else mean,
        std=chosen.get("std") if chosen else std,
        name=name,
        classes=classes,
    )


def _from_factory(name: str, options: dict[str, Any], said: dict[str, Any]) -> nn.Module:
    chosen = {key: options.pop(key) for key in ("mean", "std", "input_size") if key in options}
    network = from_factory(name, options)
    if isinstance(getattr(network, "lisse", None), ModelCard):
        if chosen:
            raise ValueError(
                f"load_model: {', '.join(chosen)} must be left out where the factory declares them, got them for "
                f"{name}. Change the factory's lisse.models.declare(…)."
            )
        return network
    if not chosen and said.get("kind") == "image":
        # A checkpoint of a network that was declared in the spec: the declaration is in the file.
        chosen = {key: _tuple(said[key]) for key in ("mean", "std", "input_size") if key in said}
    if not chosen:
        return declare(network, kind="plain", name=name)
    size = chosen.get("input_size")
    if not isinstance(size, tuple):
        raise ValueError(f"load_model: input_size must be given with mean and std, got {size}. Add input_size=3,32,32.")
    return declare(
        network, input_size=size, mean=chosen.get("mean"), std=chosen.get("std"), name=name
    )  # fmt: skip


def _from_checkpoint(path: str) -> nn.Module:
    if not os.path.isfile(path):
        raise FileNotFoundError(
            f"load_model: spec must be the path of a checkpoint, got {path!r}, which is not there. "
            f"Relative paths start at {os.getcwd()}."
        )
    said = read_declaration(path)
    if said is None:
        raise ValueError(
            f"load_model: {path} must be a lisse checkpoint, got a .safetensors file without its spec "
            f"(metadata: {', '.join(list(metadata(path))[:6]) or 'none'}). Write zoo:NAME?weights={path}"
        )
    inner = parse(said["spec"])
    # A file may say which network of the zoo to build, never which code to import, what to read or what to fetch.
    if inner.hub != "zoo":
        whole = f"{said['spec']}{'&' if inner.options else '?'}weights={path}"
        raise ValueError(
            f"load_model: {path} must be of a network of the zoo to be loaded by itself, got {said['spec']!r}, which a "
            f"file is not trusted to start. If you trust it: {whole}"
        )
    if "weights" in inner.options:
        raise ValueError(f"load_model: {path} must hold its own weights, got a spec that names others. Save it again.")
    options = dict(inner.options)
    for key in ("mean", "std"):
        if said.get("kind") == "image" and said.get(key) is not None:
            options[key] = _tuple(said[key])
    model = _made(Spec(inner.hub, inner.name, {**options, "weights": path}), said["spec"])
    model.lisse = dataclasses.replace(model.lisse, architecture=said["spec"])  # type: ignore[type-var]
    return model


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _published(name: str, weights: str) -> bool:
    with Path(weights).expanduser().open("rb") as file:
        return PUBLISHED.get(hashlib.file_digest(file, "sha256").hexdigest()) == name


def _refuse_statistics(name: str, chosen: dict[str, Any], why: str) -> None:
    if chosen:
        raise ValueError(f"load_model: mean and std must be left out for {name}, which {why}, got {chosen}. Drop them.")


def _device(device: str | torch.device) -> torch.device:
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"load_model: device must be one that torch knows, got {device!r}. Use 'cpu'.") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"load_model: device must be there, got {str(device)!r} without CUDA. Use device='cpu'.")
    return found
