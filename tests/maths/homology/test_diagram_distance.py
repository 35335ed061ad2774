import itertools
import math

import gudhi
import gudhi.wasserstein
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from lisse.maths.homology import Diagram, diagram_distance, matching, persistence
from lisse.maths.homology.sorted_deaths import _alignment, _banded, _bound, _by_rows, _first_order, _reach
from lisse_experiments.topolip.summaries import total_persistence

k = np.arange(15.0)
B = np.stack([np.cos(k), np.sin(2 * k), 0.5 * np.cos(3 * k)], 1)
C = np.stack([np.sin(1.3 * k), np.cos(0.7 * k), 0.25 * np.sin(2.1 * k)], 1)
D = np.stack([np.cos(k), np.sin(k), np.cos(2 * k), np.sin(2 * k), 0.1 * k], 1)
E = np.stack([(1 + 0.1 * k) * np.cos(2 * k), (1 + 0.1 * k) * np.sin(2 * k)], 1)


def from_zero(deaths):
    deaths = np.asarray(deaths, dtype=float)
    return np.stack([np.zeros_like(deaths), deaths], 1)


def hungarian(a, b, p, q):
    """Both diagrams with the other's projections, as one square assignment."""
    share = 2.0 ** ((0 if math.isinf(q) else 1 / q) - 1)
    n, m = len(a), len(b)
    cost = np.zeros((n + m, n + m))
    cost[:n, :m] = np.linalg.norm(a[:, None] - b[None], ord=q, axis=-1) ** p
    cost[:n, m:] = (share * (a[:, 1] - a[:, 0])[:, None]) ** p
    cost[n:, :m] = (share * (b[:, 1] - b[:, 0])[None]) ** p
    return cost[linear_sum_assignment(cost)].sum() ** (1 / p)


# --- values worked out by hand --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dim", "p", "ground", "expected"),
    [
        (0, 1, 2, 1.3335562557),
        (0, 1, math.inf, 1.1436290971),
        (0, 2, 2, 0.5144999852),
        (1, 1, 2, 0.3653575316),
        (1, 2, math.inf, 0.1598981542),
        (0, math.inf, math.inf, 0.4047542457),
    ],
)
def test_the_reference_distances(dim, p, ground, expected):
    found = diagram_distance(persistence(B), persistence(C), dim=dim, p=p, ground=ground)
    assert found == pytest.approx(expected, abs=6e-11)


def test_the_reference_pipeline():
    layers = [persistence(cloud) for cloud in (B, D, C, E, B)]
    found = [diagram_distance(a, b, dim=0, p=1, ground=2) for a, b in itertools.pairwise(layers)]
    np.testing.assert_allclose(found, [7.449853620, 8.074164531, 2.886323375, 2.38566014], rtol=2e-9)


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_combined_dimensions(p):
    a, b = persistence(B), persistence(C)
    each = [diagram_distance(a, b, dim=dim, p=p) for dim in (0, 1)]
    expected = max(each) if math.isinf(p) else sum(w**p for w in each) ** (1 / p)
    assert diagram_distance(a, b, dim=None, p=p) == pytest.approx(expected, rel=1e-14)


def test_one_bar_each_by_hand():
    near, far = np.array([[0.0, 4.0]]), np.array([[1.0, 4.5]])
    assert diagram_distance(near, far, dim=1) == 1.0
    assert diagram_distance(near, far, dim=1, ground=1) == 1.5
    assert diagram_distance(near, far, dim=1, ground=2) == pytest.approx(math.sqrt(1.25))
    assert diagram_distance(near, far, dim=1, ground=3) == pytest.approx((1 + 0.125) ** (1 / 3))
    # Far apart, both go to the diagonal: (4 + 2) / 2.
    assert diagram_distance(near, np.array([[9.0, 11.0]]), dim=1) == 3.0
    assert diagram_distance(near, np.array([[9.0, 11.0]]), dim=1, p=2) == pytest.approx(math.sqrt(5))
    assert diagram_distance(near, np.array([[9.0, 11.0]]), dim=1, p=math.inf) == 2.0


