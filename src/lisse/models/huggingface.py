"""``hf:DIRECTORY_OR_REPOSITORY``: models in Hugging Face's format, with their preprocessing or tokenizer.

No code from a repository is ever run (``trust_remote_code=False``), weights are read from safetensors, or from
``.bin`` files by the restricted unpickler. A directory is read offline; a repository name goes through transformers,
which knows the cache and the network.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lisse.models.declaration import declare
from lisse.models.weights import metadata, read_weights, shortened
from lisse.networks.zoo.options import extra
from lisse.networks.zoo.text import EncoderDecoder

OPTIONS = ("head", "attention", "size", "mean", "std", "revision")


def from_huggingface(name: str, options: dict[str, Any]) -> nn.Module:
    """Load a model, choose its class from the config, and declare what it takes.

    Options: ``head`` (a transformers class, e.g. ``BertForMaskedLM``; default: the first of the config's
    ``architectures``), ``attention`` (``eager``, so that attention matrices can be read, or ``sdpa``), ``size``,
    ``mean`` and ``std`` (for image models, instead of those in ``preprocessor_config.json``), ``revision``.
    """
    strange = [key for key in options if key not in OPTIONS]
    if strange:
        raise ValueError(
            f"load_model: options of hf: must be among {', '.join((*OPTIONS, 'weights'))}, got {', '.join(strange)}. "
            "Leave out what you do not want to change."
        )
    transformers = extra("transformers", "hf", "load_model")
    name = os.path.expanduser(name)
    local = os.path.isdir(name)
    if not local and (os.sep * 2 in name or name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise ValueError(f"load_model: hf: must name a directory or a repository, got {name!r}, which is not there.")
    if local and not (Path(name) / "config.json").is_file():
        raise ValueError(
            f"load_model: {name} must hold a config.json, got none. Name the folder with the model's files."
        )
    common: dict[str, Any] = {"trust_remote_code": False, "local_files_only": local}
    if options.get("revision") is not None:
        common["revision"] = str(options["revision"])
    try:
        config = transformers.AutoConfig.from_pretrained(name, **common)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(name, error) from error
    cls = _class(transformers, config, options.get("head"))
    pickled = False
    if local:
        pickled = _checked_files(Path(name), cls, config)
    try:
        with _quiet(transformers):
            network, info = cls.from_pretrained(
                name,
                config=config,
                use_safetensors=not pickled,
                weights_only=True,
                output_loading_info=True,
                # Mismatches are listed below; transformers would only print a table of them.
                ignore_mismatched_sizes=True,
                dtype=torch.float32,
                attn_implementation=options.get("attention", "eager"),
                **common,
            )
    except Exception as error:  # a damaged file raises whatever the reader of its format raises
        raise _unreadable(name, error) from error
    # transformers would fill these with random numbers and only warn: the commonest way to a wrong result.
    missing = sorted(info["missing_keys"])
    differing = [f"{key}: {list(held)} instead of {list(own)}" for key, held, own in sorted(info["mismatched_keys"])]
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
            stacklevel=3,
        )
    title = Path(name).name if local else name
    classes = getattr(config, "num_labels", None) if "Classification" in cls.__name__ else None
    if getattr(cls, "main_input_name", "input_ids") == "pixel_values":
        found = _read_json(transformers, name, "preprocessor_config.json", common)
        channels = int(getattr(config, "num_channels", None) or 3)
        mean, std = image_statistics(found, options, channels, name)
        height, width = image_size(found, options, config)
        return declare(
            network, input_size=(channels, height, width), mean=mean, std=std, name=title, classes=classes
        )  # fmt: skip
    refused = [key for key in ("mean", "std", "size") if key in options]
    if refused:
        raise ValueError(
            f"load_model: {', '.join(refused)} must be left out for {cls.__name__}, which takes no images, got them. "
            "Drop them."
        )
    if getattr(config, "is_encoder_decoder", False):
        network = EncoderDecoder(network)
    return declare(network, kind="text", name=title, classes=classes, tokenizer=_tokenizer(transformers, name, common))


def image_statistics(
    config: dict[str, Any] | None, options: dict[str, Any], channels: int, name: str
) -> tuple[Any, Any]:
    """Mean and std for [0, 1] images from ``preprocessor_config.json``.

    Image processors work on 0…255: y = (r·x - o - m)/s with r the rescale factor, so that for [0, 1] images the mean is
    (m + o)/(255 r) and the std s/(255 r). EfficientNet's processor divides by s once more (``include_top``) and may
    shift by one (``rescale_offset``).
    """
    if "mean" in options or "std" in options:
        return options.get("mean"), options.get("std")
    if config is None:
        raise ValueError(
            f"load_model: {name} must have a preprocessor_config.json, got none, and a wrong normalisation gives wrong "
            "numbers. Add ?mean=…&std=… (numbers, or imagenet, cifar10, none)."
        )
    processor = str(config.get("image_processor_type") or config.get("feature_extractor_type") or "")
    m, s = (0.0,) * channels, (1.0,) * channels
    if config.get("do_normalize", True) and config.get("image_mean") is not None:
        m, s = _channels(config["image_mean"], channels, name), _channels(config["image_std"], channels, name)
        if processor.startswith("EfficientNet") and config.get("include_top", True):
            s = tuple(one * one for one in s)
    factor = 255.0 * float(config.get("rescale_factor") or 1 / 255) if config.get("do_rescale", True) else 255.0
    offset = 1.0 if config.get("rescale_offset", False) else 0.0
    return tuple((one + offset) / factor for one in m), tuple(one / factor for one in s)


def image_size(config: dict[str, Any] | None, options: dict[str, Any], model_config: Any) -> tuple[int, int]:
    """Height and width: ``?size=``, else the crop or size of the preprocessor, else the model's ``image_size``."""
    found: Any = options.get("size")
    if found is None and config is not None:
        cropped = config.get("do_center_crop", False) and config.get("crop_size")
        found = cropped or config.get("size")
    if found is None:
        found = getattr(model_config, "image_size", None)
    if isinstance(found, dict):
        if "height" in found:
            found = (found["height"], found["width"])
        else:
            found = found.get("shortest_edge") or found.get("longest_edge")
    pair = tuple(found) if isinstance(found, (list, tuple)) else (found, found)
    if len(pair) != 2 or not all(isinstance(side, int) and side > 0 for side in pair):
        raise ValueError(f"load_model: the image size must be known, got {found!r}. Add ?size=224.")
    return pair[0], pair[1]


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
    names = [head] if head is not None else list(config.architectures or [])
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


