"""Trainings that make a network smoother: adversaries, AugMix and penalties on slopes in the one loop."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from tests.training.small_trainings import RECIPE, convolutional, images, network, points, same
from torch import nn
from torch.nn import functional

from lisse.data import Dataset
from lisse.networks.attack import Adversary, attack, right
from lisse.training import Penalty, Recipe, overfitting, penalty_of, train
from lisse.training.loop import Loop
from lisse.training.overfitting import WATCHED, Watchtower

WAYS = {
    "fgsm": {"adversary": "fgsm", "eps": 0.1},
    "pgd": {"adversary": "pgd", "eps": 0.1, "adversary_steps": 2},
    "trades": {"adversary": "trades", "eps": 0.1, "adversary_steps": 2},
    "augmix": {"augmix": 12.0},
    "gradient": {"penalties": ("gradient=0.1",)},
    "jacobian": {"penalties": ("jacobian=0.01",)},
    "isometric": {"penalties": ("isometric=0.1@head:in",)},
    "deform": {"deform": 1.0},
    "fgsm and isometric": {"adversary": "fgsm", "eps": 0.1, "penalties": ("isometric=0.1@head:in",)},
    "trades and gradient": {"adversary": "trades", "adversary_steps": 1, "penalties": ("gradient=0.1",)},
}


def recipe(way: str, **more) -> Recipe:
    return dataclasses.replace(RECIPE, **WAYS[way], **more)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_trains_and_is_the_same_when_it_was_stopped(way, tmp_path):
    unbroken, broken = convolutional(), convolutional()
    result = train(unbroken, images(), recipe=recipe(way))
    assert result.status == "finished"
    assert not same(unbroken, convolutional())

    def stop(moment):
        if moment.step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(broken, images(), recipe=recipe(way), out=tmp_path, checkpoint_seconds=0, callbacks=[stop])
    resumed = convolutional()
    train(resumed, images(), recipe=recipe(way), out=tmp_path)
    assert same(resumed, unbroken)


@pytest.mark.parametrize("way", ["fgsm", "gradient", "augmix", "trades"])
def test_the_first_step_is_that_of_a_bare_loop(way):
    """One full batch, SGD: the weights after it, from the same draws."""
    model, mine, data = network().double(), network().double(), points(20)
    data = Dataset("points", (data.inputs - data.inputs.min()) / (data.inputs.max() - data.inputs.min()), data.targets)
    if way == "augmix":
        model, mine, data = convolutional().double(), convolutional().double(), images(10)
    once = recipe(way, batch=None, epochs=1)
    seeds = []
    original = torch.default_generator.manual_seed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lisse.training.loop._seed", lambda seed, device: (seeds.append(seed), original(seed)))
        train(model, data, recipe=once)
    x = data.inputs.double() / (255 if data.inputs.dtype == torch.uint8 else 1)
    y = data.targets
    mine.train()
    original(seeds[0])
    if way == "gradient":
        x = x.requires_grad_()
        value = functional.cross_entropy(mine(x), y)
        (slope,) = torch.autograd.grad(value * len(x), x, create_graph=True)
        value = value + 0.1 * slope.square().sum() / len(x)
    else:
        value = once.lesson((0.0, 1.0)).loss(mine, x, y)
    value.backward()
    with torch.no_grad():
        for weight in mine.parameters():
            weight -= 0.1 * weight.grad
    for a, b in zip(model.parameters(), mine.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def separable(n: int = 400) -> Dataset:
    """Two classes, ±0.2 along one strong axis; 30 weak axes tell them apart better on clean points."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 2
    sign = (2.0 * y - 1)[:, None]
    strong = 0.5 + 0.2 * sign + 0.12 * torch.randn(n, 1, generator=generator)
    weak = 0.5 + 0.05 * sign + 0.05 * torch.randn(n, 30, generator=generator)
    return Dataset("separable", torch.cat([strong, weak], 1).clamp(0, 1), y)


@pytest.mark.parametrize("way", ["fgsm", "pgd", "trades"])
def test_an_adversary_buys_robustness(way):
    def trained(**options):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(31, 16), nn.ReLU(), nn.Linear(16, 2))
        steps = Recipe(lr=0.02, batch=50, epochs=15, schedule="constant", warmup=0.0, **options)
        result = train(model, separable(), recipe=steps)
        return model, result

    data, results = separable(), {}
    for name, options in (("plain", {}), (way, {"adversary": way, "eps": 0.1, "adversary_steps": 5})):
        model, result = trained(**options)
        assert result.status == "finished"
        moved = attack(model, data.inputs, data.targets, method="apgd", norm="linf", eps=0.1, steps=20, bounds=(0, 1))
        results[name] = float(right(model, moved, data.targets).double().mean())
    assert results[way] > results["plain"] + 0.1
    assert "attack_accuracy" in result.log.columns
    assert result.log[-1]["attack_accuracy"] >= results[way] - 0.1


