"""Two maps beside each other: closed forms of the differences, and how often noise is called more than noise."""

import math

import pytest
import torch
from scipy.linalg import orthogonal_procrustes

from lisse.maths.drift import (
    aligned_difference,
    changed_decisions,
    cosine_of_norms,
    floor_of,
    norms,
    parting,
    precedence_p,
    prediction_divergence,
    relative_difference,
    split_norms,
    step_share,
)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(5, 3, 4), (7, 2**16 + 1), (0, 4)])  # all at once, a stretch of one, nothing
def test_the_norms_of_what_is_injected_and_inherited_are_those_of_the_two_vectors(shape):
    a, b, forced = (draw(*shape, seed=seed).to(torch.bfloat16) for seed in range(3))
    mask = torch.arange(3).expand(shape[0], 3) < 2 if len(shape) == 3 else None
    parts = split_norms(a, b, forced, mask=mask)
    expected = [a.float(), b.float(), b.float() - a.float(), forced.float() - a.float(), b.float() - forced.float()]
    assert torch.allclose(expected[3] + expected[4], expected[2], rtol=1e-6, atol=1e-6)
    for norm, vector in zip(parts, expected, strict=True):
        counted = vector if mask is None else vector[:, :2]
        assert torch.allclose(norm, counted.double().flatten(1).norm(dim=1), rtol=1e-5)
    assert [len(part) for part in split_norms(a, b)] == [*[shape[0]] * 3, 0, 0]


def test_what_is_finer_is_subtracted_as_such():
    a, b = draw(5, 4), draw(5, 4, seed=1)
    assert torch.equal(split_norms(a, b).difference, (b - a).norm(dim=1))
    assert not torch.equal(split_norms(a.float(), b.float()).difference, (b - a).norm(dim=1))
    mixed = split_norms(a.bfloat16(), b)
    assert torch.allclose(mixed.difference, (b - a.bfloat16().double()).norm(dim=1), rtol=1e-12)


def test_relative_difference_of_vectors_and_of_the_tokens_that_count():
    a = torch.tensor([[[3.0, 4.0], [100.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]])
    b = a + torch.tensor([[[0.0, 5.0], [7.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]])
    mask = torch.tensor([[True, False], [True, True]])
    assert relative_difference(a, b, mask=mask).tolist() == [1.0, 0.0]
    assert relative_difference(a, b)[0] == pytest.approx(math.sqrt(25 + 49) / math.sqrt(25 + 10000))
    assert norms(a, mask).tolist() == [5.0, 0.0]
    with pytest.raises(ValueError, match="one shape"):
        relative_difference(a, b[:1])


def test_the_cosine_of_three_norms_sees_direction_alone():
    a, b = draw(6, 7), draw(6, 7, seed=1)
    assert torch.allclose(
        cosine_of_norms(a.norm(dim=1), (3 * a).norm(dim=1), (2 * a).norm(dim=1)), torch.ones(6).double()
    )
    expected = torch.nn.functional.cosine_similarity(a, b)
    assert torch.allclose(cosine_of_norms(a.norm(dim=1), b.norm(dim=1), (b - a).norm(dim=1)), expected)
    zero = torch.zeros(1)
    assert cosine_of_norms(zero, zero + 1, zero + 1).isnan().item()


def test_aligned_difference_is_that_of_scipy_and_sees_no_rotation_or_scale():
    x, y = draw(40, 5), draw(40, 5, seed=1)
    rotation = torch.linalg.qr(draw(5, 5, seed=2)).Q
    squares = (x.square().sum(), y.square().sum())
    best, scale = orthogonal_procrustes(x.numpy(), y.numpy())
    residual = y.numpy() - scale / float(squares[0]) * x.numpy() @ best
    expected = (residual**2).sum() ** 0.5 / float(squares[1]) ** 0.5
    assert float(aligned_difference(x.T @ y, *squares)) == pytest.approx(expected)
    turned = 2.5 * x @ rotation
    assert float(aligned_difference(x.T @ turned, squares[0], turned.square().sum())) < 1e-6
    with pytest.raises(ValueError, match="square"):
        aligned_difference(x, *squares)


def test_shares_of_a_way_sum_to_one_and_a_step_sideways_has_none():
    states = draw(4, 6, 3)
    shares = [step_share(states[k], states[k + 1], states[0], states[3]) for k in range(3)]
    assert torch.allclose(sum(shares), torch.ones(6, dtype=torch.float64))
    start, end = torch.zeros(1, 2), torch.tensor([[2.0, 0.0]])
    assert step_share(start, torch.tensor([[0.0, 5.0]]), start, end).item() == 0
    assert step_share(start, torch.tensor([[0.5, 5.0]]), start, end).item() == 0.25
    assert step_share(start, start, start, start).isnan().item()


def test_predictions():
    p, q = torch.tensor([[0.7, 0.3]]), torch.tensor([[0.4, 0.6]])
    expected = 0.7 * math.log(0.7 / 0.4) + 0.3 * math.log(0.3 / 0.6)
    assert prediction_divergence(p.log(), q.log() + 5).item() == pytest.approx(expected, rel=1e-6)
    assert changed_decisions(p.log(), q.log()).item() == 1
    tokens = torch.stack([p.log(), q.log()], 1)  # [1, 2, 2]
    swapped = torch.stack([p.log(), p.log()], 1)
    assert changed_decisions(tokens, swapped).item() == 0.5
    assert changed_decisions(tokens, swapped, mask=torch.tensor([[True, False]])).item() == 0


def test_the_precedence_test_in_closed_form_and_by_counting():
    assert precedence_p(0, 5, 7) == pytest.approx(1)
    assert precedence_p(1, 3, 3) == pytest.approx(0.5)
    assert precedence_p(5, 5, 7) == pytest.approx(1 / math.comb(12, 5))
    values = torch.rand(20000, 11, generator=torch.Generator().manual_seed(0))
    hits = (values[:, :6] > values[:, 6:].amax(1, keepdim=True)).sum(1)
    share = float((hits >= 3).double().mean())
    assert abs(share - precedence_p(3, 6, 5)) < 4 * math.sqrt(share * (1 - share) / 20000)
    with pytest.raises(ValueError, match="at most n"):
        precedence_p(4, 3, 3)


def test_noise_is_no_parting_and_what_is_larger_is():
    floors, values = draw(32, 4).abs(), draw(32, 4, seed=1).abs()
    assert bool((parting(values, floors) > 0.05).all())
    values[:, 2] += 10
    assert (parting(values, floors) <= 0.05).tolist() == [False, False, True, False]
    assert bool((parting(values, floors, margin=100) > 0.05).all())
    assert bool((parting(values, floors, least=100) > 0.05).all())
    assert floor_of(floors, margin=2).tolist() == (2 * floors.amax(0)).tolist()
    with pytest.raises(ValueError, match="same layers"):
        parting(values, floors[:, :2])
