from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lisse.data import load_data, mnist
from lisse.data.mnist import _IDX_TYPES, read_idx

CODES = {"u1": 8, "i1": 9, ">i2": 11, ">i4": 12, ">f4": 13, ">f8": 14}


def idx_bytes(array):
    code = CODES[{"|u1": "u1", "|i1": "i1"}.get(array.dtype.str, array.dtype.str)]
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape) + array.tobytes()


def naive_idx(content):
    """The format as its author describes it, value by value."""
    code, axes = content[2], content[3]
    shape = struct.unpack(f">{axes}I", content[4 : 4 + 4 * axes])
    letter = {8: "B", 9: "b", 11: "h", 12: "i", 13: "f", 14: "d"}[code]
    count = int(np.prod(shape))
    return np.array(struct.unpack(f">{count}{letter}", content[4 + 4 * axes :])).reshape(shape)


@given(
    kind=st.sampled_from(sorted(CODES)), shape=st.lists(st.integers(0, 5), min_size=1, max_size=4), packed=st.booleans()
)
@settings(max_examples=40, deadline=None)
def test_agrees_with_a_naive_reader(kind, shape, packed, tmp_path_factory):
    array = np.random.default_rng(0).integers(0, 100, shape).astype(kind)
    content = idx_bytes(array)
    path = tmp_path_factory.mktemp("idx") / "file"
    path.write_bytes(gzip.compress(content) if packed else content)
    got = read_idx(path)
    np.testing.assert_array_equal(got, naive_idx(content))
    assert got.dtype == np.dtype(kind).newbyteorder("=")


def make_mnist(folder, n=12, *, packed=True, labels=None, dotted=False):
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    for split in ("train", "t10k"):
        pixels = rng.integers(0, 256, (n, 28, 28)).astype("u1")
        answers = np.asarray(labels if labels is not None else np.arange(n) % 10).astype("u1")
        for name, array in (("images-idx3", pixels), ("labels-idx1", answers)):
            file = f"{split}-{name}-ubyte"
            file = file.replace("-idx", ".idx") if dotted else file
            content = idx_bytes(array)
            (folder / (file + (".gz" if packed else ""))).write_bytes(gzip.compress(content, 1) if packed else content)
    return folder


@pytest.fixture
def few(monkeypatch):
    """Sets of twelve images instead of tens of thousands."""
    monkeypatch.setattr(mnist, "COUNTS", {"train": 12, "test": 12})


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("dotted", [True, False])
@pytest.mark.parametrize(
    ("name", "sub"), [("mnist", "mnist"), ("mnist", "MNIST/raw"), ("fashion-mnist", "FashionMNIST/raw")]
)
def test_found_in_lisse_data(data_folder, few, name, sub, packed, dotted):
    make_mnist(data_folder / sub, packed=packed, dotted=dotted)
    test, train = load_data(name), load_data(name, split="train")
    assert test.inputs.shape == (12, 1, 28, 28)
    assert test.inputs.dtype == torch.uint8
    assert test.targets.tolist() == [k % 10 for k in range(12)]
    assert len(test.classes) == 10
    assert test.fingerprint() != train.fingerprint()


def test_lisse_data_goes_before_the_cache(data_folder, few, tmp_path):
    make_mnist(tmp_path / "cache" / "data" / "mnist", labels=[1] * 12)
    assert load_data("mnist").targets.tolist() == [1] * 12
    make_mnist(data_folder / "mnist", labels=[2] * 12)
    assert load_data("mnist").targets.tolist() == [2] * 12


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_files_that_only_agree_with_themselves(data_folder, name):
    make_mnist(data_folder / name)
    for split, count in (("train", "60,000 train"), ("test", "10,000 test")):
        with pytest.raises(ValueError, match=rf"must hold the {count} images of {name}, 28 × 28, got 12 of 28 × 28"):
            load_data(name, split=split)