def test_a_collapse_is_named_and_the_last_good_weights_are_kept(tmp_path, monkeypatch):
    """The watch is told that PGD takes everything in the second epoch."""
    told = iter([(0.8, 0.75), (0.9, 0.0)])
    monkeypatch.setattr(Watchtower, "accuracies", lambda self, model: next(told))
    monkeypatch.setattr(overfitting, "SHARE", 1e9)  # every epoch
    after_one = network()
    train(after_one, points(), recipe=dataclasses.replace(RECIPE, adversary="fgsm", eps=0.1), lesson=None, epochs=1)
    model, weights = network(), []
    said = []

    def keep(moment):
        if moment.when == "epoch":
            weights.append({name: value.clone() for name, value in moment.model.state_dict().items()})

    result = train(
        model, points(200), recipe=recipe("fgsm"), out=tmp_path, callbacks=[keep], progress=lambda e: said.append(e.say)
    )
    assert result.status == "collapsed"
    assert result.epoch == 2
    assert all(torch.equal(weights[0][name], value) for name, value in model.state_dict().items())
    assert any("catastrophic overfitting" in text and "0.00 under PGD" in text for text in said if text)
    ended = json.loads((tmp_path / "result.json").read_text())
    assert (ended["status"], ended["checkpoint"]) == ("collapsed", "last-good.safetensors")
    again = train(network(), points(200), recipe=recipe("fgsm"), out=tmp_path)
    assert again.status == "collapsed"
    assert all(torch.equal(weights[0][name], value) for name, value in again.model.state_dict().items())


def test_a_collapse_goes_back_as_far_when_the_run_was_killed_in_between(tmp_path, monkeypatch):
    told = iter([(0.8, 0.75), (0.9, 0.0)])
    monkeypatch.setattr(Watchtower, "accuracies", lambda self, model: next(told))
    monkeypatch.setattr(overfitting, "SHARE", 1e9)  # every epoch
    weights = []

    def stop(moment):
        if moment.when == "epoch":
            weights.append({name: value.clone() for name, value in moment.model.state_dict().items()})
        if moment.step == 18:  # of 13 an epoch
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(network(), points(200), recipe=recipe("fgsm"), out=tmp_path, checkpoint_seconds=0, callbacks=[stop])
    result = train(network(), points(200), recipe=recipe("fgsm"), out=tmp_path)
    assert (result.status, result.resumed, len(weights)) == ("collapsed", 17, 1)
    assert all(torch.equal(weights[0][name], value) for name, value in result.model.state_dict().items())
    assert json.loads((tmp_path / "result.json").read_text())["checkpoint_step"] == 13


@pytest.mark.parametrize(
    ("told", "status", "epochs"),
    [
        ([(0.4, 0.0), (0.8, 0.7), (0.8, 0.75)], "finished", 3),  # not yet robust in its first epoch
        ([(0.4, 0.0), (0.8, 0.0)], "collapsed", 2),  # nor after half of them
        ([(0.3, 0.2), (0.8, 0.0)], "collapsed", 2),
    ],
)
def test_a_network_has_half_of_its_epochs_to_begin_to_hold(told, status, epochs, monkeypatch):
    shares = iter(told)
    monkeypatch.setattr(Watchtower, "accuracies", lambda self, model: next(shares))
    monkeypatch.setattr(overfitting, "SHARE", 1e9)  # every epoch
    result = train(network(), points(200), recipe=recipe("fgsm"))
    assert (result.status, result.epoch) == (status, epochs)


def test_what_was_held_before_may_be_lost_at_once(monkeypatch):
    shares = iter([(0.8, 0.75), (0.9, 0.0)])
    monkeypatch.setattr(Watchtower, "accuracies", lambda self, model: next(shares))
    monkeypatch.setattr(overfitting, "SHARE", 1e9)  # every epoch
    assert train(network(), points(200), recipe=recipe("fgsm", epochs=9)).epoch == 2


