"""The form of an experiment: findings beside the paper's numbers, claims that hold or do not, and what was committed.

A *finding* is one number with its interval. A *claim* is a sentence that the numbers make true or false; a claim of a
paper that fails is a result like any other. ``expected.json`` keeps both, with the machine and the commit that made
them, so that a later run can say whether it found the same.
"""

from __future__ import annotations

import datetime
import functools
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

Scale = Literal["smoke", "small", "medium", "sizes", "paper"]
VERDICTS = {True: "yes", False: "no", None: "undecided"}


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
    """A sentence that the findings make true or false, or leave undecided (``holds`` is ``None``: the intervals are
    too wide); ``theirs`` says whether the paper states it.
    """

    key: str
    says: str
    holds: bool | None
    detail: str = ""
    theirs: bool = True


def above(ends: tuple[float, float], other: tuple[float, float] = (0.0, 0.0)) -> bool | None:
    """Whether an interval lies above another: yes, no where it lies below, ``None`` (*undecided*) where the two meet.

    An interval that covers the other's values neither shows a claim nor refutes it; nor does one whose end is NaN.
    """
    if ends[0] > other[1]:
        return True
    return False if ends[1] < other[0] else None


@dataclass(frozen=True)
class Outcome:
    """What a run of an experiment found, and the files it wrote.

    ``machine`` and ``seconds`` are of the work itself, where its results remember them: the command that puts them
    together may be another start, elsewhere. Without them, this start's. ``parts`` are the first words of the keys that
    were looked at, where others were not: :func:`keep` leaves what is committed of the others.
    """

    findings: tuple[Finding, ...]
    claims: tuple[Claim, ...] = ()
    files: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()
    machine: str = ""
    seconds: float | None = None
    parts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for keys in ([finding.key for finding in self.findings], [claim.key for claim in self.claims]):
            twice = sorted({key for key in keys if keys.count(key) > 1})
            if twice:
                raise ValueError(f"Outcome: keys must be different, got {', '.join(twice)} more than once.")


@dataclass(frozen=True)
class Task:
    """What a run is asked for: how large, where to, from which seed, on which device, with which model of one's own.

    Everything that takes long goes under ``out`` as it is finished, so that the same command goes on after an
    interruption. ``workers`` processes train side by side, where the experiment can (:attr:`About.side_by_side`).
    ``units`` are the networks to do now, and after ``minutes`` none is begun (:attr:`About.in_parts`).
    """

    scale: Scale
    out: Path
    seed: int = 0
    device: str = "cpu"
    progress: Listener | None = None
    model: str | None = None
    workers: int = 1
    units: tuple[str, ...] = ()
    minutes: float | None = None

    def __post_init__(self) -> None:
        if self.scale not in get_args(Scale):
            raise ValueError(f"Task: scale must be one of {', '.join(get_args(Scale))}, got {self.scale!r}.")
        if self.workers < 1:
            raise ValueError(f"Task: workers must be at least 1, got {self.workers}.")

    def tell(self, step: str, done: float, total: float, unit: str = "") -> None:
        """Say how far a step is."""
        if self.progress is not None:
            self.progress(Event(step, done, total, unit))


@dataclass(frozen=True)
class About:
    """What a person should know before they start: the paper, its claim, and per scale the data, hardware and time.

    ``models`` says which models may take the place of the experiment's own (``Task.model``); empty: none.
    ``side_by_side``: several processes may share its work (``Task.workers``). ``in_parts``: a start may
    do some of its networks (``Task.units``, ``Task.minutes``).
    """

    paper: str
    title: str
    reference: str
    claim: str
    needs: Mapping[str, str]
    folder: Path = field(repr=False)
    models: str = ""
    side_by_side: bool = False
    in_parts: bool = False


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


