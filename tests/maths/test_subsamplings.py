from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lisse.maths.depth import over_subsamplings, subsamplings


def test_by_hand():
    assert subsamplings(1) == [[0]]
    assert subsamplings(2) == [[0, 1]]
    assert subsamplings(3) == [[0, 1, 2], [0, 2]]
    assert subsamplings(7) == [
        [0, 1, 2, 3, 4, 5, 6],
        [0, 2, 4, 6],
        [0, 1, 3, 5, 6],
        [0, 3, 6],
        [0, 1, 4, 6],
        [0, 2, 5, 6],
    ]
    assert subsamplings(7, steps=(2,)) == [[0, 1, 2, 3, 4, 5, 6], [0, 2, 4, 6], [0, 1, 3, 5, 6]]


@given(st.integers(1, 60), st.lists(st.integers(1, 6), max_size=4))
def test_every_choice_spans_the_same_stretch_in_even_steps(count, steps):
    choices = subsamplings(count, steps=steps)
    assert choices[0] == list(range(count))
    assert len({tuple(choice) for choice in choices}) == len(choices) <= 1 + sum(steps)
    for choice in choices:
        assert (choice[0], choice[-1]) == (0, count - 1)
        assert choice == sorted(set(choice))
        assert len({after - before for before, after in pairwise(choice[1:-1])}) <= 1


def test_a_number_over_layers():
    values = torch.tensor([1.0, 9.0, 2.0, 0.0, 3.0])
    largest = over_subsamplings(values, torch.max)
    # all; 0 2 4; 0 1 3 4; 0 3 4; 0 1 4; 0 2 4 again
    assert (largest.value, largest.low, largest.high) == (9, 3, 9)
    assert largest.values == (9, 3, 9, 3, 9)
    mean = over_subsamplings(values, lambda x: x.mean(), steps=(2,))
    assert mean.values == (3, 2, 3.25)
    assert (mean.value, mean.low, mean.high) == (3, 2, 3.25)


def test_neighbours_are_those_that_are_read():
    """A layer that goes away and comes back: its steps are gone where it is not read."""
    at = torch.tensor([0.0, 0.0, 5.0, 0.0, 1.0])
    distances = (at[:, None] - at).abs()
    step = over_subsamplings(distances, lambda d: d.diagonal(1).max(), pairs=True)
    assert step.value == 5
    assert step.low == 1
    total = over_subsamplings(distances, lambda d: d.diagonal(1).sum(), pairs=True, steps=(2,))
    assert total.values == (11, 9, 1)


def test_a_number_that_all_layers_share_has_no_range():
    result = over_subsamplings(torch.full((9, 2), 4.0), lambda x: float(x.mean()))
    assert (result.value, result.low, result.high) == (4, 4, 4)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: subsamplings(0), "count must be an integer of at least 1, got 0"),
        (lambda: subsamplings(3, steps=(1, 0)), r"steps\[1\] must be an integer of at least 1, got 0"),
        (lambda: over_subsamplings(torch.ones(0), torch.max), r"values must be \[L, …\]"),
        (lambda: over_subsamplings(torch.ones(3, 2), torch.max, pairs=True), r"values must be \[L, L, …\]"),
        (lambda: over_subsamplings(torch.ones(3), torch.max, pairs=True), r"values must be \[L, L, …\]"),
        (lambda: over_subsamplings(torch.ones(3, 2), lambda x: x.mean(0)), "must give one number"),
    ],
)
def test_bad_input(call, match):
    with pytest.raises(ValueError, match=match):
        call()
