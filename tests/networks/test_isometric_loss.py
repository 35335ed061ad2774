import functools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from isometric_reference import ENTROPY, GLOBAL, LABELS, LOCAL, B, V, W, X, jacobians, phi

from lisse.maths.bounds import entropy_gradient, sample_gradient_norms, translation_gradient_norm
from lisse.maths.isometry import (
    euclidean,
    gap_sums,
    geodesic,
    isometric_gradient,
    printed_gradient,
    translation_gradient,
)
from lisse.networks.isometric import isometric_loss

seeds = st.integers(0, 9999)


def naive(x, z, groups=None, factor=1.0):
    """The definition, in loops."""
    n, total = len(x), 0.0
    for i in range(n):
        for j in range(n):
            if groups is None or groups[i] == groups[j]:
                total += float(((x[i] - x[j]).norm() - factor * (z[i] - z[j]).norm()) ** 2)
    return total / n**2


def draw(seed, n=9, d=3, m=4, k=3):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    z = torch.randn(n, m, generator=generator, dtype=torch.float64)
    return x, z, torch.randint(k, (n,), generator=generator)


# --- Reference values of the loss -----------------------------------------------------------------------------------


def test_the_reference_numbers():
    assert float(isometric_loss(X, phi(X), LABELS)) == pytest.approx(LOCAL, abs=1e-11)
    assert float(isometric_loss(X, phi(X))) == pytest.approx(GLOBAL, abs=1e-11)
    logits = phi(X) @ V.T
    entropy = torch.nn.functional.cross_entropy(logits, LABELS)
    assert float(entropy) == pytest.approx(ENTROPY, abs=1e-11)


@pytest.mark.parametrize("groups", [LABELS, None])
@pytest.mark.parametrize("fixed", [True, False])
def test_autograd_is_the_analytic_gradient_and_the_finite_difference(groups, fixed):
    x = X.clone().requires_grad_()
    (found,) = torch.autograd.grad(isometric_loss(x, phi(x), groups, fixed_input=fixed), x)
    expected = isometric_gradient(X, phi(X), jacobians(X), groups, fixed_input=fixed)
    assert torch.allclose(found, expected, atol=1e-13)
    h = 1e-6
    for k, j in ((0, 1), (4, 2)):
        ends = []
        for sign in (1, -1):
            moved = X.clone()
            moved[k, j] += sign * h
            ends.append(float(isometric_loss(X if fixed else moved, phi(moved), groups)))
        assert float(found[k, j]) == pytest.approx((ends[0] - ends[1]) / (2 * h), abs=1e-8)


def test_a_common_translation_is_twice_the_printed_equation_13():
    x = X.clone().requires_grad_()
    (found,) = torch.autograd.grad(isometric_loss(x, phi(x), LABELS, fixed_input=False), x)
    printed = printed_gradient(X, phi(X), jacobians(X), LABELS)
    assert torch.allclose(found.sum(0), 2 * printed, atol=1e-13)
    assert torch.allclose(translation_gradient(X, phi(X), jacobians(X), LABELS), 2 * printed, atol=1e-13)
    assert torch.allclose(printed_gradient(X, phi(X), jacobians(X), LABELS, beta=3.0), 3 * printed)
    assert float(printed.norm()) > 1e-3


# --- Reference values of the gradient -------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(seeds)
def test_it_is_the_definition_for_any_partition(seed):
    x, z, groups = draw(seed)
    assert float(isometric_loss(x, z, groups)) == pytest.approx(naive(x, z, groups), rel=1e-10)
    assert float(isometric_loss(x, z)) == pytest.approx(naive(x, z), rel=1e-10)
    code = float(isometric_loss(x, z, groups, scaling="code"))
    assert code == pytest.approx(naive(x, z, groups, 10.0), rel=1e-10)


