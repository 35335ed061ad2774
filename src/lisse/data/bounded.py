"""Reading files that others made: never more memory than a file of its size deserves, and damage is named."""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from lisse.profile_file.container import CEILING, allowance

#: Bytes of a file that is read as a whole: as Python objects its texts take several times that.
MOST = 1 << 30
DAMAGED = (EOFError, OSError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)
AGAIN = "The file is damaged or not what its name says: delete it and copy or download it again."


def check_unpacked(function: str, path: Path | str, packed: int, unpacked: int, most: int = CEILING) -> None:
    """Refuse a file that declares more content than :func:`allowance`, or than ``most``."""
    if unpacked > min(most, allowance(packed)):
        raise ValueError(
            f"{function}: {path} must not unpack to more than {min(most, allowance(packed)):,} bytes, "
            f"got {unpacked:,} from {packed:,}. "
            "Such a file is a decompression bomb or damaged; if it is really data, store it uncompressed."
        )


@contextmanager
def opened(function: str, path: Path) -> Iterator[IO[bytes]]:
    """The content of ``path``, unpacked if its first bytes say gzip or xz; damage is a ValueError that names it."""
    if not path.is_file():
        got = "a folder" if path.is_dir() else "nothing there"
        raise FileNotFoundError(f"{function}: {path} must be a file, got {got}. Check the path.")
    with path.open("rb") as raw:
        start = raw.read(6)
        raw.seek(0)
        try:
            if start[:2] == b"\x1f\x8b":
                with gzip.GzipFile(fileobj=raw) as stream:
                    yield cast(IO[bytes], stream)
            elif start == b"\xfd7zXZ\x00":
                yield cast(IO[bytes], _Xz(raw))
            else:
                yield raw
        except DAMAGED as error:
            raise ValueError(f"{function}: {path} must be a complete file, got {error}. {AGAIN}") from error


class _Xz:
    """An xz stream with bounded memory for its dictionary (``lzma.LZMAFile`` takes what the header asks for)."""

    def __init__(self, raw: IO[bytes]) -> None:
        self.raw = raw
        self.unpacker = lzma.LZMADecompressor(memlimit=1 << 28)

    def read(self, count: int) -> bytes:
        """Up to ``count`` bytes, at least one before the end."""
        while True:
            if self.unpacker.eof:
                more = self.unpacker.unused_data or self.raw.read(1 << 16)
                if not more:
                    return b""
                self.unpacker = lzma.LZMADecompressor(memlimit=1 << 28)
                packed = more
            else:
                packed = self.raw.read(1 << 16) if self.unpacker.needs_input else b""
                if not packed and self.unpacker.needs_input:
                    raise EOFError("the end before the xz stream was complete")
            if content := self.unpacker.decompress(packed, max_length=count):
                return content


class Metered:
    """A stream of a packed file that refuses to go beyond the :func:`allowance` of that file."""

    def __init__(self, function: str, path: Path, stream: IO[bytes]) -> None:
        self.function, self.path, self.stream = function, path, stream
        self.packed, self.unpacked = path.stat().st_size, 0

    def read(self, count: int) -> bytes:
        """Up to ``count`` bytes."""
        part = self.stream.read(count)
        self.unpacked += len(part)
        check_unpacked(self.function, self.path, self.packed, self.unpacked)
        return part

    def drain(self) -> None:
        """Read on to the end, where gzip and xz compare their checksums."""
        while self.read(1 << 20):
            pass


def read_all(function: str, path: Path, *, most: int = MOST) -> bytes:
    """Everything in a plain, gzip or xz file, within its allowance and ``most`` bytes."""
    size = path.stat().st_size if path.is_file() else 0
    if size > most:  # before a byte of it is read
        raise ValueError(
            f"{function}: {path} must be at most {most:,} bytes, got {size:,}. Everything in it is held in memory: "
            "cut it into parts."
        )
    with opened(function, path) as stream:
        content = read_exactly(stream, min(most, allowance(size)) + 1)
    check_unpacked(function, path, size, len(content), most)
    return content


def read_exactly(stream: IO[bytes], count: int) -> bytes:
    """``count`` bytes or all that there are, growing with what really arrives rather than with what was promised."""
    parts: list[bytes] = []
    while count > 0 and (part := stream.read(min(count, 1 << 20))):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
