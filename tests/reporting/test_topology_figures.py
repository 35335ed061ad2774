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
from lisse.reporting import save_figure
from lisse.reporting.cech import cech_figure, enclosing_radius
from lisse.reporting.topology import barcode_figure, diagrams_figure, topology_figure


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
    figure = topology_figure(profiles)
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles == [
        "absolute change rate, W1", "absolute change rate, W2", "cumulative change rate, W1",
        "cumulative change rate, W2", "distance between diagrams, W1", "distance between diagrams, W2",
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


def test_one_quantity_and_one_dimension(profiles):
    figure = topology_figure(profiles[0], dim=1, quantity="diagram_distance")
    assert len(figure.axes) == 2
    curve = profiles[0]["topology"].arrays["landscape/diagram_distance/p=2/dim=1"]
    np.testing.assert_allclose(figure.axes[1].lines[0].get_ydata(), curve.mean(0))
    assert any("loops (H1)" in text.get_text() for text in figure.texts)
    assert not figure.legends


def test_equal_layers_leave_a_gap():
    model = network(4, 4, 4, 4, 4)
    with torch.no_grad():
        model[2].weight.copy_(torch.eye(4))
        model[2].bias.zero_()
    profile = lisse.measure(model, X, Topology(quick=True, dims=(0,), p=(1,)))
    figure = topology_figure(profile, quantity="change_rate")
    drawn = np.asarray(figure.axes[0].lines[0].get_ydata())
    assert np.isnan(drawn).any()
    assert np.isfinite(drawn).any()


def test_diagrams_show_every_bar(profiles):
    figure = diagrams_figure(profiles[0])
    arrays = profiles[0]["topology"].arrays
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["input", "0", "1", "2"]
    for ax in figure.axes:
        for dim, points in enumerate(ax.collections):
            np.testing.assert_array_equal(points.get_offsets(), arrays[f"diagram/{ax.get_title(loc='left')}/H{dim}"])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["H0: parts", "H1: loops"]
    assert [ax.get_title(loc="left") for ax in diagrams_figure(profiles[0], layers=["1"]).axes] == ["1"]


def test_barcodes_show_the_longest_bars(profiles):
    figure = barcode_figure(profiles[0], layers=["input"])
    bars = profiles[0]["topology"].arrays["diagram/input/H0"]
    drawn = np.array([segment[:, 0] for segment in figure.axes[0].collections[0].get_segments()])
    np.testing.assert_allclose(drawn, bars[np.argsort(bars[:, 1], kind="stable")])


def test_the_cech_complex_of_a_square():
    square = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    figure = cech_figure(square, [0.25, 0.5, 0.75])
    for ax, edges, triangles in zip(figure.axes, (0, 4, 6), (0, 0, 4), strict=False):
        _, filled, lines = ax.collections[:3]
        assert len(filled.get_paths()) == triangles
        assert len(lines.get_segments()) == edges
    bars = figure.axes[3].collections
    assert len(bars[0].get_segments()) == 4  # three that end and one that does not
    np.testing.assert_allclose(bars[1].get_segments()[0][:, 0], [0.5, 0.5**0.5])


def test_the_smallest_disc_around_three_points():
    assert enclosing_radius(np.array([[0.0, 0.0], [2.0, 0.0], [1.0, 0.1]])) == pytest.approx(1.0)  # obtuse
    assert enclosing_radius(np.array([[0.0, 0.0], [1.0, 0.0], [0.5, 0.75**0.5]])) == pytest.approx(3**-0.5)
    assert enclosing_radius(np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]])) == pytest.approx(1.0)  # on a line


def test_they_are_files(profiles, tmp_path):
    for place, figure in enumerate((topology_figure(profiles), diagrams_figure(profiles[1]))):
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
    assert "`diagrams` draws one profile" in done.output
    done = CliRunner().invoke(command, ["topology", paths[0], "--where", "p=1", "-o", str(tmp_path / "a.svg")])
    assert "--where takes dim=0, dim=1, dim=2 or dim=all" in done.output


def test_bad_input(profiles):
    with pytest.raises(ValueError, match=r"^topology_figure: dim must be one of 0, 1, all, got 2\.$"):
        topology_figure(profiles, dim=2)
    with pytest.raises(ValueError, match=r"^topology_figure: quantity must be one of change_rate, .*, got 'rank'\.$"):
        topology_figure(profiles, quantity="rank")
    with pytest.raises(ValueError, match=r"^diagrams_figure: layers must be among input, 0, 1, 2, got \['x'\]\.$"):
        diagrams_figure(profiles[0], layers=["x"])
    other = lisse.measure(network(4, 5, 3), X, Sensitivity(quick=True, points=0), name="other")
    with pytest.raises(ValueError, match=r"^topology_figure: profiles must hold what Topology measured, got 'other"):
        topology_figure(other)
    with pytest.raises(ValueError, match=r"^cech_figure: points must lie in the plane, \[n, 2\], got \[5, 3\]\.$"):
        cech_figure(torch.zeros(5, 3), [1.0])
    with pytest.raises(ValueError, match=r"^cech_figure: points must be 2 to 60, got 61\.$"):
        cech_figure(torch.zeros(61, 2), [1.0])
    with pytest.raises(ValueError, match=r"^cech_figure: radii must be numbers, at least 0, got \[\]\.$"):
        cech_figure(torch.zeros(5, 2), [])
