from __future__ import annotations

import math

import pytest
import scipy.optimize
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lisse.maths.margin import competing_margins, margin_distance


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def linear(weights: torch.Tensor, bias: torch.Tensor, x: torch.Tensor, order: float = 2.0) -> torch.Tensor:
    """Distances of a linear classifier ``[c, d]`` at points ``[n, d]``, from margins and gradients of margins."""
    logits = x @ weights.T + bias
    classes = logits.argmax(1)
    gradients = torch.stack(
        [
            torch.stack([weights[y] - weights[k] for k in range(len(weights)) if k != y]).norm(dim=1, p=order)
            for y in classes.tolist()
        ]
    )
    return margin_distance(competing_margins(logits, classes), gradients)


def test_margins_by_hand():
    logits = torch.tensor([[1.0, 3.0, 2.0], [5.0, 0.0, -1.0]])
    assert competing_margins(logits, torch.tensor([1, 0])).tolist() == [[2, 1], [5, 6]]
    assert competing_margins(logits, torch.tensor([0, 2])).tolist() == [[-2, -1], [-6, -1]]


def test_the_nearest_boundary_is_not_the_runner_ups():
    # class 1 is behind by 1 but its margin hardly moves; class 2 is behind by 2 and turns quickly
    assert margin_distance(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.1, 4.0]])).tolist() == [0.5]


def test_the_ends():
    margins = torch.tensor([[0.0, 3.0], [2.0, 4.0], [2.0, 4.0], [-1.0, 2.0]])
    norms = torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    assert margin_distance(margins, norms).tolist() == [0.0, math.inf, 4.0, -math.inf]


@settings(max_examples=40)
@given(st.integers(0, 1000), st.integers(2, 5), st.floats(0.01, 100), st.floats(-50, 50), st.sampled_from([1.0, 2.0]))
def test_temperature_and_shift_cancel(seed, classes, temperature, shift, order):
    weights, bias, x = normal(classes, 3, seed=seed), normal(classes, seed=seed + 1), normal(7, 3, seed=seed + 2)
    base = linear(weights, bias, x, order)
    # one direction and one number added to every logit, then all of them divided by a temperature
    moved = linear((weights + normal(3, seed=seed + 3)) / temperature, (bias + shift) / temperature, x, order)
    torch.testing.assert_close(moved, base, rtol=1e-8, atol=1e-8)
    assert (base >= 0).all()


@pytest.mark.parametrize("seed", range(5))
def test_a_linear_classifier_is_measured_exactly(seed):
    """The nearest point that is answered otherwise, by minimising the distance on each face (scipy's SLSQP)."""
    weights, bias, x = normal(4, 3, seed=seed), normal(4, seed=seed + 50), normal(3, 3, seed=seed + 90)
    for point, distance in zip(x, linear(weights, bias, x), strict=True):
        logits = weights @ point + bias
        y = int(logits.argmax())
        faces = []
        for k in set(range(4)) - {y}:
            normal_vector, offset = (weights[y] - weights[k]).numpy(), float(bias[y] - bias[k])
            solution = scipy.optimize.minimize(
                lambda z, point=point: ((z - point.numpy()) ** 2).sum(),
                point.numpy(),
                constraints={"type": "eq", "fun": lambda z, v=normal_vector, o=offset: v @ z + o},
                options={"ftol": 1e-14},
            )
            faces.append(solution.fun**0.5)
        assert float(distance) == pytest.approx(min(faces), rel=1e-5)


def test_the_dual_norm_measures_boxes():
    """A step of ε in every coordinate against the gradient's signs reaches the boundary where ε is the distance."""
    weights, bias, x = normal(2, 6), normal(2, seed=1), normal(5, 6, seed=2)
    distance = linear(weights, bias, x, order=1.0)
    logits = x @ weights.T + bias
    for point, epsilon, answer in zip(x, distance, logits.argmax(1).tolist(), strict=True):
        direction = torch.sign(weights[answer] - weights[1 - answer])
        moved = weights @ (point - epsilon * direction) + bias
        assert float(moved[0] - moved[1]) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: competing_margins(torch.ones(3), torch.zeros(3, dtype=torch.long)), r"logits must be \[n, c\]"),
        (lambda: competing_margins(torch.ones(3, 1), torch.zeros(3, dtype=torch.long)), "c at least 2"),
        (lambda: competing_margins(torch.ones(3, 2), torch.zeros(2, dtype=torch.long)), "one index per sample"),
        (lambda: competing_margins(torch.ones(3, 2), torch.zeros(3)), "one index per sample, got torch.float32"),
        (lambda: competing_margins(torch.ones(1, 2), torch.tensor([2])), "must lie in 0 … 1, got 2"),
        (lambda: competing_margins(torch.tensor([[1.0, math.nan]]), torch.tensor([0])), "logits must be finite"),
        (lambda: margin_distance(torch.ones(2, 3), torch.ones(2, 2)), r"must be \[n, c - 1\]"),
        (lambda: margin_distance(torch.ones(2, 3), -torch.ones(2, 3)), "gradient_norms must be at least 0"),
    ],
)
def test_bad_input(call, match):
    with pytest.raises(ValueError, match=match):
        call()
