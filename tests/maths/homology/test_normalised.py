from __future__ import annotations

import math
from typing import Any

import gudhi
import gudhi.wasserstein
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lisse.maths.homology import diagram_distance
from lisse.maths.homology.divergence import normalised_diagram
from lisse.maths.spread import spread


def cloud(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def distance(a: torch.Tensor, b: torch.Tensor, *, p: float = 1.0, ground: float = math.inf, **options: Any) -> float:
    return diagram_distance(*(normalised_diagram(points, **options) for points in (a, b)), p=p, ground=ground)


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
    edge, step = 3 / 2**0.5, (3 / 2) ** 0.5
    # one bar against two: match it with one of them, the other dies on the diagonal
    assert distance(two, three, dims=(0,)) == pytest.approx(edge - step + step / 2, rel=1e-6)
    assert distance(two, three, dims=(0,), p=math.inf) == pytest.approx(max(edge - step, step / 2), rel=1e-6)


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
    assert distance(x, copy, kind=kind, p=p) <= (1e-8 if dtype == torch.float64 else 5e-2)


@settings(max_examples=20)
@given(st.integers(4, 15), st.integers(0, 1000))
def test_it_is_a_distance_of_shapes(n, seed):
    x, y, z = cloud(n, 2, seed), cloud(n, 3, seed + 1), cloud(n, 2, seed + 2).exp()
    values = {}
    for name, first, second in (("xy", x, y), ("yx", y, x), ("yz", y, z), ("xz", x, z)):
        values[name] = distance(first, second)
    assert values["xy"] == pytest.approx(values["yx"])
    assert values["xz"] <= values["xy"] + values["yz"] + 1e-9
    shuffled = x[torch.randperm(n, generator=torch.Generator().manual_seed(seed))]
    assert distance(x, shuffled) == pytest.approx(0, abs=1e-9)


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
    assert distance(x, y, p=p, ground=ground, kind=kind) == pytest.approx(expected ** (1 / p), rel=1e-6)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: normalised_diagram(torch.ones(3, 2)), "a cloud without spread"),
        (lambda: normalised_diagram(torch.ones(3)), r"shape \[n, d\]"),
        (lambda: normalised_diagram(torch.full((3, 2), math.nan)), "points must be finite"),
        (lambda: normalised_diagram(cloud(3, 2), kind="x"), "kind must be one of"),
    ],
)
def test_bad_input(call, match):
    with pytest.raises(ValueError, match=match):
        call()
