from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import lisse
from lisse.data import Dataset
from lisse.instruments import Stability
from lisse.instruments.stability import answers
from lisse.instruments.stability.answers import partners
from lisse.instruments.stability.views import FieldDraws, Perturbations, Setting, bijective
from lisse.maths.comparison import statistic_of
from lisse.maths.diffeomorphism import Diffeomorphism, blurred, deform
from lisse.maths.relative_stability import coordinate_ratio_interval
from lisse.models.declaration import SLACK, Normalised
from lisse.run import Run


def pictures(n: int = 40, c: int = 1, h: int = 10, w: int = 10, seed: int = 0) -> torch.Tensor:
    """Smooth pictures in [0, 1], so that deformations are not noise."""
    x = torch.rand(n, c, h, w, generator=torch.Generator().manual_seed(seed))
    for _ in range(2):
        x = nn.functional.avg_pool2d(nn.functional.pad(x, (1, 1, 1, 1), mode="reflect"), 3, 1)
    return x


class Network(nn.Module):
    def __init__(self, c: int = 1, size: int = 100, out: int = 6):
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Conv2d(c, 4, 3, padding=1)
        self.b = nn.Linear(4 * size, out)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)).flatten(1))


def linear(size: int = 100, out: int = 6) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(size, out))


def rows(profile, quantity="relative_stability", **at):
    return {
        row.layer: row
        for row in profile.rows
        if row.quantity == quantity and all(row.at.get(key) == value for key, value in at.items())
    }


def value(profile, quantity="relative_stability", layer=None, **at):
    found = rows(profile, quantity, **at)
    return found[layer if layer is not None else list(found)[-1]].value


def last(profile):
    """The row of R at the output."""
    return list(rows(profile).values())[-1]


def by_hand(x, options=None, seed=0, settings=((3, 1.0),), fields=1, radius="global", kind="bilinear"):
    """τx and x + η of every setting from the run's own draws, by the formulas: ``{setting: (clean, moved, noisy)}``."""
    run = Run(nn.Flatten(), Dataset("d", x), seed=seed)
    n, _, h, w = x.shape
    clean = blurred(x) if kind == "gaussian" else x
    found = {}
    for cut, delta in settings:
        ensemble = Diffeomorphism((h, w), cut)
        moved, noisy = [], []
        for k in range(fields):
            z = run.draw(f"stability/field/{cut}/paper/{k}", 0, n, (2, ensemble.mode_count))
            field = ensemble.whitened_field(z, float(ensemble.temperature(delta)))
            moved.append(deform(x, field, interpolation=kind))
        size = torch.stack([(each - clean).flatten(1).norm(dim=1) for each in moved], 1)
        for k in range(fields):
            noise = run.draw(f"stability/noise/{k}", 0, n, x.shape[1:])
            r = size.mean() if radius == "global" else size[:, k]
            noise = noise * (r / noise.flatten(1).norm(dim=1)).reshape(-1, 1, 1, 1)
            noisy.append(clean + noise)
        found[cut, delta] = (clean, torch.stack(moved, 1), torch.stack(noisy, 1))
    return found


def squares(f, clean, views):
    return torch.stack([(f(views[:, k]) - f(clean)).flatten(1).square().sum(1) for k in range(views.shape[1])], 1)


# --- closed forms -----------------------------------------------------------------------------------------------------


def test_the_identity_has_its_closed_form():
    """R = E‖·‖²/(E‖·‖)² ≥ 1 with one radius for all, 1 with each sample's own ([petrini2021] eq. 4)."""
    x = pictures()
    clean, moved, _ = by_hand(x)[3, 1.0]
    size = (moved[:, 0] - clean).flatten(1).norm(dim=1).double()
    profile = lisse.measure(nn.Flatten(), x, Stability(statistic="mean"), order="given")
    expected = float(size.square().mean() / size.mean() ** 2)
    assert value(profile, layer="input") == pytest.approx(expected, rel=1e-4)
    assert expected > 1.01
    assert value(profile, "noise_radius") == pytest.approx(float(size.mean()), rel=1e-5)
    for statistic in ("mean", "median"):
        own = lisse.measure(nn.Flatten(), x, Stability(statistic=statistic, radius="sample"), order="given")
        assert value(own, layer="input") == pytest.approx(1.0, abs=1e-4)
    median = lisse.measure(nn.Flatten(), x, Stability(), order="given")
    assert value(median, layer="input") == pytest.approx(
        float(size.square().quantile(0.5) / size.mean() ** 2), rel=1e-4
    )


