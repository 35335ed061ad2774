import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lisse.maths.integral import (
    IntegralOperator,
    attention_kernel,
    dot_decomposition,
    kernel_scores,
    offset_average,
    offset_defect,
    row_distance,
    row_sum_error,
    symmetry_defect,
)
from lisse_experiments.masked_autoencoders.spectra import mercer

KINDS = ("dot", "gauss_qk", "rbf_w", "eq11_literal")
I, J = torch.arange(1, 6, dtype=torch.float64)[:, None], torch.arange(1, 4, dtype=torch.float64)
Y = torch.sin(0.6 * I * J) + 0.05 * I


def weights(s, d=3):
    i = torch.arange(1, d + 1, dtype=torch.float64)
    return torch.cos(s * (i[:, None] + 2 * i))


Q, K, V = Y @ weights(0.4), Y @ weights(0.7), Y @ weights(1.1)


def tokens(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def naive(q, k, kind, gamma):
    """Every entry by its formula, alone."""
    d = q.shape[1]
    w = q - k if len(q) == len(k) else None
    entry = {
        "dot": lambda i, j: math.exp(float(q[i] @ k[j]) / math.sqrt(d)),
        "gauss_qk": lambda i, j: math.exp(-float((q[i] - k[j]).square().sum()) / (2 * math.sqrt(d))),
        "rbf_w": lambda i, j: math.exp(-gamma * float((w[i] - w[j]).square().sum())),
        "eq11_literal": lambda i, j: math.exp(-gamma * float(w[i] @ w[j])),
    }[kind]
    return torch.tensor([[entry(i, j) for j in range(len(k))] for i in range(len(q))], dtype=torch.float64)


# --- kernels --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_four_readings(kind):
    found = attention_kernel(Q, K, kind=kind, gamma=0.5)
    exact = naive(Q, K, kind, 0.5)
    torch.testing.assert_close(found.raw, exact, rtol=1e-12, atol=0)
    torch.testing.assert_close(found.alpha, exact.sum(1), rtol=1e-12, atol=0)
    torch.testing.assert_close(found.log_alpha, exact.sum(1).log(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.matrix, exact / exact.sum(1, keepdim=True), rtol=1e-12, atol=0)
    torch.testing.assert_close(found(V), found.matrix @ V)
    assert torch.equal(kernel_scores(Q, K, kind=kind, gamma=0.5), found.scores)


def test_dot_is_the_softmax_of_the_scaled_product_by_default():
    torch.testing.assert_close(attention_kernel(Q, K).matrix, (Q @ K.T / 3**0.5).softmax(-1))
    torch.testing.assert_close(attention_kernel(Q, K, scale=2.0).matrix, (Q @ K.T * 2).softmax(-1))


def test_gamma_has_a_default_and_belongs_to_two_kinds():
    default = 1 / (2 * 3**0.5)
    for kind in ("rbf_w", "eq11_literal"):
        given_ = attention_kernel(Q, K, kind=kind, gamma=default)
        assert torch.equal(attention_kernel(Q, K, kind=kind).matrix, given_.matrix)
        assert not torch.equal(attention_kernel(Q, K, kind=kind, gamma=0.5).matrix, given_.matrix)
    for kind in ("dot", "gauss_qk"):
        assert torch.equal(
            attention_kernel(Q, K, kind=kind, gamma=0.5).matrix, attention_kernel(Q, K, kind=kind).matrix
        )


def test_the_rbf_is_a_softmax_of_an_attractive_product_less_norms():
    w, gamma = Q - K, 0.5
    attractive = (2 * gamma * w @ w.T - gamma * w.square().sum(1)).softmax(-1)
    torch.testing.assert_close(attention_kernel(Q, K, kind="rbf_w", gamma=gamma).matrix, attractive)
    # (11) as printed has the other sign: it looks away from what is alike.
    literal = attention_kernel(Q, K, kind="eq11_literal", gamma=gamma).matrix
    largest = int(w.square().sum(1).argmax())
    assert float(literal[largest, largest]) < 0.2 < float(attractive[largest, largest])


def test_gauss_equals_dot_exactly_where_keys_have_one_length():
    unit = K / K.norm(dim=1, keepdim=True)
    gauss = attention_kernel(Q, unit, kind="gauss_qk").matrix
    torch.testing.assert_close(gauss, attention_kernel(Q, unit).matrix, rtol=1e-12, atol=1e-14)
    assert float(row_distance(attention_kernel(Q, K, kind="gauss_qk").matrix, attention_kernel(Q, K).matrix)) > 0.01


def test_the_three_terms_of_the_dot_product():
    parts = dot_decomposition(Q, K)
    torch.testing.assert_close(parts.query[:, None] + parts.key + parts.difference, Q @ K.T)
    spread = float((K.square().sum(1) / 2).std(correction=0)) / 3**0.5
    assert float(parts.key_spread) == pytest.approx(spread)
    assert float(dot_decomposition(Q, K, scale=1.0).key_spread) == pytest.approx(spread * 3**0.5)
    assert float(dot_decomposition(Q, K / K.norm(dim=1, keepdim=True)).key_spread) < 1e-15
    assert float(parts.shares.sum()) == pytest.approx(1)
    assert float(parts.shares[0]) == pytest.approx(
        float(parts.query.mean() / (parts.query.mean() + parts.key.mean() - parts.difference.mean()))
    )


def test_large_scores_do_not_overflow_the_matrix_and_raw_says_so():
    far = attention_kernel(100 * tokens(4, 8), 100 * tokens(4, 8, seed=1))
    assert float(row_sum_error(far.matrix)) < 1e-12
    assert torch.isfinite(far.log_alpha).all()
    with pytest.raises(ValueError, match=r"scores must be below .* in exp for raw"):
        _ = far.raw
    with pytest.raises(ValueError, match=r"got an overflow. Use the"):
        IntegralOperator(100 * tokens(4, 8), 100 * tokens(4, 8, seed=1)).raw(tokens(4, 1))


def test_raw_sees_an_overflow_in_one_entry_whatever_the_values():
    q, k, v = tokens(6, 3).float(), tokens(6, 3, seed=1).float(), torch.zeros(6, 2)
    q[4], k[2] = 30.0, 30.0  # 2700/√3 in exp; every other score stays in range
    v[0, 0] = 1.0
    for context in (torch.no_grad, torch.enable_grad):
        with context(), pytest.raises(ValueError, match="got an overflow"):
            IntegralOperator(q, k, chunk=12).raw(v)  # infinity times nothing is no number
        with context():
            rest = IntegralOperator(q[:4], k, chunk=12).raw(v)
            torch.testing.assert_close(rest, attention_kernel(q[:4], k).raw @ v)


@pytest.mark.parametrize("kind", KINDS)
def test_raw_sums_have_the_gradient_of_the_matrix(kind):
    q, k, v = (tokens(5, 3, seed=s).requires_grad_() for s in range(3))
    weights = tokens(5, 2, seed=4) @ torch.ones(2, 3, dtype=torch.float64)
    got = torch.autograd.grad((weights * IntegralOperator(q, k, kind=kind, chunk=10).raw(v)).sum(), (q, k, v))
    wanted = torch.autograd.grad((weights * (attention_kernel(q, k, kind=kind).raw @ v)).sum(), (q, k, v))
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)


token_clouds = st.tuples(st.integers(2, 8), st.integers(1, 4), st.integers(0, 10_000), st.floats(0.05, 3.0))


@given(token_clouds, st.sampled_from(KINDS))
def test_properties_of_every_kernel(cloud, kind):
    p, d, seed, gamma = cloud
    q, k, v = (tokens(p, d, seed=seed + i) for i in range(3))
    kernel = attention_kernel(q, k, kind=kind, gamma=gamma)
    assert float(kernel.matrix.min()) >= 0
    assert float(row_sum_error(kernel.matrix)) < 1e-12
    constant = torch.ones(p, 2, dtype=torch.float64)
    torch.testing.assert_close(kernel(constant), constant)
    # In the convex hull: no linear functional is larger on z than on the values.
    direction = tokens(d, 5, seed=seed + 9)
    assert bool(((kernel(v) @ direction).amax(0) <= (v @ direction).amax(0) + 1e-9).all())
    if kernel.symmetric:
        assert float(symmetry_defect(kernel.raw)) < 1e-12
        assert float(symmetry_defect(kernel.matrix, alpha=kernel.alpha)) < 1e-12


@given(token_clouds)
def test_the_rbf_is_positive_semidefinite_and_translation_invariant_in_w(cloud):
    p, d, seed, gamma = cloud
    q, k = tokens(p, d, seed=seed), tokens(p, d, seed=seed + 1)
    kernel = attention_kernel(q, k, kind="rbf_w", gamma=gamma)
    assert float(torch.linalg.eigvalsh(kernel.raw).min()) > -1e-12 * p
    shifted = attention_kernel(q + tokens(1, d, seed=seed + 2), k, kind="rbf_w", gamma=gamma)
    torch.testing.assert_close(kernel.raw, shifted.raw, rtol=1e-9, atol=1e-12)
    spectrum = mercer(kernel)
    assert spectrum.positive
    assert float(spectrum.values[0]) == pytest.approx(1, abs=1e-9)
    assert float(spectrum.values[-1]) > -1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind):
    q, k = (x.clone().requires_grad_() for x in (Q, K))
    assert torch.autograd.gradcheck(lambda q, k: attention_kernel(q, k, kind=kind, gamma=0.5).matrix, (q, k))
    v = V.clone().requires_grad_()
    for way in ("fused", "chunked"):
        assert torch.autograd.gradcheck(
            lambda q, k, v, w=way: IntegralOperator(q, k, kind=kind, gamma=0.5, way=w, chunk=7)(v), (q, k, v)
        )


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: attention_kernel(Q, K, kind="x"), "kind must be one of dot, gauss_qk, rbf_w, eq11_literal, got 'x'"),
        (lambda: attention_kernel(Q, K[:, :2]), "with the same d"),
        (lambda: attention_kernel(Q, K[:3], kind="rbf_w"), "as many tokens for rbf_w"),
        (lambda: attention_kernel(Q, K, kind="rbf_w", gamma=0.0), "gamma must be positive"),
        (lambda: attention_kernel(Q, K, scale=-1.0), "scale must be positive"),
        (lambda: attention_kernel(Q * torch.nan, K), "q must be finite"),
        (lambda: IntegralOperator(Q, K, way="x"), "way must be fused or chunked"),
        (lambda: IntegralOperator(Q, K, chunk=0), "chunk must be at least 1"),
        (lambda: IntegralOperator(Q, K)(V[:2]), r"v must be \[..., 5, e\], one row per key"),
        (lambda: IntegralOperator(Q, K, kind="rbf_w").on(slice(0, 2)), "kind must be dot or gauss_qk"),
    ],
)
def test_bad_input(call, says):
    with pytest.raises(ValueError, match=says):
        call()


