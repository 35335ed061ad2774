"""lisse report, runs, export: from models to one page, through interruptions and bad input."""

from __future__ import annotations

import csv
import errno
import io
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result

from lisse.instruments import ALL, Robustness
from lisse.profile import Part, Profile, Quantity, Row

Run = Callable[..., Result]
Interrupt = Callable[..., tuple[int, str]]
MODEL = "tiny_models:sound"
QUICK = ("--data", "points.npz", "--quick", "--instruments", "sensitivity,topology")


def data_of(path: str | Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', Path(path).read_text("utf-8"), re.S)
    assert found is not None
    return json.loads(found[1])


def test_models_become_a_page(lisse: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0.0, 1e-4)  # what a forward pass takes, on any machine
    monkeypatch.setattr("lisse.surveying.beside.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    result = lisse(
        "report", MODEL, "tiny_models:sound?how=other", *QUICK, "--out", "a b/r.html", "--title", "Two & three"
    )
    assert result.exit_code == 0, result.stderr
    data = data_of("a b/r.html")
    assert data["models"] == [MODEL, f"{MODEL} (how=other)"]
    assert {row[2] for row in data["rows"]} == {"sensitivity", "topology"}
    assert "<title>Two &amp; three" in Path("a b/r.html").read_text("utf-8")
    assert "2 networks; sensitivity, topology. This takes a few seconds" in result.stderr
    assert "Saved a b/r.html" in result.stderr
    assert "MiB" in result.stderr or "GiB" in result.stderr  # the progress says how much memory is held
    assert "How sure" in result.stdout
    assert all(one["rows"] for one in data["verdict"] if one["topic"] != "caveat")


def test_what_does_not_fit_is_said_on_the_page(lisse: Run) -> None:
    result = lisse("report", MODEL, "--data", "points.npz", "--quick", "--instruments", "sensitivity,stability")
    assert result.exit_code == 0, result.stderr
    assert "Not measured: it deforms images" in Path("report.html").read_text("utf-8")


def test_seeds_are_joined_into_one_band(lisse: Run, folder: Path) -> None:
    seeds = [f"zoo:fc2?features=3&classes=2&seed={seed}" for seed in (1, 2)]
    result = lisse("report", *seeds, MODEL, *QUICK, "--join", "fc2=zoo:fc2*", "--no-start")
    assert result.exit_code == 0, result.stderr
    data = data_of("report.html")
    assert data["models"] == ["fc2 (2 networks)", MODEL]
    assert data["provenance"][0]["model"]["spec"] == ", ".join(seeds)
    assert any(one["text"].startswith("fc2 (2 networks): numbers are means over") for one in data["verdict"])
    assert len(result.stdout.splitlines()) == 3


def test_random_weights_lie_beside_a_band(lisse: Run, folder: Path) -> None:
    seeds = [f"zoo:fc2?features=3&classes=2&seed={seed}" for seed in (1, 2)]
    result = lisse("report", *seeds, *QUICK, "--join", "fc2=*", "--start-seeds", "2")
    assert result.exit_code == 0, result.stderr
    data = data_of("report.html")
    assert data["models"] == ["fc2 (2 networks)"]
    largest = [row for row in data["rows"] if row[3] == "topolip_change_rate" and row[-1]["dim"] == "all"]
    by_coordinates = [sum(row[1] and row[-1] == one for row in largest) for one in (row[-1] for row in largest)]
    assert set(by_coordinates) == {2}  # each of the two random networks once, though both models brought them


def test_saved_profiles_are_joined_and_what_does_not_fit_stays_apart(lisse: Run, folder: Path) -> None:
    def saved(name: str, layers: list[str], value: float) -> str:
        rows = [Row("norm", value + place, "exact", 5, layer, place / 2) for place, layer in enumerate(layers)]
        said = {"name": name, "fingerprint": name}
        Profile(
            (Part("any", rows, (Quantity("norm", "norm", "A norm."),)),),
            {"model": said, "data": {"name": "x"}, "layers": [{"name": layer, "shape": [1]} for layer in layers]},
        ).save(f"{name}.profile")
        return f"{name}.profile"

    files = [saved("a0", ["in", "out"], 1.0), saved("a1", ["in", "out"], 3.0), saved("b", ["in", "mid", "out"], 1.0)]
    assert lisse("report", *files, "--join", "a=a?.profile").exit_code == 0
    data = data_of("report.html")
    assert data["models"] == ["a (2 networks)", "b"]
    assert [row[6:9] for row in data["rows"] if row[0] == 0] == [[2.0, 1.0, 3.0], [3.0, 2.0, 4.0]]
    result = lisse("report", *files, "--join", "all=*")
    assert result.exit_code == 0, result.stderr
    assert "warning: all is not joined: joined: profiles must have the same layers, got others in a0 and b" in (
        result.stderr
    )
    assert data_of("report.html")["models"] == ["a0", "a1", "b"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["zoo:*"], "--join takes NAME=GLOB, got 'zoo:*'"),
        (["=zoo:*"], "--join takes NAME=GLOB, got '=zoo:*'"),
        (["a=nothing*"], "join must match two models or more, got none for a=nothing*"),
        (["a=*seed=1"], "join must match two models or more, got zoo:fc2?seed=1 for a=*seed=1"),
        (["a=*", "b=*"], "join must name a model once, got zoo:fc2?seed=1 in a and b"),
        (["a=*", "a=*"], "--join has two groups called 'a'"),
    ],
)
def test_bad_joins_are_said_before_any_work(lisse: Run, given: list[str], said: str) -> None:
    options = [word for one in given for word in ("--join", one)]
    result = lisse("report", "zoo:fc2?seed=1", "zoo:fc2?seed=2", "--data", "nowhere", *options)
    assert result.exit_code == 2
    assert said in result.stderr


