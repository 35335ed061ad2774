"""Adversarial training: what is moved and how far, the losses in closed form, and the door for other trainers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from lisse.networks.attack import Adversarially, Adversary
from lisse.networks.attack.losses import lost_margins


def classifier(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(64, 4)
    ).double()


def pictures(n: int = 8, seed: int = 1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 2, 6, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(4, (n,), generator=generator)


def test_fgsm_of_a_linear_classifier_ends_in_the_corner_of_the_ball():
    """1.25 ε against the margin and back into the ball: x ± ε unless the start was far on the other side."""
    model = nn.Linear(3, 2, bias=False)
    model.load_state_dict({"weight": torch.tensor([[0.0, 0.0, 0.0], [1.0, -2.0, 0.0]])})
    x, y = torch.full((500, 3), 0.5), torch.zeros(500, dtype=torch.int64)
    torch.manual_seed(0)
    shift = Adversary("fgsm", 0.1).moved(model, x, y) - x
    assert float(shift.abs().max()) <= 0.1 + 1e-6
    assert bool((shift[:, 0] >= 0.025 - 1e-6).all())  # -0.1 + 0.125, at least
    assert bool((shift[:, 1] <= -0.025 + 1e-6).all())
    assert float((shift[:, 0] > 0.0999).double().mean()) == pytest.approx(0.625, abs=4 * 0.022)  # starts above -0.025
    assert float(shift[:, 2].abs().mean()) == pytest.approx(0.05, abs=4 * 0.0013)  # no gradient: the start


def test_pgd_is_its_own_ten_lines():
    model, (x, y) = classifier().eval(), pictures()
    torch.manual_seed(3)
    ours = Adversary("pgd", 0.1, steps=4).moved(model, x, y)
    torch.manual_seed(3)
    z = (x + 0.1 * (2 * torch.rand_like(x) - 1)).clamp(0, 1)
    for _ in range(4):
        z.requires_grad_()
        (slope,) = torch.autograd.grad(functional.cross_entropy(model(z), y), z)
        z = (z.detach() + 0.0625 * slope.sign()).clamp(x - 0.1, x + 0.1).clamp(0, 1)
    assert torch.allclose(ours, z, atol=1e-12)


def test_trades_in_closed_form():
    adversary = Adversary("trades", beta=2.0)
    clean, moved, y = torch.tensor([[0.0, math.log(3)]]), torch.tensor([[0.0, 0.0]]), torch.tensor([1])
    turned = 0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5)
    expected = -math.log(0.75) + 2 * turned
    assert float(adversary.task(torch.cat([clean, moved]), y)) == pytest.approx(expected, rel=1e-6)
    model, (x, y) = classifier().eval(), pictures()
    views = adversary.views(model, x, y)
    assert torch.equal(views[:8], x)
    assert 0.02 < float((views[8:] - x).abs().max()) <= 8 / 255 + 1e-12
    assert float(adversary.loss(model, x, y)) > float(functional.cross_entropy(model(x), y))


@given(
    st.sampled_from(["fgsm", "pgd", "trades"]), st.sampled_from(["linf", "l2"]), st.floats(0, 0.9), st.integers(0, 99)
)
def test_samples_stay_in_the_ball_and_the_box(method, norm, eps, seed):
    model, (x, y) = classifier(), pictures(3, seed)
    moved = Adversary(method, eps, norm, steps=2).moved(model, x, y)
    shift = (moved - x).flatten(1)
    assert float((shift.abs().amax(1) if norm == "linf" else shift.norm(dim=1)).max()) <= eps + 1e-12
    assert 0 <= float(moved.min()) <= float(moved.max()) <= 1
    assert not moved.requires_grad


@pytest.mark.parametrize("method", ["fgsm", "pgd", "trades"])
def test_the_network_does_worse_and_nothing_is_left_on_it(method):
    model, (x, y) = classifier(), pictures(40)
    model.train()
    model[1].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    moved = Adversary(method, 0.1, steps=5).moved(model, x, y)
    assert [module.training for module in model] == [True, False, True, True, True, True]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())
    model.eval()
    with torch.no_grad():
        assert float(lost_margins(model(moved), y).mean()) > float(lost_margins(model(x), y).mean())
        repeated = Adversary(method, 0.0, steps=5).moved(model, x, y)
    assert torch.equal(repeated, x)


def test_bounds_and_steps_of_ones_own():
    model, (x, y) = classifier().eval(), pictures()
    free = Adversary("pgd", 3.0, steps=2, bounds=None).moved(model, x, y)
    assert float(free.min()) < 0
    still = Adversary("pgd", 0.1, step=0.0).moved(model, x, y) - x
    assert float(still.abs().mean()) == pytest.approx(0.045, abs=0.01)  # the random start, some of it in the box's way


class Output(dict):
    """As a network of Hugging Face answers."""


class Picture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.shown = classifier().eval(), []

    def forward(self, pixel_values, labels=None):
        self.shown.append(pixel_values.detach())
        logits = self.inner(pixel_values)
        return Output(logits=logits) | ({} if labels is None else {"loss": functional.cross_entropy(logits, labels)})


@pytest.mark.parametrize("method", ["fgsm", "trades"])
def test_a_trainer_of_hugging_face_learns_from_the_moved_images(method):
    network, (x, y) = Picture(), pictures()
    model = Adversarially(network, Adversary(method, 0.1, steps=2))
    model.train()
    network.inner.eval()  # no dropout between the two calls
    output = model(pixel_values=x, labels=y)
    last = network.shown[-1]
    assert not torch.equal(last[-8:], x)
    expected = model.adversary.task(network.inner(last), y)
    assert float(output["loss"]) == pytest.approx(float(expected))
    assert output["logits"].shape == (8, 4)
    output["loss"].backward()
    assert network.inner[0].weight.grad is not None
    model.eval()
    assert torch.equal(model(pixel_values=x, labels=y)["logits"], network.inner(x))
    with pytest.raises(ValueError, match=r"^Adversarially: the call must name pixel_values, got labels"):
        model.train()(labels=y)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"method": "cw"}, "method must be one of fgsm, pgd, trades, got 'cw'"),
        (
            {"eps": 8},
            r"eps must be at most the width of the bounds \[0, 1\] .* got 8. Is it in grey levels\? Write 8 / 255",
        ),
        ({"eps": -1}, "eps must be a number of at least 0"),
        ({"norm": 1}, "norm must be 'linf'"),
        ({"steps": 0}, "steps must be a whole number of at least 1"),
        ({"beta": -1}, "beta must be a number of at least 0"),
        ({"step": math.inf}, "step must be a number of at least 0"),
    ],
)
def test_bad_input(options, match):
    with pytest.raises(ValueError, match=rf"^Adversary: {match}"):
        Adversary(**options)


def test_images_that_were_normalised_before_are_not_in_the_box():
    (x, y), words = (
        pictures(),
        r"^Adversary: x must lie in bounds \[0, 1\], got -1\.\S+ … -0\.\S+ Are these normalised\?",
    )
    with pytest.raises(ValueError, match=words):
        Adversary().loss(classifier(), x - 1.5, y)
    with pytest.raises(ValueError, match=words):
        Adversarially(Picture(), Adversary()).train()(pixel_values=x - 1.5, labels=y)
    for adversary in (Adversary(bounds=None), Adversary(bounds=(-2, 2))):
        assert float((adversary.moved(classifier(), x - 1.5, y) - (x - 1.5)).abs().max()) <= 8 / 255 + 1e-6
        assert float(adversary.loss(classifier(), x - 1.5, y)) > 0


def test_labels_are_needed():
    with pytest.raises(ValueError, match=r"^Adversary: y must hold a class for each sample"):
        Adversary().views(classifier(), pictures()[0], None)
