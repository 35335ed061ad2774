"""Row, Quantity, Part, Profile: what they refuse, and the tables made of them."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lisse.profile import EVERYTHING, LAYERS, Part, Profile, Quantity, Row, last_block, options_of


def depths(count: int) -> list[float]:
    return [place / (count - 1) for place in range(count)] if count > 1 else [1.0] * count


NORM = Quantity("norm", "norm", "How long activations are.", scale="log", better="lower")
RANK = Quantity("rank", "rank", "How many directions they use.")


def profile(*rows: Row, name: str = "net", instrument: str = "sensitivity") -> Profile:
    part = Part(instrument, rows, (NORM, RANK), ("one note",))
    return Profile((part, Part("other", notes=("another note",))), {"model": {"name": name}})


def test_a_row_holds_what_it_was_given() -> None:
    row = Row("norm", 2.0, "estimate", 5, layer="a", depth=0.5, low=1.0, high=3.0, at={"p": 2.0, "dim": 1, "x": "y"})
    assert row.where() == "p=2 dim=1 x=y"
    assert Row("norm", 2.0, "exact", 5).where() == ""
    with pytest.raises(FrozenInstanceError):
        row.value = 3.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "sure"}, r"^Row: kind must be one of exact, estimate, lower, upper, heuristic, got 'sure'\.$"),
        ({"low": 1.0}, r"^Row: low and high must be given together, got low=1\.0, high=None\.$"),
        ({"high": 1.0}, r"^Row: low and high must be given together"),
        ({"low": 2.0, "high": 1.0}, r"^Row: low must not exceed high, got 2\.0 > 1\.0\.$"),
        ({"depth": -0.1}, r"^Row: depth must lie in \[0, 1\], got -0\.1\.$"),
        ({"depth": 1.1}, r"^Row: depth must lie in \[0, 1\], got 1\.1\.$"),
        ({"depth": math.nan}, r"^Row: depth must lie in \[0, 1\], got nan\.$"),
        ({"n": -1}, r"^Row: n must not be negative, got -1\.$"),
    ],
)
def test_a_row_refuses(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"quantity": "norm", "value": 1.0, "kind": "exact", "n": 1}
    with pytest.raises(ValueError, match=message):
        Row(**given | change)


def test_a_quantity_refuses_unknown_scales_and_directions() -> None:
    with pytest.raises(ValueError, match=r"^Quantity: scale must be one of linear, log, got 'cubic'\.$"):
        Quantity("a", "a", "a", scale="cubic")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^Quantity: better must be one of lower, higher, neither, got 'up'\.$"):
        Quantity("a", "a", "a", better="up")  # type: ignore[arg-type]


def test_a_quantity_judges_only_where_it_sees_nothing_but_what_matters() -> None:
    told: dict[str, Any] = {"headline": "R", "better": "lower", "invariant": EVERYTHING}
    assert Quantity("a", "a", "a", **told).judges
    for change in ({"headline": None}, {"better": "neither"}, {"invariant": LAYERS}, {"invariant": ()}):
        assert not Quantity("a", "a", "a", **told | change).judges
    assert Quantity("a", "a", "a", invariant=["shift"]).invariant == ("shift",)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^Quantity: invariant must be one of rotation, .*, temperature, got 'size'"):
        Quantity("a", "a", "a", invariant=("size",))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("roles", "layer"),
    [
        (("input", "stem", "block", "block", "output"), 3),
        (("stem", "block", "block"), 2),
        (("block", "chosen"), 0),
        (("input", "chosen", "chosen", "output"), 2),
        (("input", "output"), None),
        ((), None),
    ],
)
def test_headlines_stand_at_the_last_block(roles: tuple[str, ...], layer: int | None) -> None:
    name = None if layer is None else str(layer)
    assert last_block({str(index): role for index, role in enumerate(roles)}) == name
    layers = [{"name": str(index), "role": role, "shape": [2]} for index, role in enumerate(roles)]
    assert Profile((), {"layers": layers}).last_block == name
    assert Profile(()).last_block is None


def test_a_part_refuses_rows_that_nobody_described() -> None:
    with pytest.raises(ValueError, match=r"^Part: every row's quantity must be described, got 'x'; .*\['norm'\]\.$"):
        Part("i", (Row("x", 1.0, "exact", 1),), (NORM,))


def test_a_part_makes_tuples_of_lists() -> None:
    part = Part("i", [Row("norm", 1.0, "exact", 1)], [NORM], ["note"])  # type: ignore[arg-type]
    assert (type(part.rows), type(part.quantities), type(part.notes)) == (tuple, tuple, tuple)


def test_reading_a_profile() -> None:
    row = Row("norm", 1.0, "exact", 1)
    made = profile(row)
    assert made.rows == (row,)
    assert made.quantities == {"norm": NORM, "rank": RANK}
    assert made.notes == ("one note", "another note")
    assert made.name == "net"
    assert Profile(()).name == "model"
    assert made["other"] is made.parts[1]
    assert list(made) == list(made.parts)
    with pytest.raises(KeyError, match=r"no part 'x'; it has \['sensitivity', 'other'\]"):
        made["x"]


def test_frame_has_one_line_per_number_and_one_column_per_coordinate() -> None:
    rows = (
        Row("norm", 1.0, "exact", 4, layer="a", depth=0.0, at={"p": 2}),
        Row("rank", 2.0, "estimate", 5, layer="b", depth=1.0, low=1.5, high=2.5, at={"dim": "x"}),
    )
    frame = profile(*rows).frame()
    columns = ["instrument", "quantity", "layer", "depth", "value", "low", "high", "kind", "n", "p", "dim"]
    assert list(frame.columns) == columns
    assert list(frame["value"]) == [1.0, 2.0]
    assert list(frame["n"]) == [4, 5]
    assert frame["p"][0] == 2
    assert math.isnan(frame["p"][1])
    assert frame["dim"][1] == "x"
    assert math.isnan(frame["low"][0])
    assert frame["high"][1] == 2.5
    assert set(frame["instrument"]) == {"sensitivity"}
    assert len(Profile(()).frame()) == 0


def test_a_coordinate_does_not_overwrite_a_column() -> None:
    frame = profile(Row("norm", 1.0, "exact", 4, layer="a", at={"layer": "b", "n": 9})).frame()
    assert (frame["layer"][0], frame["n"][0], frame["at.layer"][0], frame["at.n"][0]) == ("a", 4, "b", 9)


def test_table_has_one_line_per_layer_in_order_of_depth() -> None:
    rows = (
        Row("norm", 3.0, "exact", 1, layer="last", depth=1.0),
        Row("norm", 1.0, "exact", 1, layer="first", depth=0.0),
        Row("rank", 7.0, "exact", 1, layer="last", depth=1.0, at={"p": 1}),
        Row("rank", 8.0, "exact", 1, layer="last", depth=1.0, at={"p": 2}),
        Row("norm", 5.0, "exact", 1, layer="somewhere"),
        Row("norm", 9.0, "exact", 1),
    )
    table = profile(*rows).table()
    assert list(table.index) == ["first", "last", "somewhere"]
    assert table.index.name == "layer"
    assert list(table.columns) == ["norm", "rank p=1", "rank p=2"]
    assert list(table["norm"]) == [1.0, 3.0, 5.0]
    assert (table["rank p=1"]["last"], table["rank p=2"]["last"]) == (7.0, 8.0)
    assert math.isnan(table["rank p=1"]["first"])
    assert Profile(()).table().shape == (0, 0)


def test_table_of_numbers_without_layers_has_words_down_and_numbers_across() -> None:
    rows = (
        Row("clean", 0.9, "exact", 1),
        Row("accuracy", 0.7, "exact", 1, at={"corruption": "fog", "severity": 1}),
        Row("accuracy", 0.6, "exact", 1, at={"corruption": "fog", "severity": 2}),
        Row("accuracy", 0.5, "exact", 1, at={"corruption": "snow", "severity": 2}),
        Row("drop", 0.2, "exact", 1, at={"corruption": "snow"}),
    )
    table = wide(*rows).table()
    assert table.index.name == "where"
    assert list(table.index) == ["", "corruption=fog", "corruption=snow"]
    assert list(table.columns) == ["clean", "accuracy severity=1", "accuracy severity=2", "drop"]
    assert list(table["accuracy severity=2"])[1:] == [0.6, 0.5]
    assert table["accuracy severity=1"]["corruption=fog"] == 0.7
    assert (table["clean"][""], table["drop"]["corruption=snow"]) == (0.9, 0.2)
    assert int(table.notna().to_numpy().sum()) == len(rows)
    # One number at a layer, and it is a table of layers; the part that has none still has a table of its own.
    both = Profile((*profile(Row("norm", 0.5, "exact", 1, layer="a")).parts, *wide(*rows).parts))
    assert list(both.table().index) == ["a"]
    assert both["any"].table().equals(table)


def test_table_of_numbers_without_layers_and_words_has_numbers_down() -> None:
    rows = [Row(name, value, "exact", 1, at={"p": p}) for name, p, value in (("a", 1, 3.0), ("a", 2, 4.0), ("b", 2, 5))]
    table = wide(*rows).table()
    assert list(table.index) == ["p=1", "p=2"]
    assert list(table["a"]) == [3.0, 4.0]
    assert math.isnan(table["b"]["p=1"])
    assert table["b"]["p=2"] == 5


def wide(*rows: Row) -> Profile:
    names = dict.fromkeys(row.quantity for row in rows)
    return Profile((Part("any", rows, tuple(Quantity(name, name, "A number.") for name in names)),))


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=6), st.randoms())
def test_the_order_of_rows_does_not_matter_to_the_table(values: list[float], random: Any) -> None:
    rows = [
        Row("norm", value, "exact", 1, layer=f"l{place}", depth=depth)
        for place, (value, depth) in enumerate(zip(values, depths(len(values)), strict=True))
    ]
    random.shuffle(rows)
    assert list(profile(*rows).table()["norm"]) == values


def line(value: float, kind: Any = "estimate", low: float | None = None, high: float | None = None, **at: Any) -> Row:
    return Row("norm", value, kind, 1, layer="a", low=low, high=high, at=at)


@pytest.mark.parametrize(
    ("a", "b", "apart"),
    [
        (line(1.0, low=0.5, high=1.5), line(3.0, low=2.5, high=3.5), True),
        (line(3.0, low=2.5, high=3.5), line(1.0, low=0.5, high=1.5), True),
        (line(1.0, low=0.5, high=2.6), line(3.0, low=2.5, high=3.5), False),
        (line(1.0, low=0.5, high=2.5), line(3.0, low=2.5, high=3.5), False),
        (line(1.0), line(3.0), None),
        (line(1.0, low=0.5, high=1.5), line(3.0), None),
        (line(1.0, "exact"), line(3.0, "exact"), True),
        (line(1.0, "exact"), line(1.0, "exact"), False),
        (line(1.0, "exact"), line(3.0, "lower"), None),
        (line(math.nan, "exact"), line(math.nan, "exact"), None),
    ],
)
def test_compare_says_apart_only_where_it_can(a: Row, b: Row, apart: bool | None) -> None:
    frame = profile(a).compare(profile(b))
    assert list(frame["apart"]) == [apart]
    assert list(frame["a"]) == pytest.approx([a.value], nan_ok=True)
    assert list(frame["difference"]) == pytest.approx([b.value - a.value], nan_ok=True)


def test_compare_matches_by_instrument_quantity_layer_and_coordinates() -> None:
    mine = profile(line(1.0, p=1, q="x"), line(2.0, p=2), Row("norm", 3.0, "exact", 1, layer="b"))
    yours = profile(line(10.0, q="x", p=np.int64(1)), line(20.0, p=3), Row("rank", 30.0, "exact", 1, layer="b"))
    frame = mine.compare(yours)
    assert list(frame.columns) == ["instrument", "quantity", "layer", "where", "a", "b", "difference", "apart"]
    assert frame[["a", "b", "difference"]].to_numpy().tolist() == [[1.0, 10.0, 9.0]]
    assert list(frame["where"]) == ["p=1 q=x"]
    assert len(mine.compare(profile(line(1.0, p=1, q="x"), instrument="another"))) == 0


def network(prefix: str, blocks: int) -> Profile:
    names = {"stem": "stem", **{f"{prefix}{k}": "block" for k in range(blocks)}, "head": "output"}
    rows = tuple(Row("norm", float(k), "exact", 1, layer=name) for k, name in enumerate(names))
    layers = [{"name": name, "role": role} for name, role in names.items()]
    quantity = Quantity("norm", "norm", "How long it is.")
    return Profile((Part("sensitivity", rows, (quantity,)),), {"layers": layers})


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        # As many blocks: each by its place, whatever it is called.
        (("a.", 2), ("b.", 2), {"stem": (0, 0), "a.0 / b.0": (1, 1), "a.1 / b.1": (2, 2), "head": (3, 3)}),
        (("a.", 2), ("a.", 2), {"stem": (0, 0), "a.0": (1, 1), "a.1": (2, 2), "head": (3, 3)}),
        # Another number: the last with the last, as on a page; a.1 of the second has lost its place to a.2.
        (("a.", 2), ("a.", 3), {"stem": (0, 0), "a.0": (1, 1), "a.1 / a.2": (2, 3), "head": (3, 4)}),
        (("a.", 2), ("b.", 3), {"stem": (0, 0), "a.1 / b.2": (2, 3), "head": (3, 4)}),
    ],
)
def test_compare_matches_blocks_by_their_place(a, b, expected) -> None:
    frame = network(*a).compare(network(*b))
    assert {row.layer: (row.a, row.b) for row in frame.itertuples()} == expected


def test_options_are_plain() -> None:
    @dataclass(frozen=True)
    class Options:
        p: tuple[float, ...] = (1.0, 2.0)
        name: str | None = None
        where: Any = None

    assert options_of(Options(where={1: {2}})) == {"p": [1.0, 2.0], "name": None, "where": {"1": [2]}}
    assert options_of(Options(where=max))["where"].startswith("<built-in")


def test_parts_with_arrays_are_equal_number_by_number():
    def part(*values: float) -> Part:
        return Part("p", arrays={"a": np.array(values)})

    assert part(1.0, float("nan")) == part(1.0, float("nan"))
    assert part(1.0, 2.0) != part(1.0, 3.0)
    assert part(1.0, 2.0) != part(1.0)
    assert part(1.0) != Part("p", arrays={"b": np.array([1.0])})
    assert part(1.0) != Part("p", arrays={"a": np.array([1])})
    assert part(1.0) != Part("q", arrays={"a": np.array([1.0])})
    assert part(1.0) != "p"
    assert Profile((part(1.0, 2.0),)) == Profile((part(1.0, 2.0),))
