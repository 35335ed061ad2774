"""``timm:NAME`` and ``torchvision:NAME``; both libraries are imported only when asked for."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
from torch import nn

from lisse.libraries import extra, may_download, quarantine
from lisse.networks.zoo import seeded

Preprocessing = tuple[tuple[int, int, int], tuple[float, ...], tuple[float, ...]]


def from_timm(name: str, options: dict[str, Any]) -> tuple[nn.Module, Preprocessing, int | None]:
    """A timm model, with the input size, mean and std of its own data configuration, and its number of classes.

    ``pretrained`` (default true) takes the weights that timm names, from the cache or, with ``download`` or
    ``LISSE_DOWNLOAD=1``, from the network; other options go to ``timm.create_model``.
    """
    timm = extra("timm", "timm", "load_model")
    pretrained, seed, network, arguments = _split_options(options)
    check_timm(name)
    published = timm.get_pretrained_cfg(name, allow_unregistered=True) if ":" not in name else None
    if pretrained and not network and published is not None and not published.hf_hub_id and published.url:
        _check_cached(f"timm:{name}", published.url)
    extra("huggingface_hub", "timm", "load_model")
    try:
        with seeded(seed), quarantine(network):
            model: nn.Module = timm.create_model(name, pretrained=pretrained, **arguments)
    except Exception as error:
        # Without the network the hub has many errors for one fact; those about the options are of other kinds.
        if network or not isinstance(error, OSError):
            raise
        raise _absent(f"timm:{name}") from error
    # The configuration is that of the published weights; what the person changed in the network changes it, too.
    changed = {key: arguments[key] for key in ("img_size", "in_chans") if key in arguments}
    config = extra("timm.data", "timm", "load_model").resolve_data_config(changed, model=model)
    size = tuple(config["input_size"])
    return model, (size, tuple(config["mean"]), tuple(config["std"])), getattr(model, "num_classes", None)


def from_torchvision(name: str, options: dict[str, Any]) -> tuple[nn.Module, Preprocessing, int | None]:
    """A torchvision classifier, with the input size, mean and std of its weights, and its number of classes.

    ``pretrained`` (default true) takes torchvision's default weights, from the cache or, with ``download`` or
    ``LISSE_DOWNLOAD=1``, from the network. With ``pretrained=false`` the network is random, and is declared with the
    preprocessing that its weights would have. Other options go to the builder.
    """
    models = extra("torchvision.models", "torchvision", "load_model")
    pretrained, seed, network, arguments = _split_options(options)
    check_torchvision(name)
    weights = models.get_model_weights(name).DEFAULT
    if pretrained and not network:
        _check_cached(f"torchvision:{name}", weights.url)
    with seeded(seed), quarantine(network):
        model: nn.Module = models.get_model(name, weights=weights if pretrained else None, **arguments)
    transform = weights.transforms()
    side = int(transform.crop_size[0])
    count = arguments.get("num_classes", len(weights.meta["categories"]))
    return model, ((3, side, side), tuple(transform.mean), tuple(transform.std)), count


def check_timm(name: str) -> None:
    """Raise unless timm knows a model of this name, or it is one of a hub."""
    timm = extra("timm", "timm", "load_model")
    if not timm.is_model(name.split(".")[0]) and not name.startswith(("hf_hub:", "hf-hub:")):
        advice = _near(name, timm.list_models()) or "timm.list_models() lists them."
        raise ValueError(f"load_model: timm:NAME must name a model of timm {timm.__version__}, got {name!r}. {advice}")


def check_torchvision(name: str) -> None:
    """Raise unless torchvision has a classifier of this name."""
    models = extra("torchvision.models", "torchvision", "load_model")
    names = models.list_models(module=models)
    if name not in names:
        advice = _near(name, names) or "torchvision.models.list_models() lists them."
        raise ValueError(f"load_model: torchvision:NAME must name a classifier, got {name!r}. {advice}")


def _near(name: str, names: list[str]) -> str:
    near = [other for other in names if name.lower() in other][:4] or difflib.get_close_matches(name.lower(), names, 3)
    return f"Did you mean {' or '.join(near)}?" if near else ""


def _check_cached(spec: str, url: str) -> None:
    """Raise unless torch.hub has the file of ``url`` already, so that nothing is fetched."""
    if not (Path(torch.hub.get_dir()) / "checkpoints" / Path(urlparse(url).path).name).is_file():
        raise _absent(spec)


def _absent(spec: str) -> ValueError:
    return ValueError(
        f"load_model: the weights of {spec} must be on this machine, got none in the cache. The network is only used "
        f"when asked: add ?download=true or set LISSE_DOWNLOAD=1; for random weights write {spec}?pretrained=false."
    )


def _split_options(options: dict[str, Any]) -> tuple[bool, int, bool, dict[str, Any]]:
    """``pretrained``, ``seed``, whether the network may be used, and the other options."""
    arguments = dict(options)
    pretrained, download = arguments.pop("pretrained", True), arguments.pop("download", False)
    seed, classes = arguments.pop("seed", 0), arguments.pop("classes", None)
    if classes is not None:
        arguments["num_classes"] = classes
    for key, value in (("pretrained", pretrained), ("download", download)):
        if not isinstance(value, bool):
            raise TypeError(f"load_model: {key} must be true or false, got {value!r}. Write {key}=false.")
    if "checkpoint_path" in arguments:
        raise ValueError("load_model: checkpoint_path must be left out, got it. Write weights=FILE, which is checked.")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"load_model: seed must be an integer, got {seed!r}. Write seed=0.")
    return pretrained, seed, may_download(download), arguments