def test_infinite_bars_are_left_out():
    a = Diagram({0: torch.tensor([[0.0, 1.0]])}, {0: torch.zeros(1)})
    b = Diagram({0: torch.tensor([[0.0, 2.0]])}, {0: torch.zeros(3)})
    assert diagram_distance(a, b, dim=0) == 1.0


def test_empty_diagrams():
    empty, some = torch.empty(0, 2), torch.tensor([[0.0, 3.0], [1.0, 5.0]])
    assert diagram_distance(empty, empty, dim=0) == 0.0
    assert diagram_distance(empty, empty, dim=0, p=math.inf) == 0.0
    assert diagram_distance(empty, some, dim=0) == 3.5
    assert diagram_distance(some, empty, dim=0, p=2) == pytest.approx(2.5)
    assert diagram_distance(some, empty, dim=0, p=math.inf) == 2.0


# --- oracles --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ground", [1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
def test_h0_agrees_with_gudhi_and_the_assignment(p, ground, scale):
    rng = np.random.default_rng(int(10 * p + scale))
    for n, m in ((1, 1), (1, 7), (20, 20), (40, 13)):
        a, b = from_zero(rng.exponential(size=n)), from_zero(scale * rng.exponential(size=m))
        found = diagram_distance(a, b, dim=0, p=p, ground=ground)
        theirs = gudhi.wasserstein.wasserstein_distance(a, b, order=p, internal_p=ground)
        assert found == pytest.approx(theirs, rel=1e-9)
        assert found == pytest.approx(hungarian(a, b, p, ground), rel=1e-9)


