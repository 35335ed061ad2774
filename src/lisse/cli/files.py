"""Files that a person names: whatever is wrong with one is trouble with a file, in one line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lisse.cli.outcome import FileTrouble

if TYPE_CHECKING:
    from torch import Tensor

    from lisse.profile import Profile


def load_profile(path: str) -> Profile:
    """A saved profile."""
    from lisse.profile import Profile

    try:
        return Profile.load(path)
    except ValueError as error:
        raise FileTrouble(str(error)) from error


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
