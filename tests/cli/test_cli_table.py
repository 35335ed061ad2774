"""Tables: the same cells in a pipe and in a terminal; names cannot do anything but be read."""

from __future__ import annotations

import io
import math
import re
import sys

import pytest

from lisse.cli import table
from lisse.cli.table import MOST_COLUMNS, print_profile, print_table, printable, value_text
from lisse.profile import Part, Profile, Quantity, Row, Value

Q = Quantity("q", "label", "What it says.")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_columns_are_aligned_also_with_wide_letters(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["layer", "value"], [["a", "1.5"], ["層", "22.25"]])
    assert capsys.readouterr().out == "layer  value\na        1.5\n層     22.25\n"


def test_a_terminal_gets_several_tables_where_one_is_too_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "40")
    print_table(
        ["layer", *(f"quantity{place} p=1" for place in range(4))],
        [["[red]x[/b]", *(f"{place}.5" for place in range(4))]],
    )
    text = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())
    assert text.count("layer") == 2
    assert text.count("[red]x[/b]") == 2
    assert [text.count(f"{place}.5") for place in range(4)] == [1, 1, 1, 1]
    assert max(map(len, text.splitlines())) <= 40


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (Row("q", 3.14159, "exact", 1), "3.142"),
        (Row("q", 3.14159, "estimate", 1, low=3.0, high=3.5), "3.142 [3, 3.5]"),
        (Row("q", 2, "lower", 1), "≥ 2"),
        (Row("q", 1e6, "upper", 1), "≤ 1e+06"),
        (Row("q", math.nan, "heuristic", 1), "~ nan"),
        (Row("q", -math.inf, "exact", 1), "-inf"),
    ],
)
def test_a_number_shows_its_kind_and_interval(row: Row, text: str) -> None:
    assert value_text(row) == text


def test_a_name_cannot_move_the_cursor() -> None:
    assert printable("a\x1b[2Jb\nc\u202ed") == "a\\x1b[2Jb\\nc\\u202ed"
    assert printable("größe 層 🙂") == "größe 層 🙂"


def test_a_profile_is_layers_then_the_rest_then_meanings_and_notes(capsys: pytest.CaptureFixture[str]) -> None:
    rows = (
        Row("q", 2.0, "lower", 1, layer="b", depth=1.0, at={"p": 1}),
        Row("q", 1.0, "exact", 1, layer="a", depth=0.0, at={"p": 2}),
        Row("q", 9.0, "estimate", 1, low=8.0, high=10.0),
    )
    print_profile(Profile((Part("i", rows, (Q, Quantity("unused", "x", "Not said.")), ("One\nnote.",)),)))
    assert capsys.readouterr().out.splitlines() == [
        "layer  q p=1  q p=2",
        "a                 1",
        "b        ≥ 2",
        "q: 9 [8, 10]",
        "",
        "q: What it says.",
        "≥ from below: the true value is at least this; [low, high] is an interval over samples.",
        "Note: One\\nnote.",
    ]


def test_headlines_stand_above_with_interval_and_samples_and_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    meaning = Quantity("r", "R", "How stable.", headline="R_f")
    columns = [Row("q", 1.0, "exact", 1, "a", 0.0, at={"p": p}) for p in range(MOST_COLUMNS + 1)]
    row = Row("r", 1.5, "estimate", 1200, "a", 0.0, 1.25, 1.75, at={"cut": 3})
    profile = Profile((Part("i", (*columns, row), (Q, meaning), ("Twice.",)), Part("j", notes=("Twice.",))))
    print_profile(profile, {"R_f": row})
    out = capsys.readouterr().out
    assert out.splitlines()[:3] == [
        "headline  quantity             value      n  at",
        "R_f       r         1.5 [1.25, 1.75]  1,200  a cut=3",
        "",
    ]
    assert "r: How stable." in out, "also where the table has no room for it"
    assert out.count("Twice.") == 1
    print_profile(profile, {})
    assert "headline" not in capsys.readouterr().out


def test_an_empty_profile_prints_its_notes(capsys: pytest.CaptureFixture[str]) -> None:
    print_profile(Profile((Part("i", notes=("Not measured: no reason.",)),)))
    assert capsys.readouterr().out == "Note: Not measured: no reason.\n"


def test_every_kind_has_a_sign() -> None:
    assert set(table.SIGNS) == {"exact", "estimate", "lower", "upper", "heuristic"}


