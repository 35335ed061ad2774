"""survey(): what `lisse report` puts on its page, as a function; each thing made once."""

from __future__ import annotations

import gc
import json
import re
import warnings
import weakref
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import lisse
from lisse.instruments import Drift, Robustness, Sensitivity, Stability, Topology
from lisse.profile import Part, Quantity, Row
from lisse.run import Instrument, Run
from lisse.run.calibration import calibrated
from lisse.surveying import networks

SPEC = "zoo:fc2?in_channels=1&size=8"
TRAINED = [f"{SPEC}&weights={name}.safetensors&mean=none" for name in "ab"]
SMALL = [Topology(samples=10, clouds=2), Sensitivity(samples=10, points=2, max_iter=2)]
PAIR = (Topology, Stability)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with weights of two networks."""
    from safetensors.torch import save_file

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LISSE_CACHE", str(tmp_path / "cache"))
    for seed, name in enumerate("ab"):
        network = lisse.load_model(f"{SPEC}&seed={seed}&mean=none")
        save_file(network.state_dict(), f"{name}.safetensors")
    return tmp_path


def net(scale: float = 1.0) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    with torch.no_grad():
        model[0].weight.mul_(scale)
    return model


def points(n: int = 30) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long()


def page_data(path: str | Path) -> dict[str, Any]:
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', Path(path).read_text("utf-8"), re.S)
    assert text is not None
    return json.loads(text[1])


def test_a_report_of_a_survey_is_the_report_of_the_command_line(folder: Path) -> None:
    from lisse.cli import cli

    line = ["report", *TRAINED, "--data", "digits", "--limit", "60", "--quick", "--instruments", "topology,stability"]
    result = CliRunner().invoke(cli, [*line, "--out", "a.html", "--no-cache"])
    assert result.exit_code == 0, result.stderr
    profiles = lisse.survey(TRAINED, "digits", limit=60, size="quick", instruments=PAIR)
    lisse.report(profiles, "b.html")
    ours, theirs = page_data("b.html"), page_data("a.html")
    for data in (ours, theirs):
        for provenance in data["provenance"]:
            del provenance["date"], provenance["seconds"]
    assert ours == theirs
    assert ours["models"] == ["fc2 (weights=a.safetensors)", "fc2 (weights=b.safetensors)"]
    assert ours["provenance"][0]["score"]["n"] == 60
    assert any(row[1] for row in ours["rows"])  # random weights lie beside them
    assert [sentence.text for sentence in lisse.verdict(profiles)] == [item["text"] for item in ours["verdict"]]


def test_each_thing_is_made_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lisse.cli import cli
    from lisse.reporting import page
    from lisse.surveying import beside

    counts: Counter[str] = Counter()

    def counted(name: str, function: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            counts[name] += 1
            return function(*args, **options)

        return call

    monkeypatch.setattr(Run, "__init__", counted("runs", Run.__init__))
    monkeypatch.setattr(networks, "load_model", counted("models", networks.load_model))
    monkeypatch.setattr(beside, "load_model", counted("starts", beside.load_model))
    monkeypatch.setattr(networks, "load_data", counted("data", networks.load_data))
    monkeypatch.setattr(page.document, "verdict", counted("verdicts on the page", page.document.verdict))
    monkeypatch.setattr(lisse, "verdict", counted("verdicts", lisse.verdict))
    line = ["report", *TRAINED, "--data", "digits", "--limit", "40", "--quick", "--instruments", "stability"]
    result = CliRunner().invoke(cli, line)
    assert result.exit_code == 0, result.stderr
    # Two networks, and one with random weights beside each.
    assert counts == {"runs": 4, "models": 2, "starts": 2, "data": 1, "verdicts": 1}


def test_text_is_read_once_for_every_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    data, tokenizers = lisse.as_dataset(points()), {"first": len, "second": len, "third": None}
    models = {name: net(scale) for scale, name in enumerate(tokenizers, 1)}
    by_model = {id(model): tokenizers[name] for name, model in models.items()}
    loads: list[Any] = []
    monkeypatch.setattr(networks, "tokenizer_for", lambda model: by_model[id(model)])
    monkeypatch.setattr(networks, "load_data", lambda spec, **options: loads.append(options["tokenizer"]) or data)
    lisse.survey(models, "words", instruments=SMALL[0])
    assert loads == [len, None]


def test_modules_and_names(folder: Path) -> None:
    profiles = lisse.survey({"plain": net(), "steep": net(5.0)}, points(), instruments=SMALL)
    assert [profile.name for profile in profiles] == ["plain", "steep"]
    assert all({part.instrument for part in profile.parts} == {"topology", "sensitivity"} for profile in profiles)
    assert all(0 <= profile.provenance["score"]["error"] <= 1 for profile in profiles)
    assert [profile.name for profile in lisse.survey([net(), net(5.0)], points(), instruments=SMALL)] == [
        "Sequential",
        "Sequential (2)",
    ]
    (alone,) = lisse.survey(net(), points(), instruments=SMALL)
    assert alone.rows == lisse.measure(net(), points(), SMALL).rows
    assert alone["topology"].options["samples"] == 10  # as it was given, whatever the size


def test_a_network_of_the_zoo_gets_its_start_also_as_a_module(folder: Path) -> None:
    model = lisse.load_model(SPEC)
    data = lisse.load_data("digits", limit=40)
    own, first, second = lisse.survey([model], data, size="quick", starts=2, instruments=[Stability])
    for start, seed in ((first, 1000), (second, 1001)):
        weights = own.provenance["model"]["fingerprint"]
        assert start.provenance["reference"] == {"kind": "initialisation", "model": weights, "seed": seed}
    assert first.rows != second.rows
    assert "weights" not in own.provenance  # a module may have been trained
    (alone,) = lisse.survey([SPEC], data, size="quick", starts=None, instruments=[Stability])
    assert alone.provenance["weights"] == "random"  # so others would say little
    assert len(lisse.survey([SPEC], data, size="quick", starts=1, instruments=[Stability])) == 2
    assert len(lisse.survey([SPEC], data, size="quick", starts=1, instruments=[Sensitivity])) == 1


def test_batch_norms_of_random_weights_are_set_from_the_data_or_refused(folder: Path) -> None:
    spec, data = "zoo:resnet20?in_channels=1&size=8", lisse.load_data("digits", limit=40)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (profile,) = lisse.survey([spec], data, starts=None, order="given", instruments=SMALL)
    notes = profile["topology"].notes
    assert "Random weights: the statistics of batch norms are those of 40 samples." in notes
    assert not any("never seen data" in note for note in profile.notes)
    model = lisse.load_model(spec)
    by_hand = lisse.measure(calibrated(model, data, 100, "cpu"), data, SMALL, order="given")
    assert profile.rows == by_hand.rows
    with pytest.raises(ValueError, match="batch must hold at least 2 samples"):
        lisse.survey([spec], data, batch=1, instruments=SMALL)
    with pytest.warns(UserWarning, match="never seen data"):  # somebody's module is not changed
        (left,) = lisse.survey([lisse.load_model(spec)], data, starts=0, instruments=SMALL)
    assert any("never seen data" in note for note in left["topology"].notes)


@pytest.mark.parametrize("clean", [4, 30, None])
def test_a_page_has_one_accuracy(clean: int | None) -> None:
    """That of the instrument that counts it, of as many samples as it was given; else the survey's own."""
    nothing = {"corruptions": (), "attacks": (), "sigma": (0.1,), "delta": ()}
    data = points(40)
    (profile,) = lisse.survey(net(), data, instruments=[Robustness(**nothing, samples=4, clean=clean)])
    (row,) = (row for row in profile.rows if row.quantity == "clean_accuracy")
    score = profile.provenance["score"]
    assert (score["n"], 1 - score["error"]) == (row.n, row.value) == (clean or 40, pytest.approx(row.value))
    assert (1 - score["high"], 1 - score["low"]) == pytest.approx((row.low, row.high))
    (alone,) = lisse.survey(net(), data, instruments=SMALL)
    assert alone.provenance["score"]["n"] == 40


