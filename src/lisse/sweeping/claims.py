"""Claims: one process at a time is at a piece of work, and a dead one is at none."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def claim(path: Path) -> Iterator[bool]:
    """Whether the work of this name is ours for as long as the block runs; ``False`` where another process has it.

    A lock of the system, which lets go of it when a process dies; the file is gone afterwards. Across machines it holds
    as far as locks of their shared file system do: without them two may do the same work, and file it whole both.
    """
    try:
        import fcntl
    except ImportError:  # pragma: no cover - on Windows
        yield True
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                break
            os.close(handle)  # whoever had it has removed it meanwhile
        except BlockingIOError:
            os.close(handle)
            yield False
            return
        except FileNotFoundError:
            os.close(handle)
        except OSError:  # a file system without locks
            break
    try:
        yield True
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)
