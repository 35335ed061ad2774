from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import lisse
from lisse.data import Dataset
from lisse.instruments import ALL, Robustness
from lisse.instruments.robustness.rows import corruption_curves, corruption_table, relative_errors
from lisse.maths.corruption import corrupt
from lisse.maths.intervals import share_interval
from lisse.models import declare
from lisse.networks.bounds import relaxation

GENERATOR = torch.Generator().manual_seed(3)
IMAGES = torch.randint(256, (60, 3, 8, 8), generator=GENERATOR, dtype=torch.uint8)


class Bright(nn.Module):
    """Class 1 where the mean of the first channel is above a half."""

    def __init__(self, slope: float = 20.0) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(slope))

    def forward(self, x):
        rise = self.slope * (x[:, 0].mean((1, 2)) - 0.5)
        return torch.stack([-rise, rise], 1)


def bright() -> nn.Module:
    return declare(Bright(), kind="plain", name="bright")


LABELS = (IMAGES[:, 0].double().div(255).mean((1, 2)) > 0.5).long()
DATA = Dataset("squares", IMAGES, LABELS)
NOTHING = {"corruptions": (), "attacks": (), "sigma": (), "delta": ()}


def rows(profile, quantity, **at):
    return [
        row for row in profile.rows if row.quantity == quantity and all(row.at.get(key) == v for key, v in at.items())
    ]


def value(profile, quantity, **at):
    (row,) = rows(profile, quantity, **at)
    return row


# --- what it counts -------------------------------------------------------------------------------------------------


def test_it_is_offered():
    assert Robustness in ALL


def test_clean_accuracy_with_wilsons_interval():
    profile = Robustness(**NOTHING).measure(bright(), Dataset("d", IMAGES, 1 - LABELS))
    assert value(profile, "clean_accuracy").value == 0.0
    flipped = LABELS.clone()
    flipped[:15] = 1 - flipped[:15]
    row = value(Robustness(**NOTHING).measure(bright(), Dataset("d", IMAGES, flipped)), "clean_accuracy")
    expected = share_interval(0.75, 60)
    assert (row.value, row.kind, row.n) == (0.75, "estimate", 60)
    assert (row.low, row.high) == pytest.approx((float(expected.low), float(expected.high)))
    wide = value(Robustness(**NOTHING, level=0.99).measure(bright(), Dataset("d", IMAGES, flipped)), "clean_accuracy")
    assert wide.low < row.low
    assert wide.high > row.high


def test_fgsm_on_a_linear_network_flips_exactly_those_within_eps():
    """FGSM moves the mean of channel 0 by ε towards the other side, unless a pixel meets the box."""
    floats = IMAGES.float() / 255 * 0.6 + 0.2  # no pixel meets the box
    margin = (floats[:, 0].double().mean((1, 2)) - 0.5).abs()
    labels = (floats[:, 0].double().mean((1, 2)) > 0.5).long()
    sizes = (0.0, 0.01, 0.03, 0.1)
    profile = Robustness(**{**NOTHING, "attacks": ("fgsm", "pgd")}, eps=sizes).measure(
        bright(), Dataset("d", floats, labels)
    )
    for eps in sizes:
        expected = float((margin > eps).double().mean())
        for attack in ("fgsm", "pgd"):
            assert value(profile, "attack_accuracy", attack=attack, eps=eps).value == pytest.approx(expected, abs=1e-9)
    assert not [note for note in profile.notes if "Warning" in note]


