"""recorded(): activations that something else wrote, as a Recording."""

from __future__ import annotations

from pathlib import Path

from lisse.data import Dataset
from lisse.networks.recorded import Recorded
from lisse.recording.recorder import Recording, record


def recorded(folder: str | Path, *, memory: str | int = "2GiB") -> Recording:
    """A folder of ``.safetensors`` or ``.npz`` files, one array per layer and shard, as a :class:`Recording`.

    See :class:`~lisse.networks.recorded.Recorded` for names, order and labels. Files are mapped; at most ``memory`` of
    them is held at once.
    """
    player = Recorded(folder)
    return record(player, Dataset(Path(folder).name, player.samples, player.targets), memory=memory)