def test_a_linear_function_has_the_ratio_of_its_draws():
    x, model = pictures(), linear()
    weight = model[1].weight.detach()
    clean, moved, noisy = by_hand(x)[3, 1.0]

    def energy(views):
        return ((views[:, 0] - clean).flatten(1) @ weight.T).square().sum(1).double()

    profile = lisse.measure(model, x, Stability(statistic="mean"), order="given")
    assert value(profile) == pytest.approx(float(energy(moved).mean() / energy(noisy).mean()), rel=1e-3)
    profile = lisse.measure(model, x, Stability(), order="given")
    assert value(profile) == pytest.approx(float(energy(moved).quantile(0.5) / energy(noisy).quantile(0.5)), rel=1e-3)


def test_a_linear_function_of_noise_has_its_mean_square():
    """E‖Aη‖² = r²‖A‖_F²/d on the sphere: G's numerator, within five standard errors over samples and fields."""
    x, model = pictures(200), linear()
    weight = model[1].weight.detach().double()
    run = Run(model, Dataset("d", x))
    instrument = Stability(statistic="mean", fields=4)
    setting = instrument._settings(run)
    views = Perturbations(run, "bilinear", False)
    drawn = instrument._draws(run, views, setting, 200)
    radius = float(drawn[0].shift.double().mean())
    noise = torch.stack([(views.noisy(x, k, 0, radius) - x).flatten(1) for k in range(4)], 1).double()
    energy = (noise @ weight.T).square().sum(-1).flatten()
    assert float(energy.mean()) == pytest.approx(
        radius**2 * float(weight.square().sum()) / 100, abs=5 * float(energy.std()) / 800**0.5
    )


@pytest.mark.parametrize("statistic", ["mean", "median"])
def test_r_is_d_over_g_at_every_layer(statistic):
    profile = lisse.measure(Network(), pictures(), Stability(statistic=statistic, cut=(2, 3)))
    for cut in (2, 3):
        r, d, g = (
            rows(profile, q, cut=cut) for q in ("relative_stability", "deformation_stability", "noise_stability")
        )
        assert len(r) >= 3
        for layer in r:
            assert r[layer].value == pytest.approx(d[layer].value / g[layer].value, rel=1e-12)


@pytest.mark.parametrize("statistic", ["mean", "median", "coordinates"])
def test_what_compares_two_models_is_what_was_printed(statistic):
    """Of the last block, at the setting that the headline prefers: the ratio of all samples' and fields' centres."""
    options = Stability(statistic=statistic, cut=(2, 3), delta=(0.5, 1.0), fields=2)
    profile = lisse.measure(Network(), pictures(), options)
    block = [layer["name"] for layer in profile.provenance["layers"] if layer["role"] == "block"][-1]
    part = profile["stability"]
    meanings = {quantity.name: quantity.statistic for quantity in part.quantities}
    for quantity in ("relative_stability", "deformation_stability"):
        array = part.arrays.get(f"samples/{quantity}")
        if statistic == "coordinates":
            assert array is None
            continue
        assert array.shape == (len(pictures()), 2, 2)
        assert meanings[quantity] == f"ratio of {statistic}s"
        row = rows(profile, quantity, cut=3, delta=1.0)[block]
        assert statistic_of(array, meanings[quantity]) == pytest.approx(row.value, rel=1e-6)