@pytest.mark.parametrize("ground", [1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("p", [1.0, 1.5, 2.0])
def test_h1_agrees_with_gudhi_and_the_assignment(p, ground):
    rng = np.random.default_rng(int(10 * p))
    for n, m in ((1, 1), (1, 7), (20, 20), (40, 13)):
        a, b = (np.cumsum(rng.exponential(size=(size, 2)), 1) for size in (n, m))
        found = diagram_distance(a, b, dim=1, p=p, ground=ground)
        theirs = gudhi.wasserstein.wasserstein_distance(a, b, order=p, internal_p=ground)
        assert found == pytest.approx(theirs, rel=1e-9)
        assert found == pytest.approx(hungarian(a, b, p, ground), rel=1e-9)


def test_the_bottleneck_is_gudhis_and_for_other_norms_the_limit_of_large_p():
    rng = np.random.default_rng(0)
    for n, m in itertools.product((1, 5, 30), repeat=2):
        for births in (0.0, 1.0):
            a, b = (np.cumsum(rng.exponential(size=(size, 2)) * [births, 1.0], 1) for size in (n, m))
            found = diagram_distance(a, b, dim=1, p=math.inf)
            assert found == pytest.approx(gudhi.bottleneck_distance(a, b, 0.0), rel=1e-12)
            euclidean = diagram_distance(a, b, dim=1, p=math.inf, ground=2)
            order = 60.0
            limit = diagram_distance(a, b, dim=1, p=order, ground=2)
            assert limit * (n + m) ** (-1 / order) * (1 - 1e-9) <= euclidean <= limit * (1 + 1e-9)


@pytest.mark.parametrize("p", [1.0, 2.0])
@pytest.mark.parametrize("scale", [1.0, 1.3, 3.0])
def test_the_band_loses_nothing_at_a_few_hundred_bars(p, scale):
    rng = np.random.default_rng(3)
    a, b = from_zero(rng.gamma(20, 0.3, 400)), from_zero(scale * rng.gamma(4, 1.5, 330))
    theirs = gudhi.wasserstein.wasserstein_distance(a, b, order=p, internal_p=math.inf)
    assert diagram_distance(a, b, dim=0, p=p) == pytest.approx(theirs, rel=1e-9)


# --- properties -----------------------------------------------------------------------------------------------------

lengths = st.lists(st.floats(1e-3, 1e3), max_size=12)
orders = st.sampled_from([1.0, 1.5, 2.0, 4.0, math.inf])
norms = st.sampled_from([1.0, 2.0, math.inf])
diagrams = st.lists(st.tuples(st.floats(-10, 10), st.floats(1e-3, 10)), max_size=8).map(
    lambda bars: np.array([(b, b + length) for b, length in bars]).reshape(-1, 2)
)
quick = settings(max_examples=60, deadline=None)


@quick
@given(lengths, lengths, st.floats(0.5, 1))
def test_the_dual_sweep_is_the_dynamic_programme(a, b, share):
    a, b = np.sort(a), np.sort(b)
    assume(len(a) and len(b))
    expected = _alignment(a, b, 1.0, share)
    assert _first_order(a, b, share) == pytest.approx(expected, rel=1e-9, abs=1e-10)


@quick
@given(st.lists(st.tuples(st.floats(1e-3, 10), st.floats(1e-3, 10)), min_size=1, max_size=30), st.integers(1, 40))
def test_rows_and_anti_diagonals_are_one_programme_in_any_band(pairs, band):
    a, b = np.sort(np.array(pairs), 0).T.copy()
    band = min(band, len(a))
    for p in (1.0, 2.0, 2.5):
        skips = [(0.6 * x) ** p for x in (a, b)]
        expected = _banded(a, b, *skips, p, -band, band)
        for reach in (math.inf, _reach(p, 0.6)):
            # Rows may go on past the band by giving up, so they can only be better, and in the whole band are equal.
            found = _by_rows(a, b, *skips, p, band, reach)
            assert found <= expected * (1 + 1e-9) + 1e-9
            if band == len(a):
                assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)


@quick
@given(st.lists(st.tuples(st.floats(1e-3, 10), st.floats(1e-3, 30)), min_size=1, max_size=5))
def test_the_bound_is_under_every_way_to_give_up_as_many(pairs):
    a, b = np.sort(np.array(pairs), 0).T.copy()
    n = len(a)
    for p in (1.0, 2.0, 3.0):
        skip_a, skip_b = (0.5 * a) ** p, (0.5 * b) ** p
        bound = _bound(a, b, skip_a, skip_b, p)
        for given_up in range(n + 1):
            least = min(
                (np.abs(np.delete(a, i) - np.delete(b, j)) ** p).sum() + skip_a[list(i)].sum() + skip_b[list(j)].sum()
                for i in itertools.combinations(range(n), given_up)
                for j in itertools.combinations(range(n), given_up)
            )
            assert bound[given_up] <= least * (1 + 1e-9) + 1e-9
            if given_up == 0:
                assert bound[0] == pytest.approx(least)


@pytest.mark.parametrize(("p", "share", "expected"), [(1.0, 0.5, 3.0), (2.0, 0.5, (2 + math.sqrt(1.75)) / 1.5)])
def test_the_reach_of_a_match(p, share, expected):
    assert _reach(p, share) == pytest.approx(expected, rel=1e-8)
    assert math.isinf(_reach(p, 1.0))


def test_costs_of_very_different_sizes_come_to_an_end():
    a = np.array([[5e-324, 0.5], [1e-16, 0.5000000000000001], [1.0000000000000002, 4.0], [-10.0, -9.5]])
    b = np.array([[-1.0, 1.0], [1e-160, 0.001], [1e-16, 3.0]])
    share = 2.0**-0.5
    alone = [(share * (bars[:, 1] - bars[:, 0])) ** 4 for bars in (a, b)]
    cost = np.hypot(*np.moveaxis(a[:, None] - b[None], 2, 0)) ** 4
    least = min(
        cost[list(i), list(j)].sum() + np.delete(alone[0], i).sum() + np.delete(alone[1], j).sum()
        for count in range(4)
        for i in itertools.combinations(range(4), count)
        for j in itertools.permutations(range(3), count)
    )
    for x, y in ((a, b), (b, a)):  # the sparse solver alone would go on for ever
        assert diagram_distance(x, y, p=4.0, ground=2.0) == pytest.approx(least**0.25, rel=1e-12)


@pytest.mark.parametrize("p", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("spread", [0.0, 1e-15, 1e-6, 1.0])
def test_many_bars_are_matched_as_few_are(p, spread, monkeypatch):
    """The compiled paths and the sparse solver of whole numbers against the full matrix: with ties, near ties, none."""
    rng = np.random.default_rng(0)
    a, b = (np.cumsum(rng.integers(1, 9, (230, 2)) * (1 + spread * rng.random((230, 2))), 1) for _ in range(2))

    def distances():
        return [diagram_distance(a, b, p=p), diagram_distance(a, a + spread * 1e-3, p=p)]

    compiled = distances()
    monkeypatch.setattr(matching, "loops", lambda _: None)
    sparse = distances()
    monkeypatch.setattr(matching, "_SMALL", 10**6)
    full = distances()
    assert sparse == pytest.approx(full, rel=1e-9)
    assert compiled == pytest.approx(full, rel=1e-9)


def test_many_bars_whose_powers_vanish():
    a = np.stack([np.arange(300.0) * 1e-200, np.arange(300.0) * 1e-200 + 1e-190], 1)
    assert diagram_distance(a, a[:250] + 1e-195, p=2.0) == 0.0


def test_a_diagram_with_bars_that_hardly_differ_is_at_no_distance_from_itself():
    bars = np.array([[1e-160, 3.0], [5e-324, 3.0], [-1.0, 1.0]])
    for p in (1.0, 2.0, 4.0):
        assert diagram_distance(bars, bars[[2, 0, 1]], p=p) == 0.0


@quick
@given(diagrams, diagrams, diagrams, orders, norms, st.booleans())
def test_it_is_a_metric(a, b, c, p, ground, together):
    if together:
        a, b, c = (x - x[:, :1] for x in (a, b, c))

    def distance(x, y):
        return diagram_distance(x, y, dim=0, p=p, ground=ground)

    assert distance(a, a) == 0.0
    assert distance(a, b) == pytest.approx(distance(b, a), rel=1e-9, abs=1e-9)
    assert distance(a, c) <= (distance(a, b) + distance(b, c)) * (1 + 1e-9) + 1e-9


@quick
@given(diagrams, diagrams, norms, st.floats(0.01, 100))
def test_orders_are_sorted_and_scale_comes_out(a, b, ground, scale):
    found = [diagram_distance(a, b, dim=0, p=p, ground=ground) for p in (math.inf, 2.0, 1.0)]
    assert found[0] <= found[1] * (1 + 1e-9) + 1e-12
    assert found[1] <= found[2] * (1 + 1e-9) + 1e-12
    for p, value in zip((math.inf, 2.0, 1.0), found, strict=True):
        larger = diagram_distance(scale * a, scale * b, dim=0, p=p, ground=ground)
        assert larger == pytest.approx(scale * value, rel=1e-9, abs=1e-9)


@quick
@given(diagrams, st.sampled_from([1.0, 1.5, 2.0]), norms)
def test_the_distance_to_nothing_is_the_total_persistence(a, p, ground):
    share = 2 ** ((0 if math.isinf(ground) else 1 / ground) - 1)
    expected = share * float(total_persistence(a, p=p)) ** (1 / p)
    assert diagram_distance(a, np.empty((0, 2)), dim=0, p=p, ground=ground) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_nearly_equal_diagrams_keep_their_digits(p):
    a = from_zero(np.linspace(5, 8, 300))
    b = from_zero(a[:, 1] + 1e-9)
    moved = np.abs(b - a).max(1)
    expected = (moved**p).sum() ** (1 / p)
    assert diagram_distance(a, b, dim=0, p=p) == pytest.approx(expected, rel=1e-9)
    assert diagram_distance(a, a[::-1], dim=0, p=p) == 0.0


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"p": 0.5}, "p must be at least 1"),
        ({"p": math.nan}, "p must be at least 1"),
        ({"ground": 0.5}, "ground must be a norm's order"),
        ({"ground": "cosine"}, "ground must be a norm's order"),
        ({"dim": 2}, r"dim must be in both diagrams, got 2 for one with \(0, 1\)"),
    ],
)
def test_bad_options_are_named(options, message):
    a = persistence(B)
    with pytest.raises(ValueError, match=message):
        diagram_distance(a, a, **{"dim": 0, **options})


