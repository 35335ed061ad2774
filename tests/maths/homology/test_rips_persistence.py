import math

import gudhi
import numpy as np
import pytest
import ripser
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.spatial.distance import pdist, squareform

from lisse.maths import homology
from lisse.maths.homology import Diagram, diagram_distance, distance_matrix, persistence, spanning_tree
from lisse.maths.homology import rips as rips_module

k = np.arange(15.0)
m = np.arange(12.0)
CLOUDS = {
    "A": np.stack([np.cos(2 * np.pi * m / 12), np.sin(2 * np.pi * m / 12)], 1),
    "B": np.stack([np.cos(k), np.sin(2 * k), 0.5 * np.cos(3 * k)], 1),
    "C": np.stack([np.sin(1.3 * k), np.cos(0.7 * k), 0.25 * np.sin(2.1 * k)], 1),
    "D": np.stack([np.cos(k), np.sin(k), np.cos(2 * k), np.sin(2 * k), 0.1 * k], 1),
    "E": np.stack([(1 + 0.1 * k) * np.cos(2 * k), (1 + 0.1 * k) * np.sin(2 * k)], 1),
}


def gudhi_bars(points=None, distances=None, top=1):
    matrix = squareform(pdist(points)) if distances is None else distances
    tree = gudhi.RipsComplex(distance_matrix=matrix).create_simplex_tree(max_dimension=top + 1)
    tree.compute_persistence(homology_coeff_field=2)
    found = [tree.persistence_intervals_in_dimension(dim).reshape(-1, 2) for dim in range(top + 1)]
    found = [bars[np.isfinite(bars[:, 1])] for bars in found]
    return [bars[np.lexsort((bars[:, 1], bars[:, 0]))] for bars in found]


def cloud_of(seed, n, d):
    return np.random.default_rng(seed).standard_normal((n, d))


# --- closed forms ---------------------------------------------------------------------------------------------------


def test_the_regular_twelve_gon():
    diagram = persistence(CLOUDS["A"])
    side = 2 * math.sin(math.pi / 12)
    torch.testing.assert_close(diagram[0], torch.tensor([[0.0, side]] * 11, dtype=torch.float64), rtol=1e-14, atol=0)
    expected = torch.tensor([[side, math.sqrt(3)]], dtype=torch.float64)
    torch.testing.assert_close(diagram[1], expected, rtol=1e-14, atol=0)
    assert diagram.infinite[0].tolist() == [0.0]
    assert diagram.infinite[1].tolist() == []


def test_the_octahedron_has_a_void():
    points = np.concatenate([np.eye(3), -np.eye(3)])
    diagram = persistence(points, dims=(0, 1, 2))
    expected = torch.tensor([[math.sqrt(2), 2.0]], dtype=torch.float64)
    torch.testing.assert_close(diagram[2], expected, rtol=1e-14, atol=0)
    assert len(diagram[1]) == 0


def test_dims_choose_what_is_computed():
    assert persistence(CLOUDS["B"], dims=(1,)).dims == (1,)
    assert persistence(CLOUDS["B"], dims=(1, 0)).dims == (0, 1)
    assert persistence(CLOUDS["B"], dims=(0,)).dims == (0,)
    with pytest.raises(KeyError, match=r"one of \(0,\), got 1"):
        persistence(CLOUDS["B"], dims=(0,))[1]


@pytest.mark.parametrize("dims", [(0,), (0, 1), (0, 1, 2)])
def test_two_points(dims):
    diagram = persistence(np.array([[0.0, 0.0], [3.0, 4.0]]), dims=dims)
    assert diagram[0].tolist() == [[0.0, 5.0]]
    assert all(len(diagram[dim]) == 0 for dim in dims[1:])


def test_identical_points_have_no_bars():
    for points in (np.zeros((5, 3)), np.full((5, 3), 7.3), np.full((5, 3), 1e9)):
        diagram = persistence(points)
        assert len(diagram[0]) == len(diagram[1]) == 0
        assert diagram.infinite[0].tolist() == [0.0]


