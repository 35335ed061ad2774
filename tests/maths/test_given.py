from __future__ import annotations

import numpy as np
import pytest
import torch

from lisse.maths.given import all_finite, floating


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
