"""Where data is looked for: the folder in LISSE_DATA, the user's cache, the system's data sets."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple


class Place(NamedTuple):
    """A folder in which data sets may lie, and what to call it."""

    label: str
    folder: Path


def cache_folder() -> Path:
    """The user's cache for lisse: ``LISSE_CACHE``, or the platform's (``~/.cache/lisse`` on Linux)."""
    if chosen := os.environ.get("LISSE_CACHE"):
        return Path(chosen).expanduser()
    import pooch

    return Path(pooch.os_cache("lisse"))


def places() -> tuple[Place, ...]:
    """The folders in search order. Debian's ``dataset-fashion-mnist`` puts its files in the system's."""
    found = [Place("cache", cache_folder() / "data"), Place("system", Path("/usr/share/datasets"))]
    if chosen := os.environ.get("LISSE_DATA"):
        found.insert(0, Place("LISSE_DATA", Path(chosen).expanduser()))
    return tuple(found)


def resolve(path: str) -> Path:
    """``path`` if it is there, else the same path inside one of the places, else ``path`` as it is."""
    given = Path(path).expanduser()
    if given.exists() or given.is_absolute():
        return given
    return next((place.folder / given for place in places() if (place.folder / given).exists()), given)


def candidates(subfolders: Sequence[str]) -> Iterable[Path]:
    """Existing folders to look in: each place's ``subfolders``, in order."""
    for place in places():
        for sub in subfolders:
            folder = place.folder / sub
            if folder.is_dir():
                yield folder


def find(subfolders: Sequence[str], names: Sequence[Sequence[str]]) -> list[Path] | None:
    """The first folder that has one spelling of every file in ``names``: those files; else ``None``."""
    for folder in candidates(subfolders):
        files = [next((folder / name for name in spellings if (folder / name).is_file()), None) for spellings in names]
        if all(file is not None for file in files):
            return [file for file in files if file is not None]
    return None


def searched() -> str:
    """The search in words, for errors."""
    folders = ", ".join(str(place.folder) for place in places())
    return folders if os.environ.get("LISSE_DATA") else f"{folders} (LISSE_DATA is not set)"