def test_the_denominator_is_over_distinct_pairs():
    x = pictures(30)
    run = Run(nn.Flatten(), Dataset("d", x), order="given")
    chosen = torch.randperm(30, generator=run.generator("stability/references")).sort().values
    assert chosen.tolist() == list(range(30))  # all of them: fewer than fifty
    other = torch.arange(1, 31) % 30
    apart = (x - x[other]).flatten(1).square().sum(1).double()
    clean, moved, _ = by_hand(x)[3, 1.0]
    answer = squares(nn.Flatten(), clean, moved).double()
    profile = lisse.measure(nn.Flatten(), x, Stability(statistic="mean"), order="given")
    assert value(profile, "deformation_stability", "input") == pytest.approx(
        float(answer.mean() / apart.mean()), rel=1e-4
    )


def test_partners_are_never_the_sample_itself():
    chosen = torch.tensor([0, 3, 4, 9])
    rows = partners(chosen, 0, 20)
    assert (chosen[rows] != torch.arange(20)).all()
    assert rows.tolist()[:2] == [1, 1]
    assert torch.equal(rows[7:13], partners(chosen, 7, 6))


# --- invariances ------------------------------------------------------------------------------------------------------


class Changed(nn.Module):
    def __init__(self, inner, change):
        super().__init__()
        self.inner, self.change = inner, change

    def forward(self, x):
        return self.change(self.inner(x))


def test_scale_shift_and_rotation_of_the_output_change_nothing():
    x = pictures()
    turn = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(3))).Q
    plain = lisse.measure(Network(), x, Stability())
    for change in (lambda y: 7 * y - 2, lambda y: y @ turn):
        other = lisse.measure(Changed(Network(), change), x, Stability())
        for quantity in ("relative_stability", "deformation_stability", "noise_stability"):
            assert value(other, quantity) == pytest.approx(value(plain, quantity), rel=1e-4)
    one, two = (
        lisse.measure(Changed(Network(), change), x, Stability(statistic="coordinates"))
        for change in (lambda y: y + 0, lambda y: y @ turn)
    )
    assert abs(value(one) / value(two) - 1) > 1e-3  # the published code's medians depend on the axes


@pytest.mark.parametrize("batch", [1, 7, 13, 40])
def test_the_batch_size_changes_nothing(batch):
    x, instrument = pictures(), Stability(cut=(2, 3), fields=2, bijective=True, delta=2.0)
    plain, other = lisse.measure(Network(), x, instrument), lisse.measure(Network(), x, instrument, batch=batch)
    for a, b in zip(plain.rows, other.rows, strict=True):
        assert (a.quantity, a.layer, a.at) == (b.quantity, b.layer, b.at)
        assert b.value == pytest.approx(a.value, rel=1e-4)
        if a.low is not None:
            assert b.low == pytest.approx(a.low, rel=1e-3)


def test_several_settings_at_once_are_those_one_at_a_time():
    x = pictures()
    together = lisse.measure(Network(), x, Stability(cut=(2, 3), delta=(0.5, 1.0)))
    for cut, delta in itertools.product((2, 3), (0.5, 1.0)):
        alone = lisse.measure(Network(), x, Stability(cut=cut, delta=delta))
        some = [row for row in together.rows if row.at["cut"] == cut and row.at["delta"] == delta]
        assert [(row.quantity, row.layer, row.value, row.low, row.high) for row in some] == [
            (row.quantity, row.layer, row.value, row.low, row.high) for row in alone.rows
        ]


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "cut", "delta", "expected"),
    [
        ({}, 3, 1.0, 1.0 / (200 * 0.5)),  # T = δ²/((h² + w²) S_odd), S_odd = ½ at c = 3
        ({"delta": 2.0}, 3, 2.0, 4.0 / (200 * 0.5)),
        ({"cut": 5}, 5, 1.0, 1.0 / (100 * 1.5111111111)),
        ({"modes": "code"}, 3, 1.0, 1.0 / (200 * (0.5 + 2 / 10))),  # (1, 3) and (3, 1) as well
        ({"delta_rule": "asymptotic"}, 3, 1.0, 4 / (math.pi * 100 * math.log(3))),
    ],
)
def test_the_temperature_is_that_of_the_rule(options, cut, delta, expected):
    profile = lisse.measure(nn.Flatten(), pictures(10), Stability(**options))
    assert value(profile, "temperature", cut=cut, delta=delta) == pytest.approx(expected, rel=1e-6)
    said = any("By eq. 3" in note for note in profile.notes)
    assert said == (options.get("delta_rule") == "asymptotic")