def _checked_files(folder: Path, cls: Any, config: Any) -> bool:
    """Whether the weights are pickles, after a look at every file: whole headers, no bombs, enough bytes."""
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
            read_weights(file)
        else:
            metadata(file)
    # A config that asks for more parameters than the files can hold would have memory reserved for it before the
    # weights are found missing. One byte each is the least that a parameter can take.
    try:
        with torch.device("meta"):
            wanted = sum(p.numel() for p in cls(config).parameters())
    except Exception as error:  # whatever a model's constructor raises on a config that makes no sense
        raise _unreadable(str(folder), error) from error
    held = sum(file.stat().st_size for file in files)
    if wanted > 2 * held:
        raise ValueError(
            f"load_model: {folder} must hold the {wanted} parameters of its config, got {held} bytes of weights. "
            "Fetch it again."
        )
    return pickled


def _tokenizer(transformers: Any, name: str, common: dict[str, Any]) -> Any:
    if common["local_files_only"]:
        known = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "spiece.model")
        if not any((Path(name) / file).is_file() for file in known):
            return None
    try:
        return transformers.AutoTokenizer.from_pretrained(name, **common)
    except Exception as error:  # as above
        raise _unreadable(f"the tokenizer of {name}", error) from error


def _read_json(transformers: Any, name: str, file: str, common: dict[str, Any]) -> dict[str, Any] | None:
    if common["local_files_only"]:
        path: str | None = os.path.join(name, file) if os.path.isfile(os.path.join(name, file)) else None
    else:
        path = transformers.utils.cached_file(
            name, file, revision=common.get("revision"), _raise_exceptions_for_missing_entries=False
        )
    if path is None:
        return None
    try:
        found = json.loads(Path(path).read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, error) from error
    if not isinstance(found, dict):
        raise _unreadable(path, "not an object")
    return found


def _channels(value: Any, channels: int, name: str) -> tuple[float, ...]:
    values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    values = values * channels if len(values) == 1 else values
    if len(values) != channels or not all(isinstance(v, (int, float)) for v in values):
        raise _unreadable(name, f"image_mean and image_std of its preprocessor must have {channels} numbers each")
    return tuple(float(v) for v in values)


def _unreadable(name: str, why: object) -> ValueError:
    text = (str(why).strip().splitlines() or [type(why).__name__])[0][:200].rstrip(".")
    return ValueError(f"load_model: {name} must be a readable Hugging Face model, got: {text}. Fetch it again.")