@pytest.mark.parametrize("way", ["fgsm", "trades"])
def test_a_network_that_overflows_when_it_is_looked_at_has_diverged(way, tmp_path):
    model = network()
    once = recipe(way, batch=None, epochs=1, lr=1e30)
    result = train(model, points(), recipe=once, out=tmp_path)
    assert (result.status, result.step) == ("diverged", 1)
    assert same(model, network())
    assert json.loads((tmp_path / "result.json").read_text())["checkpoint_step"] == 0
    plain = train(network(), points(), recipe=dataclasses.replace(once, adversary="none"), test=points(20))
    assert plain.status == "diverged"  # by its loss on the test data


def test_a_look_costs_a_twentieth_of_the_passes_and_the_last_epoch_has_one():
    def tower(passed, samples=300):
        adversary = Adversary("fgsm", 0.1, bounds=None)
        return Watchtower(adversary, points(samples), torch.device("cpu"), torch.float32, passed)

    for passed, count, every in ((60_000, 256, 1), (14_000, 100, 1), (2_240, 32, 2), (100, 32, 45)):
        assert (len(tower(passed).y), tower(passed).every) == (count, every)  # 14 passes of each, and 0.05 x 2 x passed
    assert (len(tower(14_000, 20).y), tower(14_000, 20).every) == (20, 1)
    result = train(network(), points(200), recipe=recipe("fgsm"))
    assert [WATCHED[1] in row for row in result.log] == [False, False, True]


def test_what_counts_as_a_collapse():
    tower = Watchtower(Adversary("fgsm", 0.1), points(200), torch.device("cpu"), torch.float32, 60_000)
    assert len(tower.y) == 200
    assert tower.one_sided(0.9, 0.1)
    assert not tower.one_sided(0.5, 0.4)
    assert not tower.one_sided(0.3, 0.0)  # near chance there is nothing to lose
    tower = Watchtower(Adversary("fgsm", 0.1, bounds=None), points(200), torch.device("cpu"), torch.float32, 60_000)
    own, harder = tower.accuracies(network())
    assert 0 <= harder <= own <= 1


def test_the_network_that_falls_to_pgd_is_seen_to():
    """A network that hides its gradient behind a stair of the size of its own adversary's step."""

    class Stair(nn.Module):
        def forward(self, x):
            z = x[:, :1] - 0.5
            wave = z + 0.4 * torch.sin(z * 60)
            return torch.cat([-wave, wave], 1)

    generator = torch.Generator().manual_seed(0)
    y = torch.arange(256) % 2
    x = (0.5 + 0.13 * (2.0 * y - 1) + 0.01 * torch.randn(256, generator=generator))[:, None]
    tower = Watchtower(Adversary("fgsm", 0.1), Dataset("stairs", x, y), torch.device("cpu"), torch.float32, 60_000)
    torch.manual_seed(0)
    own, harder = tower.accuracies(Stair())
    assert harder < own


def test_penalties_read_by_words():
    penalty = penalty_of("isometric=0.5@a,b.*")
    assert (penalty.name, penalty.weight, penalty.layers, penalty.inputs) == ("isometric", 0.5, ("a", "b.*"), False)
    assert penalty_of("gradient=1e-2") == dataclasses.replace(penalty_of("gradient=0.5"), weight=0.01)
    assert penalty_of("jacobian=0").inputs


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("isometry=0.1@fc", "the name must be one of isometric, gradient, jacobian, got .* Did you mean isometric"),
        ("zzz=1", "There are isometric, gradient, jacobian"),
        ("gradient", "the weight must be a number of at least 0, got 'gradient'. Write gradient=0.1"),
        ("isometric", "the weight must be a number .* Write isometric=0.1@head:in"),
        ("gradient=much", "the weight must be"),
        ("gradient=-1", "the weight must be"),
        ("isometric=0.1", "layers must be named for isometric, .* isometric=0.1@head:in"),
        ("gradient=0.1@fc", "layers must be left out for gradient"),
    ],
)
def test_a_penalty_that_cannot_be_read(text, match):
    with pytest.raises(ValueError, match=f"^penalty: .*{match}"):
        Recipe(penalties=(text,))


def test_a_penalty_at_a_layer_that_does_not_exist_names_the_nearest():
    with pytest.raises(ValueError, match=r"0"):
        train(network(), points(), recipe=dataclasses.replace(RECIPE, penalties=("isometric=0.1@00",)))


