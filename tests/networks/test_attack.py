from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from lisse.maths.intervals import share_interval
from lisse.models import declare
from lisse.networks.attack import attack, attack_distance, auto_attack, clean_gradient_attack, random_shift, standing
from lisse.networks.attack.adaptive import checkpoints
from lisse.networks.attack.gradient import gradient_norms, input_gradients
from lisse.networks.attack.losses import attack_losses, lost_margins


class Reference(nn.Module):
    """tanh(XWᵀ + b) Vᵀ of the reference inputs."""

    def __init__(self) -> None:
        super().__init__()
        h, j = torch.arange(1, 5).double(), torch.arange(1, 4).double()
        self.w = nn.Parameter(torch.sin(1.1 * h[:, None] + 0.6 * j))
        self.b = nn.Parameter(0.1 * h)
        self.v = nn.Parameter(torch.cos(0.9 * torch.arange(1, 3).double()[:, None] * h))

    def forward(self, x):
        return torch.tanh(x @ self.w.T + self.b) @ self.v.T


ROWS = torch.arange(1, 7).double()[:, None]
X = torch.sin(0.7 * ROWS * torch.arange(1, 4).double()) + 0.1 * ROWS
Y = torch.tensor([0, 0, 0, 1, 1, 1])
# The attack of the papers and of foolbox.
PRINTED = {"loss": "cross-entropy", "keep": "last"}


def loss(model, x, y=Y):
    with torch.no_grad():
        return float(functional.cross_entropy(model(x), y))


def convolutional(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 36, 5))
    return network.to(dtype).eval()


def pictures(n: int = 6, seed: int = 1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 3, 8, 8, generator=generator, dtype=torch.float64)
    return x, torch.randint(5, (n,), generator=generator)


# --- closed form ----------------------------------------------------------------------------------------------------


def test_the_reference_losses_after_fgsm_and_pgd():
    model = Reference()
    assert loss(model, X) == pytest.approx(1.152889102934, abs=1e-11)
    once = attack(model, X, Y, method="fgsm", norm="linf", eps=0.1, bounds=None)
    assert loss(model, once) == pytest.approx(1.349626138584, abs=1e-11)
    often = attack(model, X, Y, method="pgd", norm="linf", eps=0.5, step=0.1, steps=10, bounds=None, **PRINTED)
    assert loss(model, often) == pytest.approx(2.121838029146, abs=1e-11)


@pytest.mark.parametrize("norm", ["linf", "inf", math.inf, float("inf")])
def test_fgsm_of_a_linear_classifier_moves_against_the_margin(norm):
    """Logits (0, w·x): the gradient of class 0's loss is a positive multiple of w."""
    w = torch.tensor([1.0, -2.0, 0.0])
    model = nn.Linear(3, 2, bias=False)
    model.load_state_dict({"weight": torch.stack([torch.zeros(3), w])})
    x = torch.full((1, 3), 0.5)
    made = attack(model, x, torch.tensor([0]), norm=norm, eps=0.2, bounds=None)
    assert torch.allclose(made - x, torch.tensor([[0.2, -0.2, 0.0]]))


@pytest.mark.parametrize("norm", ["l2", "L2", 2, 2.0])
def test_fgsm_in_l2_moves_along_the_gradient(norm):
    w = torch.tensor([3.0, -4.0])
    model = nn.Linear(2, 2, bias=False)
    model.load_state_dict({"weight": torch.stack([torch.zeros(2), w])})
    x = torch.full((1, 2), 0.5)
    made = attack(model, x, torch.tensor([0]), norm=norm, eps=0.1, bounds=None)
    assert torch.allclose(made - x, 0.1 * w / 5, atol=1e-7)
    towards = attack(model, x, torch.tensor([0]), norm=norm, eps=0.1, bounds=None, targeted=True)
    assert torch.allclose(towards - x, -0.1 * w / 5, atol=1e-7)