def test_networks_of_the_zoo_get_random_weights_beside_them(lisse: Run) -> None:
    spec = "zoo:fc2?in_channels=1&size=8"
    chosen = ("--data", "digits", "--limit", "60", "--quick", "--instruments", "stability")
    result = lisse("report", spec, *chosen, "--start-seeds", "2", "--profiles", "kept")
    assert result.exit_code == 0, result.stderr
    rows = data_of("report.html")["rows"]
    assert 2 * sum(not row[1] for row in rows) == sum(row[1] for row in rows) > 0
    assert "3 networks, 2 of them with random weights" in result.stderr
    assert len(list(Path("kept").iterdir())) == 3
    assert data_of("report.html")["provenance"][0]["score"]["n"] == 60
    result = lisse("report", spec, *chosen, "--no-start", "--out", "b.html")
    assert not any(row[1] for row in data_of("b.html")["rows"])


def test_saved_profiles_need_no_data(lisse: Run) -> None:
    assert (
        lisse("measure", "sensitivity", MODEL, "--data", "points.npz", "--quick", "--out", "a.profile").exit_code == 0
    )
    result = lisse("report", "a.profile", "--out", "r.html")
    assert result.exit_code == 0, result.stderr
    assert data_of("r.html")["models"] == [MODEL]


def test_a_network_with_random_weights_is_called_that_and_gets_no_others_beside_it(lisse: Run) -> None:
    chosen = ("--data", "digits", "--limit", "60", "--quick", "--instruments", "stability")
    result = lisse("report", "zoo:fc2?in_channels=1&size=8", *chosen)
    assert result.exit_code == 0, result.stderr
    assert "1 network; stability." in result.stderr
    assert "fc2 has random weights" in result.stdout
    assert "raining" not in result.stdout
    assert not any(row[1] for row in data_of("report.html")["rows"])


def test_two_models_of_one_name_are_told_apart_by_their_specs(lisse: Run) -> None:
    chosen = ("--data", "digits", "--limit", "40", "--quick", "--instruments", "stability")
    specs = ["zoo:fc2?in_channels=1&size=8&seed=3", "zoo:fc2?in_channels=1&size=8&seed=4"]
    result = lisse("report", *specs, *chosen)
    assert result.exit_code == 0, result.stderr
    assert data_of("report.html")["models"] == ["fc2 (seed=3)", "fc2 (seed=4)"]


def test_what_a_size_leaves_out_is_said(lisse: Run) -> None:
    chosen = ("--data", "digits", "--limit", "60", "--quick", "--instruments", "isometry")
    assert lisse("report", "zoo:fc2?in_channels=1&size=8", *chosen).exit_code == 0
    assert "Left out by --quick: gradients and Jacobians" in Path("report.html").read_text()


