"""ball_bounds and certified_radius: certified ≤ true ≤ attacked."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from lisse.models import declare
from lisse.networks.attack import attack_distance
from lisse.networks.bounds import ball_bounds, certified_radius, lipschitz_radius, tangent
from lisse.networks.bounds.relaxation import Relaxation
from lisse.networks.bounds.steps import BENDS, Steps
from lisse.networks.zoo import build, seeded


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.second(F.relu(self.norm(self.first(x)))))


def dense(kind: type[nn.Module] = nn.ReLU, seed: int = 0) -> nn.Module:
    with seeded(seed):
        return nn.Sequential(nn.Linear(4, 12), kind(), nn.Linear(12, 12), kind(), nn.Linear(12, 3)).eval()


def images(pool: nn.Module, seed: int = 0) -> nn.Module:
    with seeded(seed):
        network = nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.ReLU(), Residual(4), pool, nn.Flatten(),
            nn.LazyLinear(3),
        )  # fmt: skip
        network(torch.randn(64, 2, 8, 8) + 0.3)  # running statistics
        return network.eval()


def points(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def in_ball(x: torch.Tensor, eps: float, norm: str, seed: int) -> torch.Tensor:
    """Points of the sphere around each sample; of the cube its corners."""
    shift = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if norm == "linf":
        return x.double() + eps * shift.sign()
    return x.double() + eps * F.normalize(shift.flatten(1)).reshape(x.shape)


# --- closed forms -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_linear_classifier_has_its_exact_distance(norm):
    with seeded(0):
        network = nn.Linear(5, 3).eval()
    x = points(20, 5)
    logits, weight = network(x).double().detach(), network.weight.detach().double()
    y = logits.argmax(1)
    gaps = logits.gather(1, y[:, None]) - logits
    sizes = torch.linalg.vector_norm(weight[y][:, None] - weight, ord=1 if norm == "linf" else 2, dim=2)
    distance = torch.where(sizes > 0, gaps / sizes, torch.inf).amin(1)
    radius = certified_radius(network, x, y, norm=norm, largest=10.0, steps=40)
    torch.testing.assert_close(radius, distance, rtol=1e-5, atol=1e-9)
    lower, upper = ball_bounds(network, x, 0.1, norm=norm)
    size = torch.linalg.vector_norm(weight, ord=1 if norm == "linf" else 2, dim=1)
    torch.testing.assert_close(lower, logits - 0.1 * size, atol=1e-6, rtol=0)
    torch.testing.assert_close(upper, logits + 0.1 * size, atol=1e-6, rtol=0)


def test_a_network_in_the_plane_against_its_own_boundary():
    """Brute force: the distance along rays, on a grid so fine that the truth is known to a thousandth."""
    with seeded(3):
        network = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 2)).eval().double()
    x = points(6, 2, seed=5).double()
    y = network(x).argmax(1)
    angles = torch.linspace(0, 2 * math.pi, 2001, dtype=torch.float64)
    rays = torch.stack([angles.cos(), angles.sin()], 1)
    sizes = torch.linspace(0, 3, 1501, dtype=torch.float64)
    for sample, label, radius in zip(x, y, certified_radius(network, x, y, norm="l2", largest=3.0), strict=True):
        answers = network(sample + sizes[:, None, None] * rays).argmax(-1)
        wrong = (answers != label).any(1)
        true = float(sizes[wrong][0]) if bool(wrong.any()) else math.inf
        assert radius <= true
        assert radius >= 0.3 * min(true, 3.0)


def test_nothing_is_certified_where_the_answer_is_wrong():
    network, x = dense(), points(8, 4)
    y = network(x).argmax(1)
    radius = certified_radius(network, x, (y + 1) % 3, norm="l2", largest=1.0)
    assert radius.tolist() == [0.0] * 8
    assert bool((certified_radius(network, x, y, norm="l2", largest=1.0) > 0).all())
    assert certified_radius(network, x, y, norm="l2", largest=1e-5).tolist() == [1e-5] * 8


def test_refining_makes_it_larger_and_batches_change_nothing():
    network, x = dense(), points(6, 4)
    y = network(x).argmax(1)
    rough, fine = (certified_radius(network, x, y, norm="linf", largest=2.0, refine=units) for units in (0, 100))
    assert bool((fine >= rough).all())
    assert float(fine.sum()) > 1.1 * float(rough.sum())
    torch.testing.assert_close(
        fine, certified_radius(network, x, y, norm="linf", largest=2.0, refine=100, batch=1), rtol=1e-9, atol=0
    )


def test_the_promise_of_the_weights_is_exact_for_two_classes_and_a_lower_estimate():
    with seeded(0):
        line = nn.Linear(4, 2).double().eval()
        line.weight.data = torch.stack([line.weight.data[0], -line.weight.data[0]])
    x = points(10, 4).double()
    y = line(x).argmax(1)
    gap = (line.weight[0] - line.weight[1]).norm()
    true = (line(x)[:, 0] - line(x)[:, 1]).abs() / gap
    torch.testing.assert_close(lipschitz_radius(line, x, y), true.detach(), rtol=1e-4, atol=1e-9)
    network, x = dense(), points(10, 4)
    y = network(x).argmax(1)
    assert bool((lipschitz_radius(network, x, y) <= certified_radius(network, x, y, norm="l2", largest=9.0)).all())
    assert lipschitz_radius(network, x, (y + 1) % 3).tolist() == [0.0] * 10
    assert lipschitz_radius(nn.Sequential(nn.Linear(4, 3), nn.Threshold(0.5, 0)), x, y).tolist() == [0.0] * 10


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_where_every_sign_is_sure_the_tangent_is_all(norm):
    network, x = images(nn.MaxPool2d(2)).double(), points(1, 2, 8, 8).double()
    matrix = torch.autograd.functional.jacobian(network, x).reshape(3, -1)
    size = torch.linalg.vector_norm(matrix, ord=1 if norm == "linf" else 2, dim=1)
    lower, upper = ball_bounds(network, x, 1e-7, norm=norm)
    torch.testing.assert_close((upper - lower)[0] / 2e-7, size, rtol=1e-3, atol=0)


def test_a_deep_network_is_certified_by_its_tangent():
    with seeded(0):
        layers = [part for _ in range(10) for part in (nn.Linear(24, 24), nn.ReLU())]
        network = nn.Sequential(*layers, nn.Linear(24, 3)).eval()
        for weight in network.parameters():
            weight.data *= 2.0
    x = points(4, 24)
    y = network(x).argmax(1)
    rough, fine = (certified_radius(network, x, y, norm="l2", largest=9.0, refine=units) for units in (0, 1000))
    assert bool((fine > 100 * rough).all())
    assert bool((fine <= attack_distance(network, x, y, norm="l2", largest=9.0, bounds=None)).all())


@pytest.mark.parametrize(("sides", "stride"), [(2, 2), (3, 1), (3, 2), ((1, 3), (2, 1))])
def test_a_maximum_is_made_of_pairs(sides, stride):
    pool, x = nn.MaxPool2d(sides, stride), points(2, 3, 7, 7).double()
    steps = Steps(pool, (3, 7, 7))
    values = {steps.nodes[0]: x}
    for node in steps.nodes[1:]:
        parts = [values[part] for part in node.inputs]
        values[node] = parts[0] + parts[1] if node.kind == "sum" else node.function(parts[0])
    torch.testing.assert_close(values[steps.end], pool(x), rtol=0, atol=1e-12)
    lower, upper = ball_bounds(pool, x, 0.3, norm="linf", refine=0)
    torch.testing.assert_close(lower, pool(x - 0.3), rtol=0, atol=1e-9)
    torch.testing.assert_close(upper, pool(x + 0.3), rtol=0, atol=1e-9)


# --- soundness --------------------------------------------------------------------------------------------------------


KINDS = [nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.Softplus]


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 20),
    eps=st.floats(1e-12, 3.0),
    norm=st.sampled_from(["linf", "l2"]),
)
def test_no_point_of_the_ball_leaves_the_bounds(kind, seed, eps, norm):
    network, x = dense(kind, seed), 2 * points(5, 4, seed=seed)
    lower, upper = ball_bounds(network, x, eps, norm=norm)
    network.double()
    for trial in range(40):
        output = network(in_ball(x, eps, norm, trial)).detach()
        assert bool(((lower <= output) & (output <= upper)).all())


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("eps", [1e-9, 0.01, 0.3])
@pytest.mark.parametrize(
    "pool", [nn.AvgPool2d(2), nn.MaxPool2d(2), nn.MaxPool2d(3, 1), nn.AdaptiveAvgPool2d(1)], ids=str
)
def test_images_stay_within_the_bounds(pool, eps, norm):
    network, x = images(pool), points(3, 2, 8, 8)
    for refine in (0, 2000):
        lower, upper = ball_bounds(network.float(), x, eps, norm=norm, refine=refine)
        wide = network.double()
        for trial in range(30):
            output = wide(in_ball(x, eps, norm, trial)).detach()
            assert bool(((lower <= output) & (output <= upper)).all())
        if eps == 1e-9:
            assert float((upper - lower).max()) < 1e-6


@pytest.mark.parametrize("wrap", [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm])
def test_layers_that_compute_their_weights_stay_within_the_bounds(wrap):
    with seeded(0):
        network = nn.Sequential(wrap(nn.Linear(4, 12)), nn.ReLU(), wrap(nn.Linear(12, 3))).eval()
    x = points(5, 4)
    lower, upper = ball_bounds(network, x, 0.5, norm="linf", refine=0)
    network.double()
    for trial in range(100):
        output = network(in_ball(x, 0.5, "linf", trial)).detach()
        assert bool(((lower <= output) & (output <= upper)).all())


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_rounding_that_the_tangent_carries_stays_within_the_bounds(norm, monkeypatch):
    network, x = images(nn.MaxPool2d(2)), points(2, 2, 8, 8)
    free = ball_bounds(network, x, 0.05, norm=norm)
    monkeypatch.setattr(tangent, "_GROWN", -1.0)  # at every node that all goes through
    assert len(Relaxation(network, (2, 8, 8)).tangents(x, norm)[0].cuts) > 5
    lower, upper = ball_bounds(network, x, 0.05, norm=norm)
    torch.testing.assert_close(torch.stack([lower, upper]), torch.stack(free), rtol=1e-6, atol=1e-9)
    network.double()
    for trial in range(30):
        output = network(in_ball(x, 0.05, norm, trial)).detach()
        assert bool(((lower <= output) & (output <= upper)).all())


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("kind", [nn.ReLU, nn.GELU])
def test_certified_is_below_attacked(norm, kind):
    network, x = dense(kind), points(24, 4)
    y = network(x).argmax(1)
    certified = certified_radius(network, x, y, norm=norm, largest=4.0)
    attacked = attack_distance(network, x, y, norm=norm, largest=4.0, bounds=None)
    assert bool((certified <= attacked).all())
    reached = attacked.isfinite()
    assert float((certified[reached] / attacked[reached]).median()) > 0.5


@pytest.mark.parametrize("kind", BENDS, ids=lambda kind: kind.__name__)
def test_bends_are_no_smaller_than_the_second_derivative(kind):
    x = torch.linspace(-12, 12, 100_001, dtype=torch.float64, requires_grad=True)
    for module in [kind(), *([nn.GELU(approximate="tanh")] if kind is nn.GELU else [])]:
        (first,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        assert float(second.abs().max()) <= BENDS[kind]


def test_networks_of_the_zoo_and_normalised_models():
    for name, options in (("lenet", {}), ("resnet20", {}), ("fc2", {})):
        with seeded(0):
            network = declare(build(name, **options), input_size=(3, 32, 32), mean=(0.5,) * 3, std=(0.25,) * 3).eval()
        x = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        lower, upper = ball_bounds(network, x, 1e-6, norm="linf", refine=0)
        output = network(x).double().detach()
        assert bool(((lower - 1e-4 <= output) & (output <= upper + 1e-4)).all())


# --- bad input --------------------------------------------------------------------------------------------------------


def test_what_has_no_rule_is_refused():
    class Squares(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x**2

    for module, words in (
        (nn.Softmax(-1), "Softmax must have a rule"),
        (Squares(), "the operation 'pow' in Squares must have a rule"),
        (nn.Softplus(beta=2), "Softplus must have beta 1, got 2"),
        (nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.MaxPool2d(2, padding=1)), "MaxPool2d must have no padding"),
    ):
        with pytest.raises(TypeError, match=words):
            ball_bounds(module, torch.zeros(1, 4), 0.1, norm="l2")
    with pytest.raises(TypeError, match="must run on one sample of"):
        certified_radius(nn.Conv2d(1, 2, 5), torch.zeros(1, 4), torch.zeros(1).long(), norm="l2", largest=1.0)
    with pytest.warns(FutureWarning), pytest.raises(TypeError, match="must have no forward hooks"):
        ball_bounds(nn.utils.weight_norm(nn.Linear(4, 3)), torch.zeros(1, 4), 0.1, norm="l2")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "l1"}, "norm"),
        ({"largest": 0.0}, "largest must be positive"),
        ({"largest": math.inf}, "largest must be positive"),
        ({"steps": 0}, "steps and batch must be at least 1"),
    ],
)
def test_wrong_arguments_are_refused(options, message):
    arguments = {"norm": "l2", "largest": 1.0} | options
    with pytest.raises(ValueError, match=message):
        certified_radius(dense(), torch.zeros(2, 4), torch.zeros(2, dtype=torch.long), **arguments)
    with pytest.raises(ValueError, match="eps must be finite and not negative"):
        ball_bounds(dense(), torch.zeros(2, 4), -1.0, norm="l2")