def differences(outcome: Outcome, entry: Mapping[str, Any]) -> list[Difference]:
    """Where ``outcome`` is not what ``entry`` (one scale of ``expected.json``) says; empty where it is.

    A finding differs where it is further than its committed ``within`` from the committed value, or missing; a claim
    where its verdict is another one, or is missing.
    """
    changes: list[Difference] = []
    findings = {finding.key: finding for finding in outcome.findings}

    def in_scope(key: str) -> bool:
        return not outcome.parts or key.partition("/")[0] in outcome.parts

    for key, was in entry.get("findings", {}).items():
        if was.get("within") is None or not in_scope(key):
            continue
        finding, value = findings.get(key), float(was["value"])
        if finding is None:
            changes.append(Difference(key, "was not found"))
        elif not _near(finding.value, value, was["within"]):
            changes.append(Difference(key, f"{finding.value:.6g} instead of {value:.6g} ± {was['within']:g}"))
    claims = {claim.key: claim for claim in outcome.claims}
    for key, was in entry.get("claims", {}).items():
        claim = claims.get(key)
        if not in_scope(key):
            continue
        if claim is None:
            changes.append(Difference(key, "was not decided"))
        elif claim.holds != was["holds"]:
            verdict = {True: "holds", False: "does not hold", None: "is undecided"}[claim.holds]
            before = {True: "did", False: "did not", None: "was undecided"}[was["holds"]]
            turn = f"{verdict}, and {before}"
            changes.append(Difference(key, f"{turn}: {claim.says} ({claim.detail})"))
    return changes


def expected(folder: Path) -> dict[str, Any]:
    """``expected.json`` of an experiment, an entry a scale; empty where nothing is committed yet."""
    file = folder / "expected.json"
    if not file.is_file():
        return {}
    entries = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(entries, dict):
        raise ValueError(f"expected: {file} must hold an object by scale, got {type(entries).__name__}.")
    return entries


def keep(folder: Path, outcome: Outcome, task: Task, seconds: float) -> Path:
    """Write what was found into ``expected.json`` and ``tables.md``, beside ``run.py``; of a part only that part."""
    entries = expected(folder)
    entry = {
        "seed": task.seed,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": outcome.machine or machine(task.device),
        "commit": commit(folder),
        "seconds": round(seconds if outcome.seconds is None else outcome.seconds),
        "findings": {finding.key: _plain(finding) for finding in outcome.findings},
        "claims": {claim.key: _plain(claim) for claim in outcome.claims},
        "notes": list(outcome.notes),
    }
    before = entries.get(task.scale)
    entries[task.scale] = _with_part(before, entry, outcome.parts) if before and outcome.parts else entry
    for name, text in (("expected.json", json_text(entries)), ("tables.md", tables(entries))):
        with writing(folder / name) as file:
            file.write(text.encode())
    return folder / "expected.json"


def _with_part(before: Mapping[str, Any], entry: Mapping[str, Any], parts: Sequence[str]) -> dict[str, Any]:
    """What is committed, with the numbers of ``parts`` renewed and a note that says when and where."""
    renewed = dict(before)
    for kind in ("findings", "claims"):
        earlier = before[kind]
        turn = next((index for index, key in enumerate(earlier) if key.partition("/")[0] in parts), len(earlier))
        outside = {key: value for key, value in earlier.items() if key.partition("/")[0] not in parts}
        items = list(outside.items())
        renewed[kind] = dict([*items[:turn], *entry[kind].items(), *items[turn:]])
    name = ", ".join(parts).capitalize()
    renewal = (
        f"{name}: renewed {entry['date']}, commit {entry['commit']}, {entry['machine']}, {clock(entry['seconds'])}."
    )
    notes = [note for note in before["notes"] if not note.startswith(f"{name}: renewed") and note not in entry["notes"]]
    return renewed | {"notes": [*notes, *entry["notes"], renewal]}


def json_text(entries: Mapping[str, Any]) -> str:
    """What ``expected.json`` holds: a finding, a claim or a note a line, so that a number that changes is a line."""
    return _indented(entries, depth=3) + "\n"


def _indented(value: Any, depth: int, margin: str = "") -> str:
    """JSON whose objects and lists are opened down to ``depth``, and on one line below it."""
    text = functools.partial(json.dumps, ensure_ascii=False, allow_nan=False)
    if not depth or not value or not isinstance(value, dict | list):
        return text(value)
    inner = margin + " "
    if isinstance(value, dict):
        lines = [f"{text(key)}: {_indented(item, depth - 1, inner)}" for key, item in value.items()]
    else:
        lines = [_indented(item, depth - 1, inner) for item in value]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return begin + ",".join(f"\n{inner}{line}" for line in lines) + f"\n{margin}{end}"


