"""MNIST and Fashion-MNIST from their four idx files (Yann LeCun's page describes the format), plain or .gz."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lisse.data import places
from lisse.data.bounded import AGAIN, check_unpacked, opened, read_exactly
from lisse.data.dataset import Dataset
from lisse.data.download import FASHION_MNIST, MNIST, Remote, fetch
from lisse.data.request import Request
from lisse.libraries import may_download

_FOLDERS = {
    "mnist": ("mnist", "MNIST", "MNIST/raw", "mnist/raw"),
    "fashion-mnist": ("fashion-mnist", "FashionMNIST/raw", "FashionMNIST", "fashion_mnist"),
}
FILES = {"mnist": MNIST, "fashion-mnist": FASHION_MNIST}
#: Images in each split: other files are not MNIST, whatever their own header says.
COUNTS = {"train": 60_000, "test": 10_000}
FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


def mnist(request: Request, *, download: bool = False) -> Dataset:
    """MNIST: 60,000 train and 10,000 test digits ``[n, 1, 28, 28]`` uint8."""
    return _read("mnist", request, download, tuple("0123456789"))


def fashion_mnist(request: Request, *, download: bool = False) -> Dataset:
    """Fashion-MNIST: 60,000 train and 10,000 test pieces of clothing ``[n, 1, 28, 28]`` uint8."""
    return _read("fashion-mnist", request, download, FASHION)


def _remotes(name: str, split: str) -> tuple[Remote, Remote]:
    """The files of images and of labels."""
    images, labels = FILES[name][:2] if split == "train" else FILES[name][2:]
    return images, labels


def mnist_files(name: str, split: str) -> list[Path] | None:
    """The two files of ``split`` where they are, plain or .gz, spelled ``…-idx3-ubyte`` or ``….idx3-ubyte``."""
    spellings = []
    for remote in _remotes(name, split):
        plain = remote.name.removesuffix(".gz")
        dotted = plain.replace("-idx", ".idx")
        spellings.append((remote.name, plain, dotted, f"{dotted}.gz"))
    return places.files_in(_FOLDERS[name], spellings)


def _read(name: str, request: Request, download: bool, classes: tuple[str, ...]) -> Dataset:
    split = request.one_of(name, "train", "test")
    files = mnist_files(name, split)
    if files is None and may_download(download):
        folder = places.cache_folder() / "data" / name
        files = [fetch(remote, folder, tell=request.progress) for remote in _remotes(name, split)]
    if files is None:
        names = " and ".join(remote.name for remote in _remotes(name, split))
        raise ValueError(
            f"load_data: {name!r} must be in one of {places.searched()}, got nothing there. Put {names} into a folder "
            f"{name} there, or ask for the download: '{name}?download=true' or LISSE_DOWNLOAD=1."
        )
    images, labels = read_labelled(*files)
    if len(images) != COUNTS[split] or images.shape[1:] != (1, 28, 28):
        raise ValueError(
            f"load_data: {files[0]} must hold the {COUNTS[split]:,} {split} images of {name}, 28 × 28, "
            f"got {len(images):,} of {images.shape[2]} × {images.shape[3]}. {AGAIN}"
        )
    return Dataset(name, images, labels, classes=classes)


_IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: Path | str) -> np.ndarray:
    """The array in an idx file: two zero bytes, a type byte, the number of axes, their sizes (big-endian), the values.

    The file must hold exactly what its header declares; memory is bounded by the declared size, which itself must be
    plausible for the file's size on disk.
    """
    path = Path(path)
    with opened("read_idx", path) as stream:
        head = read_exactly(stream, 4)
        if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _IDX_TYPES or not 1 <= head[3] <= 8:
            raise ValueError(
                f"read_idx: {path} must start with an idx header, got {head.hex(' ') or 'an empty file'}. {AGAIN}"
            )
        kind, axes = np.dtype(_IDX_TYPES[head[2]]), head[3]
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
