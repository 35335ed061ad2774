from __future__ import annotations

import pytest
import torch

from lisse.maths.comparison import cloud_difference, paired_difference, share_difference
from lisse.maths.decision import Pairing, decision_rates


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def page(n: int = 150, clouds: int = 10, seed: int = 0) -> list[Pairing]:
    """Numbers as a page has them: heavy tails, ties, values that hang together, a few clouds. Half of them differ."""
    draw = generator(seed)
    hard = torch.randn(n, generator=draw, dtype=torch.float64)
    noise = torch.randn(6, n, generator=draw, dtype=torch.float64)
    stretch = (hard + 0.3 * noise[0]).exp()
    distance = (-hard + 0.5 * noise[1]).exp()
    right = hard < 1.2
    shape = 5 + torch.randn(clouds, generator=draw, dtype=torch.float64)
    small = 0.05 * torch.randn(clouds, generator=draw, dtype=torch.float64)
    return [
        Pairing(stretch, stretch * (0.1 * noise[2]).exp() + 0.2),  # differs
        Pairing(stretch, (hard + 0.3 * noise[3]).exp()),  # does not
        Pairing(distance, 1.5 * distance * (0.2 * noise[4]).exp(), "median"),  # differs
        Pairing(distance, (-hard + 0.5 * noise[5]).exp(), "median"),  # does not
        Pairing(right, right & (noise[2] < 1), "share"),  # differs
        Pairing(right, (right & (noise[3] < 2)) | (noise[4] > 2), "share"),  # hardly
        Pairing(shape, shape + 1 + small, "clouds"),  # differs by the same on every cloud
        Pairing(stretch.round(), (stretch + 0.2 * noise[5]).round()),  # mostly ties
    ]


def test_a_pairing_is_the_comparison_of_its_statistic():
    family = page()
    a, b = family[0].a, family[0].b
    assert family[0].difference(generator=generator(1)) == paired_difference(a, b, generator=generator(1))
    a, b = family[2].a, family[2].b
    assert family[2].difference(generator=generator(1)) == paired_difference(a, b, "median", generator=generator(1))
    assert family[4].difference(level=0.9) == share_difference(family[4].a, family[4].b, level=0.9)
    assert family[6].difference() == cloud_difference(family[6].a, family[6].b)


def test_what_is_equal_is_never_called_and_what_is_far_always():
    a = torch.arange(30.0)
    family = [Pairing(a, a), Pairing(a + 3, a), Pairing(a > 3, a > 20, "share")]
    rates = decision_rates(family, "resample", trials=10, resamples=499, generator=generator())
    assert rates.each_pairing.tolist() == [0, 1, 1]
    assert float(rates.anything.value) == 1
    assert (rates.trials, rates.anything.n) == (10, 10)
    alone = decision_rates(family[:1], "swap", trials=10, resamples=199, generator=generator())
    assert float(alone.anything.value) == 0


@pytest.mark.parametrize("world", ["swap", "resample"])
def test_numbers_of_one_sample_stay_together(world):
    """One number in two units, compared by all swaps: both are called, or neither, in every world."""
    values = torch.randn(10, generator=generator(), dtype=torch.float64)
    family = [Pairing(values, values.flip(0) + 0.5, "clouds"), Pairing(4 * values, 4 * values.flip(0) + 2, "clouds")]
    rates = decision_rates(family, world, trials=60, level=0.2, generator=generator())
    assert 0 < float(rates.anything.value) < 1
    assert rates.each_pairing.tolist() == [float(rates.anything.value)] * 2


def test_calls_are_corrected_for_their_number():
    """Six clouds that differ by the same: p is 2/64 in every draw, enough alone and too much for two."""
    values = torch.arange(6.0)
    family = [Pairing(values + 1, values, "clouds")]
    assert decision_rates(family, "resample", trials=3, generator=generator()).each_pairing.tolist() == [1]
    assert decision_rates(2 * family, "resample", trials=3, generator=generator()).each_pairing.tolist() == [0, 0]


def test_a_difference_that_changes_sides_is_none():
    """Ten clouds that differ by the same: called where nine or ten signs agree, 22/1024, at 95 %."""
    values = torch.arange(10.0)
    rates = decision_rates([Pairing(values + 1, values, "clouds")], "swap", trials=400, generator=generator())
    expected = 22 / 1024
    assert abs(float(rates.anything.value) - expected) < 4 * (expected / 400) ** 0.5


def test_more_samples_decide_more():
    a = torch.randn(40, generator=generator(), dtype=torch.float64)
    family = [Pairing(a + 0.2, a - a.flip(0))]
    few, many = (
        decision_rates(family, "resample", trials=40, factor=factor, resamples=199, generator=generator(1))
        for factor in (0.5, 10)
    )
    assert few.each_pairing[0] < many.each_pairing[0]


@pytest.mark.slow
def test_false_calls_and_power_of_a_page():
    """500 worlds in which nothing differs: any false call in at most 35 of them (5 %, and two standard errors). Power,
    as they differ: the four that do are found in most worlds, at this size."""
    family = page()
    null = decision_rates(family, "swap", generator=generator(1))
    assert float(null.anything.value) * 500 <= 35
    power = decision_rates(family, "resample", trials=100, generator=generator(2))
    assert (power.each_pairing[[0, 2, 4, 6]] > 0.8).all()


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: decision_rates([], "swap"), "at least one pairing, got none"),
        (lambda: decision_rates(page(), "other"), "world must be one of swap, resample"),
        (lambda: decision_rates(page(), "swap", trials=0), "trials must be an integer of at least 1"),
        (lambda: decision_rates(page(), "swap", factor=2.0), "factor must be 1 where pairs are swapped"),
        (lambda: decision_rates(page(), "resample", factor=0.0), "factor must be positive"),
    ],
)
def test_bad_input(call, match):
    with pytest.raises(ValueError, match=match):
        call()
