import dataclasses
import itertools
import math

import pytest
import torch
from torch import nn

from lisse.data import Dataset, generators
from lisse.data.augmentation import CropFlip
from lisse.instruments import Stability
from lisse.maths.diffeomorphism import Diffeomorphism, deform
from lisse.maths.intervals import Interval
from lisse.networks import zoo
from lisse.networks.augment import MaxEntropyDiffeo
from lisse.profile import Part, Profile, Quantity, Row
from lisse.run import measure
from lisse.training import Recipe
from lisse_experiments import Outcome, Task, form, study
from lisse_experiments.diffeomorphisms import networks, plan, run, stripe
from lisse_experiments.diffeomorphisms.claims import change, claims, inverse_range
from lisse_experiments.diffeomorphisms.result import (
    D,
    G,
    Job,
    R,
    Result,
    Results,
    keep_result,
    level,
    local_slope,
    mean_error,
    paired_ratio,
    stored_result,
)
from lisse_experiments.diffeomorphisms.tables import error_law, findings
from lisse_experiments.diffeomorphisms.treatments import BARE, PLAIN, RANDOM, SMOOTHED, WORST, Treatment, WorstDiffeo
from lisse_experiments.steps import Steps

# --- the stripe model -----------------------------------------------------------------------------------------------


class Linear(nn.Module):
    def __init__(self, gradient):
        super().__init__()
        self.gradient = gradient

    def forward(self, x):
        return x @ self.gradient + 3.0


def test_r_of_a_linear_function_has_its_closed_form():
    gradient = torch.tensor([2.0, 0.5, -0.3, 0.1, 0.0])
    exact = (0.5**2 + 0.3**2 + 0.1**2) / 4 / ((2.0**2 + 0.5**2 + 0.3**2 + 0.1**2) / 5)
    assert stripe.linear_stability(gradient) == pytest.approx(exact, rel=1e-6)  # gradient is float32
    points = torch.randn(20_000, 5, generator=torch.Generator().manual_seed(0))
    source = torch.Generator().manual_seed(1)
    value, low, high = stripe.stripe_stability(Linear(gradient), points, noise=0.3, generator=source, resamples=200)
    standard_error = (high - low) / 3.92
    assert abs(value - exact) < 4 * standard_error
    assert standard_error < 0.03 * exact


def test_r_of_a_function_of_the_informative_direction_is_zero():
    points = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    source = torch.Generator().manual_seed(1)
    found = stripe.stripe_stability(
        Linear(torch.tensor([1.0, 0.0, 0.0])), points, noise=0.3, generator=source, resamples=100
    )
    assert found[0] < 1e-9


def test_the_network_begins_at_zero_and_ends_with_every_margin_met():
    recipe = stripe.Recipe(hidden=32, steps=400, test=200)
    model, steps, converged = stripe.trained_stripe(recipe, 30, 3)
    assert converged
    assert 0 < steps < 400
    data = generators.stripe(30, seed=3)
    assert float((model(data.inputs).detach() * (2 * data.targets - 1)).min()) >= recipe.margin
    assert float(stripe.OneHidden(30, 16)(data.inputs).detach().abs().max()) < 1e-6
    assert stripe.trained_stripe(dataclasses.replace(recipe, steps=2), 30, 3)[1:] == (2, False)


def test_the_network_descends_by_its_gradient_in_units_of_its_width():
    """Break it: leave out the width. The first step is written out: f begins at zero and misses every margin."""
    recipe = dataclasses.replace(stripe.DESCENT, hidden=8, steps=1, test=100)
    model, _, _ = stripe.trained_stripe(recipe, 12, 2)
    data = generators.stripe(12, seed=2)
    x, y = data.inputs.double(), (2 * data.targets - 1).double()
    w, b, a = (getattr(model, f"{name}0").double() for name in "wba")
    active = (x @ w.T + b > 0).double()
    rise = (y[:, None] * active * a).T @ x / (12 * 8)  # minus the slope of mean(margin - y f) with respect to w
    assert torch.allclose(model.w.detach().double(), w + 0.3 * 8 * rise, atol=1e-6)
    assert stripe.trained_stripe(dataclasses.replace(recipe, hidden=32, steps=400), 30, 3)[2]


def test_a_stripe_result_is_kept_and_another_recipe_is_not_mistaken_for_it(tmp_path):
    task, recipe = Task("smoke", tmp_path), stripe.Recipe(hidden=16, steps=5, test=100)
    found = stripe.stored_stripe(task, recipe, 20, 0)
    (file,) = (tmp_path / "stripe").iterdir()
    written = file.stat().st_mtime_ns
    assert stripe.stored_stripe(task, recipe, 20, 0) == found
    assert file.stat().st_mtime_ns == written
    assert stripe.stored_stripe(task, dataclasses.replace(recipe, noise=0.6), 20, 0) != found


