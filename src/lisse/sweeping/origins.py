"""What a unit is made of beside its own words, as hashes: the bytes of files and folders, and a person's code."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from lisse.data.sources import files_of, is_code
from lisse.identity import module_digest
from lisse.libraries import importable_folder
from lisse.models.specs import parse
from lisse.run.fingerprint import digest_of

#: Of a folder whose bytes are read.
MOST_DIGESTED = 64 * 2**20


def origins_of_model(spec: str) -> list[str | None]:
    """Of a checkpoint or a folder, of weights, and of the module of a person's factory."""
    parsed = parse(spec)
    # A folder that happens to be called as a network of the zoo is none of its files.
    names = [parsed.name if parsed.hub in ("checkpoint", "hf", "recorded") else "", parsed.options.get("weights", "")]
    files = [digest_of_files(Path(os.path.expanduser(str(name)))) for name in names if name]
    return files + ([origin_of_code(parsed.name)] if parsed.hub == "factory" else [])


def origins_of_data(spec: str, split: str) -> list[str | None]:
    """Of the files that a split of the data is read from, a tokenizer's among them, and of a factory's module."""
    files: list[str | None] = [digest_of_files(path) for path in files_of(spec, split)]
    return files + ([origin_of_code(spec)] if is_code(spec) else [])


def origin_of_code(name: str) -> str:
    """Of ``package.module:name``, with what the module imports of the person's own."""
    with importable_folder():
        return module_digest(name.partition(":")[0])


_LOOK: ContextVar[dict[Path, str | None] | None] = ContextVar("look", default=None)


@contextlib.contextmanager
def one_look() -> Iterator[None]:
    """Inside, every file and folder is looked at once: the units of a plan name the same ones again and again."""
    token = _LOOK.set({})
    try:
        yield
    finally:
        _LOOK.reset(token)


def digest_of_files(path: Path) -> str | None:
    """A hash of a file's bytes, or of all that a folder holds; ``None`` where nothing is there.

    Of a folder of more than :data:`MOST_DIGESTED`, names, sizes and times of writing stand for the bytes. Costs one
    look at every entry, and one reading of the bytes as long as none of these change.
    """
    digests = _LOOK.get()
    if digests is not None and path in digests:
        return digests[path]
    digest = None
    if path.is_file():
        digest = _digest(str(path.resolve()), *_state(path))
    elif path.is_dir():
        files = [Path(base, name) for base, _, names in os.walk(path) for name in names]
        states = tuple((str(file), *_state(file)) for file in sorted(files) if file.is_file())
        readable = sum(size for _, size, _ in states) <= MOST_DIGESTED
        names = [(os.path.relpath(file, path), size, None if readable else written) for file, size, written in states]
        digest = digest_of(names, _folder_digest(states) if readable else None)
    if digests is not None:
        digests[path] = digest
    return digest


def _state(file: Path) -> tuple[int, int]:
    about = file.stat()
    return about.st_size, about.st_mtime_ns


@functools.lru_cache(maxsize=4096)
def _digest(path: str, size: int, modified: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.lru_cache(maxsize=16)
def _folder_digest(states: tuple[tuple[str, int, int], ...]) -> str:
    return digest_of([_digest.__wrapped__(*state) for state in states])
