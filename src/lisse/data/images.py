"""Folders of images, ImageNet among them: one class per folder, decoded within bounds."""

from __future__ import annotations

import struct
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from lisse.data import places
from lisse.data.bounded import AGAIN, CEILING
from lisse.data.dataset import Dataset
from lisse.data.pixels import eight_bits
from lisse.data.request import Request

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

ENDINGS = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
#: 64 megapixels: no picture of a data set is larger; a bomb is.
PIXELS = 1 << 26
FOLDERS = ("imagenet", "ImageNet", "ILSVRC/Data/CLS-LOC")
SPLIT_FOLDERS = {"train": ("train", "training"), "test": ("test", "val", "valid", "validation")}
#: ImageNet's own test/ has no labels: its validation set is what everyone tests on.
IMAGENET = {"train": "train", "test": "val", "val": "val"}


def read_image(
    path: Path,
    *,
    size: int | None = None,
    resize: int | None = None,
    expected: tuple[int, int] | None = None,
    grey: bool = False,
) -> np.ndarray:
    """One image as bytes ``[3, h, w]`` (``[1, h, w]`` if ``grey``).

    ``size`` gives a square of that many pixels: the shorter side is scaled to ``resize`` (default: size; bilinear with
    antialiasing, as torchvision does it), then the centre is cut out. ``expected`` (width, height) refuses any other
    size before decoding.
    """
    from PIL import Image, UnidentifiedImageError

    broken = (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, EOFError, MemoryError)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(path, formats=FORMATS) as image:
                _check_size(path, image.size, expected)
                picture = eight_bits("read_image", path, image).convert("L" if grey else "RGB")
                if size:
                    picture = _square(picture, size, resize or size)
                pixels = np.asarray(picture)
    except (*broken, KeyError, IndexError, TypeError, ArithmeticError, struct.error) as error:
        got = str(error) or type(error).__name__
        raise ValueError(f"read_image: {path} must be a complete image, got {got}. {AGAIN}") from error
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _check_size(path: Path, size: tuple[int, int], expected: tuple[int, int] | None) -> None:
    width, height = size
    if width * height > PIXELS:
        raise ValueError(
            f"read_image: {path} must have at most {PIXELS:,} pixels, got {width} × {height}. "
            "It is a decompression bomb or not a data set's picture."
        )
    if expected and size != expected:
        raise ValueError(
            f"read_image: {path} must have {expected[0]} × {expected[1]} pixels, got {width} × {height}. {AGAIN}"
        )


def _square(picture: Picture, size: int, resize: int) -> Picture:
    """The centre square of ``size`` after the shorter side became ``resize``."""
    from PIL.Image import Resampling

    width, height = picture.size
    scale = resize / min(width, height)
    wide, high = max(resize, int(width * scale)), max(resize, int(height * scale))
    if wide * high > PIXELS:
        raise ValueError(
            f"read_image: size must be smaller for a picture of {width} × {height}, got {size}. Crop it first."
        )
    left, top = round((wide - size) / 2), round((high - size) / 2)
    scaled = picture.resize((wide, high), Resampling.BILINEAR)
    return scaled.crop((left, top, left + size, top + size))


def folder(request: Request, path: str, *, size: int = 0, resize: int = 0, grey: bool = False) -> Dataset:
    """The images under a folder, bytes ``[n, c, h, w]``.

    ``path/SPLIT/CLASS/image`` or ``path/CLASS/image`` or, without classes, ``path/image``; names that begin with a dot
    are passed over. Labels count the class folders in sorted order over all splits, so that a class has one label
    everywhere, also where it has no image. For the split "test" a folder ``val`` will do. Without folders for splits
    every split is the whole. All images must have one size, unless ``size`` (and ``resize``) makes squares of them.
    """
    root = places.resolve(path)
    if not root.is_dir():
        raise ValueError(f"load_data: {path!r} must be a folder of images, got nothing there. Check the path.")
    inner = _inner(request, root)
    splits = {split for names in SPLIT_FOLDERS.values() for split in names} | {request.split}
    return _images(request, root.name, inner, [root / split for split in splits], (size, resize, grey))