@pytest.mark.parametrize(
    ("options", "given"),
    [({"fields": 3}, {"fields": 3}), ({"radius": "sample"}, {"radius": "sample"}),
     ({"interpolation": "gaussian"}, {"kind": "gaussian"}), ({"interpolation": "bicubic"}, {"kind": "bicubic"}),
     ({"interpolation": "nearest"}, {"kind": "nearest"})],
)  # fmt: skip
def test_every_option_gives_its_own_number(options, given):
    x, model = pictures(), Network()
    clean, moved, noisy = by_hand(x, **given)[3, 1.0]
    with torch.no_grad():
        top, bottom = squares(model, clean, moved).double(), squares(model, clean, noisy).double()
    expected = float(top.flatten().quantile(0.5) / bottom.flatten().quantile(0.5))
    assert value(lisse.measure(model, x, Stability(**options), order="given")) == pytest.approx(expected, rel=1e-3)
    assert abs(value(lisse.measure(model, x, Stability(), order="given")) / expected - 1) > 1e-3


def test_the_grid_moves_the_pixels():
    profile = [lisse.measure(nn.Flatten(), pictures(), Stability(grid=grid)) for grid in ("cell", "linspace")]
    assert value(profile[0], "temperature") == value(profile[1], "temperature")
    assert value(profile[0], "noise_radius") != value(profile[1], "noise_radius")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("statistic", "mean"), ("radius", "sample"), ("interpolation", "gaussian"), ("modes", "code"),
        ("grid", "linspace"), ("delta_rule", "asymptotic"), ("bijective", True),
    ],
)  # fmt: skip
def test_rows_say_which_r_they_are(option, value):
    profile = lisse.measure(nn.Flatten(), pictures(), Stability(**{option: value}))
    settings = {"cut": 3, "delta": 1.0}
    assert {tuple(dict(row.at).items()) for row in profile.rows} == {tuple({**settings, option: value}.items())}
    plain = lisse.measure(nn.Flatten(), pictures(), Stability(samples=30, fields=2, level=0.9))
    assert {tuple(dict(row.at).items()) for row in plain.rows} == {tuple(settings.items())}


def test_coordinate_medians_as_the_published_code():
    x, model = pictures(), Network()
    clean, moved, noisy = by_hand(x, radius="sample")[3, 1.0]
    with torch.no_grad():
        ends = [(model(view[:, 0]) - model(clean)).double().square().quantile(0.5, 0).sum() for view in (moved, noisy)]
    profile = lisse.measure(model, x, Stability(statistic="coordinates", radius="sample"), order="given")
    row = last(profile)
    assert row.value == pytest.approx(float(ends[0] / ends[1]), rel=1e-3)
    assert dict(row.at) == {"cut": 3, "delta": 1.0, "statistic": "coordinates", "radius": "sample"}
    assert row.low < row.value < row.high
    quick = lisse.measure(model, x, Stability(statistic="coordinates", radius="sample"), order="given")
    assert last(quick).value == pytest.approx(row.value)
    small = lisse.measure(model, x, Stability(statistic="coordinates"), memory=4 * 40 * 6 * 3 + 100, order="given")
    assert list(rows(small)) == ["b"]
    assert any("Left out" in note and "input" in note for note in small.notes)


def test_intervals_of_coordinate_medians_cover_the_choice_of_pairs():
    x, model = pictures(), Network()
    found = rows(lisse.measure(model, x, Stability(statistic="coordinates"), order="given"), "deformation_stability")[
        "b"
    ]
    clean, moved, _ = by_hand(x)[3, 1.0]
    run = Run(model, lisse.data.as_dataset(x), order="given")
    chosen = torch.randperm(40, generator=run.generator("stability/references"))[:40].sort().values
    other = chosen[partners(chosen, 0, 40)]
    with torch.no_grad():
        y = model(clean)
        above, below = model(moved[:, 0]) - y, y - y[other]
    expected = coordinate_ratio_interval(
        above[:, None], below[:, None], partners=other, generator=run.generator("stability/intervals")
    )
    assert found.high == pytest.approx(float(expected.high), rel=1e-3)
    less = coordinate_ratio_interval(above[:, None], below[:, None], generator=run.generator("stability/intervals"))
    assert found.high != pytest.approx(float(less.high), rel=1e-2)


