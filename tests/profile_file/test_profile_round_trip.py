"""What goes into a file comes out of it, and what cannot is refused before anything is written."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from profile_samples import NORM, PROFILES, WITH_FILES, example, same

from lisse import profile_file
from lisse.profile import Part, Profile, Row
from lisse.profile_file.document import MAX_NESTING


def test_an_example_comes_back_as_it_was(tmp_path: Path) -> None:
    saved = profile_file.save(example(), tmp_path / "new folder" / "x.profile")
    assert saved == tmp_path / "new folder" / "x.profile"
    assert same(profile_file.load(saved), example())
    assert same(Profile.load(str(saved)), example())
    assert [item.name for item in saved.parent.iterdir()] == ["x.profile"]


def test_a_quantity_that_still_has_a_sentence_about_its_peak_is_read(tmp_path: Path) -> None:
    saved = profile_file.save(example(), tmp_path / "x.profile")
    with zipfile.ZipFile(saved) as packed, zipfile.ZipFile(tmp_path / "old.profile", "w") as old:
        for name in packed.namelist():
            content = packed.read(name)
            if name == "profile.json":
                document = json.loads(content)
                document["parts"][0]["quantities"][0]["peak"] = "The largest tear is at {layer}."
                content = json.dumps(document).encode()
            old.writestr(name, content)
    assert same(profile_file.load(tmp_path / "old.profile"), example())


@WITH_FILES
@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
@given(profile=PROFILES)
def test_any_profile_comes_back_and_equal_profiles_give_equal_bytes(tmp_path: Path, profile: Profile) -> None:
    path = profile_file.save(profile, tmp_path / "x.profile")
    again = profile_file.load(path)
    assert same(again, profile)
    other = profile_file.save(again, tmp_path / "y.profile")
    assert path.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    "array",
    [
        np.array(1.0),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.arange(10)[::-2],
        np.arange(4, dtype=">i8"),
        np.array(["a", "größe"]),
        np.array([b"x", b"yz"]),
        np.array(["2020-01-01"], dtype="M8[D]"),
        np.array([(1, 2.0)], dtype=[("a", "i4"), ("ß", "f8")]),
        np.array([np.nan, -np.inf, -0.0]),
        np.array([1 + 2j], dtype="c8"),
        np.float16([1, 2]),
        np.array([True, False]),
        np.zeros((0, 3)),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
def test_arrays_of_any_plain_dtype(tmp_path: Path, array: np.ndarray) -> None:
    loaded = profile_file.load_arrays(profile_file.save_arrays({"a b": array}, tmp_path / "a"))
    assert list(loaded) == ["a b"]
    assert loaded["a b"].dtype == array.dtype
    np.testing.assert_array_equal(loaded["a b"], array)
    loaded["a b"][...] = array  # writable


def test_a_layout_in_memory_does_not_change_the_bytes(tmp_path: Path) -> None:
    array = np.arange(12.0).reshape(3, 4)
    a = profile_file.save_arrays({"x": array}, tmp_path / "a").read_bytes()
    assert a == profile_file.save_arrays({"x": np.asfortranarray(array)}, tmp_path / "b").read_bytes()
    assert a == profile_file.save_arrays({"x": np.repeat(array, 2, axis=1)[:, ::2]}, tmp_path / "c").read_bytes()


def test_parts_and_arrays_share_the_container_but_not_the_format(tmp_path: Path) -> None:
    part = example().parts[0]
    assert same(profile_file.load_part(profile_file.save_part(part, tmp_path / "p")), part)
    with pytest.raises(
        ValueError, match=r"^load: path must be a sound lisse profile, got '.*p': it has no profile\.json"
    ):
        profile_file.load(tmp_path / "p")
    with pytest.raises(ValueError, match=r"load_part: .* no part\.json"):
        profile_file.load_part(profile_file.save(example(), tmp_path / "q"))
    with pytest.raises(ValueError, match=r"load_arrays: .* no arrays\.json"):
        profile_file.load_arrays(tmp_path / "q")


def test_the_json_inside_is_strict_and_as_documented(tmp_path: Path) -> None:
    with zipfile.ZipFile(profile_file.save(example(), tmp_path / "x")) as packed:
        names = packed.namelist()
        document = json.loads(packed.read("profile.json"), parse_constant=lambda name: pytest.fail(name))
        assert {info.date_time for info in packed.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert names == ["profile.json", "arrays/0/diagram%2F0.npy", "arrays/0/...npy", "arrays/0/gr%C3%B6%C3%9Fe.npy"]
    assert list(document) == ["format", "version", "provenance", "parts"]
    assert (document["format"], document["version"]) == ("lisse-profile", 2)
    assert document["provenance"]["loss"] == {"$float": "nan"}
    first = document["parts"][0]
    assert list(first) == ["instrument", "options", "quantities", "charts", "rows", "notes", "arrays"]
    assert first["charts"][0]["panels"][1] == {"form": "diagrams", "arrays": ["diagram/"]}  # defaults are left out
    assert first["rows"][0] == {"quantity": "norm", "value": 1.5, "kind": "exact", "n": 10, "layer": "stem", "depth": 0}
    assert (first["rows"][1]["value"], first["rows"][1]["low"], first["rows"][1]["high"]) == ("nan", "-inf", "inf")


def test_numpy_scalars_and_tuples_become_plain(tmp_path: Path) -> None:
    options = {"p": (1, np.float32(0.5)), "n": np.int64(3), "ok": np.bool_(True), "s": np.str_("x")}
    part = Part("x", (Row("norm", np.float64(1), "exact", np.int64(2)),), (NORM,), options=options)  # type: ignore[arg-type]
    loaded = profile_file.load_part(profile_file.save_part(part, tmp_path / "x"))
    assert loaded.options == {"p": [1, 0.5], "n": 3, "ok": True, "s": "x"}
    assert (type(loaded.rows[0].n), type(loaded.rows[0].value)) == (int, float)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (Part("x", arrays={"a": np.array([object()])}), "array 'a' has dtype object"),
        (Part("x", arrays={"a": np.ma.masked_array([1], [True])}), "'a' is masked"),
        (Part("x", arrays={"\ud800": np.zeros(1)}), "not valid Unicode"),
        (Part("x", arrays={"a" * 70_000: np.zeros(1)}), "70000 characters"),
        (Part("x", arrays={"a": np.zeros(1, [("f" * 50 + str(i), "f4") for i in range(300)])}), "too long to describe"),
        (Part("x", options={"a": object()}), "options of x.a holds a object"),
        (Part("x", options={1: 2}), "the key 1"),  # type: ignore[dict-item]
        (Part("x", options={"$float": "nan"}), r"the key '\$float'"),
        (Part("x", (Row("norm", 1, "exact", 1, layer=3),), (NORM,)), "row's layer must be a string, got 3"),  # type: ignore[arg-type]
        (Part("x", (Row("norm", 1, "exact", 1, at={"p": [1]}),), (NORM,)), "at must be strings and numbers"),  # type: ignore[dict-item]
        (Part("x", options={"n": 10**5000}), "."),
    ],
)
def test_what_cannot_be_stored_is_refused_and_the_old_file_stays(tmp_path: Path, part: Part, message: str) -> None:
    path = profile_file.save_part(example().parts[0], tmp_path / "x")
    before = path.read_bytes()
    with pytest.raises(ValueError, match=rf"^save_part: part must be plain data: .*{message}"):
        profile_file.save_part(part, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_absurd_and_circular_nesting_is_refused_when_saving(tmp_path: Path) -> None:
    nested: Any = "x"
    for _ in range(MAX_NESTING - 1):
        nested = [nested]
    assert profile_file.load(profile_file.save(Profile((), {"a": nested}), tmp_path / "x")).provenance == {"a": nested}
    with pytest.raises(ValueError, match=f"nested deeper than {MAX_NESTING}"):
        profile_file.save(Profile((), {"a": [[nested]]}), tmp_path / "y")
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(ValueError, match="nested deeper"):
        profile_file.save(Profile((), {"a": circle}), tmp_path / "y")


def test_max_bytes_bounds_saving_and_loading_alike(tmp_path: Path) -> None:
    arrays = {"a": np.zeros(1000)}
    with pytest.raises(ValueError, match=r"save_arrays: .* at most max_bytes=8,000 fit"):
        profile_file.save_arrays(arrays, tmp_path / "x", max_bytes=8000)
    assert list(tmp_path.iterdir()) == []
    with zipfile.ZipFile(profile_file.save_arrays(arrays, tmp_path / "x")) as packed:
        total = sum(info.file_size for info in packed.infolist())
    profile_file.save_arrays(arrays, tmp_path / "x", max_bytes=total)
    profile_file.load_arrays(tmp_path / "x", max_bytes=total)
    with pytest.raises(ValueError, match=rf"unpacks to {total:,} bytes, more than max_bytes={total - 1:,}"):
        profile_file.load_arrays(tmp_path / "x", max_bytes=total - 1)
    with pytest.raises(ValueError, match="at most max_bytes"):
        profile_file.save_arrays(arrays, tmp_path / "x", max_bytes=total - 1)
