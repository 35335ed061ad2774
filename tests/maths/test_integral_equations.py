import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lisse.maths.integral import (
    IntegralOperator,
    attention_kernel,
    fredholm_first,
    fredholm_second,
    skip_connection,
    tikhonov,
    tikhonov_functional,
)
from lisse.maths.integral.equations import conjugate_gradients, gmres, tolerance

X = torch.linspace(0, 1, 6, dtype=torch.float64)
K = torch.exp(-2 * (X[:, None] - X).square())
Z = torch.cos(3 * X) + 0.2 * X
ALPHA = K.sum(1)
EYE = torch.eye(6, dtype=torch.float64)
BETA = 0.3
KERNEL = attention_kernel(X[:, None], torch.zeros(6, 1, dtype=torch.float64), kind="rbf_w", gamma=2.0)
OPERATOR = IntegralOperator(X[:, None], torch.zeros(6, 1, dtype=torch.float64), kind="rbf_w", gamma=2.0)
LITERAL = IntegralOperator(X[:, None], torch.zeros(6, 1, dtype=torch.float64), kind="eq11_literal")


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- Tikhonov -------------------------------------------------------------------------------------------------------


def test_a_constant_alpha():
    found = tikhonov(K, Z, BETA, weighting="alpha", alpha=2.5)
    assert found.solution[:2].tolist() == pytest.approx([1.0177030210, 0.9426556149], abs=1e-10)
    torch.testing.assert_close(found.solution, torch.linalg.solve(BETA * EYE + K / 2.5, Z))


@pytest.mark.parametrize("kernel", [K, KERNEL, OPERATOR, K.numpy()])
def test_the_weighted_functional_has_equation_23(kernel):
    found = tikhonov(kernel, Z, BETA, weighting="alpha")
    torch.testing.assert_close(found.solution, torch.linalg.solve(BETA * EYE + K / ALPHA[:, None], Z))
    assert float(found.functional) == pytest.approx(2.5565321893, abs=1e-10)
    assert float(found.residual) < 1e-10
    assert found.converged


@pytest.mark.parametrize("kernel", [K, KERNEL, OPERATOR])
def test_the_unweighted_functional_does_not(kernel):
    found = tikhonov(kernel, Z, BETA, weighting="none")
    torch.testing.assert_close(found.solution, torch.linalg.solve(BETA * ALPHA.diag() + K / ALPHA[:, None], Z))
    assert float(found.residual) == pytest.approx(0.50, abs=5e-3)
    assert float(found.gradient) < 1e-10
    assert torch.equal(tikhonov(kernel, Z, BETA).solution, found.solution)
    # With α = 1 both are the same, and (23) holds.
    one = tikhonov(kernel, Z, BETA, weighting="none", alpha=1.0)
    torch.testing.assert_close(one.solution, tikhonov(kernel, Z, BETA, weighting="alpha", alpha=1.0).solution)
    assert float(one.residual) < 1e-8


def test_the_functional_is_the_formula():
    v = draw(6)
    misfit = K @ v / ALPHA - Z
    plain = misfit.square().sum() / 2 + BETA / 2 * v @ K @ v
    weighted = (ALPHA * misfit.square()).sum() / 2 + BETA / 2 * v @ K @ v
    torch.testing.assert_close(tikhonov_functional(K, v, Z, BETA), plain)
    torch.testing.assert_close(tikhonov_functional(K, v, Z, BETA, weighting="alpha"), weighted)
    torch.testing.assert_close(tikhonov_functional(K, v, Z, BETA, coefficient="eq22"), plain + BETA / 2 * v @ K @ v)
    torch.testing.assert_close(tikhonov_functional(OPERATOR, v, Z, BETA), plain)


