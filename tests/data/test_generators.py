from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import norm

from lisse.data import load_data
from lisse.data.generators import STRIPE, coarser, rings, stripe, torus


def test_points_lie_on_the_circles_without_noise():
    data = rings(400, noise=0.0)
    a, b = data.inputs[data.targets == 0].double(), data.inputs[data.targets == 1].double()
    torch.testing.assert_close(a[:, 0] ** 2 + a[:, 1] ** 2, torch.ones(200).double(), atol=1e-6, rtol=0)
    assert bool((a[:, 2] == 0).all())
    torch.testing.assert_close((b[:, 0] - 1) ** 2 + b[:, 2] ** 2, torch.ones(200).double(), atol=1e-6, rtol=0)
    assert bool((b[:, 1] == 0).all())


def linking_number(a, b):
    """Gauss's double sum over two closed polygons (midpoints)."""
    da, db = a.roll(-1, 0) - a, b.roll(-1, 0) - b
    r = (a + da / 2)[:, None] - (b + db / 2)[None]
    cross = torch.linalg.cross(da[:, None].expand_as(r), db[None].expand_as(r))
    return float((r * cross).sum(-1).div(r.norm(dim=-1) ** 3).sum() / (4 * math.pi))


@pytest.mark.parametrize(("offset", "wanted"), [(1.0, -1.0), (2.5, 0.0)])
def test_rings_are_linked(offset, wanted):
    data = rings(4000, noise=0.0, offset=offset)
    a, b = data.inputs[data.targets == 0].double(), data.inputs[data.targets == 1].double()
    a = a[torch.atan2(a[:, 1], a[:, 0]).argsort()]
    b = b[torch.atan2(b[:, 2], b[:, 0] - offset).argsort()]
    assert linking_number(a, b) == pytest.approx(wanted, abs=2e-3)


def test_noise_is_a_variance_unless_it_is_said_to_be_a_standard_deviation():
    for kind, sigma in (("variance", math.sqrt(0.01)), ("std", 0.01)):
        z = rings(20000, noise=0.01, noise_is=kind).inputs
        z = z[::2, 2]  # the first ring has z = 0
        error = sigma / math.sqrt(2 * len(z))
        assert float(z.std()) == pytest.approx(sigma, abs=4 * error)


def test_torus_points_and_sectors():
    data = torus(3000, noise=0.0, major=3.0, minor=0.5, sectors=8)
    x, y, z = data.inputs.double().T
    torch.testing.assert_close((x.hypot(y) - 3) ** 2 + z**2, torch.full_like(x, 0.25), atol=1e-5, rtol=0)
    theta = torch.atan2(y, x) % (2 * math.pi)
    inside = (theta * 8 / (2 * math.pi) - data.targets - 0.5).abs()
    assert float(inside.max()) <= 0.5 + 1e-5
    counts = data.targets.bincount(minlength=8)
    assert float((counts - 375).abs().max()) < 5 * math.sqrt(3000 * 1 / 8 * 7 / 8)


def test_levels_are_nested():
    fine = torus(500, sectors=8, noise=0.0)
    for into in (4, 2, 1):
        assert torch.equal(coarser(fine.targets, 8, into), torus(500, sectors=into, noise=0.0).targets)
    with pytest.raises(ValueError, match="into must divide sectors = 8, got 3"):
        coarser(fine.targets, 8, 3)


def test_stripe_is_balanced_and_only_sees_the_first_direction():
    low, high = STRIPE
    assert norm.cdf(high) - norm.cdf(low) == pytest.approx(0.5, abs=5e-7)
    n = 20000
    data = stripe(n)
    assert data.inputs.shape == (n, 30)
    assert torch.equal(data.targets == 1, (data.inputs[:, 0] > low) & (data.inputs[:, 0] < high))
    assert abs(float(data.targets.float().mean()) - 0.5) < 4 * 0.5 / math.sqrt(n)
    assert abs(float(data.inputs.mean())) < 4 / math.sqrt(n * 30)
    assert float(data.inputs.var()) == pytest.approx(1, abs=4 * math.sqrt(2 / (n * 30)))
    assert stripe(10, d=4).inputs.shape == (10, 4)


@pytest.mark.parametrize("name", ["rings", "torus", "stripe", "sentences"])
def test_seeds_and_splits(name):
    one = load_data(f"{name}?n=50", seed=1)
    assert load_data(f"{name}?n=50", seed=1).fingerprint() == one.fingerprint()
    assert load_data(f"{name}?n=50", seed=2).fingerprint() != one.fingerprint()
    assert load_data(f"{name}?n=50", seed=1, split="train").fingerprint() != one.fingerprint()
    assert load_data(f"{name}?n=50", seed=0).fingerprint() == load_data(f"{name}?n=50", seed=None).fingerprint()
    assert len(one) == 50


def test_global_random_state_is_left_alone():
    before = torch.random.get_rng_state()
    for name in ("shapes", "rings", "torus", "stripe", "sentences", "digits"):
        load_data(name, limit=5)
    assert torch.equal(before, torch.random.get_rng_state())


BAD = [
    (lambda: rings(1), "rings: n must lie in 2 … 10000000, got 1"),
    (lambda: rings(noise=-1.0), "noise must be finite and at least 0, got -1.0"),
    (lambda: rings(noise=math.nan), "noise must be finite"),
    (lambda: rings(noise_is="sd"), "noise_is must be 'variance' or 'std', got 'sd'"),
    (lambda: torus(0), "torus: n must lie in 1"),
    (lambda: torus(minor=3.0), "0 < minor < major, got 2.0 and 3.0"),
    (lambda: torus(sectors=0), "sectors must lie in 1 … 100000, got 0"),
    (lambda: torus(sectors=10**12), "sectors must lie in 1 … 100000, got 1000000000000"),
    (lambda: torus(major=math.inf), "must be finite with 0 < minor < major, got inf and 1.0"),
    (lambda: load_data("rings?offset=nan"), "rings: offset must be finite, got nan"),
    (lambda: stripe(10**7, d=31), "n · d must be at most 300,000,000 numbers, got 10000000 · 31"),
    (lambda: stripe(1, d=10**12), "n · d must be at most"),
    (lambda: stripe(5, d=0), "d must be at least 1, got 0"),
    (lambda: stripe(10**12), "n must lie in 1 … 10000000"),
    (lambda: load_data("rings", split="val"), "rings: split must be one of train, test, got 'val'"),
]


@pytest.mark.parametrize(("make", "match"), BAD)
def test_bad_input(make, match):
    with pytest.raises(ValueError, match=match):
        make()
