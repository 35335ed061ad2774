from __future__ import annotations

import pytest
from click.testing import CliRunner

from lisse.cli import cli
from lisse.profile import Profile


def call(*words):
    return CliRunner().invoke(cli, [str(word) for word in words])


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    path = tmp_path_factory.mktemp("robustness") / "a.profile"
    outcome = call(
        "measure", "robustness", "zoo:fc2?in_channels=1&size=8", "--data", "digits", "--limit", 20, "--no-cache",
        "--corruptions", "contrast,fog", "--severities", "1,5", "--attacks", "noise,fgsm,pgd", "--eps", "0.01,0.1",
        "--sigma", "0.1", "--delta", "0.5", "--out", path,
    )  # fmt: skip
    assert outcome.exit_code == 0, outcome.output
    assert f"Draw it: lisse figure robustness {path}" in outcome.output  # there is nothing along depth to overview
    return path


def test_measure_robustness(profile):
    found = {row.quantity for row in Profile.load(profile).rows}
    assert found >= {
        "clean_accuracy",
        "corruption_accuracy",
        "attack_accuracy",
        "noise_accuracy",
        "deformation_accuracy",
    }


@pytest.mark.parametrize("what", ["robustness", "corruptions"])
def test_figures(profile, tmp_path, what):
    outcome = call("figure", what, profile, "-o", tmp_path / "a.png")
    assert outcome.exit_code == 0, outcome.output
    assert (tmp_path / "a.png").stat().st_size > 5000
    wrong = call("figure", what, profile, "-o", tmp_path / "a.png", "--where", "cloud=1")
    assert wrong.exit_code == 2
    assert f"where of {what!r} must" in wrong.output


def test_an_unknown_corruption_lists_the_names():
    outcome = call("measure", "robustness", "zoo:lenet", "--data", "digits", "--corruptions", "rain")
    assert outcome.exit_code == 2
    assert "gaussian_noise" in outcome.output
