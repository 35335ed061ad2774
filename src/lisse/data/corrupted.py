"""CIFAR-10-C: the official .npy files or our own in the same layout, read mapped and written; frost's textures."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lisse import __version__
from lisse.data import cifar, places
from lisse.data.bounded import AGAIN
from lisse.data.dataset import Dataset, check_seed
from lisse.data.download import Remote, fetch
from lisse.data.images import read_image
from lisse.data.request import Request
from lisse.libraries import may_download
from lisse.maths.corruption import CORRUPTIONS, EXTRA, MAIN, corrupt
from lisse.maths.corruption.parameters import Variant
from lisse.profile_file import writing
from lisse.profile_file.replacement import remove_left
from lisse.progress import Event, Listener

_FOLDERS = ("cifar10-c", "CIFAR-10-C", "cifar-10-c")
SEVERITIES = 5
#: Images of a severity: those of CIFAR-10's test set, in its order.
IMAGES = 10_000
SHAPE = (32, 32, 3)
_ORIGIN = "made.json"
#: Images corrupted between two words of progress.
_STEP = 1000

_FROST = "https://raw.githubusercontent.com/hendrycks/robustness/8190fe329f5f072a06e3a2aea02bb5dda69aed9f/ImageNet-C/create_c/"
FROST = tuple(
    Remote(name, (_FROST + name,), size, sha)
    for name, size, sha in (
        ("frost1.png", 1199930, "ff9f907860bd7a835d459e32f9d588062b7f61ee267343cc7222b56753a14755"),
        ("frost2.png", 299002, "fe211a89b336999c207a852ce05818d4545d0b57c5beadd824b4cc9d9a9b6137"),
        ("frost3.png", 299002, "2d0d50b4a9bb213f38b024ef7768731bb83cc08d2f26b5766bbc167cdfa0e504"),
        ("frost4.jpg", 36734, "3f8b91ca1a9fa7167b09e773da53f5ae60d0a1fd88f02a783f6e328a72887f6e"),
        ("frost5.jpg", 155150, "5fc6a19df4a429ba68abdcc8f8a4278d4c9f81c9ccafd2c92ab0c8cf8992ebd2"),
        ("frost6.jpg", 90185, "1f92b2f48408748085b68dd81d816ef239f42cef3029c25d041fcb6760fb4f25"),
    )
)


def frost_textures(*, download: bool = False, progress: Listener | None = None) -> tuple[Tensor, ...]:
    """The six published textures of the corruption frost: bytes ``[3, H, W]``, of different sizes.

    Looked for in ``frost`` under ``LISSE_DATA``, the user's cache and the system's data sets. With ``download=True``
    (or ``LISSE_DOWNLOAD=1``) they are fetched from their authors' repository into the cache and checked against their
    SHA-256. They are Apache-2.0 and not part of lisse.
    """
    files = places.files_in(("frost",), [(remote.name,) for remote in FROST])
    if files is None and may_download(download):
        folder = places.cache_folder() / "data" / "frost"
        files = [fetch(remote, folder, tell=progress) for remote in FROST]
    if files is None:
        raise ValueError(
            f"frost_textures: frost1.png … frost6.jpg must be in a folder frost in one of {places.searched()}, got "
            "nothing there. Copy them, or ask for the download: frost_textures(download=True) or LISSE_DOWNLOAD=1."
        )
    return tuple(torch.from_numpy(np.ascontiguousarray(read_image(path))) for path in files)


def cifar10_c_folder() -> Path | None:
    """The first folder of CIFAR-10-C that holds labels."""
    return next((folder for folder in places.candidates(_FOLDERS) if (folder / "labels.npy").is_file()), None)


def cifar10_c_files(corruption: str) -> list[Path]:
    """The files of a corruption, and of the labels, that are there."""
    folder = cifar10_c_folder()
    files = [] if folder is None else [folder / f"{corruption}.npy", folder / "labels.npy"]
    return [path for path in files if path.is_file()]


def present(folder: Path) -> list[str]:
    """The corruptions whose file is in ``folder``."""
    return [name for name in CORRUPTIONS if (folder / f"{name}.npy").is_file()]


def cifar10_c(request: Request, *, corruption: str = "", severity: int = 0) -> Dataset:
    """CIFAR-10-C: the 10,000 test images under one ``corruption`` at one ``severity``, ``[n, 3, 32, 32]`` uint8.

    Without ``severity`` all five, 50,000 images, mild to strong. The official files and those of ``lisse data make
    cifar10-c`` are read alike; files are mapped, so that only the images asked for are read. With one severity a limit
    and seed choose the same images as in ``cifar10``: the clean and the corrupted set go together.
    """
    request.one_of("cifar10-c", "test")
    if corruption not in CORRUPTIONS:
        names = check_corruptions("load_data", [corruption] if corruption else [])
        raise ValueError(
            f"load_data: the option corruption of 'cifar10-c' must be one of {', '.join(names)}, got none. "
            "Write for example cifar10-c?corruption=snow&severity=3."
        )
    if not 0 <= severity <= SEVERITIES:
        raise ValueError(
            f"load_data: the option severity of 'cifar10-c' must be 1 … {SEVERITIES}, got {severity}. "
            "Leave it out for all five."
        )
    folder = cifar10_c_folder()
    if folder is None or not (folder / f"{corruption}.npy").is_file():
        where = f"{folder} has {', '.join(present(folder)) or 'none'}" if folder else "got nothing there"
        raise ValueError(
            f"load_data: {corruption}.npy and labels.npy of 'cifar10-c' must be in a folder CIFAR-10-C in one of "
            f"{places.searched()}, {where}. Unpack the official CIFAR-10-C.tar there, or make the files: "
            "lisse data make cifar10-c."
        )
    images = _mapped(folder / f"{corruption}.npy", (SEVERITIES * IMAGES, *SHAPE), "u1")
    labels = _mapped(folder / "labels.npy", (SEVERITIES * IMAGES,), "integers")
    if severity:
        part = slice((severity - 1) * IMAGES, severity * IMAGES)
        images, labels = images[part], labels[part]
    subset = request.choose(len(images))
    # Sorted, so that the file is read from front to back; then put in the order asked for.
    order = np.arange(len(images)) if subset is None else np.sort(subset.numpy())
    pixels = torch.from_numpy(np.ascontiguousarray(images[order].transpose(0, 3, 1, 2)))
    targets = torch.from_numpy(labels[order].astype(np.int64))
    if subset is not None:
        back = torch.from_numpy(np.searchsorted(order, subset.numpy()))
        pixels, targets = pixels[back], targets[back]
    if int(targets.min()) < 0 or int(targets.max()) > 9:
        raise ValueError(f"load_data: {folder / 'labels.npy'} must hold labels in 0 … 9, got others. {AGAIN}")
    name = f"cifar10-c {corruption}" + (f" {severity}" if severity else "")
    return Dataset(name, pixels, targets, classes=cifar.CLASSES)


def _mapped(path: Path, shape: tuple[int, ...], kind: str) -> np.ndarray:
    """A .npy file, mapped read-only, if it has that shape and dtype."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # the header is parsed as Python text, which can fail in any way
        raise ValueError(f"load_data: {path} must be a complete .npy file, got {str(error)[:100]}. {AGAIN}") from error
    good = array.dtype.kind in "iu" if kind == "integers" else array.dtype.str[1:] == kind
    if array.shape != shape or not good:
        raise ValueError(
            f"load_data: {path} must hold {'integers' if kind == 'integers' else 'bytes'} of shape {shape}, "
            f"got {array.dtype} of shape {array.shape}. {AGAIN}"
        )
    return array