@settings(max_examples=25, deadline=None)
@given(seeds)
def test_invariances_and_order(seed):
    x, z, groups = draw(seed)
    loss = float(isometric_loss(x, z, groups))
    turn, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))
    order = torch.randperm(9, generator=torch.Generator().manual_seed(seed))
    assert float(isometric_loss(x @ turn.T + 5.0, z - 3.0, groups)) == pytest.approx(loss, rel=1e-9)
    assert float(isometric_loss(x[order], z[order], groups[order])) == pytest.approx(loss, rel=1e-10)
    assert float(isometric_loss(x, z, 7 - 2 * groups)) == pytest.approx(loss, rel=1e-12)
    assert float(isometric_loss(3 * x, 3 * z, groups)) == pytest.approx(9 * loss, rel=1e-10)
    assert loss <= float(isometric_loss(x, z)) + 1e-12
    parts = sum(
        float(isometric_loss(x[groups == k], z[groups == k])) * int((groups == k).sum()) ** 2
        for k in range(3)
        if (groups == k).any()
    )
    assert loss == pytest.approx(parts / 81, rel=1e-10, abs=1e-15)


@settings(max_examples=20, deadline=None)
@given(seeds)
def test_a_rigid_embedding_has_no_loss_and_stretches_no_pair(seed):
    x, _, groups = draw(seed)
    turn, _ = torch.linalg.qr(torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))
    z = x @ turn.T + 2.0
    assert float(isometric_loss(x, z)) == pytest.approx(0.0, abs=1e-20)
    assert float(isometric_loss(x, z, groups)) == pytest.approx(0.0, abs=1e-20)
    assert float((euclidean(z) - euclidean(x)).max()) <= 1e-12  # 1-Lipschitz on pairs of samples


@settings(max_examples=20, deadline=None)
@given(seeds)
def test_an_affine_map_has_no_gradient_under_translation(seed):
    x, _, groups = draw(seed)
    weight = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    given_ = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(isometric_loss(given_, given_ @ weight.T, groups, fixed_input=False), given_)
    assert torch.allclose(found.sum(0), torch.zeros(3, dtype=torch.float64), atol=1e-12)


@settings(max_examples=20, deadline=None)
@given(seeds, st.sampled_from([LABELS, None]))
def test_bounds_hold(seed, groups):
    generator = torch.Generator().manual_seed(seed)
    x = X + 0.3 * torch.randn(X.shape, generator=generator, dtype=torch.float64)
    slopes = jacobians(x)
    steep = torch.linalg.matrix_norm(slopes, ord=2)
    for fixed in (True, False):
        found = isometric_gradient(x, phi(x), slopes, groups, fixed_input=fixed).norm(dim=1)
        assert bool((found <= sample_gradient_norms(x, phi(x), steep, groups, fixed_input=fixed) + 1e-14).all())
    k = float(steep.max())
    bound = translation_gradient_norm(x, phi(x), k, groups, local_norm=k)
    assert bound.valid
    assert float(translation_gradient(x, phi(x), slopes, groups).norm()) <= bound.value
    sums = gap_sums(x, phi(x), groups)
    assert bound.value == pytest.approx(8 * k / 36 * float(sums.sum()) / 2, rel=1e-12)


def test_bounds_say_what_they_are():
    k = float(torch.linalg.matrix_norm(jacobians(X), ord=2).max())
    printed = translation_gradient_norm(X, phi(X), k, LABELS, variant="printed")
    assert (printed.kind, printed.valid) == ("heuristic", False)
    assert not translation_gradient_norm(X, phi(X), k / 2, LABELS, local_norm=k).valid
    assert translation_gradient_norm(X, phi(X), k, LABELS, beta=2.0).value == pytest.approx(
        2 * translation_gradient_norm(X, phi(X), k, LABELS).value
    )
    assert entropy_gradient(0.5, 3.0, alpha=2.0).value == pytest.approx(3.0)
    assert entropy_gradient(0.5, 1.0, variant="printed").kind == "heuristic"
    assert not entropy_gradient(0.5, 1.0, local_norm=2.0).valid
    with pytest.raises(ValueError, match="k must be finite"):
        sample_gradient_norms(X, phi(X), -1.0)


