from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lisse.maths import relative_stability as module
from lisse.maths.relative_stability import (
    centre,
    coordinate_medians,
    coordinate_ratio_interval,
    pair_counts,
    ratio_interval,
    relative_stability,
    resample_counts,
    resampled_centre,
    sphere,
    squared_distances,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_lies_on_the_sphere(dtype):
    drawn = torch.randn(500, 3, 4, 5, generator=seeded(), dtype=dtype)
    noise = sphere(drawn, 2.5)
    assert noise.dtype == dtype
    torch.testing.assert_close(noise.flatten(1).norm(dim=1), torch.full((500,), 2.5, dtype=dtype))
    each = torch.linspace(0, 3, 500, dtype=dtype)
    torch.testing.assert_close(sphere(drawn, each).flatten(1).norm(dim=1), each)
    # A coordinate of a uniform vector of norm r in d dimensions has mean 0 and variance r²/d; n d = 30,000 of them.
    assert abs(float(noise.mean())) < 5 * 2.5 / 60**0.5 / 30_000**0.5
    assert float(noise.square().mean()) == pytest.approx(2.5**2 / 60)


def test_noise_has_no_direction_of_its_own():
    noise = sphere(torch.randn(4000, 3, generator=seeded()), 1.0)
    second = noise.T @ noise / 4000  # E = I/3, each entry's standard error at most (2/15)^½ / 4000^½
    assert (second - torch.eye(3) / 3).abs().max() < 5 * (2 / 15) ** 0.5 / 4000**0.5


@pytest.mark.parametrize("shape", [(7, 3), (5, 2, 3, 4), (3, 300_000), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_squared_distances_are_those_of_the_plain_formula(shape, dtype):
    a, b = (torch.randn(*shape, generator=seeded(s)).to(dtype) for s in (0, 1))
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    found = squared_distances(a, b)
    assert found.dtype == wide
    tolerance = 1e-12 if dtype == torch.float64 else 1e-4  # float32 sums of 300,000 squares
    torch.testing.assert_close(
        found.double(), (a.double() - b.double()).flatten(1).square().sum(1), rtol=tolerance, atol=0
    )
    rows = torch.arange(shape[0]).flip(0)
    torch.testing.assert_close(squared_distances(a, b, rows=rows), squared_distances(a, b.flip(0)))


def test_squared_distances_can_be_differentiated():
    a, b = torch.randn(2, 3, 4, dtype=torch.float64, generator=seeded())
    assert torch.autograd.gradcheck(squared_distances, (a.requires_grad_(), b.requires_grad_()))
    assert torch.autograd.gradcheck(lambda x: squared_distances(a.detach(), x, rows=torch.tensor([2, 0, 0])), (b,))


def test_squared_distances_need_no_contiguous_memory():
    a, b = torch.randn(4, 5, 6, generator=seeded()), torch.randn(4, 6, 5, generator=seeded(1)).movedim(1, 2)
    torch.testing.assert_close(squared_distances(a, b), (a - b).square().sum((1, 2)))


def test_medians_take_the_middle_of_the_two():
    assert float(centre(torch.tensor([4.0, 1.0, 2.0, 8.0]))) == 3.0
    assert float(centre(torch.tensor([[4.0, 1.0], [2.0, 8.0]]), statistic="mean")) == 3.75
    assert float(centre(np.array([1.0, 5.0, 2.0]))) == 2.0


def test_a_ratio_of_centres_and_not_the_centre_of_ratios():
    above, below = torch.tensor([1.0, 9.0, 2.0]), torch.tensor([2.0, 3.0, 8.0])
    assert float(relative_stability(above, below)) == pytest.approx(2 / 3)
    assert float(relative_stability(above, below, statistic="mean")) == pytest.approx(12 / 13)
    assert math.isnan(relative_stability(above, torch.zeros(3)))


@given(scale=st.floats(1e-3, 1e3), seed=st.integers(0, 50), statistic=st.sampled_from(["mean", "median"]))
@settings(max_examples=30, deadline=None)
def test_scale_and_rotation_of_the_output_change_nothing(scale, seed, statistic):
    """R does not change: f -> a f + b, and orthogonal output maps."""
    clean, moved, noisy = torch.randn(3, 20, 6, generator=seeded(seed), dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(6, 6, generator=seeded(seed + 1), dtype=torch.float64)).Q

    def found(f):
        return relative_stability(
            squared_distances(f(moved), f(clean)), squared_distances(f(noisy), f(clean)), statistic=statistic
        )

    plain = found(lambda x: x)
    torch.testing.assert_close(found(lambda x: scale * x @ turn + 3.0), plain, rtol=1e-9, atol=0)


@pytest.mark.parametrize(("n", "k"), [(2, 1), (7, 2), (9, 1), (40, 3), (300, 1)])
@pytest.mark.parametrize("statistic", ["mean", "median"])
def test_resampled_centres_are_those_of_the_resamples(n, k, statistic):
    values = torch.rand(n, k, generator=seeded(), dtype=torch.float64).round(decimals=1)  # with ties
    counts = resample_counts(n, resamples=100, generator=seeded(1))
    assert (counts.sum(1) == n).all()
    naive = [centre(values.repeat_interleave(row.long(), 0), statistic=statistic) for row in counts]
    torch.testing.assert_close(resampled_centre(values, counts, statistic=statistic), torch.stack(naive))
    known = resampled_centre(values, counts, statistic=statistic, sizes=counts.sum(1, dtype=torch.int64))
    assert torch.equal(known, resampled_centre(values, counts, statistic=statistic))


@pytest.mark.parametrize("statistic", ["mean", "median"])
def test_resampled_pairs_are_those_of_both_samples(statistic):
    values, partners = torch.randn(9, generator=seeded()), torch.tensor([1, 2, 0, 1, 2, 0, 1, 2, 0])
    counts = resample_counts(9, resamples=100, generator=seeded(1))
    counts[3] = torch.tensor([0, 0, 0, 4, 5, 0, 0, 0, 0])  # of no pair both sides
    found = resampled_centre(values, pair_counts(counts, partners), statistic=statistic)
    assert found[3].isnan()
    for row, centre_ in zip(counts.tolist(), found.tolist(), strict=True):
        pairs = [float(values[i]) for i in range(9) for _ in range(row[i] * row[partners[i]])]
        if pairs:
            assert centre_ == pytest.approx(getattr(np, statistic)(pairs))
    with pytest.raises(ValueError, match=r"partners must have one entry per sample \[9\], got \[8\]"):
        pair_counts(counts, partners[:8])


@pytest.mark.parametrize("statistic", ["mean", "median"])
def test_pairs_that_share_samples_are_not_taken_for_independent(statistic):
    n, values, spreads = 200, [], []
    for seed in range(150):
        x = torch.randn(n, 3, generator=seeded(seed)).exp()
        partners = torch.arange(n) % 20
        partners[:20] = (partners[:20] + 1) % 20
        apart = squared_distances(x, x, rows=partners)
        values.append(centre(apart, statistic=statistic).log())
        if seed < 30:
            counts = resample_counts(n, resamples=200, generator=seeded(seed))
            spreads.append(resampled_centre(apart, pair_counts(counts, partners), statistic=statistic).log().std())
    true, told = float(torch.stack(values).std()), float(torch.stack(spreads).mean())
    assert 0.8 < told / true < 1.7  # pairs taken for independent: 0.4 of it, and 0.6


def test_a_median_far_from_the_middle_is_found_too():
    values = torch.arange(1000.0)
    counts = torch.zeros(2, 1000, dtype=torch.int16)
    counts[0, 999], counts[1, 0] = 1000, 1000
    assert resampled_centre(values, counts).tolist() == [999.0, 0.0]


@pytest.mark.parametrize("statistic", ["mean", "median"])
def test_intervals_of_ratios_cover(statistic):
    """Both sides share a lognormal factor per sample; the true ratio is 2. 95 % of 200: five standard errors."""
    hits, wide = 0, 0
    for seed in range(200):
        z = torch.randn(3, 60, generator=seeded(seed), dtype=torch.float64)
        top, bottom = 2 * (z[0] + 0.3 * z[1]).exp(), (z[0] + 0.3 * z[2]).exp()
        found = ratio_interval(top, bottom, statistic=statistic, resamples=300, generator=seeded(seed))
        hits += int(found.low <= 2 <= found.high)
        wide += int(ratio_interval(top, bottom, statistic=statistic, level=0.5, resamples=300).high < found.high)
        assert found.low <= found.value <= found.high
    assert hits >= 200 * (0.93 - 5 * (0.95 * 0.05 / 200) ** 0.5)
    assert wide > 190


def test_the_interval_is_paired():
    """What samples have in common cancels: a ratio of proportional sides is certain."""
    below = torch.rand(50, generator=seeded(), dtype=torch.float64)
    found = ratio_interval(3 * below, below, generator=seeded())
    assert float(found.low) == pytest.approx(3.0)
    assert float(found.high) == pytest.approx(3.0)
    assert float(ratio_interval(3 * below, below.flip(0), generator=seeded()).high) > 3.05


def test_no_interval_where_a_resample_has_nothing_below():
    assert math.isnan(ratio_interval(torch.ones(9), torch.tensor([1.0] + [0.0] * 8), generator=seeded()).low)


def test_coordinate_medians_are_summed_per_coordinate():
    differences = torch.tensor([[1.0, 0.0], [-3.0, 2.0], [2.0, 4.0]])
    assert float(coordinate_medians(differences)) == 4 + 4
    assert float(centre(differences.square().sum(1))) == 13.0  # the paper's own, another number


def test_coordinate_intervals_cover_and_are_paired():
    hits = 0
    for seed in range(100):
        z = torch.randn(2, 100, 1, 8, generator=seeded(seed), dtype=torch.float64)
        found = coordinate_ratio_interval(2**0.5 * z[0], z[1], generator=seeded(seed))
        assert float(found.value) == pytest.approx(
            float(coordinate_medians(2**0.5 * z[0, :, 0]) / coordinate_medians(z[1, :, 0]))
        )
        hits += int(found.low <= 2 <= found.high)
    assert hits >= 100 * (0.95 - 5 * (0.95 * 0.05 / 100) ** 0.5)
    same = coordinate_ratio_interval(2 * z[0], z[0], generator=seeded())
    assert float(same.high) == pytest.approx(4.0)
    narrow = coordinate_ratio_interval(z[0], z[1], level=0.5, generator=seeded())
    assert narrow.high < coordinate_ratio_interval(z[0], z[1], generator=seeded()).high
    few = coordinate_ratio_interval(z[0], z[1], groups=4, generator=seeded())
    assert float(few.high) != float(coordinate_ratio_interval(z[0], z[1], generator=seeded()).high)


def test_the_interval_of_coordinate_medians_covers_the_choice_of_the_partners():
    # x - z of standard normals has the law of √2 times one: the ratio is 1. Of 100 intervals at 95 %.
    n, chosen, hits = 200, 20, {"without": 0, "with": 0}
    samples = torch.arange(n)
    partners = torch.where(samples < chosen, (samples + 1) % chosen, samples % chosen)
    for seed in range(100):
        x, above = torch.randn(2, n, 3, generator=seeded(seed), dtype=torch.float64)
        for name, given_ in (("without", None), ("with", partners)):
            found = coordinate_ratio_interval(2**0.5 * above, x - x[partners], partners=given_, generator=seeded(seed))
            hits[name] += int(found.low <= 1 <= found.high)
    assert hits["with"] >= 100 * (0.95 - 3 * (0.95 * 0.05 / 100) ** 0.5)
    assert hits["without"] < hits["with"]
    few = coordinate_ratio_interval(x[:4], x[:4] + 1, partners=torch.tensor([1, 0, 3, 2]), generator=seeded(1))
    assert float(few.value) > 0
    assert math.isnan(float(few.low))  # every pair of some group's complement is gone


@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (9, 5000), (300, 1000)])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_compiled_loops_give_what_torch_gives(monkeypatch, shape, threads):
    pytest.importorskip("numba", reason="the compiled loops need numba (lisse[fast])")
    a, b = (torch.randn(*shape, generator=seeded(s)) for s in (0, 1))
    rows = torch.randint(shape[0], (shape[0],), generator=seeded(2))
    assert module._plain(a, b)
    assert module.loops(module._LOOPS) is not None
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(module, "_ALONE", 1000)
    ours = [squared_distances(a, b), squared_distances(a, b, rows=rows), squared_distances(a, b[:1], rows=rows * 0)]
    assert squared_distances(a[:0], b[:0]).shape == (0,)
    nan = a.clone()
    nan[-1, -1] = math.nan
    assert squared_distances(nan, b).isnan().tolist() == [False] * (shape[0] - 1) + [True]
    monkeypatch.setattr(module, "loops", lambda _: None)
    plain = [squared_distances(a, b), squared_distances(a, b, rows=rows), squared_distances(a, b[:1], rows=rows * 0)]
    for mine, theirs in zip(ours, plain, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=0)


@given(
    st.integers(2, 40),
    st.integers(1, 3),
    st.integers(100, 1100),
    st.integers(1, 6),
    st.booleans(),
    st.integers(0, 2**31),
)
@settings(max_examples=25, deadline=None)
def test_compiled_medians_of_resamples_are_torchs(n, k, resamples, ties, pairs, seed):
    pytest.importorskip("numba", reason="the compiled loops need numba (lisse[fast])")
    values = torch.randint(ties, (n, k), generator=seeded(seed)).double()
    counts = resample_counts(n, resamples=resamples, generator=seeded(seed + 1))
    if pairs:  # some resamples then draw nothing
        counts = pair_counts(counts, torch.arange(n).roll(1))
    ours = resampled_centre(values, counts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "loops", lambda _: None)
        assert torch.equal(ours.nan_to_num(-1), resampled_centre(values, counts).nan_to_num(-1))


def test_bad_arguments():
    x = torch.ones(4, 3)
    with pytest.raises(ValueError, match="squared_distances: rows must lie in 0 … 3, got 0 … 4"):
        squared_distances(x, x, rows=torch.tensor([0, 1, 2, 4]))
    with pytest.raises(ValueError, match=r"partners must have one entry per sample \[4\], got \[3\]"):
        coordinate_ratio_interval(x, x, partners=torch.tensor([1, 0, 1]))
    with pytest.raises(ValueError, match=r"squared_distances: b must match a, \[4, 3\], got \[4, 2\]"):
        squared_distances(x, x[:, :2])
    with pytest.raises(ValueError, match=r"squared_distances: b must match a, \[4, 3\], got \[3, 3\]"):
        squared_distances(x, x[:3])
    with pytest.raises(ValueError, match=r"sphere: radius must be a number or one per sample \[4\], got \[3\]"):
        sphere(x, torch.ones(3))
    with pytest.raises(ValueError, match=r"sphere: radius must be finite and at least 0, got -1\.0"):
        sphere(x, -1.0)
    with pytest.raises(ValueError, match="centre: statistic must be one of mean, median, got 'mode'"):
        centre(x, statistic="mode")
    with pytest.raises(ValueError, match="centre: values must hold at least one number"):
        centre(torch.empty(0))
    with pytest.raises(ValueError, match="centre: values must be finite, got NaN"):
        relative_stability(torch.tensor([math.nan, 1, 2]), torch.ones(3))
    with pytest.raises(ValueError, match="coordinate_medians: differences must be finite"):
        coordinate_medians(torch.tensor([[math.nan, 1], [1, 2], [1, 1]]))
    with pytest.raises(ValueError, match="ratio_interval: denominator must have one row per sample, got 3 for 4"):
        ratio_interval(torch.ones(4), torch.ones(3))
    with pytest.raises(ValueError, match="must be finite, got NaN"):
        ratio_interval(torch.ones(4), torch.tensor([1, 2, math.nan, 1]))
    with pytest.raises(ValueError, match=r"level must lie in \(0, 1\), got 2"):
        ratio_interval(torch.ones(4), torch.ones(4), level=2)
    with pytest.raises(ValueError, match="resamples must be at least 100, got 5"):
        ratio_interval(torch.ones(4), torch.ones(4), resamples=5)
    with pytest.raises(ValueError, match="n must be at least 2, got 1"):
        resample_counts(1)
    with pytest.raises(ValueError, match="counts must be for 3 samples, got 4"):
        resampled_centre(torch.ones(3), resample_counts(4))
    with pytest.raises(ValueError, match="must hold at least 4 samples, got 3"):
        coordinate_ratio_interval(torch.ones(3, 2), torch.ones(3, 2))
    with pytest.raises(ValueError, match="one row per sample, got 3 for 4"):
        coordinate_ratio_interval(torch.ones(4, 2), torch.ones(3, 2))
    with pytest.raises(ValueError, match=r"coordinate_ratio_interval: level must lie in \(0, 1\), got 0"):
        coordinate_ratio_interval(torch.ones(4, 2), torch.ones(4, 2), level=0)