def test_noise_that_leaves_the_unit_interval_is_no_warning():
    x = torch.ones(12, 1, 10, 10) * (torch.rand(12, 1, 10, 10, generator=torch.Generator().manual_seed(0)) > 0.5)
    model = Normalised(Network(), [0.5], [0.5])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        profile = lisse.measure(model, x, Stability(delta=3.0))
    radius = value(profile, "noise_radius")
    assert radius / 10 * 3 > SLACK  # three standard deviations of a pixel's noise: there are such pixels
    with pytest.warns(UserWarning, match="Normalised: images must lie in"):  # pictures that are off are still told of
        lisse.measure(Normalised(Network(), [0.5], [0.5]), 2 * x, Stability())


def test_samples_and_level():
    x = pictures(120)
    profile = lisse.measure(Network(), x, Stability(samples=50))
    row = last(profile)
    assert (row.n, row.kind, row.depth) == (50, "estimate", 1.0)
    assert row.low < row.value < row.high
    less = last(lisse.measure(Network(), x, Stability(samples=50, level=0.5)))
    assert less.high < row.high
    assert less.value == row.value
    few = lisse.measure(Network(), x, Stability(samples=7))
    assert last(few).low is None
    assert "7 samples are too few for intervals." in few.notes


def test_seeds_differ():
    one, two = (value(lisse.measure(Network(), pictures(), Stability(), seed=seed)) for seed in (0, 1))
    assert one != two


# --- folds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cut", "delta"), [(3, 1.0), (3, 4.0), (5, 2.0), (10, 1.5)])
def test_the_quick_test_for_folds_agrees_with_the_thorough_one(cut, delta):
    ensemble = Diffeomorphism((32, 32), cut)
    field = ensemble.sample(60, float(ensemble.temperature(delta)), generator=torch.Generator().manual_seed(0))
    assert torch.equal(bijective(field), field.bijective())


def test_the_share_of_bijective_fields():
    x = pictures(60)
    run = Run(nn.Flatten(), Dataset("d", x))
    ensemble = Diffeomorphism((10, 10), 3)
    field = ensemble.whitened_field(run.draw("stability/field/3/paper/0", 0, 60, (2, 4)), 0.0272)
    delta = float(ensemble.delta(0.0272))
    row = rows(lisse.measure(nn.Flatten(), x, Stability(delta=delta)), "bijective_share")[None]
    assert row.value == pytest.approx(float(field.bijective().float().mean()))
    assert (row.kind, row.n) == ("estimate", 60)
    assert row.low < row.value < row.high
    assert abs(row.value - 0.5) < 5 * 0.5 / 60**0.5  # T½(3) = 0.0272
    wild = lisse.measure(nn.Flatten(), x, Stability(delta=3 * delta))
    assert any("of the fields at cut 3" in note and "fold" in note for note in wild.notes)
    assert not lisse.measure(nn.Flatten(), x, Stability()).notes


def test_folded_fields_are_drawn_again():
    x = pictures(60)
    ensemble = Diffeomorphism((10, 10), 3)
    delta = float(ensemble.delta(0.0272))
    profile = lisse.measure(nn.Flatten(), x, Stability(delta=delta, bijective=True))
    assert value(profile, "bijective_share") == 1.0
    row = rows(profile, "acceptance")[None]
    assert row.n > 60
    assert row.value == pytest.approx(60 / row.n)
    assert abs(row.value - 0.5) < 5 * 0.5 / row.n**0.5
    assert value(profile) != value(lisse.measure(nn.Flatten(), x, Stability(delta=delta)))
    run = Run(nn.Flatten(), Dataset("d", x))
    views = Perturbations(run, "bilinear", True)
    setting = Setting(3, delta, ensemble, 0.0272)
    drawn = FieldDraws(**views.draws(setting, 1, 0, 60))
    assert views.fields(setting, 0, 0, drawn.tries[:, 0]).bijective().all()
    assert torch.equal(views.fields(setting, 0, 20, drawn.tries[20:30, 0]).cu,
                       views.fields(setting, 0, 0, drawn.tries[:, 0]).cu[20:30])  # fmt: skip
    with pytest.raises(ValueError, match=r"delta must let fields be bijective, got 30 at cut 3"):
        lisse.measure(nn.Flatten(), x[:4], Stability(delta=30.0, bijective=True))


