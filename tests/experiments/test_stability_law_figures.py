from __future__ import annotations

import numpy as np
import pytest

from lisse.instruments import Stability
from lisse.profile import Part, Profile, Row
from lisse.reporting import chart_figure, save_figure
from lisse_experiments.diffeomorphisms.law_figures import delta_figure, error_figure, size_figure


def profile(r=0.2, *, cuts=(3,), deltas=(1.0,), name="net"):
    rows = []
    for cut in cuts:
        for delta in deltas:
            for depth, layer in ((0.0, "input"), (0.5, "block"), (1.0, "output")):
                g = 0.4 * delta**2
                value = (1 - depth) + depth * r
                values = {"relative_stability": value, "deformation_stability": g * value, "noise_stability": g}
                rows += [
                    Row(q, v, "estimate", 50, layer, depth, 0.9 * v, 1.1 * v, {"cut": cut, "delta": delta})
                    for q, v in values.items()
                ]
    return Profile((Part("stability", tuple(rows), Stability.QUANTITIES),), {"model": {"name": name}})


def curves(ax):
    return [line.get_ydata() for line in ax.lines if len(line.get_ydata()) > 2]


def test_error_against_r_with_its_law():
    stabilities = (0.01, 0.1, 0.5)
    networks = [profile(r, name=f"n{r}") for r in stabilities]
    errors = [0.24 * r**0.5 for r in stabilities]
    figure = error_figure(networks, errors)
    (ax,) = figure.axes
    (law,) = curves(ax)
    np.testing.assert_allclose([law[0], law[-1]], [errors[0], errors[-1]])
    assert "0.24 [0.24, 0.24] · R^0.50" in figure.texts[1].get_text()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["n0.01", "n0.1", "n0.5"]
    named = error_figure(networks, errors, names=["x", "y", "z"], quantity="relative_stability", cut=3, delta=1.0)
    assert named.legends[0].get_texts()[0].get_text() == "x"
    with pytest.raises(ValueError, match="names must have one entry per network, got 1 for 3"):
        error_figure(networks, errors, names=["x"])


def test_the_law_of_an_error_names_its_quantity_and_its_networks():
    networks = [profile(r, name="same") for r in (0.01, 0.1, 0.5)]
    figure = error_figure(networks, [0.1, 0.2, 0.3], quantity="deformation_stability")
    assert "· D^" in " ".join(figure.texts[1].get_text().split())
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["same", "same (2)", "same (3)"]


def looks(figure):
    return [(line.get_color(), line.get_marker(), line.get_linestyle()) for line in figure.legends[0].get_lines()]


def test_more_series_than_colours_are_told_apart():
    many = profile(cuts=(3, 5, 10, 15), deltas=(0.5, 1.0, 2.0))
    figure = chart_figure(many, "stability")
    assert len(set(looks(figure))) == 12
    drawn = [(line.get_color(), line.get_marker(), line.get_linestyle()) for line in figure.axes[2].lines[:12]]
    assert drawn == looks(figure)
    networks = [profile(r, name=f"n{r}") for r in np.linspace(0.1, 0.9, 15)]
    assert (
        len({(colour, marker) for colour, marker, _ in looks(error_figure(networks, np.linspace(0.1, 0.4, 15)))}) == 15
    )


def test_fields_that_fold_are_said_in_the_legend():
    both = profile(cuts=(3, 15))
    shares = [Row("bijective_share", v, "estimate", 50, at={"cut": c, "delta": 1.0}) for c, v in ((3, 1.0), (15, 0.21))]
    part = Part("stability", (*both.rows, *shares), Stability.QUANTITIES)
    labels = chart_figure(Profile((part,), {"model": {"name": "net"}}), "stability").legends[0].get_texts()
    assert [text.get_text() for text in labels] == ["cut=3", "cut=15 (share of bijective fields 0.21)"]


def test_a_single_layer_stands_at_its_depth_with_its_interval():
    whole = profile()
    part = Part("stability", tuple(row for row in whole.rows if row.layer == "output"), Stability.QUANTITIES)
    ax = chart_figure(Profile((part,), {"model": {"name": "net"}}), "stability").axes[2]
    assert ax.get_xlim()[0] < 0 < 1 < ax.get_xlim()[1]
    np.testing.assert_allclose(ax.collections[0].get_segments()[0], [[1, 0.18], [1, 0.22]])


def test_sizes_and_displacements(tmp_path):
    sizes = [100, 1000, 10_000]
    figure = size_figure([profile(3 / p**0.5) for p in sizes], sizes)
    assert "P^-0.50" in figure.axes[2].get_title("left")
    sweep = delta_figure(profile(deltas=(0.5, 1.0, 2.0)))
    assert "δ^2.00" in sweep.axes[0].get_title("left")
    np.testing.assert_allclose(curves(sweep.axes[2])[0], [0.2] * 3)
    both = delta_figure([profile(deltas=(0.5, 1.0), name="a"), profile(0.1, deltas=(0.5, 1.0), name="b")])
    assert len(both.axes[0].lines) == 2
    with pytest.raises(ValueError, match=r"measured at several delta, got \[1\.0\]"):
        delta_figure(profile())
    assert save_figure(figure, tmp_path / "a.png").stat().st_size > 0
    assert save_figure(sweep, tmp_path / "b.png").stat().st_size > 0
