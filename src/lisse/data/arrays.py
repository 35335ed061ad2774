""".npz files: arrays by name, never objects, never more than the file can honestly hold."""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path
from typing import IO, Literal

import numpy as np
import torch
from torch import Tensor

from lisse.data import places
from lisse.data.bounded import AGAIN, check_unpacked
from lisse.data.dataset import Dataset
from lisse.data.request import Request

#: Names under which inputs and targets are commonly stored; ``{}`` is the split.
PAIRS = (
    ("inputs_{}", "targets_{}"),
    ("{}_inputs", "{}_targets"),
    ("x_{}", "y_{}"),
    ("X_{}", "y_{}"),
    ("{}_images", "{}_labels"),
    ("images_{}", "labels_{}"),
    ("{}_x", "{}_y"),
    ("inputs", "targets"),
    ("images", "labels"),
    ("x", "y"),
    ("X", "y"),
    ("data", "labels"),
    ("data", "target"),
)


def read_npz(path: Path | str) -> dict[str, np.ndarray]:
    """Every array of an .npz file. Pickled objects are refused; sizes are checked before anything is unpacked."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"read_npz: {path} must be a file, got nothing there. Check the path.")
    size = path.stat().st_size
    arrays: dict[str, np.ndarray] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
            check_unpacked("read_npz", path, size, sum(member.file_size for member in members))
            for member in members:
                with archive.open(member) as stream:
                    name = member.filename.removesuffix(".npy")
                    arrays[name] = _read_npy(stream, member.file_size, f"{path} ({name})")
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        OSError,
        NotImplementedError,
        RuntimeError,
        UnicodeError,
    ) as error:
        raise ValueError(f"read_npz: {path} must be a complete .npz file, got {error}. {AGAIN}") from error
    return arrays


def _read_npy(stream: IO[bytes], size: int, what: str) -> np.ndarray:
    """One .npy member of ``size`` bytes, its header checked against what is there."""
    try:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream, max_header_size=10_000)
        elif version == (2, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream, max_header_size=10_000)
        else:
            raise ValueError(f"format version {version}")
    except Exception as error:  # the header is parsed as Python text, which can fail in any way
        raise ValueError(f"read_npz: {what} must have a plain .npy header, got {str(error)[:100]}. {AGAIN}") from error
    if dtype.hasobject or dtype.kind not in "biufc":
        raise ValueError(
            f"read_npz: {what} must hold numbers, got dtype {dtype}. Pickled objects are refused: they could run code."
        )
    declared = math.prod(shape) * dtype.itemsize
    if declared > size or any(axis < 0 for axis in shape):
        raise ValueError(f"read_npz: {what} must hold the {declared:,} bytes of shape {shape}, got {size:,}. {AGAIN}")
    content = bytearray()
    while len(content) < declared and (part := stream.read(min(declared - len(content), 1 << 20))):
        content += part
    if len(content) < declared:
        raise ValueError(
            f"read_npz: {what} must hold the {declared:,} bytes of shape {shape}, got {len(content):,}. {AGAIN}"
        )
    if stream.read(1):
        raise ValueError(f"read_npz: {what} must hold {declared:,} bytes, got more. {AGAIN}")
    array = np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")
    return array.astype(dtype.newbyteorder("="), copy=False)


def npz(
    request: Request,
    path: str,
    *,
    inputs: str = "",
    targets: str = "",
    layout: Literal["auto", "nchw", "nhwc"] = "auto",
) -> Dataset:
    """The samples of an .npz file: ``inputs`` and ``targets`` name its arrays (by default the usual names are tried).

    Byte images ``[n, h, w]`` become ``[n, 1, h, w]``, and ``[n, h, w, c]`` (c = 1 or 3 last; ``layout``) become
    ``[n, c, h, w]``.
    """
    file = places.resolve(path)
    if layout not in ("auto", "nchw", "nhwc"):
        raise ValueError(
            f"load_data: layout must be auto, nchw or nhwc, got {layout!r}. It says where the channels are."
        )
    arrays = read_npz(file)
    x, y = _chosen(arrays, request.split, inputs, targets, file)
    if x.ndim == 0 or len(x) == 0:
        raise ValueError(
            f"load_data: {file} must hold at least one sample, got inputs of shape {list(x.shape)}. Check the file."
        )
    if x.dtype.kind in "fc" and not np.isfinite(x).all():
        raise ValueError(f"load_data: {file} must hold finite inputs, got NaN or infinity. Clean the data first.")
    return Dataset(file.stem, _images(x, layout), None if y is None else torch.from_numpy(_labels(y)))


def _chosen(
    arrays: dict[str, np.ndarray], split: str, inputs: str, targets: str, file: Path
) -> tuple[np.ndarray, np.ndarray | None]:
    have = ", ".join(f"{name} {list(value.shape)}" for name, value in arrays.items()) or "no arrays"
    for given in filter(None, (inputs, targets)):
        if given not in arrays:
            raise ValueError(
                f"load_data: {file} must hold an array {given!r}, got {have}. Give ?inputs=NAME&targets=NAME."
            )
    if inputs:
        return arrays[inputs], arrays[targets] if targets else None
    for first, second in PAIRS:
        if first.format(split) in arrays:
            chosen = targets or second.format(split)
            return arrays[first.format(split)], arrays.get(chosen)
    if len(arrays) == 1:
        return next(iter(arrays.values())), None
    raise ValueError(
        f"load_data: {file} must say which array is the {split} input, got {have}. Give ?inputs=NAME&targets=NAME."
    )


def _labels(y: np.ndarray) -> np.ndarray:
    """Labels stored as a column become a list."""
    flat = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 and y.dtype.kind in "iu" else y
    return np.ascontiguousarray(flat)


def _images(x: np.ndarray, layout: str) -> Tensor:
    if x.dtype == np.uint8 and x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4:
        last = x.dtype == np.uint8 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3)
        if layout == "nhwc" or (layout == "auto" and last):
            x = x.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.ascontiguousarray(x))
