"""The atlas: rows keyed by what their numbers depend on, a file that keeps them, a page that escapes everything."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re

import pytest

from lisse.profile import Headline, Part, Profile, Quantity, Row
from lisse.reporting.atlas import AtlasRow, atlas, atlas_row, atlas_rows, load_atlas, outcomes, save_atlas
from lisse.reporting.atlas.worth import worths

OPTIONS = {"silence": {"samples": 3, "most": math.inf}}
UNIT = {"model": "zoo:fc2", "data": "digits", "family": "f", "seed": 0, "instruments": OPTIONS}
CALM = Quantity("calm", "calm", "How calm it is.", better="higher", scale="log", headline=Headline("calmness"))


def measured(
    name="net", value=2.0, *, weights="w", samples=9, version="0.1.0", code="a1", options=3, unit=None
) -> Profile:
    part = Part("silence", (Row("calm", value, "estimate", 5, low=value / 2, high=value * 2),), (CALM,),
                options={"samples": options})  # fmt: skip
    provenance = {
        "model": {"name": name, "spec": "zoo:fc2", "weights": weights, "parameters": 1234},
        "data": {"name": "digits", "fingerprint": "d", "samples": samples},
        "seed": 0,
        "versions": {"lisse": version, "code": code, "torch": "2"},
        "date": "2026-01-02T03:04:05+00:00",
        "score": {"error": 0.25, "low": 0.2, "high": 0.3, "n": samples},
        **({"sweep": {"unit": unit, "family": "f"}} if unit else {}),
    }
    return Profile((part,), provenance)


def test_a_row_holds_the_headlines_of_any_instrument():
    row = atlas_row(measured(unit=UNIT))
    assert row.numbers == {"calmness": (2.0, 1.0, 4.0, 5, "estimate")}
    assert row.error == (0.25, 0.2, 0.3, 9)
    assert (row.family, row.data, row.date, row.parameters, row.unit) == ("f", "digits", "2026-01-02", 1234, UNIT)


def test_a_row_is_keyed_by_weights_data_options_and_version():
    first = atlas_row(measured())
    assert atlas_row(measured(name="other", value=3.0)).key == first.key
    assert atlas_row(measured(weights="v")).setting == first.setting
    keys = [atlas_row(measured(**change)).key
            for change in ({"weights": "v"}, {"samples": 8}, {"options": 4}, {"version": "0.2"},
                           {"code": "b2"})]  # fmt: skip
    assert len({first.key, *keys}) == 6
    settings = {atlas_row(measured(**change)).setting
                for change in ({"samples": 8}, {"options": 4}, {"version": "0.2"}, {"code": "b2"})}  # fmt: skip
    assert len(settings | {first.setting}) == 5
    assert [atlas_row(measured(code=code)).version for code in ("b2", None)] == [
        "0.1.0 (b2), torch 2",
        "0.1.0, torch 2",
    ]


def test_rows_are_written_and_read_again(tmp_path):
    rows = [
        atlas_row(measured(unit=UNIT)),
        atlas_row(measured("inf", math.inf, weights="x")),
        AtlasRow("k", "n", "f", "d", reason="it broke"),
    ]
    rows[1] = dataclasses.replace(rows[1], numbers={"calmness": (math.inf, None, None, 5, "lower")})
    path = save_atlas(rows, {"calmness": {"says": "s"}}, tmp_path / "a.json")
    again, words = load_atlas(path)
    assert again == rows
    json.loads(path.read_text(), parse_constant=pytest.fail)  # what others read too: no Infinity
    assert words == {"calmness": {"says": "s"}}
    assert len(path.read_text().splitlines()) == len(rows) + 2  # a line each: changes are readable
    for text in (
        "{}",
        "[]",
        "x",
        '{"format": "lisse atlas", "version": 99}',
        '{"format":"lisse atlas","version":1,"rows":[3]}',
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"path must be an atlas that lisse wrote, got .*a\.json"):
            load_atlas(path)


def test_folders_are_searched_and_what_is_damaged_is_said(tmp_path):
    measured().save(tmp_path / "deep" / "er" / "a.profile")
    measured(weights="v").save(tmp_path / "b.profile")
    (tmp_path / "c.profile").write_bytes(b"no")
    (tmp_path / "failures").mkdir()
    (tmp_path / "failures" / "0123.json").write_text(json.dumps({"name": "bad", "unit": UNIT, "reason": "it broke"}))
    rows, words, complaints = atlas_rows([tmp_path])
    assert sorted((row.name, row.reason) for row in rows) == [("bad", "it broke"), ("net", ""), ("net", "")]
    assert words["calmness"]["scale"] == "log"
    assert len(complaints) == 1
    assert "c.profile" in complaints[0]


def test_the_page_has_every_row_and_escapes_what_others_wrote(tmp_path):
    evil = "<script>alert(1)</script>\"'&"
    measured(evil).save(tmp_path / "p" / "a.profile")
    measured("plain", weights="v", version="0.2").save(tmp_path / "p" / "b.profile")
    page = atlas(tmp_path / "p", tmp_path / "atlas.html", title=evil).read_text()
    assert "<script>alert" not in page
    assert page.count("<tr data-index=") == 2
    assert "&lt;script&gt;alert(1)" in page
    assert "measured by different versions" in page
    links = [line.split('"')[0] for line in page.split('<a href="')[1:]]
    assert len(links) == 2
    assert all((tmp_path / link).is_file() for link in links)
    before = [(tmp_path / link).stat().st_mtime_ns for link in links]
    atlas(tmp_path / "p", tmp_path / "atlas.html")
    assert before == [(tmp_path / link).stat().st_mtime_ns for link in links]
    assert '<a href="' not in atlas(tmp_path / "p", tmp_path / "bare.html", reports=False).read_text()


def test_nothing_to_show_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="sources must hold profiles, got none"):
        atlas(tmp_path, tmp_path / "a.html")


def family(count: int, setting="s") -> list[AtlasRow]:
    """Networks whose error falls with the logarithm of calmness; two seeds of each recipe."""
    rows = []
    for i in range(count):
        recipe = i // 2
        numbers = {"calmness": 10.0**recipe, "accuracy": 0.5 + 0.01 * recipe}
        unit = {"model": "m", "seed": i, "instruments": {}, "training": {"seed": i % 2, "recipe": str(recipe)}}
        rows.append(
            AtlasRow(
                str(i), "n", "f", "d", setting=setting, error=(0.5 - 0.01 * recipe, 0, 1, 9), unit=unit,
                numbers={label: (value, None, None, 9, "exact") for label, value in numbers.items()},
            )
        )  # fmt: skip
    return rows


def test_what_a_number_is_worth_is_asked_within_a_family_and_a_setting():
    words = {"calmness": {"scale": "log"}}
    (worth,) = worths(family(20), words)  # accuracy is the error itself
    assert (worth.family, worth.label, worth.n, worth.power.groups) == ("f", "calmness", 20, 10)
    assert float(worth.power.skill.value) == pytest.approx(1)
    assert float(worths(family(20), {})[0].power.skill.value) < 0.9  # not by its logarithm
    assert worths(family(19), words) == []
    assert (
        worths([dataclasses.replace(row, weights="w" + row.key[-1]) for row in family(30)], words) == []
    )  # 10 networks
    assert worths([*family(15, "s"), *family(15, "t")], words) == []
    failed = [dataclasses.replace(row, reason="it broke") for row in family(5)]
    assert worths([*family(20), *failed], words)[0].n == 20
    other = worths(family(20), words, lambda row: 3.0 if row.error else None)
    assert math.isnan(float(other[0].power.skill.value))
    shaken = [dataclasses.replace(row, error=(row.error[0] ** 2, 0, 1, 9)) for row in family(20)]
    assert worths(shaken, words) == worths(shaken[::-1], words)  # intervals too: rows come in any order


def test_rows_of_one_network_are_one_network(tmp_path):
    for name, weights, seed in (("a", "v", 0), ("a", "v", 1), ("b", "w", 0)):
        profile = measured(name, weights=weights)
        profile = dataclasses.replace(profile, provenance=profile.provenance | {"seed": seed})
        profile.save(tmp_path / "p" / f"{name}{seed}.profile")
    page = atlas(tmp_path / "p", tmp_path / "a.html", reports=False).read_text()
    assert "3 rows of 2 networks in 2 families." in page
    (tmp_path / "p" / "a1.profile").unlink()
    assert ">2 rows in 2 families." in atlas(tmp_path / "p", tmp_path / "a.html", reports=False).read_text()


def test_families_that_share_a_colour_look_apart(tmp_path):
    rows = [AtlasRow(f"k{i}", "n", f"f{i}", "d", error=(0.5, 0, 1, 9)) for i in range(24)]
    page = atlas(save_atlas(rows, {}, tmp_path / "a.json"), tmp_path / "a.html").read_text()
    styles = dict(re.findall(r"--(m\d+): (#\w+);", page.partition("@media")[0]))
    chips = re.findall(r'class="chip (m\d+) (\w+)"', page)
    assert len({(styles[colour], turn) for colour, turn in chips}) == 24


def table(tmp_path, **row):
    """An atlas of one row that anybody may have written."""
    record = {"key": "abc", "name": "n", "family": "f", "data": "d", **row}
    path = tmp_path / "a.json"
    head = {"format": "lisse atlas", "version": 1, "words": {}, "instruments": []}
    path.write_text(json.dumps({**head, "rows": [record]}))
    return path


def test_a_strangers_table_opens_no_file_and_writes_nowhere_else(tmp_path):
    measured().save(tmp_path / "mine.profile")
    path = table(tmp_path, file=str(tmp_path / "mine.profile"))
    ((row,), _) = load_atlas(path)
    assert row.file == ""
    for key in ("../escaped", "a/b", "", "a.b", "x" * 65, 3, None):
        with pytest.raises(ValueError, match="AtlasRow: key must be"):
            load_atlas(table(tmp_path, key=key))
    with pytest.raises(ValueError, match="key must be letters and digits"):
        dataclasses.replace(row, key="../escaped")


@pytest.mark.parametrize(
    "change",
    [
        {"name": 3},
        {"name": {"a": 1}},
        {"family": ["f"]},
        {"data": None},
        {"seed": "0"},
        {"samples": 1.5},
        {"parameters": "many"},
        {"parameters": 10**400},
        {"unit": []},
        {"spec": 5},
        {"date": 2026},
        {"reason": {}},
        {"error": [1, 2]},
        {"error": ["0.1", 0, 1, 5]},
        {"numbers": {"a": 3}},
        {"numbers": {"a": [1, 2, 3, "5", "exact"]}},
        {"numbers": {"a": [[], 2, 3, 5, "exact"]}},
        {"numbers": {"a": [10**400, None, None, 5, "exact"]}},
        {"numbers": []},
    ],
)
def test_a_row_of_another_form_is_refused(tmp_path, change):
    path = table(tmp_path, **change)
    with pytest.raises(ValueError, match=r"load_atlas: path must be an atlas that lisse wrote, got .*a\.json"):
        load_atlas(path)


@pytest.mark.parametrize(
    "provenance",
    [
        {"seed": [1]},
        {"seed": "x"},
        {"data": {"samples": "many"}},
        {"model": {"parameters": "many"}},
        {"model": {"spec": {}}},
        {"sweep": {"unit": [1]}},
        {"sweep": {"unit": {"training": 3}}},
        {"score": {"error": 0.1, "low": 0, "high": 1, "n": math.nan}},
    ],
)
def test_a_profile_with_a_strange_provenance_is_left_out(tmp_path, provenance):
    profile = measured()
    dataclasses.replace(profile, provenance=profile.provenance | provenance).save(tmp_path / "a.profile")
    measured(weights="v").save(tmp_path / "b.profile")
    rows, _, complaints = atlas_rows([tmp_path])
    assert len(rows) == 1
    assert "a.profile" in complaints[0]
    page = atlas(tmp_path, tmp_path / "atlas.html").read_text()
    assert page.count("<tr data-index=") == 1


def test_what_is_no_file_or_too_deep_or_too_large_is_left_out(tmp_path):
    measured().save(tmp_path / "b.profile")
    folder = tmp_path / "failures"
    folder.mkdir()
    os.mkfifo(folder / "a.json")
    (folder / "b.json").write_text("[" * 100_000)
    (folder / "c.json").symlink_to("/dev/zero")
    (folder / "d.json").write_text(json.dumps({"name": "n", "unit": 3, "reason": "r"}))
    (folder / "e.json").write_bytes(b"\xff")
    with (folder / "f.json").open("wb") as file:
        file.truncate(1 << 40)
    (folder / "..g.json").write_text(json.dumps({"name": "bad", "unit": UNIT, "reason": "it broke"}))
    os.mkfifo(tmp_path / "f.profile")
    (tmp_path / "l.profile").symlink_to(tmp_path / "gone")
    rows, _, complaints = atlas_rows([tmp_path])
    assert [row.name for row in rows] == ["net"]
    assert len(complaints) == 9


def test_headlines_that_declare_themselves_outcomes_are_predicted_and_predict_nothing(tmp_path):
    words = {
        "calmness": {"scale": "log", "outcome": ""},
        "accuracy": {"outcome": "Test error"},
        "mCE": {"outcome": "What <noise> adds", "over": "error"},
    }
    rows = family(20)
    for index, row in enumerate(rows):
        more = {"mCE": (row.error[0] + 0.1 * (index // 2) ** 2, None, None, 9, "exact")}
        rows[index] = dataclasses.replace(row, numbers={**row.numbers, **more})
    numbers = outcomes(words)
    assert list(numbers) == ["Test error", "What <noise> adds"]
    assert [numbers["What <noise> adds"](row) for row in rows[:5:2]] == pytest.approx([0, 0.1, 0.4])
    assert numbers["What <noise> adds"](AtlasRow("k", "n", "f", "d")) is None
    results = {title: worths(rows, words, number) for title, number in numbers.items()}
    assert [[worth.label for worth in result] for result in results.values()] == [["calmness"], ["calmness"]]
    skills = [float(result[0].power.skill.value) for result in results.values()]
    assert skills[0] == pytest.approx(1)
    assert skills[1] < 0.95
    page = atlas(save_atlas(rows, words, tmp_path / "a.json"), tmp_path / "a.html").read_text()
    assert "<th>Test error</th><th>What &lt;noise&gt; adds</th>" in page
    assert '<td class="sure" title="20 networks, 10 recipes">1.00 [1.00, 1.00]<small>ρ -1.00' in page
    assert f"{skills[1]:.2f} [" in page