# --- without the matrix ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["fused", "chunked"])
def test_the_operator_is_the_matrix(kind, way):
    q, k, v = tokens(2, 3, 37, 5), tokens(2, 3, 37, 5, seed=1), tokens(2, 3, 37, 7, seed=2)
    dense = attention_kernel(q, k, kind=kind, gamma=0.3)
    operator = IntegralOperator(q, k, kind=kind, gamma=0.3, way=way, chunk=500)
    with torch.no_grad():
        torch.testing.assert_close(operator(v), dense(v), rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(operator.raw(v), dense.raw @ v, rtol=1e-10, atol=1e-11)
        torch.testing.assert_close(operator.alpha(), dense.alpha, rtol=1e-11, atol=0)
        torch.testing.assert_close(operator.log_alpha(), dense.log_alpha, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(operator.dense().matrix, dense.matrix)
    torch.testing.assert_close(operator(v), dense(v), rtol=1e-11, atol=1e-12)  # with a graph, blocks are put together


def test_chunks_of_any_size_give_the_same():
    q, k, v = tokens(11, 4), tokens(11, 4, seed=1), tokens(11, 2, seed=2)
    for chunk in (1, 11, 30, 10**6):
        found = IntegralOperator(q, k, kind="gauss_qk", way="chunked", chunk=chunk)(v)
        torch.testing.assert_close(found, attention_kernel(q, k, kind="gauss_qk")(v))


def test_other_queries_than_keys_and_one_set_of_values_for_all_heads():
    q, k, v = tokens(2, 5, 4), tokens(2, 9, 4, seed=1), tokens(9, 3, seed=2)
    for way in ("fused", "chunked"):
        with torch.no_grad():
            found = IntegralOperator(q, k, kind="gauss_qk", way=way)(v)
        torch.testing.assert_close(found, attention_kernel(q, k, kind="gauss_qk")(v))
    part = IntegralOperator(q, k, kind="dot").on(torch.tensor([3, 1]))
    torch.testing.assert_close(part(v), attention_kernel(q, k)(v)[:, [3, 1]])


def test_tokens_far_from_zero_keep_their_digits_in_float32():
    q, k, v = (tokens(50, 8, seed=s).float() for s in range(3))
    near = IntegralOperator(q, k, kind="gauss_qk")(v)
    for away in (100, 1000):  # q and k themselves lose as many digits; the squares of their norms would lose them all
        for way in ("fused", "chunked"):
            far = IntegralOperator(q + away, k + away, kind="gauss_qk", way=way)(v)
            torch.testing.assert_close(near, far, rtol=1e-3, atol=1e-3)
    assert far.dtype == torch.float32
    far = attention_kernel(q + 1000, k + 1000, kind="gauss_qk")(v)
    torch.testing.assert_close(near, far, rtol=1e-3, atol=1e-3)


def test_the_fused_way_makes_no_matrix():
    look = torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU])
    with torch.no_grad(), look as seen:
        q, k, v = tokens(2000, 8), tokens(2000, 8, seed=1), tokens(2000, 8, seed=2)
        for kind in KINDS:
            IntegralOperator(q, k, kind=kind)(v)
    largest = max(event.self_cpu_memory_usage for event in seen.events())
    assert largest < 0.1 * 2000 * 2000 * 8


