"""One zip with a JSON document and ``.npy`` entries: written atomically, read without trusting a byte of it."""

from __future__ import annotations

import ast
import errno
import json
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np

from lisse.profile_file.replacement import writing

VERSION = 2  # 2: parts have charts
MAX_BYTES = 2 * 2**30
MAX_JSON = 128 * 2**20
MAX_DIRECTORY = 16 * 2**20
#: Nothing is unpacked beyond this many bytes, whatever its size on disk.
CEILING = 8 << 30
#: A packed file may grow this much (real pictures, text and profiles grow 2 to 20 times; a bomb 1000 times) …
RATIO = 200
#: … and a small one at least to this size.
FLOOR = 64 << 20
# Of JSON, many times its size becomes of it in memory.
_JSON_FLOOR = 4 << 20
_MAX_NPY_HEADER = 10_000
_CHUNK = 2**20

ArrayEntries = dict[str, np.ndarray]
Fetch = Callable[[str], np.ndarray]


def allowance(packed: int, floor: int | None = None) -> int:
    """How many bytes a file of ``packed`` bytes may unpack to."""
    return min(CEILING, max(FLOOR if floor is None else floor, RATIO * packed))


def pack(path: Path, kind: str, document: dict[str, Any], arrays: ArrayEntries, max_bytes: int) -> Path:
    """Pack ``document`` as ``<kind>.json`` and ``arrays`` as ``.npy`` into ``path``, atomically."""
    heading = {"format": f"lisse-{kind}", "version": VERSION}
    text = json.dumps(heading | document, allow_nan=False, separators=(",", ":")).encode("ascii")
    if len(text) > MAX_JSON:
        raise ValueError(f"its JSON takes {len(text):,} bytes; at most {MAX_JSON:,} fit. Put long lists into arrays")
    if sum(64 + len(entry) for entry in arrays) > MAX_DIRECTORY:
        raise ValueError(f"it has {len(arrays):,} arrays, too many for one file. Stack some of them")
    total = len(text)
    if (least := total + sum(array.nbytes for array in arrays.values())) > max_bytes:
        raise ValueError(f"it takes {least:,} bytes; at most max_bytes={max_bytes:,} fit")
    with writing(path) as file, zipfile.ZipFile(file, "w") as packed:
        # What deflates like a bomb, and would be refused as one, is stored as it is.
        plain = len(text) > allowance(len(zlib.compress(text[: 4 * _JSON_FLOOR], 1)), _JSON_FLOOR)
        method = zipfile.ZIP_STORED if plain else zipfile.ZIP_DEFLATED
        packed.writestr(_info(f"{kind}.json", len(text), method), text, compresslevel=6)
        for entry, array in arrays.items():
            info = _info(entry, array.nbytes + _MAX_NPY_HEADER, zipfile.ZIP_STORED)
            with packed.open(info, "w") as out:
                np.lib.format.write_array(out, array, allow_pickle=False)
            if info.file_size - array.nbytes > _MAX_NPY_HEADER:
                raise ValueError(f"{entry}: its dtype is too long to describe")
            total += info.file_size
        if total > max_bytes:  # by a header
            raise ValueError(f"it takes {total:,} bytes; at most max_bytes={max_bytes:,} fit")
    return path


