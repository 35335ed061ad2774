from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lisse.maths.comparison import (
    Difference,
    cloud_difference,
    group_difference,
    holm,
    least_clouds,
    paired_difference,
    samples_to_decide,
    share_difference,
    statistic_of,
    weakest,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=generator(seed), dtype=torch.float64)


def answers(both: int, first: int, second: int, none: int) -> tuple[torch.Tensor, torch.Tensor]:
    a = [True] * (both + first) + [False] * (second + none)
    b = [True] * both + [False] * first + [True] * second + [False] * none
    return torch.tensor(a), torch.tensor(b)


# --- closed forms ---------------------------------------------------------------------------------------------------


def test_equal_models_do_not_differ():
    a = normal(30)
    for difference in (
        paired_difference(a, a, generator=generator()),
        paired_difference(a, a, "median", generator=generator()),
        cloud_difference(a[:5], a[:5]),
    ):
        assert (float(difference.value), float(difference.low), float(difference.high)) == (0, 0, 0)
        assert difference.p == 1
        assert difference.spread == 0


def test_a_constant_difference_is_seen_as_far_as_swaps_go():
    a = torch.arange(40.0)
    many = paired_difference(a + 1, a, generator=generator())
    assert (float(many.value), float(many.low), float(many.high)) == (1, 1, 1)
    # no resample reaches 0, which is taken as half a resample: Student's tail at that normal quantile
    farthest = scipy.stats.norm.isf(0.5 / 9999) * (39 / 40) ** 0.5
    assert many.p == pytest.approx(2 * scipy.stats.t.sf(farthest, 39))
    assert cloud_difference(a + 1, a, resamples=999, generator=generator()).p == 1 / 1000
    few = cloud_difference(torch.arange(5.0) + 1, torch.arange(5.0))
    assert (float(few.value), float(few.low), float(few.high)) == (1, 1, 1)
    assert few.p == 2 / 2**5


@pytest.mark.parametrize("last", [9.0, 40.0])  # Student's p is the smaller one first, then, with an outlier, the larger
def test_clouds_have_students_interval_and_every_swap(last):
    a, b = torch.tensor([3.0, 5.0, 4.0, 6.0, 2.5, 7.0, last]), torch.tensor([2.0, 4.5, 4.5, 4.0, 2.0, 5.0, 5.0])
    difference = cloud_difference(a, b, level=0.9)
    student = scipy.stats.ttest_rel(a, b)
    interval = student.confidence_interval(0.9)
    assert (float(difference.low), float(difference.high)) == pytest.approx((interval.low, interval.high))
    swaps = scipy.stats.permutation_test(
        (a.numpy() - b.numpy(),), np.mean, permutation_type="samples", n_resamples=np.inf, vectorized=True
    ).pvalue
    assert (student.pvalue > swaps) == (last == 40)
    assert difference.p == pytest.approx(max(student.pvalue, swaps))
    assert difference.spread == pytest.approx(float((a - b).std()))


def test_five_clouds_decide_nothing_and_least_clouds_says_how_many_do():
    assert cloud_difference(normal(5) + 100, normal(5, 1)).p == 0.0625
    assert least_clouds() == 6
    assert least_clouds(20) == 10
    assert least_clouds(1, level=0.5) == 2
    for comparisons in (1, 3, 20, 100):
        k = least_clouds(comparisons)
        assert 2 ** (1 - k) * comparisons <= 0.05 < 2 ** (2 - k) * comparisons


def test_shares_of_the_airway_study():
    """The example of [fagerland2013] and of the same authors' comparison of intervals: mid-p 0.0391; Tango's interval
    (-0.517, -0.026)."""
    difference = share_difference(*answers(1, 1, 7, 12))
    assert difference.p == 10 / 256
    assert float(difference.value) == pytest.approx(-6 / 21)
    assert (float(difference.low), float(difference.high)) == pytest.approx((-0.517, -0.026), abs=5e-4)


