from __future__ import annotations

import numpy as np
import ot
import pytest
import torch
from scipy.spatial.distance import cdist

from lisse.maths.transport import Measure, wasserstein
from lisse_experiments.regularity import estimates


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


def test_entropic_tends_to_the_distance_from_above():
    exact = float(wasserstein(X, Y))
    values = []
    for epsilon in (0.5, 0.1, 0.01):
        found = estimates.entropic_wasserstein(X, Y, epsilon=epsilon)
        assert found.converged
        torch.testing.assert_close(
            found.coupling.sum(1), torch.full((3,), 1 / 3, dtype=torch.float64), atol=1e-8, rtol=0
        )
        values.append(float(found.value))
    assert values[0] > values[1] > values[2] >= exact - 1e-9
    assert values[2] == pytest.approx(exact, rel=1e-3)
    assert not estimates.entropic_wasserstein(X, Y, epsilon=0.01, max_iter=2).converged
    cost = cdist(X, Y, "cityblock")
    oracle = ot.sinkhorn(np.full(3, 1 / 3), np.full(5, 0.2), cost, 0.5 * cost.mean(), stopThr=1e-12)
    np.testing.assert_allclose(estimates.entropic_wasserstein(X, Y, epsilon=0.5).coupling, oracle, atol=1e-8)


def test_sliced_is_exact_on_the_line_and_right_for_a_shift():
    x, y = cloud(6, 1), cloud(4, 1, 1)
    for p in (1, 2):
        found = estimates.sliced_wasserstein(x, y, p=p, generator=generator())
        torch.testing.assert_close(found.value, wasserstein(x, y, p=p))
        assert float(found.error) == pytest.approx(0, abs=1e-12)
    x = cloud(10, 3)
    shift = torch.tensor([3.0, 0.0, 4.0]).double()
    found = estimates.sliced_wasserstein(x, x + shift, p=2, directions=4000, generator=generator())
    assert float(found.value) == pytest.approx(5 / 3**0.5, abs=4 * float(found.error))  # E⟨θ, s⟩² = |s|²/d
    assert found.n == 4000
    mu = Measure(x, weights(10))
    below = estimates.sliced_wasserstein(mu, cloud(7, 3, 5), p=2, generator=generator())
    assert float(below.value) <= float(wasserstein(mu, cloud(7, 3, 5), p=2, ground=2))


def test_unbalanced_lies_between_nothing_and_the_distance():
    exact = float(wasserstein(X, Y))
    values = [estimates.unbalanced_transport(X, Y, penalty=penalty) for penalty in (0.01, 1.0, 50.0)]
    assert all(found.converged for found in values)
    assert 0 < float(values[0].value) < float(values[1].value) < float(values[2].value) <= exact
    assert float(values[2].value) == pytest.approx(exact, rel=2e-2)
    far = estimates.unbalanced_transport(torch.zeros(1, 1), torch.tensor([[1e3]]), penalty=1.0)
    assert float(far.value) == pytest.approx(2.0)  # both masses are given up: λ(1 + 1)


def test_bad_options_of_estimates():
    with pytest.raises(ValueError, match="epsilon must be positive, got 0"):
        estimates.entropic_wasserstein(X, Y, epsilon=0)
    with pytest.raises(ValueError, match="penalty must be positive"):
        estimates.unbalanced_transport(X, Y, penalty=-1)
    with pytest.raises(ValueError, match="directions must be at least 2"):
        estimates.sliced_wasserstein(X, Y, directions=1)
