"""Exact distances: closed forms, properties, POT and a linear programme as oracles, gradients, bad input."""

from __future__ import annotations

import itertools
import math

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.spatial.distance import cdist

from lisse.maths.transport import Measure, plan_of_cost, solvers, transport_plan, wasserstein, wasserstein_batch
from lisse.maths.transport.solvers import ground_distances


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cloud(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=generator(seed), dtype=torch.float64)


def weights(n: int, seed: int = 0) -> torch.Tensor:
    return torch.softmax(torch.randn(n, generator=generator(seed), dtype=torch.float64), 0)


def tok(n: int, d: int, a: float, b: float) -> torch.Tensor:
    i, j = torch.arange(1, n + 1).double()[:, None], torch.arange(1, d + 1).double()
    return torch.sin(a * i * j) + 0.5 * torch.cos(b * i + j)


X, Y, Z = tok(3, 2, 1, 0.5), tok(5, 2, 0.8, 0.3), tok(3, 2, 0.9, 0.6)


def programme(cost: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    n, m = cost.shape
    rows = np.kron(np.eye(n), np.ones(m))
    columns = np.kron(np.ones(n), np.eye(m))
    return linprog(cost.ravel(), A_eq=np.vstack([rows, columns]), b_eq=np.concatenate([a, b]), method="highs").fun


# --- closed forms ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pair", "ground", "expected"),
    [
        ((X, Y), 1, 0.850525913372),
        ((X, Y), 2, 0.685034887903),
        ((X, Z), 1, 0.370957644102),
        ((Y, Z), 1, 1.010717734339),
    ],
)
def test_the_reference_values(pair, ground, expected):
    assert float(wasserstein(*pair, ground=ground)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("p", "ground"), [(1, 1), (1, 2), (2, 2), (3, 1), (1, math.inf)])
def test_two_diracs_are_apart_by_the_norm_of_their_difference(p, ground):
    x, y = cloud(1, 4), cloud(1, 4, 1)
    expected = torch.linalg.vector_norm(x - y, ord=ground)
    torch.testing.assert_close(wasserstein(x, y, p=p, ground=ground), expected)


def test_splitting_a_mass_costs_what_it_travels():
    mu = Measure(torch.tensor([[0.0, 0.0]]).double())
    nu = Measure(torch.tensor([[1.0, 1.0], [-3.0, 0.0]]).double(), torch.tensor([0.25, 0.75]).double())
    assert float(wasserstein(mu, nu)) == pytest.approx(0.25 * 2 + 0.75 * 3)
    assert float(wasserstein(mu, nu, ground=2)) == pytest.approx(0.25 * 2**0.5 + 0.75 * 3)
    assert float(wasserstein(mu, nu, p=2, ground=2)) == pytest.approx((0.25 * 2 + 0.75 * 9) ** 0.5)
    assert float(wasserstein(mu, nu, ground=math.inf)) == pytest.approx(0.25 + 0.75 * 3)


def test_a_shift_moves_by_its_norm_and_gaussians_on_the_line_by_their_quantiles():
    x = cloud(20, 3)
    shift = torch.tensor([0.1, -0.2, 0.3]).double()
    assert float(wasserstein(x, x + shift)) == pytest.approx(0.6)
    a, b = cloud(500, 1).sort(0).values, 2 * cloud(500, 1, 3).sort(0).values
    assert float(wasserstein(a[:, 0], b[:, 0], p=2)) == pytest.approx(float((a - b).pow(2).mean() ** 0.5))


@pytest.mark.parametrize("d", [1, 2])
def test_a_mass_of_1e_12_that_moves_is_measured_to_many_digits(d):
    points = torch.tensor([[0.5, 0.0], [1.0, 0.25], [-0.3, 0.7]]).double()[:, :d]
    for moved in (1e-6, 1e-9, 1e-12):
        a = torch.tensor([0.75 + moved, 0.25 - moved, 0.0], dtype=torch.float64)
        b = torch.tensor([0.75, 0.25, 0.0]).double()
        expected = float((a[0] - b[0]) * (points[0] - points[1]).abs().sum())
        assert float(wasserstein(Measure(points, a), Measure(points, b))) == pytest.approx(expected, rel=1e-12)