def test_l2_steps_and_clip_are_used():
    floats = IMAGES.float() / 255 * 0.6 + 0.2
    labels = (floats[:, 0].double().mean((1, 2)) > 0.5).long()
    margin = (floats[:, 0].double().mean((1, 2)) - 0.5).abs()
    data = Dataset("d", floats, labels)
    only = {**NOTHING, "attacks": ("pgd",)}
    # the gradient is 1/64 on 64 pixels: a move of length ε shifts the mean by ε / 8
    profile = Robustness(**only, norm="l2", eps=(0.2,)).measure(bright(), data)
    assert value(profile, "attack_accuracy", eps=0.2).value == pytest.approx(float((margin > 0.025).double().mean()))
    profile = Robustness(**only, eps=(0.1,), step=(0.001, 0.01), steps=3).measure(bright(), data)
    for step in (0.001, 0.01):
        expected = float((margin > 3 * step).double().mean())
        assert value(profile, "attack_accuracy", step=step).value == pytest.approx(expected)
    start = Robustness(**only, eps=(0.1,), step=(0.001,), steps=3, random_start=True).measure(bright(), data)
    key = "right/attack/pgd/linf/0.1/0.001"
    assert (start["robustness"].arrays[key] != profile["robustness"].arrays[key]).any()
    # black and white squares: inside the box half of the pixels cannot move outwards
    edges = Dataset("d", (IMAGES > 127).byte() * 255, LABELS)
    boxed, free = (
        value(Robustness(**{**NOTHING, "attacks": ("fgsm",)}, eps=(0.06,), clip=clip).measure(bright(), edges),
              "attack_accuracy").value
        for clip in (True, False)
    )  # fmt: skip
    assert boxed > free


def test_corruptions_are_those_of_the_maths_and_the_drop_is_paired():
    instrument = Robustness(**{**NOTHING, "corruptions": ("brightness", "contrast")}, severities=(2, 5))
    profile = instrument.measure(bright(), DATA)
    shares = {}
    for name in ("brightness", "contrast"):
        for severity in (2, 5):
            made = corrupt(IMAGES, name, severity)
            shares[name, severity] = float(
                ((made[:, 0].double().div(255).mean((1, 2)) > 0.5).long() == LABELS).double().mean()
            )
            row = value(profile, "corruption_accuracy", corruption=name, severity=severity)
            assert row.value == pytest.approx(shares[name, severity])
        mean = (shares[name, 2] + shares[name, 5]) / 2
        assert value(profile, "mean_accuracy", corruption=name).value == pytest.approx(mean)
        drop = value(profile, "drop", corruption=name)
        assert drop.value == pytest.approx(1 - mean)
        assert drop.low <= drop.value <= drop.high
    everything = sum(shares.values()) / 4
    assert value(profile, "mean_corruption_error").value == pytest.approx(1 - everything)
    assert corruption_curves(profile) == {
        name: pytest.approx([1 - shares[name, 2], 1 - shares[name, 5]]) for name in ("brightness", "contrast")
    }
    (line,) = corruption_table([profile])
    assert line["model"] == "bright"
    assert line["clean"] == 1.0
    assert line["brightness"] == pytest.approx(value(profile, "mean_accuracy", corruption="brightness").value - 1)
    stronger = dataclasses.replace(instrument, strength="imagenet").measure(bright(), DATA)
    assert value(stronger, "mean_corruption_error").value > value(profile, "mean_corruption_error").value


def test_the_mean_corruption_error_against_a_baseline():
    instrument = Robustness(**{**NOTHING, "corruptions": ("brightness", "contrast")}, severities=(3, 5))
    base = instrument.measure(bright(), DATA)
    half = instrument.measure(bright(), Dataset("half", IMAGES, LABELS))
    same = relative_errors(half, base)
    assert same == {"brightness": 1.0, "contrast": 1.0, "all": 1.0}
    with pytest.raises(ValueError, match="corruption_curves: profile must hold accuracies under corruption"):
        corruption_curves(Robustness(**NOTHING).measure(bright(), DATA))


def test_noise_and_deformations_are_further_axes():
    profile = Robustness(**{**NOTHING, "sigma": (0.0, 0.5), "delta": (0.1, 3.0)}, cut=2).measure(bright(), DATA)
    assert value(profile, "noise_accuracy", sigma=0.0).value == 1.0
    assert value(profile, "noise_accuracy", sigma=0.5).value < 1.0
    slight, strong = (value(profile, "deformation_accuracy", cut=2, delta=delta).value for delta in (0.1, 3.0))
    assert strong <= slight


def test_numbers_do_not_depend_on_the_batch_size():
    instrument = Robustness(
        corruptions=("gaussian_noise", "snow"), severities=(3,), attacks=("noise", "search", "pgd"), eps=(0.02,),
        queries=3, random_start=True, sigma=(0.2,), delta=(1.0,),
    )  # fmt: skip
    found = [instrument.measure(bright(), DATA, batch=batch) for batch in (7, 60)]
    assert [row.value for row in found[0].rows] == [row.value for row in found[1].rows]
    other = instrument.measure(bright(), DATA, seed=1)
    assert [row.value for row in other.rows] != [row.value for row in found[0].rows]


