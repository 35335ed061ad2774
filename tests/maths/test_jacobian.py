from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lisse.maths.jacobian import effective_rank, jacobian_norm


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_linear_map_has_its_largest_singular_value():
    matrix = torch.randn(7, 4, generator=generator(), dtype=torch.float64)
    x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    found = jacobian_norm(x @ matrix.T, x, max_iter=20, tol=1e-9, generator=generator())
    _, s, v = torch.linalg.svd(matrix)
    torch.testing.assert_close(found.value, s[0].expand(5))
    torch.testing.assert_close((found.direction @ v[0]).abs(), torch.ones(5, dtype=torch.float64))
    assert found.converged.all()


def test_a_nonlinear_map_has_its_jacobians_norm_at_each_sample():
    a = torch.randn(6, 3, 3, generator=generator(), dtype=torch.float64)

    def f(x):
        return torch.tanh(torch.einsum("ijk,k->ij", a, x)).flatten().sin()

    x = torch.randn(4, 3, dtype=torch.float64, generator=generator(1)).requires_grad_()
    found = jacobian_norm(torch.vmap(f)(x), x, max_iter=20, tol=1e-9, generator=generator())
    dense = torch.stack([torch.linalg.matrix_norm(torch.autograd.functional.jacobian(f, row), 2) for row in x.detach()])
    torch.testing.assert_close(found.value, dense, rtol=1e-6, atol=0)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), iterations=st.integers(1, 6), warm=st.booleans())
def test_never_above_the_truth_whatever_the_iterations(seed, iterations, warm):
    matrix = torch.randn(5, 6, generator=generator(seed), dtype=torch.float64)
    x = torch.randn(3, 6, generator=generator(seed + 1), dtype=torch.float64).requires_grad_()
    start = torch.randn(3, 6, generator=generator(seed + 2), dtype=torch.float64) if warm else None
    found = jacobian_norm(x @ matrix.T, x, start=start, max_iter=iterations, tol=1e-15, generator=generator(seed + 3))
    assert (found.value <= torch.linalg.matrix_norm(matrix, 2) * (1 + 1e-12)).all()
    torch.testing.assert_close((found.direction @ matrix.T).norm(dim=1), found.value)
    torch.testing.assert_close(found.direction.norm(dim=1), torch.ones(3, dtype=torch.float64))
    assert found.iterations <= iterations


def test_the_start_decides_the_first_step():
    matrix = torch.diag(torch.tensor([1.0, 0.5, 0.25], dtype=torch.float64))
    x = torch.zeros(3, 3, dtype=torch.float64, requires_grad=True)
    found = jacobian_norm(x @ matrix, x, start=torch.eye(3, dtype=torch.float64), max_iter=1)
    assert found.value.tolist() == [1.0, 0.5, 0.25]  # each sample stays on the axis it was given


def test_a_rank_one_bump_on_the_identity_is_found():
    for d, bump in ((1000, 0.5), (16384, 1.0), (16384, 0.1)):
        u = torch.ones(d) / d**0.5
        x = torch.randn(2, d, generator=generator(), requires_grad=True)
        found = jacobian_norm(x + bump * (x @ u)[:, None] * u, x, generator=generator(1))
        torch.testing.assert_close(found.value, torch.full((2,), 1 + bump, dtype=torch.float64), rtol=1e-4, atol=0)


def test_more_steps_than_there_are_directions_lose_nothing():
    matrix = torch.tensor([[0.25, 0.0], [0.1, 0.5]])
    for seed in range(20):  # what is left of a vector in the span of all others is rounding, and no direction
        x = torch.zeros(3, 2, requires_grad=True)
        found = jacobian_norm(x @ matrix.T, x, tol=1e-6, generator=generator(seed))
        torch.testing.assert_close(found.value, torch.linalg.matrix_norm(matrix.double(), 2).expand(3))
        assert found.converged.all()


def test_a_sample_does_not_depend_on_who_shares_its_batch():
    matrices = torch.randn(5, 40, 50, generator=generator(), dtype=torch.float64)
    start = torch.randn(5, 50, generator=generator(1), dtype=torch.float64)

    def found(some):
        x = torch.zeros(len(some), 50, dtype=torch.float64, requires_grad=True)
        y = torch.einsum("nij,nj->ni", matrices[some], x)
        return jacobian_norm(y, x, start=start[some], tol=0.1)

    alone = [found(torch.tensor([i])) for i in range(5)]
    assert len({one.iterations for one in alone}) > 1  # they end at different steps
    torch.testing.assert_close(
        found(torch.arange(5)).value, torch.cat([one.value for one in alone]), rtol=1e-12, atol=0
    )


