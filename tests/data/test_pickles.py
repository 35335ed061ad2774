"""The reader of CIFAR-10's pickles, which must never run anything."""

from __future__ import annotations

import io
import os
import pickle
import struct

import numpy as np
import pytest
from cifar_batches import python2_batch
from hypothesis import given, settings
from hypothesis import strategies as st

from lisse.data import pickles
from lisse.data.pickles import read_pickle

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


def short(text):
    return b"U" + bytes([len(text)]) + text


NAMES = [
    b"cnumpy.core.multiarray\n_reconstruct\n",
    b"cnumpy._core.numeric\n_frombuffer\n",
    b"cnumpy\nndarray\n",
    b"cnumpy\ndtype\n",
    b"c_codecs\nencode\n",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("key", [b"owned", b"__name__", b"__doc__", b"__defaults__"])
@pytest.mark.parametrize("slots", [True, False])
def test_build_changes_nothing_for_the_process(name, key, slots):
    """The opcode BUILD updates the dict (or sets attributes) of what lies on the stack."""
    functions = [pickles._reconstruct, pickles._frombuffer, pickles._Reader.encode]
    kinds = [pickles._Kind, pickles._Array, pickles._Reader]
    before = [(dict(vars(thing)), getattr(thing, "__name__", "")) for thing in (*functions, *kinds)]
    state = b"}" + short(key) + short(b"owned") + b"s"
    state = b"N" + state + b"\x86" if slots else state
    content = b"\x80\x02}" + short(b"data") + name + state + b"bs."
    with pytest.raises(ValueError, match=r"got a change to a function\. Nothing in it was run"):
        read_pickle(content, "file")
    assert [(dict(vars(thing)), getattr(thing, "__name__", "")) for thing in (*functions, *kinds)] == before


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