def _info(name: str, size: int, compression: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    info.create_system, info.external_attr = 3, 0o644 << 16
    info.file_size, info.compress_type = size, compression
    return info


def unpacked(function: str, path: Path, kind: str, build: Callable[[Any, Fetch], Any], max_bytes: int) -> Any:
    """``build(document, fetch)`` of the file at ``path``, every entry of which must be used exactly once."""
    if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe would be waited for
        raise ValueError(f"{function}: path must be a sound lisse {kind}, got {str(path)!r}: it is no file.")
    with open(path, "rb") as file, saying(function, f"path must be a sound lisse {kind}, got {str(path)!r}"):
        _check_directory(file)
        with zipfile.ZipFile(file) as packed:
            entries = _check_entries(packed, kind, max_bytes, os.fstat(file.fileno()).st_size)
            document = _read_json(packed, entries.pop(f"{kind}.json"))
            _check_heading(document, kind)

            def fetch(entry: str) -> np.ndarray:
                if entry not in entries:
                    raise ValueError(f"the entry {excerpt(entry)} is missing")
                return read_npy(packed, entries.pop(entry), max_bytes)

            built = build(document, fetch)
            if entries:
                raise ValueError(f"it has the unexpected entry {excerpt(next(iter(entries)))}")
            return built


def _check_directory(file: IO[bytes]) -> None:
    """Bound the table of contents before :mod:`zipfile` reads all of it (an ordinary and a 64-bit zip end alike)."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 98))
    tail = file.read(98)
    if tail[-22:-18] != b"PK\5\6" or tail[-2:] != b"\0\0":
        raise ValueError("it is not a zip file, or it is cut off")
    length = struct.unpack("<I", tail[-10:-6])[0]
    if tail[-42:-38] == b"PK\6\7":
        if tail[-98:-94] != b"PK\6\6":
            raise ValueError("its 64-bit table of contents is not where it must be")
        length = struct.unpack("<Q", tail[-58:-50])[0]
    if length > MAX_DIRECTORY + 64:
        raise ValueError(f"its table of contents takes {length:,} bytes, more than {MAX_DIRECTORY:,}")
    file.seek(0)


def _check_entries(packed: zipfile.ZipFile, kind: str, max_bytes: int, size: int) -> dict[str, zipfile.ZipInfo]:
    entries: dict[str, zipfile.ZipInfo] = {}
    for info in packed.infolist():
        name = info.filename
        if name.startswith(("/", "\\")) or ":" in name or "\\" in name or ".." in name.split("/"):
            raise ValueError(f"it has an entry with the unsafe name {excerpt(name)}")
        if name in entries:
            raise ValueError(f"the entry {excerpt(name)} appears twice")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 0x61:
            raise ValueError(f"the entry {excerpt(name)} is encrypted or packed in a way lisse does not write")
        entries[name] = info
    total = sum(info.file_size for info in entries.values())
    if total > max_bytes:
        raise ValueError(f"it unpacks to {total:,} bytes, more than max_bytes={max_bytes:,}")
    if total > allowance(size, _JSON_FLOOR):
        raise ValueError(f"it unpacks to {total:,} bytes from {size:,}, which no profile does")
    if f"{kind}.json" not in entries:
        raise ValueError(f"it has no {kind}.json; it holds {excerpt(sorted(entries)[:3])}")
    return entries


def _read_json(packed: zipfile.ZipFile, info: zipfile.ZipInfo) -> Any:
    if info.file_size > MAX_JSON:
        raise ValueError(f"its JSON takes {info.file_size:,} bytes, more than {MAX_JSON:,}")
    with packed.open(info) as stream:
        text = _exactly(stream, info.file_size)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(out := dict(pairs)) != len(pairs):
            raise ValueError(f"a key appears twice among {excerpt([key for key, _ in pairs])}")
        return out

    def finite(number: str) -> float:
        if not math.isfinite(value := float(number)):
            raise ValueError(f"the number {excerpt(number)} is no finite double")
        return value

    def constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON")

    return json.loads(text.decode("utf-8"), object_pairs_hook=unique, parse_float=finite, parse_constant=constant)


def _check_heading(document: Any, kind: str) -> None:
    if not isinstance(document, dict) or document.pop("format", None) != f"lisse-{kind}":
        raise ValueError(f'its JSON does not say "format": "lisse-{kind}"')
    version = document.pop("version", None)
    if type(version) is not int or version < 1:
        wrong("version", "a positive integer", version)
    if version > VERSION:
        raise ValueError(
            f"it was made by a newer lisse: it has format version {excerpt(version)}, this lisse reads up to "
            f"{VERSION}. Upgrade lisse (pip install -U lisse)"
        )


def read_npy(packed: zipfile.ZipFile, info: zipfile.ZipInfo, max_bytes: int) -> np.ndarray:
    """The array in an entry, its header checked against what is there; objects are refused."""
    with packed.open(info) as stream:
        dtype, order, shape, header = npy_header(stream, info)
        count = math.prod(shape)
        if count > max_bytes or count * dtype.itemsize != info.file_size - header:
            raise ValueError(f"{info.filename}: {info.file_size - header:,} bytes are no {excerpt(shape)} of {dtype}")
        raw = _exactly(stream, info.file_size - header)
    array: np.ndarray = np.ndarray(shape, dtype, buffer=raw, order=order)
    if dtype.kind == "U" and raw and np.frombuffer(raw, dtype.str[0] + "u4").max() > 0x10FFFF:
        raise ValueError(f"{info.filename}: it holds text that is not Unicode")
    return array


def npy_header(stream: IO[bytes], info: zipfile.ZipInfo) -> tuple[np.dtype, Any, tuple[int, ...], int]:
    """The dtype, order and shape of an array, and the bytes of its header, behind which ``stream`` then stands."""
    magic = stream.read(8)
    if magic[:6] != b"\x93NUMPY" or magic[6:] not in (b"\1\0", b"\2\0", b"\3\0"):
        raise ValueError(f"{info.filename}: it is no .npy of version 1 to 3")
    width = 2 if magic[6] == 1 else 4
    length = int.from_bytes(stream.read(width), "little")
    if length > _MAX_NPY_HEADER:
        raise ValueError(f"{info.filename}: its header takes {length:,} bytes")
    try:
        header = ast.literal_eval(stream.read(length).decode("utf-8" if magic[6] == 3 else "latin1").strip())
        shape, order, dtype = header["shape"], header["fortran_order"], np.lib.format.descr_to_dtype(header["descr"])
        sound = len(header) == 3 and type(order) is bool and type(shape) is tuple and dtype.subdtype is None
        sound = sound and all(type(size) is int and 0 <= size < 2**62 for size in shape)
    except OSError:
        raise
    except Exception as error:  # literal_eval and dtype() raise nearly anything on hostile text
        raise ValueError(f"{info.filename}: its header cannot be read ({type(error).__name__})") from None
    if not sound or dtype.hasobject:
        hint = " (arrays must hold numbers or text, and objects would be unpickled)" if dtype.hasobject else ""
        raise ValueError(f"{info.filename}: its header asks for {excerpt(header)}, which is not allowed{hint}")
    return dtype, "F" if order else "C", shape, 8 + width + length


def _exactly(stream: IO[bytes], size: int) -> bytearray:
    """``size`` bytes and then the end, in chunks, so that a wrong declared size costs no memory."""
    out = bytearray()
    while chunk := stream.read(min(_CHUNK, size - len(out) + 1)):
        out += chunk
        if len(out) > size:
            break
    if len(out) != size:
        raise ValueError(f"an entry has not the declared {size:,} bytes")
    return out


@contextmanager
def saying(function: str, rule: str) -> Iterator[None]:
    """Whatever goes wrong inside is a ``ValueError`` that begins with ``function: rule``; real disk errors stay."""
    try:
        yield
    except MemoryError:
        raise
    except OSError as error:
        if error.errno not in (None, errno.EINVAL):  # EINVAL: a seek to where a damaged directory points
            raise
        raise ValueError(f"{function}: {rule}: {error}.") from error
    except ValueError as error:
        raise ValueError(f"{function}: {rule}: {str(error).rstrip('.')}.") from error
    except Exception as error:
        raise ValueError(f"{function}: {rule}: it is damaged ({type(error).__name__}: {error}).") from error


def wrong(where: str, rule: str, value: Any) -> NoReturn:
    """Raise the error that says what ``where`` must be and what it is."""
    raise ValueError(f"{where} must be {rule}, got {excerpt(value)}")


def excerpt(value: Any) -> str:
    """``repr``, short, of anything at all."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits; absurd nesting
        text = type(value).__name__
    return text if len(text) <= 80 else text[:77] + "…"