def test_the_line_needs_no_matrix():
    x, y = cloud(24001, 1), cloud(24000, 1, 1)
    grid = np.linspace(-6, 6, 200_001)
    steps = np.searchsorted(np.sort(x[:, 0]), grid) / 24001 - np.searchsorted(np.sort(y[:, 0]), grid) / 24000
    assert float(wasserstein(x, y)) == pytest.approx(np.abs(steps).sum() * 12 / 200_000, rel=1e-2)


# --- properties -----------------------------------------------------------------------------------------------------

sizes = st.integers(1, 6)
seeds = st.integers(0, 10_000)


@settings(deadline=None, max_examples=40)
@given(
    n=sizes,
    m=sizes,
    k=sizes,
    d=st.integers(1, 3),
    seed=seeds,
    p=st.sampled_from([1.0, 2.0, 1.5]),
    ground=st.sampled_from([1, 2]),
)
def test_it_is_a_metric(n, m, k, d, seed, p, ground):
    mu, nu, eta = (Measure(cloud(size, d, seed + i), weights(size, seed + 7 * i)) for i, size in enumerate((n, m, k)))
    there, back = wasserstein(mu, nu, p=p, ground=ground), wasserstein(nu, mu, p=p, ground=ground)
    torch.testing.assert_close(there, back, rtol=1e-9, atol=1e-12)
    assert float(wasserstein(mu, mu, p=p, ground=ground)) == pytest.approx(0, abs=1e-7)
    around = wasserstein(mu, eta, p=p, ground=ground) + wasserstein(eta, nu, p=p, ground=ground)
    assert float(there) <= float(around) + 1e-9


@settings(deadline=None, max_examples=40)
@given(n=sizes, m=sizes, d=st.integers(1, 4), seed=seeds)
def test_norms_orders_and_means_compare(n, m, d, seed):
    x, y = cloud(n, d, seed), cloud(m, d, seed + 1)
    one, two = float(wasserstein(x, y)), float(wasserstein(x, y, ground=2))
    assert two <= one + 1e-12
    assert one <= d**0.5 * two + 1e-12
    assert float((x.mean(0) - y.mean(0)).abs().sum()) <= one + 1e-12
    assert two <= float(wasserstein(x, y, p=2, ground=2)) + 1e-12


