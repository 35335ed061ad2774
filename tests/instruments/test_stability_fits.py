from __future__ import annotations

import math

import pytest

from lisse.instruments import Stability
from lisse.instruments.stability_fits import (
    delta_law,
    displacements,
    error_law,
    over_seeds,
    size_law,
    stability_row,
    training_change,
)
from lisse.profile import Part, Profile, Row


def profile(r, *, d=0.1, cut=3, deltas=(1.0,), name="net", width=0.1, more=()):
    """A profile whose output has D = d and R = r at every δ (or a function of it), with an interval of ± width."""
    made = list(more)
    for delta in deltas:
        at = {"cut": cut, "delta": delta}
        here = r(delta) if callable(r) else r
        up = d(delta) if callable(d) else d
        values = {"relative_stability": here, "deformation_stability": up, "noise_stability": up / here}
        for quantity, value in values.items():
            made.append(Row(quantity, 5 * value, "estimate", 100, "input", 0.0, 4 * value, 6 * value, at))
            ends = value * (1 - width), value * (1 + width)
            made.append(Row(quantity, value, "estimate", 100, "output", 1.0, *ends, at))
    return Profile((Part("stability", tuple(made), Stability.QUANTITIES),), {"model": {"name": name}})


def test_the_row_of_the_output_or_of_a_layer():
    one = profile(0.2, deltas=(0.5, 1.0))
    assert stability_row(one, delta=1.0).value == 0.2
    assert stability_row(one, delta=1.0, layer="input").value == 1.0
    assert stability_row(one, "deformation_stability", delta=0.5).value == 0.1
    two = profile(0.2, cut=3, more=profile(0.7, cut=5).rows)
    assert stability_row(two, cut=5).value == 0.7
    with pytest.raises(ValueError, match=r"cut must be one of 5, 3, got none"):
        stability_row(two)
    with pytest.raises(ValueError, match="cut must be one of 5, 3, got 4"):
        stability_row(two, cut=4)
    with pytest.raises(ValueError, match="layer must be one of input, output, got 'x'"):
        stability_row(profile(0.2), layer="x")
    with pytest.raises(ValueError, match="quantity must be one of relative_stability"):
        stability_row(one, "norm")
    with pytest.raises(ValueError, match="profile must hold relative_stability"):
        stability_row(Profile((), {}))
    other = Row("relative_stability", 0.9, "estimate", 10, "output", 1.0, 0.8, 1.0,
                {"cut": 3, "delta": 1.0, "statistic": "mean"})  # fmt: skip
    both = profile(0.2, more=(other,))
    assert stability_row(both, statistic="mean").value == 0.9
    assert stability_row(both, statistic="median").value == 0.2


def test_seeds_are_brought_together_by_the_geometric_mean():
    found = over_seeds([profile(0.1), profile(0.4)])
    assert float(found.value) == pytest.approx(0.2)
    assert found.n == 2
    assert float(found.low) < 0.2 < float(found.high)
    assert over_seeds([profile(0.1), profile(0.4)], level=0.5).high < found.high
    alone = over_seeds(profile(0.1))
    assert (float(alone.low), float(alone.high)) == pytest.approx((0.09, 0.11))
    with pytest.raises(ValueError, match="network must be a profile or several, got none"):
        over_seeds([])


def test_error_against_relative_stability():
    """The paper's own line, 0.24 √R, is found; a seed's spread is averaged away in logarithms."""
    networks = [[profile(r / 2), profile(2 * r)] for r in (0.01, 0.05, 0.2, 1.0)]
    errors = [0.24 * r**0.5 for r in (0.01, 0.05, 0.2, 1.0)]
    law = error_law(networks, errors)
    assert float(law.slope.value) == pytest.approx(0.5)
    assert float(law.prefactor.value) == pytest.approx(0.24)
    assert float(law.correlation.value) == pytest.approx(1.0)
    fixed = error_law(networks, [(e / 3, 3 * e) for e in errors], slope=0.5)
    assert fixed.fixed
    assert float(fixed.prefactor.value) == pytest.approx(0.24)
    other = error_law(networks, errors, "noise_stability")
    assert float(other.slope.value) == pytest.approx(-0.5)
    assert float(error_law(networks, errors, layer="input").prefactor.value) == pytest.approx(0.24 / 5**0.5)
    with pytest.raises(ValueError, match="errors must have one entry per network, got 3 for 4"):
        error_law(networks, errors[:3])


def test_stability_against_the_number_of_training_samples():
    sizes = [100, 1000, 10_000, 50_000]
    networks = [profile(3 / p**0.4, d=p**0.1) for p in sizes]
    assert float(size_law(networks, sizes).slope.value) == pytest.approx(-0.4)
    assert float(size_law(networks, sizes).prefactor.value) == pytest.approx(3.0)
    assert float(size_law(networks, sizes, "deformation_stability").slope.value) == pytest.approx(0.1)
    assert float(size_law(networks, sizes, "noise_stability").slope.value) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="sizes must have one entry per network, got 1 for 4"):
        size_law(networks, [1])


def test_stability_against_the_displacement():
    one = profile(lambda d: 0.2, d=lambda d: 0.01 * d**2, deltas=(0.25, 0.5, 1.0, 2.0))
    assert displacements(one) == [0.25, 0.5, 1.0, 2.0]
    assert float(delta_law(one).slope.value) == pytest.approx(0.0, abs=1e-9)
    assert float(delta_law(one, "deformation_stability").slope.value) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="displacements: network must be a profile or several, got none"):
        delta_law([])
    assert displacements([one, profile(0.1, deltas=(0.5, 2.0))]) == [0.5, 2.0]


def test_initialisation_against_the_trained_network():
    change = training_change(profile(1.0), profile(0.1))
    assert float(change.factor.value) == pytest.approx(0.1)
    up = math.hypot(math.log(1.1), math.log(1 / 0.9))
    assert float(change.factor.high) == pytest.approx(0.1 * math.exp(up))
    assert float(change.factor.low) == pytest.approx(0.1 * math.exp(-up))
    assert (float(change.before.value), float(change.after.value)) == (1.0, 0.1)
    seeds = training_change([profile(0.8), profile(1.25)], [profile(0.05), profile(0.2)])
    assert float(seeds.factor.value) == pytest.approx(0.1)
    assert float(seeds.factor.low) < 0.1 < float(seeds.factor.high)