def test_the_coefficient_as_printed_in_22_is_twice_the_beta():
    printed = tikhonov(K, Z, BETA, coefficient="eq22")
    torch.testing.assert_close(printed.solution, tikhonov(K, Z, 2 * BETA).solution)
    torch.testing.assert_close(printed.solution, torch.linalg.solve(2 * BETA * ALPHA.diag() + K / ALPHA[:, None], Z))


@settings(max_examples=25)
@given(
    st.sampled_from(["none", "alpha"]), st.sampled_from(["eq37", "eq22"]), st.floats(0.05, 2.0), st.integers(0, 1000)
)
def test_it_is_a_minimum(weighting, coefficient, beta, seed):
    options = {"weighting": weighting, "coefficient": coefficient}
    found = tikhonov(K, Z, beta, **options)
    at = found.solution.clone().requires_grad_()
    value = tikhonov_functional(K, at, Z, beta, **options)
    torch.testing.assert_close(value, found.functional)
    (gradient,) = torch.autograd.grad(value, at)
    assert float(gradient.abs().max()) < 1e-11
    for step in (1e-2, 1.0):
        other = tikhonov_functional(K, found.solution + step * draw(6, seed=seed), Z, beta, **options)
        assert float(other) > float(found.functional)


def test_columns_and_batches():
    z = torch.stack([Z, 2 * Z, draw(6)], 1)
    for kernel in (K, OPERATOR):
        found = tikhonov(kernel, z, BETA, weighting="alpha")
        for column in range(3):
            torch.testing.assert_close(
                found.solution[:, column], tikhonov(K, z[:, column], BETA, weighting="alpha").solution
            )
        values = [tikhonov(K, z[:, c], BETA, weighting="alpha").functional for c in range(3)]
        torch.testing.assert_close(found.functional, sum(values))
    points = draw(2, 7, 3)
    kernels = attention_kernel(points, torch.zeros_like(points), kind="rbf_w", gamma=0.2)
    right = draw(2, 7, 4, seed=1)
    both = tikhonov(kernels, right, 0.1)
    assert both.functional.shape == both.residual.shape == (2,)
    torch.testing.assert_close(both.solution[1], tikhonov(kernels.raw[1], right[1], 0.1).solution)
    assert tikhonov(kernels, right[..., 0], 0.1).solution.shape == (2, 7)


def test_a_square_right_hand_side_is_columns_and_vectors_go_with_their_kernels():
    square = draw(6, 6)
    for kernel in (K, OPERATOR):
        found = tikhonov(kernel, square, BETA).solution
        torch.testing.assert_close(found[:, 2], tikhonov(K, square[:, 2], BETA).solution)
    both = torch.stack([K, K + EYE])
    shared = tikhonov(both, square[None], BETA).solution
    torch.testing.assert_close(shared[1], tikhonov(K + EYE, square, BETA).solution)
    each = tikhonov(both, square[:2], BETA).solution
    torch.testing.assert_close(each[1], tikhonov(K + EYE, square[1], BETA).solution)
    one = tikhonov(both, Z, BETA).solution
    torch.testing.assert_close(one[1], tikhonov(K + EYE, Z, BETA).solution)
    torch.testing.assert_close(
        tikhonov_functional(both, Z, Z, BETA), torch.stack([tikhonov_functional(one, Z, Z, BETA) for one in both])
    )


def test_iterations_say_whether_they_arrived():
    points = draw(60, 2)
    operator = IntegralOperator(points, torch.zeros_like(points), kind="rbf_w", gamma=1.0)
    z = draw(60, 3, seed=1)
    exact = tikhonov(operator, z, 0.01, weighting="alpha", method="direct")
    found = tikhonov(operator, z, 0.01, weighting="alpha")
    torch.testing.assert_close(found.solution, exact.solution, rtol=1e-6, atol=1e-7)
    assert found.converged
    assert 5 < found.iterations < 200
    short = tikhonov(operator, z, 0.01, weighting="alpha", max_iter=2)
    assert not short.converged
    assert short.iterations == 2
    rough = tikhonov(operator, z, 0.01, weighting="alpha", tol=1e-2)
    assert rough.iterations < found.iterations