def test_shares_without_disagreement_have_an_interval_all_the_same():
    for both in (0, 5, 10):
        difference = share_difference(*answers(both, 0, 0, 10 - both))
        # With r = s = 0 the likeliest share of s is 0, and |nΔ| = z sqrt(n Δ(1 - Δ)) gives Δ = z²/(n + z²).
        end = 1.959964**2 / (10 + 1.959964**2)
        assert (float(difference.low), float(difference.high)) == pytest.approx((-end, end), rel=1e-6)
        assert (difference.p, float(difference.value), difference.spread) == (1, 0, 0)


def test_shares_at_the_end_of_the_scale():
    difference = share_difference(torch.ones(8, dtype=torch.bool), torch.zeros(8, dtype=torch.bool))
    assert (float(difference.value), float(difference.high)) == (1, 1)
    assert difference.p == 2**-8
    assert 0 < float(difference.low) < 1


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]).tolist() == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9]).tolist() == [0.9]
    assert holm([0.5, 0.9]).tolist() == [1.0, 1.0]
    assert holm([]).tolist() == []


def test_the_weakest_of_several_speaks_for_all():
    def part(value, p):
        return Difference(*(torch.tensor(number) for number in (value, value - 1, value + 1)), 10, 0.95, p, 1.0)

    assert weakest([part(2.0, 0.01), part(3.0, 0.2), part(1.0, 0.03)]) == part(2.0, 0.2)
    assert weakest([part(2.0, 0.01), part(-1.0, 0.02)]).p == 1
    assert weakest([part(2.0, 0.01), part(0.0, 0.02)]).p == 1
    assert weakest([part(-2.0, 0.01)]).p == 0.01


def test_samples_to_decide_by_hand():
    # (1.959964 + 0.841621)² / 0.25 + 1.959964² / 2 = 33.3
    assert samples_to_decide(0.5, 1.0) == 34
    assert samples_to_decide(-0.5, 1.0) == 34
    assert samples_to_decide(0.0, 1.0) == math.inf
    assert samples_to_decide(1.0, 0.0) == 2