def test_the_printed_bound_14_is_exceeded():
    # Two pairs whose gaps have opposite signs and the same direction: the printed vector vanishes, the gradient not.
    x = torch.tensor([[0.0], [1.0], [10.0], [11.0]], dtype=torch.float64)
    z = torch.tensor([[0.0], [2.0], [10.0], [10.0 + 1e-9]], dtype=torch.float64)
    slopes = torch.tensor([0.5, 3.0, 1.0, 1.0], dtype=torch.float64)[:, None, None]
    groups = torch.tensor([0, 0, 1, 1])
    found = float(translation_gradient(x, z, slopes, groups).norm())
    assert found > translation_gradient_norm(x, z, 3.0, groups, variant="printed").value
    assert found <= translation_gradient_norm(x, z, 3.0, groups).value


# --- gradients, chunks, metrics -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {}, {"groups": LABELS}, {"groups": LABELS, "chunk": 2}, {"chunk": 4}, {"metric": "cosine"},
        {"metric": "cosine", "chunk": 4}, {"metric": functools.partial(geodesic, neighbours=3)},
        {"scaling": "code"}, {"metric": "cosine", "output_metric": "euclidean"},
        {"metric": lambda p: (p[:, None] - p[None]).abs().sum(2)},
    ],
)  # fmt: skip
def test_gradcheck(options):
    groups = options.pop("groups", None)
    x = X.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: isometric_loss(x, phi(x), groups, fixed_input=False, **options), (x,))
    assert torch.autograd.gradcheck(lambda x: isometric_loss(X, phi(x), groups, **options), (x,))


def test_second_derivatives():
    x = X.clone().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: isometric_loss(x, phi(x), LABELS, fixed_input=False), (x,))


def test_chunks_large_groups_and_given_distances_change_nothing():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 5, generator=generator, dtype=torch.float64)
    z = torch.randn(300, 7, generator=generator, dtype=torch.float64).requires_grad_()
    for groups in (None, torch.arange(300) % 2, torch.arange(300) % 100, torch.arange(300) % 299):
        expected = isometric_loss(x, z, groups, metric=lambda p: euclidean(p))  # in plain steps
        (slope,) = torch.autograd.grad(expected, z)
        for options in ({}, {"chunk": 64}, {"chunk": 1000}):
            for given_, metric in ((x, "euclidean"), (euclidean(x), "precomputed")):
                found = isometric_loss(given_, z, groups, metric=metric, **options)
                assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-9)
                assert torch.allclose(torch.autograd.grad(found, z)[0], slope, atol=1e-12)


def test_distances_given_can_have_a_gradient():
    distances = euclidean(X).requires_grad_()
    (found,) = torch.autograd.grad(
        isometric_loss(distances, phi(X), LABELS, metric="precomputed", fixed_input=False), distances
    )
    same = (LABELS[:, None] == LABELS[None]).double()
    assert torch.allclose(found, 2 / 36 * same * (euclidean(X) - euclidean(phi(X))), atol=1e-14)


def test_a_fixed_input_gets_no_gradient():
    x, z = X.clone().requires_grad_(), phi(X).requires_grad_()
    isometric_loss(x, z, LABELS).backward()
    assert x.grad is None
    assert float(z.grad.abs().sum()) > 0


def test_points_that_coincide_have_finite_gradients():
    x = torch.zeros(4, 2, dtype=torch.float64)
    z = torch.zeros(4, 3, dtype=torch.float64).requires_grad_()
    isometric_loss(x, z).backward()
    assert torch.equal(z.grad, torch.zeros_like(z))
    x[0] = 1.0
    z.grad = None
    loss = isometric_loss(x, z)
    loss.backward()
    assert bool(torch.isfinite(z.grad).all())
    assert float(loss.detach()) == pytest.approx(6 * 2 / 16)


def test_single_samples_count_nothing():
    x, z, _ = draw(3)
    lone = torch.arange(9)
    z.requires_grad_()
    loss = isometric_loss(x, z, lone)
    loss.backward()
    assert float(loss) == 0.0
    assert torch.equal(z.grad, torch.zeros_like(z))
    one = isometric_loss(x[:1], z[:1])
    assert float(one) == 0.0
    one.backward()


