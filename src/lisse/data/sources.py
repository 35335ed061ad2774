"""load_data: a spec in words becomes a Dataset. Every source is listed in SOURCES or by its file ending."""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import os
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote

from lisse.data import arrays, cifar, corrupted, embedded, generators, hub, images, mnist, places, text
from lisse.data.conversion import as_dataset
from lisse.data.dataset import Dataset
from lisse.data.request import Request
from lisse.libraries import importable_folder, persons_object
from lisse.progress import Listener


class Source(NamedTuple):
    """A kind of data: how to write it, what it is, the function that loads it, the files of a split that it reads."""

    spec: str
    about: str
    load: Callable[..., Dataset]
    takes: Literal["name", "argument"] = "name"
    files: Callable[[str, Mapping[str, str]], Sequence[Path]] = lambda split, options: ()


def _drawn(make: Callable[..., Dataset]) -> Callable[..., Dataset]:
    """A generator as a source: its numbers are the options, its split and seed those of the request."""

    @functools.wraps(make)
    def load(request: Request, **options: Any) -> Dataset:
        return make(**options, split=request.one_of(make.__name__, "train", "test"), seed=request.seed or 0)

    numbers = [word for word in inspect.signature(make).parameters.values() if word.name not in ("split", "seed")]
    load.__signature__ = inspect.Signature([word.replace(kind=word.KEYWORD_ONLY) for word in numbers])  # type: ignore[attr-defined]
    return load


#: Everything that load_data knows by name. A source that takes an argument is written ``name:argument``.
SOURCES: dict[str, Source] = {
    "digits": Source("digits", "scikit-learn's 8 × 8 digits", embedded.digits),
    "shapes": Source(
        "shapes?n=1000&bend=0.05", "drawn figures, bent, on clouds of light and dark, 28 × 28",
        _drawn(generators.shapes),
    ),
    "rings": Source("rings?n=200&noise=0.001", "two linked circles in space", _drawn(generators.rings)),
    "torus": Source("torus?n=1600&sectors=8", "a torus with nested labels", _drawn(generators.torus)),
    "stripe": Source(
        "stripe?n=1024&d=30", "the stripe model: Gaussian points, one informative direction", _drawn(generators.stripe)
    ),
    "sentences": Source("sentences?n=200", "made-up masked sentences, paired with their negations", embedded.sentences),
    "mnist": Source(
        "mnist", "handwritten digits, 28 × 28", mnist.mnist,
        files=lambda split, options: mnist.mnist_files("mnist", split) or (),
    ),
    "fashion-mnist": Source(
        "fashion-mnist", "pieces of clothing, 28 × 28", mnist.fashion_mnist,
        files=lambda split, options: mnist.mnist_files("fashion-mnist", split) or (),
    ),
    "cifar10": Source(
        "cifar10", "ten classes of photographs, 32 × 32", cifar.cifar10,
        files=lambda split, options: cifar.cifar_files(split),
    ),
    "cifar10-c": Source(
        "cifar10-c?corruption=fog", "CIFAR-10-C: noise, blur, weather, …", corrupted.cifar10_c,
        files=lambda split, options: corrupted.cifar10_c_files(options.get("corruption", "")),
    ),
    "imagenet": Source(
        "imagenet?size=224", "ImageNet, from your own folder", images.imagenet,
        files=lambda split, options: images.imagenet_folders(split),
    ),
    "folder": Source("folder:DIR?size=64", "a folder of images, one folder per class", images.folder, "argument"),
    "npz": Source("npz:FILE", "arrays in a NumPy .npz file (or just FILE.npz)", arrays.npz, "argument"),
    "text": Source(
        "text:FILE?tokenizer=words", "a text a line, or .jsonl / .tsv / .csv pairs", text.text_file, "argument"
    ),
    "hfdata": Source("hfdata:NAME", "any Hugging Face data set (extra: datasets)", hub.hub, "argument"),
}  # fmt: skip
#: Files that can be given without a prefix.
_KINDS_OF_FILE = {".npz": "npz", ".txt": "text", ".jsonl": "text", ".ndjson": "text", ".tsv": "text", ".csv": "text"}

_FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def load_data(
    spec: str,
    *,
    split: str = "test",
    limit: int | None = None,
    seed: int | None = 0,
    tokenizer: Any = None,
    progress: Listener | None = None,
) -> Dataset:
    """The data that ``spec`` names.

    Args:
        spec: ``NAME``, ``NAME:ARGUMENT``, a file or folder, or ``package.module:factory``, each with
            ``?option=value&…``: ``digits``, ``shapes``, ``rings?n=200&noise=0.001``, ``torus``, ``stripe``,
            ``sentences``, ``mnist``, ``fashion-mnist``, ``cifar10``, ``cifar10-c?corruption=…``, ``imagenet``,
            ``folder:DIR``, ``FILE.npz``, ``text:FILE?tokenizer=…``, ``PAIRS.jsonl``, ``hfdata:NAME``.
            ``lisse data`` lists them.
        split: ``"train"`` or ``"test"`` (some sources know more). A source without splits (a text file, a folder of
            images, arrays named ``x`` and ``y``) is the same whole for every split; a warning says so unless it is
            "test" that was asked for.
        limit: at most so many samples: a random subset drawn with ``seed``, the same for the same seed and nested for
            growing limits; with ``seed=None`` the first ones in file order. A limit that is not below the number of
            samples changes nothing, neither samples nor order.
        seed: also the seed of the generators (shapes, rings, torus, stripe, sentences), where ``None`` means 0.
        tokenizer: for text: ``"words"``, ``"bytes"``, the name of one of transformers', the tokenizer itself (a
            model's own), or a function from text to ids. An option ``?tokenizer=`` goes first.
        progress: hears of downloads.

    Real data is looked for in the folder ``LISSE_DATA``, then in the user's cache (``LISSE_CACHE``), then in
    ``/usr/share/datasets``. The network is only used when asked: ``?download=true`` or ``LISSE_DOWNLOAD=1``.
    """
    if not isinstance(spec, str) or not spec.strip():
        raise TypeError(
            f"load_data: spec must be a string such as 'digits', got {spec!r}. as_dataset takes Python objects."
        )
    request = Request(split, limit, seed, tokenizer, progress)
    request.check("load_data")
    head, options = _parsed(spec.strip())
    name, colon, argument = head.partition(":")
    file = places.resolve(head)
    if head in SOURCES and SOURCES[head].takes == "name":
        data = SOURCES[head].load(request, **_typed(head, SOURCES[head].load, options))
    elif name in SOURCES and SOURCES[name].takes == "argument" and (colon or not file.exists()):
        if not argument:
            raise ValueError(
                f"load_data: {name!r} must be followed by what to load, got {spec!r}. Write {SOURCES[name].spec}."
            )
        data = SOURCES[name].load(request, argument, **_typed(name, SOURCES[name].load, options))
    elif is_code(head):
        data = _from_factory(head, options, request)
    elif kind := _ending(head):
        data = SOURCES[kind].load(request, head, **_typed(kind, SOURCES[kind].load, options))
    elif file.is_dir():
        data = images.folder(request, head, **_typed("folder", images.folder, options))
    else:
        raise _unknown(spec, head)
    return request.cut(data)


def bundled(spec: str) -> bool:
    """Whether a spec names data by lisse's own name alone: no code, no file that it chooses, and nothing to fetch."""
    head, options = _parsed(spec.strip())
    if head not in SOURCES or SOURCES[head].takes != "name" or "download" in options:
        return False
    return options.get("tokenizer", "") in ("", "words", "bytes")


def check_data(spec: str, split: str) -> None:
    """Raise what :func:`load_data` would about a spec and a split: one sample is read, or a person's code imported."""
    if is_code(spec):
        with importable_folder():
            _persons_data(spec.strip().partition("?")[0])
    else:
        load_data(spec, split=split, limit=1)


def is_code(spec: str) -> bool:
    """Whether a spec names a person's factory, or data that stand in a module of theirs."""
    head = spec.strip().partition("?")[0]
    name = head.partition(":")[0]
    argument = name in SOURCES and SOURCES[name].takes == "argument"
    return not argument and bool(_FACTORY.fullmatch(head)) and not places.resolve(head).exists()


def files_of(spec: str, split: str) -> list[Path]:
    """The files and folders that :func:`load_data` reads for a spec and a split; a tokenizer's among them."""
    head, options = _parsed(spec.strip())
    name, colon, argument = head.partition(":")
    if head in SOURCES and SOURCES[head].takes == "name":
        files = [*SOURCES[head].files(split, options)]
    else:
        path = places.resolve(argument if name in SOURCES and colon else head)
        files = [path] if path.exists() else []
    tokenizer = options.get("tokenizer", "")
    if tokenizer not in ("", "words", "bytes") and (path := Path(os.path.expanduser(tokenizer))).exists():
        files.append(path)
    return files