def test_samples_are_the_first_ones():
    few = Robustness(**NOTHING, samples=10, clean=10).measure(bright(), DATA)
    assert value(few, "clean_accuracy").n == 10
    assert "The first 10 of 60 samples." in few.notes


def test_clean_accuracy_is_that_of_more_samples_and_a_drop_that_of_the_changed_ones():
    """The first ten labels are right and all others wrong: 10 of 40 as they are, and no drop from 1 to 1."""
    labels = torch.where(torch.arange(60) < 10, LABELS, 1 - LABELS)
    some = {**NOTHING, "corruptions": ("brightness",), "severities": (1,), "samples": 10}
    profile = Robustness(**some, clean=40).measure(bright(), Dataset("squares", IMAGES, labels), order="given")
    clean = value(profile, "clean_accuracy")
    assert (clean.value, clean.n) == (0.25, 40)
    assert value(profile, "corruption_accuracy").n == 10
    (drop,) = rows(profile, "drop", corruption="brightness")
    assert drop.value == pytest.approx(1 - value(profile, "corruption_accuracy").value)
    assert len(profile["robustness"].arrays["right/clean"]) == 40
    assert "The first 10 of 60 samples; clean accuracy is that of the first 40." in profile.notes
    everything = Robustness(**some).measure(bright(), Dataset("squares", IMAGES, labels), order="given")
    assert value(everything, "clean_accuracy").n == 60
    fewer = Robustness(**some, clean=3).measure(bright(), Dataset("squares", IMAGES, labels), order="given")
    assert value(fewer, "clean_accuracy").n == 10, "those that are changed are seen as they are in any case"
    assert Robustness().accuracy(profile["robustness"]) == clean
    assert Robustness().accuracy(dataclasses.replace(profile["robustness"], rows=())) is None


def test_warning_signs_are_of_the_samples_that_were_changed():
    """An attack of no size leaves 20 of 20 right; that 20 of 60 are right does not make it one that helps."""
    labels = torch.where(torch.arange(60) < 20, LABELS, 1 - LABELS)
    options = {**NOTHING, "attacks": ("pgd",), "eps": (1e-9,), "samples": 20}
    profile = Robustness(**options, clean=60).measure(bright(), Dataset("squares", IMAGES, labels), order="given")
    assert value(profile, "clean_accuracy").value == pytest.approx(20 / 60)
    assert value(profile, "attack_accuracy").value == 1
    assert not any("attack helps" in note for note in profile.notes)


def test_finished_pieces_are_found_again(tmp_path, monkeypatch):
    instrument = Robustness(**{**NOTHING, "sigma": (0.1, 0.3)})
    first = instrument.measure(bright(), DATA, cache=tmp_path)
    whole = next((tmp_path / "pieces").rglob("*.part"))
    whole.unlink()
    monkeypatch.setattr("lisse.instruments.robustness.changes.hits", lambda *_: pytest.fail("made again"))
    again = instrument.measure(bright(), DATA, cache=tmp_path)
    assert again.rows == first.rows


def test_progress_is_told():
    told = []
    Robustness(**{**NOTHING, "sigma": (0.1,)}).measure(bright(), DATA, progress=told.append)
    assert [(event.done, event.total) for event in told if event.task == "robustness"][-1] == (2, 2)


# --- warning signs --------------------------------------------------------------------------------------------------


def test_a_network_that_hides_its_gradient_is_found_out():
    class Masked(Bright):
        def forward(self, x):
            coarse = (x * 20).round() / 20  # a staircase: its gradient is 0 everywhere
            return super().forward(coarse) + 0 * super().forward(x)

    model = declare(Masked(), kind="plain")
    profile = Robustness(**{**NOTHING, "attacks": ("noise", "fgsm", "pgd")}, eps=(0.2,)).measure(model, DATA)
    assert any("Warning sign (zero gradient): 100%" in note for note in profile.notes)


