"""``hf:DIRECTORY_OR_REPOSITORY``: models in Hugging Face's format, with their preprocessing or tokenizer.

No code from a repository is ever run (``trust_remote_code=False``), weights are read from safetensors, or from
``.bin`` files by the restricted unpickler. A repository is first made a folder (from the cache, or fetched where that
was asked for); from there on everything is offline.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lisse.data.request import hugging_face
from lisse.models.declaration import declare
from lisse.models.processors import image_size, image_statistics, settled
from lisse.models.repository import check_config, check_files, folder_of, read_json, unreadable
from lisse.models.weights import shortened, warn_not_finite
from lisse.networks.zoo.options import extra
from lisse.networks.zoo.text import EncoderDecoder

OPTIONS = ("head", "attention", "size", "mean", "std", "revision", "download")
# transformers also takes the name of a repository, whose compiled kernel it would fetch and run.
ATTENTION = ("eager", "sdpa")
TOKENIZERS = (
    "tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "spiece.model", "tokenizer.model",
    "sentencepiece.bpe.model",
)  # fmt: skip


def from_huggingface(name: str, options: dict[str, Any]) -> nn.Module:
    """Load a model, choose its class from the config, and declare what it takes.

    Options: ``head`` (a transformers class, e.g. ``BertForMaskedLM``; default: the first of the config's
    ``architectures``), ``attention`` (``eager``, so that attention matrices can be read, or ``sdpa``), ``size``,
    ``mean`` and ``std`` (for image models, instead of those in ``preprocessor_config.json``), ``revision``, and
    ``download``: the network is used only with ``download=true`` or ``LISSE_DOWNLOAD=1``.
    """
    strange = [key for key in options if key not in OPTIONS]
    if strange:
        raise ValueError(
            f"load_model: options of hf: must be among {', '.join((*OPTIONS, 'weights'))}, got {', '.join(strange)}. "
            "Leave out what you do not want to change."
        )
    attention = options.get("attention", "eager")
    if attention not in ATTENTION:
        raise ValueError(f"load_model: attention must be {' or '.join(ATTENTION)}, got {attention!r}. Leave it out.")
    transformers = extra("transformers", "hf", "load_model")
    folder = folder_of(name, options.get("revision"), options.get("download", False))
    with hugging_face(False):
        return _from_folder(transformers, folder, folder.name if folder == Path(name).expanduser() else name, options)


def _from_folder(transformers: Any, folder: Path, name: str, options: dict[str, Any]) -> nn.Module:
    check_config(folder)
    common: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    try:
        config = transformers.AutoConfig.from_pretrained(folder, **common)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise unreadable(folder, error) from error
    # Before any model is made: the config may name a kernel of its own.
    config._attn_implementation = options.get("attention", "eager")
    cls = _class(transformers, config, options.get("head"))
    pickled = check_files(folder, cls, config)
    try:
        with _quiet(transformers):
            network, info = cls.from_pretrained(
                folder,
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
        raise unreadable(folder, error) from error
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
    warn_not_finite(network.state_dict(), name)
    classes = getattr(config, "num_labels", None) if "Classification" in cls.__name__ else None
    if getattr(cls, "main_input_name", "input_ids") == "pixel_values":
        found = read_json(folder / "preprocessor_config.json")
        channels = int(getattr(config, "num_channels", None) or 3)
        mean, std = image_statistics(found, options, channels, name)
        height, width = image_size(settled(found), options, config)
        return declare(
            network, input_size=(channels, height, width), mean=mean, std=std, name=name, classes=classes
        )  # fmt: skip
    refused = [key for key in ("mean", "std", "size") if key in options]
    if refused:
        raise ValueError(
            f"load_model: {', '.join(refused)} must be left out for {cls.__name__}, which takes no images, got them. "
            "Drop them."
        )
    if getattr(config, "is_encoder_decoder", False):
        network = EncoderDecoder(network)
    tokenizer = _tokenizer(transformers, folder, common)
    if tokenizer is None:
        warnings.warn(
            f"load_model: {name} must bring its tokenizer to read text, got none of {', '.join(TOKENIZERS[:4])} beside "
            "the weights. Fetch it too, or name one with ?tokenizer=… in the data's spec.",
            stacklevel=5,
        )
    return declare(network, kind="text", name=name, classes=classes, tokenizer=tokenizer)


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


def _tokenizer(transformers: Any, folder: Path, common: dict[str, Any]) -> Any:
    if not any((folder / file).is_file() for file in TOKENIZERS):
        return None
    try:
        return transformers.AutoTokenizer.from_pretrained(folder, **common)
    except Exception as error:  # as above
        raise unreadable(f"the tokenizer of {folder}", error) from error
