"""Optional libraries, and the only calls of theirs that open what a stranger may have written.

A model, a tokenizer or a data set of Hugging Face may bring Python files of its own, and the libraries that read it ask
on standard input whether to run them; weights may be pickles, which are programs. Here nobody is asked and nothing is
run: every such call stands in this file, inside :func:`quarantine`, and ``tests/test_layout.py`` finds any other. Only
what a person names by ``package.module:name`` is their own code (:func:`persons_object`).
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any


def extra(module: str, name: str, function: str) -> ModuleType:
    """Import an optional library, or say which extra of lisse brings it.

    A library can also be there and not importable: torchvision made for another torch stops with a ``RuntimeError``
    about missing operators. That is reported as an ``ImportError`` too, with the library's own words.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise ImportError(
            f'{function}: {module.split(".")[0]} must be installed, got none. pip install "lisse[{name}]"'
        ) from error
    except (ImportError, RuntimeError, AttributeError, OSError) as error:
        raise ImportError(
            f"{function}: {module.split('.')[0]} must fit the installed torch, got an error while importing it "
            f'({str(error).splitlines()[0]}). Install one made for this torch: pip install "lisse[{name}]"'
        ) from error


@contextlib.contextmanager
def importable_folder() -> Iterator[None]:
    """The working folder on Python's path, for a person's module and for whatever it imports when it is called.

    It comes last: a file there must not hide a library.
    """
    folder = os.getcwd()
    added = folder not in sys.path and "" not in sys.path
    if added:
        sys.path.append(folder)
    try:
        yield
    finally:
        if added and folder in sys.path:
            sys.path.remove(folder)


def persons_object(spec: str, function: str, *, advice: str = "") -> Any:
    """What ``package.module:name`` (or ``…:name.inner``) names in a person's own code, which is imported for it."""
    module, _, attribute = spec.partition(":")
    try:
        value: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A module that is there but imports one that is not keeps its own error.
        if error.name is None or not (module == error.name or module.startswith(error.name + ".")):
            raise
        advice = advice or f"Install it, or run from the folder that holds it (now {os.getcwd()})."
        raise ValueError(f"{function}: {module} must be importable, got no module {error.name!r}. {advice}") from error
    for part in attribute.split("."):
        if not hasattr(value, part):
            near = difflib.get_close_matches(part, [name for name in dir(value) if not name.startswith("_")], n=3)
            advice = f"Did you mean {' or '.join(near)}?" if near else "Check the name after the colon."
            raise ValueError(f"{function}: {spec} must exist, got no {part!r} in {module}. {advice}")
        value = getattr(value, part)
    return value


def may_download(wish: bool) -> bool:
    """Whether the network may be used: ``?download=true`` in the spec or ``LISSE_DOWNLOAD=1`` in the environment."""
    return wish or os.environ.get("LISSE_DOWNLOAD", "").lower() in ("1", "true", "yes")


@contextlib.contextmanager
def quarantine(network: bool = False) -> Iterator[None]:
    """No stranger's code for a moment: no question whether to run it, no pickle but of tensors, and no fetching.

    ``trust_remote_code=False`` holds for the call it is given to, and not for the models inside a model, whose own
    ``auto_map`` transformers would ask about. A library may call ``torch.load`` as it likes. And ``local_files_only``
    alone still asks the hub: without ``network`` it is switched off.
    """
    switches: list[tuple[str, str, Any]] = [("transformers.dynamic_module_utils", "TIME_OUT_REMOTE_CODE", 0)]
    if not network:
        switches += [(name, "HF_HUB_OFFLINE", True) for name in ("huggingface_hub.constants", "datasets.config")]
    pickles: dict[str, str | None] = {"TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": None}
    with contextlib.ExitStack() as restored:
        for name, attribute, value in switches:
            if module := sys.modules.get(name):
                restored.callback(setattr, module, attribute, getattr(module, attribute))
                setattr(module, attribute, value)
        restored.callback(_set_environment, {key: os.environ.get(key) for key in pickles})
        _set_environment(pickles)
        yield


def _set_environment(values: Mapping[str, str | None]) -> None:
    for key, value in values.items():
        os.environ.pop(key, None)
        if value is not None:
            os.environ[key] = value


def transformers_library(function: str) -> ModuleType:
    """The library transformers, with the part that asks about code imported, so that :func:`quarantine` reaches it."""
    library = extra("transformers", "hf", function)
    importlib.import_module("transformers.dynamic_module_utils")
    return library


def pretrained(cls: Any, name: str | os.PathLike[str], *, network: bool = False, **options: Any) -> Any:
    """``cls.from_pretrained(name, …)`` for any class of transformers: no code of the folder's own, no pickle."""
    with quarantine(network):
        return cls.from_pretrained(name, trust_remote_code=False, local_files_only=not network, **options)


def pretrained_tokenizer(name: str | os.PathLike[str], function: str, *, network: bool = False) -> Any:
    """The tokenizer of transformers in a folder, or of that name. Its chat template is read and never rendered."""
    return pretrained(transformers_library(function).AutoTokenizer, name, network=network)


def published_table(name: str, config: str | None, split: str, *, network: bool = False) -> Any:
    """A data set of Hugging Face by name or from a folder of files; one that is a script is refused."""
    library = extra("datasets", "datasets", "load_data")
    with quarantine(network):
        return library.load_dataset(name, config, split=split, trust_remote_code=False)


def saved_table(folder: str) -> Any:
    """What ``save_to_disk`` wrote."""
    library = extra("datasets", "datasets", "load_data")
    with quarantine():
        return library.load_from_disk(folder)


def brings_code(error: object) -> bool:
    """Whether a library stopped because it would have to run code of what it reads."""
    return "trust_remote_code" in str(error)
