"""CIFAR-10 in its forms; damage in each of them is named."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import tarfile

import numpy as np
import pytest
import torch
from cifar_batches import python2_batch

from lisse.data import cifar, load_data
from lisse.data.pickles import read_pickle

COUNT = 7


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    """Batches of seven images instead of ten thousand."""
    monkeypatch.setattr(cifar, "BATCH", COUNT)


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


def test_once_per_process_until_the_file_changes(data_folder, monkeypatch):
    (data_folder / "cifar10").mkdir()
    path = data_folder / "cifar10" / "test_batch"
    path.write_bytes(contents("python2", batches())["test_batch"])
    reads = []
    monkeypatch.setattr(cifar, "read_pickle", lambda *given: reads.append(given) or read_pickle(*given))
    first = load_data("cifar10").fingerprint()
    assert load_data("cifar10").fingerprint() == first
    assert len(load_data("cifar10", limit=2)) == 2
    assert len(reads) == 1
    path.write_bytes(contents("python3", {"test_batch": batches()["data_batch_1"]})["test_batch"])
    assert load_data("cifar10").fingerprint() != first
    assert len(reads) == 2


def test_changing_what_was_loaded_changes_no_later_load(data_folder):
    put(data_folder, "test_batch", GOOD)
    data = load_data("cifar10")
    first, target = data.fingerprint(), int(data.targets[0])
    data.inputs[0] = 0
    data.inputs.numpy()[1] = 0  # not even torch notices this
    data.targets[0] = (target + 1) % 10
    load_data("cifar10", limit=2, seed=None).inputs.zero_()
    load_data("cifar10", limit=2, seed=1).inputs.zero_()
    assert load_data("cifar10").fingerprint() == first
    assert int(load_data("cifar10").targets[0]) == target


@pytest.mark.parametrize("form", ["python2", "python3", "binary"])
@pytest.mark.parametrize("packed", [True, False])
def test_short_batches_are_not_cifar(data_folder, form, packed):
    files = contents(form, batches(COUNT - 1))
    if packed:
        name = "cifar-10-binary.tar.gz" if form == "binary" else "cifar-10-python.tar.gz"
        put(data_folder, name, archive(files))
    else:
        for name, content in files.items():
            put(data_folder, name, content)
    with pytest.raises(ValueError, match=r"test_batch.* must hold 7 images, got 6"):
        load_data("cifar10")


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


def flipped(content, where):
    return content[:where] + bytes([content[where] ^ 1]) + content[where + 1 :]


def test_a_flipped_pixel_in_an_archive(data_folder, monkeypatch):
    """Stored without compression the flip meets no decoder: only gzip's checksum at the very end can tell."""
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=0) as stream:
        stream.write(gzip.decompress(archive({"test_batch": GOOD, "zzz": bytes(3 << 20)})))
    good = out.getvalue()
    put(data_folder, "cifar-10-python.tar.gz", good)
    assert len(load_data("cifar10")) == COUNT
    put(data_folder, "cifar-10-python.tar.gz", flipped(good, good.index(GOOD[500:600]) + 50))
    with pytest.raises(ValueError, match=r"python.tar.gz must be a complete archive, got CRC check failed"):
        load_data("cifar10")
    put(data_folder, "cifar-10-python.tar.gz", good[:-4])
    with pytest.raises(ValueError, match=r"python.tar.gz must be a complete archive"):
        load_data("cifar10")


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_batch_in_an_archive_has_its_md5(data_folder, monkeypatch, split):
    files = contents("python2", batches())
    for name, content in files.items():
        monkeypatch.setitem(cifar.OFFICIAL, name, (len(content), hashlib.md5(content).hexdigest()))
    put(data_folder, "cifar-10-python.tar.gz", archive(files))
    assert len(load_data("cifar10", split=split)) == COUNT * len(cifar.BATCHES[split])
    last = cifar.BATCHES[split][-1]
    put(data_folder, "cifar-10-python.tar.gz", archive({**files, last: flipped(files[last], 600)}))
    with pytest.raises(ValueError, match=rf"tar.gz \({last}\) must have md5"):
        load_data("cifar10", split=split)


def test_an_archive_of_many_members_is_bounded(data_folder, monkeypatch):
    monkeypatch.setattr("lisse.profile_file.container.FLOOR", 1 << 20)
    monkeypatch.setattr("lisse.profile_file.container.RATIO", 1)
    files = {f"filler{k}": bytes(200_000) for k in range(30)}
    put(data_folder, "cifar-10-python.tar.gz", archive({"test_batch": GOOD, **files}))
    with pytest.raises(ValueError, match=r"must not unpack to more than 1,048,576 bytes"):
        load_data("cifar10")


def test_partial_sets_are_not_taken(data_folder):
    put(data_folder, "data_batch_1", GOOD)
    with pytest.raises(ValueError, match="'cifar10' must be in one of"):
        load_data("cifar10", split="train")
