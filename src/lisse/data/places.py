"""Where data is looked for: the folder in LISSE_DATA, the user's cache, the system's data sets."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple


class SearchFolder(NamedTuple):
    """A folder in which data sets may lie, and what to call it."""

    label: str
    folder: Path


def cache_folder() -> Path:
    """The user's cache for lisse: ``LISSE_CACHE``, or ``lisse`` in the platform's (``~/.cache/lisse`` on Linux)."""
    if folder := os.environ.get("LISSE_CACHE"):
        return Path(os.path.expanduser(folder))
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "lisse"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "lisse"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lisse"


def search_folders() -> tuple[SearchFolder, ...]:
    """The folders in search order. Debian's ``dataset-fashion-mnist`` puts its files in the system's."""
    folders = [SearchFolder("cache", cache_folder() / "data"), SearchFolder("system", Path("/usr/share/datasets"))]
    if folder := os.environ.get("LISSE_DATA"):
        folders.insert(0, SearchFolder("LISSE_DATA", Path(os.path.expanduser(folder))))
    return tuple(folders)


def resolve(path: str) -> Path:
    """``path`` if it is there, else the same path inside one of the places, else ``path`` as it is."""
    file = Path(os.path.expanduser(path))
    if file.exists() or file.is_absolute():
        return file
    return next((entry.folder / file for entry in search_folders() if (entry.folder / file).exists()), file)


def candidates(subfolders: Sequence[str]) -> Iterable[Path]:
    """Existing folders to look in: each place's ``subfolders``, in order."""
    for entry in search_folders():
        for sub in subfolders:
            folder = entry.folder / sub
            if folder.is_dir():
                yield folder


def files_in(subfolders: Sequence[str], names: Sequence[Sequence[str]]) -> list[Path] | None:
    """The first folder that has one spelling of every file in ``names``: those files; else ``None``."""
    for folder in candidates(subfolders):
        files = [next((folder / name for name in spellings if (folder / name).is_file()), None) for spellings in names]
        if all(file is not None for file in files):
            return [file for file in files if file is not None]
    return None


def searched() -> str:
    """The search in words, for errors."""
    folders = ", ".join(str(entry.folder) for entry in search_folders())
    return folders if os.environ.get("LISSE_DATA") else f"{folders} (LISSE_DATA is not set)"