def test_the_slope_of_the_last_octave():
    assert stripe.last_octave([128, 512, 1024], [3.0, 0.4, 0.1]) == pytest.approx(-2)


def test_bad_points():
    with pytest.raises(ValueError, match=r"points must be \[n, d\] with d at least 2, got"):
        stripe.stripe_stability(Linear(torch.ones(1)), torch.ones(4, 1), noise=0.3, generator=torch.Generator())


# --- networks, sizes and jobs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "depth", "norm"),
    [("fc4", 5, False), ("lenet", 5, False), ("alexnet", 8, False), ("vgg16", 14, False), ("vgg16_bn", 14, True),
     ("resnet18", 18, True), ("resnet50", 50, True), ("efficientnet_b0", 50, True)],
)  # fmt: skip
def test_table_1_counts_layers_on_the_way_and_none_beside_it(name, depth, norm):
    from lisse.networks.zoo import NETWORKS

    with torch.device("meta"):
        model = NETWORKS[name]()
    found = networks.anatomy(model)
    assert (found["depth"], found["batch_norm"]) == (depth, norm)
    assert found["parameters"] == sum(parameter.numel() for parameter in model.parameters())


def test_there_are_fifteen_architectures():
    assert len({architecture.name for architecture in networks.printed()}) == 15


def test_fewer_samples_mean_as_many_steps_up_to_the_cap():
    recipe = Recipe(epochs=25, batch=512)
    assert networks.for_size(recipe, 50_000, 50_000) == recipe
    assert networks.for_size(recipe, 5_000, 50_000) == dataclasses.replace(recipe, epochs=250)
    small = networks.for_size(recipe, 500, 50_000)
    assert (small.epochs, small.batch) == (500, 125)  # 20 × 25, not 2500; a quarter
    with pytest.raises(ValueError, match="for_size: p must lie in 1 … 10, got 11"):
        networks.for_size(recipe, 11, 10)


def test_subsets_of_one_seed_are_nested_and_the_whole_set_is_itself():
    data = Dataset("numbers", torch.arange(100.0)[:, None], torch.arange(100) % 2)
    small, large = networks.subset(data, 10, 5), networks.subset(data, 40, 5)
    assert set(small.inputs.flatten().tolist()) < set(large.inputs.flatten().tolist())
    assert networks.subset(data, 10, 6).fingerprint() != small.fingerprint()
    assert networks.subset(data, 100, 5) is data


def test_data_that_are_not_there_are_said_and_left_out():
    here = networks.Source("rings", "rings", "rings?n=10", "", (3,))
    nowhere = networks.Source("no", "No such", "npz:/nowhere/at/all.npz", "", (3,))
    found, notes = networks.loaded((here, nowhere))
    assert list(found) == ["rings"]
    assert len(notes) == 1
    assert notes[0].startswith("No such is left out: ")


def test_every_job_is_there_once():
    chosen = plan.settings("paper")
    all_ = plan.jobs(chosen, {"cifar10": 50_000, "mnist": 60_000}, 7)
    assert len({job.name for job in all_}) == len(all_)
    assert {job.seed for job in all_} == {7, 8, 9}
    count = 15 + 4 * 6 + 2 * 3 + (4 + 2) + 4 * 6  # CIFAR-10: all, P, treatments; MNIST: whole, P
    assert len(all_) == 3 * count
    assert not [job for job in all_ if job.source.name == "fashion-mnist"]
    assert {job.treatment.name for job in all_} == {"plain", "bare", "random", "worst"}


def test_photographs_on_a_cpu_weights_of_others_are_measured_once():
    chosen = plan.settings("small")
    all_ = plan.jobs(chosen, {"cifar10": 10_000}, 7)
    assert len({job.name for job in all_}) == len(all_)
    theirs = [job for job in all_ if job.architecture.weights]
    assert [(job.architecture.spec, job.p, job.seed) for job in theirs] == [
        (f"zoo:resnet{depth}?mean=imagenet", 50_000, 7) for depth in (20, 32, 44, 56)
    ]
    assert len(all_) - len(theirs) == 3 * (7 + 3 * 2 + 3)  # all, P, treatments
    assert {job.p for job in all_ if not job.architecture.weights} == {500, 2000, 10_000}


