import warnings

import numpy as np
import pytest
import torch
from torch.nn import functional

from lisse.data import generators
from lisse.maths.isometry import distortion, euclidean
from lisse.networks import zoo
from lisse.networks.isometric import LocallyIsometric, StackedIsometric, fit, isometric_loss

X = 0.5 * torch.randn(24, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(24) % 4


def gradient_sizes(module):
    return [float(p.grad.abs().sum()) if p.grad is not None else 0.0 for p in module.parameters()]


# --- LocallyIsometric -----------------------------------------------------------------------------------------------


def test_it_has_the_printed_architecture_and_the_names_of_the_zoo():
    network = LocallyIsometric(3, classes=2)
    shapes = [tuple(p.shape) for p in network.parameters() if p.ndim == 2]
    assert shapes == [(20, 3), (20, 20), (20, 20), (20, 20), (2, 20)]
    twin = zoo.build("isometry", features=3, width=20, classes=2)
    twin.load_state_dict(network.state_dict())
    assert torch.equal(twin(X.float()), network(X.float()))
    assert LocallyIsometric(784, (100,) * 4, 10).reach == 20.0
    assert LocallyIsometric(3, (5,), 2, activation="relu").reach == float("inf")
    linear = LocallyIsometric(3, (5, 7), 2, linear_end=True)
    assert linear.reach == float("inf")
    assert torch.allclose(linear.representation(X.float()), linear.blocks[1][0](linear.blocks[0](X.float())))
    assert LocallyIsometric(3, (5, 7), 2)(X.float().reshape(24, 3, 1)).shape == (24, 2)


def test_its_loss_is_made_of_its_parts():
    network = LocallyIsometric(3, (6, 5), 4).double()
    z, logits = network.representation(X), network(X)
    found = network.loss(X, Y, alpha=2.0, beta=3.0)
    assert torch.allclose(found.cross_entropy, functional.cross_entropy(logits, Y))
    assert torch.allclose(found.isometric, isometric_loss(X, z, Y))
    assert torch.allclose(found.total, 2 * found.cross_entropy + 3 * found.isometric)
    assert torch.allclose(network.loss(X, Y, all_pairs=True).isometric, isometric_loss(X, z))
    assert torch.allclose(network.loss(X, Y, groups=Y // 2).isometric, isometric_loss(X, z, Y // 2))
    assert torch.allclose(network.loss(X, Y, metric="cosine").isometric, isometric_loss(X, z, Y, metric="cosine"))
    assert torch.allclose(network.loss(X, Y, scaling="code").isometric, isometric_loss(X, z, Y, scaling="code"))
    assert torch.allclose(network.loss(X, Y, distances=euclidean(X)).isometric, found.isometric)
    assert float(network.loss(X, Y, beta=0.0).isometric) == 0.0
    other = LocallyIsometric(3, (6, 5), 4, on="logits").double()
    assert torch.allclose(other.loss(X, Y).isometric, isometric_loss(X, other(X), Y))
    x = X.clone().requires_grad_()
    slopes = [torch.autograd.grad(network.loss(x, Y, fixed_input=fixed).isometric, x)[0] for fixed in (True, False)]
    assert not torch.allclose(*slopes)


def test_seed_and_start():
    assert torch.equal(LocallyIsometric(3, classes=2).head.weight, LocallyIsometric(3, classes=2, seed=0).head.weight)
    assert not torch.equal(
        LocallyIsometric(3, classes=2).head.weight, LocallyIsometric(3, classes=2, seed=1).head.weight
    )
    state = torch.random.get_rng_state()
    turned = LocallyIsometric(3, classes=2, start="orthogonal")
    assert torch.equal(torch.random.get_rng_state(), state)
    weight = turned.blocks[2][0].weight
    assert torch.allclose(weight @ weight.T, torch.eye(20), atol=1e-5)


def test_data_beyond_the_reach_of_tanh_are_told_once():
    network = LocallyIsometric(3, (4,), 2).double()
    with pytest.warns(UserWarning, match="4 tanh units reach 4 at most"):
        network.loss(10 * X, Y % 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network.loss(10 * X, Y % 2)
        LocallyIsometric(3, classes=2).double().loss(X / 10, Y % 2)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "match"),
    [
        ((3,), {}, TypeError, "classes must be given"),
        ((0, (20,), 2), {}, ValueError, "in_dim must be whole"),
        ((3, (), 2), {}, ValueError, "at least one width"),
        ((3, (2.5,), 2), {}, ValueError, "hidden must be whole"),
        ((3, (5,), 2), {"activation": "gelu"}, ValueError, "activation must be 'tanh' or 'relu'"),
        ((3, (5,), 2), {"start": "zero"}, ValueError, "start must be"),
        ((3, (5,), 2), {"on": "input"}, ValueError, "on must be 'hidden' or 'logits'"),
    ],
)
def test_bad_networks(arguments, options, error, match):
    with pytest.raises(error, match=match):
        LocallyIsometric(*arguments, **options)


# --- StackedIsometric -----------------------------------------------------------------------------------------------


def stack(**options):
    stages = [
        LocallyIsometric(3, (6,), 2, seed=1),
        LocallyIsometric(6, (6,), 3, seed=2),
        LocallyIsometric(6, (6,), 4, seed=3),
    ]
    return StackedIsometric(stages, **options).double()


@pytest.mark.parametrize(
    ("depth", "moved"), [(0, (False, False)), (1, (False, True)), (2, (True, True)), (None, (True, True))]
)
def test_the_last_loss_reaches_as_far_as_grad_depth_says(depth, moved):
    network = stack(grad_depth=depth)
    network.losses(X, [Y // 2, Y % 3, Y])[2].total.backward()
    for k in (0, 1):
        assert any(size > 0 for size in gradient_sizes(network.stages[k])) == moved[k]
    assert all(size > 0 for size in gradient_sizes(network.stages[2]))


def test_detached_stages_get_no_gradient_from_the_output():
    network = stack()
    network(X).sum().backward()
    assert all(size == 0 for k in (0, 1) for size in gradient_sizes(network.stages[k]))


def test_values_do_not_depend_on_grad_depth_and_evaluation_sees_the_whole():
    outputs = [stack(grad_depth=depth)(X) for depth in (0, 1, None)]
    assert torch.allclose(outputs[0], outputs[1])
    assert torch.allclose(outputs[0], outputs[2])
    network = stack().eval()
    x = X.clone().requires_grad_()
    (found,) = torch.autograd.grad(network(x).sum(), x)
    (expected,) = torch.autograd.grad(stack(grad_depth=None)(x).sum(), x)
    assert torch.allclose(found, expected)


def test_a_stage_keeps_the_distances_of_its_own_input():
    network = stack(grad_depth=None)
    first, second, third = network.representations(X)
    found = network.losses(X, [Y // 2, Y % 3, Y], beta=2.0, alpha=3.0)
    assert torch.allclose(found[0].isometric, isometric_loss(X, first, Y // 2))
    assert torch.allclose(found[2].isometric, isometric_loss(second, third, Y))
    assert torch.allclose(found[2].total, 3 * found[2].cross_entropy + 2 * found[2].isometric)
    given = network.losses(X, [Y // 2, Y % 3, Y], distances=euclidean(X))
    assert torch.allclose(given[0].isometric, found[0].isometric)
    assert float(network.losses(X, [Y // 2, Y % 3, Y], beta=0.0)[1].isometric) == 0.0


def test_input_distances_are_trained_where_the_gradient_goes_on():
    def slope(**options):
        network = stack(grad_depth=1)
        network.losses(X, [Y // 2, Y % 3, Y], alpha=0.0, **options)[1].total.backward()
        return network.stages[0].blocks[0][0].weight.grad

    assert not torch.allclose(slope(), slope(fixed_input=True))


def test_a_shared_classifier_reads_every_stage():
    network = stack(classifier="shared")
    hidden = network.representations(X)
    for found, layer in zip(network.logits(X), hidden, strict=True):
        assert found.shape == (24, 4)
        assert torch.allclose(found, network.shared(layer))
    assert [tuple(found.shape) for found in stack().logits(X)] == [(24, 2), (24, 3), (24, 4)]
    assert torch.equal(network.logits(X)[2], network(X))
    assert not network.stages[0].head.weight.requires_grad


def test_bad_stacks():
    with pytest.raises(TypeError, match="stages must be LocallyIsometric"):
        StackedIsometric([torch.nn.Linear(2, 2)])
    with pytest.raises(TypeError, match="got none"):
        StackedIsometric([])
    with pytest.raises(ValueError, match="stage 1 must take the 6 numbers of stage 0, got in_dim=5"):
        StackedIsometric([LocallyIsometric(3, (6,), 2), LocallyIsometric(5, (6,), 2)])
    with pytest.raises(ValueError, match="grad_depth must be"):
        stack(grad_depth=-1)
    with pytest.raises(ValueError, match="classifier must be"):
        stack(classifier="none")
    with pytest.raises(ValueError, match="one width, got \\[6, 7\\]"):
        StackedIsometric([LocallyIsometric(3, (6,), 2), LocallyIsometric(6, (7,), 2)], classifier="shared")
    with pytest.raises(ValueError, match="labels for each of 3 stages, got 1"):
        stack().losses(X, [Y])


# --- training -------------------------------------------------------------------------------------------------------


def test_fit_keeps_rings_that_plain_training_tears():
    data = generators.rings(60, seed=0)
    x, y = data.inputs.double(), data.targets
    errors = {}
    for beta in (0.0, 1.0):
        network = LocallyIsometric(3, classes=2, seed=0).double()
        seen = []
        losses = fit(network, x, y, epochs=300, beta=beta, watch=lambda epoch, _, seen=seen: seen.append(epoch))
        assert (len(losses), seen[-1]) == (300, 300)
        assert losses[-1] < losses[0]
        assert not network.training
        with torch.no_grad():
            errors[beta] = distortion(euclidean(x), euclidean(network.representation(x)), y[:, None] == y[None]).error
    assert errors[1.0] < 0.25 < errors[0.0]


def test_fit_of_a_stack_moves_every_stage():
    network = stack(classifier="shared")
    before = [p.clone() for p in network.parameters() if p.requires_grad]
    fit(network, X, [Y // 2, Y % 3, Y], epochs=3, beta=0.5)
    after = [p for p in network.parameters() if p.requires_grad]
    assert all(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    with pytest.raises(ValueError, match="all_pairs must be false"):
        fit(network, X, [Y, Y, Y], epochs=1, all_pairs=True)
    with pytest.raises(ValueError, match="epochs must be at least 0"):
        fit(network, X, [Y, Y, Y], epochs=-1)


def test_fit_stops_where_the_loss_is_not_finite():
    network = LocallyIsometric(3, (4,), 2).double()
    network.head.weight.data.fill_(float("inf"))
    losses = fit(network, X, Y % 2, epochs=5, beta=0.0)
    assert len(losses) == 1
    assert not np.isfinite(losses[-1])


# --- projection -----------------------------------------------------------------------------------------------------
