"""Finished pieces of work on disk, found again by the hash of everything they depend on."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np

from lisse.profile import Part, Profile
from lisse.profile_file import load_arrays, load_part, save_arrays, save_part
from lisse.run.fingerprint import digest_of

T = TypeVar("T")


def default_cache() -> Path:
    """``LISSE_CACHE``, or ``lisse`` in the person's cache folder."""
    if os.environ.get("LISSE_CACHE"):
        return Path(os.environ["LISSE_CACHE"])
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "lisse"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "lisse"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lisse"


class Cache:
    """A folder of pieces. Every file is written whole or not at all; a damaged one counts as missing, and is named.

    ``complaint`` holds what the last look-up found wrong, for the run to tell.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.complaint: str | None = None

    def arrays(self, key: str) -> dict[str, np.ndarray] | None:
        """The arrays stored under a key, or ``None``."""
        path = self._path(key, "arrays")
        return self._look(path, lambda: load_arrays(path))

    def keep_arrays(self, key: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Store arrays under a key."""
        save_arrays(arrays, self._made(self._path(key, "arrays")))

    def part(self, key: str) -> Part | None:
        """The part stored under a key, or ``None``."""
        path = self._path(key, "part")
        return self._look(path, lambda: load_part(path))

    def keep_part(self, key: str, part: Part) -> None:
        """Store a part under a key."""
        save_part(part, self._made(self._path(key, "part")))

    # -- whole profiles, for a person to find again ----------------------------------------------------------------

    def keep_profile(self, profile: Profile) -> Path:
        """Store a finished profile; the same model, data, instruments, options and seed take the place of the last."""
        said = profile.provenance
        origin = [said.get(key) for key in ("model", "data", "seed", "statistics", "readout", "reference")]
        key = digest_of(origin, [(part.instrument, part.options) for part in profile.parts])
        path = self.folder / "profiles" / f"{key}.profile"
        return profile.save(self._made(path))

    def profiles(self) -> Iterator[tuple[Path, Profile | None]]:
        """The profiles that were kept, the newest first; ``None`` for a file that cannot be read."""
        paths = sorted((self.folder / "profiles").glob("*.profile"), key=lambda path: (-path.stat().st_mtime, path))
        for path in paths:
            try:
                yield path, Profile.load(path)
            except (ValueError, OSError):
                yield path, None

    def _look(self, path: Path, load: Callable[[], T]) -> T | None:
        self.complaint = None
        if not path.exists():
            return None
        try:
            return load()
        except (ValueError, OSError) as error:
            self.complaint = f"a cached piece is damaged and is made again ({error})"
            return None

    def _path(self, key: str, kind: str) -> Path:
        return self.folder / "pieces" / key[:2] / f"{key}.{kind}"

    def _made(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path
