"""Files that appear whole or not at all: written beside their place, brought to the disk, moved there."""

from __future__ import annotations

import errno
import glob
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """An empty file that takes the place of ``path``, whole and on the disk, when the block ends without an error.

    A reader sees the old file or the new one, never half of one. The new one begins in a folder ``.NAME.xxxxxxxx.tmp``
    beside it (safetensors writes files of its own there), which is gone afterwards. A process that is killed leaves
    it; the next one that writes this file removes it. It is locked while its process lives, so nobody else's is.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_left(path.parent, path.name)
    with _file_errors(path), _own_folder(path) as folder:
        temporary = folder / "new"
        # Not tempfile: its files are private, and the mode of any other new file is only known to the system.
        temporary.open("xb").close()
        mode = temporary.stat().st_mode
        yield temporary
        temporary.chmod(mode)  # safetensors makes a private file of it
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    if os.name == "posix":
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError:  # some file systems cannot; the rename itself is still atomic
            pass
        finally:
            os.close(handle)


@contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    """Errors of the disk say for which file: a write that finds it full names none."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
        raise


@contextmanager
def _own_folder(path: Path) -> Iterator[Path]:
    """A new folder for what will be ``path``, locked as long as this process holds it."""
    while True:
        folder = path.with_name(f".{path.name[:40]}.{secrets.token_hex(4)}.tmp")
        folder.mkdir()
        handle = _locked(folder)
        if handle is not None:
            break
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if handle >= 0:
            os.close(handle)


def remove_left(folder: Path, name: str = "", *, below: bool = False) -> int:
    """Remove what dead processes left of files of this name (of any) in a folder, and below it; how many there were."""
    pattern = f".{glob.escape(name[:40]) if name else '*'}.{'[0-9a-f]' * 8}.tmp"
    count = 0
    for left in list(folder.rglob(pattern) if below else folder.glob(pattern)):
        handle = None if left.is_symlink() else _locked(left)
        if handle is None or handle < 0:  # its process lives, or nobody can know
            continue
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:  # of an earlier lisse
            left.unlink(missing_ok=True)
        os.close(handle)
        count += 1
    return count


def _locked(path: Path) -> int | None:
    """A handle that locks ``path`` until it is closed; ``None`` where it is another's or gone; -1 without locks."""
    try:
        import fcntl
    except ImportError:  # pragma: no cover - on Windows
        return -1
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), os.stat(path)):
            return handle
    except BlockingIOError:
        pass
    except FileNotFoundError:  # removed, by one who took it for left behind, before it was locked
        pass
    except OSError:  # a file system without locks
        os.close(handle)
        return -1
    os.close(handle)
    return None


@contextmanager
def writing(path: str | Path) -> Iterator[IO[bytes]]:
    """:func:`replacing`, opened for bytes."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        yield file


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | Callable[[Mapping[str, Tensor]], Mapping[str, str]],
) -> None:
    """A ``.safetensors`` file of tensors from any device; of names that share a tensor (tied weights) the first.

    The metadata may be a function of the tensors that are written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    memories: set[tuple[int, tuple[int, ...], tuple[int, ...]]] = set()
    storages: set[int] = set()
    values: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        memory = (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()))
        if tensor.numel() and memory in memories:
            continue
        memories.add(memory)
        value = tensor.detach().to("cpu").contiguous()
        # safetensors refuses tensors that share memory: a view of another one is copied.
        storage = value.untyped_storage()
        shared = storage.data_ptr() in storages or storage.nbytes() != value.numel() * value.element_size()
        storages.add(storage.data_ptr())
        values[name] = value.clone() if shared else value
    header = dict(metadata(values) if callable(metadata) else metadata)
    try:
        with replacing(path) as temporary:
            save_file(values, temporary, metadata=header)
    except SafetensorError as error:
        raise OSError(errno.EIO, str(error)) from error
