"""Reading files that others made: never more memory than a file of its size deserves, and damage is named."""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

#: Nothing is unpacked beyond this many bytes, whatever its size on disk.
CEILING = 8 << 30
#: A packed file may grow this much (real pictures and text grow 2 to 20 times; a decompression bomb 1000 times) …
RATIO = 200
#: … and a small one at least to this size.
FLOOR = 64 << 20

DAMAGED = (EOFError, OSError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)
AGAIN = "The file is damaged or not what its name says: delete it and copy or download it again."


def allowance(packed: int) -> int:
    """How many bytes a file of ``packed`` bytes may unpack to."""
    return min(CEILING, max(FLOOR, RATIO * packed))


def check_unpacked(function: str, path: Path | str, packed: int, unpacked: int) -> None:
    """Refuse a file that declares more content than :func:`allowance`."""
    if unpacked > allowance(packed):
        raise ValueError(
            f"{function}: {path} must not unpack to more than {allowance(packed):,} bytes, "
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
                rest = self.unpacker.unused_data or self.raw.read(1 << 16)
                if not rest:
                    return b""
                self.unpacker = lzma.LZMADecompressor(memlimit=1 << 28)
                packed = rest
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


def read_all(function: str, path: Path) -> bytes:
    """Everything in a plain, gzip or xz file, within its allowance."""
    most = allowance(path.stat().st_size) if path.is_file() else 0
    with opened(function, path) as stream:
        content = read_exactly(stream, most + 1)
    check_unpacked(function, path, path.stat().st_size, len(content))
    return content


def read_exactly(stream: IO[bytes], count: int) -> bytes:
    """``count`` bytes or all that there are, growing with what really arrives rather than with what was promised."""
    parts: list[bytes] = []
    while count > 0 and (part := stream.read(min(count, 1 << 20))):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