@settings(deadline=None, max_examples=30)
@given(n=st.integers(1, 5), m=st.integers(1, 5), d=st.integers(1, 3), seed=seeds, copies=st.integers(2, 3))
def test_permuting_and_duplicating_tokens_changes_nothing(n, m, d, seed, copies):
    x, y = cloud(n, d, seed), cloud(m, d, seed + 1)
    value = wasserstein(x, y)
    order = torch.randperm(n, generator=generator(seed))
    torch.testing.assert_close(wasserstein(x[order], y), value, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(wasserstein(x.repeat(copies, 1), y), value, rtol=1e-9, atol=1e-12)
    merged = Measure(torch.cat([x, x[:1]]), torch.cat([torch.full((n,), 1 / n).double(), torch.zeros(1).double()]))
    torch.testing.assert_close(wasserstein(merged, y), value, rtol=1e-9, atol=1e-12)


@settings(deadline=None, max_examples=30)
@given(n=st.integers(1, 6), m=st.integers(1, 6), d=st.integers(1, 3), seed=seeds, p=st.sampled_from([1.0, 2.0]))
def test_a_plan_is_optimal_by_its_own_certificate(n, m, d, seed, p):
    mu, nu = Measure(cloud(n, d, seed), weights(n, seed)), Measure(cloud(m, d, seed + 1))
    for left, right in ((mu, nu), (Measure(mu.points), nu)):
        plan = transport_plan(left, right, p=p)
        cost = torch.cdist(left.points, right.points, p=1) ** p
        torch.testing.assert_close(plan.coupling.sum(1), left.mass)
        torch.testing.assert_close(plan.coupling.sum(0), right.mass)
        assert float((plan.source[:, None] + plan.target - cost).max()) <= 1e-9
        dual = left.mass @ plan.source + right.mass @ plan.target
        torch.testing.assert_close(dual, plan.value**p, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close((plan.coupling * cost).sum(), plan.value**p, rtol=1e-8, atol=1e-10)


# --- oracles --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "m"), [(6, 6), (4, 7), (7, 3)])
@pytest.mark.parametrize(
    ("p", "ground", "metric"), [(1, 1, "cityblock"), (2, 2, "euclidean"), (1, math.inf, "chebyshev")]
)
def test_a_linear_programme_and_the_network_simplex_agree(n, m, p, ground, metric):
    x, y, a, b = cloud(n, 3), cloud(m, 3, 1), weights(n), weights(m, 1)
    cost = cdist(x, y, metric) ** p
    found = float(wasserstein(Measure(x, a), Measure(y, b), p=p, ground=ground)) ** p
    assert found == pytest.approx(programme(cost, a.numpy(), b.numpy()), abs=1e-9)
    assert found == pytest.approx(ot.emd2(a.numpy(), b.numpy(), cost), abs=1e-9)


def test_equal_sizes_are_the_best_of_all_permutations():
    x, y = cloud(5, 2), cloud(5, 2, 1)
    cost = torch.cdist(x, y, p=1)
    best = min(sum(float(cost[i, j]) for i, j in enumerate(order)) / 5 for order in itertools.permutations(range(5)))
    assert float(wasserstein(x, y)) == pytest.approx(best, abs=1e-12)


def test_a_cost_matrix_of_ones_own():
    cost = torch.randn(4, 6, generator=generator(), dtype=torch.float64)  # negative ones too
    a, b = weights(4), weights(6, 1)
    plan = plan_of_cost(cost, a, b)
    assert float(plan.value) == pytest.approx(programme(cost.numpy(), a.numpy(), b.numpy()), abs=1e-9)
    square = torch.rand(5, 5, generator=generator(), dtype=torch.float64).requires_grad_()
    plan = plan_of_cost(square)
    plan.value.backward()
    torch.testing.assert_close(square.grad, plan.coupling)
    assert float((plan.source[:, None] + plan.target - square.detach()).max()) <= 1e-12


# --- many pairs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("p", "ground"), [(1, 1), (2, 2)])
def test_many_pairs_are_each_pair(threads, p, ground):
    xs, ys = cloud(7 * 5, 3).reshape(7, 5, 3), cloud(7 * 8, 3, 1).reshape(7, 8, 3)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = wasserstein_batch(xs, ys, p=p, ground=ground)
        lists = wasserstein_batch(list(xs), [Measure(y) for y in ys], p=p, ground=ground)
    finally:
        torch.set_num_threads(before)
    expected = torch.stack([wasserstein(x, y, p=p, ground=ground) for x, y in zip(xs, ys, strict=True)])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(lists, expected, rtol=1e-12, atol=0)


def test_padding_does_not_count():
    xs, ys = cloud(3 * 5, 2).reshape(3, 5, 2), cloud(3 * 4, 2, 1).reshape(3, 4, 2)
    lengths = [2, 5, 3]
    expected = torch.stack([wasserstein(x[:n], y) for x, n, y in zip(xs, lengths, ys, strict=True)])
    spoiled = xs.clone()
    for x, n in zip(spoiled, lengths, strict=True):
        x[n:] = torch.nan
    torch.testing.assert_close(wasserstein_batch(spoiled, ys, x_lengths=lengths), expected)
    torch.testing.assert_close(wasserstein_batch(ys, spoiled, y_lengths=torch.tensor(lengths)), expected)
    mass = torch.stack([(torch.arange(5) < n).double() / n for n in lengths])
    torch.testing.assert_close(wasserstein_batch(spoiled, ys, x_weights=mass), expected)
    torch.testing.assert_close(wasserstein_batch(ys, spoiled, y_weights=mass.numpy()), expected)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 4), (3, 5), (8, 9), (5, 3)])