def test_gradients_go_through_the_solve():
    z, points = Z.clone().requires_grad_(), X[:, None].clone().requires_grad_()

    def solved(points, z):
        kernel = attention_kernel(points, torch.zeros_like(points), kind="rbf_w", gamma=2.0)
        return tikhonov(kernel, z, BETA, weighting="alpha").solution

    assert torch.autograd.gradcheck(solved, (points, z))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: tikhonov(K, Z, 0.0), "beta must be positive, got 0.0. .* fredholm_first"),
        (lambda: tikhonov(K, Z, -1.0), "beta must be positive"),
        (lambda: tikhonov(K, Z, 1.0, weighting="x"), "weighting must be none or alpha"),
        (lambda: tikhonov(K, Z, 1.0, coefficient="x"), "coefficient must be eq37 or eq22"),
        (lambda: tikhonov(K, Z, 1.0, method="x"), "method must be direct or iterative"),
        (lambda: tikhonov(KERNEL.matrix, Z, 1.0), "kernel must be symmetric"),
        (lambda: tikhonov(attention_kernel(draw(6, 2), draw(6, 2, seed=1)), Z, 1.0), "kernel must be symmetric"),
        (
            lambda: tikhonov(IntegralOperator(draw(6, 2), draw(6, 2, seed=1)), Z, 1.0),
            "kernel must be symmetric, got dot",
        ),
        (lambda: tikhonov(torch.tensor([[1.0, 2.0], [2.0, 1.0]]), torch.ones(2), 1.0), "positive semidefinite, got"),
        (lambda: tikhonov(K, Z[:4], 1.0), r"z must be \[6\] or \[..., 6, e\] for a kernel \[6, 6\], got \[4\]"),
        (lambda: tikhonov(K, draw(3, 6), 1.0), r"z must be \[6\] or .*, got \[3, 6\]. Give .* columns \(z.mT\)"),
        (lambda: tikhonov(OPERATOR, draw(3, 6), 1.0), r"z must be \[6\] or .*, got \[3, 6\]"),
        (
            lambda: tikhonov(torch.stack([K, K]), draw(6, 6), 1.0),
            r"z must be \[6\], \[2, 6\] or \[..., 6, e\] for a kernel \[2, 6, 6\], got \[6, 6\]. .* as z\[None\]",
        ),
        (lambda: tikhonov(torch.stack([K, K]), draw(3, 6, 2), 1.0), r"got \[3, 6, 2\]"),
        (lambda: tikhonov(K, Z, 1.0, alpha=torch.ones(4)), r"alpha must be a number or \[6\], got shape \[4\]"),
        (lambda: tikhonov_functional(K, Z[:4], Z, 1.0), r"v must have the shape of z, \[6\], got \[4\]"),
        (lambda: tikhonov(LITERAL, Z, 1.0), "positive semidefinite, got eq11_literal: .* Of the four kinds rbf_w is"),
        (lambda: tikhonov(LITERAL, Z, 1.0, method="direct"), "positive semidefinite, got an eigenvalue of -"),
        (lambda: tikhonov(-K, Z, 1.0, alpha=1.0), "positive semidefinite, got an eigenvalue of -"),
        (lambda: tikhonov(-K, Z, 1.0, alpha=1.0, method="iterative"), "positive semidefinite, got an eigenvalue of -"),
        (lambda: tikhonov(-K, Z, 1.0, method="iterative"), "alpha must be positive"),
        (lambda: tikhonov(K, Z, 1.0, alpha=0.0), "alpha must be positive"),
        (lambda: tikhonov(K[:2], Z, 1.0), r"kernel must be \[..., p, p\]"),
        (lambda: fredholm_second(K * torch.nan, Z, 1.0), "fredholm_second: kernel must be finite"),
        (lambda: tikhonov(K, Z * torch.inf, 1.0), "z must be finite"),
        (lambda: tikhonov_functional(K, Z, Z, 1.0, weighting="x"), "weighting must be none or alpha"),
        (lambda: fredholm_second(K, Z, 0.0), "beta must be positive"),
        (lambda: KERNEL(Z), r"TokenKernel: v must be \[..., 6, d\], one row per key, got \[6\]"),
        (lambda: KERNEL(draw(4, 2)), r"TokenKernel: v must be \[..., 6, d\], one row per key, got \[4, 2\]"),
        (lambda: fredholm_first(K, Z, rank=7), "rank must lie in 1 … 6"),
        (lambda: fredholm_first(0 * K, Z, alpha=1.0), "kernel must not be singular, got singular values down to 0 of"),
    ],
)
def test_bad_input(call, says):
    with pytest.raises(ValueError, match=says):
        call()