# --- properties -----------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(
    n=st.integers(8, 40),
    seed=st.integers(0, 1000),
    scale=st.floats(0.01, 100),
    shift=st.floats(-100, 100),
    statistic=st.sampled_from(["mean", "median"]),
)
def test_it_turns_with_the_models_and_scales_with_the_values(n, seed, scale, shift, statistic):
    a, b = normal(n, seed), normal(n, seed + 1) + 0.5
    options = {"statistic": statistic, "resamples": 199}
    base = paired_difference(a, b, **options, generator=generator(3))
    turned = paired_difference(b, a, **options, generator=generator(3))
    scaled = paired_difference(scale * a + shift, scale * b + shift, **options, generator=generator(3))
    for other, factor, low, high in ((turned, -1, turned.high, turned.low), (scaled, scale, scaled.low, scaled.high)):
        assert other.p == pytest.approx(base.p, rel=1e-6)
        torch.testing.assert_close(other.value, factor * base.value, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(low, factor * base.low, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(high, factor * base.high, rtol=1e-6, atol=1e-8)
    assert base.low <= base.value <= base.high


@settings(max_examples=60)
@given(n=st.integers(8, 60), seed=st.integers(0, 10_000), size=st.floats(0, 1.2))
def test_a_small_p_means_an_interval_without_zero(n, seed, size):
    a, b = normal(n, seed).exp(), normal(n, seed + 1).exp() + size
    for statistic in ("mean", "median"):
        difference = paired_difference(a, b, statistic, resamples=499, generator=generator(seed), level=0.9)
        if difference.p < 0.1 - 2 / 499:
            assert not difference.low <= 0 <= difference.high


@given(
    st.integers(0, 30), st.integers(0, 30), st.integers(0, 30), st.integers(0, 30), st.sampled_from([0.9, 0.95, 0.99])
)
def test_shares_turn_with_the_models_and_agree_with_their_p(both, first, second, none, level):
    if both + first + second + none < 2:
        return
    a, b = answers(both, first, second, none)
    difference, turned = share_difference(a, b, level=level), share_difference(b, a, level=level)
    assert -1 <= float(difference.low) <= float(difference.value) <= float(difference.high) <= 1
    assert float(turned.low) == pytest.approx(-float(difference.high), abs=1e-10)
    assert turned.p == difference.p
    asymptotic = abs(first - second) > scipy.stats.norm.ppf((1 + level) / 2) * (first + second) ** 0.5
    assert asymptotic == (not difference.low <= 0 <= difference.high)


def test_a_small_mid_p_means_an_interval_without_zero():
    """Tango's interval excludes 0 where McNemar's normal score says so; mid-p is the more careful of the two at the
    levels that are used, for all counts."""
    for level in (0.8, 0.9, 0.95, 0.99):
        z = scipy.stats.norm.ppf((1 + level) / 2)
        for trials in range(1, 200):
            least = np.arange((trials + 1) // 2 + (trials % 2 == 0))
            p = scipy.special.bdtr(least, trials, 0.5) + np.where(
                least, scipy.special.bdtr(np.maximum(least - 1, 0), trials, 0.5), 0
            )
            decided = p <= 1 - level
            assert ((trials - 2 * least)[decided] > z * trials**0.5).all()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.randoms())
def test_holm_keeps_order_and_is_not_below_p(values, random):
    adjusted = holm(values)
    assert (adjusted >= torch.tensor(values, dtype=torch.float64)).all()
    assert (adjusted <= 1).all()
    order = list(range(len(values)))
    random.shuffle(order)
    torch.testing.assert_close(holm([values[i] for i in order]), adjusted[order])


# --- outside and naive versions -------------------------------------------------------------------------------------


def test_a_mean_agrees_with_scipys_bca_of_the_differences():
    n = 60
    a = normal(n).exp()
    b = a + 0.3 * normal(n, 1).exp() - 0.4
    ours = paired_difference(a, b, resamples=20_000, generator=generator(1))
    wider = scipy.stats.norm.cdf(scipy.stats.t.ppf(0.975, n - 1) * (n / (n - 1)) ** 0.5)
    reference = scipy.stats.bootstrap(
        ((a - b).numpy(),), np.mean, method="BCa", confidence_level=2 * wider - 1, n_resamples=20_000, rng=3
    )
    slack = 0.04 * (reference.confidence_interval.high - reference.confidence_interval.low)
    assert abs(float(ours.low) - reference.confidence_interval.low) < slack
    assert abs(float(ours.high) - reference.confidence_interval.high) < slack
    assert ours.spread == pytest.approx(float((a - b).std()), rel=0.03)


@pytest.mark.parametrize("statistic", ["mean", "median"])
def test_all_swaps_of_few_samples_agree_with_scipy(statistic):
    """The p value is at least that of the swaps; here the interval asks for less."""
    a, b = normal(9), normal(9, 1) + 1
    reduce = {"mean": np.mean, "median": np.median}[statistic]
    swaps = scipy.stats.permutation_test(
        (a.numpy(), b.numpy()),
        lambda x, y, axis: reduce(x, axis=axis) - reduce(y, axis=axis),
        permutation_type="samples",
        n_resamples=np.inf,
        vectorized=True,
    ).pvalue
    assert paired_difference(a, b, statistic, generator=generator()).p == pytest.approx(swaps)


def test_random_swaps_come_near_to_all():
    a, b = normal(14), normal(14, 1) + 0.8
    differences = (a - b).numpy()
    signs = 1 - 2 * ((np.arange(2**14)[:, None] >> np.arange(14)) & 1)
    exact = (np.abs(signs @ differences) >= abs(differences.sum()) - 1e-12).mean()
    p = paired_difference(a, b, generator=generator(), resamples=20_000).p
    assert abs(p - exact) < 4 * (exact * (1 - exact) / 20_000) ** 0.5 + 1e-4


@pytest.mark.parametrize("n", [14, 50])
def test_the_p_of_the_interval_is_where_the_interval_ends(n):
    """At one less that p the interval's end is 0 (to the resolution of the resamples)."""
    middle = lambda x: x.sort(0).values[n // 4 : -(n // 4)].mean()  # noqa: E731
    a, b = 0.1 * normal(n), 3 * normal(n, 4) - 1  # far from exchangeable, so that swaps ask for less
    base = paired_difference(a, b, middle, generator=generator(2))
    at_zero = paired_difference(a, b, middle, generator=generator(2), level=1 - base.p)
    end = float(at_zero.low if base.value > 0 else at_zero.high)
    assert abs(end) < 0.01 * base.spread / n**0.5


def test_a_function_gives_what_the_name_gives():
    a, b = normal(25), normal(25, 1)
    for name, function in (("mean", lambda x: x.mean(0)), ("median", lambda x: x.sort(0).values[12])):
        by_name = paired_difference(a, b, name, generator=generator(5), resamples=200)
        by_function = paired_difference(a, b, function, generator=generator(5), resamples=200)
        if name == "mean":  # the jackknife of a median is another
            torch.testing.assert_close((by_name.low, by_name.high), (by_function.low, by_function.high))
        assert float(by_function.value) == pytest.approx(float(by_name.value))
        assert by_function.p == pytest.approx(by_name.p, abs=0.05)


def test_a_ratio_of_means_per_model():
    """Both models answer with the same ratio, from values that differ by a factor: nothing differs."""
    base = torch.stack([normal(30).exp(), normal(30, 1).exp()], 1)
    ratio = lambda x: x[:, 0].mean() / x[:, 1].mean()  # noqa: E731
    equal = paired_difference(3 * base, base, ratio, resamples=200, generator=generator())
    assert (float(equal.value), equal.p) == (pytest.approx(0, abs=1e-12), 1)
    other = paired_difference(base * torch.tensor([2.0, 1.0]), base, ratio, resamples=200, generator=generator())
    assert other.p < 0.02
    assert float(other.value) == pytest.approx(float(ratio(base)))


@pytest.mark.parametrize("name", ["ratio of means", "ratio of medians"])
@pytest.mark.parametrize("factor", [2.0**-40, 3.0, 1000.0])
def test_a_ratio_does_not_see_the_unit_of_a_model_nor_does_its_p(name, factor):
    """A layer times a constant multiplies both parts of R_f: value, interval and p stay."""
    generator = torch.Generator().manual_seed(3)
    a = torch.rand(60, 2, 4, generator=generator, dtype=torch.float64) + 0.5
    b = a * torch.tensor([1.15, 1.0], dtype=torch.float64)[None, :, None] + 0.2 * torch.rand(
        60, 2, 4, generator=generator
    )
    plain, scaled = (
        paired_difference(a, b * k, name, generator=torch.Generator().manual_seed(0)) for k in (1.0, factor)
    )
    assert scaled.p == pytest.approx(plain.p, rel=1e-6)
    assert 0 < plain.p < 0.2
    assert [float(x) for x in (scaled.value, scaled.low, scaled.high)] == pytest.approx(
        [float(x) for x in (plain.value, plain.low, plain.high)], rel=1e-9, abs=1e-12
    )


@pytest.mark.parametrize(("name", "centre"), [("ratio of means", np.mean), ("ratio of medians", np.median)])
def test_a_ratio_by_name_is_that_of_the_function(name, centre):
    """Above over below the line, each over samples and fields together; the function sees one model at a time."""
    pair = torch.stack([normal(2 * 30 * 3, seed).exp().reshape(30, 2, 3) for seed in (0, 1)])
    ratio = lambda x: torch.tensor(centre(x[:, 0].numpy()) / centre(x[:, 1].numpy()))  # noqa: E731
    assert statistic_of(pair[0], name) == pytest.approx(float(ratio(pair[0])))
    by_name = paired_difference(*pair, name, generator=generator(5), resamples=200)
    # By name each model stands in the unit of its own denominator, so that a swap mixes no units.
    scaled = [values / float(centre(values[:, 1].numpy())) for values in pair]
    by_function = paired_difference(*scaled, ratio, generator=generator(5), resamples=200)
    assert float(by_name.value) == pytest.approx(float(ratio(pair[0]) - ratio(pair[1])))
    assert by_name.spread == pytest.approx(by_function.spread)
    if centre is np.mean:  # the jackknife of a median is another
        torch.testing.assert_close((by_name.low, by_name.high), (by_function.low, by_function.high))
        assert by_name.p == pytest.approx(by_function.p)
    equal = paired_difference(3 * pair[0], pair[0], name, resamples=200, generator=generator())
    assert (float(equal.value), equal.p) == (pytest.approx(0, abs=1e-12), 1)


def test_the_number_of_one_model():
    values = torch.tensor([1.0, 2.0, math.inf, 4.0])
    assert [statistic_of(values, word) for word in ("median", lambda x: x[1])] == [3, 2]
    assert statistic_of(values[:2]) == 1.5
    silent = torch.stack([torch.ones(5), torch.zeros(5)], 1)
    assert math.isfinite(statistic_of(silent, "ratio of medians"))


@settings(max_examples=30, deadline=None)
@given(k=st.integers(2, 9), m=st.integers(2, 9), scale=st.floats(0.01, 100), seed=st.integers(0, 999))
def test_two_groups_are_compared_as_scipy_does(k, m, scale, seed):
    a, b = normal(k, seed), 0.3 + scale * normal(m, seed + 1)
    ours, theirs = group_difference(a, b, level=0.9), scipy.stats.ttest_ind(a, b, equal_var=False)
    interval = theirs.confidence_interval(0.9)
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-9)
    assert (float(ours.low), float(ours.high)) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert ours.n == k + m
    assert ours.spread == pytest.approx(float(a.var() + b.var()) ** 0.5)
    back = group_difference(b, a)
    assert (back.p, float(back.value)) == (pytest.approx(ours.p), -float(ours.value))


def test_a_group_of_one_has_the_spread_of_the_other():
    many, one = normal(6), torch.tensor([2.5], dtype=torch.float64)
    theirs = scipy.stats.ttest_ind(many, one)  # pooled: that of the six alone
    assert group_difference(many, one).p == pytest.approx(theirs.pvalue)
    assert group_difference(one, many).p == pytest.approx(theirs.pvalue)


def test_groups_without_spread():
    same = torch.ones(3)
    assert (group_difference(same, same).p, group_difference(same, 2 * same).p) == (1, 0)
    assert group_difference(same, same * (1 + 1e-5), rounding=1e-4).p == 1


def test_equal_medians_of_unequal_spread_are_not_called_different():
    """Swaps alone call them different in far more than 5 % of all draws; what the interval says does not."""
    calls = 0
    for seed in range(60):
        draw = generator(seed)
        a = torch.randn(60, generator=draw, dtype=torch.float64)
        b = 30 * torch.randn(60, generator=draw, dtype=torch.float64)
        calls += paired_difference(a, b, "median", resamples=199, generator=draw).p <= 0.05
    assert calls <= 60 * 0.05 + 4 * (60 * 0.05 * 0.95) ** 0.5


def test_rounding_is_no_difference():
    a = normal(200).abs() + 1
    b = a * (1 + 1e-6 * torch.rand(200, generator=generator(1), dtype=torch.float64))
    assert paired_difference(a, b, generator=generator(), resamples=999).p < 0.01
    assert paired_difference(a, b, generator=generator(), resamples=999, rounding=1e-5).p == 1
    assert cloud_difference(a[:9], b[:9], rounding=1e-5).p == 1


@pytest.mark.parametrize("counts", [(3, 5, 9, 4), (0, 0, 7, 3), (10, 1, 2, 100), (2, 40, 30, 1)])
def test_tangos_ends_are_where_the_score_of_the_likeliest_table_is_z(counts):
    both, first, second, none = counts
    n = sum(counts)
    difference = share_difference(*answers(*counts))
    for end in (float(difference.low), float(difference.high)):

        def surprise(share, end=end):
            return -(
                scipy.special.xlogy(first, share + end)
                + scipy.special.xlogy(second, share)
                + scipy.special.xlogy(both + none, 1 - 2 * share - end)
            )

        likeliest = scipy.optimize.minimize_scalar(
            surprise, bounds=(max(0, -end), (1 - end) / 2), method="bounded", options={"xatol": 1e-12}
        ).x
        score = (first - second - n * end) / (n * (2 * likeliest + end - end**2)) ** 0.5
        assert abs(score) == pytest.approx(1.959964, rel=1e-4)


def test_mid_p_is_the_exact_test_less_half_of_what_was_seen():
    for first, second in ((3, 9), (0, 4), (6, 6), (1, 0), (40, 22)):
        difference = share_difference(*answers(5, first, second, 5))
        exact = scipy.stats.binomtest(first, first + second).pvalue
        if first == second:
            assert difference.p == 1
        else:
            assert difference.p == pytest.approx(exact - scipy.stats.binom.pmf(first, first + second, 0.5))


@given(st.lists(st.floats(1e-3, 1), min_size=1, max_size=8))
def test_holm_is_the_smallest_level_at_which_his_procedure_rejects(values):
    def rejected(alpha):
        order = sorted(range(len(values)), key=lambda index: values[index])
        names = set()
        for rank, index in enumerate(order):
            if values[index] > alpha / (len(values) - rank):
                break
            names.add(index)
        return names

    for index, adjusted in enumerate(holm(values).tolist()):
        if adjusted < 1:
            assert index in rejected(adjusted * (1 + 1e-9))
        assert index not in rejected(adjusted * (1 - 1e-9))


@pytest.mark.parametrize("power", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("ratio", [0.1, 0.4, 0.9])
@pytest.mark.parametrize("comparisons", [1, 10])
def test_samples_to_decide_against_the_noncentral_t(power, ratio, comparisons):
    def reached(n):
        threshold = scipy.stats.t.ppf(1 - 0.025 / comparisons, n - 1)
        return scipy.stats.nct.sf(threshold, n - 1, ratio * n**0.5)

    n = int(samples_to_decide(ratio, 1.0, power=power, comparisons=comparisons))
    exact = next(count for count in range(3, 5000) if reached(count) >= power)
    assert abs(n - exact) <= (1 if comparisons == 1 else 2)
    assert samples_to_decide(ratio, 1.0, power=power, level=0.99) > samples_to_decide(ratio, 1.0, power=power)


# --- simulations ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "statistic", "truth"),
    [
        ("normal", "mean", 0.3),
        ("lognormal", "mean", 2 * math.exp(0.5) - math.exp(0.5)),
        ("lognormal", "median", 1.0),
        ("apart", "median", 1.0),
    ],
)
def test_coverage_of_paired_differences(name, statistic, truth):
    """400 draws of 60 samples: a share of 0.95 has a standard error of 0.011; four of those, and 3 % for skewness."""
    trials, n, covered = 400, 60, 0
    for seed in range(trials):
        draw = generator(seed)
        x, y = (torch.randn(n, generator=draw, dtype=torch.float64) for _ in range(2))
        if name == "normal":
            a, b = x + 0.3 + 0.5 * y, x
        elif name == "lognormal":
            a, b = 2 * x.exp(), (0.8 * x + 0.6 * y).exp()
        else:
            a, b = 1 + 0.2 * x, 3 * y
        difference = paired_difference(a, b, statistic, resamples=999, generator=draw)
        covered += bool(difference.low <= truth <= difference.high)
    assert 0.95 - 0.03 - 0.044 < covered / trials < 0.95 + 0.044


@pytest.mark.slow
def test_coverage_of_shares():
    trials, n, covered, false = 2000, 60, 0, 0
    for seed in range(trials):
        draw = generator(seed)
        easy = torch.rand(n, generator=draw)
        a = torch.rand(n, generator=draw) < 0.6 + 0.4 * easy
        b = torch.rand(n, generator=draw) < 0.5 + 0.4 * easy
        difference = share_difference(a, b)
        covered += bool(difference.low <= 0.1 <= difference.high)
        false += share_difference(a, torch.rand(n, generator=draw) < 0.6 + 0.4 * easy).p <= 0.05
    deviation = (0.95 * 0.05 / trials) ** 0.5
    assert abs(covered / trials - 0.95) < 4 * deviation + 0.005
    assert false / trials < 0.05 + 4 * deviation


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: paired_difference(torch.ones(3), torch.ones(4)), r"values of the same samples, got shapes \[3\]"),
        (lambda: paired_difference(torch.ones(1), torch.ones(1)), "at least 2 samples, got 1"),
        (lambda: paired_difference(torch.tensor(1.0), torch.tensor(1.0)), "values of the same samples"),
        (lambda: paired_difference(torch.tensor([1.0, math.inf]), torch.ones(2)), "a must be finite"),
        (lambda: paired_difference(torch.ones(3), torch.ones(3), "mode"), "ratio of medians or a function, got 'mode'"),
        (lambda: paired_difference(torch.ones(3), torch.ones(3), level=1.0), r"level must lie in \(0, 1\)"),
        (lambda: paired_difference(torch.ones(3), torch.ones(3), resamples=9), "resamples must be at least 100"),
        (lambda: paired_difference(torch.ones(3), torch.ones(3), rounding=-1), "rounding must be at least 0"),
        (lambda: paired_difference(torch.ones(3, 2), torch.ones(3, 2)), r"one number per sample, got \[2\] each"),
        (lambda: group_difference(torch.ones(1), torch.ones(1)), r"three or more together, got shapes \[1\] and \[1\]"),
        (lambda: group_difference(torch.ones(3, 2), torch.ones(3)), r"lists of numbers, .* got shapes \[3, 2\] and"),
        (lambda: paired_difference(torch.ones(3), torch.ones(3), "ratio of means"), r"must be \[n, 2, …\] for a ratio"),
        (lambda: paired_difference(torch.ones(3, 2), torch.ones(3, 2), lambda x: x.mean(0)), "must give one number"),
        (lambda: paired_difference(torch.ones(3), torch.zeros(3), lambda x: x.mean() / 0), "must be finite on every"),
        (lambda: cloud_difference(torch.ones(3, 2), torch.ones(3, 2)), "one number per cloud"),
        (lambda: cloud_difference(torch.ones(3), torch.ones(3), level=0), r"level must lie in \(0, 1\)"),
        (lambda: least_clouds(0), "comparisons must be an integer of at least 1, got 0"),
        (lambda: share_difference(torch.tensor([0.0, 0.5]), torch.ones(2)), "true or false for each sample"),
        (lambda: share_difference(torch.ones(2), torch.ones(2), level=1), r"level must lie in \(0, 1\)"),
        (lambda: holm([0.1, 1.5]), r"numbers in \[0, 1\]"),
        (lambda: holm([0.1, math.nan]), "p must be finite"),
        (lambda: weakest([]), "at least one, got none"),
        (lambda: samples_to_decide(1.0, -1.0), "spread must be at least 0"),
        (lambda: samples_to_decide(math.nan, 1.0), "difference must be finite"),
        (lambda: samples_to_decide(1.0, 1.0, power=1.0), r"power must lie in \(0, 1\)"),
        (lambda: samples_to_decide(1.0, 1.0, comparisons=0), "comparisons must be an integer"),
    ],
)
def test_bad_input(call, match):
    with pytest.raises(ValueError, match=match):
        call()