def _ending(head: str) -> str | None:
    suffixes = [suffix for suffix in Path(head).suffixes if suffix not in (".gz", ".xz")]
    return _KINDS_OF_FILE.get(suffixes[-1]) if suffixes else None


def _parsed(spec: str) -> tuple[str, dict[str, str]]:
    """The part before ``?`` and the options after it."""
    head, mark, query = spec.partition("?")
    if not mark:
        return head, {}
    pairs = [part.partition("=") for part in query.split("&") if part]
    if not all(key and equals for key, equals, _ in pairs):
        raise ValueError(
            f"load_data: options must be written ?name=value&name=value, got {query!r} in {spec!r}. Correct it."
        )
    options = {unquote(key): unquote(value) for key, _, value in pairs}
    if len(options) < len(pairs):
        raise ValueError(f"load_data: every option must be given once, got {query!r}. Remove the repetition.")
    return head, options


def _typed(name: str, load: Callable[..., Dataset], options: dict[str, str]) -> dict[str, Any]:
    """The options as the loader's keyword arguments, each in its type."""
    hints = typing.get_type_hints(load)
    parameters = inspect.signature(load).parameters
    kinds = {k: hints[k] for k, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    values: dict[str, Any] = {}
    for option, value in options.items():
        if option not in kinds:
            near = difflib.get_close_matches(option, kinds, 1)
            ask = f" Did you mean {near[0]!r}?" if near else ""
            have = ", ".join(kinds) or "none"
            raise ValueError(f"load_data: the options of {name!r} must be among: {have}, got {option!r}.{ask}")
        values[option] = _value(name, option, value, kinds[option], parameters[option].default)
    return values


def _value(name: str, option: str, value: str, kind: Any, default: Any) -> Any:
    truths = {"true": True, "1": True, "yes": True, "": True, "false": False, "0": False, "no": False}
    try:
        if kind is bool:
            return truths[value.lower()]
        return kind(value) if kind in (int, float) else value
    except (ValueError, KeyError):
        rule = {bool: "true or false", int: "an integer", float: "a number"}[kind]
        raise ValueError(
            f"load_data: option {option} of {name!r} must be {rule}, got {value!r}. "
            f"Write for example {option}={str(default).lower()}."
        ) from None


def _from_factory(head: str, options: dict[str, str], request: Request) -> Dataset:
    """What a person's own factory returns, as a Dataset; this runs their code."""
    with importable_folder():
        value, name = _called(head, options, request)
        return as_dataset(value, name=name, limit=request.limit, seed=request.seed)


def _called(head: str, options: dict[str, str], request: Request) -> tuple[Any, str | None]:
    """What is named by ``head`` or made by it, and what to call it."""
    factory = _persons_data(head)
    attribute = head.partition(":")[2]
    if not callable(factory):
        request.warn_of_no_splits(repr(head))
        return factory, attribute
    keywords: dict[str, Any] = {name: guessed_value(value) for name, value in options.items()}
    parameters = inspect.signature(factory).parameters
    for name, value in (("split", request.split), ("seed", request.seed), ("tokenizer", request.tokenizer)):
        if name in parameters and name not in keywords and value is not None:
            keywords[name] = value
    try:
        inspect.signature(factory).bind(**keywords)
    except TypeError as error:
        raise ValueError(
            f"load_data: the options of {head!r} must be arguments of the factory, got an error: {error}."
        ) from error
    if "split" not in keywords:
        request.warn_of_no_splits(f"{head!r}, which takes no split,")
    value = factory(**keywords)
    return value, None if isinstance(value, Dataset) else attribute


def _persons_data(head: str) -> Any:
    near = difflib.get_close_matches(head.partition(":")[0], SOURCES, 1)
    return persons_object(head, "load_data", advice=f"Did you mean {near[0]!r}?" if near else "")


def guessed_value(value: str) -> bool | int | float | str:
    """What a person typed: true and false, integers and numbers as such, else text."""
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(value)
    return value


def _unknown(spec: str, head: str) -> ValueError:
    names = [*SOURCES]
    near = difflib.get_close_matches(head.partition(":")[0].lower(), names, 3, 0.5)
    ask = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    have = ", ".join(source.spec.partition("?")[0] for source in SOURCES.values())
    return ValueError(
        f"load_data: spec must be one of {have}, a file (.npz, .txt, .jsonl, .tsv, .csv), a folder of images or "
        f"package.module:factory, got {spec!r}.{ask or ' Check the spelling and the path.'}"
    )