def test_pgd_of_a_linear_classifier_reaches_the_ball_with_the_default_step():
    model = nn.Linear(2, 2, bias=False)
    model.load_state_dict({"weight": torch.tensor([[0.0, 0.0], [3.0, -4.0]])})
    x = torch.full((1, 2), 0.5)
    made = attack(model, x, torch.tensor([0]), method="pgd", norm="l2", eps=0.1, steps=3, bounds=None)
    assert torch.allclose(made - x, torch.tensor([[0.06, -0.08]]), atol=1e-7)
    short = attack(model, x, torch.tensor([0]), method="pgd", norm="l2", eps=0.1, step=0.02, steps=3, bounds=None)
    assert torch.allclose(short - x, torch.tensor([[0.036, -0.048]]), atol=1e-7)


def test_momentum_keeps_the_old_direction():
    """The second gradient points back; with μ = 2 the sum of both still points on."""

    class Valley(nn.Module):
        def forward(self, x):  # class 0's loss grows with x[0] below 0.15 and falls above it
            rise = -(x[:, :1] - 0.15).abs() * 10
            return torch.cat([-rise, rise], 1)

    x, y = torch.zeros(1, 1), torch.tensor([0])
    plain = attack(Valley(), x, y, method="pgd", norm="linf", eps=1, step=0.1, steps=3, bounds=None, keep="last")
    pushed = attack(
        Valley(), x, y, method="pgd", norm="linf", eps=1, step=0.1, steps=3, bounds=None, momentum=2.0, keep="last"
    )
    assert float(plain) == pytest.approx(0.1)  # 0.1, 0.2, 0.1
    assert float(pushed) == pytest.approx(0.3)  # 1, then 2 - 1 = 1: on and on


def test_the_authors_variant_is_one_fgsm_of_another_size():
    model = Reference()
    for step, reach in ((0.01, 0.1), (0.2, 0.5)):
        made = clean_gradient_attack(model, X, Y, eps=0.5, step=step, steps=10, bounds=None)
        assert torch.equal(made, X + reach * input_gradients(model, X, Y, bounds=None).sign())
    correct = attack(model, X, Y, method="pgd", norm="linf", eps=0.5, step=0.2, steps=10, bounds=None, **PRINTED)
    assert loss(model, correct) > loss(model, made)
    inside = X.clamp(0, 1)
    boxed = clean_gradient_attack(model, inside, Y, eps=0.5, step=0.2, bounds=(0, 1))
    assert boxed.min() >= 0
    assert boxed.max() <= 1


def test_an_objective_of_ones_own():
    model = Reference()
    made = attack(model, X, Y, norm="linf", eps=0.1, bounds=None, objective=lambda x, logits: x[:, 0].sum())
    assert torch.allclose(made - X, torch.tensor([0.1, 0, 0], dtype=torch.float64).expand(6, 3))
    half = clean_gradient_attack(
        model, X, Y, eps=0.5, step=0.01, bounds=None, batch=2, objective=lambda x, logits: -len(x) * x[:, 1].sum()
    )
    assert torch.allclose(half - X, torch.tensor([0, -0.1, 0], dtype=torch.float64).expand(6, 3))


# --- properties -----------------------------------------------------------------------------------------------------