# --- what it takes ----------------------------------------------------------------------------------------------------


def test_colour_bytes_and_pictures_that_are_not_square():
    x = (pictures(20, 3, 8, 14) * 255).to(torch.uint8)
    profile = lisse.measure(Network(3, 8 * 14), x, Stability())
    same = lisse.measure(Network(3, 8 * 14), x.float() / 255, Stability())
    assert value(profile) == pytest.approx(value(same), rel=1e-5)
    assert value(profile, "temperature") == pytest.approx(1 / ((8**2 + 14**2) * 0.5))


def test_any_output():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = Network()

        def forward(self, x):
            y = self.network(x)
            return {"logits": y, "sequence": [y[:, None].repeat(1, 3, 1)]}

    profile = lisse.measure(Odd(), pictures(), Stability())
    plain = lisse.measure(Network(), pictures(), Stability())
    assert value(plain, layer="b") in [pytest.approx(row.value, rel=1e-5) for row in rows(profile).values()]


def test_batch_statistics_are_said():
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten())
    profile = lisse.measure(model, pictures(), Stability(), statistics="batch")
    assert any("batches of 100" in note for note in profile.notes)
    assert value(profile) > 0


def test_what_does_not_fit():
    for data, reason in (
        (torch.rand(5, 6), "deforms images"),
        ({"x": torch.rand(5, 6)}, "several parts"),
        (torch.rand(5, 1, 1, 6), "at least 2 pixels"),
        (torch.zeros(5, 1, 4, 4, dtype=torch.int64), "bytes or floats"),
        (torch.rand(1, 1, 4, 4), "at least 2 samples"),
    ):
        run = Run.__new__(Run)
        run.model, run.data = nn.Identity(), Dataset("d", data)
        assert reason in Stability().fits(run)


def test_a_constant_layer_has_no_ratio():
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.b = nn.Linear(100, 2)
            nn.init.zeros_(self.b.weight)

        def forward(self, x):
            return self.b(x.flatten(1))

    profile = lisse.measure(Constant(), pictures(), Stability())
    assert math.isnan(value(profile))
    assert any("No ratio at" in note for note in profile.notes)


