import pytest
import torch

from lisse.maths.isometry import distortion, euclidean
from lisse_experiments.isometry.projection import IsometricProjection

X = 0.5 * torch.randn(24, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


Y = torch.arange(24) % 4


def two_squares():
    generator = torch.Generator().manual_seed(0)
    flat = torch.rand(60, 2, generator=generator, dtype=torch.float64)
    lifted = torch.cat([flat, torch.zeros(60, 3, dtype=torch.float64)], 1)
    lifted[30:, 2] = 4.0  # above the first one
    return 5 * lifted + 3, torch.arange(60) // 30


def test_a_projection_separates_classes_and_keeps_their_distances():
    x, y = two_squares()
    projection = IsometricProjection(epochs=400)
    found = projection.fit_transform(x, y)
    assert found.shape == (60, 2)
    assert projection.accuracy_ == 1.0
    assert projection.stress_ < 0.1
    same = y[:, None] == y[None]
    assert distortion(euclidean(x), euclidean(found), same).error < 0.15
    assert torch.allclose(projection.transform(x[:3].numpy()), found[:3])


def test_clusters_stand_in_for_labels():
    x, y = two_squares()
    projection = IsometricProjection(3, clusters=2, epochs=5, hidden=(8,)).fit(x.numpy())
    found = projection.labels_
    assert torch.equal(found == found[0], y == y[0])
    assert projection.transform(x).shape == (60, 3)


def test_bad_projections():
    x, y = two_squares()
    with pytest.raises(ValueError, match="labels must be given, or clusters=k"):
        IsometricProjection().fit(x)
    with pytest.raises(ValueError, match="one for each of 60 points"):
        IsometricProjection().fit(x, y[:3])
    with pytest.raises(ValueError, match="clusters must not exceed"):
        IsometricProjection(clusters=99).fit(x)
    with pytest.raises(RuntimeError, match="fit must come before transform"):
        IsometricProjection().transform(x)
    with pytest.raises(ValueError, match="must have 5 features"):
        IsometricProjection(epochs=1).fit(x, y).transform(x[:, :2])
    with pytest.raises(ValueError, match="dim must be whole"):
        IsometricProjection(0)
    with pytest.raises(ValueError, match="rate must be finite"):
        IsometricProjection(rate=float("nan"))
    with pytest.raises(ValueError, match="finite points"):
        IsometricProjection(clusters=2).fit(x * float("nan"))