@given(
    st.sampled_from(["linf", "l2"]), st.floats(0, 2), st.floats(0.01, 1), st.integers(1, 4), st.booleans(),
    st.integers(0, 99),
)  # fmt: skip
def test_pgd_stays_in_the_ball_and_the_box(norm, eps, step, steps, random, seed):
    x, y = pictures(3, seed)
    eps = eps if norm == "l2" else min(eps, 1.0)
    made = attack(
        convolutional(), x, y, method="pgd", norm=norm, eps=eps, step=step, steps=steps, bounds=(0, 1),
        start="random" if random else None, generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    shift = (made - x).flatten(1)
    size = shift.abs().amax(1) if norm == "linf" else shift.norm(dim=1)
    assert bool((size <= eps + 1e-12).all())
    assert made.min() >= 0
    assert made.max() <= 1


@given(st.floats(1e-3, 1), st.integers(0, 99))
def test_fgsm_has_the_size_eps_where_there_is_a_gradient(eps, seed):
    x, y = pictures(3, seed)
    made = attack(convolutional(), x, y, norm="linf", eps=eps, bounds=None)
    assert torch.allclose((made - x).abs(), torch.full_like(x, eps))
    made = attack(convolutional(), x, y, norm="l2", eps=eps, bounds=None)
    assert torch.allclose((made - x).flatten(1).norm(dim=1), torch.full((3,), eps, dtype=torch.float64))


def test_eps_zero_changes_nothing():
    x, y = pictures()
    for method in ("fgsm", "pgd"):
        for norm in ("linf", "l2"):
            made = attack(convolutional(), x, y, method=method, norm=norm, eps=0, bounds=(0, 1), start="random")
            assert torch.equal(made, x)


def test_batches_and_a_random_start_do_not_depend_on_each_other():
    x, y = pictures(7)
    made = [
        attack(
            convolutional(), x, y, method="pgd", norm="l2", eps=1, steps=3, bounds=(0, 1), start="random",
            generator=torch.Generator().manual_seed(4), batch=batch,
        )
        for batch in (None, 2, 3)
    ]  # fmt: skip
    assert torch.allclose(made[0], made[1], atol=1e-12)
    assert torch.allclose(made[0], made[2], atol=1e-12)
    other = attack(
        convolutional(), x, y, method="pgd", norm="l2", eps=1, steps=3, bounds=(0, 1), start="random",
        generator=torch.Generator().manual_seed(5),
    )  # fmt: skip
    assert not torch.allclose(made[0], other, atol=1e-3)


def test_a_start_of_ones_own_is_brought_into_the_ball_and_the_box():
    x, y = pictures(2)
    model = convolutional()
    far = torch.full_like(x, 5.0)
    made = attack(
        model, x, y, method="pgd", norm="linf", eps=0.1, step=0, steps=1, start=far, bounds=(0, 1), keep="last"
    )
    assert torch.equal(made, (x + 0.1).clamp_max(1))


def test_random_starts_are_uniform_in_the_ball():
    model = nn.Linear(3, 2).double()
    x, y = torch.zeros(20_000, 3, dtype=torch.float64), torch.zeros(20_000, dtype=torch.int64)
    common = {"method": "pgd", "eps": 2.0, "step": 0.0, "steps": 1, "start": "random", "bounds": None, "keep": "last"}
    cube = attack(model, x, y, norm="linf", generator=torch.Generator().manual_seed(0), **common)
    assert float(cube.var(0).mean()) == pytest.approx(4 / 3, abs=4 * 0.0069)  # sd of a variance of 60,000
    ball = attack(model, x, y, norm="l2", generator=torch.Generator().manual_seed(0), **common)
    # (r / eps)³ is uniform in three dimensions
    cubes = (ball.norm(dim=1) / 2) ** 3
    assert float(cubes.mean()) == pytest.approx(0.5, abs=4 * (1 / 12 / 20_000) ** 0.5)
    assert float(ball.mean(0).abs().max()) < 4 * (4 / 5 / 20_000) ** 0.5


# --- others' programs -----------------------------------------------------------------------------------------------


def foolbox_attack(kind: str, **options):
    foolbox = pytest.importorskip("foolbox")
    return getattr(foolbox.attacks, kind)(**options)


@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize(
    ("norm", "name"), [("linf", "LinfProjectedGradientDescentAttack"), ("l2", "L2ProjectedGradientDescentAttack")]
)
def test_pgd_is_that_of_foolbox(norm, name, targeted):
    foolbox = pytest.importorskip("foolbox")
    x, y = pictures(8)
    model = convolutional()
    theirs = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    criterion = foolbox.criteria.TargetedMisclassification(y) if targeted else foolbox.criteria.Misclassification(y)
    peer = foolbox_attack(name, abs_stepsize=0.07, steps=12, random_start=False)
    expected = peer.run(theirs, x, criterion, epsilon=0.3)
    ours = attack(
        model, x, y, method="pgd", norm=norm, eps=0.3, step=0.07, steps=12, bounds=(0, 1), targeted=targeted, **PRINTED,
    )  # fmt: skip
    assert float((ours - expected).abs().max()) < 1e-6
    assert float((ours - x).abs().max()) > 0.01


@pytest.mark.parametrize(("norm", "name"), [("linf", "LinfFastGradientAttack"), ("l2", "L2FastGradientAttack")])
def test_fgsm_is_that_of_foolbox(norm, name):
    foolbox = pytest.importorskip("foolbox")
    x, y = pictures(8)
    model = convolutional()
    theirs = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    expected = foolbox_attack(name).run(theirs, x, foolbox.criteria.Misclassification(y), epsilon=0.2)
    ours = attack(model, x, y, norm=norm, eps=0.2, bounds=(0, 1), **PRINTED)
    assert float((ours - expected).abs().max()) < 1e-6


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_momentum_against_ten_naive_lines(norm):
    x, y = pictures(4)
    model = convolutional()
    z, g = x.clone(), torch.zeros_like(x)
    for _ in range(6):
        z.requires_grad_()
        (slope,) = torch.autograd.grad(functional.cross_entropy(model(z), y, reduction="sum"), z)
        g = 0.8 * g + slope / slope.abs().sum((1, 2, 3), keepdim=True)
        way = g.sign() if norm == "linf" else g / g.square().sum((1, 2, 3), keepdim=True).sqrt()
        shift = (z + 0.05 * way).detach() - x
        if norm == "linf":
            shift = shift.clamp(-0.2, 0.2)
        else:
            shift = shift * (0.2 / shift.square().sum((1, 2, 3), keepdim=True).sqrt()).clamp_max(1)
        z = (x + shift).clamp(0, 1)
    ours = attack(
        model, x, y, method="pgd", norm=norm, eps=0.2, step=0.05, steps=6, momentum=0.8, bounds=(0, 1), **PRINTED
    )
    assert float((ours - z).abs().max()) < 1e-9


def test_gradients_are_those_of_finite_differences():
    x, y = pictures(2)
    model = convolutional()
    slope = input_gradients(model, x, y, bounds=(0, 1))
    for place in ((0, 0, 3, 3), (1, 2, 5, 1)):
        up, down = x.clone(), x.clone()
        up[place] += 1e-5
        down[place] -= 1e-5
        difference = 2 * (loss(model, up, y) - loss(model, down, y)) / 2e-5  # a mean of two
        assert float(slope[place]) == pytest.approx(difference, rel=1e-5)
    l1, l2 = gradient_norms(slope)
    assert torch.allclose(l1, slope.abs().sum((1, 2, 3)))
    assert torch.allclose(l2, slope.square().sum((1, 2, 3)).sqrt())


# --- manners --------------------------------------------------------------------------------------------------------


def test_nothing_is_left_on_the_model():
    x, y = pictures()
    model = convolutional()
    model.train()
    model[0].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    with torch.no_grad():
        made = attack(model, x, y, method="pgd", norm="linf", eps=0.1, bounds=(0, 1))
    assert all(weight.grad is None for weight in model.parameters())
    assert [module.training for module in model] == [False, True, True, True, True]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert not made.requires_grad
    assert not x.requires_grad
    again = attack(model.eval(), x, y, method="pgd", norm="linf", eps=0.1, bounds=(0, 1))
    assert torch.equal(made, again)  # evaluation mode was used


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("bounds", [(0, 1), None])
def test_an_input_that_carries_a_gradient_stays_out_of_it(norm, bounds):
    model, (x, y) = convolutional(), pictures()
    expected = attack(model, x, y, method="pgd", norm=norm, eps=0.1, bounds=bounds)
    leaf = x.clone().requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for given in (leaf, leaf * 1.0):
            made = attack(model, given, y, method="pgd", norm=norm, eps=0.1, bounds=bounds)
            assert not made.requires_grad
            assert torch.equal(made, expected)
        assert not random_shift(leaf, norm=norm, eps=0.1, bounds=bounds).requires_grad
    assert leaf.grad is None


def test_any_output_with_logits_and_any_precision():
    x, y = pictures()
    network = convolutional()
    expected = attack(network, x, y, norm="linf", eps=0.1, bounds=(0, 1))

    class Output(nn.Module):
        def __init__(self, wrap):
            super().__init__()
            self.network, self.wrap = network, wrap

        def forward(self, x):
            return self.wrap(self.network(x))

    class Named:
        def __init__(self, logits):
            self.logits = logits

    for wrap in (lambda t: {"loss": None, "logits": t}, Named, lambda t: (t, t.sum())):
        made = attack(Output(wrap), x, y, norm="linf", eps=0.1, bounds=(0, 1))
        assert torch.equal(made, expected)
    single = attack(convolutional(dtype=torch.float32), x, y, norm="linf", eps=0.1, bounds=(0, 1))
    assert single.dtype == torch.float64  # the input's, the network's precision is its own
    assert attack(network, x.float(), y, norm="linf", eps=0.1, bounds=(0, 1)).dtype == torch.float32
    from_arrays = attack(network, x.numpy(), y.numpy(), norm="linf", eps=0.1, bounds=(0, 1))
    assert torch.equal(from_arrays, expected)
    assert torch.equal(attack(lambda t: network(t), x, y, norm="linf", eps=0.1, bounds=(0, 1)), expected)
    with torch.inference_mode():
        made = attack(network, x.clone(), y, norm="linf", eps=0.1, bounds=(0, 1))
    assert torch.equal(made, expected)


def test_a_declared_model_is_attacked_in_pixels():
    network = convolutional(dtype=torch.float32)
    x, y = (part.float() if part.is_floating_point() else part for part in pictures())
    mean, std = (0.4, 0.5, 0.6), (0.1, 0.2, 0.4)
    model = declare(network, input_size=(3, 8, 8), mean=mean, std=std)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = attack(model, x, y, norm="linf", eps=0.05)
    assert float((made - x).abs().max()) == pytest.approx(0.05, abs=1e-6)
    normal = (x - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    with pytest.raises(ValueError, match=r"x must lie in bounds \[0, 1\].*declares no normalisation.*declare"):
        attack(network, normal, y, norm="linf", eps=0.05)
    with pytest.raises(ValueError, match=r"normalises inside: give it images in \[0, 1\]"):
        attack(model, normal, y, norm="linf", eps=0.05)
    with pytest.warns(UserWarning, match="declares no normalisation"):
        attack(network, x, y, norm="linf", eps=0.05)


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "error", "match"),
    [
        ({"method": "cw"}, ValueError, "method must be one of fgsm, pgd, apgd, got 'cw'"),
        ({"norm": 1}, ValueError, "norm must be 'linf'"),
        ({"norm": True}, ValueError, "norm must be 'linf'"),
        ({"eps": -0.1}, ValueError, "eps must be a number of at least 0, got -0.1"),
        ({"eps": math.nan}, ValueError, "eps must be"),
        ({"step": 0.1}, ValueError, "step must be left out for fgsm"),
        ({"method": "pgd", "step": -1}, ValueError, "step must be a number"),
        ({"loss": "hinge"}, ValueError, "loss must be one of margin, dlr, cross-entropy, got 'hinge'"),
        ({"loss": "dlr"}, ValueError, "loss must not be dlr for 2 classes"),
        ({"keep": "first"}, ValueError, "keep must be one of best, last, got 'first'"),
        ({"restarts": 0}, ValueError, "restarts must be a whole number of at least 1, got 0"),
        ({"method": "apgd", "step": 0.1}, ValueError, "step, momentum and objective must be left out for apgd"),
        ({"x": X.clamp(0, 1), "bounds": (0, 1), "eps": 8}, ValueError, "eps must be at most .*Write 8 / 255"),
        ({"steps": 0}, ValueError, "steps must be a whole number of at least 1, got 0"),
        ({"steps": 2.5}, ValueError, "steps must be"),
        ({"batch": 0}, ValueError, "batch must be"),
        ({"momentum": -1}, ValueError, "momentum must be at least 0"),
        ({"start": "corner"}, ValueError, "start must be None, 'random' or a tensor"),
        ({"start": torch.zeros(2)}, ValueError, "start must be finite and of the shape of x"),
        ({"bounds": (1, 0)}, ValueError, "bounds must be \\(low, high\\) or None"),
        ({"bounds": 3}, ValueError, "bounds must be"),
        ({"x": torch.zeros(6, 3, dtype=torch.uint8)}, TypeError, "x must hold floats.*Divide bytes by 255"),
        ({"x": torch.zeros(6, 3, dtype=torch.int64)}, TypeError, "x must hold floats.*Token ids"),
        ({"x": torch.full((6, 3), math.nan)}, ValueError, "x must be finite"),
        ({"x": torch.zeros(6)}, ValueError, r"x must be \[n, …\]"),
        ({"x": {"input_ids": Y}}, TypeError, "x must be one tensor, got dict"),
        ({"y": Y[:4]}, ValueError, "y must have a label for each of the 6 samples"),
        ({"y": Y.double()}, TypeError, "y must hold whole numbers"),
        ({"y": Y - 1}, ValueError, "y must hold the classes 0, 1, …, got -1"),
        ({"y": Y + 1}, ValueError, "y must hold classes below 2"),
        ({"model": 3}, TypeError, "model must be an nn.Module, got int"),
        ({"model": lambda x: None}, TypeError, "model must give logits"),
        ({"model": lambda x: {"hidden": x}}, TypeError, "got dict with hidden.*'logits'"),
        ({"model": lambda x: x[:, :, None]}, ValueError, r"logits \[6, classes\], got .* of shape \[6, 3, 1\]"),
        ({"model": lambda x: x.detach()}, ValueError, "must have a gradient by its input"),
        ({"model": lambda x: x / 0}, ValueError, "gradient must be finite"),
    ],
)
def test_bad_input(changed, error, match):
    given = {"model": Reference(), "x": X, "y": Y, "norm": "linf", "eps": 0.1, "bounds": None, **changed}
    with pytest.raises(error, match=match):
        attack(given.pop("model"), given.pop("x"), given.pop("y"), **given)