@pytest.mark.parametrize(("ground", "metric"), [(1.0, "cityblock"), (2.0, "euclidean"), (math.inf, "chebyshev")])
def test_ground_distances_are_scipys(n, m, ground, metric):
    x, y = cloud(n, 11).numpy(), cloud(m, 11, 1).numpy()
    np.testing.assert_allclose(ground_distances(x, y, ground), cdist(x, y, metric), rtol=1e-13)
    assert (ground_distances(x, x, ground).diagonal() == 0).all()


@pytest.mark.parametrize("ground", [1.0, 2.0])
def test_the_tiles_are_right_before_they_are_compiled(ground, monkeypatch):
    pytest.importorskip("numba")
    from lisse.maths.transport import loops

    monkeypatch.setattr(loops, "_term", loops._term.py_func)
    monkeypatch.setattr(loops, "_sums", loops._sums.py_func)
    x, y, out = cloud(5, 3).numpy(), cloud(7, 3, 1).numpy(), np.empty((5, 7))
    loops.ground_costs.py_func(x, y, ground, out)
    np.testing.assert_allclose(out, cdist(x, y, "cityblock" if ground == 1 else "euclidean"), rtol=1e-13)


@pytest.mark.parametrize("ground", [1.0, 2.0])
def test_without_numba_ground_distances_are_scipys_own(ground, monkeypatch):
    monkeypatch.setattr(solvers, "loops", lambda _: None)
    x, y = cloud(5, 3).numpy(), cloud(7, 3, 1).numpy()
    assert (ground_distances(x, y, ground) == cdist(x, y, "cityblock" if ground == 1 else "euclidean")).all()


# --- types and gradients --------------------------------------------------------------------------------------------


def test_types_are_kept_and_arrays_accepted():
    assert wasserstein(X.float(), Y.float()).dtype == torch.float32
    assert wasserstein_batch([X.float()], [Y.float()]).dtype == torch.float32
    assert wasserstein(X.numpy(), Y.numpy()).dtype == torch.float64
    assert float(wasserstein(X.numpy(), Measure(Y.numpy()))) == pytest.approx(0.850525913372, abs=1e-12)
    assert float(wasserstein(X.float(), Y.float())) == pytest.approx(0.850525913372, rel=1e-6)


@pytest.mark.parametrize(("p", "ground"), [(1, 1), (1, 2), (2, 1), (2, 2)])
@pytest.mark.parametrize("d", [1, 3])
def test_gradients_go_through_the_coupling_and_the_potentials(p, ground, d):
    x, y = cloud(5, d).requires_grad_(), cloud(4, d, 1).requires_grad_()
    logits = torch.randn(5, generator=generator(), dtype=torch.float64).requires_grad_()

    def value(x, y, logits):
        return wasserstein(Measure(x, torch.softmax(logits, 0)), y, p=p, ground=ground)

    assert torch.autograd.gradcheck(value, (x, y, logits))
    assert torch.autograd.gradcheck(lambda x, y: wasserstein(x[:4], y, p=p, ground=ground), (x, y))
    assert torch.autograd.gradcheck(lambda x, y: wasserstein_batch([x, x], [y, 2 * y], p=p, ground=ground), (x, y))


def test_the_gradient_at_distance_zero_is_finite():
    x = cloud(3, 2).requires_grad_()
    for p in (1, 2):
        (slope,) = torch.autograd.grad(wasserstein(x, x.detach().clone(), p=p, ground=2), x)
        assert torch.isfinite(slope).all()


