"""An instrument from outside the package is first-class: measured, sized, announced, drawn and judged as any other."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from lisse.profile import Profile

Run = Callable[..., Result]
MODEL = "tiny_models:sound"
DATA = ("--data", "points.npz")
SILENCE = '''
from dataclasses import dataclass
from typing import ClassVar

from lisse.profile import Chart, Headline, Line, Panel, Quantity
from lisse.run import Instrument, option


@dataclass(frozen=True)
class Silence(Instrument):
    """How many activations are not positive."""

    samples: int = option(25, "samples to look at", quick=10, usual=20, least=2)
    above: float = option(0.0, "what counts as a sound")

    AT_START: ClassVar = True
    LEFT_OUT: ClassVar = {"quick": "Left out by --quick: the quiet ones."}
    QUANTITIES: ClassVar = (
        Quantity(
            "silent_share", "silent share", "The share of silent activations.", better="lower",
            headline=Headline("silence", "how much is silent", "louder"), lead=True,
        ),
        Quantity("loud_share", "loud share", "The share of the others."),
    )
    CHARTS: ClassVar = (
        Chart(
            "voices", "Silent and loud", "Together they are all.",
            (Panel("shares", (Line("silent_share", "silent"), Line("loud_share", "loud"))),), lead=True,
        ),
    )

    def seconds(self, per_sample, layers, n):
        return 120.0

    def part(self, run):
        shares = run.per_layer(self, self.share, n=self.samples)
        loud = {name: 1 - values for name, values in shares.items()}
        return self.part_of([*run.mean_rows("silent_share", shares), *run.mean_rows("loud_share", loud)])

    def share(self, activations):
        return (activations <= self.above).double().flatten(1).mean(1)


class Nothing:
    pass


built = Silence()
'''


@pytest.fixture(autouse=True)
def module(folder: Path) -> None:
    (folder / "importable" / "own_instruments.py").write_text(SILENCE)


def test_it_is_measured_with_its_options(lisse: Run) -> None:
    line = ("measure", "own_instruments:Silence", MODEL, *DATA)
    result = lisse(*line, "--samples", "12", "--above", "0.5", "--out", "a.profile")
    assert result.exit_code == 0, result.stderr
    part = Profile.load("a.profile")["silence"]
    assert (part.options["samples"], part.options["above"]) == (12, 0.5)
    assert {row.n for row in part.rows} == {12}
    assert "silent_share" in result.stdout
    assert lisse(*line, "--quick", "--out", "b.profile").exit_code == 0
    assert Profile.load("b.profile")["silence"].options["samples"] == 10
    result = lisse(*line, "--samples", "1")
    assert "Silence: samples must be a whole number of at least 2, got 1." in result.stderr


def test_it_shares_a_pass_with_others_and_names_the_file(lisse: Run, folder: Path) -> None:
    result = lisse("measure", "own_instruments:Silence,sensitivity", MODEL, *DATA, "--quick")
    assert result.exit_code == 0, result.stderr
    (file,) = folder.glob("*.profile")
    assert file.name.endswith("-silence+sensitivity.profile")
    assert [part.instrument for part in Profile.load(file).parts] == ["silence", "sensitivity"]


def test_its_help_shows_its_options(lisse: Run) -> None:
    result = lisse("measure", "own_instruments:Silence", "--help")
    assert result.exit_code == 0, result.stderr
    own, common = result.stdout.split("Options of every measurement:")
    assert "How many activations are not positive." in own
    assert re.search(r"--samples INTEGER +samples to look at +\[default: 25\]", own)
    assert "--above NUMBER" in own
    assert "--quick" in common


def test_it_is_on_the_page_with_its_cost_its_size_and_its_headline(lisse: Run) -> None:
    spec = "zoo:fc2?features=3&classes=2"
    line = ("report", spec, *DATA, "--quick", "--start-seeds", "1", "--instruments", "own_instruments:Silence,topology")
    result = lisse(*line)
    assert result.exit_code == 0, result.stderr
    assert "2 networks, 1 of them with random weights; silence, topology. This takes about 4 minutes" in result.stderr
    text = Path("report.html").read_text("utf-8")
    data = json.loads(re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[0])
    rows = [row for row in data["rows"] if row[2] == "silence"]
    assert {row[10] for row in rows} == {10}
    assert {row[1] for row in rows} == {False, True}  # also at its start
    assert "Left out by --quick: the quiet ones." in text
    # its headline in the table and against random weights, its leading figure and its chart open, the other one folded
    assert '<a href="#silence">silence</a>' in text
    assert "how much is silent; lower is better" in text
    section = text[text.index('<section id="silence"') :]
    section = section[: section.index("</section>")]
    open_, _, folded = section.partition('<details class="more">')
    assert re.findall(r'<figure id="([\w-]+)"', open_) == ["silence-voices", "silence-silent-share"]
    assert re.findall(r'<figure id="([\w-]+)"', folded) == ["silence-loud-share"]
    assert ">silent</text>" in open_
    assert ">loud</text>" in open_


def test_its_chart_is_drawn_by_its_name(lisse: Run) -> None:
    assert lisse("measure", "own_instruments:Silence", MODEL, *DATA, "--out", "a.profile").exit_code == 0
    result = lisse("figure", "voices", "a.profile", "-o", "a.svg")
    assert result.exit_code == 0, result.stderr
    assert "Together they are all." in Path("a.svg").read_text("utf-8")
    wrong = lisse("figure", "voice", "a.profile", "-o", "b.svg")
    assert "name must be one of voices, loud_share, silent_share, overview, got 'voice'" in wrong.stderr


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("no_such_module:Silence", "no_such_module must be importable, got no module 'no_such_module'. Install it, or"),
        ("own_instruments:Silenc", "must exist, got no 'Silenc' in own_instruments. Did you mean Silence?"),
        ("own_instruments:Nothing", "must be a kind of lisse.Instrument, got the class Nothing."),
        ("own_instruments:built", "must be a kind of lisse.Instrument, got Silence."),
        ("own_instruments:Silence,own_instruments:Silence", "must be named once each"),
    ],
)
def test_what_is_none_is_said_in_one_line(lisse: Run, name: str, match: str) -> None:
    for line in (("measure", name, MODEL), ("report", MODEL, "--instruments", name)):
        result = lisse(*line, *DATA)
        assert result.exit_code == 2
        assert match in result.stderr.splitlines()[-1]
        assert result.stderr.splitlines()[-1].startswith("lisse: error: ")


def test_a_training_takes_it_too(lisse: Run, folder: Path) -> None:
    import numpy as np

    rng = np.random.default_rng(0)
    np.savez("labelled.npz", inputs=rng.normal(size=(20, 3)).astype("f4"), targets=np.arange(20) % 2)
    line = ("train", MODEL, "--data", "labelled.npz", "--out", "run", "--epochs", "1", "--batch", "10")
    result = lisse(*line, "--measure", "own_instruments:Silence")
    assert result.exit_code == 0, result.stderr
    assert list((folder / "run" / "profiles").iterdir())


def test_a_failure_takes_no_other_instruments_result(lisse: Run, folder: Path) -> None:
    text = "from own_instruments import *\nclass Broken(Silence):\n    def part(self, run):\n        return 1 / 0\n"
    (folder / "importable" / "broken_instruments.py").write_text(text)
    names = "broken_instruments:Broken,own_instruments:Silence"
    result = lisse("measure", names, MODEL, *DATA, "--out", "a.profile")
    assert result.exit_code == 1
    assert "broken has no numbers: Failed: ZeroDivisionError" in result.stderr
    assert Profile.load("a.profile")["silence"].rows
    assert "silent_share" in result.output
