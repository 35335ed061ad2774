import math

import gudhi
import gudhi.representations
import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist, squareform

from lisse.maths.homology import Diagram, distance_matrix, persistence
from lisse_experiments.topolip.alpha import cech_persistence
from lisse_experiments.topolip.critical import critical_edges, differentiable_persistence, representative_cycles
from lisse_experiments.topolip.summaries import betti_curve, landscape, persistence_entropy, total_persistence

ANGLES = 2 * np.pi * np.arange(12) / 12
POLYGON = np.stack([np.cos(ANGLES), np.sin(ANGLES)], 1)


def cloud_of(seed, n, d):
    return np.random.default_rng(seed).standard_normal((n, d))


def ring(seed, n=40, noise=0.1):
    rng = np.random.default_rng(seed)
    t = rng.uniform(0, 2 * np.pi, n)
    return np.stack([np.cos(t), np.sin(t)], 1) + noise * rng.standard_normal((n, 2))


# --- Čech -----------------------------------------------------------------------------------------------------------


def test_čech_of_the_twelve_gon_in_radii():
    diagram = cech_persistence(POLYGON)
    expected = torch.tensor([[math.sin(math.pi / 12), 1.0]], dtype=torch.float64)
    torch.testing.assert_close(diagram[1], expected, rtol=1e-12, atol=0)
    assert diagram[0].shape == (11, 2)
    assert diagram.infinite[0].tolist() == [0.0]


def test_čech_of_a_triangle_dies_at_the_circumradius_where_rips_has_no_loop():
    triangle = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(3) / 2]])
    expected = torch.tensor([[0.5, 1 / math.sqrt(3)]], dtype=torch.float64)
    torch.testing.assert_close(cech_persistence(triangle)[1], expected, rtol=1e-12, atol=0)
    assert len(persistence(triangle)[1]) == 0


@pytest.mark.parametrize("d", [1, 2, 3])
def test_čech_and_rips_have_the_same_h0(d):
    points = cloud_of(d, 30, d) + 100
    np.testing.assert_allclose(2 * cech_persistence(points)[0].numpy(), persistence(points)[0].numpy(), rtol=1e-9)


def test_čech_of_the_octahedron_in_dimension_two():
    diagram = cech_persistence(np.concatenate([np.eye(3), -np.eye(3)]), dims=(0, 1, 2))
    torch.testing.assert_close(
        diagram[2], torch.tensor([[math.sqrt(2 / 3), 1.0]], dtype=torch.float64), rtol=1e-12, atol=0
    )


def test_čech_takes_duplicates_and_coincident_points():
    torch.testing.assert_close(cech_persistence(np.concatenate([POLYGON, POLYGON]))[1], cech_persistence(POLYGON)[1])
    assert len(cech_persistence(np.zeros((4, 2)))[0]) == 0


def test_čech_refuses_high_dimensions():
    with pytest.raises(ValueError, match="at most 3 dimensions, got 4"):
        cech_persistence(np.zeros((5, 4)))
    with pytest.raises(ValueError, match="dims must be some of"):
        cech_persistence(np.zeros((5, 2)), dims=(3,))


# --- critical edges and gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("points", [POLYGON, ring(0), cloud_of(1, 60, 10), np.round(2 * ring(2))])
def test_critical_edges_have_the_lengths_of_the_bars(points):
    edges, bars, matrix = critical_edges(points), persistence(points)[1], distance_matrix(points)
    torch.testing.assert_close(matrix[edges.birth[:, 0], edges.birth[:, 1]], bars[:, 0], rtol=1e-14, atol=0)
    torch.testing.assert_close(matrix[edges.death[:, 0], edges.death[:, 1]], bars[:, 1], rtol=1e-14, atol=0)
    again = critical_edges(distances=matrix)
    assert len(again.birth) >= len(edges.birth)


def test_a_tied_edge_that_makes_no_bar_is_not_taken_for_one_that_does():
    # A square of side 1 and, far off, three points on a line at 0, sqrt 2, 2 sqrt 2: lengths tie with the diagonals.
    square = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    line = np.array([[100.0, 0.0], [101.0, 1.0], [102.0, 2.0]])
    edges = critical_edges(np.concatenate([line, square]))
    assert edges.death.tolist() in ([[3, 5]], [[4, 6]])