def test_no_samples_give_none():
    made = attack(Reference(), X[:0], Y[:0], method="pgd", norm="l2", eps=0.1, bounds=None)
    assert made.shape == (0, 3)
    assert np.asarray(made).dtype == np.float64


# --- an attack to be trusted ----------------------------------------------------------------------------------------


class Hot(nn.Module):
    """A network at a temperature."""

    def __init__(self, network: nn.Module, factor: float) -> None:
        super().__init__()
        self.network, self.factor = network, factor

    def forward(self, x):
        return self.network(x) * self.factor


def lost(model, x, y):
    with torch.no_grad():
        return lost_margins(model(x), y)


def test_the_losses_in_closed_form():
    logits = torch.tensor([[3.0, 1.0, 0.0, -1.0], [0.0, 2.0, 5.0, 1.0]])
    y = torch.tensor([0, 1])
    assert attack_losses(logits, y, "margin").tolist() == [-2.0, 3.0]
    assert attack_losses(logits, y, "dlr").tolist() == pytest.approx([-2 / 3, 3 / 4])
    assert torch.equal(attack_losses(7 * logits, y, "dlr"), attack_losses(logits, y, "dlr"))
    expected = functional.cross_entropy(logits, y, reduction="none")
    assert torch.equal(attack_losses(logits, y, "cross-entropy"), expected)


