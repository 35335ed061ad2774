from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lisse.maths.bounds import mean_field_attention, mean_field_attention_below, mean_field_multi_head
from lisse.maths.homology import diagram_distance, persistence
from lisse.maths.markov import AttentionKernel, Ball, Bilinear, Linear, MultiHeadKernel, contraction
from lisse.maths.transport import Measure, wasserstein


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def line(*pairs: tuple[float, float]) -> Measure:
    points, weights = zip(*pairs, strict=True)
    return Measure(torch.tensor(points, dtype=torch.float64), torch.tensor(weights, dtype=torch.float64))


def head(a: torch.Tensor, value: torch.Tensor) -> AttentionKernel:
    """Γ of [chen2024] Definition 4: logits ⟨Ax, y⟩, values Vy."""
    return AttentionKernel(Bilinear(a, torch.eye(len(a)).to(a)), Linear(value))


def attention(measure: Measure, a: torch.Tensor, value: torch.Tensor) -> Measure:
    return head(a, value)(measure, measure)


def multi_head_attention(measure: Measure, forms: list, values: list, out: torch.Tensor) -> Measure:
    heads = [head(a, v) for a, v in zip(forms, values, strict=True)]
    return MultiHeadKernel(heads, out.T)(measure, measure)


def ratio(mu: Measure, nu: Measure, a: torch.Tensor, value: torch.Tensor, p: float = 1.0) -> float:
    moved = wasserstein(attention(mu, a, value), attention(nu, a, value), p=p, ground=2)
    return float(moved / wasserstein(mu, nu, p=p, ground=2))


def test_equal_weights_are_torchs_attention():
    points, q, k, v = randn(7, 4), randn(4, 4, seed=1), randn(4, 4, seed=2), randn(4, 4, seed=3)
    found = attention(Measure(points), k.T @ q / 2, v).points
    dense = torch.nn.functional.scaled_dot_product_attention(points @ q.T, points @ k.T, points @ v.T)
    torch.testing.assert_close(found, dense)


def test_heads_stand_side_by_side_under_the_output():
    points = Measure(randn(6, 3))
    forms, values, out = [randn(3, 3, seed=s) for s in (1, 2)], [randn(2, 3, seed=s) for s in (3, 4)], randn(5, 4)
    joined = torch.cat([attention(points, a, v).points for a, v in zip(forms, values, strict=True)], 1)
    torch.testing.assert_close(multi_head_attention(points, forms, values, out).points, joined @ out.T)


@settings(deadline=None, max_examples=25)
@given(n=st.integers(1, 6), d=st.integers(1, 4), seed=st.integers(0, 999))
def test_order_and_copies_of_atoms_do_not_matter(n, d, seed):
    points, a, v = randn(n, d, seed=seed), randn(d, d, seed=seed + 1), randn(d, d, seed=seed + 2)
    mass = torch.rand(n, generator=generator(seed), dtype=torch.float64) + 0.1
    mass = mass / mass.sum()
    image = attention(Measure(points, mass), a, v)
    order = torch.randperm(n, generator=generator(seed))
    torch.testing.assert_close(attention(Measure(points[order], mass[order]), a, v).points, image.points[order])
    twice = attention(Measure(torch.cat([points, points]), torch.cat([mass, mass]) / 2), a, v)
    torch.testing.assert_close(twice.points, torch.cat([image.points, image.points]))
    unseen = Measure(torch.cat([points, randn(1, d, seed=seed + 3) * 9]), torch.cat([mass, mass.new_zeros(1)]))
    torch.testing.assert_close(attention(unseen, a, v).points[:n], image.points)


def test_a_dirac_goes_to_a_dirac():
    x, a, v = randn(1, 3), randn(3, 3, seed=1) * 100, randn(3, 3, seed=2)
    torch.testing.assert_close(attention(Measure(x), a, v).points, x @ v.T)


def test_large_scores_do_not_overflow():
    found = attention(line((1.0, 0.5), (-1.0, 0.5)), torch.tensor([[1e6]]), torch.tensor([[1.0]]))
    assert found.points.flatten().tolist() == [1.0, -1.0]


def test_attention_is_differentiable():
    a, v = randn(2, 2, seed=1), randn(2, 2, seed=2)
    measure = Measure(randn(4, 2), torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64))
    inputs = tuple(one.requires_grad_() for one in (randn(3, 2, seed=5), a, v))
    assert torch.autograd.gradcheck(lambda x, a, v: head(a, v)(x, measure).points, inputs)


# --- the printed bound is false (docs/errata.md#topology) ------------------------------------------------------------


def atoms(p: float) -> Measure:
    return line((0.5, 1 - p), (1.0, p))


def test_the_fixed_counterexample():
    """a = 40, σ = .25, tσ = 1: the assumption |A| ≥ 2/σ² = 32 holds, the bound 82 does not."""
    a, v = torch.tensor([[40.0]]), torch.tensor([[1.0]])
    found = ratio(atoms(1e-4), atoms(1e-4 + 1e-6), a, v)
    assert found == pytest.approx(2133.03, abs=0.01)
    printed = mean_field_attention(1.0, 40.0, 1.0, sigma=0.25, variant="printed")
    assert printed.value == pytest.approx(82)
    assert [one.holds for one in printed.hypotheses] == [False, True]
    assert found > printed.value
    assert found <= mean_field_attention(1.0, 40.0, 1.0).value


