"""The profiles of one training: files by step, and one table of all of them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lisse.profile import Profile

if TYPE_CHECKING:
    import pandas as pd

FOLDER = "profiles"
_FILE = re.compile(r"step-(\d{8,})\.profile")


def load_profiles(folder: str | Path) -> dict[int, Profile]:
    """The profiles of a training by step, in order: ``folder`` is the training's ``out``, or ``out/profiles`` itself.

    A damaged file is a ``ValueError`` that names it.
    """
    folder = Path(folder)
    paths = files(folder) or _listed(folder)
    if not paths:
        raise ValueError(
            f"load_profiles: folder must hold files like {FOLDER}/{file_name(0)}, got {str(folder)!r}, which has "
            "none. Train with a Watch that has an out."
        )
    return {step: Profile.load(paths[step]) for step in sorted(paths)}


def time_frame(profiles: Mapping[int, Profile]) -> pd.DataFrame:
    """Profiles by step as one long table: ``step``, ``epoch``, and the columns of ``Profile.frame``.

    A coordinate of a row that is itself called ``step`` or ``epoch`` becomes ``at.step`` or ``at.epoch``.
    """
    import pandas as pd

    frames = []
    for step, profile in profiles.items():
        frame = profile.frame().rename(columns={"step": "at.step", "epoch": "at.epoch"})
        frame.insert(0, "step", step)
        epoch = training_of(profile).get("epoch")
        frame.insert(1, "epoch", math.nan if epoch is None else float(epoch))
        frames.append(frame)
    full = [frame for frame in frames if len(frame)] or frames[:1]
    if not full:
        return pd.DataFrame(columns=["step", "epoch", *Profile(()).frame().columns])
    return pd.concat(full, ignore_index=True)


def training_of(profile: Profile) -> Mapping[str, Any]:
    """Where in a training a profile was made: ``step``, ``epoch``…; empty for one that was made outside of any."""
    return profile.about("training")


def file_name(step: int) -> str:
    """The name of a step's file."""
    return f"step-{step:08d}.profile"


def files(out: Path | None) -> dict[int, Path]:
    """The files of the training whose folder this is, by step."""
    return {} if out is None else _listed(out / FOLDER)


def _listed(folder: Path) -> dict[int, Path]:
    if not folder.is_dir():
        return {}
    paths = {int(match[1]): path for path in folder.iterdir() if (match := _FILE.fullmatch(path.name))}
    return dict(sorted(paths.items()))