def test_the_estimate_grows_with_what_is_asked_for() -> None:
    for kind in ALL:
        quick, full = (kind.sized(size).seconds(0.01, 20, 10_000) for size in ("quick", "full"))
        assert 0 < quick < full < 100_000
    # 15 corruptions at 5 severities against 4 at 3, and the steps of pgd
    assert Robustness().seconds(0.01, 20, 300) > 5 * Robustness.sized("quick").seconds(0.01, 20, 300)


def test_quick_and_full_differ_and_exclude_each_other(lisse: Run) -> None:
    from lisse.instruments import Topology

    quick, usual, full = (Topology.sized(size) for size in ("quick", "usual", "full"))
    assert quick.samples < usual.samples < full.samples == Topology().samples
    result = lisse("report", MODEL, *QUICK, "--full")
    assert result.exit_code == 2
    assert "--quick and --full exclude each other" in result.stderr


# -- going on ---------------------------------------------------------------------------------------------------------


def test_the_same_command_finds_finished_work_and_another_does_not(lisse: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from lisse.instruments import Topology

    made: list[str] = []
    part = Topology.part

    def counted(self: Topology, run: Any) -> Part:
        made.append(self.name)
        return part(self, run)

    monkeypatch.setattr(Topology, "part", counted)
    words = ("report", MODEL, "--data", "points.npz", "--quick", "--instruments", "topology")
    assert lisse(*words).exit_code == 0
    first = data_of("report.html")["rows"]
    assert lisse(*words).exit_code == 0
    assert len(made) == 1
    assert data_of("report.html")["rows"] == first
    assert lisse(*words, "--seed", "1").exit_code == 0  # another option
    assert len(made) == 2
    assert lisse(*words[:1], "tiny_models:sound?how=other", *words[2:]).exit_code == 0  # another model
    assert len(made) == 3
    assert lisse(*words, "--no-cache").exit_code == 0
    assert len(made) == 4


def test_a_damaged_piece_is_made_again_and_said(lisse: Run, folder: Path) -> None:
    words = ("report", MODEL, "--data", "points.npz", "--quick", "--instruments", "topology")
    assert lisse(*words).exit_code == 0
    first = data_of("report.html")["rows"]
    for path in (folder / "cache" / "pieces").rglob("*.part"):
        path.write_bytes(b"PK\x03\x04 no zip")
    result = lisse(*words)
    assert result.exit_code == 0
    assert "a cached piece is damaged and is made again" in result.stderr
    assert data_of("report.html")["rows"] == first


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_control_c_keeps_what_is_finished(folder: Path, interrupt: Interrupt) -> None:
    (folder / "importable" / "slow_models.py").write_text(
        "import time, torch\nfrom torch import nn\nfrom tiny_models import Failing\n\n\nclass Slow(Failing):\n"
        "    def forward(self, x):\n        if len(x) == 30:\n            open('asleep', 'w').close()\n"
        "            time.sleep(600)\n"
        "        return super().forward(x)\n\n\n"
        "def made():\n    torch.manual_seed(0)\n    return Slow('not')\n"
    )
    words = [sys.executable, "-m", "lisse", "report", MODEL, "slow_models:made", *QUICK]
    running = subprocess.Popen(
        words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    code, errors = interrupt(running, folder / "asleep")  # the first model is done, the second one sleeps
    assert code == 130
    assert "the same command goes on" in errors
    assert errors.splitlines()[-1] == "lisse: interrupted"
    assert not (folder / "report.html").exists()
    assert list((folder / "cache" / "pieces").rglob("*.part"))
    assert len(list((folder / "cache" / "profiles").iterdir())) == 1


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["zoo:nothing", *QUICK], 2, "zoo:nothing|nothing"),
        (["no_such_module:made", *QUICK], 2, "no_such_module"),
        ([MODEL, "zoo:nothing", *QUICK], 2, "nothing"),
        ([MODEL], 2, "--data is needed"),
        ([MODEL, "--data", "nowhere.npz"], 3, "nowhere.npz"),
        ([MODEL, *QUICK[:3], "--instruments", "topolgy"], 2, "no instrument 'topolgy'. The nearest: topology"),
        ([MODEL, *QUICK[:3], "--instruments", ","], 2, "named once each"),
        (["missing.profile"], 3, "missing.profile"),
        ([MODEL, *QUICK, "--cache", "x", "--no-cache"], 2, "exclude each other"),
    ],
)
def test_what_cannot_be_loaded_is_said_before_any_work(lisse: Run, words: list[str], code: int, said: str) -> None:
    result = lisse("report", *words)
    assert result.exit_code == code
    text = result.stderr + str(result.exception or "")
    assert re.search(said, text), text
    assert not Path("report.html").exists()