# --- Fredholm -------------------------------------------------------------------------------------------------------


def test_the_first_kind_is_ill_posed_and_the_second_is_not():
    first, second = fredholm_first(K, Z), fredholm_second(K, Z, BETA)
    torch.testing.assert_close(K @ first.solution / ALPHA, Z)
    torch.testing.assert_close(second.solution, tikhonov(K, Z, BETA, weighting="alpha").solution)
    assert float(first.condition) == pytest.approx(float(torch.linalg.cond(K / ALPHA[:, None])))
    assert float(first.condition) > 1e5
    assert float(second.condition) == pytest.approx(4.4, abs=0.1)
    assert float(first.solution.abs().max()) > 10 * float(second.solution.abs().max())


def test_a_singular_kernel_is_refused_and_can_be_truncated():
    fine = torch.linspace(0, 1, 40, dtype=torch.float64)
    smooth = torch.exp(-2 * (fine[:, None] - fine).square())
    z = torch.cos(3 * fine)
    with pytest.raises(ValueError, match=r"kernel must not be singular, .* rank=, or regularise with tikhonov"):
        fredholm_first(smooth, z)
    errors = [float(fredholm_first(smooth, z, rank=r).residual) for r in (1, 3, 6)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-4
    assert tikhonov(smooth, z, 1e-3, weighting="alpha").converged


@settings(max_examples=25)
@given(st.integers(2, 8), st.floats(0.01, 3.0), st.integers(0, 1000))
def test_the_spectrum_of_the_second_kind_is_bounded_by_beta(p, beta, seed):
    points = draw(p, 2, seed=seed)
    kernel = attention_kernel(points, torch.zeros_like(points), kind="rbf_w", gamma=1.0)
    values = torch.linalg.eigvals(beta * torch.eye(p, dtype=torch.float64) + kernel.matrix)
    assert float(values.imag.abs().max()) < 1e-6
    assert beta - 1e-9 <= float(values.real.min()) <= float(values.real.max()) <= beta + 1 + 1e-9
    found = fredholm_second(kernel, draw(p, seed=seed + 1), beta)
    assert float(found.residual) < 1e-8


def test_the_second_kind_of_a_kernel_that_is_not_symmetric():
    q, k, z = draw(30, 4), draw(30, 4, seed=1), draw(30, 3, seed=2)
    exact = fredholm_second(attention_kernel(q, k), z, 0.4)
    torch.testing.assert_close(
        exact.solution,
        torch.linalg.solve(0.4 * torch.eye(30, dtype=torch.float64) + attention_kernel(q, k).matrix, z),
    )
    found = fredholm_second(IntegralOperator(q, k), z, 0.4)
    torch.testing.assert_close(found.solution, exact.solution, rtol=1e-7, atol=1e-8)
    assert found.converged
    assert not fredholm_second(IntegralOperator(q, k), z, 0.4, max_iter=2).converged
    torch.testing.assert_close(
        fredholm_second(attention_kernel(q, k), z, 0.4, method="iterative").solution,
        exact.solution,
        rtol=1e-7,
        atol=1e-8,
    )


def test_a_beta_that_meets_an_eigenvalue_is_refused():
    swap = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)  # eigenvalues 1 and -1
    with pytest.raises(ValueError, match="beta must not be minus an eigenvalue"):
        fredholm_second(swap, torch.ones(2, dtype=torch.float64), 1.0)


