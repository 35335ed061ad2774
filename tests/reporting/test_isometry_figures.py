import numpy as np
import pytest
import torch
from click.testing import CliRunner

pytest.importorskip("matplotlib")

from lisse.cli import cli
from lisse.data import generators
from lisse.instruments import Isometry
from lisse.networks.isometric import LocallyIsometric
from lisse.profile import Part, Profile
from lisse.reporting.charts import chart_figure
from lisse.reporting.figure import save_figure


@pytest.fixture(scope="module")
def profiles():
    data = generators.rings(48, seed=0)
    return [
        Isometry(samples=48, points=0, clouds=1).measure(
            LocallyIsometric(3, classes=2, seed=seed), data, name=f"n{seed}"
        )
        for seed in (0, 1)
    ]


def test_depth_shows_what_the_rows_say(profiles, tmp_path):
    figure = chart_figure(profiles, "isometry")
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles[0] == "relative error of distances · pairs=within cloud=48"
    assert len(titles) == 5
    rows = [row for row in profiles[1].rows if row.quantity == "distance_error" and row.at["pairs"] == "within"]
    np.testing.assert_allclose(figure.axes[0].lines[1].get_ydata(), [row.value for row in rows])
    holes = figure.axes[4].lines[0]
    assert holes.get_ydata()[0] == 1.0  # the input over itself
    save_figure(figure, tmp_path / "a.png")


def test_histograms_are_densities_of_the_layer(profiles, tmp_path):
    figure = chart_figure(profiles, "histograms")
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["first ring", "second ring"]
    patch = figure.axes[0].patches[0]
    values, edges, _ = patch.get_data()
    assert float((values * np.diff(edges)).sum()) == pytest.approx(1.0)
    counts = profiles[0]["isometry"].arrays["histogram/blocks.3/class=first ring/counts"]
    np.testing.assert_allclose(values, counts / (counts.sum() * np.diff(edges)))
    other = chart_figure(profiles[0], "histograms", where={"layer": "blocks.0", "log": True})
    assert other.axes[0].get_yscale() == "log"
    assert not np.allclose(other.axes[0].patches[0].get_data()[1], edges)
    with pytest.raises(ValueError, match=r"layer must be one of input, blocks\.0"):
        chart_figure(profiles, "histograms", where={"layer": "none"})
    save_figure(other, tmp_path / "a.svg")


def test_without_labels_there_is_one_panel_of_all_pairs():
    profile = Isometry(samples=20, points=0, clouds=1).measure(LocallyIsometric(3, classes=2), torch.randn(20, 3))
    assert len(chart_figure(profile, "histograms").axes) == 1
    assert len(chart_figure(profile, "isometry").axes) == 4


def test_another_profile_is_refused():
    with pytest.raises(ValueError, match="what Isometry measured"):
        chart_figure(Profile((Part("topology"),)), "isometry")


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
