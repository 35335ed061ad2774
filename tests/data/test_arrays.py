from __future__ import annotations

import io
import struct
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lisse.data import load_data
from lisse.data.arrays import read_npz


@given(
    dtype=st.sampled_from(["u1", "<f4", ">f8", "<i8", ">i2", "?"]),
    shape=st.lists(st.integers(0, 4), max_size=3),
    fortran=st.booleans(),
    packed=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_agrees_with_numpy(dtype, shape, fortran, packed, tmp_path_factory):
    array = np.asarray(np.random.default_rng(0).integers(0, 2, shape).astype(dtype), order="F" if fortran else "C")
    path = tmp_path_factory.mktemp("npz") / "a.npz"
    (np.savez_compressed if packed else np.savez)(path, a=array, b=array[..., None])
    got = read_npz(path)
    with np.load(path, allow_pickle=False) as wanted:
        assert sorted(got) == sorted(wanted.files)
        for name in got:
            np.testing.assert_array_equal(got[name], wanted[name])


@pytest.mark.parametrize(
    ("x", "y"),
    [("x_test", "y_test"), ("test_images", "test_labels"), ("inputs", "targets"), ("images", "labels"), ("X", "y")],
)
def test_usual_names(tmp_path, x, y):
    values = np.arange(12.0).reshape(4, 3)
    np.savez(tmp_path / "mine.npz", **{x: values, y: np.arange(4), "other": np.zeros(1)})
    data = load_data(str(tmp_path / "mine.npz"))
    assert data.name == "mine"
    np.testing.assert_array_equal(data.inputs.numpy(), values)
    assert data.targets.tolist() == [0, 1, 2, 3]


def test_split_chosen_names_layout_and_columns(tmp_path):
    path = tmp_path / "m.npz"
    rng = np.random.default_rng(0)
    train, test = (rng.integers(0, 256, (n, 5, 6, 3)).astype("u1") for n in (4, 2))
    np.savez(path, train_images=train, train_labels=np.zeros((4, 1), "u1"), test_images=test, grey=train[..., 0])
    data = load_data(str(path), split="train")
    assert data.targets.shape == (4,)
    np.testing.assert_array_equal(data.inputs.numpy(), train.transpose(0, 3, 1, 2))
    assert len(load_data(str(path))) == 2
    assert load_data(f"{path}?layout=nchw").inputs.shape == (2, 5, 6, 3)
    grey = load_data(f"npz:{path}?inputs=grey&targets=train_labels")
    assert grey.inputs.shape == (4, 1, 5, 6)
    assert grey.inputs.dtype == torch.uint8


def test_relative_to_lisse_data(data_folder):
    np.savez(data_folder / "only.npz", anything=np.zeros((2, 3)))
    assert load_data("only.npz").inputs.shape == (2, 3)


def zipped(members, compression=zipfile.ZIP_DEFLATED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def npy(header: str, content=b""):
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + content


def saved(**arrays):
    out = io.BytesIO()
    np.savez(out, allow_pickle=True, **arrays)
    return out.getvalue()


GOOD = saved(inputs=np.arange(6.0).reshape(3, 2), targets=np.arange(3))
HUGE = "{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), }"
BAD = [
    (b"", "whole .npz file of numbers .*: it is damaged"),
    (b"not a zip", "whole .npz file of numbers .*: it is damaged"),
    (GOOD[:-30], "whole .npz file of numbers .*: it is damaged"),
    (GOOD[:200] + b"\xff" * 8 + GOOD[208:], "read_npz: .*must"),
    (
        saved(inputs=np.array([{}, []], dtype=object)),
        r"file of numbers \(nothing pickled; .*header asks for {'descr': '\|O'",
    ),
    (saved(inputs=np.array(["a", "b"])), "it holds inputs of <U1"),
    (zipped({"inputs.npy": npy(HUGE)}), r"0 bytes are no \(1099511627776,\) of float64"),
    (zipped({"inputs.npy": npy(HUGE.replace("1099511627776", "-1"))}), "header asks for"),
    (zipped({"inputs.npy": npy("__import__('os').system('touch /tmp/lisse-npz')")}), "header cannot be read"),
    (zipped({"inputs.npy": npy("{'descr': '<f8'}")}), "header cannot be read"),
    (zipped({"inputs.npy": npy("[" * 100)}), "header cannot be read"),
    (zipped({"inputs.npy": b"garbage"}), "is no .npy of version"),
    (zipped({"inputs.npy": npy(HUGE.replace("1099511627776", "1"), bytes(9))}), r"9 bytes are no \(1,\) of float64"),
    (zipped({"inputs.npy": bytes(100 << 20)}), "must not unpack to more than 67,108,864 bytes"),
    (zipped({"readme.txt": b"hi"}), "must say which array"),
    (saved(a=np.zeros(2), b=np.zeros(2)), r"must say which array is the test input, got a \[2\], b \[2\]"),
    (saved(inputs=np.zeros((0, 3))), r"at least one sample, got inputs of shape \[0, 3\]"),
    (saved(inputs=np.float64(3.0)), r"at least one sample, got inputs of shape \[\]"),
    (saved(inputs=np.array([[1.0, np.nan]])), "finite inputs, got NaN"),
    (saved(inputs=np.zeros((300_000_000, 0))), r"at least one sample, got inputs of shape \[300000000, 0\]"),
    (saved(x_train=np.zeros((3, 2))), r"must say what is 'test', got x_train \[3, 2\]"),
    (saved(x_train=np.zeros((3, 2)), y_train=np.zeros(3, int)), "must say what is 'test', got x_train"),
    (saved(x_train=np.zeros((3, 2)), x=np.zeros((3, 2)), y=np.zeros(3, int)), "must say what is 'test', got x_train"),
    (saved(x_test=np.zeros((3, 2)), labels_test=np.zeros(2, int)), "got 2 for 3 samples"),
    (saved(x=np.zeros((2, 2)), y=np.array([3, -7])), "labels of at least 0, got -7 at sample 1"),
    (saved(x=np.zeros((2, 2)), y=np.array([[3], [-7]])), "labels of at least 0, got -7 at sample 1"),
    (saved(x=np.zeros((2, 2)), y=np.array([0.5, np.nan])), "finite targets, got NaN"),
    (saved(x=np.zeros((2, 2)), y=np.zeros((2, 0))), r"one target per sample, got shape \[2, 0\]"),
    (saved(x=np.array([[1e300]])), "in float32's range, got 1e.300"),
    (saved(x=np.zeros((2, 5, 5), np.uint16)), r"images as uint8 or floats in \[0, 1\], got uint16"),
    (saved(x=np.full((2, 3, 5, 5), 255.0)), r"floats in \[0, 1\], got floats from 255 to 255. Store bytes as uint8 or"),
    (saved(x=np.full((2, 1, 5, 5), -0.5, "f4")), r"got floats from -0.5 to -0.5"),
    (saved(x=np.full((2, 4, 5, 5), 1.5, "f2")), r"got floats from 1.5 to 1.5"),
    (saved(inputs=np.zeros((3, 2)), targets=np.zeros(2, int)), "got 2 for 3 samples"),
]


@pytest.mark.parametrize(("content", "match"), BAD, ids=range(len(BAD)))
def test_damage_is_named(tmp_path, content, match, peak):
    path = tmp_path / "x.npz"
    path.write_bytes(content)
    with pytest.raises((ValueError, TypeError), match=match):
        load_data(str(path))
    assert peak() < 4 << 20
    assert not (tmp_path.parent / "lisse-npz").exists()


def test_wrong_names(tmp_path):
    (tmp_path / "x.npz").write_bytes(GOOD)
    with pytest.raises(ValueError, match=r"must hold an array 'z', got inputs \[3, 2\], targets \[3\]"):
        load_data(f"{tmp_path}/x.npz?inputs=z")
    with pytest.raises(ValueError, match="layout must be auto, nchw or nhwc, got 'hwc'"):
        load_data(f"{tmp_path}/x.npz?layout=hwc")
    with pytest.raises(FileNotFoundError, match=r"none.npz must be a file, got nothing there"):
        load_data("none.npz")


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_fuzz(data, tmp_path_factory):
    content = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("fuzz") / "x.npz"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        load_data(str(path))
    except (ValueError, TypeError) as error:
        assert any(word in str(error) for word in (str(path), "Dataset:", "as_dataset"))  # noqa: PT017


@pytest.mark.parametrize("dtype", [np.float64, np.longdouble, np.float32])
def test_floats_are_given_as_float32(tmp_path, dtype):
    np.savez(tmp_path / "x.npz", x=np.array([[0.1, 2.5]], dtype), y=np.array([0.5], dtype))
    data = load_data(f"{tmp_path}/x.npz")
    assert data.inputs.dtype == torch.float32
    torch.testing.assert_close(data.inputs, torch.tensor([[0.1, 2.5]]))
    assert data.targets.tolist() == [0.5]


def test_wide_unsigned_integers_become_int64(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.full((2, 3), 60000, np.uint16), y=np.array([1, 2], np.uint64))
    data = load_data(f"{tmp_path}/x.npz")
    assert data.inputs.dtype == data.targets.dtype == torch.int64
    assert int(data.inputs.max()) == 60000


def test_only_images_must_lie_between_0_and_1(tmp_path):
    images, maps = np.linspace(0, 1, 2 * 3 * 16).reshape(2, 3, 4, 4), np.full((2, 7, 4, 4), -9.0)
    np.savez(
        tmp_path / "x.npz", images=images, maps=maps, points=np.full((2, 3), -9.0), last=images.transpose(0, 2, 3, 1)
    )
    assert float(load_data(f"{tmp_path}/x.npz").inputs.max()) == 1
    assert float(load_data(f"{tmp_path}/x.npz?inputs=maps").inputs.max()) == -9
    assert float(load_data(f"{tmp_path}/x.npz?inputs=points").inputs.max()) == -9
    assert load_data(f"{tmp_path}/x.npz?inputs=last&layout=nhwc").inputs.shape == (2, 3, 4, 4)
    np.savez(tmp_path / "y.npz", last=images.transpose(0, 2, 3, 1) * 255)
    with pytest.raises(ValueError, match="got floats from 0 to 255"):
        load_data(f"{tmp_path}/y.npz?layout=nhwc")


def test_targets_are_found_beside_the_inputs(tmp_path, recwarn):
    path = tmp_path / "x.npz"
    np.savez(path, x_test=np.zeros((3, 2)), labels_test=np.arange(3), x_train=np.ones((2, 2)), y_train=np.arange(2) + 5)
    assert load_data(str(path)).targets.tolist() == [0, 1, 2]
    assert load_data(f"{path}?inputs=x_train").targets.tolist() == [5, 6]
    assert load_data(f"{path}?inputs=x_train&targets=none").targets is None
    np.savez(path, x=np.zeros((3, 2)), y=np.arange(3), more=np.ones((3, 4)), other=np.ones((4, 4)))
    assert load_data(f"{path}?inputs=x").targets.tolist() == [0, 1, 2]
    assert load_data(f"{path}?inputs=more").targets.tolist() == [0, 1, 2]
    assert load_data(f"{path}?inputs=other").targets is None
    assert load_data(f"{path}?inputs=y").targets is None
    assert not recwarn.list
    with pytest.warns(UserWarning, match=r"x.npz has no splits: 'train' is the whole of it"):
        load_data(str(path), split="train")


def test_a_folder_is_called_a_folder(tmp_path):
    (tmp_path / "dir.npz").mkdir()
    with pytest.raises(FileNotFoundError, match=r"dir.npz must be a file, got a folder"):
        load_data(f"{tmp_path}/dir.npz")
