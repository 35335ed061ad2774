from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from lisse.data import images as module
from lisse.data import load_data
from lisse.data.images import read_image


def picture(path, size=(6, 5), colour=None, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3)).astype(np.uint8)
    if colour is not None:
        pixels[:] = colour
    Image.fromarray(pixels).save(path)
    return pixels


def test_class_folders(tmp_path):
    for label, name in enumerate(("cat", "dog", "eel")):
        for k in range(3):
            picture(tmp_path / "pets" / name / f"{k}.png", colour=(label, k, 7))
    (tmp_path / "pets" / "notes.txt").write_text("not an image")
    data = load_data(f"folder:{tmp_path}/pets")
    assert data.name == "pets"
    assert data.classes == ("cat", "dog", "eel")
    assert data.inputs.shape == (9, 3, 5, 6)
    assert data.inputs.dtype == torch.uint8
    assert data.inputs[:, 0, 0, 0].tolist() == data.targets.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert load_data(f"{tmp_path}/pets").fingerprint() == data.fingerprint()
    chosen = load_data(f"folder:{tmp_path}/pets", limit=4, seed=3)
    assert chosen.fingerprint() == data.sample(4, 3).fingerprint()
    assert load_data(f"folder:{tmp_path}/pets", limit=4, seed=None).fingerprint() == data.take(4).fingerprint()


def test_splits_and_flat_folders(tmp_path):
    for split, n in (("train", 3), ("val", 2)):
        for k in range(n):
            picture(tmp_path / "set" / split / "a" / f"{k}.jpg")
    assert len(load_data(f"folder:{tmp_path}/set", split="train")) == 3
    assert len(load_data(f"folder:{tmp_path}/set", split="test")) == 2
    flat = load_data(f"folder:{tmp_path}/set/train/a")
    assert flat.targets is None
    assert flat.classes is None
    assert load_data(f"folder:{tmp_path}/set/train/a?grey=true").inputs.shape == (3, 1, 5, 6)


def test_lossless_pixels(tmp_path):
    wanted = picture(tmp_path / "a.png")
    np.testing.assert_array_equal(read_image(tmp_path / "a.png"), wanted.transpose(2, 0, 1))


def test_scale_and_crop(tmp_path):
    pixels = np.zeros((40, 80, 3), np.uint8)
    pixels[:, 20:60] = 200  # the middle square
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    assert (read_image(tmp_path / "wide.png", size=40) == 200).all()
    small = read_image(tmp_path / "wide.png", size=20)
    assert small.shape == (3, 20, 20)
    assert (small[:, :, 1:-1] == 200).all()
    centre = read_image(tmp_path / "wide.png", size=10, resize=20)
    assert centre.shape == (3, 10, 10)
    assert (centre == 200).all()


def test_imagenet(data_folder):
    for split, n in (("train", 2), ("val", 1)):
        for name in ("n01440764", "n01443537"):
            for k in range(n):
                picture(data_folder / "imagenet" / split / name / f"{k}.JPEG", size=(50 + k, 40))
    data = load_data("imagenet?size=24&resize=32")
    assert data.inputs.shape == (2, 3, 24, 24)
    assert data.classes == ("n01440764", "n01443537")
    assert len(load_data("imagenet?size=24", split="train")) == 4


def test_mixed_sizes(tmp_path):
    picture(tmp_path / "a.png")
    picture(tmp_path / "b.png", size=(7, 5))
    with pytest.raises(ValueError, match=r"b.png must have the size of a.png, 6 × 5, got 7 × 5. Add \?size=PIXELS"):
        load_data(f"folder:{tmp_path}")
    assert load_data(f"folder:{tmp_path}?size=4").inputs.shape == (2, 3, 4, 4)


def png(width, height, content=b""):
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(content)) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "complete image, got"),
        (b"GIF89a", "complete image, got"),
        (png(100_000, 100_000), "at most 67,108,864 pixels, got 100000 × 100000|complete image, got"),
        (png(9000, 9000), "at most 67,108,864 pixels, got 9000 × 9000"),
        (png(50, 50), "complete image, got"),
        (png(0, 5), "complete image, got"),
        (b"\xff\xd8\xff\xe0" + b"\0" * 100, "complete image, got"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 5 5\n", "complete image, got"),
    ],
)
def test_damage_is_named(tmp_path, content, match):
    (tmp_path / "x.png").write_bytes(content)
    with pytest.raises(ValueError, match=match) as caught:
        load_data(f"folder:{tmp_path}")
    assert "x.png" in str(caught.value)


def test_truncations_and_flips(tmp_path):
    for ending in ("png", "jpg", "webp", "gif", "bmp"):
        path = tmp_path / f"good.{ending}"
        picture(path, size=(30, 20))
        content = path.read_bytes()
        rng = np.random.default_rng(0)
        bad = tmp_path / f"bad.{ending}"
        for _ in range(25):
            damaged = bytearray(content[: rng.integers(0, len(content) + 1)])
            for _ in range(rng.integers(0, 3)):
                if damaged:
                    damaged[rng.integers(0, len(damaged))] = rng.integers(0, 256)
            bad.write_bytes(damaged)
            try:
                assert read_image(bad).ndim == 3
            except ValueError as error:
                assert "bad." in str(error)  # noqa: PT017


def test_memory_is_bounded(tmp_path, monkeypatch):
    for k in range(3):
        picture(tmp_path / f"{k}.png")
    monkeypatch.setattr(module, "CEILING", 200)
    with pytest.raises(ValueError, match=r"3 images of \[3, 5, 6\] must fit .* Give limit= or a smaller size"):
        load_data(f"folder:{tmp_path}")