def tables(entries: Mapping[str, Any]) -> str:
    """What ``tables.md`` holds: every number of ``expected.json`` beside the paper's, a section a scale."""
    sections = [f"## {scale.capitalize()}\n\n{markdown(entry)}\n" for scale, entry in entries.items()]
    head = "# All numbers\n\nMade from `expected.json` by `lisse reproduce PAPER --write`; not written by hand.\n"
    return "\n".join([head, *sections])


def markdown(entry: Mapping[str, Any]) -> str:
    """One scale of ``expected.json`` as Markdown: findings beside the paper's, then the claims."""
    lines = [
        f"Seed {entry['seed']}, {entry['machine']}, {entry['date']}, commit {entry['commit']}, "
        f"{clock(entry['seconds'])}.",
        "",
        "| | ours | interval | n | theirs | source |",
        "|---|---|---|---|---|---|",
    ]
    for was in entry["findings"].values():
        interval = f"{_short(was['low'])} … {_short(was['high'])}" if was.get("low") is not None else ""
        paper = _short(was["theirs"]) if was.get("theirs") is not None else ""
        label = f"{was['says']} ({was['note']})" if was.get("note") else was["says"]
        unit = f" {was['unit']}" if was.get("unit") else ""
        cells = [label, _short(was["value"]) + unit, interval, was.get("n") or "", paper, was.get("source") or ""]
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    if entry["claims"]:
        lines += ["", "| claim | the paper's | holds here | |", "|---|---|---|---|"]
        for was in entry["claims"].values():
            whose, holds = (VERDICTS[was[key]] for key in ("theirs", "holds"))
            lines.append(f"| {was['says']} | {whose} | {holds} | {was.get('detail', '')} |")
    lines += [f"\n{note}" for note in entry.get("notes", [])]
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
    if task.workers > 1 and not study.about.side_by_side:
        raise ValueError(f"timed: workers must be 1, got {task.workers}. {study.about.paper} does one thing at a time.")
    if (task.units or task.minutes is not None) and not study.about.in_parts:
        raise ValueError(
            f"timed: units and minutes must be left out, got some. {study.about.paper} is done as a whole."
        )
    task.out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    return study.run(task), time.perf_counter() - start


def machine(device: str = "cpu") -> str:
    """The processor, or the GPU where that is used, and the versions that matter."""
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else _processor()
    return f"{name}, torch {torch.__version__}, Python {platform.python_version()}"


def commit(folder: Path) -> str:
    """The commit that a folder is at, with a + where it has been changed since; the version where there is no git."""
    try:
        command = ["git", "-C", str(folder), "describe", "--always", "--dirty=+", "--abbrev=10", "--exclude=*"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
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
        paper = _short(finding.theirs) if finding.theirs is not None else ""
        label = f"{finding.says} ({finding.note})" if finding.note else finding.says
        table.append((label, ours, interval, f"{paper} {finding.source}".strip()))
    return table


def _plain(result: Finding | Claim) -> dict[str, Any]:
    """A JSON object without the key and what is empty; floats to six digits, and as words where JSON lacks them."""
    fields = {
        name: value
        for name, value in vars(result).items()
        if name != "key" and (value not in (None, "") or name == "holds")  # a verdict of None is one
    }
    return {name: _rounded(value) if isinstance(value, float) else value for name, value in fields.items()}


def _rounded(value: float) -> float | str:
    return float(f"{value:.6g}") if math.isfinite(value) else str(value)


def _near(value: float, was: float, within: float) -> bool:
    if math.isnan(was) or math.isnan(value):
        return math.isnan(was) and math.isnan(value)
    return value == was or abs(value - was) <= within


def _short(value: Any) -> str:
    number = float(value)
    return f"{number:.4g}" if math.isfinite(number) else str(number)


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