def test_a_search_without_gradients_gives_no_distance_and_probabilities_are_searched_by_their_logits():
    class Sure(Bright):
        def __init__(self, temperature):
            super().__init__()
            self.temperature = temperature

        def forward(self, x):
            return (super().forward(x) / self.temperature).softmax(1)

    options = {**NOTHING, "attacks": ("fgsm",), "eps": (0.2,), "distances": 20}
    networks = bright(), *(declare(Sure(temperature), kind="plain") for temperature in (1.0, 1e-6))
    plain, warm, sure = (Robustness(**options).measure(network, DATA) for network in networks)
    distances = [profile["robustness"].arrays["samples/attack_distance"] for profile in (plain, warm)]
    np.testing.assert_allclose(*distances, rtol=1e-3)
    assert not [row for row in sure.rows if row.quantity.startswith("attack_distance")]
    assert any("No distance of the attack: " in note and "measure the logits" in note for note in sure.notes)


# --- where it does not fit ------------------------------------------------------------------------------------------


def notes(model, data, **options):
    return " ".join(Robustness(**{**NOTHING, **options}).measure(model, data).notes)


def test_reasons_not_to_measure():
    assert "has no labels" in notes(bright(), Dataset("d", IMAGES))
    assert "not one class each" in notes(bright(), Dataset("d", IMAGES, torch.rand(60)))
    assert "the model has 2 classes, and d labels from 0 to 5" in notes(bright(), Dataset("d", IMAGES, LABELS * 5))

    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            return self.layer(x)

    assert "gives no logits" in notes(Hidden(), DATA)
    tokens = Dataset("text", torch.randint(5, (6, 4)), torch.zeros(6, dtype=torch.int64))
    embedding = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(12, 2))
    assert "holds neither" in notes(embedding, tokens)


@pytest.mark.parametrize("batch", [1, 7, 60])
@pytest.mark.parametrize("wrap", [lambda t: t, lambda t: {"logits": t}, lambda t: (t, t.sum()), lambda t: [t]])
def test_any_batch_size_and_any_form_of_answer_give_the_accuracy(batch, wrap):
    class Wrapped(Bright):
        def forward(self, x):
            return wrap(super().forward(x))

    profile = lisse.measure(Wrapped(), DATA, Robustness(**NOTHING), batch=batch)
    assert value(profile, "clean_accuracy").value == 1


def test_vectors_are_attacked_but_not_corrupted():
    torch.manual_seed(0)
    x = torch.randn(30, 4) * 3
    model = declare(nn.Linear(4, 3), kind="plain", input_size=(4,))
    data = Dataset("points", x, model(x).argmax(1))
    profile = Robustness(eps=(0.5,), sigma=(0.5,)).measure(model, data)
    said = " ".join(profile.notes)
    assert "Corruptions are left out" in said
    assert "Deformations are left out" in said
    assert "leave [0, 1]" in said
    assert value(profile, "attack_accuracy", attack="pgd").value < 1


def test_frost_without_its_textures_is_left_out_and_looked_for_again(monkeypatch, tmp_path):
    from lisse.instruments import robustness

    looks = []

    def missing():
        looks.append("")
        raise ValueError("frost_textures: not there")

    monkeypatch.setattr(robustness, "frost_textures", missing)
    instrument = Robustness(**{**NOTHING, "corruptions": ("frost", "fog")}, severities=(1,))
    profile = instrument.measure(bright(), DATA, cache=tmp_path)
    assert instrument.measure(bright(), DATA, cache=tmp_path).rows == profile.rows
    assert len(looks) == 2  # a cache that kept what lacks frost would lack it for good
    assert any("frost is left out" in note for note in profile.notes)
    assert {row.at["corruption"] for row in rows(profile, "corruption_accuracy")} == {"fog"}