def test_the_limit_of_the_counterexample():
    """a = 20, σ = .4: 12.5 ≤ 20; e^{aR²/4} = 148.41 > 42."""
    a, v = torch.tensor([[20.0]]), torch.tensor([[1.0]])
    found = ratio(atoms(0.0), atoms(1e-9), a, v)
    below = mean_field_attention_below(1.0, 20.0, 1.0)
    assert below.kind == "lower"
    assert below.value == pytest.approx(148.4131591)
    assert found == pytest.approx(below.value, rel=1e-4)
    assert mean_field_attention(1.0, 20.0, 1.0, variant="printed").value == pytest.approx(42)


def test_the_search_finds_the_exponential_by_itself():
    """Together with ``contraction``: at least 0.9 e^{|A|R²/4} from random measures, and under the corrected bound."""
    a, v = torch.tensor([[20.0]]), torch.tensor([[1.0]])
    found = contraction(lambda mu: attention(mu, a, v), sampler=Ball(1, 1.0), ground=2, budget=800)
    assert float(found.value) >= 0.9 * mean_field_attention_below(1.0, 20.0, 1.0).value
    assert float(found.value) <= mean_field_attention(1.0, 20.0, 1.0).value


def test_diracs_alone_exceed_the_printed_bound_in_a_small_ball():
    a, v = torch.tensor([[1.0]]), torch.tensor([[1.0]])
    assert ratio(line((0.0, 1.0)), line((0.1, 1.0)), a, v) == pytest.approx(1.0)
    assert mean_field_attention(1.0, 1.0, 0.1, variant="printed").value < 1


@settings(deadline=None, max_examples=60)
@given(
    n=st.integers(1, 5), d=st.integers(1, 3), seed=st.integers(0, 10_000), size=st.floats(0.01, 4),
    radius=st.floats(0.1, 2), small=st.booleans(),
)  # fmt: skip
def test_the_corrected_bound_is_never_exceeded(n, d, seed, size, radius, small):
    def ball(seed: int) -> torch.Tensor:
        x = randn(n, d, seed=seed)
        lengths = torch.rand(n, 1, generator=generator(seed + 7), dtype=torch.float64)
        return x / x.norm(dim=1, keepdim=True) * lengths * radius

    def weights(seed: int) -> torch.Tensor:
        w = torch.rand(n, generator=generator(seed), dtype=torch.float64) ** 4 + 1e-9
        return w / w.sum()

    a, v = randn(d, d, seed=seed) * size, randn(d, d, seed=seed + 1)
    first, second = ball(seed + 2), ball(seed + 3)
    mu = Measure(first, weights(seed + 4))
    nu = Measure(0.999 * first + 0.001 * second, weights(seed + 4)) if small else Measure(second, weights(seed + 5))
    norms = [float(torch.linalg.matrix_norm(one, 2)) for one in (v, a)]
    assert ratio(mu, nu, a, v) <= mean_field_attention(norms[0], norms[1], radius).value * (1 + 1e-9)


def test_the_corrected_bound_of_heads_is_never_exceeded():
    for seed in range(30):
        forms, values = [randn(2, 2, seed=seed + s) for s in (1, 2)], [randn(2, 2, seed=seed + s) for s in (3, 4)]
        out = randn(2, 4, seed=seed + 5)
        x, y = (torch.nn.functional.normalize(randn(4, 2, seed=seed + s)) for s in (6, 7))
        mu, nu = Measure(x), Measure(0.9 * x + 0.1 * y)
        images = [multi_head_attention(one, forms, values, out) for one in (mu, nu)]
        found = float(wasserstein(*images, ground=2) / wasserstein(mu, nu, ground=2))
        norms = [[float(torch.linalg.matrix_norm(one, 2)) for one in some] for some in (values, forms, [out])]
        assert found <= mean_field_multi_head(norms[0], norms[1], norms[2][0], 1.0).value


# --- W1 does not extend to W2, and diagrams are not Lipschitz in measures (docs/errata.md#topology) ------------------


def test_one_lipschitz_in_w1_and_not_lipschitz_in_w2():
    def f(mu: Measure) -> Measure:
        m = float(mu.mean)
        return line((0.0, 1 - m), (1.0, m))

    for step in (1e-2, 1e-4, 1e-6):
        mu, nu = line((0.5, 1.0)), line((0.5 + step, 1.0))
        assert float(wasserstein(f(mu), f(nu), p=1)) == pytest.approx(step, rel=1e-6)
        assert float(wasserstein(f(mu), f(nu), p=2)) == pytest.approx(math.sqrt(step), rel=1e-6)
        assert float(wasserstein(mu, nu, p=2)) == pytest.approx(step, rel=1e-6)


@pytest.mark.parametrize("n", [4, 16, 64])
def test_diagrams_are_not_lipschitz_in_measures(n):
    one = torch.zeros(n, 1, dtype=torch.float64)
    one[0] = 1.0
    none = torch.zeros(n, 1, dtype=torch.float64)
    assert float(wasserstein(Measure(one), Measure(none))) == pytest.approx(1 / n)
    distance = diagram_distance(persistence(one, dims=(0,)), persistence(none, dims=(0,)), dim=0)
    assert float(distance) == pytest.approx(0.5)  # one bar (0, 1), ℓ∞ to the diagonal; the ratio n/2 has no limit


def test_the_old_name_still_works_and_says_what_to_use():
    import lisse.maths.mean_field as old

    points, a, v = Measure(randn(5, 3)), randn(3, 3, seed=1), randn(2, 3, seed=2)
    with pytest.warns(DeprecationWarning, match=r"use lisse\.maths\.markov\.AttentionKernel"):
        attend = old.attention
    torch.testing.assert_close(attend(points, a, v).points, attention(points, a, v).points)
    with pytest.raises(AttributeError, match="no attribute 'convolution'"):
        _ = old.convolution
