"""Transport on a CUDA device: the kernels' costs and assignments are those of the CPU."""

from __future__ import annotations

import pytest
import torch
from scipy.optimize import linear_sum_assignment

from lisse.maths.transport import wasserstein_batch
from lisse.maths.transport.device import _solved, device_costs, device_powers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ground", [1, 2])
@pytest.mark.parametrize(("n", "m", "d", "heads"), [(1, 1, 2, 1), (197, 197, 96, 3), (65, 130, 70, 2), (64, 31, 32, 1)])
def test_costs_are_the_cpus(dtype, ground, n, m, d, heads):
    x, y = drawn(3, n, d, dtype=dtype), drawn(3, m, d, seed=1, dtype=dtype)
    split = (side.double().unflatten(2, (heads, -1)).transpose(1, 2).flatten(0, 1) for side in (x, y))
    expected = torch.cdist(*split, p=float(ground), compute_mode="donot_use_mm_for_euclid_dist")
    costs = device_costs(x.cuda(), y.cuda(), ground=ground, heads=heads).cpu()
    assert costs.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(costs.double(), expected, rtol=1e-13 if dtype == torch.float64 else 1e-6, atol=0)


@pytest.mark.parametrize("kind", ["real", "ties", "alike", "near"])
@pytest.mark.parametrize("n", [1, 2, 3, 31, 32, 33, 197, 300, 600, 1024])
def test_assignments_are_scipys(kind, n):
    costs = drawn(3, n, n, seed=n).abs()
    if kind == "ties":
        costs = (3 * costs).floor()
    elif kind == "alike":
        costs = torch.ones_like(costs)
    elif kind == "near":
        points = drawn(3, n, 4, seed=n)
        costs = torch.cdist(points, points + 0.3 * drawn(3, n, 4, seed=n + 1), p=1)
    sizes = [(n, n), (max(1, n - 1),) * 2, (n, n)]
    means = []
    for table, (k, _) in zip(costs.numpy(), sizes, strict=True):
        corner = table[:k, :k]
        means.append(corner[linear_sum_assignment(corner)].mean())
    powers = _solved(costs.cuda(), sizes, metric=True).cpu()
    torch.testing.assert_close(powers, torch.tensor(means, dtype=torch.float64), rtol=1e-12, atol=1e-14)


def test_costs_that_are_not_finite_end():
    costs = drawn(3, 40, 40).abs()
    costs[1] = torch.nan
    costs[2, 5] = torch.inf
    powers = _solved(costs.cuda(), [(40, 40)] * 3, metric=True).cpu()
    assert powers.isfinite().tolist() == [True, False, False]


@pytest.mark.parametrize(("p", "ground"), [(1, 1), (1, 2), (2, 2), (1.5, 1), (1, float("inf"))])
def test_sets_of_any_sizes_are_the_cpus(p, ground):
    x, y = drawn(6, 12, 40), drawn(6, 9, 40, seed=1)
    lists = ([one[: 4 + k] for k, one in enumerate(x)], [one[: 4 + k % 3] for k, one in enumerate(y)])
    expected = wasserstein_batch(*lists, p=p, ground=ground)
    there = wasserstein_batch(*([one.cuda() for one in side] for side in lists), p=p, ground=ground)
    assert there.is_cuda
    torch.testing.assert_close(there.cpu(), expected, rtol=1e-12, atol=0)
    by_head = device_powers(x[:, :9].cuda(), y.cuda(), p=p, ground=ground, heads=4).cpu() ** (1 / p)
    for head in range(4):
        part = slice(10 * head, 10 * head + 10)
        expected = wasserstein_batch(x[:, :9, part], y[..., part], p=p, ground=ground)
        torch.testing.assert_close(by_head[:, head], expected, rtol=1e-12, atol=0)