@pytest.mark.parametrize("method", ["fgsm", "pgd", "apgd"])
@pytest.mark.parametrize("factor", [1e-3, 30.0, 1e4])
def test_no_attack_depends_on_the_temperature_of_the_logits(method, factor):
    network, (x, _) = convolutional(), pictures(12)
    with torch.no_grad():
        y = network(x).argmax(1)
    common = {"method": method, "norm": "linf", "eps": 0.05, "steps": 8, "bounds": (0, 1)}
    assert torch.allclose(attack(network, x, y, **common), attack(Hot(network, factor), x, y, **common), atol=1e-12)


def test_cross_entropy_is_blind_where_the_network_is_sure():
    """What the margin is for: in single precision the papers' loss has no gradient left."""
    network, (x, _) = convolutional(dtype=torch.float32), pictures(12)
    sure = Hot(network, 1e6)
    with torch.no_grad():
        y = network(x.float()).argmax(1)
    common = {"method": "pgd", "norm": "linf", "eps": 0.1, "bounds": (0, 1)}
    blind = attack(sure, x.float(), y, loss="cross-entropy", **common)
    assert int((lost(sure, blind, y) > 0).sum()) < int((lost(sure, attack(sure, x.float(), y, **common), y) > 0).sum())


@pytest.mark.parametrize("targeted", [False, True])
def test_the_best_iterate_is_kept(targeted):
    """Of ever longer trains of too long steps, the best is never worse, and the last is."""
    model, (x, y) = convolutional(), pictures(8)
    way = -1 if targeted else 1
    common = {"method": "pgd", "norm": "linf", "eps": 0.3, "step": 0.25, "bounds": (0, 1), "targeted": targeted}
    margins = {
        keep: torch.stack(
            [way * lost(model, attack(model, x, y, steps=k, keep=keep, **common), y) for k in range(1, 7)]
        )
        for keep in ("best", "last")
    }
    assert bool((margins["best"].diff(dim=0) >= 0).all())
    assert not bool((margins["last"].diff(dim=0) >= 0).all())
    assert torch.equal(margins["best"][-1], torch.maximum(margins["last"].amax(0), way * lost(model, x, y)))


