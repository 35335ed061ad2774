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
    (b"", "complete .npz file, got"),
    (b"not a zip", "complete .npz file, got"),
    (GOOD[:-30], "complete .npz file, got"),
    (GOOD[:200] + b"\xff" * 8 + GOOD[208:], "read_npz: .*must"),
    (
        saved(inputs=np.array([{}, []], dtype=object)),
        "must hold numbers, got dtype object. Pickled objects are refused",
    ),
    (saved(inputs=np.array(["a", "b"])), "must hold numbers, got dtype <U1"),
    (zipped({"inputs.npy": npy(HUGE)}), "must hold the 8,796,093,022,208 bytes"),
    (zipped({"inputs.npy": npy(HUGE.replace("1099511627776", "-1"))}), "must h"),
    (zipped({"inputs.npy": npy("__import__('os').system('touch /tmp/lisse-npz')")}), "plain .npy header"),
    (zipped({"inputs.npy": npy("{'descr': '<f8'}")}), "plain .npy header"),
    (zipped({"inputs.npy": npy("[" * 100)}), "plain .npy header"),
    (zipped({"inputs.npy": b"garbage"}), "plain .npy header"),
    (zipped({"inputs.npy": npy(HUGE.replace("1099511627776", "1"), bytes(9))}), "must hold 8 bytes, got more"),
    (zipped({"inputs.npy": bytes(100 << 20)}), "must not unpack to more than 67,108,864 bytes"),
    (zipped({"readme.txt": b"hi"}), "must say which array"),
    (saved(a=np.zeros(2), b=np.zeros(2)), r"must say which array is the test input, got a \[2\], b \[2\]"),
    (saved(inputs=np.zeros((0, 3))), r"at least one sample, got inputs of shape \[0, 3\]"),
    (saved(inputs=np.float64(3.0)), r"at least one sample, got inputs of shape \[\]"),
    (saved(inputs=np.array([[1.0, np.nan]])), "finite inputs, got NaN"),
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