@pytest.mark.parametrize("gain", [0.4, 2.4])
def test_a_hundred_layers_that_shrink_or_stretch(gain):
    """Products far outside the range of float32 on their way, and the same numbers as in float64."""
    torch.manual_seed(0)
    weights = [gain * torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64)).Q for _ in range(100)]
    middle = torch.diag(torch.tensor([1.0, 0.5, 0.2, 0.1, 0.1, 0.1], dtype=torch.float64))

    def norm(dtype):
        x = torch.randn(3, 6, generator=generator(), dtype=torch.float64).to(dtype).requires_grad_()
        y = x * 0
        for index, weight in enumerate(weights):  # activations stay small: only the derivative goes out of range
            y = (x if index == 0 else y) @ (weight @ middle if index == 50 else weight).to(dtype)
            y = y - y.detach()
        start = torch.ones(3, 6)
        return jacobian_norm(y, x, start=start, max_iter=20, tol=1e-6)

    found, wide = norm(torch.float32), norm(torch.float64)
    torch.testing.assert_close(wide.value, torch.full((3,), gain**100, dtype=torch.float64), rtol=1e-9, atol=0)
    torch.testing.assert_close(found.value, wide.value, rtol=1e-4, atol=0)
    assert found.converged.all()


def test_a_sample_without_a_finite_derivative_has_none_and_takes_no_other_with_it():
    x = torch.tensor([[0.0, 1.0], [4.0, 1.0]], requires_grad=True)
    found = jacobian_norm(x.sqrt(), x)
    assert found.value.isnan().tolist() == [True, False]
    assert found.converged.tolist() == [False, True]
    assert float(found.value[1]) == pytest.approx(0.5)


def test_dead_units_have_norm_zero():
    x = -torch.rand(3, 2, requires_grad=True)
    assert jacobian_norm(torch.relu(x), x).value.tolist() == [0, 0, 0]


def test_what_does_not_depend_is_refused():
    x, other = torch.rand(3, 2, requires_grad=True), torch.rand(3, 2, requires_grad=True)
    with pytest.raises(ValueError, match="y must depend on x"):
        jacobian_norm(other * 2, x)
    with pytest.raises(ValueError, match="as many samples, got 2 and 3"):
        jacobian_norm(x * 2, x[:2])
    with pytest.raises(ValueError, match="max_iter must be at least 1"):
        jacobian_norm(x * 2, x, max_iter=0)
    with pytest.raises(ValueError, match="tol must be positive, got 0"):
        jacobian_norm(x * 2, x, tol=0)


def test_effective_rank_of_a_line_a_cross_and_a_ball():
    line = torch.linspace(-1, 1, 9)[:, None] * torch.tensor([1.0, 2.0, 3.0])
    assert float(effective_rank(line)) == pytest.approx(1)
    cross = torch.cat([torch.eye(5), -torch.eye(5)])
    assert float(effective_rank(cross)) == pytest.approx(5)
    uneven = torch.tensor([[2.0, 0], [-2, 0], [0, 1], [0, -1]])  # eigenvalues 2 and 1/2: 2.5² / 4.25
    assert float(effective_rank(uneven)) == pytest.approx(6.25 / 4.25)


@settings(deadline=None, max_examples=25)
@given(n=st.integers(2, 12), d=st.integers(1, 20), seed=st.integers(0, 99), chunk=st.integers(1, 8))
def test_effective_rank_is_the_participation_ratio_and_bounded(n, d, seed, chunk):
    points = torch.randn(n, d, generator=generator(seed), dtype=torch.float64)
    rank = float(effective_rank(points, chunk=chunk))
    eigenvalues = torch.linalg.eigvalsh(torch.cov(points.T).reshape(d, d))
    assert rank == pytest.approx(float(eigenvalues.sum() ** 2 / eigenvalues.pow(2).sum()), rel=1e-6)
    assert 1 - 1e-9 <= rank <= min(n - 1, d) + 1e-9
    moved = points @ torch.linalg.qr(torch.randn(d, d, generator=generator(seed), dtype=torch.float64)).Q * 3 + 7
    assert float(effective_rank(moved)) == pytest.approx(rank, rel=1e-6)


def test_a_single_point_many_times_has_no_rank():
    assert torch.isnan(effective_rank(torch.ones(4, 3)))
    torch.manual_seed(0)
    collapsed = torch.nn.Linear(5, 7)(torch.ones(40, 5)).detach()  # equal but for rounding
    assert torch.isnan(effective_rank(collapsed))


def test_rows_choose_the_cloud():
    points = torch.randn(20, 30, generator=generator())
    rows = torch.tensor([3, 1, 17, 8, 9])
    torch.testing.assert_close(effective_rank(points, rows=rows, chunk=7), effective_rank(points[rows]))
    with pytest.raises(ValueError, match="at least 2 points, got 1"):
        effective_rank(torch.ones(1, 3))