@pytest.mark.parametrize("method", ["pgd", "apgd"])
def test_restarts_never_do_worse_and_batches_do_not_matter(method):
    model, (x, _) = convolutional(), pictures(10)
    with torch.no_grad():
        y = model(x).argmax(1)
    common = {"method": method, "norm": "linf", "eps": 0.02, "steps": 1, "start": "random", "bounds": (0, 1)}
    runs = [
        attack(model, x, y, restarts=count, generator=torch.Generator().manual_seed(3), batch=batch, **common)
        for count, batch in ((1, None), (5, None), (5, 3))
    ]
    first, many, parts = (lost(model, run, y) for run in runs)
    assert bool((many >= first).all())
    assert bool((many > first).any())
    torch.testing.assert_close(many, parts)


def test_the_checkpoints_are_the_papers():
    assert checkpoints(100) == [22, 41, 57, 70, 80, 87, 93, 99]
    assert checkpoints(5) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_apgd_stays_in_the_ball_and_beats_pgd_of_as_many_steps(norm):
    model, (x, _) = convolutional(), pictures(40)
    with torch.no_grad():
        y = model(x).argmax(1)
    eps = 0.03 if norm == "linf" else 0.2
    moved = {m: attack(model, x, y, method=m, norm=norm, eps=eps, steps=30, bounds=(0, 1)) for m in ("pgd", "apgd")}
    shift = (moved["apgd"] - x).flatten(1)
    assert float((shift.abs().amax(1) if norm == "linf" else shift.norm(dim=1)).max()) <= eps + 1e-12
    assert 0 <= float(moved["apgd"].min()) <= float(moved["apgd"].max()) <= 1
    assert float(lost(model, moved["apgd"], y).mean()) >= float(lost(model, moved["pgd"], y).mean()) - 1e-3


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("loss", ["cross-entropy", "dlr"])
def test_apgd_loses_as_many_answers_as_the_reference(norm, loss):
    """The same loss, steps and radius, other random starts: each within the other's Wilson interval."""
    pytest.importorskip("pyautoattack")
    model, (x, _) = convolutional(dtype=torch.float32), pictures(300)
    x = x.float()
    with torch.no_grad():
        y = model(x).argmax(1)
    eps = 0.015 if norm == "linf" else 0.12
    generator = torch.Generator().manual_seed(0)
    ours = attack(
        model, x, y, method="apgd", norm=norm, eps=eps, steps=100, loss=loss, start="random", bounds=(0, 1),
        generator=generator,
    )  # fmt: skip
    component = {"cross-entropy": "apgd-ce", "dlr": "apgd-dlr"}[loss]
    theirs = auto_attack(
        declare(model, input_size=(3, 8, 8), kind="plain"), x, y, norm=norm, eps=eps, attacks=[component]
    )
    counts = [int((lost(model, moved, y) > 0).sum()) for moved in (ours, theirs)]
    assert 30 < counts[1] < 270
    for mine, other in (counts, counts[::-1]):
        interval = share_interval(mine / len(x), len(x))
        assert float(interval.low) <= other / len(x) <= float(interval.high)


