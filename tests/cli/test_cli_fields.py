"""Fields of a dataclass as options: every type there and back, shared names, clashing names."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from lisse import Instrument, Part
from lisse.cli.fields import instruments_of, metavar_of, options, parsed


@dataclass(frozen=True)
class First(Instrument):
    samples: int = field(default=500, metadata={"help": "How many."})
    p: tuple[float, ...] = (1.0, math.inf)
    statistic: Literal["mean", "median"] = "median"
    max_iter: int | None = None
    fast: bool = False
    pair: tuple[int, str] = (1, "a")
    mixed: float | Literal["auto"] = "auto"
    seed: int = 3
    call: Any = print

    def part(self, run: Any) -> Part:
        return self.part_of(())


@dataclass(frozen=True)
class Second(Instrument):
    samples: int = 9
    fast: str = "x"
    needed: int = field(kw_only=True)

    def part(self, run: Any) -> Part:
        return self.part_of(())


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        (int, "12", 12),
        (int, "-3", -3),
        (float, "1e-3", 0.001),
        (float, "inf", math.inf),
        (str, "a,b", "a,b"),
        (bool, "yes", True),
        (bool, "False", False),
        (Path, "a/b", Path("a/b")),
        (Literal["mean", "median"], "mean", "mean"),
        (Literal[1, 2], "2", 2),
        (int | None, "none", None),
        (int | None, "4", 4),
        (str | None, "none", None),
        (str | None, "x", "x"),
        (str | int, "4", 4),
        (float | Literal["auto"], "auto", "auto"),
        (float | Literal["auto"], "0.5", 0.5),
        (tuple[int, ...], "1,2,3", (1, 2, 3)),
        (tuple[int, ...], "(0, 1)", (0, 1)),
        (tuple[int, ...], "7", (7,)),
        (tuple[int, ...], "", ()),
        (tuple[float, ...], "1,inf", (1.0, math.inf)),
        (tuple[int, str], "2,b", (2, "b")),
        (tuple[str, ...] | None, "none", None),
        (tuple[str, ...] | None, "fog,snow", ("fog", "snow")),
        (list[int], "1,2", (1, 2)),
    ],
)
def test_a_text_becomes_a_value(annotation: Any, text: str, value: Any) -> None:
    assert parsed(annotation, text) == value
    assert type(parsed(annotation, text)) is type(value)


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, "1.5"), (int, "x"), (float, "x"), (bool, "2"), (Literal["a"], "b"), (int | None, "nothing"),
        (tuple[int, ...], "1,x"), (tuple[int, str], "1"), (tuple[int, str], "1,a,b"), (dict, "x"),
    ],
)  # fmt: skip
def test_a_text_that_is_no_value_is_refused(annotation: Any, text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):  # only the type matters: FieldType says the rest
        parsed(annotation, text)


@given(st.lists(st.integers() | st.floats(allow_nan=False)))
def test_any_tuple_of_numbers_comes_back(values: list[float]) -> None:
    assert parsed(tuple[int | float, ...], ",".join(map(repr, values))) == tuple(values)


def test_types_are_metavar_of() -> None:
    kinds = [int, float, Literal["a", 2], int | None, tuple[int, ...], tuple[int, str], bool, dict, Any]
    words = ["INTEGER", "NUMBER", "a|2", "INTEGER|none", "INTEGER,…", "INTEGER,TEXT", "yes|no", "", ""]
    assert [metavar_of(kind) for kind in kinds] == words


def run(kinds: list[type], *words: str) -> Any:
    made: list[Any] = []

    def callback(**values: Any) -> None:
        ctx = click.get_current_context()
        source = click.core.ParameterSource.COMMANDLINE
        given = {key: value for key, value in values.items() if ctx.get_parameter_source(key) is source}
        made.extend(instruments_of(kinds, given))

    command = click.Command("x", params=list(options(kinds, {"seed"}, left_out={"call"})), callback=callback)
    result = CliRunner().invoke(command, list(words))
    return made if result.exit_code == 0 and made else result


def test_without_options_the_defaults_of_the_dataclass_count() -> None:
    assert run([First]) == [First()]


def test_every_option_sets_its_field() -> None:
    words = ["--samples", "7", "--p", "2", "--statistic", "mean", "--max-iter", "4", "--fast", "--pair", "2,b"]
    words += ["--mixed", "0.5", "--first-seed", "8"]
    made = run([First], *words)
    assert made == [First(7, (2.0,), "mean", 4, True, (2, "b"), 0.5, 8)]
    assert run([First], "--no-fast", "--max-iter", "none") == [First()]


def test_a_shared_field_is_one_option_and_a_clash_two() -> None:
    made = run([First, Second], "--samples", "7", "--first-fast", "--second-fast", "y", "--needed", "1")
    assert made == [First(samples=7, fast=True), Second(samples=7, fast="y", needed=1)]


def test_a_required_field_is_required_and_a_wrong_value_says_what_is_right() -> None:
    assert "--needed" in run([Second]).output
    result = run([First], "--statistic", "mode")
    assert result.exit_code == 2
    assert "'mode' is not mean|median" in result.output


def test_help_has_text_type_and_default() -> None:
    shown = run([First], "--help").output
    assert "--samples INTEGER" in shown
    assert "How many." in shown
    assert "[default: 500]" in shown
    assert "[default: 1,inf]" in shown
    assert "[default: none]" in shown
    assert "--fast / --no-fast" in shown
    assert "--call" not in shown
