"""The generic figure: its marks are the rows, its words are the quantity's."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from lisse.profile import Part, Profile, Quantity, Row
from lisse.reporting import depth_figure, overview_figure, save_figure
from lisse.reporting.figure import PALETTE


def depths(count: int) -> list[float]:
    return [place / (count - 1) for place in range(count)] if count > 1 else [1.0] * count


NORM = Quantity("norm", "mean norm", "How long activations are.", scale="log")
RANK = Quantity("rank", "effective rank", "How many directions they use.", unit="dims")


def profile(*rows: Row, name: str = "net", data: str = "digits") -> Profile:
    return Profile((Part("s", rows, (NORM, RANK)),), {"model": {"name": name}, "data": {"name": data}})


def line(
    values: list[float], quantity: str = "rank", kind: Any = "exact", half: float | None = None, **at: Any
) -> list[Row]:
    places = depths(len(values))
    return [
        Row(quantity, value, kind, 9, f"layer.{place}", places[place],
            None if half is None else value - half, None if half is None else value + half, at)
        for place, value in enumerate(values)
    ]  # fmt: skip


def marks(ax: Axes) -> list[tuple[list[float], list[float]]]:
    return [(list(mark.get_xdata()), list(mark.get_ydata())) for mark in ax.lines]  # type: ignore[arg-type]


def words(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def bands(ax: Axes) -> list[np.ndarray]:
    """Low and high ends of each band, by depth: [points, 3]."""
    found = []
    for band in ax.collections:
        if isinstance(band, LineCollection):
            continue
        corners = band.get_paths()[0].vertices
        by_depth: dict[float, list[float]] = {}
        for x, y in np.asarray(corners):
            by_depth.setdefault(round(float(x), 9), []).append(float(y))
        found.append(np.array([[x, min(ys), max(ys)] for x, ys in sorted(by_depth.items())]))
    return found


def test_one_line_has_a_point_per_row_and_the_layers_as_ticks() -> None:
    figure = depth_figure(profile(*line([3.0, 1.0, 2.0])), "rank")
    (ax,) = figure.axes
    assert marks(ax) == [([0.0, 0.5, 1.0], [3.0, 1.0, 2.0])]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["layer.0", "layer.1", "layer.2"]
    assert list(ax.get_xticks()) == [0.0, 0.5, 1.0]
    assert ax.get_ylabel() == "effective rank [dims]"
    assert ax.get_yscale() == "linear"
    assert {"effective rank: net", "How many directions they use."} <= {text.get_text() for text in figure.texts}
    assert words(figure) == ["exact for these very samples"]
    assert bands(ax) == []


def test_rows_are_drawn_in_order_of_depth_whatever_their_order() -> None:
    rows = line([3.0, 1.0, 2.0])
    assert marks(depth_figure(profile(rows[2], rows[0], rows[1]), "rank").axes[0]) == [
        ([0.0, 0.5, 1.0], [3.0, 1.0, 2.0])
    ]


@settings(max_examples=10, deadline=None)
@given(st.lists(st.floats(-100, 100), min_size=2, max_size=8), st.floats(0.01, 5))
def test_a_band_ends_where_the_intervals_end(values: list[float], half: float) -> None:
    (ax,) = depth_figure(profile(*line(values, kind="estimate", half=half)), "rank").axes
    (band,) = bands(ax)
    expected = [[x, value - half, value + half] for x, value in zip(depths(len(values)), values, strict=True)]
    np.testing.assert_allclose(band, expected, atol=1e-8)
    assert marks(ax)[0][1] == pytest.approx(values)


def test_an_interval_here_and_there_is_a_bar() -> None:
    rows = line([1.0, 2.0, 3.0], kind="estimate")
    rows[1] = Row("rank", 2.0, "estimate", 9, "layer.1", 0.5, 1.5, 4.0)
    (ax,) = depth_figure(profile(*rows), "rank").axes
    (bar,) = ax.collections
    assert isinstance(bar, LineCollection)
    assert [segment.tolist() for segment in bar.get_segments()] == [[[0.5, 1.5], [0.5, 4.0]]]


def test_kinds_have_their_own_markers_and_words_and_exact_has_no_band() -> None:
    rows = [
        *line([1.0, 2.0], kind="exact", half=0.5),
        *line([1.5, 2.5], kind="estimate", half=0.2),
        *line([1.0, 1.1], kind="lower"),
        *line([5.0, 6.0], kind="upper"),
        *line([3.0, 4.0], kind="heuristic"),
    ]
    figure = depth_figure(profile(*rows), "rank")
    (ax,) = figure.axes
    assert [mark.get_marker() for mark in ax.lines] == ["s", "o", "^", "v", "D"]
    assert [mark.get_linestyle() for mark in ax.lines] == ["-", "-", "-", "-", "--"]
    assert [row[1:].tolist() for row in bands(ax)[0]] == [[1.3, 1.7], [2.3, 2.7]]
    assert len(bands(ax)) == 1
    assert words(figure) == [
        "exact for these very samples",
        "estimate, with its interval over samples",
        "lower bound: the true value is at least this",
        "upper bound: the true value is at most this",
        "heuristic: no guarantee",
    ]


def test_models_have_their_own_colours_and_share_normalised_depth() -> None:
    figure = depth_figure(
        [profile(*line([1.0, 2.0, 3.0]), name="a"), profile(*line([4.0, 5.0]), name="_b$"), profile(name="c")], "rank"
    )
    (ax,) = figure.axes
    assert marks(ax) == [([0.0, 0.5, 1.0], [1.0, 2.0, 3.0]), ([0.0, 1.0], [4.0, 5.0])]
    assert [mark.get_color() for mark in ax.lines] == list(PALETTE[:2])
    assert [word.replace("\u200b", "") for word in words(figure)] == ["a", "_b$", "exact for these very samples"]
    assert ax.get_xlabel() == "depth (0: first layer, 1: last)"


def test_the_same_layers_in_several_models_keep_their_names() -> None:
    (ax,) = depth_figure(
        [profile(*line([1.0, 2.0]), name="before"), profile(*line([1.0, 3.0]), name="after")], "rank"
    ).axes
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["layer.0", "layer.1"]


@pytest.mark.parametrize(("count", "named"), [(30, True), (31, False)])
def test_more_than_thirty_layers_are_depth_not_names(count: int, named: bool) -> None:
    (ax,) = depth_figure(profile(*line([1.0] * count)), "rank").axes
    assert (ax.get_xlabel() == "") is named
    assert len(ax.lines[0].get_xdata()) == count  # type: ignore[arg-type]


def test_models_of_one_name_are_told_apart_by_data_or_number() -> None:
    rows = line([1.0, 2.0])
    figure = depth_figure([profile(*rows), profile(*rows, data="mnist")], "rank")
    assert words(figure)[:2] == ["net on digits", "net on mnist"]
    assert words(depth_figure([profile(*rows), profile(*rows)], "rank"))[:2] == ["net", "net (2)"]


def test_coordinates_are_colours_for_one_model_and_panels_for_several() -> None:
    rows = [*line([1.0, 2.0], p=1), *line([3.0, 4.0], p=2)]
    one = depth_figure(profile(*rows), "rank")
    assert [mark[1] for mark in marks(one.axes[0])] == [[1.0, 2.0], [3.0, 4.0]]
    assert len({mark.get_color() for mark in one.axes[0].lines}) == 2
    assert words(one)[:2] == ["p=1", "p=2"]
    two = depth_figure([profile(*rows, name="a"), profile(*rows, name="b")], "rank")
    assert [ax.get_title(loc="left") for ax in two.axes] == ["p=1", "p=2"]
    assert [[mark[1] for mark in marks(ax)] for ax in two.axes] == [[[1.0, 2.0]] * 2, [[3.0, 4.0]] * 2]


def test_where_chooses_and_an_empty_choice_lists_what_there_is() -> None:
    made = profile(*line([1.0, 2.0], p=1, q="x"), *line([3.0, 4.0], p=2, q="x"))
    figure = depth_figure(made, "rank", where={"p": 2})
    assert [mark[1] for mark in marks(figure.axes[0])] == [[3.0, 4.0]]
    assert "How many directions they use. Here: p=2." in [text.get_text() for text in figure.texts]
    with pytest.raises(
        ValueError, match=r"^depth_figure: where must match some rows of 'rank', got .*p=1 q=x; p=2 q=x\.$"
    ):
        depth_figure(made, "rank", where={"p": 3})


def test_many_coordinates_are_panels_and_too_many_an_error() -> None:
    rows = [row for head in range(9) for row in line([1.0, head], head=head)]
    assert len(depth_figure(profile(*rows), "rank").axes) == 9
    rows = [row for head in range(25) for row in line([1.0, head], head=head)]
    with pytest.raises(
        ValueError, match=r"^depth_figure: where must leave at most 24 sets of coordinates, got 25 \(head=0"
    ):
        depth_figure(profile(*rows), "rank")


def test_a_log_axis_leaves_out_what_has_no_place_and_says_so() -> None:
    figure = depth_figure(profile(*line([1.0, 0.0, math.inf, 10.0], "norm")), "norm")
    (ax,) = figure.axes
    assert ax.get_yscale() == "log"
    np.testing.assert_equal(marks(ax)[0][1], [1.0, math.nan, math.nan, 10.0])
    assert any("2 values left out: not finite or not positive." in text.get_text() for text in figure.texts)
    none_positive = depth_figure(profile(*line([-1.0, -2.0], "norm")), "norm").axes[0]
    assert none_positive.get_yscale() == "linear"
    assert marks(none_positive)[0][1] == [-1.0, -2.0]


def test_a_band_that_reaches_below_zero_on_a_log_axis_is_still_drawn(tmp_path: Path) -> None:
    figure = depth_figure(profile(*line([1.0, 2.0], "norm", "estimate", half=1.5)), "norm")
    assert bands(figure.axes[0])[0][:, 2].tolist() == [2.5, 3.5]
    assert figure.axes[0].get_ylim()[0] > 0.01
    save_figure(figure, tmp_path / "x.png")


def test_what_cannot_be_drawn() -> None:
    made = profile(*line([1.0, 2.0]), Row("norm", 1.0, "exact", 1))
    with pytest.raises(
        ValueError, match=r"^depth_figure: quantity must be one of norm, rank, got 'rnk'\. Did you mean 'rank'\?$"
    ):
        depth_figure(made, "rnk")
    with pytest.raises(
        ValueError, match=r"^depth_figure: quantity must have rows along depth, got 'norm', which has none"
    ):
        depth_figure(made, "norm")
    with pytest.raises(TypeError, match=r"^depth_figure: profiles must be one Profile or several, got \['str'\]"):
        depth_figure(["a.profile"], "norm")  # type: ignore[list-item]
    with pytest.raises(TypeError, match="got none"):
        overview_figure([])
    with pytest.raises(ValueError, match=r"^overview_figure: profiles must have rows along depth"):
        overview_figure(profile(Row("norm", 1.0, "exact", 1)))


def test_overview_has_a_panel_per_quantity() -> None:
    rows = [*line([1.0, 2.0], "norm"), *line([3.0, 4.0], p=1), *line([5.0, 6.0], p=2)]
    one = overview_figure(profile(*rows))
    assert [ax.get_title(loc="left") for ax in one.axes] == ["mean norm", "effective rank [dims]"]
    assert [[mark[1] for mark in marks(ax)] for ax in one.axes] == [[[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]]]
    # At the foot, once: in the panels it would lie on the lines.
    assert all(ax.get_legend() is None for ax in one.axes)
    assert [text.get_text() for text in one.legends[0].get_texts()][:2] == ["p=1", "p=2"]
    two = overview_figure([profile(*rows, name="a"), profile(*rows, name="b")])
    titles = ["mean norm", "effective rank [dims] · p=1", "effective rank [dims] · p=2"]
    assert [ax.get_title(loc="left") for ax in two.axes] == titles
    assert [len(ax.lines) for ax in two.axes] == [2, 2, 2]


def test_overview_names_what_it_leaves_out() -> None:
    rows = [row for head in range(25) for row in line([1.0, 2.0], head=head)]
    figure = overview_figure(profile(*rows, *line([1.0, 2.0], "norm")))
    assert len(figure.axes) == 24
    assert any("Not shown: rank, norm." in text.get_text() for text in figure.texts)


def test_figures_are_files_in_three_formats_and_nothing_else(tmp_path: Path) -> None:
    figure = depth_figure(profile(*line([1.0, 2.0])), "rank")
    begin = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
    for suffix, magic in begin.items():
        path = save_figure(figure, tmp_path / "new" / f"a{suffix}")
        assert path.read_bytes().startswith(magic)
    assert len(list((tmp_path / "new").iterdir())) == 3
    with pytest.raises(ValueError, match=r"^save_figure: path must end in \.png, \.svg, \.pdf, got '.*a\.gif'\.$"):
        save_figure(figure, tmp_path / "a.gif")


def test_no_pyplot_and_a_helpful_error_without_matplotlib() -> None:
    script = "import sys, lisse.reporting; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
    script = "import sys; sys.modules['matplotlib'] = None; from lisse.reporting import depth_figure"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert 'pip install "lisse[report]"' in done.stderr.splitlines()[-1]
