"""Fields: closed forms and golden numbers, properties, moments against exact sums, folding, inverse, bad input."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from lisse.maths.diffeomorphism import (
    Diffeomorphism,
    Field,
    bijective_share,
    critical_temperatures,
    half_temperature,
    phase_diagram,
    warn_if_folding,
)

I = torch.arange(1, 4, dtype=torch.float64)[:, None]
J = I.T


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def fixed_field() -> Field:
    """A field of modes (1, 1), (1, 2), (2, 1), (2, 2); the others that are given here lie beyond the cut-off."""
    return Diffeomorphism((8, 8), 3).field(0.02 * torch.cos(I + 2 * J), 0.02 * torch.sin(2 * I + J))


# --- closed forms and golden numbers --------------------------------------------------------------------------------


def test_the_fixed_field():
    field = fixed_field()
    tau = field.displacement / 8
    assert tau.dtype == torch.float64
    assert float(tau[0, 0, 2, 3]) == pytest.approx(-0.008376183719, abs=1e-12)
    assert float(tau[0, 1, 2, 3]) == pytest.approx(-0.019491703661, abs=1e-12)
    assert float(field.gradient_norm()) == pytest.approx(math.pi**2 / 500, rel=1e-12)
    assert float(field.determinant(400).min()) == pytest.approx(0.785003, abs=1e-6)
    least = float(field.min_determinant())
    assert least == pytest.approx(0.785003, abs=1e-5)
    assert least <= float(field.determinant(400).min())  # the very minimum, not that of a grid


def test_the_published_codes_field():
    weights = 1 / (I**2 + J**2).sqrt()
    given = torch.arange(1, 10, dtype=torch.float64).reshape(3, 3) * weights
    tau = Diffeomorphism((8, 8), 3, modes="code", grid="linspace").field(given, given.T).displacement[0, 0] / 8
    assert float(tau[2, 5]) == pytest.approx(-0.8570468207, abs=1e-10)
    assert float(tau[5, 2]) == pytest.approx(0.5064704651, abs=1e-10)
    assert float(tau.sum()) == pytest.approx(30.9468124401, abs=1e-9)


def test_one_mode_by_hand_on_an_image_that_is_not_square():
    cu, cv = torch.zeros(1, 3, 3, dtype=torch.float64), torch.zeros(1, 3, 3, dtype=torch.float64)
    cu[0, 1, 0], cv[0, 0, 1] = 0.1, 0.2  # sin(2πu) sin(πv) and sin(πu) sin(2πv)
    moves = Diffeomorphism((4, 6), 3).field(cu, cv).displacement
    u, v = (np.arange(6) + 0.5) / 6, (np.arange(4)[:, None] + 0.5) / 4
    np.testing.assert_allclose(moves[0, 0], 6 * 0.1 * np.sin(2 * np.pi * u) * np.sin(np.pi * v), atol=1e-14)
    np.testing.assert_allclose(moves[0, 1], 4 * 0.2 * np.sin(np.pi * u) * np.sin(2 * np.pi * v), atol=1e-14)


@pytest.mark.parametrize(
    ("cut", "paper", "code"), [(1, 0, 1), (2, 1, 3), (3, 4, 6), (5, 15, 19), (10, 69, 77), (15, 162, 172)]
)
def test_how_many_modes_each_rule_keeps(cut, paper, code):
    i = np.arange(1, cut + 1)
    square = i[:, None] ** 2 + i**2
    assert (square <= cut**2).sum() == paper
    assert (np.sqrt(square) < cut + 0.5).sum() == code
    assert Diffeomorphism((8, 8), cut, modes="code").mode_count == code
    if paper:
        assert Diffeomorphism((8, 8), cut).mode_count == paper


@pytest.mark.parametrize(
    ("n", "cut", "centre", "average"),
    [
        (32, 3, 0.1024, 0.05248),
        (32, 5, 0.154737778, 0.0886808969),
        (32, 15, 0.249790568, 0.170078301),
        (224, 10, 10.7339358760, None),
        (320, 30, 30.7149256470, None),
    ],
)
def test_the_exact_displacement(n, cut, centre, average):
    ensemble = Diffeomorphism((n, n), cut)
    assert ensemble.delta(1e-4) ** 2 == pytest.approx(centre, rel=1e-8)
    if average:
        assert ensemble.delta(1e-4, at="average") ** 2 == pytest.approx(average, rel=1e-8)


@pytest.mark.parametrize(
    ("n", "cut", "expected"), [(28, 3, 1.2755102041e-3), (32, 3, 9.765625e-4), (32, 15, 4.0033537141e-4)]
)
def test_the_temperature_of_a_displacement(n, cut, expected):
    assert Diffeomorphism((n, n), cut).temperature(1.0) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(
    ("cut", "modes", "true"), [(3, "paper", 1.077), (5, "paper", 1.093), (15, "paper", 1.071), (3, "code", 1.274)]
)
def test_how_far_the_asymptotic_form_is_off(cut, modes, true):
    ensemble = Diffeomorphism((32, 32), cut, modes=modes)
    temperature = ensemble.temperature(1.0, asymptotic=True)
    assert temperature == pytest.approx(4 / (math.pi * 32**2 * math.log(cut)), rel=1e-12)
    assert ensemble.delta(temperature) == pytest.approx(true, abs=6e-4)
    assert ensemble.delta(temperature, asymptotic=True) == pytest.approx(1.0)


def test_the_published_codes_displacement_on_its_own_grid():
    ensemble = Diffeomorphism((32, 32), 3, modes="code", grid="linspace")
    at_each = ensemble.rms_displacement(ensemble.temperature(1.0, asymptotic=True))
    assert float(at_each[15, 15]) == pytest.approx(1.271, abs=5e-4)
    assert float(at_each.square().mean().sqrt()) == pytest.approx(0.816, abs=5e-4)
    cell = Diffeomorphism((32, 32), 3, modes="code")
    assert ensemble.delta(1.0, at="average") == pytest.approx(31 / 32 * cell.delta(1.0, at="average"))


def test_the_displacement_of_images_that_are_not_square():
    ensemble = Diffeomorphism((3, 4), 2)  # one mode: at the centre T (h² + w²) / 2
    assert ensemble.delta(0.08) == pytest.approx(1.0)
    assert ensemble.temperature(1.0) == pytest.approx(0.08)
    assert ensemble.delta(0.08, at="average") == pytest.approx(0.5)  # sin² averages to ½ along each axis


def test_sums_and_inverse_pairs():
    ensemble = Diffeomorphism((20, 30), 7.5)
    heat = torch.tensor([1e-5, 1e-3], dtype=torch.float64)
    for options in ({}, {"at": "average"}, {"asymptotic": True}):
        torch.testing.assert_close(ensemble.temperature(ensemble.delta(heat, **options), **options), heat)
    assert isinstance(ensemble.delta(1e-3), float)
    assert Diffeomorphism((9, 9), 3).mean_gradient_norm(1.0) == pytest.approx(19.739, abs=1e-3)


# --- properties -----------------------------------------------------------------------------------------------------

ensembles = st.builds(
    lambda h, w, cut, modes, grid: Diffeomorphism((h, w), cut, modes=modes, grid=grid),
    st.integers(2, 24), st.integers(2, 24), st.sampled_from([1.5, 2, 3, 4.2, 6]), st.sampled_from(["paper", "code"]),
    st.sampled_from(["cell", "linspace"]),
)  # fmt: skip


@settings(deadline=None, max_examples=40)
@given(ensembles, st.integers(0, 1000))
def test_separable_products_are_the_sum_over_modes(ensemble, seed):
    field = ensemble.sample(2, 0.01, generator=generator(seed), dtype=torch.float64)
    h, w = ensemble.size
    across, down = ((np.arange(n) + 0.5) / n if ensemble.grid == "cell" else np.arange(n) / (n - 1) for n in (w, h))
    for c, moves, size in ((field.cu, field.displacement[:, 0], w), (field.cv, field.displacement[:, 1], h)):
        expected = np.zeros((2, h, w))
        for i in range(1, c.shape[1] + 1):
            for j in range(1, c.shape[1] + 1):
                wave = np.sin(j * np.pi * down)[:, None] * np.sin(i * np.pi * across)
                expected += size * c[:, i - 1, j - 1, None, None].numpy() * wave
        np.testing.assert_allclose(moves, expected, atol=1e-12)


@settings(deadline=None, max_examples=25)
@given(ensembles, st.integers(0, 1000), st.floats(0, 2))
def test_fields_grow_like_the_root_of_the_temperature(ensemble, seed, temperature):
    one = ensemble.sample(3, 1.0, generator=generator(seed))
    other = ensemble.sample(3, temperature, generator=generator(seed))
    torch.testing.assert_close(other.displacement, temperature**0.5 * one.displacement)
    torch.testing.assert_close((one * temperature**0.5).displacement, other.displacement)


@settings(deadline=None, max_examples=25)
@given(st.sampled_from([2, 3, 5]), st.integers(0, 1000))
def test_the_frame_does_not_move(cut, seed):
    moves = Diffeomorphism((9, 7), cut, grid="linspace").sample(2, 1.0, generator=generator(seed)).displacement
    for edge in (moves[..., 0, :], moves[..., -1, :], moves[..., :, 0], moves[..., :, -1]):
        assert edge.abs().max() < 1e-5


@pytest.mark.parametrize("cut", [2, 3, 15])
@pytest.mark.parametrize("split", [(5, 5), (1, 9), (3, 0, 7)])
def test_a_generator_gives_the_same_fields_whatever_the_batches(cut, split):
    ensemble = Diffeomorphism((8, 8), cut)
    whole = ensemble.sample(10, 0.1, generator=generator(3))
    source = generator(3)
    parts = [ensemble.sample(count, 0.1, generator=source) for count in split]
    assert torch.equal(torch.cat([part.cu for part in parts]), whole.cu)
    assert torch.equal(torch.cat([part.cv for part in parts]), whole.cv)
    assert not torch.equal(whole.cu[:5], whole.cu[5:])
    assert not torch.equal(whole.cu, whole.cv)


def test_dtypes_and_temperatures_share_their_draws():
    ensemble = Diffeomorphism((8, 8), 3)
    single = ensemble.sample(4, 0.1, generator=generator())
    double = ensemble.sample(4, 0.1, generator=generator(), dtype=torch.float64)
    assert (single.cu.dtype, double.displacement.dtype) == (torch.float32, torch.float64)
    torch.testing.assert_close(single.cu.double(), double.cu, rtol=1e-6, atol=0)
    heat = torch.tensor([0.0, 0.1, 0.4, 0.9])
    each = ensemble.sample(4, heat, generator=generator())
    torch.testing.assert_close(each.cu, single.cu * (heat / 0.1).sqrt()[:, None, None])


def test_numpy_numbers_are_numbers():
    ensemble = Diffeomorphism((np.int64(12), 9), np.int64(3))
    plain = Diffeomorphism((12, 9), 3)
    assert ensemble.size == (12, 9)
    torch.testing.assert_close(ensemble.sample(2, 1e-3, generator=generator()).displacement,
                               plain.sample(2, 1e-3, generator=generator()).displacement)  # fmt: skip
    heat = np.array([1e-3, 4e-3])
    assert ensemble.delta(heat).tolist() == [plain.delta(1e-3), plain.delta(4e-3)]
    assert ensemble.temperature(ensemble.delta(heat)).tolist() == pytest.approx(heat.tolist())
    assert len(ensemble.sample(np.int64(2), 1e-3)) == 2
    assert len(ensemble.sample_bijective(np.int64(2), 1e-3).field) == 2
    drawn = np.random.default_rng(0).standard_normal((2, 2, 4))
    assert torch.equal(ensemble.whitened_field(drawn, 1e-3).cu, plain.whitened_field(torch.from_numpy(drawn), 1e-3).cu)


def test_fields_are_multiplied_from_either_side():
    field = Diffeomorphism((12, 9), 3).sample(2, 1e-3, generator=generator())
    for factor in (3, np.float64(3), np.array([2.0, 3.0]), torch.tensor([2.0, 3.0])):
        each = torch.as_tensor(factor).float().expand(2)[:, None, None]
        for times in (field * factor, factor * field):
            torch.testing.assert_close(times.cu, field.cu * each)
            torch.testing.assert_close(times.cv, field.cv * each)
            assert times.cu.dtype == torch.float32


def test_half_of_the_fields_can_be_taken():
    field = Diffeomorphism((8, 6), 3).sample(4, 0.1, generator=generator())
    assert len(field[1:3]) == 2
    assert torch.equal(field[torch.tensor([True, False, False, True])].cu, field.cu[[0, 3]])
    assert field.to("cpu", torch.float64).cv.dtype == torch.float64


# --- moments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(16, 16), (9, 21)])
@pytest.mark.parametrize("modes", ["paper", "code"])
def test_sampled_moments_match_the_exact_sums(size, modes):
    n, temperature = 4000, 0.03
    ensemble = Diffeomorphism(size, 4, modes=modes)
    field = ensemble.sample(n, temperature, generator=generator(7), dtype=torch.float64)
    # ‖∇τ‖² 4 / (π² T) is a sum of 2M squared normals: χ² with 2M n degrees of freedom over all fields.
    freedom = 2 * ensemble.mode_count * n
    total = float(field.gradient_norm().sum()) * 4 / (math.pi**2 * temperature)
    assert 1e-4 < chi2.cdf(total, freedom) < 1 - 1e-4
    square = field.displacement.square().sum(1)  # [n, h, w]
    expected = ensemble.rms_displacement(temperature).square()
    error = square.std(0) / n**0.5
    assert ((square.mean(0) - expected).abs() / error).max() < 5  # 256 pixels
    over_image = square.mean((1, 2))
    assert (
        abs(float(over_image.mean()) - ensemble.delta(temperature, at="average") ** 2)
        < 4 * float(over_image.std()) / n**0.5
    )


def test_the_displacement_at_the_centre_is_the_exact_one():
    ensemble = Diffeomorphism((33, 33), 5)  # pixel 16 lies at ½
    square = ensemble.sample(4000, 1e-3, generator=generator(1)).displacement[:, :, 16, 16].square().sum(1)
    expected = ensemble.delta(1e-3) ** 2
    assert abs(float(square.mean()) - expected) < 4 * float(square.std()) / 4000**0.5
    # Two normals of variance δ²/2: |d|² / δ² is exponential.
    assert abs(float((square / expected > 1).double().mean()) - math.exp(-1)) < 4 * (0.368 * 0.632 / 4000) ** 0.5


# --- folding --------------------------------------------------------------------------------------------------------


def test_the_gradient_is_the_derivative():
    field = Diffeomorphism((8, 8), 4).sample(2, 0.1, generator=generator(), dtype=torch.float64)
    fine = Field(field.cu, field.cv, (400, 300), "cell")
    tau = fine.displacement / torch.tensor([300.0, 400.0], dtype=torch.float64)[:, None, None]
    along_v, along_u = torch.gradient(tau, spacing=(1 / 400, 1 / 300), dim=(2, 3))
    s = field.gradient(100)  # points (k + ½)/100 = fine rows 4k + 1.5 and columns 3k + 1
    rows = (along_v[:, :, 1::4, 1::3] + along_v[:, :, 2::4, 1::3]) / 2
    columns = (along_u[:, :, 1::4, 1::3] + along_u[:, :, 2::4, 1::3]) / 2
    torch.testing.assert_close(s[:, :, 0, 1:-1, 1:-1], columns[:, :, 1:-1, 1:-1], atol=6e-3, rtol=0)
    torch.testing.assert_close(s[:, :, 1, 1:-1, 1:-1], rows[:, :, 1:-1, 1:-1], atol=6e-3, rtol=0)
    uu, uv, vu, vv = (s[:, a, b] for a in (0, 1) for b in (0, 1))
    torch.testing.assert_close(field.determinant(100), (1 - uu) * (1 - vv) - uv * vu)
    torch.testing.assert_close(s.square().sum((1, 2)).mean((1, 2)), field.gradient_norm(), rtol=1e-9, atol=0)


def test_one_mode_folds_where_its_slope_is_one():
    # τ_u = a sin(πu) sin(πv): det = 1 - a π cos(πu) sin(πv), least at u = 0, v = ½.
    ensemble = Diffeomorphism((8, 8), 2)
    a = torch.tensor([0.9, 1.1], dtype=torch.float64) / math.pi
    cu = torch.zeros(2, 2, 2, dtype=torch.float64)
    cu[:, 0, 0] = a
    field = ensemble.field(cu, torch.zeros_like(cu))
    torch.testing.assert_close(
        field.min_determinant(), torch.tensor([0.1, -0.1], dtype=torch.float64), atol=1e-9, rtol=0
    )
    assert field.bijective().tolist() == [True, False]
    torch.testing.assert_close(field.critical_scale(), 1 / (math.pi * a), rtol=1e-9, atol=0)
    assert (ensemble.field(cu * 0, cu * 0).critical_scale() == math.inf).all()


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 1000))
def test_a_field_is_bijective_exactly_below_its_critical_size(seed):
    field = Diffeomorphism((8, 8), 4).sample(4, 1.0, generator=generator(seed), dtype=torch.float64)
    scale = field.critical_scale()
    assert (field * (0.99 * scale)).bijective().all()
    assert not (field * (1.01 * scale)).bijective().any()
    assert ((field * scale).min_determinant().abs() < 1e-3).all()


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 1000), st.floats(0.5, 1.5))
def test_positive_determinants_are_positively_oriented_cells(seed, times):
    field = Diffeomorphism((8, 8), 3).sample(3, 1.0, generator=generator(seed), dtype=torch.float64)
    scale = field.critical_scale()
    field = field * (times * scale)
    fine = Field(field.cu, field.cv, (300, 300), "linspace").displacement / 300
    line = torch.linspace(0, 1, 300, dtype=torch.float64)
    x, y = line - fine[:, 0], line[:, None] - fine[:, 1]
    right = torch.stack([x[:, :-1, 1:] - x[:, :-1, :-1], y[:, :-1, 1:] - y[:, :-1, :-1]])
    down = torch.stack([x[:, 1:, :-1] - x[:, :-1, :-1], y[:, 1:, :-1] - y[:, :-1, :-1]])
    oriented = (right[0] * down[1] - right[1] * down[0]).flatten(1).amin(1) > 0
    clear = field.min_determinant().abs() > 0.05  # a cell is not a point
    assert torch.equal(oriented[clear], field.bijective()[clear])


@pytest.mark.parametrize(("cut", "expected"), [(3, 0.0272), (5, 0.00532), (10, 8.7e-4), (15, 3.4e-4), (30, 6.8e-5)])
def test_the_half_way_temperature(cut, expected):
    found = half_temperature(cut)
    assert float(found.low) < float(found.value) < float(found.high)
    assert float(found.value) == pytest.approx(expected, rel=0.06)  # that one from 150 to 400 samples
    low, high = Diffeomorphism((32, 32), cut).temperature_range()
    assert Diffeomorphism((32, 32), cut).delta(low) == pytest.approx(0.5)
    assert high == float(found.value)


def test_the_share_of_bijective_fields_is_that_of_fields():
    ensemble = Diffeomorphism((32, 32), 15)
    temperature = ensemble.temperature(1.0)
    share = bijective_share(temperature, 15)
    fine = bijective_share(temperature, 15, samples=2048)  # against 21 % of at most 400 fields: two standard errors
    assert abs(float(fine.value) - 0.21) < 2 * (0.21 * 0.79 * (1 / 400 + 1 / 2048)) ** 0.5
    drawn = ensemble.sample(200, temperature, generator=generator(9)).bijective().double()
    error = (float(share.value) * (1 - float(share.value)) * (1 / 200 + 1 / 512)) ** 0.5
    assert abs(float(drawn.mean()) - float(share.value)) < 4 * error
    assert float(bijective_share(Diffeomorphism((28, 28), 15).temperature(1.0), 15).value) < 0.05
    assert float(bijective_share(Diffeomorphism((32, 32), 3).temperature(1.0), 3).value) == 1.0
    with pytest.warns(UserWarning, match=r"f: \d+% of the fields at cut 15, δ = 1 px on 32 × 32 pixels fold"):
        warn_if_folding("f", ensemble, temperature)


def test_a_phase_diagram():
    found = phase_diagram((32, 32), (3, 15), (1e-6, 5e-4, 1e-1), samples=64)
    assert found.green.tolist() == [[False, True, False], [False, False, False]]
    assert found.delta[0, 1] == pytest.approx(Diffeomorphism((32, 32), 3).delta(5e-4))
    assert (found.low <= found.bijective).all()
    assert (found.bijective <= found.high).all()
    assert found.delta_one[0] == pytest.approx(9.765625e-4)
    torch.testing.assert_close(found.delta_one, 4 * found.delta_half)
    assert (found.half[0] > found.half[1]).all()
    assert torch.equal(critical_temperatures(3, samples=8), critical_temperatures(3, samples=64)[:8])


def test_estimates_at_a_large_cut_are_bounded_and_say_how_many_fields_they_have():
    """Above c = 32 fewer fields, above 64 those of 64 scaled; against fields that are drawn at c = 96."""
    assert [half_temperature(cut).n for cut in (30, 40)] == [512, 2**24 // 40**3]
    far = half_temperature(2000)
    scale = 64**2 * math.log(64) / (2000**2 * math.log(2000))
    assert float(far.value) == pytest.approx(float(half_temperature(64).value) * scale)
    assert bijective_share(1e-3, 2000).n == far.n == 64
    drawn = critical_temperatures(96, samples=9).sort().values
    # The median of 9 lies between their second and eighth with a probability of 96 %.
    assert float(drawn[1]) < float(half_temperature(96).value) < float(drawn[7])
    assert len(critical_temperatures(96)) == 2**24 // 96**3
    with pytest.warns(UserWarning, match="cut 500 is above the 16 pixels"):
        found = phase_diagram((16, 16), (3, 500), (1e-6, 10.0))
    assert found.samples == 64
    assert found.bijective[:, 1].tolist() == [0, 0]
    assert found.low[1, 1] == 0
    assert found.high[1, 1] > found.high[0, 1] > 0  # fewer fields know less


def test_a_strip_of_a_fine_grid_is_the_grid(monkeypatch):
    from lisse.maths.diffeomorphism import field as module

    field = Diffeomorphism((8, 8), 6).sample(3, 1.0, generator=generator(), dtype=torch.float64)
    whole = field.min_determinant(), field.critical_scale()
    monkeypatch.setattr(module, "_BUDGET", 6 * 121 * 7)  # strips of 7 rows, one field at a time
    torch.testing.assert_close((field.min_determinant(), field.critical_scale()), whole, rtol=1e-12, atol=0)


def test_a_cut_above_the_pixels_is_told_of_once():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        for _ in range(3):
            Diffeomorphism((16, 17), 100)
    assert [str(one.message).split(":")[1] for one in told] == [
        " cut 100 is above the 16 pixels of a side (16 × 17)"
    ]  # fmt: skip
    with pytest.warns(UserWarning, match="above the 16 pixels"):  # the shorter side counts
        Diffeomorphism((17, 16), 17)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Diffeomorphism((16, 17), 16.9)
        half_temperature(7, seed=5)
    # What aliasing means: mode 2n - i at the pixels.
    low, high = torch.zeros(1, 30, 30, dtype=torch.float64), torch.zeros(1, 30, 30, dtype=torch.float64)
    low[0, 11, 0], high[0, 19, 0] = 0.1, 0.1  # modes 12 and 20 = 2 · 16 - 12
    with pytest.warns(UserWarning, match="cut 30 is above the 16 pixels"):
        ensemble = Diffeomorphism((16, 16), 30)
    one, other = (ensemble.field(c, 0 * c).displacement for c in (low, high))
    torch.testing.assert_close(one, other, atol=1e-12, rtol=0)


def test_sampling_fields_that_fold_is_told_of_with_their_share():
    ensemble = Diffeomorphism((32, 32), 15)
    heat = ensemble.temperature(3.0)
    with pytest.warns(UserWarning, match=r"Diffeomorphism.sample: 100% of the fields at cut 15, δ = 3 px") as told:
        ensemble.sample(2, torch.tensor([0.0, heat]))
    assert len(told) == 1
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ensemble.sample(2, ensemble.temperature(0.5))
        ensemble.sample(2, 1.0)  # the unit of fields that are to be scaled
        ensemble.sample(0, heat)
        Diffeomorphism((32, 32), 3).sample_bijective(1, 0.03, generator=generator())
        for cut, modes in ((1.5, "paper"), (2, "code"), (3, "code"), (5, "code"), (10, "code")):
            # Just above the temperature at which it is looked for, far below the one at which half fold.
            half = float(half_temperature(cut, modes=modes).value)
            Diffeomorphism((32, 32), cut, modes=modes).sample(1, 0.9 * half)
    for cut, modes in ((1.5, "paper"), (2, "code"), (3, "code"), (5, "code"), (10, "code")):
        half = float(half_temperature(cut, modes=modes).value)
        with pytest.warns(UserWarning, match=r"sample: 5\d% of the fields"):
            Diffeomorphism((32, 32), cut, modes=modes).sample(1, 1.02 * half)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_field_that_is_not_finite_has_no_critical_size(bad):
    field = fixed_field() * bad
    assert torch.isnan(field.critical_scale()).all()
    assert not field.bijective().any()


def test_rejection_keeps_the_first_that_do_not_fold():
    ensemble = Diffeomorphism((16, 16), 3)
    temperature = 0.03
    whole = ensemble.sample_bijective(10, temperature, generator=generator(4))
    assert whole.field.bijective().all()
    assert whole.acceptance == 10 / whole.tried
    every = ensemble.sample(whole.tried, temperature, generator=generator(4))
    assert torch.equal(every[every.bijective()].cu, whole.field.cu)
    source = generator(4)
    parts = [ensemble.sample_bijective(5, temperature, generator=source) for _ in range(2)]
    assert torch.equal(torch.cat([part.field.cu for part in parts]), whole.field.cu)
    assert sum(part.tried for part in parts) == whole.tried
    with pytest.raises(ValueError, match="temperature must let fields be bijective"):
        ensemble.sample_bijective(2, 100.0, generator=source, max_tries=20)


# --- inverse --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", ["cell", "linspace"])
@pytest.mark.parametrize("size", [(16, 16), (12, 20)])
def test_the_inverse_undoes_the_field(size, grid):
    ensemble = Diffeomorphism(size, 3, grid=grid)
    field = ensemble.sample(3, 2e-3, generator=generator(2), dtype=torch.float64)
    inverse = field.inverse(tol=1e-9)
    assert inverse.converged.all()
    h, w = size
    columns = torch.arange(w, dtype=torch.float64) - inverse.displacement[:, 0]
    rows = torch.arange(h, dtype=torch.float64)[:, None] - inverse.displacement[:, 1]
    u, v = ((s + 0.5) / n if grid == "cell" else s / (n - 1) for s, n in ((columns, w), (rows, h)))
    back = []
    for s, n, c in ((columns, w, field.cu), (rows, h, field.cv)):
        tau = sum(
            c[:, i - 1, j - 1, None, None] * torch.sin(i * math.pi * u) * torch.sin(j * math.pi * v)
            for i in range(1, 4) for j in range(1, 4)
        )  # fmt: skip
        back.append(s - n * tau)
    torch.testing.assert_close(back[0], torch.arange(w).double().expand(3, h, w), atol=1e-8, rtol=0)
    torch.testing.assert_close(back[1], torch.arange(h).double()[:, None].expand(3, h, w), atol=1e-8, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_diffeomorphism_has_its_inverse(dtype):
    # Fields just below the size at which they fold: for many of them the plain fixed point does not contract.
    ensemble = Diffeomorphism((24, 36), 5)
    field = ensemble.sample(20, 1.0, generator=generator(7), dtype=dtype)
    field = field * (0.95 * field.critical_scale())
    assert field.bijective().all()
    steep = torch.linalg.matrix_norm(field.gradient(50).permute(0, 3, 4, 1, 2), 2).flatten(1).amax(1)
    assert (steep > 1).sum() > 10
    inverse = field.inverse(tol=1e-3)
    assert inverse.converged.all()
    assert inverse.residual.max() < 1e-3
    # By another way than the solver's: every pixel goes to the place that the field takes back to it.
    u, v = (
        (torch.arange(n).double()[shape] + 0.5 - inverse.displacement[:, k].double()) / n
        for k, n, shape in ((0, 36, (None, slice(None))), (1, 24, (slice(None), None)))
    )
    for s, n, c, k in ((u, 36, field.cu, 36), (v, 24, field.cv, 24)):
        tau = sum(
            c[:, i - 1, j - 1, None, None].double() * torch.sin(i * math.pi * u) * torch.sin(j * math.pi * v)
            for i in range(1, 6) for j in range(1, 6)
        )  # fmt: skip
        back = n * (s - tau) - 0.5
        pixel = torch.arange(k).double()
        expected = pixel if n == 36 else pixel[:, None]
        assert float((back - expected).abs().max()) < 2e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_inverse_of_fields_in_half_precision(dtype):
    field = Diffeomorphism((24, 24), 3).sample(2, 1e-3, generator=generator(2)).to(dtype=dtype)
    inverse = field.inverse()
    assert inverse.converged.all()
    assert inverse.displacement.dtype == torch.float32
    same = field.to(dtype=torch.float64).inverse(tol=1e-8)
    torch.testing.assert_close(inverse.displacement.double(), same.displacement, atol=2e-4, rtol=0)


def test_an_inverse_that_does_not_exist_is_not_claimed():
    field = Diffeomorphism((16, 16), 3).sample(2, torch.tensor([1e-3, 2.0]), generator=generator())
    inverse = field.inverse(max_iter=30)
    assert inverse.converged.tolist() == [True, False]
    assert inverse.residual[1] > inverse.residual[0]
    assert inverse.iterations == 30


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: Diffeomorphism((8, 8), 1.4), "cut must be at least √2"),
        (lambda: Diffeomorphism((8, 8), 1), "cut must be at least √2 to keep a mode, got 1"),
        (lambda: Diffeomorphism((8, 8), 0.9, modes="code"), "cut must be at least 1"),
        (lambda: Diffeomorphism((8, 8), -3), "cut must be at least"),
        (lambda: Diffeomorphism((1, 8), 3), "size must be at least 2 pixels"),
        (lambda: Diffeomorphism((8, 8), 3, modes="all"), "modes must be one of paper, code"),
        (lambda: Diffeomorphism((8, 8), 3, grid="corner"), "grid must be one of cell, linspace"),
        (lambda: Diffeomorphism((8, 8), 3).sample(2, -1.0), "temperature must be finite and at least 0, got -1"),
        (lambda: Diffeomorphism((8, 8), 3).sample(2, math.nan), "temperature must be finite"),
        (lambda: Diffeomorphism((8, 8), 3).sample(2, torch.ones(3)), r"one per field \[2\], got shape \[3\]"),
        (lambda: Diffeomorphism((8, 8), 3).sample(-1, 1.0), "count must be"),
        (lambda: Diffeomorphism((8, 8), 3).delta(torch.tensor([1.0, -2.0])), "temperature must be finite.*, got -2[.]"),
        (lambda: Diffeomorphism((8, 8), 3).sample_bijective(1, -1.0), "sample_bijective: temperature must be finite"),
        (lambda: Diffeomorphism((8, 8), 1e9), "cut must be at most 4096"),
        (lambda: fixed_field().gradient(-1), "points must be an integer of at least 1, got -1"),
        (lambda: fixed_field().determinant(2.5), "points must be an integer of at least 1, got 2.5"),
        (lambda: Diffeomorphism((8, 8), 3).sample_bijective(0, 1.0), "count must be an integer of at least 1, got 0"),
        (lambda: Diffeomorphism((8, 8), 3).sample_bijective(1, 1.0, max_tries=0), "max_tries must be an integer of"),
        (lambda: fixed_field() * torch.ones(2), r"factor must be a number or one per field \[1\], got shape \[2\]"),
        (lambda: Diffeomorphism((8, 8), 3).temperature(-1.0), "delta must be finite and at least 0"),
        (lambda: Diffeomorphism((8, 8), 3).delta(math.inf), "temperature must be finite"),
        (lambda: Diffeomorphism((8, 8), 3).delta(1.0, at="corner"), "at must be one of centre, average, got 'corner'"),
        (lambda: Diffeomorphism((8, 8), 1, modes="code").delta(1.0, asymptotic=True), "cut must be above 1"),
        (lambda: Diffeomorphism((8, 8), 3).field(torch.zeros(1, 2, 2), torch.zeros(1, 2, 2)), r"\[count, 3, 3\]"),
        (lambda: Diffeomorphism((8, 8), 3).field(torch.zeros(1, 3, 3), torch.zeros(2, 3, 3)), "one shape"),
        (lambda: Diffeomorphism((8, 8), 3).field(torch.full((3, 3), math.nan), torch.zeros(3, 3)), "cu must be finite"),
        (lambda: Diffeomorphism((8, 8), 3).whitened_field(torch.zeros(1, 2, 3), 1.0), r"\[count, 2, 4\]"),
        (lambda: fixed_field().min_determinant(points=1), "points must be at least 2"),
        (lambda: fixed_field().inverse(tol=0), "tol must be positive, got 0"),
        (lambda: critical_temperatures(3, samples=0), "samples must be an integer of at least 1"),
        (lambda: bijective_share(-1.0, 3), "temperature must be finite"),
        (lambda: phase_diagram((8, 8), (), (1.0,)), "must not be empty"),
    ],
)  # fmt: skip
def test_bad_values(call, match):
    with pytest.raises(ValueError, match=match):
        call()


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: Diffeomorphism(8, 3), r"size must be \(h, w\)"),
        (lambda: Diffeomorphism((8, 8), "3"), "cut must be a finite number"),
        (lambda: Diffeomorphism((8, 8), math.nan), "cut must be a finite number"),
        (lambda: fixed_field()[0], "slice or a tensor"),
        (lambda: Diffeomorphism((8, 8), 3).sample(3, "a"), "sample: temperature must be a number or several, got 'a'"),
        (lambda: Diffeomorphism((8, 8), 3).sample(3, None), "temperature must be a number or several, got None"),
        (lambda: Diffeomorphism((8, 8), 3).sample(3, True), "temperature must be a number or several, got True"),
        (lambda: Diffeomorphism((8, 8), 3).temperature("1"), "delta must be a number or several, got '1'"),
    ],
)
def test_bad_types(call, match):
    with pytest.raises(TypeError, match=match):
        call()