def test_bad_diagrams_are_named():
    with pytest.raises(ValueError, match="same dims"):
        diagram_distance(persistence(B), persistence(B, dims=(0,)), dim=None)
    with pytest.raises(ValueError, match="dim must be given"):
        diagram_distance(persistence(B), np.zeros((0, 2)), dim=None)
    with pytest.raises(ValueError, match="finite"):
        diagram_distance(np.array([[0.0, np.inf]]), np.zeros((0, 2)), dim=0)
    with pytest.raises(ValueError, match=r"shape \[m, 2\]"):
        diagram_distance(np.zeros((3, 3)), np.zeros((0, 2)), dim=0)


@pytest.mark.parametrize("kind", ["far", "near", "equal", "lattice", "one"])
@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_both_ways_to_match_give_the_dense_solvers_cost(kind, p):
    from scipy.optimize import linear_sum_assignment

    rng = np.random.default_rng(5)
    a = rng.uniform(0, 1, (40, 2)).cumsum(1)
    b = {
        "far": rng.uniform(0, 1, (25, 2)).cumsum(1),
        "near": a[::-1] + 1e-3 * rng.uniform(0, 1, a.shape),
        "equal": a,
        "lattice": np.ceil(4 * a[:30]) / 4 + [0.0, 0.25],
        "one": a[:1] + 0.01,
    }[kind]
    if kind == "lattice":
        a = np.ceil(4 * a) / 4 + [0.0, 0.25]
    cost = np.abs(a[:, None] - b[None]).max(2) ** p
    alone = [((bars[:, 1] - bars[:, 0]) / 2) ** p for bars in (a, b)]
    places = np.tile(alone[0][:, None], len(a)), np.tile(alone[1], (len(b), 1))
    full = np.block([[cost, places[0]], [places[1], np.zeros((len(b), len(a)))]])
    expected = full[linear_sum_assignment(full)].sum()
    i, j = np.nonzero(cost < alone[0][:, None] + alone[1])
    for solve, full in itertools.product((matching._with_places_of_rows, matching._with_all_places), (True, False)):
        k, m = solve(i, j, cost[i, j], *alone, full=full)
        assert len(set(k.tolist())) == len(k)
        assert len(set(m.tolist())) == len(m)
        found = cost[k, m].sum() + np.delete(alone[0], k).sum() + np.delete(alone[1], m).sum()
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-15)
    loops = pytest.importorskip("lisse.maths.homology.loops", reason="compiled matchings need numba (lisse[fast])")
    begins, columns, weights = loops.savings.py_func(cost, *alone)
    assert (begins[-1], columns.tolist(), weights.tolist()) == (len(i), j.tolist(), (cost[i, j] - alone[1][j]).tolist())
    column = loops.matched_columns.py_func(begins, columns, weights, alone[0], len(b))
    pairs = np.flatnonzero(column >= 0), column[column >= 0]
    assert len(set(pairs[1].tolist())) == len(pairs[1])
    assert matching._total(pairs, cost, *alone) == pytest.approx(expected, rel=1e-12, abs=1e-15)
    assert diagram_distance(a, b, dim=1, p=p) == pytest.approx(expected ** (1 / p), rel=1e-12, abs=1e-12)


def test_an_order_in_words_is_named():
    with pytest.raises(ValueError, match=r"^diagram_distance: p must be at least 1 \(inf: bottleneck\), got 'two'\.$"):
        diagram_distance(np.array([[0.0, 1.0]]), np.array([[0.0, 2.0]]), dim=0, p="two")