def check_corruptions(function: str, names: Iterable[str]) -> tuple[str, ...]:
    """The corruptions that are named, in the usual order; ``main``, ``extra`` and ``all`` stand for several.

    Without any name all.
    """
    import difflib

    groups = {"all": CORRUPTIONS, "main": MAIN, "extra": EXTRA}
    selection: set[str] = set()
    for name in names:
        if name not in groups and name not in CORRUPTIONS:
            near = difflib.get_close_matches(name.lower().replace("-", "_"), CORRUPTIONS, 1, 0.5)
            ask = f"Did you mean {near[0]!r}?" if near else "Check the spelling."
            raise ValueError(
                f"{function}: corruptions must be among {', '.join(CORRUPTIONS)} (or main, extra, all), "
                f"got {name!r}. {ask}"
            )
        selection.update(groups.get(name, (name,)))
    return tuple(name for name in CORRUPTIONS if name in selection or not selection)


def make_cifar10_c(
    clean: Dataset,
    out: Path | str | None = None,
    *,
    corruptions: Sequence[str] = (),
    seed: int = 0,
    variant: Variant = "hendrycks",
    download: bool = False,
    progress: Listener | None = None,
) -> list[Path]:
    """Write ``clean`` (CIFAR-10's test set) under ``corruptions`` (all) in the layout of CIFAR-10-C; the files.

    ``NAME.npy`` is uint8 ``[5 n, 32, 32, 3]``, severity 1 first, and ``labels.npy`` uint8 ``[5 n]``, in the folder
    ``out`` (default: ``cifar10-c`` in the user's cache, where ``load_data`` looks). ``variant="hendrycks"`` is as close
    to the official files as a generator without a seed can be. A file appears under its name only complete; files that
    are there already are left as they are, so that an interrupted call can be repeated. Each corruption and severity
    has its own random numbers made from ``seed``, so that it does not matter which others are made. ``made.json`` says
    how the folder was made; a folder made otherwise, or by others, is refused.
    """
    check_seed("make_cifar10_c", seed)
    names = check_corruptions("make_cifar10_c", corruptions)
    images = clean.inputs
    if not isinstance(images, Tensor) or images.dtype != torch.uint8 or images.shape[1:] != (3, 32, 32):
        raise ValueError(
            f"make_cifar10_c: clean must hold byte images [n, 3, 32, 32] with labels, got {clean!r}. "
            "load_data('cifar10') gives them."
        )
    if clean.targets is None or len(images) == 0:
        raise ValueError(f"make_cifar10_c: clean must have labels, got {clean!r}. load_data('cifar10') has them.")
    folder = Path(os.path.expanduser(out)) if out is not None else places.cache_folder() / "data" / _FOLDERS[0]
    textures = frost_textures(download=download, progress=progress) if "frost" in names else None
    _check_folder(folder, {"seed": seed, "variant": variant, "clean": clean.fingerprint()})
    remove_left(folder)  # of calls that were killed
    shape = (SEVERITIES * len(images), *SHAPE)
    missing = [name for name in names if not _sound(folder / f"{name}.npy", shape)]
    need, free = len(missing) * int(np.prod(shape)), shutil.disk_usage(folder).free
    if need > free:
        raise OSError(
            f"make_cifar10_c: {folder} must have room for {need:,} bytes, got {free:,}. "
            "Make fewer corruptions, or choose another folder."
        )
    labels = np.tile(clean.targets.numpy().astype(np.uint8), SEVERITIES)
    if not _sound(folder / "labels.npy", labels.shape):
        _write(folder / "labels.npy", labels.shape, [labels])
    for name in names:
        if name not in missing:
            if progress:
                progress(Event(name, say="is there already"))
            continue
        _write(folder / f"{name}.npy", shape, _corrupted(images, name, seed, variant, textures, progress))
    return [folder / f"{name}.npy" for name in names] + [folder / "labels.npy"]


