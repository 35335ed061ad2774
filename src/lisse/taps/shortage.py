"""Whether an error says that a machine had no room, and nothing of the network."""

from __future__ import annotations

import torch


def is_shortage(error: BaseException | None) -> bool:
    """Whether an error, or what it came of, says that there was no room for the moment, and nothing of the work.

    PyTorch says so of a processor's memory in a plain ``RuntimeError`` of its allocator.
    """
    while error is not None:
        if isinstance(error, (MemoryError, OSError, torch.OutOfMemoryError)) or "DefaultCPUAllocator" in str(error):
            return True
        error = error.__cause__
    return False
