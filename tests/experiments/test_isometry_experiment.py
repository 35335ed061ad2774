from pathlib import Path

import pytest
import torch

from lisse.maths.isometry import euclidean
from lisse.networks.isometric import LocallyIsometric, StackedIsometric
from lisse_experiments import PAPERS, Task, form, study
from lisse_experiments.isometry import rings, torus


@pytest.fixture
def small(monkeypatch):
    """Trainings of seconds."""
    monkeypatch.setattr(rings, "settings", lambda scale: rings.Settings(40, 6, 3, 50))
    monkeypatch.setattr(torus, "settings", lambda scale: torus.Settings(48, 4, 60, ("variance", "std")))


def test_it_is_listed():
    assert "isometry" in PAPERS
    about = study("isometry").about
    assert set(about.needs) == {"smoke", "paper"}
    assert (about.folder / "README.md").is_file()


def test_rings_are_trained_once_and_looked_at(small, tmp_path):
    events = []
    task = Task("smoke", tmp_path, progress=events.append)
    found = rings.results(task)
    assert [(one.condition, one.seed) for one in found] == [
        (name, seed) for name, _, _, _ in rings.CONDITIONS for seed in (0, 1, 2)
    ]
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "rings").iterdir()}
    again = rings.results(task)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "rings").iterdir()} == files
    assert [one.error for one in again] == [one.error for one in found]
    assert [list(one.losses) for one in again] == [list(one.losses) for one in found]
    findings = {finding.key: finding for finding in rings.findings(task, found)}
    error = findings["rings/local/error"]
    assert error.n == 3
    assert error.low < error.value < error.high
    x, y = rings.points(task)
    assert findings["rings/input/hole/0"].value == rings.longest_bar(x[y == 0])
    claims = {claim.key: claim for claim in rings.claims(task, found)}
    assert claims["rings/gradient"].detail != ""
    assert set(claims) == {
        "rings/untangled", "rings/survive", "rings/lost", "rings/global-survive", "rings/closer", "rings/gradient",
    }  # fmt: skip


def test_a_look_at_the_identity_finds_an_isometry():
    task = Task("smoke", Path("nowhere"))
    x, y = rings.points(task)

    class Same(LocallyIsometric):
        def representation(self, x):
            return x @ torch.eye(3, 20, dtype=x.dtype)

        def forward(self, x):
            return self.head(self.representation(x))

    one = rings._looked_at("local", 0, Same(3, classes=2).double(), [0.0], x, y, (x, y))
    assert one.error == pytest.approx(0.0, abs=1e-12)
    assert one.steepness == pytest.approx(1.0)
    assert one.holes == pytest.approx((rings.longest_bar(x[y == 0]), rings.longest_bar(x[y == 1])))
    assert one.median_stretch == pytest.approx(1.0)


def test_the_torus_has_nested_labels_and_a_stack_of_stages(small, tmp_path):
    task = Task("paper", tmp_path)
    found = torus.results(task)
    assert [cut.noise for cut in found] == ["variance", "std"]
    for cut in found:
        assert isinstance(cut.network, StackedIsometric)
        assert [int(labels.max()) + 1 for labels in cut.targets] == [2, 4, 8]
        assert torch.equal(cut.targets[0], cut.targets[2] // 4)
        assert cut.error[0] == cut.overall[0]
    spread = [(cut.x.norm(dim=1) - found[0].x.norm(dim=1)).abs().max() for cut in found]
    assert float(spread[1]) > 0  # another noise
    keys = {finding.key for finding in torus.findings(task, found)}
    assert "torus/std/8/accuracy" in keys
    assert len(torus.claims(found)) == 4


def test_weights_come_back_as_they_were(tmp_path):
    network = LocallyIsometric(3, (4,), 2, seed=1).double()
    x = torch.randn(5, 3, dtype=torch.float64)
    before = network(x)
    assert rings.stored_losses(tmp_path / "a.weights", network, lambda: [3.0, 2.0]) == [3.0, 2.0]
    other = LocallyIsometric(3, (4,), 2, seed=2).double()

    def never():
        raise AssertionError("trained again")

    assert rings.stored_losses(tmp_path / "a.weights", other, never) == [3.0, 2.0]
    assert torch.equal(other(x), before)
    assert euclidean(x).shape == (5, 5)


@pytest.mark.slow
def test_the_smoke_run_finds_what_is_committed_and_rings_survive_with_the_isometric_loss_alone(tmp_path):
    chosen = study("isometry")
    outcome = chosen.run(Task("smoke", tmp_path))
    assert form.differences(outcome, form.expected(chosen.about.folder)["smoke"]) == []
    assert all(file.is_file() for file in outcome.files)
    claims = {claim.key: claim for claim in outcome.claims}
    for key in ("rings/untangled", "rings/survive", "rings/lost", "rings/closer", "torus/std/isometry"):
        assert claims[key].holds, claims[key].detail
    found = {finding.key: finding.value for finding in outcome.findings}
    assert found["torus/std/2/accuracy"] > 0.9