def _inner(request: Request, root: Path) -> Path:
    """The folder of the split: one of its names, or ``root`` where there are no folders for splits."""
    names = SPLIT_FOLDERS.get(request.split, (request.split,))
    found = next((root / name for name in names if (root / name).is_dir()), None)
    if found is not None:
        return found
    others = [name for names in SPLIT_FOLDERS.values() for name in names if (root / name).is_dir()]
    if others and not set(_classes(root)) - set(others):
        raise ValueError(
            f"load_data: {root} must have a folder for the split {request.split!r} ({', '.join(names)}), "
            f"got {', '.join(others)}. Ask for another split."
        )
    request.whole(str(root))
    return root


def _images(request: Request, name: str, inner: Path, splits: list[Path], shape: tuple[int, int, bool]) -> Dataset:
    """The images in ``inner``, which may be one of the folders of ``splits``: then these have the same classes."""
    size, resize, grey = shape
    if size < 0 or resize < 0 or (resize and resize < size):
        raise ValueError(
            f"load_data: size and resize must satisfy 0 <= size <= resize, got {size} and {resize}. Try size=224."
        )
    together = [split for split in splits if split.is_dir()] if inner in splits else [inner]
    classes = sorted({label for split in together for label in _classes(split)}) if _classes(inner) else []
    files = [(file, label) for label, each in enumerate(classes) for file in _pictures(inner / each)]
    if not files:
        files = [(file, -1) for file in _pictures(inner)]
    if not files:
        raise ValueError(
            f"load_data: {inner} must hold images ({', '.join(sorted(ENDINGS))}) or one folder of them per class, "
            "got none. Check the path."
        )
    chosen = request.choose(len(files))
    files = files if chosen is None else [files[int(index)] for index in chosen]
    images = _read_alike(files, size, resize, grey)
    targets = torch.tensor([label for _, label in files]) if classes else None
    return Dataset(name, torch.from_numpy(images), targets, classes=tuple(classes) or None)


def _classes(where: Path) -> list[str]:
    """The folders in ``where`` that hold at least one picture."""
    folders = (entry for entry in where.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    return [entry.name for entry in folders if any(map(_is_picture, entry.iterdir()))]


def _is_picture(file: Path) -> bool:
    return file.suffix.lower() in ENDINGS and not file.name.startswith(".") and file.is_file()


def _pictures(where: Path) -> list[Path]:
    return sorted(filter(_is_picture, where.iterdir())) if where.is_dir() else []


def _read_alike(files: list[tuple[Path, int]], size: int, resize: int, grey: bool) -> np.ndarray:
    """All images in one array, its memory known from the first."""
    first = read_image(files[0][0], size=size or None, resize=resize or None, grey=grey)
    if first.nbytes * len(files) > CEILING:
        raise ValueError(
            f"load_data: {len(files):,} images of {list(first.shape)} must fit in {CEILING >> 30} GiB, "
            f"got {first.nbytes * len(files) / (1 << 30):.1f} GiB. Give limit= or a smaller size."
        )
    images = np.empty((len(files), *first.shape), np.uint8)
    for index, (file, _) in enumerate(files):
        image = first if index == 0 else read_image(file, size=size or None, resize=resize or None, grey=grey)
        if image.shape != first.shape:
            raise ValueError(
                f"load_data: {file} must have the size of {files[0][0].name}, {first.shape[2]} × {first.shape[1]}, "
                f"got {image.shape[2]} × {image.shape[1]}. Add ?size=PIXELS to scale and crop all to a square."
            )
        images[index] = image
    return images


def imagenet(request: Request, *, size: int = 224, resize: int = 256) -> Dataset:
    """ImageNet from ``imagenet/train`` and ``imagenet/val`` (a folder per class), scaled and cropped as usual.

    The split "test" is the validation set: the test labels are not public. It cannot be downloaded without an account.
    """
    name = IMAGENET[request.one_of("imagenet", *IMAGENET)]
    found = next(iter(places.candidates(FOLDERS)), None)
    if found is None:
        raise ValueError(
            f"load_data: 'imagenet' must be in one of {places.searched()}, got nothing there. "
            "Put train/ and val/ with a folder per class into a folder imagenet (image-net.org, with an account)."
        )
    inner = found / name
    if not inner.is_dir():
        raise ValueError(
            f"load_data: {found} must hold a folder {name} for the split {request.split!r}, got none. "
            "ImageNet's own test/ has no labels: put the validation images into val/, a folder per class."
        )
    splits = [found / "train", found / "val"]
    return _images(request, "imagenet", inner, splits, (size, max(size, resize), False))