def test_an_undeclared_model_is_noted_and_warns_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        profile = Robustness(**{**NOTHING, "attacks": ("fgsm",)}, eps=(0.1,)).measure(Bright(), DATA)
    assert any("declares no normalisation" in note for note in profile.notes)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"corruptions": ("snwo",)}, "Robustness: corruptions must be among .*got 'snwo'. Did you mean 'snow'"),
        ({"severities": (0,)}, "severities must be integers from 1 to 5, got"),
        ({"severities": (6,)}, "severities must be"),
        ({"severities": ()}, "severities must be"),
        ({"attacks": ("cw",)}, "attacks must be one of noise, fgsm, pgd, search, autoattack, got"),
        ({"norm": "l1"}, "norm must be one of linf, l2"),
        ({"strength": "mild"}, "strength must be one of cifar, imagenet"),
        ({"variant": "mine"}, "variant must be one of"),
        ({"eps": (-1.0,)}, "eps must hold numbers of at least 0"),
        ({"steps": 0}, "steps must be a whole number of at least 1"),
        ({"samples": 0}, "samples must be a whole number of at least 1"),
        ({"level": 1.0}, "level must lie in"),
    ],
)
def test_bad_options(options, match):
    with pytest.raises(ValueError, match=match):
        Robustness(**options)


def test_nan_is_refused():
    class Broken(Bright):
        def forward(self, x):
            return super().forward(x) / (x.amax((1, 2, 3)) < 0.999)[:, None]

    dark = Dataset("d", IMAGES.clamp_max(200), LABELS)
    with pytest.raises(ValueError, match=r"logits must be finite, got NaN or infinity under noise/0\.5"):
        Robustness(**{**NOTHING, "sigma": (0.5,)}).measure(declare(Broken(), kind="plain"), dark)


def test_autoattack_is_stronger_than_fgsm():
    pytest.importorskip("pyautoattack")
    torch.manual_seed(0)
    model = declare(nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.Tanh(), nn.Linear(16, 3)), kind="plain")
    x = torch.rand(8, 3, 8, 8)
    data = Dataset("d", x, model(x).argmax(1))
    only = {**NOTHING, "attacks": ("fgsm", "autoattack")}
    profile = lisse.measure(model, data, Robustness(**only, eps=(0.5,)))
    weak, strong = (value(profile, "attack_accuracy", attack=name).value for name in ("fgsm", "autoattack"))
    assert strong <= weak
    free = Robustness(**only, eps=(0.5,), clip=False).measure(model, data)
    assert "AutoAttack is left out: it works in [0, 1] only." in free.notes


def test_autoattack_does_not_depend_on_the_batch_size(monkeypatch):
    """Its random numbers belong to blocks of samples: which block gets which seed is all that is looked at."""
    seen = []

    def found(model, x, y, *, norm, eps, bounds, seed):
        seen.append((len(x), seed))
        return x

    monkeypatch.setattr("lisse.instruments.robustness.changes.auto_attack", found)
    data = Dataset("d", IMAGES.repeat(3, 1, 1, 1)[:150], LABELS.repeat(3)[:150])
    for batch in (7, 64, 150):
        Robustness(**{**NOTHING, "attacks": ("autoattack",)}, eps=(0.1,)).measure(bright(), data, batch=batch, seed=4)
    assert seen == [(100, 4), (50, 104)] * 3


def test_a_network_that_declares_nothing_and_guesses_is_asked_about_its_normalisation():
    class Shifted(Bright):
        """It was trained on images less 0.5."""

        def forward(self, x):
            return super().forward(x + 0.5)

    instrument = Robustness(**NOTHING)
    asked = instrument.measure(Shifted(), DATA).notes
    assert any(note.startswith("Warning sign (normalisation)") and "lisse.models.declare" in note for note in asked)
    for model in (
        Bright(),
        declare(Shifted(), input_size=(3, 8, 8), mean=0.5, std=1.0),
        declare(Shifted(), kind="plain"),
    ):
        assert not any("Warning sign (normalisation)" in note for note in instrument.measure(model, DATA).notes)


def test_lists_single_values_and_none_are_what_they_look_like():
    one = Robustness(corruptions="snow", severities=3, attacks="pgd", eps=0.1, step=None, sigma=[], delta=[1.0])  # type: ignore[arg-type]
    assert one == Robustness(
        corruptions=("snow",), severities=(3,), attacks=("pgd",), eps=(0.1,), step=(), sigma=(), delta=(1.0,)
    )
    nothing = Robustness(corruptions=[], attacks=[], sigma=[], delta=[])  # type: ignore[arg-type]
    assert {row.quantity for row in nothing.measure(bright(), DATA).rows} == {"clean_accuracy"}