@pytest.mark.parametrize("classes", [2, 5])
def test_what_stands_is_no_more_than_either_loss_leaves(classes):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.Tanh(), nn.Linear(16, classes)).double()
    x, _ = pictures(60)
    with torch.no_grad():
        y = model(x).argmax(1)
    common = {"norm": "linf", "steps": 10, "bounds": (0, 1)}
    stood = [standing(model, x, y, eps=eps, **common) for eps in (0.0, 0.005, 0.3)]
    assert stood[0].all()
    assert int(stood[2].sum()) < int(stood[1].sum())
    for loss in ("cross-entropy", "margin"):
        alone = attack(
            model, x, y, method="apgd", eps=0.005, loss=loss, start="random",
            generator=torch.Generator().manual_seed(0), **common,
        )  # fmt: skip
        left = int((lost(model, alone, y) <= 0).sum())
        assert int(stood[1].sum()) <= left + (loss == "margin")
    assert not standing(model, x, (y + 1) % classes, eps=0.0, **common).any()


# -- how far an attack has to go ---------------------------------------------------------------------------------------


def linear_classifier(classes: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(6, classes).double()


@pytest.mark.parametrize(("norm", "dual"), [("linf", 1), ("l2", 2)])
def test_the_distance_of_a_linear_classifier_is_that_of_its_nearest_face(norm, dual):
    model = linear_classifier(2)
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(1)).double()
    with torch.no_grad():
        logits = model(x)
    y = logits.argmax(1)
    margin = (logits.gather(1, y[:, None]) - logits.gather(1, 1 - y[:, None]))[:, 0]
    expected = margin / float((model.weight[0] - model.weight[1]).detach().norm(p=dual))
    found = attack_distance(model, x, y, norm=norm, largest=20.0, bounds=None)
    assert found.dtype == torch.float64
    # From above, within the radius it took (2^(1/4) too large at most) over 2^8 halvings.
    assert bool((found >= expected * (1 - 1e-9)).all())
    torch.testing.assert_close(found, expected, rtol=5e-3, atol=0)
    wrong = attack_distance(model, x, 1 - y, norm=norm, largest=20.0, bounds=None)
    assert not wrong.any()  # lost already


