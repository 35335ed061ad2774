"""The form of an experiment: findings beside the paper's numbers, claims that hold or do not, and what was committed.

A *finding* is one number with its interval. A *claim* is a sentence that the numbers make true or false; a claim of a
paper that fails is a result like any other. ``expected.json`` keeps both, with the machine and the commit that made
them, so that a later run can say whether it found the same.
"""

from __future__ import annotations

import datetime
import json
import math
import platform
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import torch

import lisse
from lisse.profile_file import writing
from lisse.progress import Event, Listener

Scale = Literal["smoke", "small", "medium", "paper"]


@dataclass(frozen=True)
class Finding:
    """One number of an experiment.

    ``key`` names it for good (``table2/resnet18/clean``), ``says`` is its line in a table, ``theirs`` the paper's own
    number with its ``source`` (``Table 2``), ``within`` how far a later run of the same scale may be from it before it
    counts as another result (``None``: never compared), ``note`` what a reader should know (``diverged``).
    """

    key: str
    says: str
    value: float
    low: float | None = None
    high: float | None = None
    n: int | None = None
    unit: str = ""
    theirs: float | None = None
    source: str = ""
    within: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if (self.low is None) != (self.high is None):
            raise ValueError(f"Finding: low and high must come together, got {self.low} and {self.high} at {self.key}.")
        if self.within is not None and not self.within >= 0:
            raise ValueError(f"Finding: within must be at least 0, got {self.within} at {self.key}.")


@dataclass(frozen=True)
class Claim:
    """A sentence that the findings make true or false; ``theirs`` says whether the paper states it."""

    key: str
    says: str
    holds: bool
    detail: str = ""
    theirs: bool = True


@dataclass(frozen=True)
class Outcome:
    """What a run of an experiment found, and the files it wrote."""

    findings: tuple[Finding, ...]
    claims: tuple[Claim, ...] = ()
    files: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for things in (self.findings, self.claims):
            keys = [thing.key for thing in things]
            twice = sorted({key for key in keys if keys.count(key) > 1})
            if twice:
                raise ValueError(f"Outcome: keys must be different, got {', '.join(twice)} more than once.")


@dataclass(frozen=True)
class Task:
    """What a run is asked for: how large, where to, from which seed, on which device, with which model of one's own.

    Everything that takes long goes under ``out`` as it is finished, so that the same command goes on after an
    interruption.
    """

    scale: Scale
    out: Path
    seed: int = 0
    device: str = "cpu"
    progress: Listener | None = None
    model: str | None = None

    def __post_init__(self) -> None:
        if self.scale not in get_args(Scale):
            raise ValueError(f"Task: scale must be one of {', '.join(get_args(Scale))}, got {self.scale!r}.")

    def tell(self, what: str, done: float, total: float, unit: str = "") -> None:
        """Say how far a step is."""
        if self.progress is not None:
            self.progress(Event(what, done, total, unit))


@dataclass(frozen=True)
class About:
    """What a person should know before they start: the paper, its claim, and per scale the data, hardware and time.

    ``models`` says which models may take the place of the experiment's own (``Task.model``); empty: none.
    """

    paper: str
    title: str
    reference: str
    claim: str
    needs: Mapping[str, str]
    folder: Path = field(repr=False)
    models: str = ""


@dataclass(frozen=True)
class Study:
    """An experiment: what it is about, and the function that runs it."""

    about: About
    run: Callable[[Task], Outcome]


@dataclass(frozen=True)
class Difference:
    """One way in which a run differs from what was committed."""

    key: str
    says: str


def differences(outcome: Outcome, expected: Mapping[str, Any]) -> list[Difference]:
    """Where ``outcome`` is not what ``expected`` (one scale of ``expected.json``) says; empty where it is.

    A finding differs where it is further than its committed ``within`` from the committed value, or missing; a claim
    where it now holds and did not, or the other way round, or is missing.
    """
    found: list[Difference] = []
    findings = {finding.key: finding for finding in outcome.findings}
    for key, was in expected.get("findings", {}).items():
        if was.get("within") is None:
            continue
        now = findings.get(key)
        if now is None:
            found.append(Difference(key, "was not found"))
        elif not _near(now.value, _number(was["value"]), was["within"]):
            found.append(Difference(key, f"{now.value:.6g} instead of {_number(was['value']):.6g} ± {was['within']:g}"))
    claims = {claim.key: claim for claim in outcome.claims}
    for key, was in expected.get("claims", {}).items():
        claim = claims.get(key)
        if claim is None:
            found.append(Difference(key, "was not decided"))
        elif claim.holds != was["holds"]:
            change = "holds, and did not" if claim.holds else "does not hold, and did"
            found.append(Difference(key, f"{change}: {claim.says} ({claim.detail})"))
    return found


def expected(folder: Path) -> dict[str, Any]:
    """``expected.json`` of an experiment, by scale; empty where nothing is committed yet."""
    file = folder / "expected.json"
    if not file.is_file():
        return {}
    found = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError(f"expected: {file} must hold an object by scale, got {type(found).__name__}.")
    return found


