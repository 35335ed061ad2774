"""The idx format of MNIST and Fashion-MNIST (Yann LeCun's page describes it), plain or .gz."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lisse.data.bounded import AGAIN, check_unpacked, opened, read_exactly

TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: Path | str) -> np.ndarray:
    """The array in an idx file: two zero bytes, a type byte, the number of axes, their sizes (big-endian), the values.

    The file must hold exactly what its header declares; memory is bounded by the declared size, which itself must be
    plausible for the file's size on disk.
    """
    path = Path(path)
    with opened("read_idx", path) as stream:
        head = read_exactly(stream, 4)
        if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in TYPES or not 1 <= head[3] <= 8:
            raise ValueError(
                f"read_idx: {path} must start with an idx header, got {head.hex(' ') or 'an empty file'}. {AGAIN}"
            )
        kind, axes = np.dtype(TYPES[head[2]]), head[3]
        sizes = read_exactly(stream, 4 * axes)
        if len(sizes) < 4 * axes:
            raise ValueError(f"read_idx: {path} must hold {axes} axis sizes, got only {len(sizes)} bytes. {AGAIN}")
        shape = tuple(int(size) for size in np.frombuffer(sizes, ">u4"))
        declared = math.prod(shape) * kind.itemsize
        check_unpacked("read_idx", path, path.stat().st_size, declared)
        content = read_exactly(stream, declared + 1)
    if len(content) != declared:
        got = "more" if len(content) > declared else f"{len(content):,}"
        raise ValueError(f"read_idx: {path} must hold {declared:,} bytes for shape {shape}, got {got}. {AGAIN}")
    return np.frombuffer(content, kind).reshape(shape).astype(kind.newbyteorder("="))


def read_labelled(images: Path, labels: Path) -> tuple[Tensor, Tensor]:
    """Images ``[n, 1, h, w]`` uint8 and labels ``[n]`` in 0 … 9 from a pair of idx files."""
    pixels, answers = read_idx(images), read_idx(labels)
    if pixels.ndim != 3 or pixels.dtype != np.uint8:
        raise ValueError(
            f"load_data: {images} must hold bytes [n, h, w], got {pixels.dtype} {list(pixels.shape)}. {AGAIN}"
        )
    if answers.ndim != 1 or answers.dtype != np.uint8:
        raise ValueError(
            f"load_data: {labels} must hold one byte per image, got {answers.dtype} {list(answers.shape)}. {AGAIN}"
        )
    if len(pixels) != len(answers):
        raise ValueError(
            f"load_data: {labels} must label the {len(pixels)} images of {images.name}, got {len(answers)}. {AGAIN}"
        )
    if len(answers) == 0 or pixels.size == 0:
        raise ValueError(f"load_data: {images} must hold at least one image, got shape {list(pixels.shape)}. {AGAIN}")
    if answers.max() > 9:
        raise ValueError(f"load_data: {labels} must hold labels in 0 … 9, got {answers.max()}. {AGAIN}")
    return torch.from_numpy(pixels)[:, None], torch.from_numpy(answers).long()
