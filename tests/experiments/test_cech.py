"""The Čech construction, step by step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lisse_experiments.topolip.cech import cech_figure, enclosing_radius


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


def test_bad_input():
    with pytest.raises(ValueError, match=r"^cech_figure: points must lie in the plane, \[n, 2\], got \[5, 3\]\.$"):
        cech_figure(torch.zeros(5, 3), [1.0])
    with pytest.raises(ValueError, match=r"^cech_figure: points must be 2 to 60, got 61\.$"):
        cech_figure(torch.zeros(61, 2), [1.0])
    with pytest.raises(ValueError, match=r"^cech_figure: radii must be numbers, at least 0, got \[\]\.$"):
        cech_figure(torch.zeros(5, 2), [])