def test_sizes_count_as_many_as_the_survey_would() -> None:
    for size in ("quick", "usual", "full"):
        assert Robustness.sized(size).clean == networks.SCORED[size]  # type: ignore[arg-type,index]


def test_a_model_that_fails_leaves_the_others_unharmed(folder: Path) -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(x) > 3:
                raise RuntimeError("the pump")
            return self.layer(x)

    events: list[Any] = []
    options: dict[str, Any] = {"instruments": SMALL, "progress": events.append, "folder": "kept"}
    broken, sound = lisse.survey({"broken": Broken(), "sound": net()}, points(), **options)
    assert not broken.rows
    assert any("the pump" in note for note in broken.notes)
    assert sound.rows == lisse.measure(net(), points(), SMALL).rows
    assert any(event.level == "warning" and "the pump" in event.say for event in events)
    assert re.match(r"2 networks; topology, sensitivity\. This takes", next(e.say for e in events if e.say))
    assert [event.done for event in events if event.task == "survey" and not event.say] == [0, 1]
    assert {path.name[:6] for path in Path("kept").iterdir()} == {"broken", "sound-"}


def many(n: int = 40) -> torch.Tensor:
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(0))


def changed(scale: float = 1.1) -> nn.Module:
    """:func:`net` with another last layer but one."""
    model = net()
    with torch.no_grad():
        model[2].weight.mul_(scale)
    return model