def test_data_of_the_wrong_shape_are_named(lisse: Run) -> None:
    result = lisse("report", "zoo:resnet20", "--data", "points.npz", "--quick")
    assert result.exit_code == 1
    assert "zoo:resnet20 does not run on points" in result.stderr
    assert not Path("report.html").exists()


def test_a_page_without_a_place_is_refused_before_any_work(lisse: Run, folder: Path) -> None:
    (folder / "file").write_text("")
    (folder / "a folder").mkdir()
    for out in ("file/r.html", "a folder"):
        result = lisse("report", MODEL, *QUICK, "--out", out)
        assert result.exit_code in (2, 3)
        assert "cannot be written" in result.stderr or "is a directory" in result.stderr


def test_a_full_disk_is_one_line_and_keeps_the_work(lisse: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "report.html")

    monkeypatch.setattr("lisse.reporting.page.document.writing", full)
    result = lisse("report", MODEL, *QUICK)
    assert isinstance(result.exception, OSError) or result.exit_code == 3
    assert not Path("report.html").exists()
    assert list((folder / "cache" / "pieces").rglob("*.part"))


def test_an_instrument_that_fails_half_way_does_not_take_the_page_with_it(lisse: Run) -> None:
    result = lisse("report", "tiny_models:sound?how=raises", MODEL, *QUICK)
    assert result.exit_code == 0, result.stderr
    text = Path("report.html").read_text("utf-8")
    assert "Failed: RuntimeError: the pump" in text
    data = data_of("report.html")
    assert {row[0] for row in data["rows"]} == {1}  # the other model is there
    assert "failed: the pump" in result.stderr


def test_nothing_measured_at_all_is_a_failure(lisse: Run) -> None:
    result = lisse("report", "tiny_models:sound?how=raises", *QUICK)
    assert result.exit_code == 1
    assert "nothing was measured: Failed: RuntimeError: the pump" in result.stderr
    assert not Path("report.html").exists()


# -- runs and export --------------------------------------------------------------------------------------------------


def test_runs_lists_what_was_measured(lisse: Run, folder: Path) -> None:
    result = lisse("runs")
    assert result.exit_code == 0
    assert "Nothing is kept" in result.stderr
    assert (
        lisse("measure", "topology", MODEL, "--data", "points.npz", "--samples", "10", "--clouds", "3").exit_code == 0
    )
    assert lisse("report", MODEL, *QUICK).exit_code == 0
    result = lisse("runs")
    assert result.exit_code == 0
    assert result.stdout.count(MODEL) == 2
    assert "points" in result.stdout
    assert "TopoLip" in result.stdout
    assert [cell.strip() for cell in result.stdout.splitlines()[0].split("  ") if cell.strip()][2:4] == [
        "samples",
        "seed",
    ]
    assert "topology 30" in result.stdout, "three clouds of ten"
    lines = [json.loads(line) for line in lisse("runs", "--json").stdout.splitlines()]
    assert Profile.load(lines[0]["file"]).name == MODEL
    assert lines[0]["date"] >= lines[1]["date"]
    assert len(lisse("runs", "--json", "--limit", "1").stdout.splitlines()) == 1
    assert lisse("report", MODEL, *QUICK).exit_code == 0  # the same again takes its place
    assert lisse("runs").stdout.count(MODEL) == 2
    Path(lines[0]["file"]).write_bytes(b"no profile")
    result = lisse("runs")
    assert result.stdout.count(MODEL) == 1
    assert "is damaged and is not listed" in result.stderr


