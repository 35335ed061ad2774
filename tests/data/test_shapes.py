"""Drawn figures: known greys, what each option does, and that blocks do not matter to what is drawn."""

from __future__ import annotations

import pytest
import torch

from lisse.data import load_data
from lisse.data.generators import FIGURES, SIZE, _distance, shapes


def test_distances_to_strokes_are_those_of_geometry():
    labels = torch.tensor([list(FIGURES).index("plus"), list(FIGURES).index("corner")])
    points = torch.tensor([[[0.5, 0.25], [2.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.7, 1.0], [-0.6, -2.0]]])
    assert torch.allclose(_distance(points, labels), torch.tensor([[0.25, 1.0, 0.0], [0.6, 0.0, 1.0]]), atol=1e-6)


def test_images_are_greys_of_ten_figures_as_many_of_each():
    data = shapes(200)
    assert data.inputs.shape == (200, 1, SIZE, SIZE)
    assert data.inputs.dtype == torch.float32
    assert 0 <= float(data.inputs.min()) < 0.05
    assert 0.95 < float(data.inputs.max()) <= 1
    assert data.targets.bincount().tolist() == [20] * 10
    assert data.classes == tuple(FIGURES)


def test_without_clutter_there_is_one_grey_behind_and_another_in_front():
    images = shapes(100, clutter=0.0).inputs
    assert torch.allclose(images.flatten(1).median(1).values, torch.tensor(0.5), atol=0.01)
    ink = (images - 0.5).flatten(1)
    sides = torch.stack([-ink.amin(1), ink.amax(1)]).sort(0).values  # darker or lighter, never both
    assert float(sides[0].max()) < 0.01
    assert 0.12 < float(sides[1].min()) <= float(sides[1].max()) <= 0.35


def test_bends_move_the_figure_and_clutter_what_lies_behind():
    plain = shapes(100, clutter=0.0, bend=0.0).inputs
    # sines that vanish at the rim; the draws are the same, so that only the bends differ
    moved = [(shapes(100, clutter=0.0, bend=bend).inputs - plain).square().mean() for bend in (0.02, 0.1)]
    assert 0 < moved[0] < moved[1]
    behind = shapes(400, bend=0.0, clutter=0.1).inputs[:, 0, 0, 0]
    assert float(behind.std()) > 0.05


def test_the_same_seed_draws_the_same_and_a_split_or_seed_others():
    first = load_data("shapes?n=50", seed=1)
    assert load_data("shapes?n=50", seed=1).fingerprint() == first.fingerprint()
    others = (load_data("shapes?n=50", seed=2), load_data("shapes?n=50", seed=1, split="train"))
    assert len({first.fingerprint(), *(other.fingerprint() for other in others)}) == 3
    assert torch.equal(shapes(200).inputs[:50], shapes(50).inputs), "more images go on where fewer end"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("shapes?n=9", r"shapes: n must lie in 10 … 300000, got 9"),
        ("shapes?bend=2", r"shapes: bend must lie in 0 … 1, got 2.0"),
        ("shapes?clutter=-1", r"shapes: clutter must lie in 0 … 1, got -1.0"),
    ],
)
def test_bad_options_are_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        load_data(spec)
