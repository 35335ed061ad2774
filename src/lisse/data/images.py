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

IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
#: What Pillow decodes to 32-bit integers although no level exceeds 65,535 (16-bit grey PNG, PGM).
_SIXTEEN_BITS = ("PNG", "PPM")
#: 64 megapixels: no picture of a data set is larger; a bomb is.
_MOST_PIXELS = 1 << 26
IMAGENET_FOLDERS = ("imagenet", "ImageNet", "ILSVRC/Data/CLS-LOC")
SPLIT_FOLDERS = {"train": ("train", "training"), "test": ("test", "val", "valid", "validation")}
#: ImageNet's own test/ has no labels: its validation set is what everyone tests on.
_IMAGENET_SPLITS = {"train": "train", "test": "val", "val": "val"}


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
            with Image.open(path, formats=_FORMATS) as image:
                _check_size(path, image.size, expected)
                picture = eight_bits("read_image", path, image).convert("L" if grey else "RGB")
                if size:
                    picture = _square(picture, size, resize or size)
                pixels = np.asarray(picture)
    except (*broken, ValueError, LookupError, TypeError, ArithmeticError, struct.error) as error:
        if str(error).startswith("read_image: "):  # ours; Pillow's name no file
            raise
        got = str(error) or type(error).__name__
        raise ValueError(f"read_image: {path} must be a complete image, got {got}. {AGAIN}") from error
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def eight_bits(function: str, label: object, picture: Picture) -> Picture:
    """``picture`` in a mode of eight bits.

    Pillow's own ``convert`` cuts 16-bit grey off at 255, so that almost every pixel turns white. Here 0 … 65,535
    becomes 0 … 255 (x / 257, rounded) and floats in [0, 1] become 255 x; other deep pictures are refused.
    """
    from PIL import Image

    mode = picture.mode
    if mode.startswith("I;16") or (mode == "I" and picture.format in _SIXTEEN_BITS):
        scaled = np.asarray(picture).astype(np.float64) / 257
    elif mode == "F":
        scaled = np.asarray(picture).astype(np.float64) * 255
    elif mode == "I":
        scaled = np.array([-1.0])
    else:
        return picture
    if not (scaled.min() >= 0 and scaled.max() <= 255):  # also NaN
        kind = "32-bit integers" if mode == "I" else "floats outside [0, 1]"
        raise ValueError(
            f"{function}: {label} must have 8- or 16-bit pixels or floats in [0, 1], got {kind} (mode {mode}). "
            "Which value is white is not known: save it with 8 bits."
        )
    return Image.fromarray(scaled.round().astype(np.uint8))


def _check_size(path: Path, size: tuple[int, int], expected: tuple[int, int] | None) -> None:
    width, height = size
    if width * height > _MOST_PIXELS:
        raise ValueError(
            f"read_image: {path} must have at most {_MOST_PIXELS:,} pixels, got {width} × {height}. "
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
    if wide * high > _MOST_PIXELS:
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
    folder = next((root / name for name in names if (root / name).is_dir()), None)
    if folder is not None:
        return folder
    present = [name for names in SPLIT_FOLDERS.values() for name in names if (root / name).is_dir()]
    if present and not set(_classes(root)) - set(present):
        raise ValueError(
            f"load_data: {root} must have a folder for the split {request.split!r} ({', '.join(names)}), "
            f"got {', '.join(present)}. Ask for another split."
        )
    request.warn_of_no_splits(str(root))
    return root


def _images(request: Request, name: str, inner: Path, splits: list[Path], shape: tuple[int, int, bool]) -> Dataset:
    """The images in ``inner``, which may be one of the folders of ``splits``: then these have the same classes."""
    size, resize, grey = shape
    if size < 0 or resize < 0 or (resize and resize < size):
        raise ValueError(
            f"load_data: size and resize must satisfy 0 <= size <= resize, got {size} and {resize}. Try size=224."
        )
    siblings = [split for split in splits if split.is_dir()] if inner in splits else [inner]
    classes = sorted({label for split in siblings for label in _classes(split)}) if _classes(inner) else []
    files = [(file, label) for label, entry in enumerate(classes) for file in _pictures(inner / entry)]
    if not files:
        files = [(file, -1) for file in _pictures(inner)]
    if not files:
        raise ValueError(
            f"load_data: {inner} must hold images ({', '.join(sorted(IMAGE_SUFFIXES))}) or one folder of them per "
            "class, got none. Check the path."
        )
    order = request.choose(len(files))
    files = files if order is None else [files[int(index)] for index in order]
    images = _read_alike(files, size, resize, grey)
    targets = torch.tensor([label for _, label in files]) if classes else None
    return Dataset(name, torch.from_numpy(images), targets, classes=tuple(classes) or None)


def _classes(where: Path) -> list[str]:
    """The folders in ``where`` that hold at least one picture."""
    folders = (entry for entry in where.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    return [entry.name for entry in folders if any(map(_is_picture, entry.iterdir()))]


def _is_picture(file: Path) -> bool:
    return file.suffix.lower() in IMAGE_SUFFIXES and not file.name.startswith(".") and file.is_file()


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


def imagenet_folders(split: str) -> list[Path]:
    """The folder of a split of ImageNet, where it is there."""
    folders = [root / _IMAGENET_SPLITS.get(split, "") for root in places.candidates(IMAGENET_FOLDERS)][:1]
    return [folder for folder in folders if folder.is_dir()]


def imagenet(request: Request, *, size: int = 224, resize: int = 256) -> Dataset:
    """ImageNet from ``imagenet/train`` and ``imagenet/val`` (a folder per class), scaled and cropped as usual.

    The split "test" is the validation set: the test labels are not public. It cannot be downloaded without an account.
    """
    name = _IMAGENET_SPLITS[request.one_of("imagenet", *_IMAGENET_SPLITS)]
    root = next(iter(places.candidates(IMAGENET_FOLDERS)), None)
    if root is None:
        raise ValueError(
            f"load_data: 'imagenet' must be in one of {places.searched()}, got nothing there. "
            "Put train/ and val/ with a folder per class into a folder imagenet (image-net.org, with an account)."
        )
    inner = root / name
    if not inner.is_dir():
        raise ValueError(
            f"load_data: {root} must hold a folder {name} for the split {request.split!r}, got none. "
            "ImageNet's own test/ has no labels: put the validation images into val/, a folder per class."
        )
    splits = [root / "train", root / "val"]
    return _images(request, "imagenet", inner, splits, (size, max(size, resize), False))