def test_the_skip_connection_applies_and_does_not_solve():
    z = skip_connection(K, Z, BETA)
    torch.testing.assert_close(z, BETA * Z + K @ Z / ALPHA)
    torch.testing.assert_close(skip_connection(OPERATOR, Z, BETA), z)
    # What solves βv + Av = z for that output is the layer's input again; the output itself does not.
    torch.testing.assert_close(fredholm_second(K, z, BETA).solution, Z)
    assert float((skip_connection(K, Z, BETA) - fredholm_second(K, Z, BETA).solution).abs().max()) > 0.5
    assert float((BETA * z + K @ z / ALPHA - Z).abs().max()) > 0.3
    torch.testing.assert_close(skip_connection(K, Z, BETA, alpha=2.0), BETA * Z + K @ Z / 2)


def test_a_kernel_takes_arrays():
    v = draw(6, 2)
    torch.testing.assert_close(KERNEL(v.numpy()), K / ALPHA[:, None] @ v)


# --- Krylov iterations ----------------------------------------------------------------------------------------------


def test_the_iterations_solve_what_they_are_given():
    a = draw(12, 12)
    positive, z = a @ a.T + torch.eye(12, dtype=torch.float64), draw(12, 2, seed=1)
    found = conjugate_gradients(lambda v: positive @ v, z)
    torch.testing.assert_close(found.solution, torch.linalg.solve(positive, z), rtol=1e-7, atol=1e-8)
    alpha = torch.rand(12, 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64) + 0.1
    weighted = conjugate_gradients(lambda v: positive / alpha @ v, z, weights=alpha)
    torch.testing.assert_close(weighted.solution, torch.linalg.solve(positive / alpha, z), rtol=1e-6, atol=1e-7)
    general = gmres(lambda v: a @ v, z[:, :1], restart=20)
    torch.testing.assert_close(general.solution, torch.linalg.solve(a, z[:, :1]), rtol=1e-6, atol=1e-7)
    steady = a + 8 * torch.eye(12, dtype=torch.float64)
    again = gmres(lambda v: steady @ v, z, restart=4)
    assert again.converged
    assert again.iterations > 4
    assert again.residual <= 1e-10
    nothing = torch.zeros(12, 1, dtype=torch.float64)
    assert gmres(lambda v: a @ v, nothing).converged
    assert conjugate_gradients(lambda v: positive @ v, nothing).iterations == 0


def test_conjugate_gradients_say_that_an_operator_is_not_positive():
    spectrum = torch.tensor([3.0, 2.0, 1.0, -0.5], dtype=torch.float64)[:, None]
    z = torch.ones(4, 1, dtype=torch.float64)
    found = conjugate_gradients(lambda v: spectrum * v, z)
    assert found.indefinite
    assert not found.converged
    assert found.residual > 0.1
    # One direction of two is enough, also where the first column has arrived long before.
    both = torch.cat((torch.eye(4, dtype=torch.float64)[:, :1], z), 1)
    assert conjugate_gradients(lambda v: spectrum * v, both).indefinite
    # Positive in the weighted product: no complaint, and none of columns of zeros.
    fine = conjugate_gradients(lambda v: spectrum.abs() * v, torch.cat((0 * z, z), 1), weights=spectrum.abs())
    assert fine.converged
    assert not fine.indefinite
    # Nothing is moved along a direction without curvature: B is singular, not indefinite, and that did not converge.
    flat = conjugate_gradients(lambda v: 0 * v, z)
    assert (flat.indefinite, flat.converged, float(flat.solution.abs().max())) == (False, False, 0.0)


