"""How well one number predicts another: closed forms, an oracle by scikit-learn and SciPy, invariances."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lisse.maths.prediction import predictive_power


def drawn(n=40, groups=10, noise=0.3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, generator=generator, dtype=torch.float64)
    y = 2 * x + noise * torch.randn(n, generator=generator, dtype=torch.float64)
    return x, y, [i % groups for i in range(n)]


def test_a_line_is_predicted_without_a_miss():
    x = torch.arange(12.0)
    power = predictive_power(x, 3 - 2 * x, list(range(12)))
    assert float(power.skill.value) == pytest.approx(1.0, abs=1e-12)
    assert float(power.rank.value) == pytest.approx(-1.0)
    assert float(power.rank.high) == pytest.approx(-1.0)
    assert (power.groups, power.skill.n) == (12, 12)


def test_it_is_leave_one_group_out_of_scikit_learn_and_spearman_of_scipy():
    from scipy.stats import spearmanr
    from sklearn.dummy import DummyRegressor
    from sklearn.linear_model import LinearRegression
    from sklearn.model_selection import LeaveOneGroupOut, cross_val_predict

    x, y, groups = drawn(noise=2.0)
    x = (x * 3).round()  # ties
    power = predictive_power(x, y, groups, resamples=200)
    folds = {"groups": groups, "cv": LeaveOneGroupOut()}
    misses = [
        ((cross_val_predict(model, x[:, None].numpy(), y.numpy(), **folds) - y.numpy()) ** 2).sum()
        for model in (LinearRegression(), DummyRegressor())
    ]
    assert float(power.skill.value) == pytest.approx(1 - misses[0] / misses[1])
    assert float(power.rank.value) == pytest.approx(spearmanr(x, y).statistic)


def test_noise_predicts_nothing_and_members_of_a_group_do_not_help_each_other():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(20, generator=generator).repeat_interleave(10)
    y = torch.randn(20, generator=generator).repeat_interleave(10)
    together = predictive_power(x, y, [i // 10 for i in range(200)])
    apart = predictive_power(x, y, list(range(200)))
    assert float(together.skill.value) < float(apart.skill.value)
    assert float(together.skill.low) < 0 < float(together.skill.high) + 0.2
    assert float(together.skill.high - together.skill.low) > float(apart.skill.high - apart.skill.low)


def test_units_do_not_matter_and_seeds_only_to_the_ends():
    x, y, groups = drawn()
    first = predictive_power(x, y, groups, generator=torch.Generator().manual_seed(0))
    moved = predictive_power(5 - 3 * x, y * 7 + 2, groups, generator=torch.Generator().manual_seed(0))
    for a, b in ((first.skill, moved.skill),):
        assert float(a.value) == pytest.approx(float(b.value))
        assert float(a.low) == pytest.approx(float(b.low))
    assert float(moved.rank.value) == pytest.approx(-float(first.rank.value))
    wide = predictive_power(x, y, groups, level=0.99, generator=torch.Generator().manual_seed(0))
    assert float(wide.skill.low) < float(first.skill.low)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    # y = 2 x + 2 e: the R² of the true line is 1/2; of 100 draws of 40 groups, 95 % cover it up to 4 standard errors.
    hits = 0
    for seed in range(100):
        x, y, groups = drawn(40, 40, noise=2.0, seed=seed)
        skill = predictive_power(x, y, groups, resamples=300, generator=torch.Generator().manual_seed(seed)).skill
        hits += float(skill.low) <= 0.5 <= float(skill.high)
    assert hits >= 95 - 4 * np.sqrt(100 * 0.95 * 0.05)


@pytest.mark.parametrize(
    ("x", "y", "groups"),
    [(torch.ones(9), torch.arange(9.0), range(9)), (torch.arange(9.0), torch.ones(9), range(9)),
     (torch.arange(9.0), torch.arange(9.0), [i % 2 for i in range(9)])],
)  # fmt: skip
def test_what_cannot_be_known_is_nan(x, y, groups):
    power = predictive_power(x, y, list(groups))
    assert all(torch.isnan(end) for interval in (power.skill, power.rank) for end in (interval.value, interval.low))


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="x, y and groups must be as long as each other"):
        predictive_power(torch.ones(3), torch.ones(3), [1, 2])