# --- measures -------------------------------------------------------------------------------------------------------


def test_a_measure_knows_its_parts():
    mu = Measure(torch.tensor([[0.0], [1.0]]), torch.tensor([0.25, 0.75]))
    assert mu.mean.tolist() == [0.75]
    assert len(mu) == 2
    assert mu.dim == 1
    assert not mu.uniform
    assert Measure(torch.arange(4)).points.shape == (4, 1)
    assert Measure(torch.arange(4)).mass.tolist() == [0.25] * 4
    assert mu.push(torch.zeros(2, 3)).weights.tolist() == [0.25, 0.75]
    assert "2 atoms in R^1, weighted" in repr(mu)


@pytest.mark.parametrize(
    ("points", "given_weights", "message"),
    [
        (torch.zeros(0, 2), None, "at least one atom"),
        (torch.zeros(3, 0), None, r"at least one coordinate, got shape \[3, 0\]"),
        (torch.zeros(2, 2, 2), None, r"shape \[n, d\], got \[2, 2, 2\]"),
        (torch.tensor([[torch.nan]]), None, "points must be finite"),
        (torch.zeros(2, 1), torch.tensor([0.5, 0.6]), r"sum to 1, got 1\.1"),
        (torch.zeros(2, 1), torch.tensor([-0.5, 1.5]), "not be negative, got -0.5"),
        (torch.zeros(2, 1), torch.tensor([torch.nan, 1.0]), "weights must be finite"),
        (torch.zeros(2, 1), torch.tensor([1.0]), r"shape \[2\], got \[1\]"),
    ],
)
def test_a_measure_refuses(points, given_weights, message):
    with pytest.raises(ValueError, match=message):
        Measure(points, given_weights)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="x and y must have one dimension, got 2 and 3"):
        wasserstein(torch.zeros(2, 2), torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"p must be finite and at least 1, got 0\.5"):
        wasserstein(X, Y, p=0.5)
    with pytest.raises(ValueError, match="ground must be 1, 2 or inf, got 3"):
        wasserstein(X, Y, ground=3)
    with pytest.raises(TypeError, match="x must be a Measure, a tensor or an array, got str"):
        wasserstein("x", Y)
    with pytest.raises(ValueError, match="as many sets, got 1 and 2"):
        wasserstein_batch([X], [Y, Y])
    with pytest.raises(ValueError, match="at least one pair"):
        wasserstein_batch([], [])
    with pytest.raises(ValueError, match="must have one dimension, got 2 and 1"):
        wasserstein_batch([X], [Y[:, :1]])
    with pytest.raises(ValueError, match=r"xs must have shape \[b, n, d\]"):
        wasserstein_batch(X, [Y])
    with pytest.raises(ValueError, match="xs must be finite"):
        wasserstein_batch(torch.full((1, 2, 2), torch.nan), [Y])
    with pytest.raises(ValueError, match="1 numbers from 1 to 3, got"):
        wasserstein_batch(X[None], [Y], x_lengths=[4])
    with pytest.raises(ValueError, match="lengths or weights, got both"):
        wasserstein_batch(X[None], [Y], x_lengths=[3], x_weights=torch.ones(1, 3) / 3)
    with pytest.raises(ValueError, match="must come with a padded batch"):
        wasserstein_batch([X], [Y], x_lengths=[3])
    with pytest.raises(ValueError, match=r"weights of xs must be \[1, 3\]"):
        wasserstein_batch(X[None], [Y], x_weights=torch.ones(1, 2) / 2)
    with pytest.raises(ValueError, match="cost must be finite"):
        plan_of_cost(torch.full((2, 2), torch.inf))
    with pytest.raises(ValueError, match=r"cost must have shape \[n, m\]"):
        plan_of_cost(torch.zeros(2))


# --- named estimates ------------------------------------------------------------------------------------------------