def test_kinds_of_input():
    found = isometric_loss(X.numpy(), phi(X).numpy(), LABELS.numpy())
    assert found.dtype == torch.float64
    assert float(found) == pytest.approx(LOCAL, abs=1e-11)
    assert isometric_loss(X.float(), phi(X).float(), [0, 0, 0, 1, 1, 1]).dtype == torch.float32
    assert float(isometric_loss(X.float(), phi(X).float(), LABELS)) == pytest.approx(LOCAL, rel=1e-5)
    assert isometric_loss(X.half(), phi(X).bfloat16()).dtype == torch.float32
    images = torch.arange(2 * 3 * 4 * 4, dtype=torch.uint8).reshape(2, 3, 4, 4)
    assert float(isometric_loss(images, images.float().flatten(1))) == pytest.approx(0.0, abs=1e-9)


def test_geodesic_needs_paths_within_groups_only():
    x = torch.cat([torch.arange(12.0)[:, None], 1000 + torch.arange(12.0)[:, None]]).double()
    groups = torch.arange(24) // 12
    near = functools.partial(geodesic, neighbours=2)
    assert float(isometric_loss(x, x, groups, metric=near)) == 0.0
    with pytest.raises(ValueError, match="no path joins"):
        isometric_loss(x, x, metric=near)


def test_gradients_on_long_and_thin_data_are_those_of_differences():
    # Points far from the origin: what is subtracted must not swallow what is left.
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 3, generator=generator, dtype=torch.float64)
    z = (1e6 + torch.randn(20, 3, generator=generator, dtype=torch.float64)).requires_grad_()
    (found,) = torch.autograd.grad(isometric_loss(x, z), z)
    near = (z.detach() - 1e6).requires_grad_()
    (expected,) = torch.autograd.grad(isometric_loss(x, near), near)
    assert torch.allclose(found, expected, atol=1e-8)


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "options", "match"),
    [
        ((X, phi(X)[:4]), {}, "same samples, got 6 and 4"),
        ((X, phi(X), LABELS[:5]), {}, "one label for each of 6 samples, got shape \\[5\\]"),
        ((X, phi(X), torch.full((6,), math.nan)), {}, "groups must be labels"),
        ((X * math.nan, phi(X)), {}, "x must be finite"),
        ((X, phi(X) * math.inf), {}, "z must be finite"),
        ((X, phi(X)), {"metric": "manhattan"}, "metric must be euclidean, cosine, geodesic, precomputed or a function"),
        ((X, phi(X)), {"output_metric": "precomputed"}, "output_metric must be made from z"),
        ((X, phi(X)), {"metric": "precomputed"}, "x must be the distances \\[6, 6\\]"),
        ((X, phi(X)), {"metric": lambda p: p}, "metric must give distances \\[6, 6\\]"),
        ((X, phi(X)), {"scaling": "none"}, "scaling must be 'paper' or 'code'"),
        ((X, phi(X)), {"chunk": 0}, "chunk must be a whole number"),
        ((X, phi(X)), {"chunk": 2, "metric": "geodesic"}, "chunk must go with"),
        ((X[:0], phi(X)[:0]), {}, "at least one sample"),
        ((np.float64(1.0), phi(X)), {}, "at least one sample|same samples|real samples"),
    ],
)
def test_bad_input(arguments, options, match):
    with pytest.raises(ValueError, match=match):
        isometric_loss(*arguments, **options)


def test_bad_input_of_the_closed_forms():
    with pytest.raises(ValueError, match="jacobian must have shape"):
        isometric_gradient(X, phi(X), torch.zeros(6, 3, 4), LABELS)
    with pytest.raises(ValueError, match="one label for each"):
        printed_gradient(X, phi(X), jacobians(X), LABELS[:2])
    assert W.shape == (4, 3)
    assert B.shape == (4,)


@pytest.mark.parametrize("names", [["cat", "cat", "dog", "cat", "dog", "dog"], np.array(list("aababb"))])
def test_groups_may_be_names(names):
    numbers = torch.tensor([-3, -3, 40, -3, 40, 40])
    assert float(isometric_loss(X, phi(X), names)) == float(isometric_loss(X, phi(X), numbers))
    assert float(isometric_loss(X, phi(X), names)) == pytest.approx(naive(X, phi(X), list(names)), rel=1e-12)
