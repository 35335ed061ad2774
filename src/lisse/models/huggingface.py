"""``hf:DIRECTORY_OR_REPOSITORY``: models in Hugging Face's format, with their preprocessing or tokenizer.

No code from a repository is ever run (:mod:`lisse.libraries`), weights are read from safetensors, or from ``.bin``
files by the restricted unpickler. A repository is first made a folder (from the cache, or fetched where that was asked
for); from there on everything is offline.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lisse.libraries import extra, pretrained, pretrained_tokenizer, quarantine, transformers_library
from lisse.models.declaration import declare
from lisse.models.processors import image_size, image_statistics, settled
from lisse.models.repository import check_config, check_files, folder_of, read_json, unreadable
from lisse.models.room import check_room
from lisse.models.sound import WAVES, heard
from lisse.models.weights import shortened, warn_not_finite
from lisse.networks.zoo.text import EncoderDecoder

OPTIONS = ("head", "attention", "attn", "dtype", "device_map", "size", "mean", "std", "revision", "download")
DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
# transformers also takes the name of a repository, whose compiled kernel it would fetch and run.
ATTENTION = ("eager", "sdpa")
_SPREAD = ("auto", "balanced", "balanced_low_0", "sequential")
_DEVICE = re.compile(r"(cpu|cuda|mps|xpu|npu)(:\d+)?")
TOKENIZERS = (
    "tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "spiece.model", "tokenizer.model",
    "sentencepiece.bpe.model",
)  # fmt: skip


def huggingface_model(name: str, options: dict[str, Any]) -> nn.Module:
    """Load a model, choose its class from the config, and declare what it takes.

    Options: ``head`` (a transformers class, e.g. ``BertForMaskedLM``; default: the first of the config's
    ``architectures``; of CLIP and its like the model of images), ``attn`` or ``attention`` (``eager`` or ``sdpa``),
    ``dtype`` (``float32``, ``bfloat16``, …; default: the checkpoint's own), ``device_map`` (``auto``: over all devices
    by accelerate, where it stays), ``size``, ``mean`` and ``std`` (for image models, instead of those in
    ``preprocessor_config.json``), ``revision``, and ``download``: the network is used only with ``download=true`` or
    ``LISSE_DOWNLOAD=1``.
    """
    strange = [key for key in options if key not in OPTIONS]
    if strange:
        raise ValueError(
            f"load_model: options of hf: must be among {', '.join((*OPTIONS, 'weights'))}, got {', '.join(strange)}. "
            + (
                "The length of texts goes with the data: text:FILE?length=128."
                if "length" in strange
                else "Leave out what you do not want to change."
            )
        )
    word = "attn" if "attn" in options and "attention" not in options else "attention"
    options = {**options, "attention": options.get(word, "eager")}
    if options["attention"] not in ATTENTION:
        raise ValueError(f"load_model: {word} must be {' or '.join(ATTENTION)}, got {options[word]!r}. Leave it out.")
    if options.get("dtype", "auto") not in DTYPES:
        raise ValueError(
            f"load_model: dtype must be among {', '.join(DTYPES)}, got {options['dtype']!r}. Leave it out."
        )
    spread = options.get("device_map", "auto")
    if not isinstance(spread, str) or not (spread in _SPREAD or _DEVICE.fullmatch(spread)):
        raise ValueError(
            f"load_model: device_map must be {', '.join(_SPREAD)} or a device, got {spread!r}. auto uses all there are."
        )
    if "device_map" in options:
        extra("accelerate", "hf", "load_model")
    transformers = transformers_library("load_model")
    folder = folder_of(name, options.get("revision"), options.get("download", False))
    with quarantine():
        return _from_folder(
            transformers, folder, folder.name if folder == Path(os.path.expanduser(name)) else name, options
        )


def _from_folder(transformers: Any, folder: Path, name: str, options: dict[str, Any]) -> nn.Module:
    check_config(folder)
    try:
        config = pretrained(transformers.AutoConfig, folder)
    except Exception as error:  # a config that makes no sense raises whatever its class raises
        raise unreadable(folder, error) from error
    # Before any model is made: the config may name a kernel of its own.
    config._attn_implementation = options.get("attention", "eager")
    cls = _class(transformers, config, options.get("head"))
    if not isinstance(config, cls.config_class):  # a part of a larger model
        config = _of_part(config, cls, name)
        config._attn_implementation = options.get("attention", "eager")
    pickled, parameters = check_files(folder, cls, config)
    dtype = options.get("dtype", "auto")
    kind = getattr(torch, dtype) if dtype != "auto" else getattr(config, "dtype", None) or torch.float32
    if "device_map" not in options:  # else accelerate looks for room
        check_room(parameters * kind.itemsize, torch.device("cpu"), name)
    try:
        with _quiet(transformers):
            network, info = pretrained(
                cls,
                folder,
                config=config,
                use_safetensors=not pickled,
                weights_only=True,
                output_loading_info=True,
                # Mismatches are listed below; transformers would only print a table of them.
                ignore_mismatched_sizes=True,
                dtype=kind if dtype != "auto" else "auto",
                attn_implementation=options.get("attention", "eager"),
                **({"device_map": options["device_map"]} if "device_map" in options else {}),
            )
    except Exception as error:  # a damaged file raises whatever the reader of its format raises
        raise unreadable(folder, error) from error
    _check_complete(network, info, cls, config, name)
    warn_not_finite(network.state_dict(), name)
    return _declared(network, folder, name, options, cls, config)


def _check_complete(network: nn.Module, info: Mapping[str, Any], cls: Any, config: Any, name: str) -> None:
    """Every weight is there, in its shape, on a device."""
    # transformers would fill these with random numbers and only warn: the commonest way to a wrong result.
    missing = sorted(info["missing_keys"])
    differing = [f"{key}: {list(a)} instead of {list(b)}" for key, a, b in sorted(info["mismatched_keys"])]
    if differing:
        raise ValueError(
            f"load_model: {name} must hold the weights of its config, got {len(differing)} of another shape "
            f"({shortened(differing)}). Fetch it again."
        )
    if missing:
        raise ValueError(
            f"load_model: {name} must hold all weights of {cls.__name__}, got {len(missing)} missing "
            f"({shortened(missing)}). Choose another class with ?head=…, such as {config.model_type}'s base model."
        )
    if info["unexpected_keys"]:
        warnings.warn(
            f"load_model: {cls.__name__} does not use {len(info['unexpected_keys'])} weights of {name} "
            f"({shortened(sorted(info['unexpected_keys']))}).",
            stacklevel=4,
        )
    away = [key for key, weight in network.named_parameters() if weight.is_meta]
    if away:
        raise ValueError(
            f"load_model: {name} must fit on its devices, got {len(away)} weights that device_map left on the host or "
            f"disk ({shortened(away)}). Give more devices, or half the precision (?dtype=bfloat16)."
        )


def _declared(network: nn.Module, folder: Path, name: str, options: dict[str, Any], cls: Any, config: Any) -> nn.Module:
    """The network with what it takes: sound, images, or text."""
    classes = getattr(config, "num_labels", None) if "Classification" in cls.__name__ else None
    entry = getattr(cls, "main_input_name", "input_ids")
    if entry in WAVES:
        _refuse_images(options, cls)
        return declare(heard(network, folder, name), kind="plain", name=name, classes=classes)
    if entry == "pixel_values":
        preprocessor = read_json(folder / "preprocessor_config.json")
        channels = int(getattr(config, "num_channels", None) or 3)
        mean, std = image_statistics(preprocessor, options, channels, name)
        height, width = image_size(settled(preprocessor), options, config)
        return declare(
            network, input_size=(channels, height, width), mean=mean, std=std, name=name, classes=classes
        )  # fmt: skip
    _refuse_images(options, cls)
    if getattr(config, "is_encoder_decoder", False):
        network = EncoderDecoder(network)
    tokenizer = _tokenizer(folder)
    if tokenizer is None:
        warnings.warn(
            f"load_model: {name} must bring its tokenizer to read text, got none of {', '.join(TOKENIZERS[:4])} beside "
            "the weights. Fetch it too, or name one with ?tokenizer=… in the data's spec.",
            stacklevel=6,
        )
    return declare(network, kind="text", name=name, classes=classes, tokenizer=tokenizer)


def _refuse_images(options: dict[str, Any], cls: Any) -> None:
    refused = [key for key in ("mean", "std", "size") if key in options]
    if refused:
        raise ValueError(
            f"load_model: {', '.join(refused)} must be left out for {cls.__name__}, which takes no images, got them. "
            "Drop them."
        )


def _of_part(config: Any, cls: Any, name: str) -> Any:
    """The config of a part of a model (the images' of CLIP), or a refusal of a class for something else."""
    for part in vars(config).values():
        if isinstance(part, cls.config_class):
            return part
    raise ValueError(
        f"load_model: head must be a class for {config.model_type} models, got {cls.__name__}, which is for "
        f"{cls.config_class.model_type}. {name} was saved as {' or '.join(config.architectures or ['no class'])}."
    )


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """No bars and no reports while loading: what matters is raised or warned about here."""
    logging = transformers.utils.logging
    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _class(transformers: Any, config: Any, head: Any) -> Any:
    names = [head] if head is not None else _architectures(config)
    if head is None and names and hasattr(config, "vision_config") and hasattr(config, "text_config"):
        tower = f"{names[0].removesuffix('Model')}VisionModel"  # of two towers, the one that data can be given alone
        if hasattr(transformers, tower):
            warnings.warn(
                f"load_model: of {names[0]}, the model of images is read. That of texts is ?head="
                f"{tower.replace('Vision', 'Text')}.",
                stacklevel=6,
            )
            names = [tower]
    for name in names:
        cls = getattr(transformers, name, None) if isinstance(name, str) and name.isidentifier() else None
        if isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel):
            return cls
    if head is not None:
        raise ValueError(
            f"load_model: head must be a model class of transformers {transformers.__version__}, got {head!r}. "
            "Write head=BertForMaskedLM, for instance."
        )
    try:
        return transformers.AutoModel._model_mapping[type(config)]
    except KeyError as error:
        raise ValueError(
            f"load_model: the architecture must be one of transformers {transformers.__version__}, got {names}. "
            "Code from a repository is not run; write a factory and use package.module:factory."
        ) from error


def _architectures(config: Any) -> list[str]:
    """The names of classes that a config gives, which may be anything."""
    names = config.architectures or []
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise unreadable(config.name_or_path or "the config", f"architectures {names!r}, which are no names")
    return list(names)


def _tokenizer(folder: Path) -> Any:
    if not any((folder / file).is_file() for file in TOKENIZERS):
        return None
    try:
        return pretrained_tokenizer(folder, "load_model")
    except Exception as error:  # as above
        raise unreadable(f"the tokenizer of {folder}", error) from error
