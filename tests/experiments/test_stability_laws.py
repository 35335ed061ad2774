from __future__ import annotations

import math

import pytest

from lisse.instruments import Stability
from lisse.profile import Part, Profile, Row
from lisse_experiments.diffeomorphisms.laws import (
    delta_law,
    displacements,
    error_law,
    over_seeds,
    size_law,
    stability_row,
    training_change,
)


def profile(r, *, d=0.1, cut=3, deltas=(1.0,), name="net", width=0.1, more=(), options=None, **at_more):
    """A profile whose output has D = d and R = r at every δ (or a function of it), with an interval of ± width."""
    made = list(more)
    for delta in deltas:
        at = {"cut": cut, "delta": delta, **at_more}
        here = r(delta) if callable(r) else r
        up = d(delta) if callable(d) else d
        values = {"relative_stability": here, "deformation_stability": up, "noise_stability": up / here}
        for quantity, value in values.items():
            made.append(Row(quantity, 5 * value, "estimate", 100, "input", 0.0, 4 * value, 6 * value, at))
            ends = value * (1 - width), value * (1 + width)
            made.append(Row(quantity, value, "estimate", 100, "output", 1.0, *ends, at))
    return Profile(
        (Part("stability", tuple(made), Stability.QUANTITIES, options=options or {}),), {"model": {"name": name}}
    )


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


def test_a_profiles_own_interval_has_the_profiles_level():
    wide, said = profile(0.1, options={"level": 0.5}), profile(0.1)
    assert over_seeds(wide).level == over_seeds([wide]).level == 0.5
    assert math.isnan(over_seeds(said).level)
    assert over_seeds([wide, profile(0.2)]).level == 0.95
    assert training_change(wide, wide).factor.level == 0.5
    assert math.isnan(training_change(wide, profile(0.1, options={"level": 0.9})).factor.level)
    assert math.isnan(training_change(wide, [wide, wide]).factor.level)
    assert training_change([said, wide], [said, wide], level=0.8).factor.level == 0.8


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"statistic": "mean"}, "got statistic median and statistic mean"),
        ({"radius": "sample"}, "got radius by default and radius sample"),
        ({"interpolation": "gaussian", "modes": "code"}, "interpolation gaussian, modes code"),
        ({"cut": 5}, "got cut 3 and cut 5"),
        ({"deltas": (2.0,)}, r"got delta 1[.]0 and delta 2[.]0"),
    ],
)
def test_what_was_measured_in_different_ways_is_not_mixed(more, said):
    one, other = profile(0.1), profile(0.2, **more)
    with pytest.raises(ValueError, match=f"over_seeds: network must be measured in one way, .*{said}"):
        over_seeds([one, other])
    with pytest.raises(ValueError, match=f"training_change: trained must be measured in one way, .*{said}"):
        training_change(one, other)
    networks, sizes = [one, one, [other, other]], [1, 2, 3]
    if set(more) & {"cut", "deltas"}:
        assert float(size_law([profile(0.1), profile(0.1), [other]], sizes).slope.value) > 0
        return
    with pytest.raises(ValueError, match=f"size_law: networks must be measured in one way, .*{said}"):
        size_law(networks, sizes)
    with pytest.raises(ValueError, match=f"error_law: networks must be measured in one way, .*{said}"):
        error_law(networks, [0.1, 0.2, 0.3])
    if "statistic" not in more:
        with pytest.raises(ValueError, match=f"stability_row: profile must be measured in one way, .*{said}"):
            stability_row(Profile(one.parts + other.parts, {}))


@pytest.mark.parametrize("bad", [0.0, -0.1, math.nan, (), (0.1, 0.0)])
def test_an_error_of_0_has_no_place_on_a_power_law(bad):
    with pytest.raises(ValueError, match=r"error_law: errors must be positive and finite, got .* for network 1"):
        error_law([profile(0.1), profile(0.2), profile(0.3)], [0.1, bad, 0.3])


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
