"""CIFAR-10 from the original python pickles, the binary version, their archives, or lossless WebP sheets."""

from __future__ import annotations

import functools
import gzip
import hashlib
import tarfile
from pathlib import Path
from typing import IO, cast

import numpy as np
import torch
from torch import Tensor

from lisse.data import places
from lisse.data.arrays import read_npz
from lisse.data.bounded import AGAIN, DAMAGED, Metered, check_unpacked
from lisse.data.dataset import Dataset
from lisse.data.download import CIFAR10, fetch
from lisse.data.pickles import LARGEST_BATCH, read_pickle
from lisse.data.request import Request
from lisse.libraries import may_download

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_RECORD = 1 + 3 * 32 * 32
SIDE, COLUMNS, ROWS = 32, 20, 500
#: Images in every batch: a file with another number of them is not CIFAR-10.
BATCH = 10_000

#: Size and MD5 of the official batches: a file of just that size with another content is damaged.
OFFICIAL = {
    "data_batch_1": (31035704, "c99cafc152244af753f735de768cd75f"),
    "data_batch_2": (31035320, "d4bba439e000b95fd0a9bffe97cbabec"),
    "data_batch_3": (31035999, "54ebc095f3ab1f0389bbae665268c751"),
    "data_batch_4": (31035696, "634d18415352ddfa80567beed471001a"),
    "data_batch_5": (31035623, "482c414d41f54cd18b22e5b47cb7c3cb"),
    "test_batch": (31035526, "40351d587109b95175f43aff81a1287e"),
}
_FOLDERS = ("cifar10", "cifar-10", "CIFAR10", "")
BATCHES = {"train": tuple(f"data_batch_{k}" for k in range(1, 6)), "test": ("test_batch",)}
SHEETS = {"train": tuple(f"train_{k}.webp" for k in range(5)), "test": ("test.webp",)}


