from __future__ import annotations

import math

import gudhi
import gudhi.wasserstein
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lisse.maths.homology.divergence import normalised_diagram, normalised_diagram_distance
from lisse.maths.spread import spread


def cloud(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def circle(n: int, radius: float = 1.0) -> torch.Tensor:
    angles = torch.arange(n, dtype=torch.float64) * 2 * math.pi / n
    return radius * torch.stack([angles.cos(), angles.sin()], 1)


def test_a_circle_in_its_own_unit():
    """Spread 1: five edges of 2 sin 36°, and a loop from there to the first triangle, 2 sin 72°."""
    for radius in (1e-6, 1.0, 1e6):
        diagram = normalised_diagram(circle(5, radius) + 3 * radius)
        assert diagram[0][:, 1].tolist() == pytest.approx([2 * math.sin(math.pi / 5)] * 4)
        assert diagram[1].numpy() == pytest.approx(
            np.array([[2 * math.sin(math.pi / 5), 2 * math.sin(2 * math.pi / 5)]])
        )


def test_two_shapes_by_hand():
    """Two points are at 2 spreads from each other; so are the outer of three on a line, at √6 in all."""
    two = torch.tensor([[0.0], [7.0], [7.0]])  # spread of 0, 1, 1 is √2/3
    three = torch.tensor([[0.0], [5.0], [10.0]])  # spread √(2/3)
    result = normalised_diagram_distance(two, three, dims=(0,))
    edge, step = 3 / 2**0.5, (3 / 2) ** 0.5
    # one bar against two: match it with one of them, the other dies on the diagonal
    assert result.value == pytest.approx(edge - step + step / 2, rel=1e-6)
    longest = normalised_diagram_distance(two, three, dims=(0,), p=math.inf)
    assert longest.value == pytest.approx(max(edge - step, step / 2), rel=1e-6)
    assert not result.zero


@settings(max_examples=40)
@given(
    st.integers(3, 25),
    st.integers(1, 5),
    st.integers(0, 1000),
    st.floats(1e-3, 1e3),
    st.sampled_from(["centroid", "mean_pair", "median_pair"]),
    st.sampled_from([1.0, 2.0, math.inf]),
    st.sampled_from([torch.float64, torch.float32]),
)
def test_similar_clouds_are_at_zero(n, d, seed, factor, kind, p, dtype):
    x = cloud(n, d, seed).to(dtype)
    rotation = torch.linalg.qr(cloud(d, d, seed + 1))[0].to(dtype)
    copy = factor * (x @ rotation) + 2 * factor
    result = normalised_diagram_distance(x, copy, kind=kind, p=p, rounding=8 * torch.finfo(dtype).eps)
    assert result.zero
    assert result.floor < (1e-8 if dtype == torch.float64 else 5e-2)


@settings(max_examples=20)
@given(st.integers(4, 15), st.integers(0, 1000))
def test_it_is_a_distance_of_shapes(n, seed):
    x, y, z = cloud(n, 2, seed), cloud(n, 3, seed + 1), cloud(n, 2, seed + 2).exp()
    values = {}
    for name, first, second in (("xy", x, y), ("yx", y, x), ("yz", y, z), ("xz", x, z)):
        values[name] = normalised_diagram_distance(first, second).value
    assert values["xy"] == pytest.approx(values["yx"])
    assert values["xz"] <= values["xy"] + values["yz"] + 1e-9
    shuffled = x[torch.randperm(n, generator=torch.Generator().manual_seed(seed))]
    assert normalised_diagram_distance(x, shuffled).zero


@pytest.mark.parametrize(("p", "ground"), [(1.0, math.inf), (2.0, 2.0)])
@pytest.mark.parametrize("kind", ["centroid", "median_pair"])
def test_it_agrees_with_gudhi(p, ground, kind):
    x, y = cloud(15, 2), circle(15) + 0.1 * cloud(15, 2, 1)
    expected = 0.0
    diagrams = []
    for points in (x, y):
        tree = gudhi.RipsComplex(points=(points / spread(points, kind=kind)).numpy()).create_simplex_tree(2)
        tree.compute_persistence(homology_coeff_field=2)
        diagrams.append([tree.persistence_intervals_in_dimension(dim) for dim in (0, 1)])
    for first, second in zip(*diagrams, strict=True):
        first, second = (bars[np.isfinite(bars).all(1)] for bars in (first, second))
        expected += gudhi.wasserstein.wasserstein_distance(first, second, order=p, internal_p=ground) ** p
    result = normalised_diagram_distance(x, y, p=p, ground=ground, kind=kind)
    assert result.value == pytest.approx(expected ** (1 / p), rel=1e-6)


@settings(max_examples=25)
@given(st.integers(4, 20), st.integers(0, 1000), st.floats(0, 300), st.sampled_from([1.0, math.inf]))
def test_what_rounding_does_stays_under_the_floor(n, seed, shift, p):
    """A cloud against itself, rounded to float16 at a distance from 0: the floor grows with that distance."""
    x = (cloud(n, 3, seed) + shift).half()
    y = (x.double() + 1e-3 * shift * (torch.rand(n, 3, generator=torch.Generator().manual_seed(seed)) - 0.5)).half()
    error = float(((x.double() - y.double()).norm(dim=1) / x.double().norm(dim=1)).max())
    result = normalised_diagram_distance(x, y, p=p, rounding=error)
    if result.value == result.value:
        assert result.zero


def test_the_floor_by_hand():
    """Two points, at 1 and 3: spread 1, distance 2; off by 2 · 0.01 · 3 each. A bar of H0 on either side."""
    x = torch.tensor([[1.0], [3.0]])
    for p, ground, factor in ((math.inf, math.inf, 1), (1.0, math.inf, 2), (2.0, 1.0, 2**0.5 * 2)):
        result = normalised_diagram_distance(x, x, rounding=0.01, p=p, ground=ground, dims=(0,))
        assert result.floor == pytest.approx(2 * 0.06 * (1 + 2) * factor)
        assert result.value == 0


def test_a_cloud_that_is_rounding_has_no_shape():
    x = cloud(6, 2)
    assert math.isnan(normalised_diagram_distance(x, torch.ones(6, 2)).value)
    noise = (1e4 + 1e-4 * cloud(6, 2, 1)).float()
    assert math.isnan(normalised_diagram_distance(x, noise).value)
    assert math.isnan(normalised_diagram_distance(x, cloud(6, 2, 1), rounding=1.0).value)
    assert not normalised_diagram_distance(x, noise).zero


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: normalised_diagram(torch.ones(3, 2)), "a cloud without spread"),
        (lambda: normalised_diagram(torch.ones(3)), r"shape \[n, d\]"),
        (lambda: normalised_diagram_distance(cloud(3, 2), torch.full((3, 2), math.nan)), "points must be finite"),
        (lambda: normalised_diagram_distance(cloud(3, 2), cloud(3, 2), p=0.5), "p must be at least 1"),
        (lambda: normalised_diagram_distance(cloud(3, 2), cloud(3, 2), kind="x"), "kind must be one of"),
    ],
)
def test_bad_input(call, match):
    with pytest.raises(ValueError, match=match):
        call()
