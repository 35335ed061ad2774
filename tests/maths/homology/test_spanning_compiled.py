"""The compiled loop of Prim's algorithm against the one in NumPy: the same vertices in the same order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lisse.maths.homology import spanning

pytest.importorskip("numba", reason="the compiled loop needs numba (lisse[fast])")


def both(matrix):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spanning, "loops", lambda _: None)
        plain = spanning._prim(matrix)
    return spanning._prim(matrix), plain


def test_a_path():
    order, parent = spanning._prim(np.abs(np.subtract.outer([0.0, 5.0, 1.0, 3.0], [0.0, 5.0, 1.0, 3.0])))
    assert order.tolist() == [2, 3, 1]
    assert parent.tolist() == [0, 2, 3]


@settings(max_examples=60)
@given(st.integers(2, 30), st.integers(1, 4), st.integers(0, 10**6))
def test_the_same_tree_also_where_edges_are_as_long(n, lengths, seed):
    """Few whole lengths: nearly all edges are tied."""
    drawn = np.random.default_rng(seed).integers(0, lengths, (n, n)).astype(float)
    matrix = np.triu(drawn, 1) + np.triu(drawn, 1).T
    compiled, plain = both(matrix)
    assert torch.equal(compiled[0], plain[0])
    assert torch.equal(compiled[1], plain[1])


def test_the_compiled_loop_in_python(monkeypatch):
    """What is measured as covered is what runs."""
    from lisse.maths.homology import loops

    matrix = np.random.default_rng(0).random((12, 12))
    matrix = matrix + matrix.T
    order, parent = np.empty(11, np.int64), np.empty(11, np.int64)
    loops.prim.py_func(matrix, order, parent)
    compiled, _ = both(matrix)
    assert order.tolist() == compiled[0].tolist()
    assert parent.tolist() == compiled[1].tolist()
