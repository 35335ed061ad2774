from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lisse.maths.depth import subsamplings


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


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: subsamplings(0), "count must be an integer of at least 1, got 0"),
        (lambda: subsamplings(3, steps=(1, 0)), r"steps\[1\] must be an integer of at least 1, got 0"),
    ],
)
def test_bad_input(call, match):
    with pytest.raises(ValueError, match=match):
        call()
