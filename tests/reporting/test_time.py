"""The figure of a training: its marks are the rows, in order of time."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from lisse.profile import Part, Profile, Quantity, Row
from lisse.reporting import save_figure, time_figure, time_heatmap, time_overview_figure
from lisse.reporting.figure import PALETTE

NORM = Quantity("norm", "mean norm", "How long activations are.", scale="log")
RANK = Quantity("rank", "effective rank", "How many directions they use.", unit="dims")
LOSS = Quantity("loss", "loss", "How wrong.")


def moment(step: int, *rows: Row, epoch: float | None = None, name: str = "net", options: Any = None) -> Profile:
    training = {"step": step, "epoch": epoch}
    part = Part("s", rows, (NORM, RANK, LOSS), options=options or {})
    return Profile((part,), {"model": {"name": name}, "training": training})


def layers(
    values: list[float], quantity: str = "rank", kind: Any = "exact", half: float | None = None, **at: Any
) -> list[Row]:
    return [
        Row(quantity, value, kind, 9, f"layer.{place}", place / max(1, len(values) - 1),
            None if half is None else value - half, None if half is None else value + half, at)
        for place, value in enumerate(values)
    ]  # fmt: skip


def training(*table: list[float], per: int = 10, **options: Any) -> dict[int, Profile]:
    """A profile per list, with a value per layer."""
    return {
        per * place: moment(per * place, *layers(values, **options), epoch=place / 2)
        for place, values in enumerate(table)
    }


def marks(ax: Any) -> list[tuple[list[float], list[float]]]:
    return [(list(mark.get_xdata()), list(mark.get_ydata())) for mark in ax.lines]


def words(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def said(figure: Figure) -> str:
    return " ".join(text.get_text().replace("\n", " ") for text in figure.texts)


def test_a_line_per_layer_with_a_point_per_measurement() -> None:
    figure = time_figure(training([1.0, 4.0], [2.0, 5.0], [3.0, 6.0]), "rank")
    (ax,) = figure.axes
    assert marks(ax) == [([0.0, 0.5, 1.0], [1.0, 2.0, 3.0]), ([0.0, 0.5, 1.0], [4.0, 5.0, 6.0])]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("epochs of training", "effective rank [dims]")
    assert words(figure) == ["layer.0", "layer.1", "exact for these very samples"]
    assert "effective rank: net How many directions they use." in said(figure)


@pytest.mark.parametrize("form", ["mapping", "list", "backwards"])
def test_any_order_of_profiles_is_drawn_in_order_of_time(form: str) -> None:
    made = training([1.0], [2.0], [3.0])
    given = made if form == "mapping" else list(made.values())[:: -1 if form == "backwards" else 1]
    assert marks(time_figure(given, "rank").axes[0]) == [([0.0, 0.5, 1.0], [1.0, 2.0, 3.0])]


def test_steps_where_asked_for_or_where_epochs_are_not_known() -> None:
    asked = time_figure(training([1.0], [2.0]), "rank", time="step").axes[0]
    assert (marks(asked)[0][0], asked.get_xlabel()) == ([0.0, 10.0], "steps of training")
    unknown = [moment(0, *layers([1.0]), epoch=0.0), moment(5, *layers([2.0]))]
    assert marks(time_figure(unknown, "rank").axes[0])[0][0] == [0.0, 5.0]
    with pytest.raises(ValueError, match="time_figure: time must be 'step' for profiles without an epoch, got 'epoch'"):
        time_figure(unknown, "rank", time="epoch")


def test_many_layers_are_coloured_by_depth_with_their_names_on_the_bar() -> None:
    figure = time_figure(training(list(range(6)), list(range(6))), "rank")
    ax, bar = figure.axes
    assert [text.get_text() for text in bar.get_yticklabels()] == [f"layer.{place}" for place in range(6)]
    colours = [to_rgba(line.get_color()) for line in ax.lines]
    assert len(set(colours)) == 6
    light = [0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue, _ in colours]
    assert light == sorted(light)  # also to be read in grey
    crowd = time_figure(training(list(range(40)), list(range(40))), "rank").axes[1]
    names = [text.get_text() for text in crowd.get_yticklabels()]
    assert len(names) <= 16
    assert names[:2] == ["layer.0", "layer.3"]
    assert crowd.get_title(loc="left") == "40 layers"


@settings(max_examples=10, deadline=None)
@given(st.lists(st.floats(-100, 100), min_size=2, max_size=6), st.floats(0.01, 5))
def test_a_band_ends_where_the_intervals_end(values: list[float], half: float) -> None:
    made = training(*[[value] for value in values], kind="estimate", half=half)
    (ax,) = time_figure(made, "rank").axes
    corners = np.asarray(ax.collections[0].get_paths()[0].vertices)
    for place, value in enumerate(values):
        ys = corners[np.isclose(corners[:, 0], place / 2), 1]
        assert (ys.min(), ys.max()) == (pytest.approx(value - half), pytest.approx(value + half))


def test_kinds_have_their_marks_as_over_depth() -> None:
    rows = [*layers([1.0], kind="exact"), *layers([2.0], kind="lower"), *layers([3.0], kind="heuristic")]
    figure = time_figure([moment(0, *rows), moment(1, *rows)], "rank")
    assert [line.get_marker() for line in figure.axes[0].lines] == ["s", "^", "D"]
    assert [line.get_linestyle() for line in figure.axes[0].lines] == ["-", "-", "--"]
    assert len(words(figure)) == 3


def test_a_quantity_without_layers_is_one_line() -> None:
    made = [moment(step, Row("loss", 1.0 / (step + 1), "exact", 3), epoch=step) for step in range(3)]
    (ax,) = time_figure(made, "loss").axes
    assert marks(ax) == [([0.0, 1.0, 2.0], [1.0, 0.5, 1 / 3])]
    with pytest.raises(ValueError, match="time_heatmap: quantity must have rows with layers, got 'loss'"):
        time_heatmap(made, "loss")


def test_several_trainings_are_colours_and_layers_are_panels() -> None:
    both = {"plain": training([1.0, 4.0], [2.0, 5.0]), "smooth": training([7.0, 8.0], [9.0, 10.0])}
    figure = time_figure(both, "rank")
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["layer.0", "layer.1"]
    assert [mark[1] for mark in marks(figure.axes[0])] == [[1.0, 2.0], [7.0, 9.0]]
    assert [line.get_color() for line in figure.axes[1].lines] == list(PALETTE[:2])
    assert words(figure)[:2] == ["plain", "smooth"]
    many = {name: training(list(range(20)), list(range(20))) for name in "ab"}
    figure = time_figure(many, "rank")
    assert [ax.get_title(loc="left") for ax in figure.axes] == [f"layer.{place}" for place in (0, 4, 8, 11, 15, 19)]
    assert "6 of 20 layers along depth." in said(figure)
    assert len(time_figure(many, "rank", layers="layer.1*").axes) == 11


def test_where_and_layers_choose_and_wrong_ones_list_what_there_is() -> None:
    made = [moment(step, *layers([1.0, 2.0], p=1), *layers([3.0, 4.0], p=2)) for step in (0, 1)]
    figure = time_figure(made, "rank", where={"p": 2}, layers=["layer.1"])
    assert marks(figure.axes[0]) == [([0.0, 1.0], [4.0, 4.0])]
    assert "Here: p=2." in said(figure)
    assert [ax.get_title(loc="left") for ax in time_figure(made, "rank").axes] == ["p=1", "p=2"]
    with pytest.raises(ValueError, match=r"where must match some rows of 'rank', got .* There are: p=1; p=2"):
        time_figure(made, "rank", where={"p": 3})
    with pytest.raises(ValueError, match=r"layers must be among layer\.0, layer\.1, got 'layer\.x'\. Did you mean"):
        time_figure(made, "rank", layers=["layer.x"])
    assert len(time_figure(made, "rank", layers="**").axes) == 2
    with pytest.raises(ValueError, match="layers must be among"):
        time_figure(made, "rank", layers="*")  # stays within one part of a dotted name


def test_too_many_panels() -> None:
    rows = [row for head in range(25) for row in layers([1.0], head=head)]
    with pytest.raises(ValueError, match=r"where must leave at most 24 panels, got 25 \(head=0; head=1; …\)"):
        time_figure([moment(0, *rows)], "rank")
    figure = time_overview_figure([moment(0, *rows, Row("loss", 1.0, "exact", 1))])
    assert len(figure.axes) == 24
    assert "Not shown: rank, loss." in said(figure)


def test_log_axes_and_what_has_no_place_on_them() -> None:
    figure = time_figure(training([1.0], [0.0], [math.inf], [10.0], quantity="norm"), "norm", scale="log", time="step")
    (ax,) = figure.axes
    assert (ax.get_yscale(), ax.get_xscale()) == ("log", "symlog")
    np.testing.assert_equal(marks(ax)[0][1], [1.0, math.nan, math.nan, 10.0])
    assert "2 values left out: not finite or not positive." in said(figure)


def test_a_measurement_that_failed_is_a_gap_and_changed_options_are_said() -> None:
    made = [
        moment(0, *layers([1.0]), options={"samples": 5}),
        moment(1),
        moment(2, *layers([2.0]), options={"samples": 9}),
    ]
    figure = time_figure(made, "rank")
    assert marks(figure.axes[0]) == [([0.0, 2.0], [1.0, 2.0])]
    assert "The instrument's options changed along the way." in said(figure)
    assert "options" not in said(time_figure(made[:2], "rank"))


def test_the_heatmap_has_a_cell_per_layer_and_time() -> None:
    figure = time_heatmap(training([1.0, 4.0], [2.0, 5.0], [3.0, math.nan]), "rank")
    ax = figure.axes[0]
    (mesh,) = ax.collections
    np.testing.assert_equal(np.ma.filled(mesh.get_array(), np.nan), [[1.0, 2.0, 3.0], [4.0, 5.0, np.nan]])  # type: ignore[no-untyped-call]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["layer.0", "layer.1"]
    assert ax.get_xlim() == (0.0, 1.5)
    assert figure.axes[1].get_ylabel() == "effective rank [dims]"
    log = time_heatmap(training([1.0, 100.0], [2.0, 50.0], quantity="norm"), "norm", layers="layer.1", time="step")
    np.testing.assert_equal(np.asarray(log.axes[0].collections[0].get_array()), [[100.0, 50.0]])
    assert log.axes[0].get_xlabel() == "steps of training"


def test_the_overview_has_a_panel_per_quantity() -> None:
    made = [
        moment(step, *layers([1.0, 2.0]), *layers([3.0, 4.0], "norm"), Row("loss", 0.5, "exact", 1)) for step in (0, 1)
    ]
    figure = time_overview_figure(made)
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["effective rank [dims]", "mean norm", "loss"]
    assert [len(ax.lines) for ax in figure.axes] == [2, 2, 1]
    assert [len(ax.lines) for ax in time_overview_figure(made, layers=["layer.0"]).axes] == [1, 1]


def test_figures_become_files(tmp_path: Path) -> None:
    made = training([1.0] * 7, [2.0] * 7, kind="estimate", half=0.5)
    for place, figure in enumerate((time_figure(made, "rank"), time_heatmap(made, "rank"), time_overview_figure(made))):
        assert save_figure(figure, tmp_path / f"{place}.png").stat().st_size > 1000


@pytest.mark.parametrize("name", ["$x_1$", "_hidden", "<b>"])
def test_names_are_shown_as_they_are(name: str) -> None:
    both = {name: training([1.0], [2.0]), "b": training([2.0], [3.0])}
    assert words(time_figure(both, "rank"))[0].replace("\u200b", "") == name


def test_what_cannot_be_drawn() -> None:
    made = training([1.0])
    with pytest.raises(ValueError, match=r"time_figure: quantity must be one of .*, got 'rnk'\. Did you mean 'rank'\?"):
        time_figure(made, "rnk")
    with pytest.raises(ValueError, match="time_figure: quantity must have rows, got 'loss', which has none"):
        time_figure(made, "loss")
    with pytest.raises(TypeError, match=r"time_figure: profiles must be Profiles by step .* got \['str'\]"):
        time_figure(["a.profile"], "rank")  # type: ignore[list-item]
    with pytest.raises(TypeError, match="got none"):
        time_figure([], "rank")
    with pytest.raises(ValueError, match="time_figure: profiles must be of a training, got one of net without a step"):
        time_figure([Profile((Part("s", layers([1.0]), (RANK,)),), {"model": {"name": "net"}})], "rank")
    with pytest.raises(ValueError, match="must be of different steps, got two of step 0"):
        time_figure([*made.values(), *made.values()], "rank")
    with pytest.raises(ValueError, match="time must be one of epoch, step, got 'hour'"):
        time_figure(made, "rank", time="hour")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="scale must be one of linear, log, got 'wide'"):
        time_figure(made, "rank", scale="wide")  # type: ignore[arg-type]
    for function in (lambda both: time_heatmap(both, "rank"), time_overview_figure):
        with pytest.raises(ValueError, match="profiles must be of one training, got 2"):
            function({"a": made, "b": made})
    with pytest.raises(ValueError, match="time_heatmap: quantity must have finite values"):
        time_heatmap(training([math.nan]), "rank")
    with pytest.raises(ValueError, match="time_overview_figure: profiles must have rows, got none"):
        time_overview_figure([moment(0)])
