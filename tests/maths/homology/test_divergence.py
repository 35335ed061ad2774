from __future__ import annotations

import itertools
import math

import gudhi
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lisse.maths.homology import distance_matrix, persistence
from lisse.maths.homology.divergence import cross_bars, merge_divergence, topology_divergence
from lisse_experiments.topolip.summaries import total_persistence


def cloud(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def similar(x: torch.Tensor, seed: int, factor: float = 3.0) -> torch.Tensor:
    rotation = torch.linalg.qr(cloud(x.shape[1], x.shape[1], seed).to(x.dtype))[0]
    return factor * x @ rotation + 2


def total(bars: torch.Tensor) -> float:
    return float((bars[:, 1] - bars[:, 0]).sum())


def sorted_bars(bars) -> np.ndarray:
    bars = np.asarray(bars, dtype=float).reshape(-1, 2)
    bars = bars[bars[:, 1] - bars[:, 0] > 1e-12]
    return bars[np.lexsort(bars.T)]


# --- closed forms ---------------------------------------------------------------------------------------------------


def test_two_points_that_come_nearer():
    """One cluster less from 1 to 3, seen from the wide pair; nothing seen from the near one."""
    near, far = torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([[0.0, 3.0], [3.0, 0.0]])
    assert cross_bars(far, near).tolist() == [[1, 3]]
    assert cross_bars(near, far).tolist() == []
    assert merge_divergence(far, near) == 2
    assert merge_divergence(near, far) == 0
    assert merge_divergence(far, near, rounding=2.0) == 0


def test_a_loop_that_is_only_in_one_of_them():
    """Four points far apart, against the corners of a square: three mergers, and the square's own loop."""
    far = 10 * (1 - torch.eye(4))
    square = distance_matrix(torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 0.0]]))
    bars = cross_bars(far, square)
    assert sorted(bars[:, 1].tolist()) == pytest.approx([2**0.5, 10, 10, 10])
    assert bars[:, 0].tolist() == [1] * 4
    assert merge_divergence(far, square) == 27
    assert total(bars) == pytest.approx(27 + 2**0.5 - 1)


def test_a_cloud_that_is_one_point_has_no_shape():
    result = topology_divergence(cloud(6, 2), torch.ones(6, 3))
    assert math.isnan(result.value)
    assert math.isnan(result.merges)


# --- properties -----------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(
    st.integers(3, 20),
    st.integers(1, 5),
    st.integers(0, 1000),
    st.floats(1e-3, 1e3),
    st.sampled_from([torch.float64, torch.float32]),
    st.sampled_from(["quantile", "spread"]),
)
def test_similar_clouds_have_none(n, d, seed, factor, dtype, unit):
    x = cloud(n, d, seed).to(dtype)
    # the turned copy is rounded a few more times than once
    result = topology_divergence(x, similar(x, seed + 1, factor), unit=unit, rounding=8 * torch.finfo(dtype).eps)
    assert (result.value, result.forward, result.backward, result.merges) == (0, 0, 0, 0)
    assert result.rounding < 1e-3


@settings(max_examples=30)
@given(st.integers(3, 14), st.integers(0, 1000), st.floats(1e-2, 1e2), st.sampled_from(["quantile", "spread"]))
def test_it_is_symmetric_and_no_cloud_has_a_unit(n, seed, factor, unit):
    x, y = cloud(n, 3, seed), cloud(n, 2, seed + 1)
    base = topology_divergence(x, y, unit=unit)
    turned = topology_divergence(y, x, unit=unit)
    moved = topology_divergence(similar(x, seed, factor), similar(y, seed, 1 / factor), unit=unit)
    assert (turned.value, turned.forward, turned.backward) == (base.value, base.backward, base.forward)
    assert moved.value == pytest.approx(base.value, rel=1e-6, abs=1e-9)
    assert moved.merges == pytest.approx(base.merges, rel=1e-6, abs=1e-9)


@settings(max_examples=30)
@given(st.integers(3, 14), st.integers(0, 1000), st.floats(0, 1))
def test_bars_are_no_longer_than_the_change_and_lie_between_their_bounds(n, seed, size):
    x = cloud(n, 3, seed)
    w, other = distance_matrix(x), distance_matrix(x + size * cloud(n, 3, seed + 1))
    bars = cross_bars(w, other)
    change = float((w - other).abs().max())
    assert float((bars[:, 1] - bars[:, 0]).max() if len(bars) else 0) <= change + 1e-12
    merges = merge_divergence(w, other)
    loops = float(total_persistence(persistence(distances=torch.minimum(w, other), dims=(1,)), dim=1))
    assert merges - 1e-9 <= total(bars) <= merges + loops + 1e-9
    assert cross_bars(torch.minimum(w, other), w).tolist() == []


