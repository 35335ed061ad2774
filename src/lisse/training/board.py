"""TensorBoard, on request: one scalar per column of the log."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path


class Board:
    """Writes rows of the log as scalars; a resumed run takes back what was written after its checkpoint."""

    def __init__(self, folder: Path, step: int) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError(
                'train: tensorboard must be installed for tensorboard=True, got none. pip install "lisse[tensorboard]"'
            ) from error
        self.writer = SummaryWriter(str(folder), purge_step=step + 1 if step else None)

    def __call__(self, row: Mapping[str, float]) -> None:
        """Write one epoch's row at its step."""
        for name, value in row.items():
            if name != "step":
                self.writer.add_scalar(name, value, int(row["step"]))
        self.writer.flush()

    def close(self) -> None:
        """Finish the file."""
        self.writer.close()
