from __future__ import annotations

import math

import pytest
import torch

from lisse.maths.diffeomorphism import Diffeomorphism, deform
from lisse_experiments.diffeomorphisms.adversary import worst_field


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(n: int = 2, c: int = 3, h: int = 12, w: int = 9, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    drawn = torch.rand(n, c, h, w, generator=generator(5), dtype=torch.float64)
    return (drawn * 255).to(dtype) if dtype == torch.uint8 else drawn.to(dtype)


def test_the_worst_field_of_a_linear_function_is_its_gradients_direction():
    # For a displacement of nearly nothing, <g, τx> is linear in the coefficients: the maximum over the ball is known.
    ensemble = Diffeomorphism((16, 16), 3)
    line = torch.linspace(0, 1, 16, dtype=torch.float64)
    x = (line * line[:, None] + line**2)[None, None].repeat(2, 1, 1, 1)
    weights = torch.randn(2, 1, 16, 16, generator=generator(1), dtype=torch.float64)
    temperature = 1e-12

    def objective(moved):
        return (weights * moved).flatten(1).sum(1)

    z = torch.full((2, 2, 4), 1e-6, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(objective(deform(x, ensemble.whitened_field(z, temperature))).sum(), z)
    expected = objective(x) + slope.flatten(1).norm(dim=1) * 8**0.5
    found = worst_field(objective, x, ensemble, temperature, steps=200, step=0.2, generator=generator(2))
    gain = (found.value - objective(x)) / (expected - objective(x))
    # bilinear images have kinks at the pixels, so the slope at one side is not quite that at the other
    assert (gain > 0.5).all()
    assert (found.value > found.initial).all()
    torch.testing.assert_close(objective(deform(x, found.field)), found.value)
    assert found.bijective.all()


def test_the_worst_field_is_no_larger_than_a_typical_one_and_beats_it():
    ensemble = Diffeomorphism((16, 16), 3)
    temperature = ensemble.temperature(1.0)
    x = images(4, 3, 16, 16, dtype=torch.float32)

    def change(moved):
        return (moved - x).flatten(1).square().sum(1)

    found = worst_field(change, x, ensemble, temperature, steps=15, generator=generator())
    assert (found.field.gradient_norm() <= ensemble.mean_gradient_norm(temperature) * 1.0001).all()
    random = torch.stack(
        [change(deform(x, ensemble.sample(4, temperature, generator=generator(s)))) for s in range(20)]
    )
    assert (found.value > random.mean(0)).all()
    assert (found.value > found.initial).all()
    assert found.steps == 15
    again = worst_field(change, x, ensemble, temperature, steps=15, generator=generator())
    assert torch.equal(again.value, found.value)
    zero = worst_field(change, x, ensemble, temperature, steps=1, start=torch.zeros(4, 2, 4), step=0.1)
    assert (zero.initial == 0).all()


def worst(objective=lambda x: x.sum((1, 2, 3)), x=None, **options):
    return worst_field(objective, images() if x is None else x, Diffeomorphism((12, 9), 3), 1e-3, **options)


def test_the_worst_field_where_most_fold_is_told_of():
    ensemble = Diffeomorphism((12, 9), 3)
    hot = ensemble.temperature(4.0)
    with pytest.warns(UserWarning, match=r"worst_field: \d+% of the fields at cut 3, δ = 4 px on 12 × 9 pixels fold"):
        worst_field(lambda moved: moved.sum((1, 2, 3)), images(2, 1, 12, 9), ensemble, hot, steps=1)


def test_an_objective_without_a_slope_stays_where_it_began():
    found = worst(objective=lambda x: 0 * x.sum((1, 2, 3)) + 3, generator=generator())
    assert found.value.tolist() == found.initial.tolist() == [3, 3]


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: worst(start=torch.zeros(3)), ValueError, r"start must be \[2, 2, 4\], got shape \[3\]"),
        (lambda: worst(interpolation="nearest"), ValueError, "interpolation must be differentiable"),
        (lambda: worst(steps=0), ValueError, "steps must be positive, got 0"),
        (lambda: worst(objective=lambda x: x.sum()), ValueError, r"one value per image \[2\]"),
        (lambda: worst(objective=lambda x: x.sum((1, 2, 3)) * math.nan), ValueError, "objective must be finite"),
        (lambda: worst(objective=lambda x: torch.ones(2)), ValueError, "objective must depend on the images"),
        (lambda: worst(objective=lambda x: torch.ones(2, requires_grad=True)), ValueError, "must depend on the images"),
        (lambda: worst(x=images(dtype=torch.uint8)), TypeError, "images must be floating point"),
    ],
)  # fmt: skip
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()
