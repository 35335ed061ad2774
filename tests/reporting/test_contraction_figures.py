"""Figures of Contraction: what they show, for one network and several, and what they refuse."""

import math

import numpy as np
import pytest
import torch

from lisse.data import Dataset
from lisse.instruments import Contraction
from lisse.networks.zoo.vit import VisionTransformer
from lisse.profile import Part, Profile
from lisse.reporting import chart_figure, save_figure


@pytest.fixture(scope="module")
def profile():
    torch.manual_seed(0)
    model = VisionTransformer(3, 8, 5, width=16, heads=2, depth=2, patch=4, eps=1e-6)
    data = Dataset("images", torch.randint(0, 256, (9, 3, 8, 8), dtype=torch.uint8))
    return Contraction(points=2, shown=2).measure(model, data)


def test_three_panels_show_what_was_measured(profile):
    figure = chart_figure(profile, "contraction")
    left, middle, right = figure.axes
    before = [row.value for row in profile.rows if row.quantity == "distance_before"]
    assert left.lines[0].get_ydata().tolist() == pytest.approx(before)
    stretch = [math.log10(row.value) for row in profile.rows if row.quantity == "stretch" and not row.at]
    assert middle.lines[0].get_ydata().tolist() == pytest.approx(stretch)
    assert len(right.collections[0].get_offsets()) == 9
    assert right.get_title(loc="left").startswith("correlation")
    words = " ".join(text.get_text() for text in figure.legends[0].get_texts())
    assert "printed bound (no theorem)" in words
    assert "bound on the tokens' hull (from above)" in words


def test_a_very_large_bound_leaves_room_for_the_rest(profile):
    rows = [
        row if row.quantity != "log_bound" else type(row)(row.quantity, 900.0, "upper", row.n, row.layer, row.depth)
        for row in profile.rows
    ]
    part = profile.parts[0]
    changed = Profile((Part(part.instrument, tuple(rows), part.quantities, (), part.arrays),), profile.provenance)
    middle = chart_figure(changed, "contraction").axes[1]
    assert middle.get_yscale() == "symlog"
    low, high = middle.get_ylim()
    assert -5 < low < min(min(line.get_ydata()) for line in middle.lines)
    assert high > 900
    assert chart_figure(profile, "contraction").axes[1].get_yscale() == "linear"


def test_several_networks_have_a_row_each(profile, tmp_path):
    figure = chart_figure([profile, profile], "contraction")
    assert len(figure.axes) == 6
    assert save_figure(figure, tmp_path / "x.svg").stat().st_size > 1000


def test_two_samples_as_measures(profile):
    figure = chart_figure(profile, "sentences", where={"pair": 1})
    before, after = figure.axes
    plan = profile["contraction"].arrays["pair/1/before/plan"]
    assert len(before.collections[0].get_segments()) == np.count_nonzero(plan > 1e-9 * plan.max())
    sides = [np.asarray(c.get_offsets()) for c in before.collections[1:]]
    assert np.concatenate(sides) == pytest.approx(profile["contraction"].arrays["pair/1/before"])
    assert before.collections[1].get_sizes() == pytest.approx(1600 * plan.sum(1))
    distance = float(profile["contraction"].arrays["pair/1/after/distance"][0])
    assert after.get_title(loc="left") == f"after attention: distance {distance:.4g}"


def test_what_cannot_be_drawn_is_told(profile):
    empty = Profile((Part("contraction"),))
    with pytest.raises(ValueError, match="chart_figure: profiles must hold what 'contraction' draws, got none"):
        chart_figure(empty, "contraction")
    with pytest.raises(ValueError, match="chart_figure: profiles must hold what 'sentences' draws, got none"):
        chart_figure(empty, "sentences")
    with pytest.raises(ValueError, match="chart_figure: pair must be one of 0, 1, got 5"):
        chart_figure(profile, "sentences", where={"pair": 5})