def test_pairs_matter_and_diagrams_do_not_see_them():
    x = cloud(30, 2)
    shuffled = x[torch.randperm(30, generator=torch.Generator().manual_seed(1))]
    assert topology_divergence(x, shuffled).value > 2.5


# --- outside and naive versions -------------------------------------------------------------------------------------


def naive(w: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The definition, all simplices of 2n points by GUDHI."""
    n = len(w)
    table = np.zeros((2 * n, 2 * n))
    table[n:, :n] = table[:n, n:] = w
    table[n:, n:] = np.minimum(w, other)
    tree = gudhi.RipsComplex(distance_matrix=table).create_simplex_tree(max_dimension=2)
    tree.compute_persistence(homology_coeff_field=2)
    return sorted_bars(tree.persistence_intervals_in_dimension(1))


def cone(w: np.ndarray, other: np.ndarray) -> np.ndarray:
    """What it means: the complex of min(w, other) with a cone over that of w, simplex by simplex."""
    n, least = len(w), np.minimum(w, other)
    tree = gudhi.SimplexTree()
    for size in (1, 2, 3):
        for simplex in itertools.combinations(range(n), size):
            pairs = list(itertools.combinations(simplex, 2))
            tree.insert(list(simplex), max((least[pair] for pair in pairs), default=0.0))
            tree.insert([*simplex, n], max((w[pair] for pair in pairs), default=0.0))
    tree.insert([n], 0.0)
    tree.compute_persistence(homology_coeff_field=2)
    return sorted_bars(tree.persistence_intervals_in_dimension(1))


@pytest.mark.parametrize("seed", range(6))
def test_it_agrees_with_the_definition_and_with_what_it_means(seed):
    w, other = distance_matrix(cloud(9, 2, seed)).numpy(), distance_matrix(cloud(9, 3, seed + 50)).numpy()
    ours = sorted_bars(cross_bars(w, other))
    np.testing.assert_allclose(ours, naive(w, other), atol=1e-12)
    np.testing.assert_allclose(ours, cone(w, other), atol=1e-12)


def test_the_whole_is_the_mean_of_both_in_their_units():
    x, y = cloud(12, 2), cloud(12, 4, 1)
    w, other = distance_matrix(x), distance_matrix(y)
    upper = np.triu_indices(12, 1)
    w, other = w / np.quantile(w.numpy()[upper], 0.9), other / np.quantile(other.numpy()[upper], 0.9)
    result = topology_divergence(x, y)
    assert result.forward == pytest.approx(total(cross_bars(w, other)))
    assert result.backward == pytest.approx(total(cross_bars(other, w)))
    assert result.value == pytest.approx((result.forward + result.backward) / 2)
    assert result.merges == pytest.approx((merge_divergence(w, other) + merge_divergence(other, w)) / 2)
    spreads = [float((z - z.mean(0)).square().sum(1).mean().sqrt()) for z in (x, y)]
    by_spread = topology_divergence(x, y, unit="spread")
    w, other = distance_matrix(x) / spreads[0], distance_matrix(y) / spreads[1]
    assert by_spread.forward == pytest.approx(total(cross_bars(w, other)))


@pytest.mark.slow
def test_the_number_in_the_authors_readme():
    """rtd.rtd(P, Q) on their example is 35.55234398557805: ten trials of 500 points, their quantile, in float32."""
    random = np.random.RandomState(7)
    first, second = random.rand(1000, 2), random.rand(1000, 2)
    trials = []
    for _ in range(10):
        index = list(range(1000))
        random.shuffle(index)
        w, other = (distance_matrix(points[index[:500]]) for points in (first, second))
        w, other = w / np.quantile(w.numpy(), 0.9), other / np.quantile(other.numpy(), 0.9)
        trials.append((total(cross_bars(w, other)) + total(cross_bars(other, w))) / 2)
    assert np.mean(trials) == pytest.approx(35.55234398557805, rel=1e-7)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: cross_bars(torch.zeros(3, 3), torch.zeros(2, 2)), "of the same points, got 3 and 2"),
        (lambda: merge_divergence(torch.zeros(3, 3), torch.zeros(2, 2)), "of the same points, got 3 and 2"),
        (lambda: cross_bars(torch.zeros(3, 2), torch.zeros(3, 2)), "cross_bars: distances must be a square matrix"),
        (lambda: topology_divergence(torch.ones(3, 2), torch.ones(4, 2)), "same samples, got 3 and 4"),
        (lambda: topology_divergence(torch.ones(3, 2), torch.ones(3, 2), unit="inch"), "quantile, spread, got 'inch'"),
        (lambda: topology_divergence(torch.ones(3), torch.ones(3)), r"shape \[n, d\]"),
    ],
)
def test_bad_input(call, match):
    with pytest.raises(ValueError, match=match):
        call()
