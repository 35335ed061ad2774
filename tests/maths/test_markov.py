"""Attention as a map of measures: the same numbers as every other route to attention, and the paper's properties."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lisse.maths.bounds import attention_on_ball
from lisse.maths.jacobian import jacobian_norm
from lisse.maths.markov import (
    AttentionKernel,
    Ball,
    Bilinear,
    DotProduct,
    FiniteKernel,
    Gaussian,
    Linear,
    MultiHeadKernel,
    Table,
    TransformerKernel,
    ball_projection,
    boltzmann_gibbs,
    contraction,
    evolve,
    fixed_point,
    invert,
    invertible_scale,
    projection,
    softmatch,
    value_scale,
)
from lisse.maths.transport import Measure, wasserstein

sdpa = torch.nn.functional.scaled_dot_product_attention
DOT = AttentionKernel(DotProduct())
GAUSS = AttentionKernel(Gaussian())


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cloud(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=generator(seed), dtype=torch.float64)


def weights(n: int, seed: int = 0) -> torch.Tensor:
    return torch.softmax(torch.randn(n, generator=generator(seed), dtype=torch.float64), 0)


def tok(n: int, d: int, a: float, b: float) -> torch.Tensor:
    i, j = torch.arange(1, n + 1).double()[:, None], torch.arange(1, d + 1).double()
    return torch.sin(a * i * j) + 0.5 * torch.cos(b * i + j)


def mat(rows: int, columns: int, s: float) -> torch.Tensor:
    i, j = torch.arange(1, rows + 1).double()[:, None], torch.arange(1, columns + 1).double()
    return torch.sin(s * (i + 2 * j))


X, Y = tok(3, 2, 1, 0.5), tok(5, 2, 0.8, 0.3)


def close(a, b, tol=1e-14):
    torch.testing.assert_close(a, b, rtol=tol, atol=tol)


# --- the reference and the other routes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("potential", "expected"),
    [(DotProduct(), 0.8173062929), (DotProduct(2**-0.5), 0.7159593099), (Gaussian(), 0.8723862535)],
)
def test_the_reference_ratios(potential, expected):
    kernel = AttentionKernel(potential)
    stretch = wasserstein(kernel(X, X), kernel(Y, Y)) / wasserstein(X, Y)
    assert float(stretch) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("grad", [False, True])
def test_the_kernel_route_is_the_matrix_route(grad):
    q, k, v = cloud(4, 3), cloud(6, 3, 1), cloud(6, 5, 2)
    q.requires_grad_(grad)  # with gradients the products are written out, without them the fused kernel runs
    kernel = AttentionKernel(DotProduct(0.3), Table(k, v))
    close(kernel(q, k).points, torch.softmax(0.3 * q @ k.T, 1) @ v)
    close(kernel(q, k).points, sdpa(q[None], k[None], v[None], scale=0.3)[0])
    squares = (q[:, None] - k).pow(2).sum(-1)
    close(AttentionKernel(Gaussian(0.7))(q, k).points, torch.softmax(-0.7 * squares, 1) @ k)
    wq, wk, wv = cloud(2, 3, 3), cloud(2, 3, 4), cloud(5, 3, 5)
    head = AttentionKernel(Bilinear(wq, wk, scale=2**-0.5), Linear(wv))
    close(head(q, k).points, torch.softmax((q @ wq.T) @ (k @ wk.T).T / 2**0.5, 1) @ (k @ wv.T))


@pytest.mark.parametrize("grad", [False, True])
def test_masks_hide_keys(grad):
    q, k = cloud(4, 3), cloud(6, 3, 1)
    q.requires_grad_(grad)
    mask = torch.rand(4, 6, generator=generator()) < 0.6
    mask[:, 0] = True
    close(DOT(q, k, mask=mask).points, sdpa(q[None], k[None], k[None], attn_mask=mask[None], scale=1.0)[0])
    added = torch.where(mask, 0.5, -torch.inf).double()
    close(DOT(q, k, mask=added).points, DOT(q, k, mask=mask).points)
    close(GAUSS(q, k, mask=mask).points[1], GAUSS(q[1:2], k[mask[1]]).points[0])
    causal = torch.ones(6, 6, dtype=torch.bool).tril()
    close(DOT(k, k, mask=causal).points, sdpa(k[None], k[None], k[None], is_causal=True, scale=1.0)[0])


def test_the_reference_multi_head():
    heads = [
        AttentionKernel(Bilinear(mat(2, 2, 0.3 + h), mat(2, 2, 0.5 + h), scale=2**-0.5), Linear(mat(2, 2, 0.7 + h)))
        for h in (0, 1)
    ]
    outs = [mat(2, 2, 0.9), mat(2, 2, 1.9)]
    found = MultiHeadKernel(heads, outs)(X, X).points
    naive = torch.zeros(3, 2).double()
    for h in (0, 1):
        for i in range(3):
            query = mat(2, 2, 0.3 + h) @ X[i]
            scores = torch.stack([query @ (mat(2, 2, 0.5 + h) @ x) / 2**0.5 for x in X]).exp()
            y = sum(s * (mat(2, 2, 0.7 + h) @ x) for s, x in zip(scores, X, strict=True)) / scores.sum()
            naive[i] += y @ outs[h]
    close(found, naive)
    close(MultiHeadKernel(heads, torch.cat(outs))(X, X).points, naive)
    close(MultiHeadKernel(heads, torch.stack(outs), bias=torch.ones(2).double())(X, X).points, naive + 1)


def test_the_mixture_kernel_is_concatenation():
    """Π of the mixture (1/H) Σ A^h O^h, written with kernels on atoms, is the concatenation and one matrix."""
    heads = [AttentionKernel(Bilinear(cloud(2, 3, h), cloud(2, 3, h + 5))) for h in range(3)]
    outs = [cloud(3, 4, h + 9) for h in range(3)]
    x = cloud(5, 3)
    found = MultiHeadKernel(heads, outs)(x, x).points
    for i in range(5):
        atoms = torch.cat([3 * head(x[i : i + 1], x).points @ out for head, out in zip(heads, outs, strict=True)])
        close(projection(Measure(atoms)).points[0], found[i], 1e-13)


@pytest.mark.parametrize("masked", [False, True])
def test_torchs_multi_head_attention(masked):
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(8, 2, batch_first=True).double().eval()
    torch.nn.init.normal_(module.in_proj_bias)
    torch.nn.init.normal_(module.out_proj.bias)
    x = cloud(6, 8)
    blocked = torch.ones(6, 6, dtype=torch.bool).triu(1) if masked else None
    with torch.no_grad():
        (wq, wk, wv), (bq, bk, bv) = module.in_proj_weight.chunk(3), module.in_proj_bias.chunk(3)
        heads = [
            AttentionKernel(
                Bilinear(wq[s], wk[s], scale=0.5, bq=bq[s], bk=bk[s]),
                Linear(wv[s], bv[s]),
            )
            for s in (slice(0, 4), slice(4, 8))
        ]
        kernel = MultiHeadKernel(heads, module.out_proj.weight.T, module.out_proj.bias)
        expected = module(x[None], x[None], x[None], attn_mask=blocked)[0][0]
        close(kernel(x, x, mask=None if blocked is None else ~blocked).points, expected, 1e-13)


def test_a_bert_layers_attention_with_padding():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(hidden_size=12, num_attention_heads=3, intermediate_size=20, num_hidden_layers=1)
    torch.manual_seed(0)
    layer = transformers.BertModel(config).double().eval().encoder.layer[0]
    inner = layer.attention.self
    for part in (inner.query, inner.key, inner.value):
        torch.nn.init.normal_(part.weight)
        torch.nn.init.normal_(part.bias)
    x = cloud(7, 12)
    seen = torch.tensor([True] * 5 + [False] * 2)
    added = torch.zeros(7, dtype=torch.float64).masked_fill(~seen, torch.finfo(torch.float64).min)[None, None, None]
    with torch.no_grad():
        expected = inner(x[None], added)[0][0]
        heads = [
            AttentionKernel(
                Bilinear(inner.query.weight[s], inner.key.weight[s], 0.5, inner.query.bias[s], inner.key.bias[s]),
                Linear(inner.value.weight[s], inner.value.bias[s]),
            )
            for s in (slice(0, 4), slice(4, 8), slice(8, 12))
        ]
        kernel = MultiHeadKernel(heads, torch.eye(12).double())
        close(kernel(x, x, mask=seen[None]).points, expected, 1e-13)
        close(kernel(x, x[:5]).points, expected, 1e-13)  # a mask is a smaller context


def test_weights_are_repeated_tokens():
    context = Measure(cloud(3, 2), torch.tensor([0.5, 0.25, 0.25]).double())
    repeated = cloud(3, 2)[[0, 0, 1, 2]]
    for kernel in (DOT, GAUSS):
        close(kernel(X, context).points, kernel(X, repeated).points)
    mask = torch.tensor([[True, False, True]])
    close(DOT(X, context, mask=mask).points, DOT(X, repeated, mask=mask[:, [0, 0, 1, 2]]).points)
    assert DOT(context, X).weights.tolist() == [0.5, 0.25, 0.25]  # the queries keep their mass


def test_large_logits_do_not_overflow():
    x = torch.tensor([[30.0], [-30.0], [29.0]]).double()
    assert DOT(x, x).points.flatten().tolist() == pytest.approx([30, -30, 30], abs=1e-9)
    grown = x.clone().requires_grad_()
    assert DOT(grown, x).points.flatten().tolist() == pytest.approx([30, -30, 30], abs=1e-9)


# --- kernels on atoms -----------------------------------------------------------------------------------------------


def test_actions_and_composition_of_finite_kernels():
    a = FiniteKernel(torch.tensor([[0.5, 0.5], [0.0, 1.0]]).double(), torch.tensor([[0.0], [2.0]]).double())
    b = FiniteKernel(torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]]).double(), torch.arange(3).double()[:, None])
    mu = Measure(torch.zeros(2, 1).double(), torch.tensor([0.4, 0.6], dtype=torch.float64))
    close(a.left(mu).weights, torch.tensor([0.2, 0.8], dtype=torch.float64))
    f = torch.tensor([3.0, 5.0]).double()
    close(a.on(f), torch.tensor([4.0, 5.0]).double())
    close(a.left(mu).mass @ f, mu.mass @ a.on(f))  # μM(f) = μ(Mf)
    close(a.then(b).left(mu).weights, b.left(a.left(mu)).weights)
    assert a.row(0).weights.tolist() == [0.5, 0.5]
    with pytest.raises(ValueError, match="rows that sum to 1"):
        FiniteKernel(torch.ones(2, 2), torch.zeros(2, 1))
    with pytest.raises(ValueError, match="one column per atom"):
        FiniteKernel(torch.ones(2, 1), torch.zeros(2, 1))
    with pytest.raises(ValueError, match="must have 2 atoms, got 3"):
        a.left(torch.zeros(3, 1))
    with pytest.raises(ValueError, match="must start at 2 atoms"):
        a.then(FiniteKernel(torch.eye(3), torch.zeros(3, 1)))


def test_softmatch_is_softmax_and_bayes_rule():
    kernel = softmatch(DotProduct(), X, Y)
    close(kernel.matrix, torch.softmax(X @ Y.T, 1))
    close(projection(kernel.row(1)).points[0], DOT(X, Y).points[1])
    prior, likelihood = weights(5), torch.rand(5, generator=generator(), dtype=torch.float64)
    posterior = boltzmann_gibbs(Measure(Y, prior), likelihood.log())
    close(posterior.weights, prior * likelihood / (prior @ likelihood))
    close(boltzmann_gibbs(Y, torch.full((5,), 1e4)).weights, torch.full((5,), 0.2, dtype=torch.float64))  # shift
    with pytest.raises(ValueError, match=r"log_potential must have shape \[5\]"):
        boltzmann_gibbs(Y, torch.zeros(4))


def test_lemma_1_2_gives_tau_of_a_linear_kernel():
    points = cloud(4, 2)
    kernel = FiniteKernel(torch.softmax(cloud(4, 3, 1), 1), cloud(3, 2, 2))
    tau = float(kernel.contraction(points))
    for seed in range(40):
        mu, nu = Measure(points, weights(4, seed)), Measure(points, weights(4, seed + 100))
        ratio = wasserstein(kernel.left(mu), kernel.left(nu)) / wasserstein(mu, nu)
        assert float(ratio) <= tau + 1e-9
    i, k = max(
        ((i, k) for i in range(4) for k in range(i)),
        key=lambda ik: float(
            wasserstein(kernel.row(ik[0]), kernel.row(ik[1])) / (points[ik[0]] - points[ik[1]]).abs().sum()
        ),
    )
    assert tau == pytest.approx(float(wasserstein(kernel.row(i), kernel.row(k)) / (points[i] - points[k]).abs().sum()))


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), n=st.integers(1, 5), m=st.integers(1, 5))
def test_lemmas_1_3_and_4(seed, n, m):
    nu = Measure(cloud(3, 2, seed), weights(3, seed))
    one, two = (FiniteKernel(torch.softmax(cloud(3, n, seed + s), 1), cloud(n, 2, seed + s + 1)) for s in (1, 5))
    together = wasserstein(one.left(nu), two.left(nu))
    apart = sum(nu.mass[i] * wasserstein(one.row(i), two.row(i)) for i in range(3))
    assert float(together) <= float(apart) + 1e-9
    a, b = cloud(n, 1, seed + 9), cloud(m, 1, seed + 10)
    c, d = cloud(2, 1, seed + 11), cloud(3, 1, seed + 12)

    def product(x, y):
        return torch.cat([x.repeat_interleave(len(y), 0), y.repeat(len(x), 1)], 1)

    assert float(wasserstein(product(a, c), product(b, d))) <= float(wasserstein(a, b) + wasserstein(c, d)) + 1e-9


# --- properties -----------------------------------------------------------------------------------------------------

seeds = st.integers(0, 10_000)
shapes = {"n": st.integers(1, 6), "d": st.integers(1, 4), "seed": seeds}
potentials = st.sampled_from([DotProduct(), DotProduct(0.5), Gaussian(), Gaussian(0.3)])


@settings(deadline=None, max_examples=30)
@given(potential=potentials, **shapes)
def test_equivariance_duplication_hull_and_single_tokens(potential, n, d, seed):
    kernel, x = AttentionKernel(potential), cloud(n, d, seed)
    out = kernel(x, x).points
    order = torch.randperm(n, generator=generator(seed))
    close(kernel(x[order], x[order]).points, out[order], 1e-12)
    twice = x.repeat(2, 1)
    close(kernel(twice, twice).points[:n], out, 1e-12)
    direction = cloud(1, d, seed + 1)[0]
    assert float((out @ direction).max()) <= float((x @ direction).max()) + 1e-12
    close(kernel(x[:1], x[:1]).points, x[:1], 1e-12)
    assert float(wasserstein(kernel(twice, twice), kernel(x, x))) <= 1e-9


@settings(deadline=None, max_examples=30)
@given(**shapes)
def test_symmetries_of_the_potentials(n, d, seed):
    x, shift = cloud(n, d, seed), cloud(1, d, seed + 1)
    turn = torch.linalg.qr(cloud(d, d, seed + 2)).Q
    for kernel in (DOT, GAUSS):
        close(kernel(x @ turn, x @ turn).points, kernel(x, x).points @ turn, 1e-10)
    close(GAUSS(x + shift, x + shift).points, GAUSS(x, x).points + shift, 1e-10)
    # Logits that are shifted by a function of the query give the same attention: here a key bias's part.
    shifted = AttentionKernel(lambda q, k: q @ k.T + 3 * q.sum(1, keepdim=True))
    close(shifted(x, x).points, DOT(x, x).points, 1e-10)


@settings(deadline=None, max_examples=20)
@given(**shapes, m=st.integers(1, 6))
def test_tau_of_projection_and_of_linear_lookups(n, d, seed, m):
    x, y = cloud(n, d, seed), cloud(m, d, seed + 1)
    before = float(wasserstein(x, y))
    assert float(wasserstein(projection(x), projection(y))) <= before + 1e-12  # τ(Π) = 1, not d
    w = cloud(d, d, seed + 2)
    tau = float(w.abs().sum(0).max())
    assert float(wasserstein(x @ w.T, y @ w.T)) <= tau * before + 1e-9
    column = int(w.abs().sum(0).argmax())
    step = torch.zeros(1, d).double()
    step[0, column] = 1
    assert float(wasserstein(x[:1] @ w.T, (x[:1] + step) @ w.T)) == pytest.approx(tau)


def test_the_local_constant_of_a_layer_by_power_iteration():
    x = cloud(4, 3)[None].requires_grad_()
    y = AttentionKernel(DotProduct())(x[0], x[0]).points[None]
    found = jacobian_norm(y, x, tol=1e-9, generator=generator())
    dense = torch.autograd.functional.jacobian(lambda v: DOT(v, v).points, x[0].detach()).reshape(12, 12)
    close(found.value[0], torch.linalg.matrix_norm(dense, 2), 1e-8)


def test_gradients():
    x, w = cloud(4, 2).requires_grad_(), torch.randn(4, generator=generator(), dtype=torch.float64).requires_grad_()
    for kernel in (DOT, GAUSS, AttentionKernel(Bilinear(cloud(2, 2, 1), cloud(2, 2, 2)), Linear(cloud(3, 2, 3)))):
        assert torch.autograd.gradcheck(lambda x, w, k=kernel: k(x, Measure(x, torch.softmax(w, 0))).points, (x, w))


# --- depth, inversion, fixed points ---------------------------------------------------------------------------------


def test_evolution_over_depth():
    states = evolve(DOT, X, 3)
    assert len(states) == 4
    assert torch.equal(states[0].points, X)
    y = X
    for state in states[1:]:
        y = torch.softmax(y @ y.T, 1) @ y
        close(state.points, y, 1e-12)
    mixed = evolve([DOT, GAUSS], X)
    close(mixed[-1].points, GAUSS(DOT(X, X), DOT(X, X)).points)
    assert len(evolve([DOT, GAUSS], X, 5)) == 6
    with pytest.raises(ValueError, match="depth must not be negative"):
        evolve(DOT, X, -1)


def test_without_injection_dot_attention_ends_in_a_consensus_that_depends_on_the_input():
    last = evolve(DOT, X, 2000)[-1].points
    close(last, torch.tensor([[0.5035878, -0.7021887]]).double().expand(3, 2), 1e-6)
    other = evolve(DOT, Y, 2000)[-1].points
    assert float((other[0] - last[0]).abs().sum()) > 0.1


def test_a_transformer_kernel_applies_its_feedforward():
    def feedforward(x):
        return torch.tanh(x)

    close(TransformerKernel(DOT, feedforward)(X, X).points, torch.tanh(DOT(X, X).points))
    mixed = X + DOT(X, X).points
    close(TransformerKernel(DOT, feedforward, residual=True)(X, X).points, mixed + torch.tanh(mixed))


def residual(x):
    return 0.3 * GAUSS(x, x).points


def test_inversion_finds_the_input_within_its_bounds():
    y = X + residual(X)
    found = invert(residual, y, tol=1e-13)
    assert found.converged
    close(found.solution, X, 1e-12)
    assert not found.guaranteed
    assert all(b < a for a, b in zip(found.steps, found.steps[1:], strict=False))
    early = invert(residual, y, constant=0.9, radius=10.0, max_iter=5)
    error = float((early.solution - X).abs().sum() / 3)
    assert not early.converged
    assert early.guaranteed
    assert error <= early.error_bound <= early.a_priori
    assert early.a_priori == pytest.approx(0.9**5 / 0.1 * early.steps[0])


def test_one_token_under_vanilla_attention_oscillates():
    found = invert(lambda x: DOT(x, x).points, torch.tensor([[1.0, 2.0]]).double(), max_iter=50)
    assert not found.converged
    assert found.constant == pytest.approx(1)
    assert found.error_bound == math.inf
    with pytest.raises(ValueError, match=r"constant must be below 1, got 1\. Scale the values by invertible_scale"):
        invert(residual, X, constant=1.0)


def test_infinite_depth_does_not_depend_on_its_start():
    found = fixed_point(residual, X, tol=1e-13)
    again = fixed_point(residual, X, start=10 * cloud(3, 2), tol=1e-13)
    close(found.solution, residual(found.solution + X), 1e-12)
    close(found.solution, again.solution, 1e-11)
    other = fixed_point(residual, X + 1, tol=1e-13)
    assert float((other.solution - found.solution).abs().max()) > 0.1
    assert not fixed_point(residual, X, max_iter=2).converged
    diverging = fixed_point(lambda h: 1e200 * h, X, max_iter=50)
    assert not diverging.converged
    assert diverging.error_bound == math.inf


@settings(deadline=None, max_examples=15)
@given(seed=seeds, n=st.integers(1, 4))
def test_steps_shrink_by_the_constant_when_the_scale_makes_it_a_contraction(seed, n):
    radius = 0.5
    scale = value_scale(attention_on_ball(2, 2 * radius).value)
    x = ball_projection(cloud(n, 2, seed), radius / 2)

    def g(h):
        return scale * DOT(h, h).points

    found = fixed_point(g, x, constant=0.9, radius=2 * radius, tol=1e-14)
    assert found.converged
    assert found.guaranteed
    assert found.reach <= radius / 2 / (1 - scale) + 1e-12  # which one token attains
    assert all(b <= 0.9 * a + 1e-15 for a, b in zip(found.steps, found.steps[1:], strict=False))


def dot_bound(radius):
    return attention_on_ball(2, radius).value


def scaled(c):
    return lambda x: c * DOT(x, x).points


def test_the_ball_that_the_input_came_from_guarantees_nothing():
    c = value_scale(dot_bound(1.0), target=0.9)  # a contraction on the ball R = 1, and not on the one that holds y
    x = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    y = x + scaled(c)(x)
    assert float(y.norm()) == pytest.approx(1 + c)
    small = invert(scaled(c), y, constant=0.9, radius=1.0)
    assert not small.guaranteed
    assert small.reach >= 1 + c > 1.0
    assert not invert(scaled(c), y, constant=0.9).guaranteed  # no ball, no guarantee
    assert not invert(scaled(c), y, radius=2.0).guaranteed
    c, radius = invertible_scale(dot_bound, 1.0)
    y = x + scaled(c)(x)
    good = invert(scaled(c), y, constant=c * dot_bound(radius), radius=radius)
    assert good.guaranteed
    assert float((good.solution - x).abs().sum()) <= good.error_bound <= good.a_priori
    assert good.reach < radius
    # Not of y alone: here y lies in the ball, and the limit does not.
    away = invert(lambda x: -0.5 * x, torch.tensor([[1.0, 0.0]]).double(), constant=0.5, radius=1.9)
    close(away.solution, torch.tensor([[2.0, 0.0]]).double(), 1e-9)
    assert not away.guaranteed
    assert invert(lambda x: -0.5 * x, torch.tensor([[1.0, 0.0]]).double(), constant=0.5, radius=2.1).guaranteed


def test_what_is_not_yet_computed_counts_too():
    y = torch.tensor([[1.0, 0.0], [0.0, 0.0]]).double()
    early = invert(lambda x: -0.5 * x, y, constant=0.5, radius=1.9, max_iter=2)
    assert float(early.solution.norm(dim=-1).max()) < 1.9
    assert early.reach == pytest.approx(1.75 + 2 * early.error_bound)
    assert not early.guaranteed
    assert invert(lambda x: -0.5 * x, y, constant=0.5, radius=2.01, max_iter=2).guaranteed
    shifted = fixed_point(lambda h: 0.5 * h, y, constant=0.5, radius=1.9)  # H = 0.5 (H + y) has H + y = 2 y
    assert not shifted.guaranteed
    assert fixed_point(lambda h: 0.5 * h, y, constant=0.5, radius=2.01).guaranteed


def test_steps_that_refute_the_constant_leave_no_guarantee():
    y = torch.ones(2, 2).double()
    assert invert(lambda x: 0.8 * x, y, constant=0.8, radius=math.inf).guaranteed
    assert not invert(lambda x: 0.8 * x, y, constant=0.7, radius=math.inf).guaranteed
    broken = invert(lambda x: x * torch.nan, y, constant=0.5, radius=math.inf)
    assert not broken.guaranteed
    assert broken.reach == math.inf


def test_the_largest_scale_that_is_certainly_undone():
    c, radius = invertible_scale(dot_bound, 1.0, target=1 - 1e-12)
    assert c == pytest.approx(0.016720492, rel=1e-7)
    assert radius == pytest.approx((1 + c) / (1 - c), rel=1e-12)
    assert c * (4 * math.sqrt(2) * radius**2 + 1) * math.exp(2 * radius**2) == pytest.approx(1, rel=1e-9)
    assert c < 1 / dot_bound(1.0) == pytest.approx(0.0203302, rel=1e-5)
    # For a bound that grows as r, c (1 + c)/(1 - c) = ½ is a quadratic equation.
    assert invertible_scale(lambda r: r, 1.0, target=0.5)[0] == pytest.approx((math.sqrt(17) - 3) / 4)
    assert invertible_scale(lambda r: 4.0, 1.0, target=0.5)[0] == pytest.approx(0.125)
    scales = [invertible_scale(dot_bound, r, target=t)[0] for r, t in ((2.0, 0.9), (1.0, 0.5), (1.0, 0.9), (0.5, 0.9))]
    assert scales == sorted(set(scales))
    with pytest.raises(ValueError, match="radius must be positive and finite, got inf"):
        invertible_scale(dot_bound, math.inf)
    with pytest.raises(ValueError, match=r"target must lie in \(0, 1\), got 1"):
        invertible_scale(dot_bound, 1.0, target=1)


def test_a_random_search_at_the_boundary_stays_in_the_ball_and_contracts():
    c, radius = invertible_scale(dot_bound, 1.0, target=1 - 1e-9)
    random, outside = generator(5), 0
    for n in (1, 2, 3, 5, 8) * 40:
        x = Ball(2, 1.0)(n, random)
        x = x / x.norm(dim=1).max()  # the furthest token on the sphere
        back = invert(scaled(c), x + scaled(c)(x), constant=c * dot_bound(radius), radius=radius, tol=1e-14)
        assert back.reach <= radius
        assert back.guaranteed
        close(back.solution, x, 1e-13)
        outside += back.reach > 1
    assert outside == 200  # every y leaves the ball R = 1
    worst = contraction(lambda mu: DOT(mu, mu), sampler=Ball(2, radius), budget=600)
    assert 1 < worst.value < dot_bound(radius)
    assert c * worst.value < 1


@pytest.mark.parametrize("d", [1, 2, 3, 8, 50])
def test_the_projection_to_a_ball_stretches_l1_distances_by_half_of_1_plus_root_d(d):
    constant = 0.5 + 0.5 * math.sqrt(d)
    theta = math.atan(math.sqrt(d - 1)) / 2
    u = torch.full((d,), math.cos(theta) / math.sqrt(max(d - 1, 1)), dtype=torch.float64)
    u[0] = math.sin(theta) if d > 1 else 1.0
    step = torch.zeros_like(u)
    step[0] = 1e-6 if d > 1 else -1e-6
    pair = torch.stack([u, u + step])
    after, before = (float((points[1] - points[0]).abs().sum()) for points in (ball_projection(pair, 1.0), pair))
    assert after / before == pytest.approx(constant, rel=1e-5)
    x = 2 * torch.randn(2000, d, generator=generator(d), dtype=torch.float64) / math.sqrt(d)
    for size in (1e-3, 0.1, 1.0):
        y = x + size * torch.nn.functional.one_hot(torch.arange(2000) % d, d)
        gaps = (x - y).abs().sum(1)
        assert float(((ball_projection(x, 1.0) - ball_projection(y, 1.0)).abs().sum(1) / gaps).max()) <= constant + 1e-9
        assert float(((ball_projection(x, 1.0) - ball_projection(y, 1.0)).norm(dim=1) / gaps).max()) <= 1 + 1e-9
        assert float(((x.clamp(-1, 1) - y.clamp(-1, 1)).abs().sum(1) / gaps).max()) <= 1 + 1e-9  # a box: no stretch


def test_value_scale_and_ball_projection():
    assert value_scale(9.0) == pytest.approx(0.1)
    assert value_scale(9.0, target=0.5) == pytest.approx(0.5 / 9)
    assert value_scale(0.2) == 1
    points = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    torch.testing.assert_close(ball_projection(points, 1.0), torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))
    with pytest.raises(ValueError, match="bound must be positive"):
        value_scale(0.0)
    with pytest.raises(ValueError, match=r"target must lie in \(0, 1\)"):
        value_scale(1.0, target=1.0)
    with pytest.raises(ValueError, match="radius must be positive"):
        ball_projection(points, 0.0)


# --- bad input ------------------------------------------------------------------------------------------------------


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="finite logits"):
        DOT(1e200 * torch.ones(1, 1).double(), torch.tensor([[1e200], [0.0]], dtype=torch.float64))
    with pytest.raises(ValueError, match="finite logits"):
        GAUSS(1e200 * torch.ones(1, 1).double(), torch.zeros(1, 1).double())
    hidden = torch.tensor([[True, True, True], [False, False, False], [True, False, False]])
    for kernel in (DOT, GAUSS):
        with pytest.raises(ValueError, match="leave every query a key, got none for query 1"):
            kernel(X, X, mask=hidden)
    with pytest.raises(ValueError, match=r"mask must have shape \[3, 5\], got \[3, 3\]"):
        DOT(X, Y, mask=hidden)
    light = Measure(X, torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64))  # only key 0 has mass, and it is hidden
    for kernel in (DOT, GAUSS):
        with pytest.raises(ValueError, match="leave every query a key with mass, got none for query 0"):
            kernel(X, light, mask=torch.tensor([[False, True, True]]))
    with pytest.raises(TypeError, match=r"mask must be booleans or numbers to add, got torch.int64"):
        DOT(X, X, mask=torch.ones(3, 3, dtype=torch.int64))
    for wrong in (torch.nan, torch.inf):
        with pytest.raises(ValueError, match=r"mask must hold finite numbers or -inf, got NaN or \+inf"):
            DOT(X, X, mask=torch.full((3, 3), wrong))
    for potential in (DotProduct(), Gaussian()):
        with pytest.raises(ValueError, match="queries and keys must have one dimension, got 2 and 1"):
            AttentionKernel(potential)(X, X[:, :1])
    with pytest.raises(ValueError, match=r"Bilinear: keys must lie in R\^2, got R\^1"):
        AttentionKernel(Bilinear(torch.eye(2), torch.eye(2)))(X, X[:, :1])
    with pytest.raises(ValueError, match=r"Linear: weight must be \[d_v, 2\], got \[3, 3\]"):
        AttentionKernel(DotProduct(), Linear(torch.eye(3)))(X, X)
    with pytest.raises(ValueError, match="matrices with as many rows"):
        Bilinear(torch.zeros(2, 3), torch.zeros(3, 3))
    with pytest.raises(ValueError, match="gamma must be positive"):
        Gaussian(0.0)
    with pytest.raises(ValueError, match="one per key, got 2 for 3"):
        Table(X, X[:2])
    with pytest.raises(ValueError, match="among those of the table"):
        AttentionKernel(DotProduct(), Table(X, X))(X, Y)
    with pytest.raises(ValueError, match="at least one kernel"):
        MultiHeadKernel([], [])(X, X)
    with pytest.raises(ValueError, match="out must have 2 rows, one per head output, got 3"):
        MultiHeadKernel([DOT], torch.zeros(3, 2))(X, X)
    with pytest.raises(ValueError, match="tol must be positive"):
        invert(residual, X, tol=0)
    with pytest.raises(ValueError, match=r"invert: radius must be positive, got 0\. It is that of the ball on which"):
        invert(residual, X, constant=0.9, radius=0)
    with pytest.raises(ValueError, match="keep the shape"):
        fixed_point(lambda h: h[:1], X)
    with pytest.raises(ValueError, match="start must be finite"):
        invert(residual, X * torch.nan)


def test_float32_weights_and_points_meet_float64_ones():
    w = mat(2, 2, 0.3)
    kernel = AttentionKernel(Bilinear(w.float(), w.float(), bq=w[0].float()), Linear(w.float(), w[1].float()))
    wide = AttentionKernel(Bilinear(w, w, bq=w[0]), Linear(w, w[1]))
    assert kernel(X, Y).points.dtype == torch.float64
    close(kernel(X, Y).points, wide(X, Y).points, 1e-6)
    assert DOT(X, Y.float()).points.dtype == DOT(X.float(), Y).points.dtype == torch.float64
    close(DOT(X.float(), Y).points, DOT(X, Y).points, 1e-6)
    assert DOT(X.float(), Y.float()).points.dtype == torch.float32


def test_a_fixed_point_is_printed_without_its_steps():
    assert "steps" not in repr(fixed_point(residual, X))


def test_a_table_finds_its_keys_in_any_order():
    values = cloud(3, 4)
    close(Table(X, values)(X[[2, 0]]), values[[2, 0]])
