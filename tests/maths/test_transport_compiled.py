"""The compiled batch of exact solvers: POT and SciPy as oracles, ties and zeros, every way into it."""

from __future__ import annotations

import math

import numpy as np
import ot
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist
from torch.nn.utils.rnn import pad_sequence

from lisse.maths.transport import Measure, batch, device, wasserstein, wasserstein_batch


def cloud(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def compiled_loops():
    pytest.importorskip("numba")
    from lisse.maths.transport import loops

    return loops


def costs(n, m, seed, kind):
    """Real numbers, few whole numbers (many ties), or distances between points that repeat (zeros)."""
    rng = np.random.default_rng(seed)
    if kind == "real":
        return rng.normal(size=(n, m))
    if kind == "ties":
        return rng.integers(0, 4, (n, m)).astype(float)
    points = rng.integers(0, 3, (n + m, 2)).astype(float)
    return cdist(points[:n], points[n:], "cityblock")


@given(
    n=st.integers(1, 12), m=st.integers(1, 12), seed=st.integers(0, 10_000),
    kind=st.sampled_from(["real", "ties", "repeats"]),
)  # fmt: skip
def test_the_compiled_solvers_find_the_optimum(n, m, seed, kind):
    solvers = compiled_loops()
    cost = costs(n, m, seed, kind)
    expected = ot.emd2(np.full(n, 1 / n), np.full(m, 1 / m), cost)
    assert solvers.transport_cost(cost) == pytest.approx(expected, abs=1e-12)
    square = costs(n, n, seed, kind)
    best = square[linear_sum_assignment(square)].mean()
    assert solvers.assignment_cost(square) == pytest.approx(best, abs=1e-12)
    assert solvers.transport_cost(square) == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("kind", ["real", "ties", "repeats"])
def test_the_compiled_solvers_before_they_are_compiled(kind, monkeypatch):
    solvers = compiled_loops()
    for name, loop in vars(solvers).copy().items():
        if hasattr(loop, "py_func"):
            monkeypatch.setattr(solvers, name, loop.py_func)
    for seed, (n, m) in enumerate([(6, 6), (4, 6), (7, 3), (1, 5), (9, 9)]):
        cost = costs(n, m, seed, kind)
        expected = ot.emd2(np.full(n, 1 / n), np.full(m, 1 / m), cost)
        assert solvers.transport_cost(cost) == pytest.approx(expected, abs=1e-12)
        square = costs(n, n, seed, kind)
        expected = square[linear_sum_assignment(square)].mean()
        assert solvers.assignment_cost(square) == pytest.approx(expected, abs=1e-12)


def test_large_assignments_are_scipys():
    # Points in the plane leave many rows for the augmenting paths, random numbers hardly any.
    for n in (60, 100, 150):
        x, y = cloud(n, 2, n).numpy(), cloud(n, 2, n + 1).numpy()
        for cost in (cdist(x, y, "cityblock"), costs(n, n, 0, "real")):
            best = cost[linear_sum_assignment(cost)].mean()
            assert compiled_loops().assignment_cost(cost) == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize(("p", "ground"), [(1, 1), (1, 2), (2, 2), (1.5, 1), (1, math.inf)])
@pytest.mark.parametrize("compiled", [True, False])
def test_batches_of_every_make_are_pair_by_pair(p, ground, compiled, monkeypatch):
    # Equal, unequal, too large to compile, weighted, on float32: each by its own route.
    if not compiled:
        monkeypatch.setattr(batch, "loops", lambda _: None)
        monkeypatch.setattr(device, "loops", lambda _: None)
    for module in (batch, device):
        monkeypatch.setattr(module, "COMPILED_CELLS", 30)
    sizes = [(5, 5), (4, 7), (6, 9), (5, 6), (1, 3)]
    xs: list = [cloud(n, 3, k) for k, (n, _) in enumerate(sizes)]
    ys: list = [cloud(m, 3, 10 + k) for k, (_, m) in enumerate(sizes)]
    xs[3] = Measure(xs[3], torch.tensor([0.1, 0.2, 0.3, 0.2, 0.2], dtype=torch.float64))
    each = torch.stack([wasserstein(x, y, p=p, ground=ground) for x, y in zip(xs, ys, strict=True)])
    torch.testing.assert_close(wasserstein_batch(xs, ys, p=p, ground=ground), each, rtol=1e-12, atol=0)
    padded = (pad_sequence([x.points if isinstance(x, Measure) else x for x in side], True) for side in (xs, ys))
    n, m = zip(*sizes, strict=True)
    there = device.device_powers(*padded, p=p, ground=ground, x_sizes=n, y_sizes=m)[:, 0] ** (1 / p)
    equal = [k for k in range(len(xs)) if k != 3]
    torch.testing.assert_close(there[equal], each[equal], rtol=1e-12, atol=0)
    lower = [x.float() if isinstance(x, torch.Tensor) else x for x in xs]
    torch.testing.assert_close(wasserstein_batch(lower, ys, p=p, ground=ground).double(), each, rtol=1e-5, atol=0)
    x, y = torch.stack([cloud(4, 3, k) for k in range(70)]), torch.stack([cloud(6, 3, 99 + k) for k in range(70)])
    each = torch.stack([wasserstein(a, b, p=p, ground=ground) for a, b in zip(x, y, strict=True)])
    torch.testing.assert_close(wasserstein_batch(x, y, p=p, ground=ground), each, rtol=1e-12, atol=0)
    across = y.permute(2, 0, 1).contiguous().permute(1, 2, 0)  # the same numbers, laid out otherwise
    torch.testing.assert_close(wasserstein_batch(x, across, p=p, ground=ground), each, rtol=1e-12, atol=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("p", "ground"), [(1, 1), (1, 2), (2, 2)])
def test_a_gpu_gives_the_same(p, ground):
    x, y = cloud(70 * 12, 40).reshape(70, 12, 40), cloud(70 * 9, 40, 1).reshape(70, 9, 40)
    expected = wasserstein_batch(x, y, p=p, ground=ground)
    found = wasserstein_batch(x.cuda(), y.cuda(), p=p, ground=ground)
    assert found.is_cuda
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-12, atol=0)
    listed = wasserstein_batch([*x.cuda()], [one[: 3 + k % 6] for k, one in enumerate(y.cuda())], p=p, ground=ground)
    each = [wasserstein(a, b[: 3 + k % 6], p=p, ground=ground) for k, (a, b) in enumerate(zip(x, y, strict=True))]
    torch.testing.assert_close(listed.cpu(), torch.stack(each), rtol=1e-12, atol=0)


def test_large_powers_stay_in_range_and_what_leaves_it_is_refused():
    """Of distances of some thousands the 12th power is far over what float32 holds."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(2, 9, 4096, generator=generator) for _ in range(2))
    powers = device.device_powers(x, y, p=12, ground=1)[:, 0]
    expected = torch.stack([wasserstein(a.double(), b.double(), p=12, ground=1) for a, b in zip(x, y, strict=True)])
    torch.testing.assert_close(powers ** (1 / 12), expected, rtol=1e-5, atol=0)
    with pytest.raises(ValueError, match="must be finite, got infinity"):
        device.device_powers(x, y, p=200, ground=1)