def test_radii_fit_colour_and_grey_images_unless_they_are_given():
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slope = nn.Parameter(torch.tensor(20.0))

        def forward(self, x):
            rise = self.slope * (x.flatten(1).mean(1) - 0.5)
            return torch.stack([-rise, rise], 1)

    def radii(images, **options):
        labels = torch.arange(len(images)) % 2
        instrument = Robustness(**{**NOTHING, "attacks": ("noise",)}, **options)
        profile = instrument.measure(declare(Mean(), kind="plain"), Dataset("d", images, labels))
        return [row.at["eps"] for row in rows(profile, "attack_accuracy")]

    grey, colour = torch.rand(12, 1, 8, 8), torch.rand(12, 3, 8, 8)
    assert radii(grey) == [0.02, 0.05, 0.1, 0.2, 0.3]
    assert radii(colour) == radii(grey.flatten(1)) == pytest.approx([0.5 / 255, 1 / 255, 2 / 255, 4 / 255, 8 / 255])
    assert radii(grey, eps=(0.3, 0.1)) == [0.1, 0.3]
    assert radii(grey, eps=()) == []


# --- how far an attack has to go --------------------------------------------------------------------------------------


def test_the_distance_of_an_attack_is_the_median_of_samples():
    """The mean of channel 0 moves by ε, unless a pixel meets the box."""
    floats = torch.rand(400, 3, 8, 8, generator=torch.Generator().manual_seed(4)) * 0.02 + 0.3
    floats += torch.rand(400, 1, 1, 1, generator=torch.Generator().manual_seed(5)) * 0.4
    labels = (floats[:, 0].double().mean((1, 2)) > 0.5).long()
    labels[::10] = 1 - labels[::10]
    data, options = Dataset("d", floats, labels), {**NOTHING, "attacks": ("pgd",), "eps": (0.1,)}
    profile = Robustness(**options, samples=50, distances=90).measure(bright(), data, order="given")
    mean = floats[:90, 0].double().mean((1, 2))
    expected = torch.where((mean > 0.5).long() == labels[:90], (mean - 0.5).abs(), 0.0)
    array = profile["robustness"].arrays["samples/attack_distance"]
    np.testing.assert_allclose(array, expected, rtol=1e-2, atol=1e-5)
    row = value(profile, "attack_distance")
    assert (row.kind, row.n, row.at) == ("upper", 90, {"attack": "pgd", "norm": "linf"})
    assert row.value == pytest.approx(float(np.median(expected)), rel=1e-2)
    assert row.low < row.value < row.high
    curve = {row.at["eps"]: row.value for row in rows(profile, "attack_survival")}
    assert max(curve) == 1.0
    assert len(curve) == 13
    for eps, share in curve.items():
        assert share == pytest.approx(float((expected > eps).double().mean()), abs=0.021)
    assert curve[1.0] == 0.0
    l2 = Robustness(**options, samples=50, distances=90, norm="l2").measure(bright(), data, order="given")
    assert value(l2, "attack_distance").value == pytest.approx(float(np.median(expected)) * 8, rel=1e-2)  # √64 pixels


def test_the_distance_of_an_attack_is_left_out_with_the_attacks():
    for options in (
        {"attacks": ("search", "noise"), "eps": (0.1,)},
        {"attacks": ("fgsm",), "eps": (0.1,), "distances": 0},
    ):
        profile = Robustness(**{**NOTHING, **options}).measure(bright(), DATA)
        assert not rows(profile, "attack_distance")
        assert not rows(profile, "attack_survival")


def test_without_a_box_an_attack_reaches_as_far_as_the_samples():
    model = nn.Sequential(nn.Linear(5, 2))
    vectors = torch.randn(80, 5, generator=torch.Generator().manual_seed(1)) * 3
    model[0].weight.data.mul_(1e-6)  # a gradient there is, and no way across
    model[0].bias.data.copy_(torch.tensor([0.0, 1.0]))
    data = Dataset("v", vectors, model(vectors).argmax(1))
    profile = Robustness(**{**NOTHING, "attacks": ("fgsm",)}, eps=(0.1,), distances=20).measure(
        model, data, order="given"
    )
    width = float((vectors[:20].amax(0) - vectors[:20].amin(0)).max())
    assert value(profile, "attack_distance").value == pytest.approx(width)  # no attack moves it
    assert {row.value for row in rows(profile, "attack_survival")} == {1.0}