# --- structure ------------------------------------------------------------------------------------------------------


def test_symmetry():
    skew = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    assert float(symmetry_defect(skew)) == 1
    assert float(symmetry_defect(skew.abs())) == 0
    kernel = attention_kernel(Q, K, kind="rbf_w", gamma=0.5)
    assert float(symmetry_defect(kernel.matrix)) > 0.01
    assert float(symmetry_defect(kernel.matrix, alpha=7 * kernel.alpha)) < 1e-15
    dot = attention_kernel(Q, K)
    assert float(symmetry_defect(dot.matrix, alpha=dot.alpha)) > 0.05


def test_distance_of_rows():
    a, b = torch.eye(3), torch.eye(3)[[1, 2, 0]]
    assert float(row_distance(a, b)) == 1
    assert float(row_distance(a, torch.full((3, 3), 1 / 3))) == pytest.approx(2 / 3)
    assert row_distance(torch.stack([a, b]), b).tolist() == [1, 0]
    assert float(row_sum_error(2 * a)) == 1


def test_a_convolution_has_no_offset_defect():
    weight = tokens(1, 1, 3, 3)
    basis = torch.eye(20, dtype=torch.float64).reshape(20, 1, 4, 5)
    matrix = torch.nn.functional.conv2d(basis, weight, padding=1).reshape(20, 20).T
    assert float(offset_defect(matrix, grid=(4, 5))) < 1e-14
    other = tokens(2, 20, 20)
    mean = offset_average(other, grid=(4, 5))
    # A projection: what is left is orthogonal to it, and to averages of other matrices.
    assert abs(float(((other - mean)[0] * offset_average(tokens(20, 20, seed=5), grid=(4, 5))).sum())) < 1e-10
    assert float(offset_defect(other, grid=(4, 5)).max()) <= 1
    same: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for i in range(20):
        for j in range(20):
            same.setdefault((j // 5 - i // 5, j % 5 - i % 5), []).append((i, j))
    for pairs in same.values():
        i, j = zip(*pairs, strict=True)
        torch.testing.assert_close(mean[:, i, j], other[:, i, j].mean(1, keepdim=True).expand(2, len(pairs)))
    diagonal = torch.diag(torch.arange(9.0))
    torch.testing.assert_close(offset_average(diagonal), 4 * torch.eye(9))


# --- non-local means ------------------------------------------------------------------------------------------------
