"""Files that a person names: whatever is wrong with one is trouble with a file, in one line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lisse.cli.outcome import FileTrouble

if TYPE_CHECKING:
    from torch import Tensor

    from lisse.profile import Profile
    from lisse.reporting.atlas import AtlasRow


def load_profile(path: str) -> Profile:
    """A saved profile."""
    from lisse.profile import Profile

    try:
        return Profile.load(path)
    except ValueError as error:
        raise FileTrouble(str(error)) from error


def load_atlas_row(target: str) -> tuple[AtlasRow, dict[str, dict[str, str]]]:
    """The row of ``ATLAS.json#KEY``, by the beginning of its key, and the words on its numbers."""
    from lisse.reporting.atlas import load_atlas

    path, _, key = target.rpartition("#")
    try:
        rows, words = load_atlas(path)
    except FileNotFoundError:
        raise FileTrouble(f"No such file or directory: {path}") from None
    except ValueError as error:
        raise FileTrouble(str(error)) from error
    matches = [row for row in rows if row.key.startswith(key)]
    if not key or len(matches) != 1:
        count = f"{len(matches)} rows" if matches else "none"
        raise FileTrouble(f"{path} must have one row with the key {key!r}, got {count}. `lisse atlas` shows the keys.")
    return matches[0], words


def load_picture(path: str, *, size: int | None = None, grey: bool = False) -> Tensor:
    """An image as bytes [c, h, w]; with a ``size``, its middle square, resized."""
    import torch

    from lisse.data.images import read_image

    if not Path(path).exists():
        raise FileTrouble(f"No such file or directory: {path}")
    try:
        return torch.from_numpy(read_image(Path(path), size=size, grey=grey).copy())
    except ValueError as error:
        raise FileTrouble(str(error)) from error
