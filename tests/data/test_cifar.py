"""CIFAR-10 in its forms, and the reader of its pickles, which must never run anything."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import struct
import tarfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lisse.data import cifar, load_data
from lisse.data.pickles import read_pickle


def python2_batch(data, labels):
    """What Python 2's cPickle wrote: protocol 2 with byte strings (the form of the official files)."""

    def short(text):
        return b"U" + bytes([len(text)]) + text

    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + short(b"b") + b"\x87R"
    kind = (
        b"cnumpy\ndtype\n"
        + short(b"u1")
        + b"K\x00K\x01\x87R(K\x03"
        + short(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    shape = b"M" + struct.pack("<H", data.shape[0]) + b"M" + struct.pack("<H", data.shape[1]) + b"\x86"
    state = b"(K\x01" + shape + kind + b"\x89T" + struct.pack("<I", data.size) + data.tobytes() + b"tb"
    answers = b"](" + b"".join(b"K" + bytes([int(k)]) for k in labels) + b"e"
    return b"\x80\x02}(" + short(b"data") + array + state + short(b"labels") + answers + b"u."


DATA = np.random.default_rng(0).integers(0, 256, (5, 3072)).astype(np.uint8)
LABELS = [0, 9, 3, 3, 1]


def test_python_2_fixture_is_a_real_pickle():
    got = pickle.loads(python2_batch(DATA, LABELS), encoding="bytes")
    np.testing.assert_array_equal(got[b"data"], DATA)
    assert got[b"labels"] == LABELS


def test_python_2_pickle():
    got = read_pickle(python2_batch(DATA, LABELS), "file")
    np.testing.assert_array_equal(got["data"], DATA)
    assert got["labels"] == LABELS


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("order", ["C", "F"])
def test_python_3_pickles_of_every_protocol(protocol, order):
    content = pickle.dumps({b"data": np.asarray(DATA, order=order), "labels": np.array(LABELS)}, protocol=protocol)
    got = read_pickle(content, "file")
    np.testing.assert_array_equal(got["data"], DATA)
    np.testing.assert_array_equal(got["labels"], LABELS)


class Runs:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def hostile():
    marker = "/tmp/lisse-hostile-pickle"
    yield pickle.dumps(Runs(os.system, f"touch {marker}"))
    yield pickle.dumps({"data": Runs(eval, f"open('{marker}', 'w')")})
    yield pickle.dumps(Runs(open, marker, "w"))
    yield pickle.dumps({"data": Runs(getattr, np.ndarray, "tofile")})
    yield pickle.dumps({"data": Runs(np.zeros, (1 << 40,))})
    yield b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x20touch /tmp/lisse-hostile-pickle     \x85R."
    yield b"cposix\nsystem\n(S'touch /tmp/lisse-hostile-pickle'\ntR."
    yield b"(S'touch /tmp/lisse-hostile-pickle'\niposix\nsystem\n."
    yield b"cnumpy\ndtype.__class__\n."
    yield b"\x80\x04\x8c\x05numpy\x8c\x10ndarray.__init__\x93."
    yield b"Psomething\n."
    yield b"\x80\x02K\x01Q."
    yield b"\x82\x01."


@pytest.mark.parametrize("content", list(hostile()))
def test_nothing_runs(content):
    with pytest.raises(
        ValueError, match=r"file must be a pickle of plain arrays, got .* Nothing in it was run"
    ) as caught:
        read_pickle(content, "file")
    assert "\n" not in str(caught.value)
    assert not os.path.exists("/tmp/lisse-hostile-pickle")


def array_state(shape, kind=b"u1", content=b"abcd"):
    def short(text):
        return b"U" + bytes([len(text)]) + text

    return (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85"
        + short(b"b")
        + b"\x87R(K\x01"
        + shape
        + b"cnumpy\ndtype\n"
        + short(kind)
        + b"K\x00K\x01\x87R\x89"
        + short(content)
        + b"tb."
    )


ABSURD = [
    array_state(b"J\xff\xff\xff\x7f\x85"),
    array_state(b"J\xff\xff\xff\xff\x85"),
    array_state(b"\x8a\x08" + b"\xff" * 7 + b"\x7f\x85"),
    array_state(b"K\x04\x85", kind=b"O8"),
    array_state(b"K\x04\x85", kind=b"V4"),
    array_state(b"K\x04"),
    b"\x80\x02r\xff\xff\xff\x7f.",
    b"\x80\x02K\x01r\xff\xff\xff\x7f.",
    b"\x80\x02K\x01r\xff\xff\xff\x00.",
    b"\x80\x04B\xff\xff\xff\xff.",
    b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"x.",
    b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"N.",
    b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"x.",
    b"\x80\x02\x8b" + struct.pack("<I", 1 << 31) + b"x.",
    b"(" * 1000 + b".",
    b"]" + b"]\x94a" * 10,
    b"\x80\xff.",
    b"",
    b".",
    pickle.dumps([1]),
]


@pytest.mark.parametrize("content", ABSURD, ids=range(len(ABSURD)))
def test_absurd_sizes_stay_small(content, peak):
    with pytest.raises(ValueError, match="load_data: file must"):
        read_pickle(content, "file")
    assert peak() < 8 << 20


def test_encode_cannot_multiply():
    text = "x" * 100_000
    out = io.BytesIO()
    out.write(b"\x80\x02](X" + struct.pack("<I", len(text)) + text.encode() + b"q\x000c_codecs\nencode\nq\x010")
    for _ in range(50):
        out.write(b"h\x01h\x00X\x06\x00\x00\x00latin1\x86R")
    out.write(b"e.")
    with pytest.raises(ValueError, match="more content than the file can hold"):
        read_pickle(out.getvalue(), "file")


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_fuzz(data):
    small = {"data": DATA[:1, :40], "labels": [1, 2]}
    base = data.draw(st.sampled_from([python2_batch(DATA[:1, :60], [1]), *(pickle.dumps(small, p) for p in (2, 4, 5))]))
    content = bytearray(base)
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        assert isinstance(read_pickle(content, "file"), dict)
    except ValueError as error:
        assert str(error).startswith("load_data: file must")  # noqa: PT017


COUNT = 7


def batches(n=COUNT):
    rng = np.random.default_rng(5)
    names = (*cifar.BATCHES["train"], *cifar.BATCHES["test"])
    return {
        name: (rng.integers(0, 256, (n, 3072)).astype(np.uint8), rng.integers(0, 10, n).astype(np.uint8))
        for name in names
    }


def contents(form, made):
    if form == "binary":
        return {f"{name}.bin": np.hstack([y[:, None], x]).tobytes() for name, (x, y) in made.items()}
    if form == "python2":
        return {name: python2_batch(x, y) for name, (x, y) in made.items()}
    return {name: pickle.dumps({b"data": x, b"labels": y.tolist()}) for name, (x, y) in made.items()}


def archive(files, folder="cifar-10-batches-py"):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=1) as tar:
        for name, content in {"readme.html": b"hello", **files}.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


@pytest.mark.parametrize("form", ["python2", "python3", "binary"])
@pytest.mark.parametrize("packed", [True, False])
def test_every_form_gives_the_same_images(data_folder, form, packed):
    made = batches()
    files = contents(form, made)
    if packed:
        name = "cifar-10-binary.tar.gz" if form == "binary" else "cifar-10-python.tar.gz"
        (data_folder / name).write_bytes(archive(files))
    else:
        inner = data_folder / "cifar10" / ("cifar-10-batches-bin" if form == "binary" else "cifar-10-batches-py")
        inner.mkdir(parents=True)
        for name, content in files.items():
            (inner / name).write_bytes(content)
    for split in ("train", "test"):
        data = load_data("cifar10", split=split)
        x = np.concatenate([made[name][0] for name in cifar.BATCHES[split]])
        y = np.concatenate([made[name][1] for name in cifar.BATCHES[split]])
        np.testing.assert_array_equal(data.inputs.numpy(), x.reshape(-1, 3, 32, 32))
        assert data.inputs.dtype == torch.uint8
        assert data.targets.tolist() == y.tolist()
        assert data.classes[6] == "frog"


def test_once_per_process_until_the_file_changes(data_folder):
    (data_folder / "cifar10").mkdir()
    path = data_folder / "cifar10" / "test_batch"
    path.write_bytes(contents("python2", batches())["test_batch"])
    one = load_data("cifar10")
    assert load_data("cifar10") is one
    path.write_bytes(contents("python2", batches(3))["test_batch"])
    assert len(load_data("cifar10")) == 3


def test_webp_sheets(data_folder, monkeypatch):
    from PIL import Image

    monkeypatch.setattr(cifar, "ROWS", 5)
    n = 5 * cifar.COLUMNS
    rng = np.random.default_rng(0)
    folder = data_folder / "cifar10"
    folder.mkdir()
    wanted = rng.integers(0, 256, (n, 32, 32, 3)).astype(np.uint8)
    # image k lies in column k // rows, row k % rows (the order in which data/README.md decodes them)
    sheet = wanted.reshape(20, 5, 32, 32, 3).transpose(1, 2, 0, 3, 4).reshape(5 * 32, 20 * 32, 3)
    Image.fromarray(sheet).save(folder / "test.webp", lossless=True, method=0)
    labels = rng.integers(0, 10, n)
    np.savez(folder / "labels.npz", train=labels, test=labels)
    data = load_data("cifar10")
    np.testing.assert_array_equal(data.inputs.numpy(), wanted.transpose(0, 3, 1, 2))
    decoded = np.asarray(Image.open(folder / "test.webp").convert("RGB")).reshape(5, 32, 20, 32, 3)
    np.testing.assert_array_equal(decoded.transpose(2, 0, 1, 3, 4).reshape(-1, 32, 32, 3), wanted)
    Image.fromarray(sheet[:32]).save(folder / "test.webp", lossless=True, method=0)
    with pytest.raises(ValueError, match=r"test.webp must have 640 × 160 pixels, got 640 × 32"):
        load_data("cifar10")
    Image.fromarray(sheet).save(folder / "test.webp", lossless=True, method=0)
    np.savez(folder / "labels.npz", test=labels[:-1])
    with pytest.raises(ValueError, match=r"labels.npz must hold .* got 99"):
        load_data("cifar10")


def put(data_folder, name, content):
    (data_folder / "cifar10").mkdir(exist_ok=True)
    (data_folder / "cifar10" / name).write_bytes(content)


GOOD = contents("python2", batches())["test_batch"]
HOSTILE = b"cposix\nsystem\n(S'touch /tmp/lisse-hostile-cifar'\ntR."
BAD = [
    ("test_batch", HOSTILE, r"test_batch must be a pickle of plain arrays, got the name posix.system"),
    ("test_batch", GOOD[:-500], "test_batch must be a pickle of plain arrays"),
    ("test_batch", b"", "test_batch must be a pickle"),
    ("test_batch", pickle.dumps({b"labels": [1]}), "must hold 'data' as bytes .n, 3072., got NoneType"),
    ("test_batch", pickle.dumps({b"data": np.zeros((2, 5), np.uint8), b"labels": [1, 1]}), "must hold 'data' as bytes"),
    (
        "test_batch",
        pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}),
        "one integer of 'labels' for each of 2",
    ),
    ("test_batch", pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": ["a"]}), "one integer of 'labels'"),
    ("test_batch", pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [10]}), "labels in 0 … 9, got 10"),
    (
        "test_batch",
        pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [1 << 70]}),
        "one integer of 'labels'",
    ),
    ("test_batch", pickle.dumps({b"data": np.zeros((0, 3072), np.uint8), b"labels": []}), "at least one image"),
    ("test_batch.bin", b"\1" * 3073 + b"x", "records of 3073 bytes, got 3,074 bytes"),
    ("test_batch.bin", b"", "records of 3073 bytes, got 0"),
    ("test_batch.bin", b"\x0b" * 3073, "labels in 0 … 9, got 11"),
    ("cifar-10-python.tar.gz", archive({"test_batch": HOSTILE}), r"tar.gz \(test_batch\) must be a pickle"),
    ("cifar-10-python.tar.gz", archive({"test_batch": GOOD})[:-2000], "complete archive"),
    ("cifar-10-python.tar.gz", archive({"other": GOOD}), "must hold test_batch, got an archive without"),
    ("cifar-10-python.tar.gz", b"not a tar", "complete archive"),
    ("cifar-10-python.tar.gz", gzip.compress(b"not a tar" * 1000), "complete archive|got an archive without"),
]


