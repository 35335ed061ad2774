"""Model specs: ``zoo:resnet20?weights=FILE&classes=10`` taken apart, and every value given its type."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from lisse.networks.zoo import NETWORKS

#: What makes networks with random weights, drawn from a seed.
DRAWN = ("zoo:", "timm:", "torchvision:")
HUBS = ("zoo", "hf", "timm", "torchvision", "recorded")
CHECKPOINT = ".safetensors"
PICKLED = (".pt", ".pth", ".th", ".bin", ".ckpt")

SPEC_KINDS = (
    "zoo:NAME, hf:DIRECTORY_OR_REPOSITORY, timm:NAME, torchvision:NAME, package.module:factory, "
    "recorded:FOLDER, or the path of a lisse checkpoint (.safetensors)"
)


@dataclass(frozen=True, slots=True)
class Spec:
    """A spec taken apart: where the model comes from (``hub``), which one (``name``), and its options.

    ``hub`` is one of ``zoo``, ``hf``, ``timm``, ``torchvision``, ``recorded``, ``factory``,
    ``checkpoint``.
    """

    hub: str
    name: str
    options: Mapping[str, Any]

    @property
    def random(self) -> bool:
        """Whether its weights are drawn from a seed: of the zoo, timm or torchvision, and none are asked for."""
        drawn = f"{self.hub}:" in DRAWN and (self.hub == "zoo" or self.options.get("pretrained") is False)
        return drawn and "weights" not in self.options

    def without(self, *names: str) -> str:
        """The spec as text again, less some options."""
        name = text_of(self.name)
        start = name if self.hub in ("factory", "checkpoint") else f"{self.hub}:{name}"
        options = [f"{key}={text_of(value)}" for key, value in self.options.items() if key not in names]
        return start + ("?" + "&".join(options) if options else "")


def parse(spec: str) -> Spec:
    """Take a spec apart.

    After ``?``, options are ``key=value`` joined by ``&``; %-escapes are decoded (write ``%26`` for ``&``, ``%3F`` for
    ``?``, ``%25`` for ``%``). Values are read as integer, number, ``true``/``false``, ``none``, a comma-separated tuple
    of these, or text; ``weights`` is always text.
    """
    if not isinstance(spec, str):
        raise TypeError(
            f"load_model: spec must be a string, got {type(spec).__name__}. Use lisse.models.declare for a module."
        )
    start, _, query = spec.strip().partition("?")
    start = unquote(start)
    options = _options(spec, query)
    hub, colon, name = start.partition(":")
    if colon and hub in HUBS:
        if not name:
            raise ValueError(f"load_model: spec must name a model after {hub}:, got {spec!r}. Write {hub}:NAME.")
        return Spec(hub, name, options)
    suffix = Path(start).suffix
    if suffix == CHECKPOINT:
        return Spec("checkpoint", start, options)
    if suffix in PICKLED:
        raise ValueError(
            f"load_model: spec must say which network the weights belong to, got {spec!r}. "
            f"Write zoo:NAME?weights={start}"
        )
    if colon and name and all(part.isidentifier() for part in (*hub.split("."), *name.split("."))):
        return Spec("factory", start, options)
    raise ValueError(f"load_model: spec must be {SPEC_KINDS}, got {spec!r}. {_advice(start, query)}")


def _advice(start: str, query: str) -> str:
    """What a spec without a hub was probably meant to be."""
    path = Path(os.path.expanduser(start))
    if start and path.name == "config.json" and path.is_file():
        start, path = str(Path(start).parent), path.parent
    if start and path.is_dir():
        if not (path / "config.json").is_file():
            return "It is a folder, and without a config.json not one of Hugging Face's; name a file in it."
        return f"Did you mean hf:{text_of(start)}{'?' * bool(query)}{query}?"
    if not start or ":" in start:
        return "See docs/models.md."
    # The zoo's names have no slash, a repository's may have one.
    near = [] if "/" in start else difflib.get_close_matches(start.lower(), NETWORKS, n=1, cutoff=0.8)
    hub, name = ("zoo", near[0]) if near else ("hf", start)
    return f"Did you mean {hub}:{name}{'?' * bool(query)}{query}?"


def _options(spec: str, query: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for piece in query.split("&") if query else ():
        key, equals, value = piece.partition("=")
        key = unquote(key)
        if not equals or not key.isidentifier():
            raise ValueError(
                f"load_model: options must be key=value joined by &, got {piece!r} in {spec!r}. "
                "Write ?size=32&classes=10."
            )
        if key in options:
            raise ValueError(
                f"load_model: every option must be given once, got {key} twice in {spec!r}. Leave one out."
            )
        text = unquote(value)
        options[key] = text if key == "weights" else read_value(text)
    return options


def read_value(text: str) -> Any:
    """``"3"`` to 3, ``"0.5"`` to 0.5, ``"true"`` to True, ``"none"`` to None, ``"1,2"`` to (1, 2), else the text."""
    if "," in text:
        return tuple(read_value(part) for part in text.split(",") if part)
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    # Only plain ASCII numbers: int() and float() would also read "1_000", "nan" or Arabic digits.
    if text.isascii() and "_" not in text and any(c.isdigit() for c in text) and len(text) < 32:
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                continue
    return text


def text_of(value: Any) -> str:
    """A value as it is written in a spec; :func:`read_value` reads it again."""
    if isinstance(value, tuple):
        return ",".join(text_of(part) for part in value) + ("," if len(value) < 2 else "")
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return quote(str(value), safe="/:.+- ~\\@^")
