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
from lisse.data.request import Request

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

ENDINGS = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
#: 64 megapixels: no picture of a data set is larger; a bomb is.
PIXELS = 1 << 26
FOLDERS = ("imagenet", "ImageNet", "ILSVRC/Data/CLS-LOC")
SPLIT_FOLDERS = {"train": ("train", "training"), "test": ("test", "val", "valid", "validation")}


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
                picture = image.convert("L" if grey else "RGB")
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

    ``path/SPLIT/CLASS/image`` or ``path/CLASS/image`` (the class names are the folders', sorted) or, without classes,
    ``path/image``. For the split "test" a folder ``val`` will do. All images must have one size, unless ``size``
    (and ``resize``) makes squares of them.
    """
    root = places.resolve(path)
    if not root.is_dir():
        raise ValueError(f"load_data: {path!r} must be a folder of images, got nothing there. Check the path.")
    if size < 0 or resize < 0 or (resize and resize < size):
        raise ValueError(
            f"load_data: size and resize must satisfy 0 <= size <= resize, got {size} and {resize}. Try size=224."
        )
    inner = next(
        (root / name for name in SPLIT_FOLDERS.get(request.split, (request.split,)) if (root / name).is_dir()), root
    )
    classes = sorted(entry.name for entry in inner.iterdir() if entry.is_dir() and _pictures(entry))
    files = [(file, label) for label, name in enumerate(classes) for file in _pictures(inner / name)]
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
    return Dataset(root.name, torch.from_numpy(images), targets, classes=tuple(classes) or None)


def _pictures(where: Path) -> list[Path]:
    return sorted(file for file in where.iterdir() if file.suffix.lower() in ENDINGS and file.is_file())


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
    request.one_of("imagenet", "train", "test", "val")
    found = next(iter(places.candidates(FOLDERS)), None)
    if found is None:
        raise ValueError(
            f"load_data: 'imagenet' must be in one of {places.searched()}, got nothing there. "
            "Put train/ and val/ with a folder per class into a folder imagenet (image-net.org, with an account)."
        )
    data = folder(request, str(found), size=size, resize=max(size, resize))
    return Dataset("imagenet", data.inputs, data.targets, classes=data.classes)
