import numpy as np
import pytest
import torch

from lisse.data import Dataset, generators
from lisse.maths.isometry import euclidean
from lisse_experiments.isometry.planes import plane, planes_figure


def test_the_principal_plane_is_an_orthogonal_projection():
    generator = torch.Generator().manual_seed(0)
    flat = torch.randn(30, 2, generator=generator, dtype=torch.float64) * torch.tensor([3.0, 1.0])
    turn, _ = torch.linalg.qr(torch.randn(5, 2, generator=generator, dtype=torch.float64))
    found = plane(flat @ turn.T, method="principal")
    np.testing.assert_allclose(euclidean(torch.from_numpy(found)), euclidean(flat), atol=1e-9)
    assert plane(torch.randn(6, 1), method="principal").shape == (6, 2)
    with pytest.raises(ValueError, match="method must be"):
        plane(flat, method="pca")
    with pytest.raises(ValueError, match="at least 3 and finite"):
        plane(flat * float("nan"))


def test_planes_are_coloured_by_label():
    points = torch.randn(20, 3)
    labels = torch.arange(20) % 3
    figure = planes_figure(
        {"a": points, "b": points}, {"a": labels, "b": labels * 0}, title="t", says="s", names=("x", "y", "z"),
        method="principal",
    )  # fmt: skip
    assert [len(ax.lines) for ax in figure.axes] == [3, 1]


@pytest.mark.slow
def test_umap_keeps_rings_apart_and_is_the_same_for_a_seed():
    pytest.importorskip("umap")
    data = generators.rings(120, seed=0, offset=30.0)
    assert isinstance(data, Dataset)
    found = plane(data.inputs, neighbours=15, seed=3)
    assert torch.get_num_threads() == 1  # as before: another number, and whatever comes next takes ten times as long
    assert np.array_equal(found, plane(data.inputs, neighbours=15, seed=3))
    assert not np.array_equal(found, plane(data.inputs, neighbours=15, seed=4))
    labels = data.targets.numpy()
    centres = [found[labels == k].mean(0) for k in (0, 1)]
    spread = max(np.linalg.norm(found[labels == k] - centres[k], axis=1).max() for k in (0, 1))
    assert np.linalg.norm(centres[0] - centres[1]) > spread
