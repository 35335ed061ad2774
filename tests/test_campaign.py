"""The standing campaign: its harness sees a break, and a minute of it finds none."""

from __future__ import annotations

import collections
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from test_tools import ROOT, tool


@pytest.fixture
def campaign() -> ModuleType:
    return tool("campaign")


def test_work_that_ends_differently_is_a_break(campaign: ModuleType) -> None:
    campaign.WORK = {"a clock": lambda out: str(time.time_ns())}
    counts: collections.Counter[str] = collections.Counter()
    assert "another result after the attack" in campaign.attack("killed", 0, 0, counts)
    assert counts["tried/killed"] == 1


def test_what_is_left_behind_is_a_break(campaign: ModuleType) -> None:
    def untidy(out: Path) -> str:
        (out / "half.tmp").write_text("half")
        return "done"

    campaign.WORK = {"untidy work": untidy}
    assert "left behind: ['half.tmp']" in campaign.attack("full disk", 0, 0, collections.Counter())


@pytest.mark.parametrize("error", [KeyError("weights"), RecursionError("too deep"), ValueError("raw")])
def test_an_error_of_somebody_else_is_a_break(campaign: ModuleType, error: Exception) -> None:
    def load(path: Path) -> None:
        raise error

    campaign.FORMATS["ours"] = ("", b"content", load)
    campaign.WHOLE["training"] = ("", 0.0)
    broken = campaign.attack("damaged inputs", 0, 0, collections.Counter())
    assert type(error).__name__ in broken


def spins(path: Path) -> None:
    while True:
        pass


def waits(path: Path) -> None:
    time.sleep(0.3)


@pytest.mark.parametrize(("load", "broken"), [(spins, "died by signal"), (waits, "")])
def test_a_busy_machine_is_no_break_and_a_busy_loop_is(
    campaign: ModuleType, load: Callable[[Path], None], broken: str
) -> None:
    campaign.FORMATS["ours"] = ("", b"content", load)
    campaign.WHOLE["training"] = ("", 0.0)
    campaign.SECONDS, campaign.INPUTS = 0.2, 1
    said = campaign.attack("damaged inputs", 0, 0, collections.Counter())
    assert (broken in said) if broken else said is None


def test_every_kind_comes_once_however_little_time_there_is(campaign: ModuleType) -> None:
    campaign.KINDS = {name: (lambda dice, counts: 1, often) for name, often in (("a", 2), ("b", 1))}
    counts, breaks = campaign.campaign(0.0, 0)
    assert (counts["tried/a"], counts["tried/b"], breaks) == (1, 1, [])


def test_a_mutation_has_a_seed(campaign: ModuleType) -> None:
    mutations = [campaign.mutated(bytes(range(99)), random.Random(3)) for _ in range(2)]
    assert mutations[0] == mutations[1]
    assert len({campaign.mutated(bytes(range(99)), random.Random(seed)) for seed in range(20)}) > 15


@pytest.mark.slow
def test_a_minute_breaks_nothing() -> None:
    line = [sys.executable, str(ROOT / "tools" / "campaign.py"), "--minutes", "1", "--seed", "7"]
    run = subprocess.run(line, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    kinds = re.findall(r"^\| ([a-z][^|]*) \| ([\d,]+) \| [\d,]+ \| 0 \|$", run.stdout, re.MULTILINE)
    assert len(kinds) == 8
    assert all(count != "0" for _, count in kinds)