def test_runs_checks_and_cleans_and_is_stopped_by_nothing(lisse: Run, folder: Path) -> None:
    store = folder / "store"
    options = ("--data", "points.npz", "--samples", "10", "--clouds", "3", "--cache", str(store))
    assert lisse("measure", "topology", MODEL, *options).exit_code == 0
    result = lisse("runs", "--check", "--cache", str(store))
    assert result.exit_code == 0
    assert ", 0 damaged, 0 left" in result.stdout
    profiles = store / "profiles"
    (profiles / "gone.profile").symlink_to(folder / "nowhere")
    os.mkfifo(profiles / "pipe.profile")
    left = profiles / ".x.profile.0123abcd.tmp"
    left.mkdir()
    (left / "new").write_bytes(b"half")
    (store / "mine.tmp").write_text("a person's")
    assert lisse("runs", "--cache", str(store)).stdout.count(MODEL) == 1
    piece = next((store / "pieces").rglob("*.part"))
    piece.write_bytes(piece.read_bytes()[:-30])
    result = lisse("runs", "--check", "--cache", str(store))
    assert result.exit_code == 1
    assert "3 damaged, 1 left by killed runs" in result.stdout
    assert str(piece) in result.stderr
    assert not left.exists()
    assert (store / "mine.tmp").exists()


def test_export_writes_a_table(lisse: Run) -> None:
    assert (
        lisse("measure", "sensitivity", MODEL, "--data", "points.npz", "--quick", "--out", "a.profile").exit_code == 0
    )
    assert lisse("export", "a.profile", "--csv", "t.csv").exit_code == 0
    lines = list(csv.DictReader(io.StringIO(Path("t.csv").read_text("utf-8"))))
    rows = Profile.load("a.profile").rows
    assert [float(line["value"]) for line in lines] == [row.value for row in rows]
    assert lines[0]["model"] == MODEL
    assert lisse("export", "a.profile", "--csv", "-").stdout == Path("t.csv").read_text("utf-8")
    result = lisse("export", "a.profile")
    assert result.exit_code == 2
    assert "say what to write" in result.stderr


def test_export_writes_scalars(lisse: Run) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    quantity = Quantity("q", "q", "Says.")
    rows = [Row("q", float(k), "exact", 1, f"layer{k}", k / 2, at={"p": 1}) for k in range(3)]
    Profile((Part("thing", rows, (quantity,)),), {"model": {"name": "a/b"}}).save("a.profile")
    result = lisse("export", "a.profile", "--tensorboard", "board")
    assert result.exit_code == 0, result.stderr
    events = accumulator.EventAccumulator("board/a-b")
    events.Reload()
    assert [(each.step, each.value) for each in events.Scalars("thing/q/p=1")] == [(0, 0.0), (1, 1.0), (2, 2.0)]


# -- conditions -------------------------------------------------------------------------------------------------------


def two() -> tuple[Profile, Profile]:
    stable = Quantity("relative_stability", "R", "Says.", better="lower")
    rank = Quantity("rank", "rank", "Says.")

    def made(name: str, value: float) -> Profile:
        at = {"cut": 3, "delta": 1.0}
        rows = [Row("relative_stability", value + k, "estimate", 5, layer, d, value + k - 0.1, value + k + 0.1, at)
                for k, (layer, d) in enumerate((("last", 1.0), ("layer1.0", 0.5)))]  # fmt: skip
        rows.append(Row("relative_stability", 9.0, "exact", 5, "last", 1.0, at={"cut": 5, "delta": 1.0}))
        return Profile(
            (Part("stability", rows, (stable,)), Part("other", [Row("rank", 4.0, "exact", 5)], (rank,))),
            {"model": {"name": name}},
        )

    return made("a", 0.2), made("b", 0.5)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("R_f > 0.2", True),
        ("a.R_f > 0.2", False),
        ("b.R_f > a.R_f", True),
        ("R_f > 3 * a.R_f", False),
        ("R_f - a.R_f >= 0.25 and rank == 4", True),
        ("R_f < 0 or rank != 4 or rank <= 4", True),
        ("rank < 4 and rank < 5 or rank > 3", True),
        ("low(R_f) > high(a.R_f)", True),
        ("low(R_f) > 0.45", False),
        ("abs(a.R_f - R_f) < 0.31", True),
        ("relative_stability@layer1.0 > 1.4", True),
        ('relative_stability@"layer1.0" > 1.6', False),
        ("R_f{cut=5} > 8", True),
        ("R_f{cut=3, delta=1} > 8", False),
        ("stability.relative_stability > 0.2", True),
        ("-R_f < -(0.2 + 0.1) * 1e0 / 2", True),
    ],
)
def test_conditions_hold_or_not(text: str, holds: bool) -> None:
    from lisse.cli.conditions import check

    outcome = check(text, *two())
    assert outcome.holds is holds
    assert ("does not hold" not in str(outcome)) is holds


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected before 'the end'"),
        ("R_f", "one of < <= >"),
        ("R_f > ", "a number or a quantity was expected"),
        ("R_f > 0.2 0.3", "'0.3' was not expected there"),
        ("nothing > 1", "has no nothing; it has R_f, rank, relative_stability"),
        ("Rf > 1", r"Did you mean R_f\?"),
        ("TopoLp > 1", r"Did you mean TopoLip\? lisse measure topology gives TopoLip\."),
        ("attack_accuracy > 1", r"rank, relative_stability\. lisse measure robustness gives attack_accuracy\."),
        ("R_f@nowhere > 1", "at layer 'nowhere'; it has last, layer1.0"),
        ("R_f{cut=7} > 1", "at cut=7; it has cut=3"),
        ("low(rank) > 1", "rank has no interval"),
        ("1 / 0 > 1", "divides by zero"),
        ("__import__('os').system('true') > 0", "has no __import__|not expected"),
        ("R_f > 0.2; rank", "was not expected there"),
        ("(R_f > 0.2", "'\\)' was expected"),
    ],
)
def test_conditions_that_cannot_be_checked_are_errors(text: str, said: str) -> None:
    from lisse.cli.conditions import check

    with pytest.raises(ValueError, match=said):
        check(text, *two())