@pytest.mark.parametrize(
    ("data", "options", "match"),
    [
        (
            points(),
            {"recipe": dataclasses.replace(RECIPE, adversary="fgsm", eps=0.1, augmix=0.0), "lesson": 3},
            "lesson must have views",
        ),
        (
            Dataset("texts", {"x": torch.zeros(20, 4)}, torch.zeros(20).long()),
            {"recipe": recipe("fgsm")},
            "must be images or vectors",
        ),
    ],
)
def test_bad_lessons(data, options, match):
    class Keyed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network()

        def forward(self, x):
            return self.inner(x)

    with pytest.raises((ValueError, TypeError), match=f"^train: .*{match}"):
        train(Keyed(), data, **options)


def test_labels_missing_where_a_lesson_needs_them():
    data = points()
    bare = Dataset("bare", data.inputs, torch.randn(len(data), 3))
    with pytest.raises(ValueError, match=r"^train: data must have a class for each sample for Adversary"):
        train(network(), bare, recipe=recipe("fgsm"), loss=lambda output, y: (output - y).square().mean())


def test_data_outside_the_box_of_an_adversary_are_refused_and_a_recipe_has_none():
    with pytest.raises(ValueError, match=r"^Adversary: x must lie in bounds \[0, 1\], got -.* Give bounds=None"):
        train(network(), points(), recipe=RECIPE, lesson=Adversary("fgsm", 0.1))
    wide = Adversary("fgsm", 0.1, bounds=(-9, 9))
    assert train(network(), points(), recipe=RECIPE, lesson=wide, epochs=1).status == "finished"
    assert train(network(), points(), recipe=recipe("fgsm"), epochs=1).status == "finished"


def test_eps_in_grey_levels_is_noticed():
    with pytest.raises(ValueError, match=r"^Adversary: eps must be .* got 8\. Is it in grey levels\? Write 8 / 255"):
        train(convolutional(), images(), recipe=dataclasses.replace(RECIPE, adversary="pgd", eps=8.0))
    with pytest.raises(ValueError, match=r"at most 8.485, the diagonal of the bounds .* got 128\. .* Write 128 / 255"):
        train(convolutional(), images(), recipe=dataclasses.replace(RECIPE, adversary="fgsm", norm="l2", eps=128.0))
    with pytest.raises(ValueError, match="augmix must be 0 with an adversary"):
        Recipe(adversary="fgsm", augmix=1.0)


def test_attention_has_a_second_derivative_here_and_a_compiled_network_runs_as_it_is_written():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.inward, self.out = nn.Linear(2, 24), nn.Linear(8, 3)

        def forward(self, x):
            q, k, v = self.inward(x.reshape(-1, 2, 2)).chunk(3, -1)
            return self.out(functional.scaled_dot_product_attention(q, k, v).mean(1))

    for model in (Attention(), torch.compile(network(), backend="eager")):
        assert train(model, points(), recipe=recipe("gradient", epochs=1)).status == "finished"


def test_layers_of_a_network_that_ran_compiled_are_read():
    """Hooks that come after the first compiled forward are not seen by it; Fabric asks where it did not see torch
    compile."""
    model = torch.compile(convolutional(), backend="eager")
    vars(model).pop("_compile_kwargs", None)
    for way in ("fgsm", "isometric"):
        result = train(model, images(), recipe=recipe(way, epochs=1))
    assert result.log[-1]["isometric"] > 0


def test_bf16_goes_through_twice():
    model = network()
    result = train(model, points(), recipe=recipe("gradient"), precision="bf16-mixed")
    assert result.status == "finished"
    full = train(network(), points(), recipe=recipe("gradient"))
    assert result.log[-1]["gradient"] == pytest.approx(full.log[-1]["gradient"], rel=0.1)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_trains_in_pure_bf16(way):
    """Where the default type is bf16 too: what counts or draws says its own."""
    assert train(convolutional(), images(), recipe=recipe(way), precision="bf16-true").status == "finished"


def test_a_penalty_of_ones_own_sees_inputs_and_answers():
    shapes = []

    def slopes(activations, batch):
        shapes.append((batch.inputs.requires_grad, *activations["output"].shape))
        return activations["output"].mean()

    train(network(), points(32), recipe=RECIPE, epochs=1, penalties=[Penalty(slopes, 0.1, inputs=True)])
    assert shapes == [(True, 16, 3)] * 2


@pytest.mark.gpu
@pytest.mark.parametrize("way", WAYS)
def test_every_way_trains_on_a_gpu_in_half_precision(way):
    result = train(convolutional(), images(), recipe=recipe(way), device="cuda", precision="bf16-mixed")
    assert result.status in ("finished", "collapsed")
    assert Loop is not None