def test_a_distance_is_that_of_an_answer_that_was_lost():
    """Whatever the network: no attack of a smaller size that plain PGD finds, and one of that size is found."""
    model, x, y = convolutional(), *pictures(20)
    with torch.no_grad():
        y = model(x).argmax(1)
    found = attack_distance(model, x, y, norm="linf", largest=1.0, bounds=(0.0, 1.0))
    assert bool((found > 0).all())
    for eps in (0.01, 0.03, 0.1, 0.3):
        moved = attack(model, x, y, method="pgd", norm="linf", eps=eps, bounds=(0.0, 1.0))
        with torch.no_grad():
            lost = model(moved).argmax(1) != y
        assert float((found[lost] <= eps * 2**0.25).double().mean()) > 0.9  # cross-entropy is another way to climb


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("temperature", [1e-3, 1.0, 1e4])
def test_a_temperature_does_not_move_an_attack(norm, temperature):
    """Cross-entropy has no gradient left where the network is sure; the margin has the same at any temperature."""
    network, x, _ = convolutional(), *pictures(20)

    class Hot(nn.Module):
        def forward(self, images):
            return network(images) * temperature

    with torch.no_grad():
        y = network(x).argmax(1)
    expected = attack_distance(network, x, y, norm=norm, largest=1.0, bounds=(0.0, 1.0))
    found = attack_distance(Hot(), x, y, norm=norm, largest=1.0, bounds=(0.0, 1.0))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


def test_what_no_attack_moves_is_infinitely_far():
    model = linear_classifier()
    model.weight.data.zero_()
    x = torch.rand(5, 6).double()
    y = model(x).argmax(1)
    assert attack_distance(model, x, y, norm="linf", largest=1.0, bounds=None).isinf().all()


def test_distances_do_not_depend_on_who_shares_the_batch_and_more_steps_do_not_do_worse():
    model, x, y = convolutional(), *pictures(12)
    with torch.no_grad():
        y = model(x).argmax(1)
    common = {"norm": "linf", "largest": 1.0, "bounds": (0.0, 1.0)}
    whole = attack_distance(model, x, y, **common)
    torch.testing.assert_close(attack_distance(model, x, y, batch=5, **common), whole, rtol=1e-9, atol=0)
    assert float(attack_distance(model, x, y, steps=30, **common).mean()) <= float(whole.mean()) * 1.01
    assert attack_distance(model, x[:0], y[:0], **common).shape == (0,)
    with pytest.raises(ValueError, match=r"^attack_distance: largest must be positive, got 0"):
        attack_distance(model, x, y, **common | {"largest": 0})
    with pytest.raises(ValueError, match=r"^attack_distance: steps must be a whole number of at least 1, got 0\."):
        attack_distance(model, x, y, steps=0, **common)
    with pytest.raises(ValueError, match=r"^attack_distance: y must hold classes below 5"):
        attack_distance(model, x, y + 5, **common)
