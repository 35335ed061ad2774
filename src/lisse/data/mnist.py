"""MNIST and Fashion-MNIST from their four idx files."""

from __future__ import annotations

from pathlib import Path

from lisse.data import places
from lisse.data.bounded import AGAIN
from lisse.data.dataset import Dataset
from lisse.data.download import FASHION_MNIST, MNIST, Remote, fetch
from lisse.data.idx import read_labelled
from lisse.data.request import Request, may_download

FOLDERS = {
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


def _wanted(name: str, split: str) -> tuple[Remote, Remote]:
    """The files of images and of labels."""
    images, labels = FILES[name][:2] if split == "train" else FILES[name][2:]
    return images, labels


def find(name: str, split: str) -> list[Path] | None:
    """The two files of ``split`` where they are, plain or .gz, spelled ``…-idx3-ubyte`` or ``….idx3-ubyte``."""
    spellings = []
    for remote in _wanted(name, split):
        plain = remote.name.removesuffix(".gz")
        dotted = plain.replace("-idx", ".idx")
        spellings.append((remote.name, plain, dotted, f"{dotted}.gz"))
    return places.find(FOLDERS[name], spellings)


def _read(name: str, request: Request, download: bool, classes: tuple[str, ...]) -> Dataset:
    split = request.one_of(name, "train", "test")
    files = find(name, split)
    if files is None and may_download(download):
        folder = places.cache_folder() / "data" / name
        files = [fetch(remote, folder, tell=request.progress) for remote in _wanted(name, split)]
    if files is None:
        names = " and ".join(remote.name for remote in _wanted(name, split))
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
