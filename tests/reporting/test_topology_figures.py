"""The figures of Topology: their lines are the profile's curves, their points its diagrams."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

import lisse
from lisse.instruments import Sensitivity, Topology
from lisse.profile import Profile
from lisse.reporting import chart_figure, save_figure


def network(*widths: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(a, b) for a, b in itertools.pairwise(widths)))


X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def profiles() -> list[Profile]:
    options = Topology(samples=20, clouds=3)
    return [
        lisse.measure(network(4, 5, 6, 3), X, options, name="shallow"),
        lisse.measure(network(4, 5, 6, 6, 5, 3), X, options, name="deep"),
    ]


def test_a_row_per_quantity_and_a_column_per_order(profiles):
    figure = chart_figure(profiles, "topology")
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles == [
        "absolute change rate · p=1", "absolute change rate · p=2", "cumulative change rate · p=1",
        "cumulative change rate · p=2", "distance between diagrams · p=1", "distance between diagrams · p=2",
    ]  # fmt: skip
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["shallow", "deep"]
    curve = profiles[0]["topology"].arrays["landscape/change_rate/p=1/dim=all"]
    line = figure.axes[0].lines[0]
    np.testing.assert_allclose(line.get_ydata(), curve.mean(0))
    np.testing.assert_allclose(line.get_xdata(), np.linspace(0, 1, 101))
    (top,) = [
        row.value
        for row in profiles[0].rows
        if row.quantity == "topolip_change_rate" and dict(row.at) == {"p": 1, "dim": "all", "cloud": 20}
    ]
    assert figure.axes[0].lines[1].get_ydata()[0] == top
    assert len(figure.axes[0].collections) == 2  # a band per model


def test_one_order_and_one_dimension(profiles):
    figure = chart_figure(profiles[0], "topology", where={"dim": 1, "p": 2})
    assert len(figure.axes) == 3
    curve = profiles[0]["topology"].arrays["landscape/diagram_distance/p=2/dim=1"]
    np.testing.assert_allclose(figure.axes[2].lines[0].get_ydata(), curve.mean(0))
    assert any("dim=1 p=2" in text.get_text() for text in figure.texts)
    assert not figure.legends


def test_equal_layers_leave_a_gap():
    model = network(4, 4, 4, 4, 4)
    with torch.no_grad():
        model[2].weight.copy_(torch.eye(4))
        model[2].bias.zero_()
    profile = lisse.measure(model, X, Topology(clouds=1, dims=(0,), p=(1,)))
    figure = chart_figure(profile, "topology")
    drawn = np.asarray(figure.axes[0].lines[0].get_ydata())
    assert np.isnan(drawn).any()
    assert np.isfinite(drawn).any()


def test_diagrams_show_every_bar(profiles):
    figure = chart_figure(profiles[0], "diagrams")
    arrays = profiles[0]["topology"].arrays
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["input", "0", "1", "2"]
    for ax in figure.axes:
        for dim, points in enumerate(ax.collections):
            np.testing.assert_array_equal(points.get_offsets(), arrays[f"diagram/{ax.get_title(loc='left')}/H{dim}"])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["H0: parts", "H1: loops"]
    single = chart_figure(profiles[0], "diagrams", where={"layer": 1})
    assert [ax.get_title(loc="left") for ax in single.axes] == ["1"]


def test_barcodes_show_the_longest_bars(profiles):
    figure = chart_figure(profiles[0], "barcodes", where={"layer": "input"})
    bars = profiles[0]["topology"].arrays["diagram/input/H0"]
    drawn = np.array([segment[:, 0] for segment in figure.axes[0].collections[0].get_segments()])
    np.testing.assert_allclose(drawn, bars[np.argsort(bars[:, 1], kind="stable")])


def test_they_are_files(profiles, tmp_path):
    for place, figure in enumerate((chart_figure(profiles, "topology"), chart_figure(profiles[1], "diagrams"))):
        assert save_figure(figure, tmp_path / f"{place}.pdf").stat().st_size > 1000


def test_the_command_draws_them(profiles, tmp_path):
    from click.testing import CliRunner

    from lisse.cli.figure import command

    paths = [str(profile.save(tmp_path / f"{place}.profile")) for place, profile in enumerate(profiles)]
    for arguments in (["topology", *paths, "--where", "dim=0"], ["diagrams", paths[0]], ["barcodes", paths[0]]):
        out = tmp_path / f"{arguments[0]}.svg"
        done = CliRunner().invoke(command, [*arguments, "-o", str(out)])
        assert done.exit_code == 0, done.output
        assert out.read_bytes().startswith(b"<?xml")
    done = CliRunner().invoke(command, ["diagrams", *paths, "-o", str(tmp_path / "a.svg")])
    assert "'diagrams' draws one profile" in done.output
    done = CliRunner().invoke(command, ["topology", paths[0], "--where", "cloud=1", "-o", str(tmp_path / "a.svg")])
    assert "where of 'topology' must take dim=… and p=…, got cloud=1" in done.output


def test_bad_input(profiles):
    with pytest.raises(ValueError, match=r"^chart_figure: profiles must hold what 'topology' draws at dim=2, got none"):
        chart_figure(profiles, "topology", where={"dim": 2})
    with pytest.raises(ValueError, match=r"^chart_figure: name must be one of topology, diagrams, barcodes, got 'ran'"):
        chart_figure(profiles, "ran")
    with pytest.raises(ValueError, match=r"^chart_figure: layer must be one of input, 0, 1, 2, got 'x'\.$"):
        chart_figure(profiles[0], "diagrams", where={"layer": "x"})
    other = lisse.measure(network(4, 5, 3), X, Sensitivity(clouds=1, points=0), name="other")
    with pytest.raises(ValueError, match=r"^chart_figure: profiles must hold what Topology measured, got 'other"):
        chart_figure(other, "topology")