def test_many_columns_show_the_first_sets_of_coordinates_and_name_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = [{"p": p, "dim": dim, "cloud": 100} for p in (1, 2) for dim in (0, 1)]
    rows = [
        Row(name, value, "exact", 1, layer=layer, depth=depth, at=at)
        for at in places
        for value, name in enumerate(("q", "r", "s"))
        for depth, layer in enumerate("ab")
    ]
    rest = [Row(name, 5.0, "exact", 1, at=at) for at in [*places, {"p": 3}] for name in ("t", "u")]
    named = tuple(Quantity(name, name, "What it says.") for name in "qrstu")
    print_profile(Profile((Part("i", (*rows, *rest), named),)))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("  ") == ["layer", *(f"{name} p=1 dim={dim}" for dim in (0, 1) for name in "qrs")]
    assert len(lines[1].split()) == 7
    assert lines[3] == "In every column: cloud=100."
    assert lines[4] == "In the profile, not shown: the same for p=2 dim=0; p=2 dim=1."
    assert lines[6].split() == ["t", "u"]
    assert lines[7].split() == ["p=1", "dim=0", "cloud=100", "5", "5"]
    assert lines[11].split() == ["p=3", "5", "5"]


def test_one_set_of_many_columns_shows_the_first_and_names_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    rows = tuple(Row(f"q{k}", k, "exact", 1, layer="a", depth=0.0) for k in range(12))
    named = tuple(Quantity(row.quantity, "label", "What it says.") for row in rows)
    print_profile(Profile((Part("i", rows, named),)))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["layer", *(f"q{k}" for k in range(8))]
    assert lines[2] == "In the profile, not shown: q8, q9, q10, q11. `--json` prints all."
    assert lines[4:] == [f"q{k}: What it says." for k in range(8)]


def test_quantities_that_are_nowhere_shown_are_named_by_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    places: list[tuple[str, dict[str, Value]]] = [(f"q{k}", {"of": "a"}) for k in range(8)]
    places += [("q0", {"of": "b"}), ("r", {"of": "b"}), ("r", {}), ("s", {})]
    rows = tuple(Row(name, 1.0, "exact", 1, layer="x", depth=0.0, at=at) for name, at in places)
    named = tuple(Quantity(name, "label", "What it says.") for name in dict.fromkeys(name for name, _ in places))
    print_profile(Profile((Part("i", rows, named),)))
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "In the profile, not shown: the same for of=b; and r, s. `--json` prints all."


def test_layers_of_which_other_things_are_measured_are_a_table_of_their_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    attention = [Row(name, 1.0, "exact", 1, layer=f"{k}.attn", depth=k / 2 + 0.1) for k in (0, 1) for name in "abcdefg"]
    blocks = [Row(name, 2.0, "exact", 1, layer=f"{k}", depth=k / 2 + 0.2) for k in (0, 1) for name in "tu"]
    stem = Row("t", 3.0, "exact", 1, layer="stem", depth=0.0)
    named = tuple(Quantity(name, "label", "What it says.") for name in "abcdefgtu")
    print_profile(Profile((Part("i", (*attention, stem, *blocks), named),)))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[:3] == [["layer", *"abcdefg"], ["0.attn", *"1111111"], ["1.attn", *"1111111"]]
    assert lines[3:8] == [[], ["layer", "t", "u"], ["stem", "3"], ["0", "2", "2"], ["1", "2", "2"]]


def test_many_numbers_of_no_layer_are_tables_of_what_goes_together(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Row("clean", 0.9, "exact", 1)]
    rows += [
        Row("attacked", eps, "exact", 1, at={"attack": name, "norm": "l2", "eps": eps})
        for name in ("fgsm", "pgd")
        for eps in (0.1, 0.2)
        if (name, eps) != ("pgd", 0.1)
    ]
    rows += [Row("noisy", sigma, "exact", 1, at={"sigma": sigma}) for sigma in (0.3, 0.5)]
    rows += [Row(name, 7.0, "exact", 1, at={"corruption": c}) for name in ("mean", "drop") for c in ("fog", "snow")]
    named = tuple(Quantity(name, name, "What it says.") for name in dict.fromkeys(row.quantity for row in rows))
    print_profile(Profile((Part("i", tuple(rows), named),)))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:14] == [
        "clean: 0.9",
        "",
        "attacked             eps=0.1  eps=0.2",
        "attack=fgsm norm=l2      0.1      0.2",
        "attack=pgd norm=l2                0.2",
        "",
        "noisy  sigma=0.3  sigma=0.5",
        "             0.3        0.5",
        "",
        "                 mean  drop",
        "corruption=fog      7     7",
        "corruption=snow     7     7",
        "",
        "clean: What it says.",
    ]
