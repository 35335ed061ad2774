"""Models from anywhere, ready to measure: :func:`load_model`, :func:`declare`, :func:`save_checkpoint`."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import os
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lisse.data import Dataset
from lisse.libraries import importable_folder, persons_object
from lisse.models.checkpoints import check_architecture, declaration_of, read_declaration, save_checkpoint
from lisse.models.declaration import STATISTICS, ModelCard, Normalised, declare, tokenizer_for
from lisse.models.huggingface import huggingface_model
from lisse.models.room import check_room
from lisse.models.sound import Heard
from lisse.models.specs import Spec, parse
from lisse.models.vision import check_timm, check_torchvision, from_timm, from_torchvision
from lisse.models.weights import fitted, load_weights, metadata, read_weights
from lisse.networks import zoo
from lisse.networks.recorded import Recorded
from lisse.taps import is_dispatched, model_device

__all__ = [
    "STATISTICS",
    "ModelCard",
    "Normalised",
    "check_spec",
    "declare",
    "load_model",
    "load_weights",
    "read_weights",
    "save_checkpoint",
    "tokenizer_for",
]

# Published weights that were trained with ImageNet's statistics (akamaster/pytorch_resnet_cifar10), by their SHA-256.
_TRAINED_ON_IMAGENET = {
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
    - ``FILE.safetensors`` written by :func:`save_checkpoint`;
    - ``recorded:FOLDER``: layers that something else recorded (:class:`~lisse.networks.recorded.Recorded`).

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
        model = _built(parsed, spec)
    card: ModelCard = model.lisse  # type: ignore[assignment]
    architecture = card.architecture or parsed.without("weights", "mean", "std", "input_size", "download")
    model.lisse = dataclasses.replace(card, spec=spec, architecture=architecture)  # type: ignore[assignment]
    if is_dispatched(model):
        if where.type != "cpu":
            raise ValueError(f"load_model: device must be left out with device_map, got {where}. It says where.")
        home = model_device(model)
        for module in model.modules():  # what is lisse's own follows the first layer
            if isinstance(module, Normalised | Heard):
                for key, buffer in module.named_buffers(recurse=False):
                    setattr(module, key, buffer.to(home))
        return model.eval()
    if where.type != "cpu":
        check_room(sum(weight.nbytes for weight in model.parameters()), where, card.name)
    return model.to(where).eval()


def check_spec(spec: str) -> None:
    """Raise what :func:`load_model` would about a spec, as far as it can be told without weights.

    A network of the zoo is built without memory, a person's factory is imported and its arguments are looked at, timm
    and torchvision are asked for the name, and files must be there. What a hub has is not asked.
    """
    parsed = parse(spec)
    options = {key: value for key, value in parsed.options.items() if key != "weights"}
    files = [parsed.name] if parsed.hub in ("checkpoint", "recorded") else []
    for name in [*files, *([parsed.options["weights"]] if "weights" in parsed.options else [])]:
        if not name or not Path(os.path.expanduser(name)).exists():
            raise FileNotFoundError(
                f"load_model: {name or 'weights'} must be there, got nothing, in {spec!r}. Relative paths start at "
                f"{os.getcwd()}."
            )
    if parsed.hub == "zoo":
        with torch.device("meta"):
            _from_zoo(parsed.name, options, None)
    elif parsed.hub == "timm":
        check_timm(parsed.name)
    elif parsed.hub == "torchvision":
        check_torchvision(parsed.name)
    elif parsed.hub == "factory":
        with importable_folder():
            factory = persons_object(parsed.name, "load_model")
        if callable(factory) and not isinstance(factory, nn.Module):
            keywords = {key: value for key, value in options.items() if key not in ("mean", "std", "input_size")}
            try:
                inspect.signature(factory).bind(**keywords)
            except TypeError as error:
                raise TypeError(_refusal(parsed.name, keywords, error)) from error


def _built(parsed: Spec, spec: str) -> nn.Module:
    options = dict(parsed.options)
    weights = options.pop("weights", None)
    if weights == "":
        raise ValueError(f"load_model: weights must be a file, got nothing in {spec!r}. Write weights=FILE.")
    if parsed.hub in ("checkpoint", "recorded"):
        if parsed.options:
            kind = "checkpoint" if parsed.hub == "checkpoint" else "recorded folder"
            raise ValueError(
                f"load_model: a {kind} must be loaded as it is, got options in {spec!r}. It holds its own."
            )
        return (_from_checkpoint if parsed.hub == "checkpoint" else _from_recorded)(parsed.name)
    if parsed.hub == "zoo":
        return _from_zoo(parsed.name, options, weights)
    declaration = declaration_of(weights) or {}
    if parsed.hub == "factory":
        model = _from_factory(parsed.name, options, declaration)
    elif not {"mean", "std"} & options.keys() and declaration.get("kind") == "image":
        options |= {key: _tuple(declaration[key]) for key in ("mean", "std") if key in declaration}
    if parsed.hub == "hf":
        model = huggingface_model(parsed.name, options)
    elif parsed.hub != "factory":
        model = _from_vision(parsed.hub, parsed.name, options, weights is not None)
    if weights is not None:
        load_weights(model, read_weights(weights), source=weights)
    return model


def _from_recorded(folder: str) -> nn.Module:
    player = Recorded(folder)
    name = Path(folder).name
    declare(player, kind="plain", name=name)
    data = Dataset(name, player.samples, player.targets)
    player.lisse = dataclasses.replace(player.lisse, data=data)  # type: ignore[type-var]
    return player


def _from_zoo(name: str, options: dict[str, Any], weights: str | None) -> nn.Module:
    statistics: dict[str, Any] = {key: options.pop(key) for key in ("mean", "std") if key in options}
    seed = options.pop("seed", 0)
    settings = zoo.settings(name, options)
    declaration = declaration_of(weights)
    if declaration is not None:
        check_architecture(declaration, Spec("zoo", name, options), str(weights))
    if weights is None:
        network = zoo.build(name, seed=seed, **options)
    else:
        tensors = read_weights(weights)
        # First without memory: options that do not fit the file (or absurd ones inside it) allocate nothing.
        with torch.device("meta"):
            fitted(zoo.build(name, seed=seed, **options), tensors, source=weights)
        network = zoo.build(name, seed=seed, **options)
        load_weights(network, tensors, source=weights)
    classes = settings.get("classes")
    if "size" not in settings:
        _refuse_statistics(name, statistics, "takes tokens")
        return declare(network, kind="text", name=name)
    if settings.get("features") is not None:
        _refuse_statistics(name, statistics, "takes vectors")
        size: tuple[int, ...] = (settings["features"],)
        return declare(network, kind="plain", input_size=size, name=name, classes=classes)
    channels = settings["in_channels"]
    if not statistics and declaration is not None and declaration.get("mean") is not None:
        statistics = {"mean": declaration["mean"], "std": declaration.get("std")}
    elif not statistics:
        default = {1: "mnist", 3: "imagenet"}.get(channels)
        statistics = {"mean": default}
        if weights is not None and not _published(name, weights):
            warnings.warn(
                f"load_model: {weights} does not say which normalisation it was trained with; {default or 'none'} is "
                f"used. Add ?mean=…&std=… (numbers, or {', '.join(STATISTICS)}, none) to be sure.",
                stacklevel=4,
            )
    return declare(
        network,
        input_size=(channels, settings["size"], settings["size"]),
        mean=statistics.get("mean"),
        std=statistics.get("std"),
        name=name,
        classes=classes,
    )


def _from_vision(hub: str, name: str, options: dict[str, Any], weighted: bool) -> nn.Module:
    statistics = {key: options.pop(key) for key in ("mean", "std") if key in options}
    if weighted:
        # The file replaces all weights; there is nothing to fetch.
        options["pretrained"] = False
    network, (size, mean, std), classes = (from_timm if hub == "timm" else from_torchvision)(name, options)
    return declare(
        network,
        input_size=size,
        mean=statistics.get("mean") if statistics else mean,
        std=statistics.get("std") if statistics else std,
        name=name,
        classes=classes,
    )


def _from_factory(name: str, options: dict[str, Any], declaration: dict[str, Any]) -> nn.Module:
    statistics = {key: options.pop(key) for key in ("mean", "std", "input_size") if key in options}
    with importable_folder():
        network = _persons_network(name, options)
    if isinstance(getattr(network, "lisse", None), ModelCard):
        if statistics:
            raise ValueError(
                f"load_model: {', '.join(statistics)} must be left out where the factory declares them, got them for "
                f"{name}. Change the factory's lisse.models.declare(…)."
            )
        return network
    if not statistics and declaration.get("kind") == "image":
        # A checkpoint of a network that was declared in the spec: the declaration is in the file.
        statistics = {key: _tuple(declaration[key]) for key in ("mean", "std", "input_size") if key in declaration}
    if not statistics:
        return declare(network, kind="plain", name=name)
    size = statistics.get("input_size")
    if not isinstance(size, tuple):
        raise ValueError(f"load_model: input_size must be given with mean and std, got {size}. Add input_size=3,32,32.")
    return declare(network, input_size=size, mean=statistics.get("mean"), std=statistics.get("std"), name=name)


def _persons_network(name: str, options: dict[str, Any]) -> nn.Module:
    """``factory(**options)``, or the module that the name stands for. This runs the person's code, as the spec asks."""
    factory = persons_object(name, "load_model")
    if isinstance(factory, nn.Module):
        if options:
            raise ValueError(
                f"load_model: {name} must be a function to take options ({', '.join(options)}), got a module already "
                "built. Leave the options out."
            )
        return factory
    if not callable(factory):
        raise TypeError(
            f"load_model: {name} must be a function or an nn.Module, got {type(factory).__name__}. "
            "Name a factory that returns the network."
        )
    try:
        network = factory(**options)
    except TypeError as error:
        raise TypeError(_refusal(name, options, error)) from error
    if not isinstance(network, nn.Module):
        raise TypeError(
            f"load_model: {name} must return an nn.Module, got {type(network).__name__}. Return the network itself."
        )
    return network


