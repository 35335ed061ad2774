"""A damaged or hostile file is a ValueError that names it, at no cost in time or memory."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from profile_samples import example, packed, plain, with_json

from lisse import profile_file
from lisse.profile import Part, Profile
from lisse.profile_file import container


def npy(header: str, data: bytes = b"", version: bytes = b"\1\0") -> bytes:
    text = header.encode("latin1")
    return b"\x93NUMPY" + version + struct.pack("<H" if version == b"\1\0" else "<I", len(text)) + text + data


def nested(levels: int) -> list[Any]:
    return [nested(levels - 1)] if levels else []


C = {"name": "c", "title": "t"}
ROW = {"quantity": "q", "value": 1.0, "kind": "exact", "n": 1}
Q = {"name": "q", "label": "q", "says": "q"}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], 'does not say "format"'),
        ({"format": "other"}, 'does not say "format": "lisse-profile"'),
        ({"format": "lisse-profile", "version": 3}, r"made by a newer lisse.*version 3.*up to 2\. Upgrade"),
        ({"format": "lisse-profile", "version": True}, "version must be a positive integer, got True"),
        ({"format": "lisse-profile", "version": 0}, "version must be a positive integer, got 0"),
        ({"format": "lisse-profile"}, "version must be a positive integer, got None"),
        ({"format": "lisse-profile", "version": 1}, "the profile lacks parts, provenance"),
        (plain() | {"more": 1}, r"the profile has the unknown \['more'\]"),
        (plain() | {"parts": {}}, "parts must be a list"),
        (plain() | {"provenance": []}, "provenance must be an object"),
        (plain() | {"provenance": {"$float": "nan"}}, "provenance must be an object"),
        (plain() | {"provenance": {"a": {"$float": "x"}}}, "provenance must be a number"),
        (plain() | {"provenance": {"a": {"$float": 1}}}, "provenance must be"),
        (plain() | {"parts": [3]}, "part 0 must be an object, got 3"),
        (plain(instrument=None), "part 0: instrument must be a string, got None"),
        (plain(rows=[ROW]), "every row's quantity must be described"),
        (plain(rows=[ROW | {"value": None}], quantities=[Q]), "row's value must be a number"),
        (plain(rows=[ROW | {"value": True}], quantities=[Q]), "row's value must be a number"),
        (plain(rows=[ROW | {"value": 10**400}], quantities=[Q]), "row's value must be a number of double precision"),
        (plain(rows=[ROW | {"value": "NaN"}], quantities=[Q]), "row's value must be a number"),
        (plain(rows=[ROW | {"n": 1.5}], quantities=[Q]), "row's n must be an integer"),
        (plain(rows=[ROW | {"n": -1}], quantities=[Q]), "n must not be negative"),
        (plain(rows=[ROW | {"kind": "sure"}], quantities=[Q]), "kind must be one of"),
        (plain(rows=[ROW | {"kind": []}], quantities=[Q]), "kind must be a string"),
        (plain(rows=[ROW | {"low": 1}], quantities=[Q]), "low and high must be given together"),
        (plain(rows=[ROW | {"depth": 2}], quantities=[Q]), r"depth must lie in \[0, 1\]"),
        (plain(rows=[ROW | {"at": {"p": None}}], quantities=[Q]), "at must be strings and numbers"),
        (plain(rows=[ROW | {"extra": 1}], quantities=[Q]), "unknown"),
        (plain(quantities=[Q | {"scale": "cubic"}]), "scale must be one of"),
        (plain(quantities=[{"name": "q"}]), "a quantity lacks label, says"),
        (plain(quantities=[Q | {"lead": 1}]), "a quantity's lead must be true or false, got 1"),
        (plain(quantities=[Q | {"neutral": "1"}]), "a quantity's neutral must be a number, got '1'"),
        (plain(quantities=[Q | {"headline": {"label": "h", "prefers": {"p": 1}}}]), "prefers must be a list, got 1"),
        (plain(charts={}), "charts must be a list"),
        (plain(charts=[{"name": "c"}]), "a chart lacks title"),
        (plain(charts=[C | {"extra": 1}]), "a chart has the unknown"),
        (plain(charts=[C | {"limits": [0, "1"]}]), "a chart's limits must be a number, got '1'"),
        (plain(charts=[C | {"panels": [{"form": "pie"}]}]), "form must be one of"),
        (plain(charts=[C | {"panels": [{"lines": [{"label": "x"}]}]}]), "a chart's panels's lines lacks quantity"),
        (plain(charts=[C | {"panels": [{"lines": [{"quantity": "q", "at": 3}]}]}]), "at must be an object, got 3"),
        (plain(charts=[C | {"panels": [{"lines": [{"quantity": "q", "at": {"p": [1]}}]}]}]), "at must be a string or"),
        (plain(notes=[1]), "a note must be a string"),
        (plain(arrays=["a"]), r"the entry 'arrays/0/a\.npy' is missing"),
        (plain(arrays=["\ud800"]), "not valid Unicode"),
        (b'{"format": "lisse-profile", "format": "lisse-profile"}', "a key appears twice"),
        (b'{"format": NaN}', "NaN is not JSON"),
        (b'{"format": 1e999}', "1e999"),
        (b"[" * 200_000, "RecursionError"),
        (b"\xff\xfe", "utf-8"),
        (b"", "Expecting value"),
        (plain() | {"provenance": {"a": nested(90)}}, "nested deeper than 64"),
    ],
)
def test_json_of_wrong_types(tmp_path: Path, document: Any, message: str) -> None:
    path = with_json(tmp_path / "bad.profile", document)
    with pytest.raises(
        ValueError, match=rf"(?s)^load: path must be a sound lisse profile, got '.*bad\.profile': .*{message}"
    ):
        profile_file.load(path)


F8 = "{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", b"\0" * 8), "not allowed"),
        (npy("{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (1,), }", b"\0" * 8), "not allowed"),
        (npy(F8.replace("(2,)", "(4611686018427387905, 4)"), b"\0" * 16), "not allowed|bytes are no"),
        (npy(F8.replace("(2,)", f"({2**61}, {2**61}, 0)")), "maximum supported|too big|too large"),
        (npy(F8.replace("(2,)", "(10**9,)"), b"\0" * 16), "cannot be read"),
        (npy(F8.replace("(2,)", "(-2,)"), b"\0" * 16), "not allowed"),
        (npy(F8.replace("(2,)", "(True, 2)"), b"\0" * 16), "not allowed"),
        (npy(F8.replace("(2,)", "[2]"), b"\0" * 16), "not allowed"),
        (npy(F8.replace("<f8", "(2,)<f8"), b"\0" * 32), "not allowed"),
        (npy(F8.replace("<f8", "|V0").replace("2,", "1" + "0" * 15 + ",")), "bytes are no"),
        (npy(F8, b"\0" * 15), "15 bytes are no"),
        (npy(F8, b"\0" * 17), "17 bytes are no"),
        (npy(F8.replace("False", "0"), b"\0" * 16), "not allowed"),
        (npy("{'descr': '<f8'}", b""), "cannot be read"),
        (npy("__import__('os').abort()"), "cannot be read"),
        (npy("(" * 4000), "cannot be read"),
        (npy(" " * 20_000), "header takes 20,000 bytes"),
        (npy(F8, b"\0" * 16, b"\4\0"), r"no \.npy"),
        (b"\x80\x04\x95", r"no \.npy"),
        (b"", r"no \.npy"),
        (npy("{'descr': '<U1', 'fortran_order': False, 'shape': (1,), }", b"\xff" * 4), "not Unicode"),
    ],
)
def test_hostile_npy(tmp_path: Path, content: bytes, message: str) -> None:
    path = with_json(tmp_path / "bad.profile", plain(arrays=["a"]), {"arrays/0/a.npy": content})
    with pytest.raises(ValueError, match=rf"(?s)^load: .*bad\.profile': .*({message})"):
        profile_file.load(path)


def test_a_sound_npy_made_by_hand_loads(tmp_path: Path) -> None:
    data = struct.pack("<2d", 1, 2)
    for version in (b"\1\0", b"\2\0", b"\3\0"):
        path = with_json(tmp_path / "x", plain(arrays=["a"]), {"arrays/0/a.npy": npy(F8, data, version)})
        np.testing.assert_array_equal(profile_file.load(path)["i"].arrays["a"], [1, 2])


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "arrays/../../x.npy", "C:evil"])
def test_unsafe_names_and_unexpected_entries(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="unsafe name"):
        profile_file.load(with_json(tmp_path / "x", plain(), {name: b""}))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_unexpected_and_repeated_entries(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unexpected entry 'arrays/0/b\.npy'"):
        profile_file.load(with_json(tmp_path / "x", plain(), {"arrays/0/b.npy": b""}))
    with zipfile.ZipFile(with_json(tmp_path / "x", plain()), "a") as file:
        file.writestr("profile.json", b"{}")
    with pytest.raises(ValueError, match="appears twice"):
        profile_file.load(tmp_path / "x")
    with pytest.raises(ValueError, match="packed in a way"):
        profile_file.load(packed(tmp_path / "x", {"profile.json": json.dumps(plain()).encode()}, zipfile.ZIP_LZMA))


def test_an_encrypted_entry(tmp_path: Path) -> None:
    raw = bytearray(profile_file.save(example(), tmp_path / "x").read_bytes())
    raw[raw.index(b"PK\1\2") + 8] |= 1
    (tmp_path / "x").write_bytes(raw)
    with pytest.raises(ValueError, match="encrypted"):
        profile_file.load(tmp_path / "x")


def test_bombs_cost_neither_time_nor_memory(tmp_path: Path) -> None:
    """Declared and undeclared ones, in a process that may not hold more than a little."""
    zeros = io.BytesIO()
    with zipfile.ZipFile(zeros, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("profile.json", json.dumps(plain(arrays=["a"])))
        with file.open("arrays/0/a.npy", "w", force_zip64=True) as out:
            out.write(npy(F8.replace("(2,)", f"({2**26},)")))
            for _ in range(2**9):
                out.write(bytes(2**20))
    (tmp_path / "declared").write_bytes(zeros.getvalue())
    with pytest.raises(ValueError, match="more than max_bytes=1,000,000"):
        profile_file.load(tmp_path / "declared", max_bytes=10**6)

    lying = bytearray(zeros.getvalue())  # the directory says 144 bytes; the entry unpacks to 512 MB
    at = lying.rindex(b"PK\1\2")
    lying[at + 24 : at + 28] = struct.pack("<I", 144)
    (tmp_path / "lying").write_bytes(lying)
    if not Path("/proc/self/status").exists():
        pytest.skip("needs Linux's record of peak memory")
    script = (
        "import sys; from lisse import profile_file\n"
        "def peak(): return int(next(l for l in open('/proc/self/status') if l.startswith('VmHWM')).split()[1])\n"
        "before = peak()\n"
        "try: profile_file.load(sys.argv[1], max_bytes=10**6)\n"
        "except ValueError as error: print('refused', peak() - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "lying"], capture_output=True, text=True, check=True
    )
    word, kilobytes = done.stdout.split()
    assert word == "refused"
    assert int(kilobytes) < 20_000


def test_a_huge_table_of_contents_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = with_json(tmp_path / "x", plain(), {f"arrays/0/{i}.npy": b"" for i in range(100)})
    monkeypatch.setattr(container, "MAX_DIRECTORY", 2000)
    with pytest.raises(ValueError, match="table of contents takes"):
        profile_file.load(path)
    # The same, declared in the 64-bit record that zipfile prefers.
    raw = with_json(tmp_path / "y", plain()).read_bytes()
    end = raw[-22:]
    size, offset = struct.unpack("<II", end[12:20])
    record = struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, 10**9, offset)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, offset + size, 1)
    (tmp_path / "y").write_bytes(raw[:-22] + record + locator + end)
    with pytest.raises(ValueError, match="table of contents takes 1,000,000,000"):
        profile_file.load(tmp_path / "y")
    (tmp_path / "y").write_bytes(raw[:-22] + record + b"x" + locator + end)
    with pytest.raises(ValueError, match="not where it must be"):
        profile_file.load(tmp_path / "y")


def test_json_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = profile_file.save(example(), tmp_path / "x")
    monkeypatch.setattr(container, "MAX_JSON", 500)
    with pytest.raises(ValueError, match=r"its JSON takes .* more than 500"):
        profile_file.load(path)
    with pytest.raises(ValueError, match=r"its JSON takes .* at most 500 fit"):
        profile_file.save(example(), path)


def test_files_that_cannot_be_opened_are_os_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        profile_file.load(tmp_path / "none")
    with pytest.raises(IsADirectoryError):
        profile_file.load(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ValueError, match="not a zip file, or it is cut off"):
        profile_file.load(tmp_path / "file")
    with pytest.raises(OSError):  # noqa: PT011  # a file where a folder should be: which one depends on the system
        profile_file.save(example(), tmp_path / "file" / "x")


def test_a_small_file_does_not_unpack_to_gigabytes(tmp_path: Path) -> None:
    """The reader takes at most 200 times its size; what is written and would be more is stored as it is."""
    bomb = tmp_path / "bomb.profile"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("profile.json", "[" + "[]," * 8_000_000 + "[]]")
    assert bomb.stat().st_size < 100_000
    with pytest.raises(ValueError, match=r"unpacks to 24,000,0\d\d bytes from .*, which no profile does"):
        profile_file.load(bomb)
    repetitive = Profile((Part("a", notes=("z" * (24 << 20),)),), {})
    assert Profile.load(repetitive.save(tmp_path / "long.profile")).notes == repetitive.notes