def test_collinear_points_have_their_gaps_and_no_loop():
    points = np.array([0.0, 1.0, 3.0, 6.0, 10.0])[:, None] * np.array([[3.0, 4.0]]) / 5
    diagram = persistence(points)
    torch.testing.assert_close(diagram[0][:, 1], torch.tensor([1.0, 2, 3, 4], dtype=torch.float64), rtol=1e-14, atol=0)
    assert len(diagram[1]) == 0


# --- outside oracles ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(CLOUDS))
def test_the_reference_clouds_have_gudhis_diagrams(name):
    diagram = persistence(CLOUDS[name])
    for dim, bars in enumerate(gudhi_bars(CLOUDS[name])):
        kept = bars[bars[:, 1] - bars[:, 0] > 1e-12]
        np.testing.assert_allclose(diagram[dim].numpy(), kept, rtol=1e-12)


@pytest.mark.parametrize(("n", "d"), [(40, 2), (60, 3), (60, 30)])
def test_random_clouds_have_gudhis_diagrams(n, d):
    points = cloud_of(n + d, n, d)
    ours, theirs = persistence(points), gudhi_bars(points)
    for dim in (0, 1):
        np.testing.assert_allclose(ours[dim].numpy(), theirs[dim], rtol=1e-12)


def test_h2_is_gudhis():
    points = cloud_of(0, 30, 3)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    ours, theirs = persistence(points, dims=(0, 1, 2)), gudhi_bars(points, top=2)
    assert len(theirs[2]) > 0
    for dim in (0, 1, 2):
        np.testing.assert_allclose(ours[dim].numpy(), theirs[dim], rtol=1e-12)


@pytest.mark.parametrize("kind", ["gauss", "circle", "two circles", "clusters"])
def test_larger_clouds_have_ripsers_diagrams(kind):
    rng = np.random.default_rng(5)
    t = rng.uniform(0, 2 * np.pi, 200)
    circle = np.stack([np.cos(t), np.sin(t)], 1) + 0.05 * rng.standard_normal((200, 2))
    points = {
        "gauss": rng.standard_normal((200, 20)),
        "circle": circle,
        "two circles": np.concatenate([circle[:100], 3 * circle[100:] + 20]),
        "clusters": 0.2 * rng.standard_normal((200, 10)) + np.repeat(rng.standard_normal((5, 10)), 40, 0),
    }[kind]
    ours = persistence(points)
    theirs = ripser.ripser(squareform(pdist(points)), distance_matrix=True, maxdim=1)["dgms"][1]
    theirs = theirs[np.lexsort((theirs[:, 1], theirs[:, 0]))]
    assert len(ours[1]) == len(theirs)
    np.testing.assert_allclose(ours[1].numpy(), theirs, rtol=1e-5)


def test_the_threshold_suffices_for_metrics_that_are_not_euclidean():
    # Any symmetric matrix is a flag filtration; nothing in the choice of the threshold uses the triangle inequality.
    for seed in range(20):
        rng = np.random.default_rng(seed)
        matrix = np.triu(rng.random((25, 25)) ** 3, 1)
        matrix = matrix + matrix.T
        for dim, bars in enumerate(gudhi_bars(distances=matrix)):
            np.testing.assert_allclose(persistence(distances=matrix)[dim].numpy(), bars[bars[:, 1] > bars[:, 0]])


def test_the_last_birth_is_the_longest_edge_with_an_empty_lune():
    for seed in range(10):
        matrix = squareform(pdist(cloud_of(seed, 40, 3)))
        empty = [
            matrix[i, j]
            for i in range(40)
            for j in range(i)
            if all(max(matrix[i, w], matrix[j, w]) >= matrix[i, j] for w in range(40) if w not in (i, j))
        ]
        tree = minimum_spanning_tree(matrix).data.max()
        assert rips_module.last_birth(matrix, tree) == max(empty)


def test_points_and_their_distances_agree():
    points = cloud_of(3, 50, 8)
    first, second = persistence(points), persistence(distances=squareform(pdist(points)))
    for dim in (0, 1):
        torch.testing.assert_close(first[dim], second[dim], rtol=1e-12, atol=0)


def test_images_are_flattened_and_tensors_of_any_type_are_taken():
    points = torch.from_numpy(cloud_of(3, 20, 12))
    expected = persistence(points)
    torch.testing.assert_close(persistence(points.reshape(20, 3, 2, 2))[1], expected[1])
    single = persistence(points.float().requires_grad_())
    assert single[1].dtype == torch.float64
    torch.testing.assert_close(single[0], expected[0], rtol=1e-5, atol=0)