@pytest.mark.parametrize(("name", "content", "match"), BAD, ids=range(len(BAD)))
def test_damage_is_named_and_nothing_runs(data_folder, name, content, match):
    put(data_folder, name, content)
    with pytest.raises(ValueError, match=match) as caught:
        load_data("cifar10")
    assert name in str(caught.value)
    assert not os.path.exists("/tmp/lisse-hostile-cifar")


def test_an_archive_with_absurd_members_is_not_unpacked(data_folder):
    member = tarfile.TarInfo("cifar-10-batches-py/test_batch")
    member.size = 1 << 40
    put(data_folder, "cifar-10-python.tar.gz", gzip.compress(member.tobuf()))
    with pytest.raises(ValueError, match="test_batch with 1,099,511,627,776"):
        load_data("cifar10")
    member.name = "cifar-10-batches-py/other"
    put(data_folder, "cifar-10-python.tar.gz", gzip.compress(member.tobuf()))
    with pytest.raises(ValueError, match="must not unpack to more than"):
        load_data("cifar10")


def test_a_flipped_bit_in_a_file_of_official_size(data_folder, monkeypatch):
    monkeypatch.setitem(cifar.OFFICIAL, "test_batch", (len(GOOD), hashlib.md5(GOOD).hexdigest()))
    put(data_folder, "test_batch", GOOD)
    assert len(load_data("cifar10")) == COUNT
    middle = len(GOOD) // 2
    put(data_folder, "test_batch", GOOD[:middle] + bytes([GOOD[middle] ^ 1]) + GOOD[middle + 1 :])
    with pytest.raises(ValueError, match="test_batch must have md5"):
        load_data("cifar10")


def test_partial_sets_are_not_taken(data_folder):
    put(data_folder, "data_batch_1", GOOD)
    with pytest.raises(ValueError, match="'cifar10' must be in one of"):
        load_data("cifar10", split="train")