def test_judging_numbers_travel_sample_by_sample():
    profile = Robustness(
        **{**NOTHING, "corruptions": ("brightness", "contrast")}, severities=(2, 5), samples=40
    ).measure(bright(), DATA)
    arrays = profile["robustness"].arrays
    assert arrays["samples/clean_accuracy"].shape == (60,)
    assert arrays["samples/clean_accuracy"].mean() == value(profile, "clean_accuracy").value
    assert arrays["samples/mean_corruption_error"].shape == (40,)
    assert arrays["samples/mean_corruption_error"].mean() == pytest.approx(
        value(profile, "mean_corruption_error").value
    )


def test_images_are_certified():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(8, 3)
    ).eval()
    x = torch.rand(6, 1, 6, 6)
    options = {"corruptions": "none", "attacks": ("pgd",), "norm": "l2", "eps": (0.0, 0.02), "sigma": (), "delta": ()}
    profile = lisse.measure(
        model, lisse.Dataset("images", x, model(x).argmax(1)), Robustness(**options, certified=6, distances=6)
    )
    certified, attacked = (
        profile.parts[0].arrays[f"samples/{name}"] for name in ("certified_radius", "attack_distance")
    )
    assert bool((certified > 0).all())
    assert bool((certified <= attacked).all())


def test_certified_rows_stand_below_those_of_the_attack(monkeypatch):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.ReLU(), torch.nn.Linear(12, 3)).eval()
    x = torch.rand(12, 6)
    data = lisse.Dataset("points", x, model(x).argmax(1))
    options = {"corruptions": "none", "attacks": ("pgd",), "norm": "l2", "eps": (0.0, 0.02, 0.2), "sigma": ()}
    profile = lisse.measure(model, data, Robustness(**options, certified=12, distances=12, clip=False))
    by = {(row.quantity, row.at.get("eps")): row for row in profile.rows}
    radius = by["certified_radius", None]
    assert (radius.kind, radius.n) == ("lower", 12)
    assert 0 < radius.value <= by["attack_distance", None].value
    assert by["certified_accuracy", 0.0].value == 1.0
    for eps in (0.02, 0.2):
        assert by["certified_accuracy", eps].kind == "lower"
        attacked = lisse.measure(
            model, lisse.Dataset("p", x[:12], data.targets[:12]), Robustness(**options, clip=False)
        )
        (share,) = [r.value for r in attacked.rows if r.quantity == "attack_accuracy" and r.at["eps"] == eps]
        assert by["certified_accuracy", eps].value <= share
    assert not [row for row in lisse.measure(model, data, Robustness(**options)).rows if "certified" in row.quantity]
    notes = lisse.measure(model, data, Robustness(**options, certified=4, refine=0)).notes
    assert not [note for note in notes if "certified" in note]
    layers = [part for _ in range(20) for part in (torch.nn.Linear(12, 12), torch.nn.ReLU())]
    deep = torch.nn.Sequential(torch.nn.Linear(6, 12), *layers, torch.nn.Linear(12, 3)).eval()
    for weight in deep.parameters():
        weight.data *= 2
    answers = lisse.Dataset("deep", x, deep(x).argmax(1))
    profile = lisse.measure(deep, answers, Robustness(**options, certified=4, distances=12, refine=0, clip=False))
    assert any("says nothing beside" in note for note in profile.notes)
    assert not [row for row in profile.rows if "certified" in row.quantity]
    monkeypatch.setattr(relaxation, "_EFFORT", 100)
    notes = lisse.measure(model, data, Robustness(**options, certified=4, refine=1)).notes
    assert any("ask for refine=2 (it is 1)" in note for note in notes)
    monkeypatch.undo()
    squares = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.Softsign()).eval()
    notes = lisse.measure(squares, data, Robustness(**options, certified=4)).notes
    assert any(note.startswith("Nothing is certified: Softsign must have a rule") for note in notes)
