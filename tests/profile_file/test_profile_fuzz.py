"""Truncations, flipped bytes, changed JSON and headers: a sound profile or a ValueError, never anything else."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profile_samples import FREE, TEXT, WITH_FILES, example, packed, plain, same, with_json

from lisse import profile_file


def loads_equal_or_refuses(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    try:
        loaded = profile_file.load(path, max_bytes=2**20)
    except ValueError as error:
        assert str(path) in str(error)  # noqa: PT017  # raising is one of two good ends
    else:
        assert same(loaded, example())


def test_every_truncation(tmp_path: Path) -> None:
    whole = profile_file.save(example(), tmp_path / "x").read_bytes()
    for size in range(len(whole)):
        (tmp_path / "y").write_bytes(whole[:size])
        with pytest.raises(ValueError, match="load: path must be a sound lisse profile"):
            profile_file.load(tmp_path / "y")
        loads_equal_or_refuses(tmp_path / "y", whole[size:])


def test_every_byte_flipped(tmp_path: Path) -> None:
    whole = profile_file.save(example(), tmp_path / "x").read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= (0x01, 0x08, 0x80, 0xFF)[place % 4]
        loads_equal_or_refuses(tmp_path / "y", bytes(damaged))


@settings(WITH_FILES, max_examples=200)
@given(data=st.data())
def test_random_damage(tmp_path: Path, data: st.DataObject) -> None:
    whole = bytearray(profile_file.save(example(), tmp_path / "x").read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        start = data.draw(st.integers(0, len(whole)))
        whole[start : start + data.draw(st.integers(0, 12))] = data.draw(st.binary(max_size=12))
    loads_equal_or_refuses(tmp_path / "y", bytes(whole))


@settings(WITH_FILES, max_examples=200)
@given(data=st.data())
def test_random_changes_of_the_json_load_to_something_sound_or_are_refused(tmp_path: Path, data: st.DataObject) -> None:
    with zipfile.ZipFile(profile_file.save(example(), tmp_path / "x")) as file:
        entries = {name: file.read(name) for name in file.namelist()}
    document = json.loads(entries["profile.json"])
    target: Any = document
    for _ in range(data.draw(st.integers(0, 5))):  # walk to some place and put something else there
        keys = list(target) if isinstance(target, dict) else list(range(len(target)))
        if not keys:
            break
        key = data.draw(st.sampled_from(keys))
        if not isinstance(target[key], (dict, list)) or not target[key] or data.draw(st.booleans()):
            action = data.draw(st.sampled_from(["replace", "delete", "add"]))
            value = data.draw(FREE | st.sampled_from(["nan", "inf", {"$float": "inf"}, 10**400, -1, [], {}]))
            if action == "replace":
                target[key] = value
            elif action == "delete":
                del target[key]
            elif isinstance(target, dict):
                target[data.draw(TEXT)] = value
            else:
                target.insert(0, value)
            break
        target = target[key]
    entries["profile.json"] = json.dumps(document).encode()
    path = packed(tmp_path / "y", entries)
    try:
        loaded = profile_file.load(path)
    except ValueError as error:
        assert str(path) in str(error)  # noqa: PT017  # raising is one of two good ends
    else:
        assert same(profile_file.load(profile_file.save(loaded, tmp_path / "z")), loaded)


@settings(WITH_FILES, max_examples=200)
@given(
    descr=st.text(max_size=12) | st.sampled_from(["<f8,<f8", "O", "(2,3)f4", "S", "V", "U3", "M8[ns]"]),
    shape=st.lists(st.integers(-1, 2**63), max_size=4),
    data=st.binary(max_size=40),
)
def test_random_npy(tmp_path: Path, descr: str, shape: list[int], data: bytes) -> None:
    header = repr({"descr": descr, "fortran_order": False, "shape": tuple(shape)}).encode("latin1", "replace")
    content = b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + data
    path = with_json(tmp_path / "x", plain(arrays=["a"]), {"arrays/0/a.npy": content})
    try:
        array = profile_file.load(path)["i"].arrays["a"]
    except ValueError as error:
        assert str(path) in str(error)  # noqa: PT017  # raising is one of two good ends
    else:
        assert array.nbytes == len(data)
        assert not array.dtype.hasobject