def test_activations_that_are_not_finite_are_named():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.b = nn.Linear(100, 2)

        def forward(self, x):
            return self.b(x.flatten(1)).log()

    with pytest.raises(ValueError, match=r"activations at .* must be finite, got NaN"):
        lisse.measure(Broken(), pictures(), Stability())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cut": 1}, "Stability: cut must be at least √2"),
        ({"cut": ()}, "cut must be a number or different numbers"),
        ({"cut": (3, 3)}, "cut must be a number or different numbers"),
        ({"delta": 0.0}, "delta must be positive and finite"),
        ({"delta": (1.0, math.nan)}, "delta must be positive and finite"),
        ({"statistic": "mode"}, "statistic must be one of median, mean, coordinates, got 'mode'"),
        ({"radius": "each"}, "radius must be one of global, sample"),
        ({"interpolation": "sinc"}, "interpolation must be one of bilinear"),
        ({"modes": "all"}, "modes must be one of paper, code"),
        ({"grid": "x"}, "grid must be one of cell, linspace"),
        ({"delta_rule": "x"}, "delta_rule must be one of exact, asymptotic"),
        ({"cut": 1, "modes": "code", "delta_rule": "asymptotic"}, "cut must be above 1"),
        ({"samples": 1}, "samples must be a whole number of at least 2, got 1"),
        ({"fields": 0}, "fields must be a whole number of at least 1, got 0"),
        ({"fields": 1.5}, "fields must be a whole number of at least 1, got 1.5"),
        ({"level": 1.0}, r"level must lie in \(0, 1\), got 1.0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Stability(**options)


# --- streaming --------------------------------------------------------------------------------------------------------


def test_a_killed_run_goes_on_from_the_last_batch(tmp_path, monkeypatch):
    x, starts = pictures(1200, 1, 4, 4), []

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.b = nn.Linear(16, 3)

        def forward(self, x):
            return self.b(x.flatten(1))

    instrument = Stability(samples=1200)
    expected = lisse.measure(Counting(), x, instrument)
    views = Run.views

    def killed(run, n, *args, **options):
        if options["start"] >= 700:
            raise KeyboardInterrupt
        return views(run, n, *args, **options)

    monkeypatch.setattr(Run, "patience", 0.0)
    monkeypatch.setattr(Run, "views", killed)
    with pytest.raises(KeyboardInterrupt):
        lisse.measure(Counting(), x, instrument, cache=tmp_path)

    def counted(run, n, *args, **options):
        starts.append(options["start"])
        return views(run, n, *args, **options)

    monkeypatch.setattr(Run, "views", counted)
    profile = lisse.measure(Counting(), x, instrument, cache=tmp_path)
    assert starts == [700, 800, 900, 1000, 1100]
    assert [(row.quantity, row.layer, row.value, row.low) for row in profile.rows] == [
        (row.quantity, row.layer, row.value, row.low) for row in expected.rows
    ]


@pytest.mark.parametrize("statistic", ["median", "mean"])
@pytest.mark.parametrize("memory", ["1kB", "30kB", "300kB"])
def test_the_memory_changes_no_number(memory, statistic):
    """With 1 kB all partners lie in files, with 30 kB those of the wide layer alone."""
    options = Stability(samples=60, statistic=statistic)
    expected = lisse.measure(Network(), pictures(60), options, batch=17)
    assert lisse.measure(Network(), pictures(60), options, batch=17, memory=memory).rows == expected.rows


def test_layers_that_did_not_fit_are_there_with_more_memory(tmp_path):
    options = Stability(samples=20, statistic="coordinates")
    expected = lisse.measure(Network(), pictures(20), options)
    few = lisse.measure(Network(), pictures(20), options, memory="5kB", cache=tmp_path)
    assert len(few.rows) < len(expected.rows)
    assert lisse.measure(Network(), pictures(20), options, cache=tmp_path).rows == expected.rows


def test_there_are_fifty_partners_whatever_the_memory(monkeypatch):
    counts = []

    def counted(references, start, count):
        counts.append(len(references))
        return partners(references, start, count)

    monkeypatch.setattr(answers, "partners", counted)
    for memory in ("1kB", "2GiB"):
        lisse.measure(Network(), pictures(60), Stability(), memory=memory)
    assert set(counts) == {50}


def test_memory_does_not_grow_with_the_samples():
    """A layer of 64 KiB a sample: keeping it for the 1,200 samples more would take 75 MiB, and twice that for views."""
    code = """
import torch, lisse
from torch import nn
from lisse.instruments import Stability
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
x = torch.rand(1500, 1, 32, 32)
for n in (300, 1500):
    lisse.measure(model, x, Stability(samples=n), batch=50)
    print(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1])
"""
    if not Path("/proc/self/status").exists():
        pytest.skip("needs Linux's record of peak memory")
    # In a process of its own: a peak that earlier tests have left would hide this one.
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    few, many = (int(kib) for kib in run.stdout.split())
    assert many - few < 40 * 1024


def test_progress_is_told():
    events = []
    lisse.measure(Network(), pictures(), Stability(), progress=events.append)
    tasks = {event.task for event in events}
    assert {"stability: fields", "stability: views"} <= tasks


# --- real networks ----------------------------------------------------------------------------------------------------


def independent(model, images, cut=3, delta=1.0, seed=1):
    """R_f by [petrini2021] eq. 3, 4 in plain loops: own field sum, warp and noise. Gives R and its standard error."""
    rng = torch.Generator().manual_seed(seed)
    n = images.shape[-1]
    modes = [(i, j) for i in range(1, cut + 1) for j in range(1, cut + 1) if i * i + j * j <= cut * cut]
    odd = sum(1 / (i * i + j * j) for i, j in modes if i % 2 and j % 2)
    temperature = delta**2 / (2 * n**2 * odd)
    u = (torch.arange(n) + 0.5) / n
    moved = []
    for x in images:
        shift = []
        for _ in range(2):
            tau = torch.zeros(n, n)  # [row, column]
            for i, j in modes:
                c = torch.randn((), generator=rng) * math.sqrt(temperature / (i * i + j * j))
                tau += c * torch.outer(torch.sin(j * math.pi * u), torch.sin(i * math.pi * u))
            shift.append(n * tau)
        column = (torch.arange(n)[None, :] - shift[0]).clamp(0, n - 1)
        row = (torch.arange(n)[:, None] - shift[1]).clamp(0, n - 1)
        c0, r0 = column.floor().long().clamp(max=n - 2), row.floor().long().clamp(max=n - 2)
        a, b = column - c0, row - r0
        top = (1 - a) * x[:, r0, c0] + a * x[:, r0, c0 + 1]
        bottom = (1 - a) * x[:, r0 + 1, c0] + a * x[:, r0 + 1, c0 + 1]
        moved.append((1 - b) * top + b * bottom)
    moved = torch.stack(moved)
    radius = (moved - images).flatten(1).norm(dim=1).mean()
    noise = torch.randn(images.shape, generator=rng)
    noise *= (radius / noise.flatten(1).norm(dim=1)).reshape(-1, 1, 1, 1)
    with torch.no_grad():
        f = torch.cat([model(part) for part in images.split(100)])
        d = (torch.cat([model(part) for part in moved.split(100)]) - f).square().sum(1)
        g = (torch.cat([model(part) for part in (images + noise).split(100)]) - f).square().sum(1)
    again = []
    for _ in range(300):
        some = torch.randint(len(d), (len(d),), generator=rng)
        again.append(float(d[some].quantile(0.5) / g[some].quantile(0.5)))
    return float(d.quantile(0.5) / g.quantile(0.5)), float(torch.tensor(again).std())


@pytest.mark.large
@pytest.mark.parametrize("name", ["resnet20-12fca82f", "resnet32-d509ac18", "resnet44-014dd654", "resnet56-4bfd9763"])
def test_published_checkpoints_against_a_script_from_the_formulas(name):
    folder = os.environ["LISSE_DATA"]
    short = name.partition("-")[0]
    model = lisse.load_model(f"zoo:{short}?weights={folder}/checkpoints/{name}.th")
    data = lisse.load_data("cifar10", limit=500)
    profile = lisse.measure(model, data, Stability(cut=3, delta=1.0))
    row = last(profile)
    (batch,) = data.batches(500)
    theirs, error = independent(model, batch.inputs)
    own = (row.high - row.low) / (2 * 1.96)
    assert abs(row.value - theirs) < 3 * math.hypot(own, error)
    assert row.high < 0.3
    if short != "resnet20":  # random weights of one depth are enough
        return
    torch.manual_seed(0)
    fresh = lisse.load_model(f"zoo:{short}")
    start = last(lisse.measure(fresh, data, Stability(), statistics="batch"))
    assert 0.5 < start.value < 2
    assert start.low > 3 * row.high


def test_deformed_samples_are_kept_to_look_at():
    images = pictures(12)
    profile = Stability(cut=(2, 3), samples=12).measure(linear(), images.clamp(0, 1), order="given")
    arrays = profile["stability"].arrays
    assert [name for name in arrays if name.startswith("strip/")] == ["strip/cut=2 delta=1", "strip/cut=3 delta=1"]
    strip = arrays["strip/cut=3 delta=1"]
    assert strip.shape == (2, 8, 1, 10, 10)
    assert strip.dtype == "uint8"
    assert (strip[0] == images.clamp(0, 1)[:8].mul(255).round().numpy()).all()
    assert 0 < abs(strip[1].astype(float) - strip[0]).mean() < 128
