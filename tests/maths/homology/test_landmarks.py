import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist, squareform

from lisse.maths.homology import diagram_distance, landmarks, persistence

ANGLES = 2 * np.pi * np.arange(12) / 12


def cloud_of(seed, n, d):
    return np.random.default_rng(seed).standard_normal((n, d))


def ring(seed, n=40, noise=0.1):
    rng = np.random.default_rng(seed)
    t = rng.uniform(0, 2 * np.pi, n)
    return np.stack([np.cos(t), np.sin(t)], 1) + noise * rng.standard_normal((n, 2))


def test_landmarks_are_the_farthest_points_in_turn():
    points = np.array([0.0, 1.0, 2.0, 10.0, 4.0])[:, None]
    assert landmarks(points, 4).tolist() == [0, 3, 4, 2]
    assert landmarks(points, 2, start=3).tolist() == [3, 0]
    assert sorted(landmarks(np.zeros((5, 2)), 5).tolist()) == [0, 1, 2, 3, 4]


def test_landmarks_agree_with_a_naive_version_and_cover():
    points = cloud_of(7, 200, 5)
    chosen = [11]
    matrix = squareform(pdist(points))
    while len(chosen) < 30:
        chosen.append(int(matrix[chosen].min(0).argmax()))
    assert landmarks(points, 30, start=11).tolist() == chosen
    radius = matrix[chosen].min(0).max()
    moved = diagram_distance(persistence(points), persistence(points[chosen]), dim=1, p=math.inf)
    assert moved <= 2 * radius


def test_the_generator_chooses_the_first_landmark():
    points = cloud_of(7, 200, 5)
    first = {int(landmarks(points, 1, generator=torch.Generator().manual_seed(seed))) for seed in range(8)}
    assert len(first) > 1
    again = [landmarks(points, 5, generator=torch.Generator().manual_seed(1)).tolist() for _ in range(2)]
    assert again[0] == again[1]


def test_bad_landmarks_are_named():
    with pytest.raises(ValueError, match="count must be between 1 and the 3 points, got 4"):
        landmarks(np.zeros((3, 2)), 4)
    with pytest.raises(ValueError, match="start must be an index under 3, got 3"):
        landmarks(np.zeros((3, 2)), 2, start=3)
