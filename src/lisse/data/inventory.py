"""What data is available where, with checksums: the content of ``lisse data``."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lisse.data import cifar, corrupted, places
from lisse.data.download import CIFAR10, FASHION_MNIST, MNIST, Remote
from lisse.data.images import IMAGENET_FOLDERS
from lisse.data.sources import SOURCES

_PUBLISHED: dict[str, tuple[Remote, ...]] = {"mnist": MNIST, "fashion-mnist": FASHION_MNIST, "cifar10": CIFAR10}
EMBEDDED = ("digits", "rings", "torus", "stripe", "sentences")


@dataclass(frozen=True)
class File:
    """A file on this machine. ``official``: its checksum is the published one (``None``: none is published)."""

    path: str
    bytes: int
    sha256: str
    official: bool | None


@dataclass(frozen=True)
class Available:
    """One source: ``state`` is embedded, complete, partial, missing, or yours (you say where it is)."""

    name: str
    spec: str
    about: str
    state: str
    folder: str
    files: tuple[File, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON (``place`` is the older name of ``folder``)."""
        return {**asdict(self), "place": self.folder}


def sha256(path: Path) -> str:
    """The SHA-256 of a file."""
    return _digest(path, "sha256")


def _digest(path: Path, kind: str) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


def inventory() -> list[Available]:
    """Every source with what is on this machine."""
    return [_available(name) for name in SOURCES]


def _available(name: str) -> Available:
    source = SOURCES[name]
    if name in EMBEDDED:
        return Available(name, source.spec, source.about, "embedded", "lisse", ())
    if name == "imagenet":
        folder = next(iter(places.candidates(IMAGENET_FOLDERS)), None)
        state = "complete" if folder else "missing"
        return Available(name, source.spec, source.about, state, str(folder or ""), ())
    if name == "cifar10-c":  # three gigabytes: not worth a checksum at every look
        where = corrupted.cifar10_c_folder()
        have = len(corrupted.present(where)) if where else 0
        state = "complete" if have == len(corrupted.CORRUPTIONS) else "partial" if have else "missing"
        return Available(name, source.spec, source.about, state, str(where or ""), ())
    if name not in _PUBLISHED:
        return Available(name, source.spec, source.about, "yours", "", ())
    halves = [source.files(split, {}) for split in ("train", "test")]
    paths = list(dict.fromkeys(path for half in halves for path in half))
    state = "complete" if all(halves) else "partial" if any(halves) else "missing"
    checksums = {remote.name: remote.sha256 for remote in _PUBLISHED[name]}
    files = []
    for path in paths:
        digest = sha256(path)
        official = digest == checksums[path.name] if path.name in checksums else None
        if name == "cifar10" and path.name in cifar.OFFICIAL:
            official = (path.stat().st_size, _digest(path, "md5")) == cifar.OFFICIAL[path.name]
        files.append(File(str(path), path.stat().st_size, digest, official))
    return Available(name, source.spec, source.about, state, str(paths[0].parent) if paths else "", tuple(files))
