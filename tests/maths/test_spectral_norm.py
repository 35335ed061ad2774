from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lisse.maths.spectral_norm import gram_bound, norm_bounds, norm_interval


def matrix(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_closed_forms():
    low, high = norm_interval(torch.diag(torch.tensor([3.0, -5.0, 1.0])))
    assert low == pytest.approx(5)
    assert 5 <= high <= 5.0001
    assert norm_interval(torch.zeros(3, 4)) == (0, 0)
    assert norm_interval(torch.zeros(3, 4)).gap == 0
    assert gram_bound(torch.zeros(3, 4)).item() == 0
    flat = norm_interval(torch.ones(7, 9, dtype=torch.float64))
    assert flat.lower <= 63**0.5 <= flat.upper
    assert norm_interval(torch.eye(2), error=0.5) == pytest.approx((0.5, 1.5), rel=1e-4)


@settings(deadline=None, max_examples=60)
@given(
    m=st.integers(1, 30), n=st.integers(1, 30), batch=st.integers(1, 4), seed=st.integers(0, 9999),
    scale=st.sampled_from([1e-150, 1e-6, 1.0, 1e9, 1e150]), rank=st.integers(1, 30), steps=st.integers(1, 40),
    kind=st.sampled_from([torch.float32, torch.float64, torch.complex128]),
)  # fmt: skip
def test_the_truth_lies_between(m, n, batch, seed, scale, rank, steps, kind):
    a = matrix(batch, m, rank, seed=seed, dtype=kind) @ matrix(batch, rank, n, seed=seed + 1, dtype=kind)
    a = a * (scale if kind != torch.float32 else 1.0)
    wide = a.to(torch.complex128 if kind.is_complex else torch.float64)
    true = torch.linalg.matrix_norm(wide, 2)
    found = norm_interval(a, steps=steps)
    assert found.lower <= float(true.max()) * (1 + 1e-13)
    assert float(true.max()) <= found.upper * (1 + 1e-15)
    grams = gram_bound(a)
    assert (true <= grams * (1 + 1e-15)).all()
    assert (grams <= true * min(m, n) ** (2.0**-9) * (1 + 1e-6)).all()
    if steps >= min(m, n):
        assert found.gap < 1e-4


def test_a_bad_start_is_paid_in_width_and_not_in_truth():
    a = torch.diag(torch.linspace(0.99, 1.0, 400, dtype=torch.float64))
    found = norm_interval(a, steps=1)
    assert found.lower < 1 <= found.upper
    assert norm_interval(a, steps=40).gap < 1e-3


def test_tolerance_and_chunks():
    a = matrix(6, 9, 11)
    loose, tight = norm_interval(a, tol=1e-1), norm_interval(a, tol=1e-8)
    assert loose.gap == pytest.approx(1 - 1.1**-0.5, rel=1e-3)
    assert tight.gap < 1e-8
    chunked = norm_interval(lambda: iter(a.split(4)))
    assert chunked == pytest.approx(norm_interval(a), rel=1e-9)


def test_more_gram_steps_are_closer():
    a = matrix(20, 20)
    true = float(torch.linalg.matrix_norm(a, 2))
    values = [float(gram_bound(a, iterations=k)) for k in (1, 3, 6, 10)]
    assert values == sorted(values, reverse=True)
    assert values[0] == pytest.approx(float(torch.linalg.matrix_norm(a @ a.T)) ** 0.5)
    assert values[-1] == pytest.approx(true, rel=1e-6)


@pytest.mark.parametrize("shape", [(5, 1, 9), (3, 2, 7, 40), (4, 64, 30), (2, 300, 280)])
@pytest.mark.parametrize("tol", [1e-5, 1e-2])
def test_every_matrix_of_a_batch_has_its_own_bound(shape, tol):
    a = matrix(*shape) * torch.logspace(-9, 9, shape[0], dtype=torch.float64).reshape(-1, *[1] * (len(shape) - 1))
    true = torch.linalg.matrix_norm(a, 2)
    bounds = norm_bounds(a, tol=tol)
    assert bounds.shape == shape[:-2]
    assert (bounds >= true * (1 - 1e-15)).all()
    assert (bounds <= true * (1 + 2 * tol)).all()
    # The worst case of the powers: all singular values are the same.
    same = norm_bounds(torch.eye(*shape[-2:], dtype=torch.float64)[None], tol=tol)
    assert same.tolist() == pytest.approx([1.0], rel=1.01 * tol)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="matrices must be finite"):
        norm_interval(torch.tensor([[1.0, torch.nan]]))
    with pytest.raises(ValueError, match="matrices must be finite"):
        gram_bound(torch.tensor([[1.0, torch.inf]]))
    with pytest.raises(ValueError, match="two axes or more, got shape"):
        norm_interval(torch.ones(3))
    with pytest.raises(ValueError, match="tol must lie between 0 and 1, got 0"):
        norm_interval(torch.eye(2), tol=0)
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        norm_interval(torch.eye(2), steps=0)
    with pytest.raises(ValueError, match="iterations must be at least 1, got 0"):
        gram_bound(torch.eye(2), iterations=0)
