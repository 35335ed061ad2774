""".npz files: arrays by name, never objects, never more than the file can honestly hold."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from lisse.data import places
from lisse.data.dataset import Dataset
from lisse.data.request import Request
from lisse.profile_file.container import CEILING, allowance, read_npy, saying

#: Names under which inputs and targets are commonly stored; ``{}`` is the split.
_PAIRS = (
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
#: Targets that may go with any inputs of the same split (or of none).
_TARGETS = ("targets", "target", "labels", "label", "y", "Y")
_SPLIT_WORDS = ("train", "training", "test", "testing", "val", "valid", "validation", "dev")


def read_npz(path: Path | str) -> dict[str, np.ndarray]:
    """Every array of an .npz file. Pickled objects are refused; sizes are checked before anything is unpacked."""
    path = Path(path)
    if not path.is_file():
        got = "a folder" if path.is_dir() else "nothing there"
        raise FileNotFoundError(f"read_npz: {path} must be a file, got {got}. Check the path.")
    refusal = f"{path} must be a whole .npz file of numbers (nothing pickled; copy a damaged one again)"
    with saying("read_npz", refusal), zipfile.ZipFile(path) as archive:
        members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
        unpacked = sum(member.file_size for member in members)
        if unpacked > allowance(path.stat().st_size):
            raise ValueError(f"it must not unpack to more than {allowance(path.stat().st_size):,} bytes")
        arrays = {member.filename.removesuffix(".npy"): read_npy(archive, member, CEILING) for member in members}
        if odd := [f"{name} of {array.dtype}" for name, array in arrays.items() if array.dtype.kind not in "biufc"]:
            raise ValueError(f"it holds {odd[0]}")
    return {name: array.astype(array.dtype.newbyteorder("="), copy=False) for name, array in arrays.items()}


def npz(
    request: Request,
    path: str,
    *,
    inputs: str = "",
    targets: str = "",
    layout: Literal["auto", "nchw", "nhwc"] = "auto",
) -> Dataset:
    """The samples of an .npz file: ``inputs`` and ``targets`` name its arrays (by default the usual names are tried).

    Targets are looked for beside the inputs, also when these are named; ``targets=none`` leaves them out. Byte images
    ``[n, h, w]`` become ``[n, 1, h, w]``, and ``[n, h, w, c]`` (c = 1 or 3 last; ``layout``) become ``[n, c, h, w]``.
    Floating inputs are given as float32; as images (c = 1, 3 or 4) they must lie in [0, 1].
    """
    file = places.resolve(path)
    if layout not in ("auto", "nchw", "nhwc"):
        raise ValueError(
            f"load_data: layout must be auto, nchw or nhwc, got {layout!r}. It says where the channels are."
        )
    x, y = _arrays(read_npz(file), request, inputs, targets, file)
    if x.ndim == 0 or x.size == 0:
        raise ValueError(
            f"load_data: {file} must hold at least one sample, got inputs of shape {list(x.shape)}. Check the file."
        )
    samples = _images(_plain(x, file), layout)
    _check_range(samples, file)
    return Dataset(file.stem, samples, None if y is None else torch.from_numpy(_labels(y, file)))


def _arrays(
    arrays: dict[str, np.ndarray], request: Request, inputs: str, targets: str, file: Path
) -> tuple[np.ndarray, np.ndarray | None]:
    """The arrays of inputs and targets."""
    have = ", ".join(f"{name} {list(value.shape)}" for name, value in arrays.items()) or "no arrays"
    for name in filter(None, (inputs, "" if targets == "none" else targets)):
        if name not in arrays:
            raise ValueError(
                f"load_data: {file} must hold an array {name!r}, got {have}. Give ?inputs=NAME&targets=NAME."
            )
    name = inputs or _usual(arrays, request.split)
    if not name:
        elsewhere = [name for name in arrays if _split_of(name) not in ("", request.split)]
        why = f"which array is the {request.split} input" if not elsewhere else f"what is {request.split!r}"
        raise ValueError(f"load_data: {file} must say {why}, got {have}. Give ?inputs=NAME&targets=NAME.")
    if not inputs and not _split_of(name):
        request.warn_of_no_splits(str(file))
    if targets:
        return arrays[name], arrays.get(targets)
    answers = _answers(arrays, name)
    return arrays[name], arrays[answers] if answers else None


def _split_of(name: str) -> str:
    """The split that an array's name speaks of, or nothing."""
    return next((part for part in re.split(r"[^a-z]+", name.lower()) if part in _SPLIT_WORDS), "")