def test_compare_sets_the_exit_code(lisse: Run) -> None:
    for name, made in zip("ab", two(), strict=True):
        made.save(f"{name}.profile")
    assert lisse("compare", "a.profile", "b.profile", "--fail-if", "R_f > 0.6").exit_code == 0
    result = lisse("compare", "a.profile", "b.profile", "--fail-if", "R_f > 0.6", "--fail-if", "R_f > 0.2")
    assert result.exit_code == 5
    assert "R_f > 0.6 does not hold (R_f = 0.5)" in result.stderr
    assert "failed: R_f > 0.2 holds (R_f = 0.5)" in result.stderr
    result = lisse("compare", "a.profile", "b.profile", "--fail-if", "R_g > 0.2")
    assert result.exit_code == 2


@pytest.mark.parametrize("text", ["(" * 4000 + "1", "-" * 4000 + "1 > 0", "abs(" * 4000])
def test_deep_brackets_are_a_usage_error(lisse: Run, text: str) -> None:
    assert (
        lisse("measure", "sensitivity", MODEL, "--data", "points.npz", "--quick", "--out", "a.profile").exit_code == 0
    )
    result = lisse("compare", "a.profile", "a.profile", "--fail-if", text)
    assert result.exit_code == 2
    assert "too many brackets or signs inside each other" in result.stderr


def test_names_of_strangers_are_no_formulas_no_escapes_and_may_be_no_unicode(lisse: Run) -> None:
    row = Row("norm", 1.0, "exact", 3, "=cmd|'/c calc'!A1", at={"=2+3": "@\udce9\x1b[2J"})
    Profile(
        (Part("=sum", (row,), (Quantity("norm", "norm", "How large."),)),), {"model": {"name": "@\udce9\x1b[2J"}}
    ).save("odd.profile")
    assert lisse("export", "odd.profile", "--csv", "t.csv").exit_code == 0
    text = Path("t.csv").read_text()
    cells = text.replace("\n", ",").split(",")
    assert "\x1b" not in text
    assert "\x1b" not in lisse("export", "odd.profile", "--csv", "-").output
    assert lisse("compare", "odd.profile", "odd.profile").exit_code == 0
    assert not [cell for cell in cells if cell.lstrip('"')[:1] in ("=", "@", "+", "-")]
    assert lisse("report", "odd.profile", "--out", "page.html").exit_code == 0
    assert "\x1b" not in lisse("compare", "odd.profile", "odd.profile", "--fail-if", "norm > 2").output


def test_what_was_measured_is_shown_where_the_disk_is_full(lisse: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(profile: Profile, path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Profile, "save", full)
    result = lisse("measure", "sensitivity", MODEL, "--data", "points.npz", "--quick", "--out", "a.profile")
    assert result.exit_code == 3
    assert "No space left on device: a.profile" in result.stderr
    assert "effective_rank" in result.stdout
