"""Numerical ranks by Sturm's sequences: those of LAPACK's eigenvalues, whatever the spectrum."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lisse.maths.rank import below, gram_rank, sturm_rank, tridiagonal


def matrices(count: int, n: int, singular: list[float], seed: int = 0) -> torch.Tensor:
    """Gram matrices ``[count, n, n]`` of matrices with these singular values, turned at random."""
    generator = torch.Generator().manual_seed(seed)
    turn = torch.linalg.qr(torch.randn(count, n, n, dtype=torch.float64, generator=generator)).Q
    values = torch.zeros(n, dtype=torch.float64)
    values[: len(singular)] = torch.tensor(singular, dtype=torch.float64) ** 2
    return turn @ torch.diag(values) @ turn.mT


@pytest.mark.parametrize("rank", [gram_rank, sturm_rank])
def test_ranks_of_known_spectra(rank):
    assert rank(matrices(3, 7, [1, 1, 0.5, 2e-3, 5e-4])).tolist() == [4, 4, 4]
    assert rank(matrices(2, 7, [1, 1, 0.5, 2e-3, 5e-4]), tol=1e-4).tolist() == [5, 5]
    assert rank(matrices(2, 7, [1, 1, 0.5, 2e-3, 5e-4]), tol=0.1).tolist() == [3, 3]
    for n in (1, 2, 3, 8):
        assert rank(torch.zeros(2, n, n, dtype=torch.float64)).tolist() == [0, 0]
        assert rank(torch.ones(2, n, n, dtype=torch.float64)).tolist() == [1, 1]
        assert rank(1e-30 * torch.eye(n, dtype=torch.float64)[None]).tolist() == [n]


@given(st.integers(1, 24), st.integers(1, 24), st.integers(0, 2**31), st.sampled_from([1e-6, 1.0, 1e8]))
@settings(max_examples=40, deadline=None)
def test_both_ways_agree(n, d, seed, size):
    generator = torch.Generator().manual_seed(seed)
    x = size * torch.randn(3, n, d, dtype=torch.float64, generator=generator)
    x[1] *= torch.logspace(0, -8.3, d, dtype=torch.float64)
    assert torch.equal(sturm_rank(x @ x.mT), gram_rank(x @ x.mT))


@pytest.mark.parametrize("n", [1, 2, 3, 12])
def test_the_tridiagonal_matrix_has_the_same_spectrum(n):
    generator = torch.Generator().manual_seed(n)
    a = torch.randn(4, n, n, dtype=torch.float64, generator=generator)
    a = a + a.mT
    diagonal, beside = tridiagonal(a)
    assert diagonal.shape == (4, n)
    assert beside.shape == (4, n - 1)
    line = torch.diag_embed(diagonal) + torch.diag_embed(beside, 1) + torch.diag_embed(beside, -1)
    values = torch.linalg.eigvalsh(a)
    torch.testing.assert_close(torch.linalg.eigvalsh(line), values)
    shifts = torch.cat([values[:, :1] - 1, (values[:, 1:] + values[:, :-1]) / 2, values[:, -1:] + 1], 1)
    assert torch.equal(below(diagonal, beside, shifts), torch.arange(n + 1).expand(4, -1))
