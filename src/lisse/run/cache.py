"""Finished pieces of work on disk, found again by the hash of everything they depend on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np

from lisse.data.places import cache_folder
from lisse.profile import Part, Profile
from lisse.profile_file import load_arrays, load_part, save_arrays, save_part
from lisse.profile_file.replacement import remove_left
from lisse.run.fingerprint import digest_of

T = TypeVar("T")


default_cache = cache_folder


class Cache:
    """A folder of pieces. Every file is written whole or not at all; a damaged one counts as missing, and is named.

    ``complaint`` holds what the last look-up found wrong, for the run to tell.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(os.path.expanduser(folder))
        self.complaint: str | None = None

    def arrays(self, key: str) -> dict[str, np.ndarray] | None:
        """The arrays stored under a key, or ``None``."""
        path = self._path(key, "arrays")
        return self._look(path, lambda: load_arrays(path))

    def keep_arrays(self, key: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Store arrays under a key."""
        save_arrays(arrays, self._with_folder(self._path(key, "arrays")))

    def remove_arrays(self, key: str) -> None:
        """Remove what is stored under a key, if it is there."""
        self._path(key, "arrays").unlink(missing_ok=True)

    def part(self, key: str) -> Part | None:
        """The part stored under a key, or ``None``."""
        path = self._path(key, "part")
        return self._look(path, lambda: load_part(path))

    def keep_part(self, key: str, part: Part) -> None:
        """Store a part under a key."""
        save_part(part, self._with_folder(self._path(key, "part")))

    # -- whole profiles, for a person to find again ----------------------------------------------------------------

    def keep_profile(self, profile: Profile) -> Path:
        """Store a finished profile; the same model, data, instruments, options and seed take the place of the last."""
        provenance = profile.provenance
        origin = [
            provenance.get(key) for key in ("model", "data", "seed", "order", "statistics", "readout", "reference")
        ]
        key = digest_of(origin, [(part.instrument, part.options) for part in profile.parts])
        path = self.folder / "profiles" / f"{key}.profile"
        return profile.save(self._with_folder(path))

    def profiles(self) -> Iterator[tuple[Path, Profile | None]]:
        """The profiles that were kept, the newest first; ``None`` for a file that cannot be read."""
        files = [path for path in (self.folder / "profiles").glob("*.profile") if path.is_file()]
        for path in sorted(files, key=lambda path: (-path.stat().st_mtime, path)):
            try:
                yield path, Profile.load(path)
            except (ValueError, OSError):
                yield path, None

    def check(self) -> tuple[int, list[Path], int]:
        """Read every file with its checksums: how many are whole; those that are not; how much dead processes left.

        What is left of dead processes is removed, and nothing else.
        """
        kinds: dict[str, Callable[[Path], object]] = {
            "profiles/*.profile": Profile.load,
            "pieces/*/*.arrays": load_arrays,
            "pieces/*/*.part": load_part,
        }
        sound, damaged = 0, []
        for pattern, load in kinds.items():
            for path in sorted(self.folder.glob(pattern)):
                try:
                    load(path)
                    sound += 1
                except (ValueError, OSError):
                    damaged.append(path)
        return sound, damaged, remove_left(self.folder, below=True)

    def _look(self, path: Path, load: Callable[[], T]) -> T | None:
        self.complaint = None
        if not path.is_file():
            return None
        remove_left(path.parent, path.name)  # of a process that was killed when the file had its name already
        try:
            return load()
        except (ValueError, OSError) as error:
            self.complaint = f"a cached piece is damaged and is made again ({error})"
            return None

    def _path(self, key: str, kind: str) -> Path:
        return self.folder / "pieces" / key[:2] / f"{key}.{kind}"

    def _with_folder(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path