@pytest.mark.parametrize("instruments", [None, [SMALL[1], Drift]])
def test_two_networks_of_one_kind_are_put_beside_each_other(folder: Path, instruments: Any) -> None:
    events: list[Any] = []
    models = {"base": net(), "tuned": changed()}
    options: dict[str, Any] = {"size": "quick", "starts": 0, "instruments": instruments, "progress": events.append}
    base, tuned = lisse.survey(models, many(), **options, cache="done")
    assert "drift" in next(event.say for event in events if event.say)
    assert "drift" not in {part.instrument for part in base}
    part = tuned["drift"]
    assert part.beside == tuned.provenance["beside"]["name"] == "base"
    assert part.finding == part.notes[0] != part.notes[-1] == Drift.LEFT_OUT["quick"]
    assert part.finding.startswith("tuned parts from base at 2")
    alone = lisse.drift(net(), changed(), many(), instrument=Drift.sized("quick"), names=("base", "tuned"))
    assert part.rows == alone["drift"].rows
    (again,) = lisse.survey(models, many(), **options, cache="done")[1:]  # an interrupted survey goes on
    assert again["drift"].rows == part.rows
    assert tuned.provenance["forwards"]["patched"] > 0 == again.provenance["forwards"]["patched"]
    spoken = lisse.verdict([base, tuned])
    (sentence,) = [sentence for sentence in spoken if sentence.text == part.finding]
    assert (sentence.topic, sentence.models) == ("overall", (0, 1))
    assert sentence.rows
    tuned.save("tuned.profile")
    assert lisse.Profile.load("tuned.profile").parts == tuned.parts
    page = lisse.report([base, tuned]).text
    assert page.count("tuned parts from base") > 1
    ids = re.findall(r' id="([^"]+)"', page)  # the figure is called as one of its quantities is
    assert sorted(set(ids)) == sorted(ids)
    assert "made without the instrument" not in page


def test_networks_that_are_not_of_one_kind_are_not(folder: Path) -> None:
    torch.manual_seed(0)
    other = nn.Sequential(nn.Linear(3, 9), nn.Tanh(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 2))
    models = {"base": net(), "other": other, "tuned": changed()}
    profiles = lisse.survey(models, many(), size="quick", instruments=[SMALL[1], Drift])
    assert [[part.instrument for part in profile] for profile in profiles] == [
        ["sensitivity"], ["sensitivity", "drift"], ["sensitivity", "drift"],
    ]  # fmt: skip
    assert not profiles[1]["drift"].rows
    assert re.search("Not measured: . of . blocks of one stand for blocks of the other", profiles[1].notes[-1])
    assert profiles[2]["drift"].beside == "base"
    # Seeds of one training should not agree; and of one network alone there is nothing to say but that.
    seeds = lisse.survey({"s1": net(), "s2": changed()}, many(), instruments=[SMALL[1], Drift], join={"s": "s?"})
    assert "none stands beside this one" in seeds[0]["drift"].notes[0]
    (alone,) = lisse.survey(net(), many(), instruments="drift")
    assert "looks at two networks" in alone.notes[0]


def test_a_pair_that_fails_leaves_its_networks_unharmed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: Drift, pair: Any) -> Part:
        raise RuntimeError("the bridge")

    monkeypatch.setattr(Drift, "part_of_pair", failing)
    events: list[Any] = []
    _, tuned = lisse.survey([net(), changed()], many(), instruments=[SMALL[1], Drift], progress=events.append)
    assert tuned["sensitivity"].rows
    assert tuned["drift"].notes == ("Failed: RuntimeError: the bridge",)
    assert any(event.level == "warning" and "the bridge" in event.say for event in events)