def test_seven_sizes_of_two_networks():
    settings = plan.settings("sizes")
    jobs = plan.jobs(settings, {"cifar10": 50_000}, 7)
    assert len({job.name for job in jobs}) == len(jobs) == 2 * 7 * 3
    assert {job.p for job in jobs} == {500, 1000, 2000, 5000, 10_000, 20_000, 50_000}
    assert {job.architecture.name for job in jobs} == {"resnet18", "efficientnet_b0"}
    medium = {architecture.name: architecture for architecture in plan.settings("medium").architectures}
    assert all(job.architecture == medium[job.architecture.name] for job in jobs)  # the same recipe: comparable


def test_minutes_of_a_gpu_have_all_networks_and_several_seeds_where_seeds_are_compared():
    chosen = plan.settings("medium")
    all_ = plan.jobs(chosen, {"cifar10": 50_000}, 7)
    assert len({job.name for job in all_}) == len(all_)
    assert len({job.architecture.name for job in all_}) == 15
    often = {job.architecture.name for job in all_ if job.seed > 7}
    assert often == {"fc4", "lenet", "resnet18"}
    assert len(all_) == 12 + 3 * 3 + 3 * 4  # once, over seeds, treatments
    assert {job.architecture.recipe.epochs for job in all_} == {12}
    assert {job.p for job in all_} == {50_000}


def test_printed_networks_learn_from_plain_labels_and_deep_plain_ones_start_from_he():
    by_name = {one.name: one for one in networks.printed()}
    assert {one.recipe.label_smoothing for one in by_name.values()} == {0.0}
    assert {name for name, one in by_name.items() if "init=he" in one.spec} == {"vgg11", "vgg16", "vgg19"}
    model = by_name["vgg16"].model(networks.CIFAR, 3)
    biases = [value for name, value in model.named_parameters() if "features" in name and name.endswith("bias")]
    assert len(biases) == 13
    assert not any(bias.any() for bias in biases)


@pytest.mark.parametrize(
    ("name", "depth", "parameters", "norm"),
    [("vgg7", 7, 283_242, False), ("vgg7_bn", 7, 284_106, True), ("resnet8", 8, 75_290, True)],
)
def test_the_networks_for_photographs(name, depth, parameters, norm):
    (one,) = (one for one in networks.for_photographs() if one.name == name)
    model = one.model(networks.CIFAR_SMALL, 3)
    assert networks.anatomy(model) == {"depth": depth, "parameters": parameters, "batch_norm": norm}
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 10)
    again, other = (one.model(networks.CIFAR_SMALL, seed) for seed in (3, 4))
    first = next(model.parameters())
    assert torch.equal(first, next(again.parameters()))
    assert not torch.equal(first, next(other.parameters()))


def test_a_part_of_a_training_set_is_the_same_for_every_seed():
    few = dataclasses.replace(networks.DIGITS, most=50)
    (train, test), (whole, _) = (networks.loaded([source])[0]["digits"] for source in (few, networks.DIGITS))
    assert (len(train), len(test), len(whole)) == (50, 364, 1433)
    assert train.fingerprint() == networks.loaded([few])[0]["digits"][0].fingerprint()


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    """A ResNet-20 whose weights lie among the checkpoints of a folder of data."""
    (tmp_path / "data" / "checkpoints").mkdir(parents=True)
    torch.save(
        {"state_dict": zoo.build("resnet20", seed=5).state_dict()},
        tmp_path / "data" / "checkpoints" / "one.th",
    )
    monkeypatch.setenv("LISSE_DATA", str(tmp_path / "data"))
    return networks.Architecture(
        "r", "R", "zoo:resnet20?mean=imagenet", Recipe(), 1, True, networks.Weights("one.th", 50_000)
    )


