"""Two token sets and the plan between them: what is drawn, and bad input."""

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from lisse.maths.transport import transport_plan
from lisse.reporting.figure import save_figure
from lisse_experiments.regularity.measures import two_measures


def drawn(n=4, m=5, d=6, **options):
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(n, d)), rng.normal(size=(m, d))
    coupling = transport_plan(left, right).coupling.numpy()
    return two_measures(left, right, coupling, labels=("one", "two"), title="T", says="S", **options), coupling


def test_discs_have_the_area_of_their_mass_and_lines_are_the_plan(tmp_path):
    figure, coupling = drawn(marks=(1, None), names=(list("abcd"), list("vwxyz")))
    (ax,) = figure.axes
    lines, first, ring, second = ax.collections
    assert len(lines.get_segments()) == int((coupling > 1e-12).sum())
    assert np.allclose(first.get_sizes(), 1600 / 4)
    assert np.allclose(second.get_sizes(), 1600 / 5)
    assert np.allclose(ring.get_offsets(), first.get_offsets()[1])
    assert sorted(text.get_text() for text in ax.texts) == list("abcdvwxyz")
    assert save_figure(figure, tmp_path / "two.png").stat().st_size > 5000


def test_the_picture_keeps_the_distances_of_points_in_a_plane():
    rng = np.random.default_rng(1)
    left, right = rng.normal(size=(3, 2)), rng.normal(size=(3, 2))
    figure = two_measures(left, right, np.eye(3) / 3, labels=("x", "y"), title="", says="")
    _, first, second = figure.axes[0].collections
    shown = np.linalg.norm(first.get_offsets() - second.get_offsets(), axis=1)
    assert np.allclose(shown, np.linalg.norm(left - right, axis=1))


def test_a_word_at_the_same_place_is_written_once():
    points = np.array([[0.0, 0.0], [10.0, 0.0]])
    options = {"labels": ("x", "y"), "title": "", "says": "", "names": (["a", "b"], ["a", "c"])}
    figure = two_measures(points, points + 0.01, np.eye(2) / 2, **options)
    assert sorted(text.get_text() for text in figure.axes[0].texts) == ["a", "b", "c"]


def test_one_dimension_and_bad_shapes():
    line = np.array([[0.0], [1.0]])
    two_measures(line, line, np.eye(2) / 2, labels=("x", "y"), title="", says="")
    with pytest.raises(ValueError, match=r"left and right must be \[n, d\] and \[m, d\], got \(2, 1\) and \(2, 3\)"):
        two_measures(line, np.zeros((2, 3)), np.eye(2), labels=("x", "y"), title="", says="")
    with pytest.raises(ValueError, match=r"coupling must be \[2, 2\], got \[2, 3\]"):
        two_measures(line, line, np.ones((2, 3)), labels=("x", "y"), title="", says="")