def _usual(arrays: dict[str, np.ndarray], split: str) -> str:
    """The inputs of ``split`` under their usual name; arrays of another split are never taken for it."""
    by_split = [first.format(split) for first, _ in _PAIRS if "{}" in first]
    alone = [first for first, _ in _PAIRS if "{}" not in first]
    divided = any(first.format(word) in arrays for first, _ in _PAIRS if "{}" in first for word in _SPLIT_WORDS)
    usual = next((name for name in (by_split if divided else [*by_split, *alone]) if name in arrays), "")
    if not usual and len(arrays) == 1 and _split_of(next(iter(arrays))) in ("", split):
        return next(iter(arrays))
    return usual


def _answers(arrays: dict[str, np.ndarray], name: str) -> str:
    """The targets that belong to the inputs ``name``: their usual partner, else any usual name of the same split."""
    split = _split_of(name)
    partners = [
        b.format(word) for a, b in _PAIRS for word in (_SPLIT_WORDS if "{}" in a else ("",)) if a.format(word) == name
    ]
    forms = [form for word in _TARGETS for form in ((f"{word}_{split}", f"{split}_{word}") if split else (word,))]
    count = arrays[name].shape[:1]
    sure = (*partners, *(forms if split else ()))  # others must at least have one entry per sample
    return next((word for word in sure if word in arrays and word != name), "") or next(
        (word for word in forms if word in arrays and word != name and arrays[word].shape[:1] == count), ""
    )


def _plain(x: np.ndarray, file: Path) -> np.ndarray:
    """Finite inputs in a type that networks take: float32 for float64 and wider, int64 for wide unsigned integers."""
    if x.dtype.kind in "fc" and not np.isfinite(x).all():
        raise ValueError(f"load_data: {file} must hold finite inputs, got NaN or infinity. Clean the data first.")
    if x.dtype.kind == "f" and x.dtype.itemsize > 4:
        if np.abs(x).max() > np.finfo(np.float32).max:
            raise ValueError(
                f"load_data: {file} must hold inputs in float32's range, got {np.abs(x).max()}. Scale them."
            )
        return x.astype(np.float32)
    if x.dtype.kind == "c" and x.dtype.itemsize > 16:
        return x.astype(np.complex128)
    if x.dtype.kind == "u" and x.dtype.itemsize > 1:
        if x.ndim > 2:
            raise ValueError(
                f"load_data: {file} must hold images as uint8 or floats in [0, 1], got {x.dtype}. "
                "Which value is white is not known: 16 bits in full use become bytes by (x / 257).round()."
            )
        return x.astype(np.int64)
    return x


def _check_range(x: Tensor, file: Path) -> None:
    """Images given as floats are in [0, 1]: models normalise inside, and anything else gives silently wrong numbers."""
    if not (x.is_floating_point() and x.ndim == 4 and x.shape[1] in (1, 3, 4)):
        return
    low, high = float(x.min()), float(x.max())
    if low < 0 or high > 1:
        raise ValueError(
            f"load_data: {file} must hold images as uint8 or floats in [0, 1], got floats from {low:g} to {high:g}. "
            "Store bytes as uint8 or divide by 255; leave mean and standard deviation to the model. "
            "Arrays that are no images come in through a factory (package.module:factory)."
        )


def _labels(y: np.ndarray, file: Path) -> np.ndarray:
    """Labels stored as a column become a list; they count from 0, and other targets are finite."""
    flat = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 and y.dtype.kind in "iu" else y
    if flat.size == 0:
        raise ValueError(f"load_data: {file} must hold one target per sample, got shape {list(y.shape)}. Check it.")
    if flat.dtype.kind == "u" and flat.dtype.itemsize > 1:
        flat = flat.astype(np.int64)
    if flat.dtype.kind == "i" and flat.ndim == 1 and flat.min() < 0:
        where = int((flat < 0).argmax())
        raise ValueError(
            f"load_data: {file} must hold labels of at least 0, got {flat[where]} at sample {where}. "
            "Labels count from 0; store a regression's targets as floats."
        )
    if flat.dtype.kind in "fc" and not np.isfinite(flat).all():
        raise ValueError(f"load_data: {file} must hold finite targets, got NaN or infinity. Clean the data first.")
    if flat.dtype.kind == "f" and flat.dtype.itemsize > 8:
        flat = flat.astype(np.float64)
    return np.ascontiguousarray(flat)


def _images(x: np.ndarray, layout: str) -> Tensor:
    if x.dtype == np.uint8 and x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4:
        last = x.dtype == np.uint8 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3)
        if layout == "nhwc" or (layout == "auto" and last):
            x = x.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.ascontiguousarray(x))