def test_bars_are_differentiable():
    points = torch.from_numpy(ring(3, n=12)).requires_grad_()
    assert len(differentiable_persistence(points)[1]) > 0
    assert torch.autograd.gradcheck(lambda x: tuple(differentiable_persistence(x).values()), points)


def test_differentiable_bars_are_the_bars():
    points = torch.from_numpy(ring(4))
    found, expected = differentiable_persistence(points), persistence(points)
    for dim in (0, 1):
        torch.testing.assert_close(found[dim], expected[dim], rtol=1e-13, atol=0)
    assert list(differentiable_persistence(points, dims=(1,))) == [1]
    assert differentiable_persistence(points.float())[1].dtype == torch.float32


def test_the_gradient_of_a_death_is_the_unit_vector_along_its_edge():
    points = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(differentiable_persistence(points)[0][0, 1], points)
    torch.testing.assert_close(gradient, torch.tensor([[-0.6, -0.8], [0.6, 0.8]], dtype=torch.float64))


def test_duplicate_points_have_finite_gradients():
    points = torch.from_numpy(np.concatenate([POLYGON, POLYGON[:3]])).requires_grad_()
    bars = differentiable_persistence(points)
    (gradient,) = torch.autograd.grad(bars[0].sum() + bars[1].sum(), points)
    assert bool(torch.isfinite(gradient).all())


def test_a_penalty_on_loops_shortens_them():
    points = torch.from_numpy(ring(5)).requires_grad_()
    before = float(persistence(points)[1].diff(dim=1).max())
    optimiser = torch.optim.SGD([points], lr=0.05)
    for _ in range(15):
        optimiser.zero_grad()
        differentiable_persistence(points, dims=(1,))[1].diff(dim=1).square().sum().backward()
        optimiser.step()
    after = float(persistence(points)[1].diff(dim=1).max())
    assert after < 0.8 * before


def test_bad_points_for_gradients_are_named():
    with pytest.raises(ValueError, match="dims must be some of 0 and 1"):
        differentiable_persistence(torch.zeros(3, 2), dims=(2,))
    with pytest.raises(TypeError, match="floating-point"):
        differentiable_persistence(torch.zeros(3, 2, dtype=torch.long))


# --- cycles ---------------------------------------------------------------------------------------------------------


def test_the_cycle_of_the_polygon_is_the_polygon():
    (cycle,) = representative_cycles(POLYGON)
    assert cycle.edges.tolist() == sorted([[i, i + 1] for i in range(11)] + [[0, 11]])
    assert cycle.vertices.tolist() == list(range(12))


@pytest.mark.parametrize("points", [ring(0, n=60), cloud_of(1, 50, 3), cloud_of(2, 80, 20), np.round(3 * ring(6))])
def test_a_cycle_is_closed_born_with_its_bar_and_bounds_exactly_from_its_death_on(points):
    matrix = squareform(pdist(points))
    bars = persistence(points)[1]
    cycles = representative_cycles(points)
    assert len(cycles) == len(bars)
    found = np.array(sorted((cycle.birth, cycle.death) for cycle in cycles)).reshape(-1, 2)
    np.testing.assert_allclose(found, bars.numpy(), rtol=1e-12)
    long = [cycle.death - cycle.birth for cycle in cycles]
    assert long == sorted(long, reverse=True)
    for cycle in cycles[:6]:
        edges = cycle.edges.numpy()
        assert (np.bincount(edges.ravel()) % 2 == 0).all()
        assert matrix[edges[:, 0], edges[:, 1]].max() == pytest.approx(cycle.birth, rel=1e-13)
        assert not bounds(matrix, edges, cycle.death * (1 - 1e-9))
        assert bounds(matrix, edges, cycle.death * (1 + 1e-9))


