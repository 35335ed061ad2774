"""The file of a profile: one zip with ``profile.json`` and ``arrays/<part>/<name>.npy``; no pickle, written atomically.

``docs/profile.md`` describes the format. Reading trusts nothing: sizes are bounded before anything is allocated, names
must be the expected ones, and whatever is wrong with a file comes out as one ``ValueError`` that names it (a file that
cannot be opened at all stays an ``OSError``). The same container holds single parts and plain arrays, for caches.
:mod:`.document` turns a profile into JSON and back, :mod:`.container` is the zip.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from lisse.profile import Part, Profile
from lisse.profile_file import document as doc
from lisse.profile_file.container import MAX_BYTES, VERSION, ArrayEntries, pack, saying, unpacked
from lisse.profile_file.document import number_to_json, row_to_json
from lisse.profile_file.replacement import writing

__all__ = [
    "MAX_BYTES",
    "VERSION",
    "load",
    "load_arrays",
    "load_part",
    "number_to_json",
    "row_to_json",
    "save",
    "save_arrays",
    "save_part",
    "writing",
]


def save(profile: Profile, path: str | Path, *, max_bytes: int = MAX_BYTES) -> Path:
    """Write ``profile`` to ``path`` atomically and return the path; missing folders are made.

    Equal profiles (with their keys in the same order) give equal bytes.
    """
    arrays: ArrayEntries = {}
    with saying("save", "profile must be plain data"):
        parts = [doc.part_to_json(part, index, arrays) for index, part in enumerate(profile.parts)]
        document = {"provenance": doc.free_to_json(profile.provenance, "provenance"), "parts": parts}
        doc.profile_from_json(document, arrays.__getitem__)
        return pack(Path(path), "profile", document, arrays, max_bytes)


def load(path: str | Path, *, max_bytes: int = MAX_BYTES) -> Profile:
    """Read a file that :func:`save` wrote.

    ``max_bytes`` bounds what the file may unpack to. A damaged, foreign, newer or hostile file is a ``ValueError``
    that names it; a file that cannot be opened is an ``OSError``.
    """
    profile: Profile = unpacked("load", Path(path), "profile", doc.profile_from_json, max_bytes)
    return profile


def save_part(part: Part, path: str | Path, *, max_bytes: int = MAX_BYTES) -> Path:
    """Write one part by itself, atomically; as :func:`save`."""
    arrays: ArrayEntries = {}
    with saying("save_part", "part must be plain data"):
        document = {"part": doc.part_to_json(part, 0, arrays)}
        doc.one_part_from_json(document, arrays.__getitem__)
        return pack(Path(path), "part", document, arrays, max_bytes)


def load_part(path: str | Path, *, max_bytes: int = MAX_BYTES) -> Part:
    """Read a file that :func:`save_part` wrote; errors as in :func:`load`."""
    part: Part = unpacked("load_part", Path(path), "part", doc.one_part_from_json, max_bytes)
    return part


def save_arrays(arrays: Mapping[str, np.ndarray], path: str | Path, *, max_bytes: int = MAX_BYTES) -> Path:
    """Write named arrays, atomically; any dtype but object."""
    entries: ArrayEntries = {}
    with saying("save_arrays", "arrays must be plain data"):
        return pack(Path(path), "arrays", {"arrays": doc.arrays_to_json(arrays, 0, entries)}, entries, max_bytes)


def load_arrays(path: str | Path, *, max_bytes: int = MAX_BYTES) -> dict[str, np.ndarray]:
    """Read a file that :func:`save_arrays` wrote; errors as in :func:`load`."""
    arrays: dict[str, np.ndarray] = unpacked("load_arrays", Path(path), "arrays", doc.only_arrays_from_json, max_bytes)
    return arrays