def keep(folder: Path, outcome: Outcome, task: Task, seconds: float) -> Path:
    """Write what was found into ``expected.json`` and the tables of ``README.md``, beside ``run.py``."""
    everything = expected(folder)
    everything[task.scale] = {
        "seed": task.seed,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine(task.device),
        "commit": commit(folder),
        "seconds": round(seconds),
        "findings": {finding.key: _plain(finding) for finding in outcome.findings},
        "claims": {claim.key: _plain(claim) for claim in outcome.claims},
        "notes": list(outcome.notes),
    }
    with writing(folder / "expected.json") as file:
        text = json.dumps(everything, indent=1, ensure_ascii=False, allow_nan=False)
        file.write((text + "\n").encode())
    readme = folder / "README.md"
    if readme.is_file():
        filled = fill(readme.read_text(encoding="utf-8"), everything)
        with writing(readme) as file:
            file.write(filled.encode())
    return folder / "expected.json"


def fill(text: str, everything: Mapping[str, Any]) -> str:
    """``text`` with every ``<!-- numbers: SCALE -->`` … ``<!-- end -->`` filled from ``expected.json``."""
    for scale, one in everything.items():
        begin, end = f"<!-- numbers: {scale} -->", "<!-- end -->"
        if begin in text:
            before, _, rest = text.partition(begin)
            _, _, after = rest.partition(end)
            text = f"{before}{begin}\n{markdown(one)}\n{end}{after}"
    return text


def markdown(one: Mapping[str, Any]) -> str:
    """One scale of ``expected.json`` as Markdown: findings beside the paper's, then the claims."""
    lines = [
        f"Seed {one['seed']}, {one['machine']}, {one['date']}, commit {one['commit']}, {clock(one['seconds'])}.",
        "",
        "| | ours | interval | n | theirs | source |",
        "|---|---|---|---|---|---|",
    ]
    for was in one["findings"].values():
        interval = f"{_short(was['low'])} … {_short(was['high'])}" if was.get("low") is not None else ""
        theirs = _short(was["theirs"]) if was.get("theirs") is not None else ""
        said = f"{was['says']} ({was['note']})" if was.get("note") else was["says"]
        unit = f" {was['unit']}" if was.get("unit") else ""
        cells = [said, _short(was["value"]) + unit, interval, was.get("n") or "", theirs, was.get("source") or ""]
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    if one["claims"]:
        lines += ["", "| claim | the paper's | holds here | |", "|---|---|---|---|"]
        for was in one["claims"].values():
            whose, holds = ("yes" if was[key] else "no" for key in ("theirs", "holds"))
            lines.append(f"| {was['says']} | {whose} | {holds} | {was.get('detail', '')} |")
    lines += [f"\n{note}" for note in one.get("notes", [])]
    return "\n".join(lines)


def timed(study: Study, task: Task) -> tuple[Outcome, float]:
    """Run an experiment, and say how long it took."""
    if task.scale not in study.about.needs:
        raise ValueError(
            f"timed: scale must be one of {', '.join(study.about.needs)} for {study.about.paper}, got {task.scale!r}."
        )
    if task.model is not None and not study.about.models:
        raise ValueError(
            f"timed: model must be left out, got {task.model!r}. {study.about.paper} has its own networks."
        )
    task.out.mkdir(parents=True, exist_ok=True)
    begun = time.perf_counter()
    return study.run(task), time.perf_counter() - begun


def machine(device: str = "cpu") -> str:
    """The processor, or the GPU where that is used, and the versions that matter."""
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else _processor()
    return f"{name}, torch {torch.__version__}, Python {platform.python_version()}"


def commit(folder: Path) -> str:
    """The commit that a folder is at, with a + where it has been changed since; the version where there is no git."""
    try:
        asked = ["git", "-C", str(folder), "describe", "--always", "--dirty=+", "--abbrev=10", "--exclude=*"]
        found = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10)
        return found.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return f"version {lisse.__version__}"


def clock(seconds: float) -> str:
    """A time as a person says it."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def rows(outcome: Outcome) -> Sequence[tuple[str, str, str, str]]:
    """``(what, ours, interval and n, theirs)`` for a terminal."""
    table = []
    for finding in outcome.findings:
        ours = _short(finding.value) + (f" {finding.unit}" if finding.unit else "")
        interval = f"[{_short(finding.low)}, {_short(finding.high)}]" if finding.low is not None else ""
        if finding.n is not None:
            interval = f"{interval} n={finding.n}".strip()
        theirs = _short(finding.theirs) if finding.theirs is not None else ""
        said = f"{finding.says} ({finding.note})" if finding.note else finding.says
        table.append((said, ours, interval, f"{theirs} {finding.source}".strip()))
    return table


def _plain(thing: Finding | Claim) -> dict[str, Any]:
    """A JSON object without the key and what is empty; numbers that JSON lacks are words."""
    found = {name: value for name, value in vars(thing).items() if name != "key" and value not in (None, "")}
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else _rounded(value)
        for name, value in found.items()
    }


def _rounded(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _number(value: Any) -> float:
    return float(value)


def _near(now: float, was: float, within: float) -> bool:
    if math.isnan(was) or math.isnan(now):
        return math.isnan(was) and math.isnan(now)
    return now == was or abs(now - was) <= within


def _short(value: Any) -> str:
    number = _number(value)
    return f"{number:.4g}" if math.isfinite(number) else str(number)


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