def bounds(matrix, cycle, scale):
    """Whether a cycle is a sum of triangles of the complex at this scale, by elimination over Z/2."""
    n = len(matrix)
    inside = matrix <= scale
    number = {}
    for i in range(n):
        for j in range(i + 1, n):
            if inside[i, j]:
                number[i, j] = len(number)
    columns = {}
    for i, j in number:
        for w in np.flatnonzero(inside[i] & inside[j]):
            if w > j:
                column = 1 << number[i, j] | 1 << number[i, int(w)] | 1 << number[j, int(w)]
                while column and (pivot := column.bit_length()) in columns:
                    column ^= columns[pivot]
                if column:
                    columns[column.bit_length()] = column
    rest = sum(1 << number[i, j] for i, j in cycle.tolist())
    while rest and (pivot := rest.bit_length()) in columns:
        rest ^= columns[pivot]
    return rest == 0


def test_count_keeps_the_longest():
    points = ring(0, n=60)
    everything = representative_cycles(points)
    assert [c.birth for c in representative_cycles(points, count=2)] == [c.birth for c in everything[:2]]
    with pytest.raises(ValueError, match="count must be at least 1"):
        representative_cycles(points, count=0)


# --- summaries ------------------------------------------------------------------------------------------------------

BARS = torch.tensor([[0.0, 2.0], [1.0, 4.0], [1.0, 2.0]], dtype=torch.float64)


def test_betti_curve_by_hand():
    assert betti_curve(BARS, [-1.0, 0.0, 1.0, 1.5, 2.0, 3.9, 4.0]).tolist() == [0, 1, 3, 3, 1, 1, 0]
    diagram = Diagram({0: BARS}, {0: torch.tensor([0.5])})
    assert betti_curve(diagram, [0.0, 1.0, 9.0], dim=0).tolist() == [1, 4, 1]


def test_landscape_by_hand_and_by_gudhi():
    grid = torch.linspace(0, 4, 9, dtype=torch.float64)
    found = landscape(BARS, grid, levels=4)
    assert found[0].tolist() == [0, 0.5, 1, 0.5, 1, 1.5, 1, 0.5, 0]
    assert found[1].tolist() == [0, 0, 0, 0.5, 0, 0, 0, 0, 0]
    assert not found[3].any()
    assert landscape(BARS, grid, levels=1).shape == (1, 9)
    bars = persistence(ring(0))[1]
    theirs = gudhi.representations.Landscape(num_landscapes=3, resolution=50, sample_range=[0, 2])
    expected = theirs.fit_transform([bars.numpy()])[0].reshape(3, 50) / math.sqrt(2)
    ours = landscape(bars, np.linspace(0, 2, 50), levels=3)
    np.testing.assert_allclose(ours.numpy(), expected, atol=1e-12)


def test_entropy_and_total_persistence():
    equal = torch.tensor([[0.0, 2.0], [1.0, 3.0], [5.0, 7.0]])
    assert float(persistence_entropy(equal)) == pytest.approx(math.log(3))
    assert float(persistence_entropy(equal[:1])) == 0
    assert float(persistence_entropy(equal[:0])) == 0
    assert float(total_persistence(BARS)) == 6
    assert float(total_persistence(BARS, p=2)) == 14
    diagram = Diagram({1: BARS})
    assert float(total_persistence(diagram, dim=1)) == 6
    assert diagram.lifetimes(1).tolist() == [2, 1, 3]


def test_summaries_pass_gradients_on():
    bars = (BARS + torch.tensor([[0.0, 0.0], [0.1, 0.0], [0.0, 0.2]])).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: (persistence_entropy(x), total_persistence(x, p=2)), bars)
    assert torch.autograd.gradcheck(lambda x: landscape(x, torch.tensor([0.3, 1.4, 2.9]), levels=2), bars)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: betti_curve(Diagram({0: BARS}), [0.0]), "dim must be given"),
        (lambda: betti_curve(BARS, [[0.0]]), "grid must be"),
        (lambda: landscape(BARS, [0.0], levels=0), "levels must be at least 1"),
        (lambda: total_persistence(BARS, p=0), "p must be positive"),
        (lambda: persistence_entropy(torch.tensor([[0.0, torch.inf]])), "finite"),
        (lambda: persistence_entropy(torch.zeros(3)), r"shape \[m, 2\]"),
    ],
)
def test_bad_input_of_summaries_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- landmarks ------------------------------------------------------------------------------------------------------