def _sound(path: Path, shape: tuple[int, ...]) -> bool:
    """Whether a file is there, with all of its bytes."""
    try:
        return _mapped(path, shape, "u1").shape == shape
    except ValueError:
        return False


def _check_folder(folder: Path, how: dict[str, Any]) -> None:
    """Make the folder and its record, or see that it was made the same way."""
    folder.mkdir(parents=True, exist_ok=True)
    record = folder / _ORIGIN
    if record.is_file():
        try:
            before = json.loads(record.read_text("utf-8"))
            equal = all(before[key] == value for key, value in how.items())
        except (ValueError, KeyError, TypeError):
            before, equal = {}, False
        if not equal:
            got = ", ".join(f"{key} {before.get(key)!r}" for key in how) if isinstance(before, dict) else "no record"
            raise ValueError(
                f"make_cifar10_c: {folder} must have been made with the same seed, variant and clean images, got "
                f"{got}. Choose another folder, or delete this one."
            )
        return
    if any(folder.glob("*.npy")):
        raise ValueError(
            f"make_cifar10_c: out must be a new folder or one that lisse made, got {folder} with .npy files of others. "
            "Ours are not mixed with the official ones: choose another folder."
        )
    with writing(record) as file:
        file.write((json.dumps({"by": f"lisse {__version__}", **how}, indent=2) + "\n").encode())


def _corrupted(
    images: Tensor, name: str, seed: int, variant: Variant, textures: Any, progress: Listener | None
) -> Iterable[np.ndarray]:
    """The corrupted images ``[k, 32, 32, 3]`` a few at a time, severity by severity."""
    total = SEVERITIES * len(images)
    for severity in range(1, SEVERITIES + 1):
        digest = hashlib.blake2b(f"{seed}/{name}/{severity}".encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
        for begin in range(0, len(images), _STEP):
            part = images[begin : begin + _STEP]
            corrupted = corrupt(part, name, severity, generator=generator, textures=textures, variant=variant)
            yield corrupted.permute(0, 2, 3, 1).contiguous().numpy()
            if progress:
                progress(Event(name, (severity - 1) * len(images) + begin + len(part), total, "images"))


def _write(path: Path, shape: tuple[int, ...], parts: Iterable[np.ndarray]) -> None:
    """A .npy file of bytes, which appears when it is whole."""
    with writing(path) as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": shape})
        for part in parts:
            stream.write(np.ascontiguousarray(part).data)
