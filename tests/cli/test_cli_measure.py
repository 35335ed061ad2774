"""lisse measure: the table, the file, JSON, options, and where each part of the output goes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from lisse.cli.table import value_text
from lisse.profile import Profile
from lisse.reporting.page.headline import headline_rows
from lisse.surveying import profile_name

Run = Callable[..., Result]
MODEL = "tiny_models:sound"
LINE = ["measure", "sensitivity", MODEL, "--data", "points.npz"]


def test_prints_a_row_per_layer_and_saves_the_profile(lisse: Run, folder: Path) -> None:
    result = lisse(*LINE, "--samples", 6, "--points", 4, "--out", "new/x.profile")
    assert result.exit_code == 0, result.stderr
    profile = Profile.load(folder / "new" / "x.profile")
    table = profile.table()
    headlines, _, rest = result.stdout.partition("\n\n")
    expected = headline_rows(profile)
    assert expected
    for line, (label, row) in zip(headlines.splitlines()[1:], expected.items(), strict=True):
        assert line.startswith(label)
        assert f" {row.quantity} " in line
        assert value_text(row) in line
        assert f" {row.n} " in line
    lines = rest.splitlines()
    assert lines[0].split()[:3] == ["layer", "norm", "effective_rank"]
    assert [line.split()[0] for line in lines[1 : 1 + len(table)]] == list(table.index)
    assert lines[1 + len(table)] == ""
    for layer, line in zip(table.index, lines[1:], strict=False):
        assert float(line.split()[1]) == pytest.approx(table["norm"][layer], rel=1e-3)
    assert any(line.startswith("norm: How large") for line in lines)
    assert "≥ " in result.stdout
    assert "Saved new/x.profile." in result.stderr
    assert "Saved" not in result.stdout


def test_options_reach_the_instrument_and_the_run(lisse: Run, folder: Path) -> None:
    words = ["--samples", "4", "--points", "0", "--level", "0.9", "--seed", "5", "--batch", "7", "--limit", "20"]
    result = lisse(*LINE, *words, "--statistics", "batch", "--layers", "fir*", "--layers", "second", "--no-cache")
    assert result.exit_code == 0, result.stderr
    profile = Profile.load(folder / profile_name(MODEL, "points", "sensitivity"))
    options = profile["sensitivity"].options
    assert (options["samples"], options["points"], options["level"]) == (4, 0, 0.9)
    assert (profile.provenance["seed"], profile.provenance["batch"]) == (5, 7)
    assert profile.provenance["statistics"] == "batch"
    assert profile.provenance["data"]["samples"] == 20
    assert [layer["name"] for layer in profile.provenance["layers"]] == ["first", "second"]
    assert not (folder / "cache").exists()


def test_quick_has_fewer_samples_and_keeps_the_intervals(lisse: Run, folder: Path) -> None:
    assert lisse(*LINE, "--quick", "--clouds", "2", "--out", "x.profile").exit_code == 0
    profile = Profile.load(folder / "x.profile")
    options = profile["sensitivity"].options
    assert (options["samples"], options["points"], options["clouds"]) == (60, 8, 2)
    assert all(row.low is not None for row in profile.rows if row.quantity == "norm")


def test_the_cache_is_where_it_is_asked_to_be(lisse: Run, folder: Path) -> None:
    assert lisse(*LINE, "--quick").exit_code == 0
    assert any((folder / "cache").rglob("*.part"))
    assert lisse(*LINE, "--quick", "--cache", "other").exit_code == 0
    assert any((folder / "other").rglob("*.part"))
    result = lisse(*LINE, "--cache", "other", "--no-cache")
    assert (result.exit_code, "exclude each other" in result.stderr) == (2, True)


def test_json_is_one_strict_object_per_row_and_nothing_else(lisse: Run, folder: Path) -> None:
    result = lisse(*LINE, "--samples", 6, "--points", 4, "--json", "--out", "x.profile")
    rows = [json.loads(line, parse_constant=lambda name: pytest.fail(name)) for line in result.stdout.splitlines()]
    profile = Profile.load(folder / "x.profile")
    assert [row["value"] for row in rows] == [row.value for row in profile.rows]
    assert [row.get("layer") for row in rows] == [row.layer for row in profile.rows]
    assert {row["instrument"] for row in rows} == {"sensitivity"}


def test_twice_is_the_same_and_says_that_it_replaced(lisse: Run, folder: Path) -> None:
    first = lisse(*LINE, "--quick", "--out", "x.profile")
    second = lisse(*LINE, "--quick", "--out", "x.profile")
    assert first.stdout == second.stdout
    assert "in place of the one before" in second.stderr
    assert "in place of the one before" not in first.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["measure", "sensitivty", MODEL], 2, "no instrument 'sensitivty'. The nearest: sensitivity"),
        (["measure", "sensitivity,sensitivity", MODEL, "--data", "points.npz"], 2, "named once each"),
        (["measure", ",", MODEL, "--data", "points.npz"], 2, "named once each"),
        (["measure", "--data", "points.npz", "sensitivity", MODEL], 2, "--data"),
        (["measure", "sensitivity", MODEL], 2, "Missing option '--data'"),
        ([*LINE, "--samples", "1"], 2, "Sensitivity: samples must be a whole number of at least 2, got 1."),
        ([*LINE, "--samples", "x"], 2, "'x' is not INTEGER"),
        ([*LINE, "--batch", "0"], 2, "--batch"),
        ([*LINE, "--memory", "much"], 2, "memory must"),
        ([*LINE, "--layers", "third"], 2, "layers must match a layer's name, got 'third'. The nearest are"),
        ([*LINE, "--out", "points.npz/x.profile"], 3, "cannot be written to points.npz/x.profile"),
        ([*LINE, "--limit", "1"], 1, "nothing was measured"),
    ],
)  # fmt: skip
def test_what_is_refused(lisse: Run, words: list[str], code: int, said: str) -> None:
    result = lisse(*words)
    assert result.exit_code == code, result.stderr
    assert said in result.stderr.splitlines()[-1]
    assert result.stderr.splitlines()[-1].startswith("lisse: error: ")


def test_the_help_of_an_instrument_shows_its_own_options_apart(lisse: Run) -> None:
    shown = lisse("measure", "sensitivity", "--help").stdout
    own, shared = shown.split("Options of every measurement:")
    assert "Options of sensitivity:" in own
    assert "--max-iter INTEGER" in own
    assert "--data SPEC" in shared
    assert "quick" not in own
    assert "--quick" in shared


def test_the_help_of_measure_lists_the_instruments(lisse: Run) -> None:
    from lisse.instruments import ALL

    shown = lisse("measure", "--help").stdout
    assert all((f"  {kind.__name__.lower()} " in shown) == (kind.SIDES == 1) for kind in ALL)


@pytest.mark.parametrize(
    ("model", "data", "name"),
    [
        ("resnet20", "digits", "resnet20-digits-a+b.profile"),
        ("a.b:c?d=1/e", "../x y", "a.b-c-d-1-e-x-y-a+b.profile"),
        ("größe", "...", "größe-unnamed-a+b.profile"),
        ("x" * 300, "d", "x" * 80 + "-d-a+b.profile"),
    ],
)
def test_the_name_of_the_file_is_harmless(model: str, data: str, name: str) -> None:
    assert profile_name(model, data, "a+b") == name


def test_works_in_a_pipe(shell: Callable[..., object]) -> None:
    done = shell(f"lisse measure sensitivity {MODEL} --data points.npz --quick 2>/dev/null | head -7")
    lines = done.stdout.splitlines()  # type: ignore[attr-defined]
    first = lines[next(index for index, line in enumerate(lines) if line.startswith("layer ")) + 1]
    assert math.isfinite(float(first.split()[1]))
    assert "\x1b" not in done.stdout  # type: ignore[attr-defined]