# --- robustness -----------------------------------------------------------------------------------------------------


def test_an_asymmetry_of_rounding_is_repaired():
    matrix = squareform(pdist(cloud_of(0, 200, 20)))
    matrix *= 1 + 1e-15 * np.triu(np.random.default_rng(1).choice([-1.0, 1.0], matrix.shape), 1)
    assert (matrix != matrix.T).any()
    diagram = persistence(distances=matrix)
    exact = persistence(cloud_of(0, 200, 20))
    assert len(diagram[1]) == len(exact[1])
    torch.testing.assert_close(diagram[1], exact[1], rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: persistence(), "points or distances must be given, got neither"),
        (lambda: persistence(np.eye(3), distances=np.eye(3)), "must be given, got both"),
        (lambda: persistence(np.zeros((1, 3))), "at least 2 points"),
        (lambda: persistence(np.zeros((0, 3))), "at least 2 points"),
        (lambda: persistence(np.zeros(3)), r"shape \[n, d\], got \[3\]"),
        (lambda: persistence(np.array([[0.0], [np.nan]])), "NaN or infinity in point 1"),
        (lambda: persistence(np.array([[np.inf], [0.0]])), "NaN or infinity in point 0"),
        (lambda: persistence(np.eye(3), dims=()), "dims must be some of 0, 1 and 2"),
        (lambda: persistence(np.eye(3), dims=(3,)), "dims must be some of 0, 1 and 2"),
        (lambda: persistence(distances=np.zeros((2, 3))), "square matrix"),
        (lambda: persistence(distances=np.zeros((1, 1))), "at least 2 points"),
        (lambda: persistence(distances=np.array([[0.0, 1.0], [2.0, 0.0]])), "symmetric, got entries that differ by 1"),
        (lambda: persistence(distances=np.array([[0.0, -1.0], [-1.0, 0.0]])), "at least 0, got -1"),
        (lambda: persistence(distances=np.eye(2)), "0 on the diagonal, got 1"),
        (lambda: persistence(distances=np.array([[0.0, np.nan], [np.nan, 0.0]])), "finite"),
        (lambda: spanning_tree(), "got neither"),
        (lambda: distance_matrix(np.eye(3), precision=torch.float16), "precision must be"),
        (lambda: Diagram({0: torch.tensor([[1.0, 0.5]])}), "die before"),
        (lambda: Diagram({0: torch.tensor([1.0, 0.5])}), r"shape \[m, 2\]"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- distances and trees --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [0.0, 1e3])
def test_distances_are_exact_to_rounding_also_between_near_points(shift):
    rng = np.random.default_rng(0)
    points = rng.standard_normal((700, 40))
    points[350:] = points[:350] + 1e-6 * rng.standard_normal((350, 40))
    points[10] = points[11]
    points += shift
    matrix = distance_matrix(points)
    exact = squareform(pdist(points))
    np.testing.assert_allclose(matrix.numpy(), exact, rtol=1e-12, atol=0)
    assert torch.equal(matrix, matrix.T)
    assert bool((matrix.diagonal() == 0).all())
    assert matrix[10, 11] == 0


def test_distances_of_extreme_size():
    points = cloud_of(0, 20, 5)
    for size in (1e-200, 1e200):
        np.testing.assert_allclose(distance_matrix(points * size).numpy(), squareform(pdist(points)) * size, rtol=1e-12)


def test_single_precision_products_are_close_and_not_the_same():
    points = cloud_of(0, 300, 784)
    double, single = distance_matrix(points), distance_matrix(points, precision=torch.float32)
    torch.testing.assert_close(single, double, rtol=1e-4, atol=0)
    assert not torch.equal(single, double)