def cifar10(request: Request, *, download: bool = False) -> Dataset:
    """CIFAR-10: 50,000 train and 10,000 test images ``[n, 3, 32, 32]`` uint8, ten classes, in the original order.

    Files are read once per process; every call hands out a copy, so that changing one changes no other.
    """
    split = request.one_of("cifar10", "train", "test")
    files = cifar_files(split)
    if not files and may_download(download):
        fetch(CIFAR10[0], places.cache_folder() / "data" / "cifar10", tell=request.progress)
        files = cifar_files(split)
    if not files:
        raise ValueError(
            f"load_data: 'cifar10' must be in one of {places.searched()}, got nothing there. "
            "Put cifar-10-python.tar.gz (or its files) into a folder cifar10 there, or ask for the download: "
            "'cifar10?download=true' or LISSE_DOWNLOAD=1."
        )
    images, labels = _read(tuple((str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in files), split)
    order = request.choose(len(images))
    if order is None:
        return Dataset("cifar10", images.clone(), labels.clone(), classes=CLASSES)
    return Dataset("cifar10", images[order], labels[order], classes=CLASSES)


def cifar_files(split: str) -> list[Path]:
    """The files of ``split`` in the first place that has them all, in one of the forms; none where it is no split."""
    if split not in BATCHES:
        return []
    pickles = [(name,) for name in BATCHES[split]]
    binary = [(f"{name}.bin",) for name in BATCHES[split]]
    sheets = [(name,) for name in (*SHEETS[split], "labels.npz")]
    archives = ("cifar-10-python.tar.gz", "cifar-10-binary.tar.gz")
    for folder in places.candidates(_FOLDERS):
        inner = (folder, folder / "cifar-10-batches-py", folder / "cifar-10-batches-bin")
        for where in (path for path in inner if path.is_dir()):
            for names in (pickles, binary, sheets):
                if all((where / name[0]).is_file() for name in names):
                    return [where / name[0] for name in names]
        for archive in archives:
            if (folder / archive).is_file():
                return [folder / archive]
    return []


@functools.lru_cache(maxsize=4)
def _read(files: tuple[tuple[str, int, int], ...], split: str) -> tuple[Tensor, Tensor]:
    """Images and labels; once per process for files that have not changed."""
    paths = [Path(name) for name, _, _ in files]
    if paths[0].name.endswith(".tar.gz"):
        parts = _archive(paths[0], split)
    elif paths[0].suffix == ".bin":
        parts = [_binary(path.read_bytes() if _small(path) else b"", path.name, path) for path in paths]
    elif paths[0].suffix == ".webp":
        return _sheets(paths[:-1], paths[-1], split)
    else:
        parts = [_pickled(path.read_bytes() if _small(path) else b"", path.name, path) for path in paths]
    return torch.cat([images for images, _ in parts]), torch.cat([labels for _, labels in parts])


def _small(path: Path) -> bool:
    size = path.stat().st_size
    if size > LARGEST_BATCH:
        raise ValueError(
            f"load_data: {path} must have at most {LARGEST_BATCH:,} bytes, got {size:,}. It is not a CIFAR-10 batch."
        )
    return True


def _labelled(images: np.ndarray, labels: np.ndarray, count: int, path: Path | str) -> tuple[Tensor, Tensor]:
    if labels.size == 0:
        raise ValueError(f"load_data: {path} must hold at least one image, got none. {AGAIN}")
    if labels.min() < 0 or labels.max() > 9:
        raise ValueError(f"load_data: {path} must hold labels in 0 … 9, got {labels.min()} … {labels.max()}. {AGAIN}")
    if len(labels) != count:
        raise ValueError(f"load_data: {path} must hold {count:,} images, got {len(labels):,}. {AGAIN}")
    pixels = np.ascontiguousarray(images.reshape(-1, 3, SIDE, SIDE))
    return torch.from_numpy(pixels.copy() if not pixels.flags.writeable else pixels), torch.from_numpy(
        labels.astype(np.int64)
    )


def _binary(content: bytes, name: str, path: Path | str) -> tuple[Tensor, Tensor]:
    """Records of one label byte and 3 × 32 × 32 pixel bytes."""
    if len(content) == 0 or len(content) % _RECORD:
        raise ValueError(f"load_data: {path} must hold records of {_RECORD} bytes, got {len(content):,} bytes. {AGAIN}")
    records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
    return _labelled(records[:, 1:], records[:, 0], BATCH, path)


def _pickled(content: bytes, name: str, path: Path | str) -> tuple[Tensor, Tensor]:
    """A batch of the python version: ``data`` [n, 3072] bytes, ``labels`` a list."""
    size, md5 = OFFICIAL.get(name, (-1, ""))
    if len(content) == size and hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
        raise ValueError(f"load_data: {path} must have md5 {md5}, got another content of the official size. {AGAIN}")
    batch = read_pickle(content, path)
    data, labels = batch.get("data"), batch.get("labels")
    if not (
        isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.ndim == 2 and data.shape[1] == _RECORD - 1
    ):
        raise ValueError(f"load_data: {path} must hold 'data' as bytes [n, 3072], got {type(data).__name__}. {AGAIN}")
    if isinstance(labels, list) and all(type(label) is int and -(1 << 31) < label < 1 << 31 for label in labels):
        labels = np.array(labels, np.int64)
    if not (isinstance(labels, np.ndarray) and labels.dtype.kind in "iu" and labels.shape == (len(data),)):
        raise ValueError(f"load_data: {path} must hold one integer of 'labels' for each of {len(data)} images. {AGAIN}")
    return _labelled(data, labels, BATCH, path)


def _archive(path: Path, split: str) -> list[tuple[Tensor, Tensor]]:
    """The batches inside an official archive, read in place: nothing is extracted to disk.

    The archive is read to its very end, because only there gzip compares its checksum (``r|gz`` never does).
    """
    batches: dict[str, tuple[Tensor, Tensor]] = {}
    try:
        with gzip.open(path) as unpacked:
            stream = Metered("load_data", path, cast(IO[bytes], unpacked))
            with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r|") as archive:
                for member in archive:
                    name = Path(member.name).name
                    if not member.isfile() or name.removesuffix(".bin") not in BATCHES[split]:
                        check_unpacked("load_data", f"{path} ({name})", path.stat().st_size, member.size)
                        continue
                    if member.size > LARGEST_BATCH:
                        raise ValueError(
                            f"load_data: {path} must hold batches of 31 MB, got {name} with {member.size:,}. {AGAIN}"
                        )
                    inner = archive.extractfile(member)
                    content = inner.read() if inner else b""
                    read = _binary if name.endswith(".bin") else _pickled
                    batches[name.removesuffix(".bin")] = read(content, name, f"{path} ({name})")
            stream.drain()
    except (tarfile.TarError, *DAMAGED) as error:
        raise ValueError(f"load_data: {path} must be a complete archive, got {error}. {AGAIN}") from error
    missing = [name for name in BATCHES[split] if name not in batches]
    if missing:
        raise ValueError(f"load_data: {path} must hold {', '.join(missing)}, got an archive without. {AGAIN}")
    return [batches[name] for name in BATCHES[split]]


def _sheets(paths: list[Path], labels_file: Path, split: str) -> tuple[Tensor, Tensor]:
    """Lossless sheets of 20 columns × 500 rows of images, going down the columns; labels in an .npz."""
    from lisse.data.images import read_image

    labels = read_npz(labels_file).get(split)
    if labels is None or labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(f"load_data: {labels_file} must hold integer labels {split!r}. {AGAIN}")
    images = np.empty((len(paths), COLUMNS, ROWS, 3, SIDE, SIDE), np.uint8)
    for index, path in enumerate(paths):
        sheet = read_image(path, expected=(COLUMNS * SIDE, ROWS * SIDE))  # [3, h, w]
        images[index] = sheet.reshape(3, ROWS, SIDE, COLUMNS, SIDE).transpose(3, 1, 0, 2, 4)
    if len(labels) != len(paths) * COLUMNS * ROWS:
        raise ValueError(
            f"load_data: {labels_file} must hold {len(paths) * 10000} labels for {split}, got {len(labels)}. {AGAIN}"
        )
    return _labelled(images, labels, len(labels), labels_file)
