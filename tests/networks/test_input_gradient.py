"""Penalties on slopes by the input: closed forms of linear networks, gradcheck, errors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lisse.networks.input_gradient import gradient_penalty, jacobian_penalty


def linear(c: int = 4, d: int = 6) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(d, c).double()


def points(n: int = 5, d: int = 6):
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    return x, torch.arange(n) % 4


def test_of_a_linear_classifier():
    """The gradient of the cross-entropy is Wᵀ(p - e_y), the Jacobian W."""
    model, (x, y) = linear(), points()
    logits = model(x)
    residues = logits.softmax(1) - torch.nn.functional.one_hot(y, 4)
    expected = (residues @ model.weight).square().sum(1).mean()
    assert float(gradient_penalty(x, logits, y)) == pytest.approx(float(expected), rel=1e-12)
    torch.manual_seed(0)
    estimate = jacobian_penalty(x, logits, projections=4000)
    # Each draw is c ‖Wᵀv‖², between c times the ends of W's spectrum: its spread is below their range.
    ends = 4 * torch.linalg.svdvals(model.weight.detach()).square()
    spread = float(ends.max() - ends.min()) / (4000 * len(x)) ** 0.5
    assert float(estimate) == pytest.approx(float(model.weight.square().sum()), abs=4 * spread)


def test_gradients_by_the_weights():
    x, y = points(3)

    def gradient(weight, bias):
        return gradient_penalty(x, torch.tanh(x @ weight.T + bias), y)

    def jacobian(weight, bias):
        torch.manual_seed(0)
        return jacobian_penalty(x, torch.tanh(x @ weight.T + bias), projections=2)

    weights = tuple(weight.detach().requires_grad_() for weight in linear().parameters())
    assert torch.autograd.gradcheck(gradient, weights)
    assert torch.autograd.gradcheck(jacobian, weights)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda x, z, y: gradient_penalty(x.detach(), z, y), "gradient_penalty: x must require gradients"),
        (lambda x, z, y: gradient_penalty(x.clone(), z, y), "gradient_penalty: logits must be computed from x"),
        (lambda x, z, y: gradient_penalty(x, z, None), "gradient_penalty: y must be a class for each of the 5 .* none"),
        (lambda x, z, y: gradient_penalty(x, z, y.double()), "gradient_penalty: y must be .* got torch.float64"),
        (lambda x, z, y: jacobian_penalty(x, z, projections=0), "jacobian_penalty: projections must be a whole number"),
    ],
)
def test_bad_input(call, match):
    x, y = points()
    with pytest.raises(ValueError, match=f"^{match}"):
        call(x, linear()(x), y)