def _refusal(name: str, options: dict[str, Any], error: TypeError) -> str:
    return f"load_model: {name} must accept the options {options}, got: {error}. They are passed as keywords."


def _from_checkpoint(path: str) -> nn.Module:
    if not os.path.isfile(path):
        raise FileNotFoundError(
            f"load_model: spec must be the path of a checkpoint, got {path!r}, which is not there. "
            f"Relative paths start at {os.getcwd()}."
        )
    declaration = read_declaration(path)
    if declaration is None:
        raise ValueError(
            f"load_model: {path} must be a lisse checkpoint, got a .safetensors file without its spec "
            f"(metadata: {', '.join(list(metadata(path))[:6]) or 'none'}). Write zoo:NAME?weights={path}"
        )
    inner = parse(declaration["spec"])
    # A file may say which network of the zoo to build, never which code to import, what to read or what to fetch.
    if inner.hub != "zoo":
        complete = f"{declaration['spec']}{'&' if inner.options else '?'}weights={path}"
        raise ValueError(
            f"load_model: {path} must be of a network of the zoo to be loaded by itself, got {declaration['spec']!r}, "
            f"which a file is not trusted to start. If you trust it: {complete}"
        )
    if "weights" in inner.options:
        raise ValueError(f"load_model: {path} must hold its own weights, got a spec that names others. Save it again.")
    options = dict(inner.options)
    for key in ("mean", "std"):
        if declaration.get("kind") == "image" and declaration.get(key) is not None:
            options[key] = _tuple(declaration[key])
    model = _built(Spec(inner.hub, inner.name, {**options, "weights": path}), declaration["spec"])
    model.lisse = dataclasses.replace(model.lisse, architecture=declaration["spec"])  # type: ignore[type-var]
    return model


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _published(name: str, weights: str) -> bool:
    with Path(os.path.expanduser(weights)).open("rb") as file:
        return _TRAINED_ON_IMAGENET.get(hashlib.file_digest(file, "sha256").hexdigest()) == name


def _refuse_statistics(name: str, statistics: dict[str, Any], why: str) -> None:
    if statistics:
        raise ValueError(
            f"load_model: mean and std must be left out for {name}, which {why}, got {statistics}. Drop them."
        )


def _device(device: str | torch.device) -> torch.device:
    try:
        kind = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"load_model: device must be one that torch knows, got {device!r}. Use 'cpu'.") from error
    if kind.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"load_model: device must be there, got {str(device)!r} without CUDA. Use device='cpu'.")
    return kind
