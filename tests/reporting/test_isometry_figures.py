import numpy as np
import pytest
import torch
from click.testing import CliRunner

pytest.importorskip("matplotlib")

from lisse.cli import cli
from lisse.data import Dataset, generators
from lisse.instruments import Isometry
from lisse.maths.isometry import euclidean
from lisse.networks.isometric import LocallyIsometric
from lisse.profile import Part, Profile
from lisse.reporting.figure import save_figure
from lisse.reporting.isometry import histogram_figure, isometry_figure
from lisse.reporting.planes import plane, planes_figure


@pytest.fixture(scope="module")
def profiles():
    data = generators.rings(48, seed=0)
    return [
        Isometry(samples=48, points=0, quick=True).measure(
            LocallyIsometric(3, classes=2, seed=seed), data, name=f"n{seed}"
        )
        for seed in (0, 1)
    ]


def test_depth_shows_what_the_rows_say(profiles, tmp_path):
    figure = isometry_figure(profiles)
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles[0] == "relative error of distances within classes"
    assert len(titles) == 5
    rows = [row for row in profiles[1].rows if row.quantity == "distance_error" and row.at["pairs"] == "within"]
    np.testing.assert_allclose(figure.axes[0].lines[1].get_ydata(), [row.value for row in rows])
    holes = figure.axes[4].lines[0]
    assert holes.get_ydata()[0] == 1.0  # the input over itself
    save_figure(figure, tmp_path / "a.png")


def test_histograms_are_densities_of_the_layer(profiles, tmp_path):
    figure = histogram_figure(profiles)
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["first ring", "second ring"]
    patch = figure.axes[0].patches[0]
    values, edges, _ = patch.get_data()
    assert float((values * np.diff(edges)).sum()) == pytest.approx(1.0)
    counts = profiles[0]["isometry"].arrays["histogram/blocks.3/class=first ring/counts"]
    np.testing.assert_allclose(values, counts / (counts.sum() * np.diff(edges)))
    other = histogram_figure(profiles[0], layer="blocks.0", log=True)
    assert other.axes[0].get_yscale() == "log"
    assert not np.allclose(other.axes[0].patches[0].get_data()[1], edges)
    with pytest.raises(ValueError, match=r"layer must be one of input, blocks\.0"):
        histogram_figure(profiles, layer="none")
    save_figure(other, tmp_path / "a.svg")


def test_without_labels_there_is_one_panel_of_all_pairs():
    profile = Isometry(samples=20, points=0, quick=True).measure(LocallyIsometric(3, classes=2), torch.randn(20, 3))
    assert len(histogram_figure(profile).axes) == 1
    assert len(isometry_figure(profile).axes) == 4


def test_another_profile_is_refused():
    with pytest.raises(ValueError, match="what Isometry measured"):
        isometry_figure(Profile((Part("topology"),)))


def test_the_command_draws_them(profiles, tmp_path):
    def main(arguments):
        return CliRunner().invoke(cli, arguments).exit_code

    files = []
    for k, profile in enumerate(profiles):
        profile.save(tmp_path / f"{k}.profile")
        files.append(str(tmp_path / f"{k}.profile"))
    assert main(["figure", "isometry", *files, "-o", str(tmp_path / "a.png")]) == 0
    arguments = ["figure", "histograms", *files, "-o", str(tmp_path / "b.png"), "--where", "layer=blocks.1"]
    assert main(arguments) == 0
    assert (tmp_path / "a.png").stat().st_size > 10_000
    assert main(["figure", "histograms", *files, "-o", str(tmp_path / "c.png"), "--where", "p=1"]) == 2
    assert main(["figure", "isometry", *files, "-o", str(tmp_path / "c.png"), "--where", "p=1"]) == 2


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
    assert np.array_equal(found, plane(data.inputs, neighbours=15, seed=3))
    assert not np.array_equal(found, plane(data.inputs, neighbours=15, seed=4))
    labels = data.targets.numpy()
    centres = [found[labels == k].mean(0) for k in (0, 1)]
    spread = max(np.linalg.norm(found[labels == k] - centres[k], axis=1).max() for k in (0, 1))
    assert np.linalg.norm(centres[0] - centres[1]) > spread