def test_nothing_there(tmp_path):
    with pytest.raises(ValueError, match=r"must hold images .* got none"):
        load_data(f"folder:{tmp_path}")
    with pytest.raises(ValueError, match="must be a folder of images, got nothing there"):
        load_data("folder:/does/not/exist")
    with pytest.raises(ValueError, match="0 <= size <= resize, got 8 and 4"):
        load_data(f"folder:{tmp_path}?size=8&resize=4")
    with pytest.raises(ValueError, match="'imagenet' must be in one of"):
        load_data("imagenet")


def test_labels_are_the_same_in_every_split(tmp_path):
    for name in ("ant", "bee", "cat"):
        picture(tmp_path / "set" / "train" / name / "0.png")
    (tmp_path / "set" / "val" / "ant").mkdir(parents=True)  # empty
    picture(tmp_path / "set" / "val" / "cat" / "0.png")
    picture(tmp_path / "set" / "val" / "dog" / "0.png")
    train, test = load_data(f"folder:{tmp_path}/set", split="train"), load_data(f"folder:{tmp_path}/set")
    assert train.classes == test.classes == ("ant", "bee", "cat", "dog")
    assert train.targets.tolist() == [0, 1, 2]
    assert test.targets.tolist() == [2, 3]


def test_imagenet_tests_on_val_only(data_folder):
    for split, names in (("train", ("n01", "n02", "n03")), ("val", ("n02", "n03")), ("test", ("images",))):
        for k, name in enumerate(names):
            picture(data_folder / "imagenet" / split / name / "0.JPEG", colour=(10 * k + len(split), 0, 0))
    data = load_data("imagenet?size=4")
    assert data.targets.tolist() == [1, 2]
    assert data.classes == ("n01", "n02", "n03")
    assert data.fingerprint() == load_data("imagenet?size=4", split="val").fingerprint()
    (data_folder / "imagenet" / "val").rename(data_folder / "imagenet" / "elsewhere")
    with pytest.raises(
        ValueError, match=r"must hold a folder val for the split 'test', got none\. ImageNet's own test/"
    ):
        load_data("imagenet?size=4")


def test_a_missing_split_is_not_another_one(tmp_path, recwarn):
    picture(tmp_path / "set" / "train" / "0.png")
    with pytest.raises(ValueError, match=r"must have a folder for the split 'test' \(test, val, .*\), got train"):
        load_data(f"folder:{tmp_path}/set")
    picture(tmp_path / "flat" / "0.png")
    load_data(f"folder:{tmp_path}/flat")
    picture(tmp_path / "traffic" / "car" / "0.png")
    picture(tmp_path / "traffic" / "train" / "0.png")
    assert load_data(f"folder:{tmp_path}/traffic").classes == ("car", "train")
    assert not recwarn.list
    with pytest.warns(UserWarning, match=r"flat has no splits: 'train' is the whole of it"):
        load_data(f"folder:{tmp_path}/flat", split="train")


def test_hidden_entries_are_passed_over(tmp_path):
    picture(tmp_path / "set" / "a" / "1.png")
    picture(tmp_path / "set" / ".thumbs" / "1.png")
    (tmp_path / "set" / "a" / "._1.png").write_bytes(b"what macOS leaves behind")
    (tmp_path / "set" / "b").mkdir()
    (tmp_path / "set" / "b" / "._2.png").write_bytes(b"what macOS leaves behind")
    data = load_data(f"folder:{tmp_path}/set")
    assert data.classes == ("a",)
    assert len(data) == 1
    (tmp_path / "set" / "a" / "1.png").rename(tmp_path / "set" / "1.png")
    (tmp_path / "set" / "._1.png").write_bytes(b"what macOS leaves behind")
    assert len(load_data(f"folder:{tmp_path}/set")) == 1


@pytest.mark.parametrize("ending", ["png", "tif", "pgm"])
def test_sixteen_bits_are_scaled(tmp_path, ending):
    levels = np.array([[0, 256, 257, 32896, 65535]], np.uint16)
    Image.fromarray(levels).save(tmp_path / f"deep.{ending}")
    wanted = [[0, 1, 1, 128, 255]]
    assert read_image(tmp_path / f"deep.{ending}", grey=True).tolist() == [wanted]
    assert read_image(tmp_path / f"deep.{ending}").tolist() == [wanted] * 3


def test_floats_and_long_integers(tmp_path):
    Image.fromarray(np.array([[0.0, 0.5, 1.0]], np.float32)).save(tmp_path / "f.tif")
    assert read_image(tmp_path / "f.tif", grey=True).tolist() == [[[0, 128, 255]]]
    for pixels in (np.array([[0.0, 300.0]], np.float32), np.array([[np.nan]], np.float32), np.array([[7]], np.int32)):
        Image.fromarray(pixels).save(tmp_path / "bad.tif")
        with pytest.raises(ValueError, match=r"bad.tif must have 8- or 16-bit pixels or floats in \[0, 1\], got"):
            read_image(tmp_path / "bad.tif")


def test_pillows_own_errors_name_the_file(tmp_path):
    path = tmp_path / "a.png"
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(path)
    path.write_bytes(path.read_bytes().replace(b"\x00\x00\x00\rIHDR", b"\x00\x00\x00\x05IHDR"))
    with pytest.raises(ValueError, match=r"read_image: .*a\.png must be a complete image, got Truncated IHDR"):
        read_image(path)