def test_an_interruption_keeps_what_is_finished(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part, parts = Topology.part, []

    def interrupted(self: Topology, run: Run) -> Part:
        parts.append(run)
        if len(parts) == 2:
            raise KeyboardInterrupt
        return part(self, run)

    monkeypatch.setattr(Topology, "part", interrupted)
    events: list[Any] = []
    options: dict[str, Any] = {"instruments": [SMALL[0]], "cache": "done", "progress": events.append}
    with pytest.raises(KeyboardInterrupt):
        lisse.survey({"a": net(), "b": net(2.0)}, points(), **options)
    assert "kept in done" in events[-1].say
    assert [profile.name for profile in lisse.survey({"a": net(), "b": net(2.0)}, points(), **options)] == ["a", "b"]
    assert len(parts) == 3  # the first network was not measured again


def test_profiles_go_through_and_seeds_are_joined(folder: Path) -> None:
    saved = lisse.measure(net(1.0), points(), SMALL, name="saved")
    saved.save("old.profile")
    assert lisse.survey([saved]) == [saved]
    assert lisse.survey("old.profile")[0].rows == saved.rows
    join = {"net": "seed*"}
    names = {"seed 1": net(1.0), "old": "old.profile", "seed 2": net(2.0)}
    band, old = lisse.survey(names, points(), instruments=SMALL, join=join)
    assert band.name == "net (2 networks)"
    assert old.rows == saved.rows
    twice = lisse.survey(["old.profile", "old.profile"])
    assert [profile.rows for profile in twice] == [saved.rows, saved.rows]
    with pytest.warns(UserWarning, match="net is not joined: .* same weights twice"):
        apart = lisse.survey({"seed 1": net(), "seed 2": net()}, points(), instruments=SMALL, join=join)
    assert [profile.name for profile in apart] == ["seed 1", "seed 2"]


@pytest.mark.parametrize(
    ("models", "options", "error", "match"),
    [
        ([], {}, ValueError, "survey: models must be one or more, got none"),
        ([3], {}, TypeError, "survey: models must be specs, modules or profiles, got int"),
        ([net()], {"data": None}, ValueError, "survey: data must be given"),
        ([net()], {"size": "huge"}, ValueError, "survey: size must be one of quick, usual, full, got 'huge'"),
        ([net()], {"starts": -1}, ValueError, "survey: starts must be at least 0, got -1"),
        ([net()], {"instruments": [nn.Linear]}, TypeError, "survey: instruments must be Instruments, got .*Linear"),
        ([net()], {"instruments": "topolgy"}, ValueError, "no instrument 'topolgy'. The nearest: topology"),
        ([net()], {"instruments": [Topology, Topology]}, ValueError, "must be different ones"),
        ([net()], {"layers": ["nowhere"]}, ValueError, "layers must match"),
        ([net()], {"join": {"a": "*"}}, ValueError, r"join must match two models or more, got Sequential for a=\*"),
        (["zoo:nothing"], {}, ValueError, "must be a network of the zoo, got 'nothing'"),
        (["zoo:resnet20"], {}, RuntimeError, "zoo:resnet20 does not run on"),
    ],
)
def test_bad_arguments_are_errors_before_any_work(
    models: Any, options: dict[str, Any], error: type[Exception], match: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(networks, "profile_of", None)
    data = options.pop("data", points()) if "data" in options else points()
    with pytest.raises(error, match=match):
        lisse.survey(models, data, **options)


def test_a_damaged_profile_is_an_error(folder: Path) -> None:
    Path("bad.profile").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="load: path must be a sound lisse profile"):
        lisse.survey("bad.profile")


@dataclass(frozen=True)
class Living(Instrument):
    """How many of the loaded networks are still there."""

    QUANTITIES = (Quantity("living", "living networks", "How many networks are in memory."),)

    def part(self, run: Run) -> Part:
        gc.collect()
        return self.part_of([Row("living", sum(model() is not None for model in LOADED), "exact", len(run))])


LOADED: list[weakref.ref[nn.Module]] = []


def test_a_model_is_let_go_once_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are loaded first, so that whatever is wrong with one is said before the work; then profiles are enough."""

    def loaded(spec: str, device: str = "cpu") -> nn.Module:
        model = net(float(spec))
        LOADED.append(weakref.ref(model))
        return model

    LOADED.clear()
    monkeypatch.setattr(networks, "load_model", loaded)
    profiles = lisse.survey(["1", "2", "3"], points(), instruments=[Living()])
    assert [profile.rows[0].value for profile in profiles] == [3, 2, 1]


def test_one_start_stands_beside_a_network_unless_more_are_asked_for(folder: Path) -> None:
    profiles = lisse.survey(TRAINED[:1], "digits", limit=40, instruments=[Stability(samples=20)])
    assert ["reference" in profile.provenance for profile in profiles] == [False, True]
    by_size = lisse.survey(TRAINED[:1], "digits", limit=40, instruments=[Stability(samples=20)], starts=None)
    assert len(by_size) == 1 + networks.STARTS["usual"]