@pytest.mark.parametrize("memory", [2**32, 10**5])
def test_the_tree_is_scipys_with_and_without_the_matrix(memory):
    points = cloud_of(2, 300, 10)
    points[100:120] = points[:20]
    tree = spanning_tree(points, memory=memory)
    matrix = squareform(pdist(points))
    # SciPy reads 0 as no edge: every edge is lifted by 1.
    expected = np.sort(minimum_spanning_tree(matrix + 1).data) - 1
    np.testing.assert_allclose(tree.lengths.numpy(), expected, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(matrix[tree.edges[:, 0], tree.edges[:, 1]], tree.lengths.numpy(), rtol=1e-14)


def test_borůvka_makes_no_loop_of_ties():
    grid = np.stack(np.meshgrid(np.arange(12.0), np.arange(11.0)), -1).reshape(-1, 2)
    for memory in (2**32, 1):
        tree = spanning_tree(grid, memory=memory)
        assert tree.edges.shape == (131, 2)
        np.testing.assert_allclose(tree.lengths.numpy(), 1.0, rtol=1e-14)
        label = np.arange(132)
        for a, b in tree.edges.tolist():
            assert label[a] != label[b]
            label[label == label[a]] = label[b]


# --- properties ----------------------------------------------------------------------------------------------------

clouds = st.integers(0, 2**32 - 1).flatmap(lambda seed: st.tuples(st.just(seed), st.integers(2, 25), st.integers(1, 6)))
quick = settings(max_examples=30, deadline=None)


@quick
@given(clouds, st.floats(0.1, 10))
def test_diagrams_do_not_feel_order_duplicates_and_isometries_and_scale(choice, scale):
    seed, n, d = choice
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((n, d))
    expected = persistence(points)
    turned, _ = np.linalg.qr(rng.standard_normal((d, d)))
    others = {
        "permuted": points[rng.permutation(n)],
        "duplicated": np.concatenate([points, points[rng.integers(n, size=5)]]),
        "moved": points @ turned + rng.standard_normal(d),
    }
    for name, other in others.items():
        found = persistence(other)
        for dim in (0, 1):
            assert found[dim].shape == expected[dim].shape, name
            torch.testing.assert_close(found[dim], expected[dim], rtol=1e-11, atol=1e-11)
    for dim in (0, 1):
        torch.testing.assert_close(persistence(points * scale)[dim], expected[dim] * scale, rtol=1e-12, atol=0)


@quick
@given(hnp.arrays(np.float64, st.tuples(st.integers(2, 12), st.integers(1, 3)), elements=st.integers(-3, 3)))
def test_on_a_lattice_full_of_ties_and_duplicates_the_diagrams_are_gudhis(points):
    ours, theirs = persistence(points), gudhi_bars(points)
    for dim in (0, 1):
        kept = theirs[dim][theirs[dim][:, 1] - theirs[dim][:, 0] > 1e-12]
        np.testing.assert_allclose(ours[dim].numpy(), kept, rtol=1e-12)


@quick
@given(clouds)
def test_deaths_of_h0_are_the_edges_of_the_tree(choice):
    seed, n, d = choice
    points = np.random.default_rng(seed).standard_normal((n, d))
    expected = np.sort(minimum_spanning_tree(squareform(pdist(points))).data)
    np.testing.assert_allclose(persistence(points)[0][:, 1].numpy(), expected, rtol=1e-11)


@quick
@given(clouds, st.floats(1e-3, 1.0))
def test_diagrams_are_stable_for_matched_clouds(choice, size):
    seed, n, d = choice
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((n, d))
    moved = points + size * rng.standard_normal((n, d))
    shift = 2 * np.linalg.norm(moved - points, axis=1).max() * (1 + 1e-9)
    a, b = persistence(points), persistence(moved)
    for dim in (0, 1):
        assert diagram_distance(a, b, dim=dim, p=math.inf) <= shift
    assert np.abs(a[0][:, 1].numpy() - b[0][:, 1].numpy()).max() <= shift
    assert diagram_distance(a, b, dim=0, p=1) <= (n - 1) * shift


def test_the_public_names_are_there():
    assert set(homology.__all__) <= set(dir(homology))


@pytest.mark.parametrize("seed", [0, 1])
def test_gudhis_public_class_is_taken_where_the_engine_is_not_found(monkeypatch, seed):
    from lisse.maths.homology import rips

    points = np.random.default_rng(seed).standard_normal((60, 3))
    expected = persistence(points)
    monkeypatch.setattr(rips, "_engine", None)
    found = persistence(points)
    assert len(expected[1]) > 5
    assert torch.equal(found[1], expected[1])
