from __future__ import annotations

import numpy as np
import pytest
import torch

from lisse.maths.given import (
    all_finite,
    check_integer,
    check_least,
    check_level,
    check_positive,
    check_word,
    floating,
)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_one_bad_entry_is_found_wherever_it_is(dtype, bad):
    largest = torch.finfo(dtype).max
    x = torch.full((5, 7), largest, dtype=dtype)
    x[0, 0] = -largest
    assert all_finite(x)  # a sum of these would not be
    for place in (0, 17, 34):
        y = x.clone()
        y.view(-1)[place] = bad
        assert not all_finite(y)
        assert not all_finite(y.T)
        with pytest.raises(ValueError, match=r"f: x must be finite, got NaN or infinity"):
            floating("f", "x", y)


def test_nothing_is_finite_and_gradients_pass():
    assert all_finite(torch.empty(0, 3))
    x = torch.ones(2, requires_grad=True)
    floating("f", "x", x).sum().backward()
    assert x.grad is not None


def test_what_becomes_of_what_is_given():
    assert floating("f", "x", [1, 2]).dtype == torch.float64
    assert floating("f", "x", np.ones(2, dtype=np.float32)).dtype == torch.float32
    assert floating("f", "x", torch.ones(2, dtype=torch.uint8)).dtype == torch.float64
    with pytest.raises(TypeError, match="must be real"):
        floating("f", "x", torch.ones(2, dtype=torch.complex64))
    with pytest.raises(TypeError, match="must be a tensor or an array, got str"):
        floating("f", "x", "one")


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: check_least("f", 2, a=2, b=1), r"^f: b must be at least 2, got 1\.$"),
        (lambda: check_least("f", 2, a=float("nan")), "a must be at least 2, got nan"),
        (lambda: check_positive("f", a=1e-300, b=0), r"^f: b must be positive, got 0\.$"),
        (lambda: check_positive("f", a=float("nan")), "a must be positive, got nan"),
        (lambda: check_integer("f", 0, a=0, b=-1), r"^f: b must be an integer of at least 0, got -1\.$"),
        (lambda: check_integer("f", 0, a=1.0), "a must be an integer of at least 0, got 1.0"),
        (lambda: check_integer("f", 0, a=True), "a must be an integer of at least 0, got True"),
        (lambda: check_level("f", 0), r"^f: level must lie in \(0, 1\), got 0\.$"),
        (lambda: check_level("f", 1.0), "got 1.0"),
        (lambda: check_word("f", ("x", "y"), a="x", b="z"), r"^f: b must be one of x, y, got 'z'\.$"),
    ],
)
def test_numbers_and_words_that_are_refused(check, message):
    with pytest.raises(ValueError, match=message):
        check()


def test_numbers_and_words_at_the_edge_pass():
    check_least("f", 2, a=2)
    check_positive("f", a=1e-300)
    check_integer("f", 0, a=0, b=np.int64(3))
    check_level("f", 0.5)
    check_word("f", ("x", "y"), a="y")