def test_images_of_another_size(data_folder, few):
    folder = make_mnist(data_folder / "mnist")
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(np.zeros((12, 8, 8), "u1"))))
    with pytest.raises(ValueError, match="got 12 of 8 × 8"):
        load_data("mnist")


GOOD = idx_bytes(np.arange(24, dtype="u1").reshape(2, 3, 4))
BAD = [
    (b"", "idx header, got an empty file"),
    (GOOD[:3], "idx header"),
    (b"\1" + GOOD[1:], "idx header, got 01 00 08 03"),
    (b"\0\0\x07\3" + GOOD[4:], "idx header"),
    (b"\0\0\x08\0" + GOOD[4:], "idx header"),
    (b"\0\0\x08\xff" + GOOD[4:], "idx header"),
    (GOOD[:9], "3 axis sizes, got only 5 bytes"),
    (GOOD[:-1], "24 bytes for shape .2, 3, 4., got 23"),
    (GOOD + b"\0", "24 bytes .* got more"),
    (b"\0\0\x08\3" + b"\xff" * 12, "must not unpack to more than"),
    (b"\0\0\x0e\1" + struct.pack(">I", 1 << 31), "decompression bomb or damaged"),
    (b"\0\0\x08\1" + struct.pack(">I", 60 << 20) + b"few", "got 3"),
    (gzip.compress(GOOD)[:-9], "complete file, got"),
    (gzip.compress(GOOD)[:12] + b"\xff" * 8 + gzip.compress(GOOD)[20:], "complete file, got"),
    (b"\x1f\x8b" + b"\0" * 30, "complete file, got"),
]


@pytest.mark.parametrize(("content", "match"), BAD, ids=range(len(BAD)))
def test_damage_is_named(tmp_path, content, match, peak):
    path = tmp_path / "broken-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=match) as caught:
        read_idx(path)
    assert peak() < 4 << 20
    assert str(path) in str(caught.value)


def test_a_bomb_is_not_unpacked(tmp_path, peak):
    """A gigabyte of zeros behind a modest header: no more than the header's size is ever unpacked."""
    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb", 1) as out:
        out.write(GOOD)
        for _ in range(100):
            out.write(bytes(1 << 20))
    with pytest.raises(ValueError, match=r"24 bytes .* got more"):
        read_idx(path)
    assert peak() < 4 << 20


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_fuzz(data, tmp_path_factory):
    content = bytearray(data.draw(st.sampled_from([GOOD, gzip.compress(GOOD, mtime=0)])))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))]
    path = tmp_path_factory.mktemp("fuzz") / "file"
    path.write_bytes(content)
    try:
        got = read_idx(path)
    except ValueError as error:
        assert str(path) in str(error)  # noqa: PT017
    else:
        assert got.dtype.str.lstrip("<|=>") in {kind.lstrip(">") for kind in _IDX_TYPES.values()}


def test_labels_and_counts(data_folder):
    folder = make_mnist(data_folder / "mnist", labels=[3] * 11 + [10])
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte.gz must hold labels in 0 … 9, got 10"):
        load_data("mnist")
    make_mnist(data_folder / "mnist", labels=[1] * 11)
    with pytest.raises(ValueError, match=r"must label the 12 images of t10k-images-idx3-ubyte.gz, got 11"):
        load_data("mnist")
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(np.zeros((3, 4), "u1"))))
    with pytest.raises(ValueError, match=r"must hold bytes \[n, h, w\], got uint8 \[3, 4\]"):
        load_data("mnist")
    make_mnist(data_folder / "mnist", n=0)
    with pytest.raises(ValueError, match="at least one image"):
        load_data("mnist")


def test_missing_says_what_to_do(data_folder):
    match = (
        r"'mnist' must be in one of .*data.*got nothing there. Put t10k-images.*mnist\?download=true.*LISSE_DOWNLOAD=1"
    )
    with pytest.raises(ValueError, match=match):
        load_data("mnist")