@pytest.mark.parametrize("low", [1e-3, 1e-6])
def test_conjugate_gradients_end_in_the_norm_that_is_judged(low):
    # Weights of very different sizes: small in the weighted norm is not small in the plain one.
    alpha = torch.logspace(0, torch.tensor(low).log10().item(), 40, dtype=torch.float64)[:, None]
    a = draw(40, 40)
    symmetric = a @ a.T / 40 + torch.eye(40, dtype=torch.float64)
    z = draw(40, 2, seed=1)
    root = alpha.sqrt()

    def operator(v):  # self-adjoint in the weighted product
        return (symmetric @ (root * v)) / root

    for tol in (1e-3, 1e-6, 1e-9):
        found = conjugate_gradients(operator, z, weights=alpha, tol=tol)
        left = torch.linalg.vector_norm(z - operator(found.solution), dim=0) / torch.linalg.vector_norm(z, dim=0)
        assert found.residual == pytest.approx(float(left.max()))
        assert found.residual <= tol
        assert found.converged


def test_the_default_tolerance_can_be_reached_in_single_precision():
    points, z = draw(60, 2).float(), draw(60, 3, seed=1).float()
    operator = IntegralOperator(points, torch.zeros_like(points), kind="rbf_w", gamma=1.0)
    wide = IntegralOperator(points.double(), torch.zeros_like(points).double(), kind="rbf_w", gamma=1.0)
    exact = tikhonov(wide, z.double(), 0.05, weighting="alpha").solution
    for right in (z, z.double()):  # an operator in single precision gives no more
        found = tikhonov(operator, right, 0.05, weighting="alpha")
        assert found.converged
        assert found.iterations < 100
        assert float((found.solution.double() - exact).abs().max()) < 1e-4 * float(exact.abs().max())
    other = IntegralOperator(draw(30, 4).float(), draw(30, 4, seed=1).float())
    second = fredholm_second(other, z[:30], 0.4)
    assert second.converged
    assert not tikhonov(operator, z, 0.05, weighting="alpha", tol=1e-10).converged
    assert [tolerance(None, dtype) for dtype in (torch.float64, torch.float32, torch.bfloat16)] == [1e-10, 1e-5, 1e-2]
    assert tolerance(0.1, torch.float64) == 0.1


def test_conjugate_gradients_go_on_where_the_recurrence_lied():
    # In single precision at a condition of 10⁴ the recurrence says 5e-7 where the residual is 1.5e-6.
    spectrum, z = torch.logspace(0, -4, 200)[:, None], draw(200, 1).float()
    found = conjugate_gradients(lambda v: spectrum * v, z, tol=1e-6, max_iter=2000)
    left = torch.linalg.vector_norm(z - spectrum * found.solution) / torch.linalg.vector_norm(z)
    assert found.converged
    assert float(left) <= 1e-6


def test_iterations_that_cannot_arrive_end():
    a, z = draw(12, 12), draw(12, 1)
    singular = a @ a.T
    singular[:, 0] = singular[0] = 0.0
    for found in (
        conjugate_gradients(lambda v: singular @ v, z, max_iter=10_000),
        gmres(lambda v: singular @ v, z, max_iter=10_000),
    ):
        assert not found.converged
        assert found.iterations < 1000
    # Columns of very different sizes: each must arrive, not their sum alone.
    steady = a + 8 * torch.eye(12, dtype=torch.float64)
    both = torch.cat((z, 1e-8 * draw(12, 1, seed=3)), 1)
    found = gmres(lambda v: steady @ v, both, tol=1e-6)
    assert found.converged
    left = torch.linalg.vector_norm(both - steady @ found.solution, dim=0) / torch.linalg.vector_norm(both, dim=0)
    assert float(left.max()) <= 1e-6