def test_weights_of_others_are_measured_and_not_trained(theirs, tmp_path):
    """Their own normalisation holds, and not the data's: the same weights under another mean are another network."""
    source = networks.Source("noise", "noise", "", "mean=cifar10", (3,))
    generator = torch.Generator().manual_seed(0)
    test = Dataset("noise", torch.rand(60, 3, 32, 32, generator=generator), torch.arange(60) % 10)
    settings = dataclasses.replace(plan.settings("small"), sources=(source,), samples=20, batch=20, deltas=(1.0,))
    task = Task("small", tmp_path / "out")
    found = run.result_of(Job(theirs, source, 50_000, 0), "one", task, settings, test, test, Steps("fake", None, [1.0]))
    model, plain = theirs.published(), zoo.build("resnet20", seed=5).eval()
    mean, std = (torch.tensor(three)[:, None, None] for three in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    with torch.no_grad():
        output = plain((test.inputs - mean) / std)
    assert torch.allclose(model(test.inputs), output, atol=1e-4)
    assert found.error == pytest.approx(float((output.argmax(1) != test.targets).float().mean()))
    assert found.n == 60
    assert set(found.profiles) == {"initial", "trained", "trained/deltas", "trained/means"}
    assert found.output(R, cut=3) != found.output(R, "initial", cut=3)
    assert [file.name for file in (tmp_path / "out" / "networks").rglob("*") if file.is_file()] == ["error.json"]
    direct = measure(model, test, Stability(samples=20), seed=0, order="given", batch=20)
    last = [row for row in direct.rows if row.quantity == R and row.layer is not None][-1]
    assert found.output(R, cut=3) == pytest.approx(last.value, rel=1e-4)
    again = run.result_of(Job(theirs, source, 50_000, 0), "one", task, settings, test, test, Steps("fake", None, [1.0]))
    assert (again.error, again.output(R, cut=3)) == (found.error, found.output(R, cut=3))


def test_weights_that_are_not_there_are_said_and_left_out(theirs):
    lost = dataclasses.replace(theirs, name="l", label="L", weights=networks.Weights("no.th", 50_000))
    able, notes = networks.at_hand([network("a"), lost, theirs])
    assert [one.name for one in able] == ["a", "r"]
    assert notes == ["L is left out: checkpoints/no.th is not among the data."]
    with pytest.raises(ValueError, match="weights of L must lie in checkpoints, got none"):
        lost.published()
    with pytest.raises(ValueError, match="weights of A must lie in checkpoints"):
        network("a").published()


# --- treatments -----------------------------------------------------------------------------------------------------


def test_what_each_treatment_does_to_images():
    model, recipe = nn.Flatten(), Recipe(crop=4, flip=True)
    options = {"cut": 3, "delta": 1.0, "steps": 2}
    assert PLAIN.augment(model, recipe, **options) == [CropFlip(4, True)]
    assert Treatment("bare", "bare", crops=None).augment(model, recipe, **options) == []
    crops, random = RANDOM.augment(model, recipe, **options)
    assert crops == CropFlip(4, True)
    assert isinstance(random, MaxEntropyDiffeo)
    assert SMOOTHED.augment(model, recipe, **options) == PLAIN.augment(model, recipe, **options)
    assert SMOOTHED.recipe(recipe) == dataclasses.replace(recipe, label_smoothing=0.1)
    assert WORST.recipe(recipe) == recipe
    worst = WORST.augment(model, Recipe(), **options)
    assert worst == [WorstDiffeo(model, 3, 1.0, 2)]
    assert "model" not in repr(worst[0])  # how a rerun is recognised must not depend on an address


def test_worst_fields_move_the_output_further_than_random_ones_and_leave_the_network_alone():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    images = torch.rand(16, 1, 8, 8)
    worst = WorstDiffeo(model, 3, 1.0, 4)(images)
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    ensemble = Diffeomorphism((8, 8), 3)
    field = ensemble.sample(16, float(ensemble.temperature(1.0)), generator=torch.Generator().manual_seed(0))
    model.eval()
    with torch.no_grad():
        far, near = ((model(x) - model(images)).square().sum(1).mean() for x in (worst, deform(images, field)))
    assert float(far) > 1.5 * float(near)


# --- over seeds, laws and claims ------------------------------------------------------------------------------------

SOURCE = networks.Source("data", "data", "digits", "", (3,))
QUANTITIES = tuple(Quantity(name, name, "") for name in (R, D, G, "bijective_share"))


def network(name: str) -> networks.Architecture:
    return networks.Architecture(name, name.upper(), "zoo:fc2", Recipe(), 1.0)


def profile(r: float, g: float = 0.1) -> Profile:
    at = {"cut": 3, "delta": 1.0}
    rows = [
        Row(quantity, value * factor, "estimate", 10, layer, depth, 0.9 * value * factor, 1.1 * value * factor, at)
        for layer, depth, factor in (("input", 0.0, 4.0), ("block", 0.5, 2.0), ("output", 1.0, 1.0))
        for quantity, value in ((R, r), (D, r * g), (G, g))
    ]
    return Profile((Part("stability", (*rows, Row("bijective_share", 1.0, "estimate", 10, at=at)), QUANTITIES),))


def result(name: str, seed: int, r: float, error: float, *, p: int = 100, treatment: Treatment = PLAIN, g: float = 0.1):
    profiles = {"trained": profile(r, g), "initial": profile(1.0)}
    return Result(Job(network(name), SOURCE, p, seed, treatment), error, 1000, profiles, 5, 77, False)


def chosen(names: tuple[str, ...]) -> plan.Settings:
    return dataclasses.replace(
        plan.settings("smoke"), sources=(SOURCE,), architectures=tuple(network(name) for name in names), good=names[:1],
        primitive=names[-1:], treated=names[:1], treatments=(PLAIN, RANDOM), stripe_sizes=(10, 20),
    )  # fmt: skip


def spread(seed: int) -> float:
    return 1.02 ** (seed - 1)


def everything() -> Results:
    """Error is 0.24 √R within 2 %; R falls tenfold from P = 10, grows in c, and random fields halve it."""
    found = []
    for seed in range(3):
        for name, r, g, a in (("a", 0.01, 0.1, 0.245), ("b", 0.04, 0.2, 0.235), ("c", 0.16, 0.08, 0.235),
                              ("d", 2.0, 0.15, 0.245)):  # fmt: skip
            found.append(result(name, seed, r * spread(seed), a * math.sqrt(r), g=g))
        found.append(result("a", seed, 0.1 * spread(seed), 0.1, p=10, g=0.05))
        found.append(result("a", seed, 0.005 * spread(seed), 0.01 + 0.001 * seed, treatment=RANDOM))
    stripes = [stripe.Stripe(p, seed, 8 / p, 7 / p, 9 / p, 0.1, 5, True) for p in (10, 20) for seed in range(3)]
    return Results(tuple(found), tuple(stripes))


def test_seeds_are_averaged_in_logarithms_and_errors_as_they_are():
    some = [result("a", 0, 0.1, 0.2), result("a", 1, 0.4, 0.4)]
    found = level(some, R, cut=3)
    assert float(found.value) == pytest.approx(0.2)
    assert found.n == 2
    assert float(mean_error(some).value) == pytest.approx(0.3)
    alone = level(some[:1], R, cut=3)
    assert (float(alone.low), float(alone.high), alone.n) == pytest.approx((0.09, 0.11, 10))  # of one network: samples
    assert mean_error(some[:1]).n == 1000
    assert float(mean_error(some[:1]).low) == pytest.approx(0.1764, abs=1e-4)  # Wilson's, 200 of 1000
    assert level(some, R, cut=5) is None
    assert mean_error([]) is None


def test_ratios_are_of_the_same_seed():
    """Break it: divide the means; their interval covers 1."""
    found = paired_ratio([1.0, 10.0, 100.0], [2.0, 20.0, 200.0])
    assert [float(end) for end in (found.value, found.low, found.high)] == pytest.approx([0.5] * 3)
    assert paired_ratio([None], [1.0]) is None
    some = everything().of(SOURCE, "a")
    assert float(change(some, some, R, cut=3, initial=True).value) == pytest.approx(0.01, rel=0.01)


def test_slopes_are_taken_seed_by_seed():
    """Break it: take the slope of the means; its interval would be as wide as the seeds are apart."""
    slope = local_slope({0: 1.0, 1: 10.0, 2: 100.0, 9: 5.0}, {0: 0.1, 1: 1.0, 2: 10.0}, (100, 1000))
    assert [float(end) for end in (slope.value, slope.low, slope.high)] == pytest.approx([-1.0] * 3)
    assert slope.n == 3
    apart = local_slope({0: 1.0, 1: 1.0}, {0: 0.5, 1: 0.25}, (2, 4))
    half = 12.7062 * math.sqrt(0.5) / math.sqrt(2)  # Student's, one degree of freedom
    assert [float(apart.value), float(apart.high)] == pytest.approx([-1.5, -1.5 + half], rel=1e-5)
    alone = local_slope({0: 1.0}, {0: 0.5}, (2, 4))
    assert (float(alone.value), alone.n, math.isnan(float(alone.low))) == (-1.0, 1, True)
    assert local_slope({0: 1.0}, {1: 1.0}, (2, 4)) is None


def between(value: float, half: float) -> Interval:
    ends = torch.tensor([value, value - half, value + half], dtype=torch.float64)
    return Interval(*ends, 3, 0.95)


@pytest.mark.parametrize(
    ("slopes", "verdict"),
    [
        ([between(-0.9, 0.3), between(-0.2, 0.1)], True),
        ([between(-0.6, 0.2), between(-0.2, 0.1)], False),
        ([between(-1.7, 0.2)], False),
        ([between(-0.6, 0.5), between(-0.2, 0.1)], None),  # holds -1, but is not near it
        ([between(-0.9, 1.0)], None),  # holds -1 and 0
        ([], None),
    ],
)
def test_a_range_that_goes_as_one_over_p(slopes, verdict):
    pairs = [(100, 400), (100, 800)][: len(slopes)]
    holds, detail = inverse_range(dict(zip(pairs, slopes, strict=True)))
    assert holds is verdict
    assert ("from P = 100 to 400" in detail) == bool(slopes)


def falling(slope: float, name: str = "a") -> list[Result]:
    sizes, noise = (500, 1000, 4000, 20_000), (0.98, 1.0, 1.02, 1.01, 0.99)
    return [
        result(name, seed, 2 * (p / 500) ** slope * noise[(seed + index) % 5], 0.1, p=p)
        for index, p in enumerate(sizes)
        for seed in range(3)
    ]


def test_how_r_falls_is_said_with_verdicts():
    settings = chosen(("a", "b", "c", "d"))
    steep = {claim.key: claim.holds for claim in claims(Results(tuple(falling(-1.0))), settings, [SOURCE])}
    assert (steep["P/few/a"], steep["P/monotone/a"], steep["P/inverse/a"]) == (True, True, True)
    flat = {claim.key: claim.holds for claim in claims(Results(tuple(falling(-0.4))), settings, [SOURCE])}
    assert (flat["P/monotone/a"], flat["P/inverse/a"]) == (True, False)
    level_ = {claim.key: claim.holds for claim in claims(Results(tuple(falling(0.0))), settings, [SOURCE])}
    assert level_["P/monotone/a"] is None
    rising = {claim.key: claim.holds for claim in claims(Results(tuple(falling(0.5))), settings, [SOURCE])}
    assert rising["P/monotone/a"] is False


def test_efficientnets_fall_less_and_not_as_one_over_p():
    names = ("resnet18", "efficientnet_b0")
    settings = dataclasses.replace(chosen(names), good=names, primitive=(), treated=())
    results = Results((*falling(-1.0, "resnet18"), *falling(-0.4, "efficientnet_b0")))
    verdicts = {claim.key: claim.holds for claim in claims(results, settings, [SOURCE])}
    assert verdicts["P/limited"]
    assert verdicts["P/inverse/resnet18"]
    assert verdicts["P/no-inverse/efficientnet_b0"]
    results = Results((*falling(-0.4, "resnet18"), *falling(-1.0, "efficientnet_b0")))
    verdicts = {claim.key: claim.holds for claim in claims(results, settings, [SOURCE])}
    assert verdicts["P/limited"] is False
    assert verdicts["P/no-inverse/efficientnet_b0"] is False
    rows = {finding.key: finding for finding in findings(results, settings, [SOURCE], paper=True)}
    assert rows["slope/P/data/resnet18/1000-4000"].value == pytest.approx(-0.4, abs=0.02)
    assert rows["slope/P/data/resnet18/1000-4000"].n == 3
    assert rows["error/P/data/resnet18/500"].value == pytest.approx(0.1)


def test_local_slopes_of_the_stripe_model():
    sizes = (10, 20, 40, 80, 160, 320)
    values = {10: 90.0, **{p: 8 / p for p in sizes[1:]}}  # one over P but for the first octave
    lots = [stripe.Stripe(p, s, v * (1 + 0.01 * s), 0, 9, 0.1, 5, True) for p, v in values.items() for s in range(5)]
    settings = dataclasses.replace(chosen(("a",)), stripe_sizes=sizes, stripe_seeds=5)
    (claim,) = [c for c in claims(Results((), tuple(lots)), settings, [SOURCE]) if c.key == "stripe/local"]
    assert claim.holds
    assert claim.detail.startswith("so on the last 4, 20 to 320: -1.00 [-1.00, -1.00]; 10 to 20: -7.8")
    flat = [dataclasses.replace(net, value=2 * net.value) if net.p == 320 else net for net in lots]
    (claim,) = [c for c in claims(Results((), tuple(flat)), settings, [SOURCE]) if c.key == "stripe/local"]
    assert not claim.holds
    rows = {finding.key: finding for finding in findings(Results((), tuple(lots)), settings, [SOURCE], paper=True)}
    assert rows["stripe/slope/20-40"].value == pytest.approx(-1)
    assert rows["stripe/slope/20-40"].n == 5


# --- results that stay ------------------------------------------------------------------------------------------------


def test_a_result_is_kept_for_its_request_alone(tmp_path):
    first = dataclasses.replace(result("a", 0, 0.1, 0.2), machine="a GPU", span=(10.0, 14.0))
    keep_result(first, tmp_path, {"cuts": (3, 5)})
    again = stored_result(first.job, tmp_path, {"cuts": (3, 5)})
    assert (again.error, again.n, again.machine, again.span) == (0.2, 1000, "a GPU", (10.0, 14.0))
    assert again.output(R, cut=3) == first.output(R, cut=3)
    assert set(again.profiles) == {"initial", "trained"}
    assert stored_result(first.job, tmp_path, {"cuts": (3,)}) is None
    assert stored_result(first.job, tmp_path / "nowhere", {}) is None
    lost = Result(first.job, 1.0, 1000, {})
    keep_result(lost, tmp_path, {})
    assert stored_result(first.job, tmp_path, {}).diverged


@pytest.mark.slow
def test_processes_side_by_side_leave_what_one_finds(tmp_path):
    architecture = next(a for a in networks.for_digits() if a.name == "fc2")
    settings = dataclasses.replace(
        plan.settings("smoke"), samples=20, batch=20, deltas=(), stripe=stripe.Recipe(hidden=16, steps=5, test=100)
    )
    jobs = [Job(architecture, networks.DIGITS, p, 0) for p in (100, 180)]
    task = Task("smoke", tmp_path / "both", workers=2)
    run.side_by_side(jobs, [(20, 0)], task, settings)
    assert (tmp_path / "both" / "stripe" / "p20-seed0.json").is_file()
    pair = networks.loaded([networks.DIGITS])[0]["digits"]
    for job in jobs:
        written = (tmp_path / "both" / "profiles" / job.name / "result.json").stat().st_mtime_ns
        stored = run.result_of(job, "", task, settings, *pair, Steps("fake", None, [1.0]))
        alone = run.result_of(job, "", Task("smoke", tmp_path / "alone"), settings, *pair, Steps("fake", None, [1.0]))
        assert (stored.error, stored.output(R, cut=2)) == (alone.error, alone.output(R, cut=2))
        assert (tmp_path / "both" / "profiles" / job.name / "result.json").stat().st_mtime_ns == written


def test_the_law_of_the_error_is_found():
    law = error_law(everything(), chosen(("a", "b", "c", "d")), SOURCE)
    assert float(law.slope.value) == pytest.approx(0.5, abs=0.02)
    assert float(law.prefactor.value) == pytest.approx(0.24, rel=0.03)
    assert 0.999 < float(law.correlation.value) < 1
    assert error_law(everything(), chosen(("a", "b")), SOURCE) is None  # two points lie on a line


def test_claims_are_decided_from_the_numbers():
    held = {claim.key: claim.holds for claim in claims(everything(), chosen(("a", "b", "c", "d")), [SOURCE])}
    assert held["init/order-one"]
    assert held["trained/a"]
    assert held["trained/d"]
    assert held["P/R/a"]
    assert held["P/G/a"]
    assert held["layers/a"]
    assert held["error/R"]
    assert held["error/prefactor"]
    assert held["treatment/a/random/R"]
    assert held["treatment/a/random/error"]
    assert held["stripe/slope"]
    assert held["fields/bijective"]


@pytest.mark.parametrize(("treatment", "theirs"), [(BARE, True), (SMOOTHED, False)])
@pytest.mark.parametrize("factor", [0.4, 0.6, 1.9, 2.1])
def test_crops_and_smoothed_labels_matter_where_they_change_r_twofold(treatment, theirs, factor):
    found = [result("a", seed, 0.01 * spread(seed), 0.1) for seed in range(3)]
    found += [result("a", seed, factor * 0.01 * spread(seed), 0.1, treatment=treatment) for seed in range(3)]
    settings = dataclasses.replace(chosen(("a", "b", "c", "d")), treatments=(PLAIN, treatment))
    (claim,) = [c for c in claims(Results(tuple(found)), settings, [SOURCE]) if c.key.startswith("treatment")]
    assert (claim.key, claim.theirs) == (f"treatment/a/{treatment.name}/R", theirs)
    assert claim.holds == (0.5 < factor < 2)
    assert ("labels" in claim.says) != ("crops" in claim.says) == theirs


def test_claims_turn_with_the_numbers():
    """The same sentences where every network has the same R: nothing falls and nothing is correlated."""
    flat = [
        result(name, seed, spread(seed), error, p=p, treatment=treatment)
        for seed in range(3)
        for name, error, p, treatment in (
            ("a", 0.1, 100, PLAIN), ("b", 0.3, 100, PLAIN), ("c", 0.02, 100, PLAIN), ("d", 0.2, 100, PLAIN),
            ("a", 0.2, 10, PLAIN), ("a", 0.11, 100, RANDOM),
        )
    ]  # fmt: skip
    stripes = tuple(stripe.Stripe(p, 0, 0.5, 0.4, 0.6, 0.1, 5, True) for p in (10, 20))
    for index in range(len(flat)):  # a little apart, for a law needs different R
        scale = 1 + 0.001 * (ord(flat[index].job.architecture.name) % 3)
        profiles = {"trained": profile(spread(flat[index].job.seed) * scale), "initial": profile(1.0)}
        flat[index] = dataclasses.replace(flat[index], profiles=profiles)
    found = claims(Results(tuple(flat), stripes), chosen(("a", "b", "c", "d")), [SOURCE])
    held = {claim.key: claim.holds for claim in found}
    for key in ("trained/a", "P/R/a", "P/G/a", "error/R", "error/R-best", "treatment/a/random/R", "stripe/slope"):
        assert not held[key], key


def test_a_diverged_network_is_said_and_left_out_of_everything():
    found = everything()
    bad = Result(Job(network("e"), SOURCE, 100, 0), 1.0, 1000, {}, 5, 77, False)
    results = Results((*found.all, bad), found.stripes)
    assert results.of(SOURCE, "e") == []
    some = {one.key: one for one in findings(results, chosen(("a", "b", "c", "d", "e")), [SOURCE], paper=True)}
    assert some["error/data/e"].note == "diverged"
    assert math.isnan(some["error/data/e"].value)
    assert some["fig5/prefactor"].theirs == 0.24
    assert some["correlation/R"].theirs == 0.97
    assert some["stripe/slope"].value == pytest.approx(-1)
    Outcome(tuple(some.values()))  # no key twice


# --- figures --------------------------------------------------------------------------------------------------------


def test_names_of_points_that_lie_close_together_do_not_cover_each_other():
    """Break it: leave every name at the height of its point."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    from lisse_experiments.diffeomorphisms.figures.frame import beside, log_log

    figure = Figure(figsize=(6, 4))
    renderer = FigureCanvasAgg(figure).get_renderer()
    ax = figure.add_subplot()
    points = {
        "FullConn-L2": (5.0, 0.55), "FullConn-L4": (4.6, 0.556), "FullConn-L6": (4.7, 0.56), "far": (0.1, 0.06),
        "ResNet18": (0.6, 0.1), "ResNet34": (0.8, 0.1), "VGG16": (0.7, 0.104), "VGG19": (0.75, 0.094),
    }  # fmt: skip
    for point in points.values():
        ax.plot(*point, "o", ms=6)
    log_log(ax, "R", "error")
    ax.set_xlim(0.05, 50)
    beside(ax, points)
    figure.draw_without_rendering()
    boxes = {text.get_text(): Text.get_window_extent(text, renderer) for text in ax.texts}  # without the ties
    assert set(boxes) == set(points)
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes.values(), 2))
    middles = {name: ax.transData.transform(point) for name, point in points.items()}
    assert not any(box.contains(*middles[name]) for box in boxes.values() for name in points)
    frame = ax.get_window_extent()
    assert all(frame.contains(*corner) for box in boxes.values() for corner in (box.min, box.max))
    tied = {text.get_text() for text in ax.texts if text.arrow_patch is not None}
    assert tied
    assert "far" not in tied


# --- progress and the whole -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_smoke_run_finds_what_is_committed(tmp_path, monkeypatch):
    chosen_study = study("diffeomorphisms")
    outcome, _ = form.timed(chosen_study, Task("smoke", tmp_path))
    assert form.differences(outcome, form.expected(chosen_study.about.folder)["smoke"]) == []
    claims = {claim.key: claim for claim in outcome.claims}
    for key in ("init/order-one", "trained/fc4", "treatment/conv/random/R", "treatment/conv/worst/R", "stripe/slope"):
        assert claims[key].holds, claims[key].detail
    for key in ("trained/conv", "layers/conv", "stripe/all"):  # digits of 8 × 8 pixels are no photographs
        assert not claims[key].holds, claims[key].detail
    assert all(path.stat().st_size > 5_000 for path in outcome.files if path.suffix == ".png")
    monkeypatch.setattr("lisse_experiments.diffeomorphisms.figures.draw", lambda *_: [])
    again = chosen_study.run(Task("smoke", tmp_path))  # everything is there already
    assert again.findings == outcome.findings
