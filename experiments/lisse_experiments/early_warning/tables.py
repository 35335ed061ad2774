"""Which quantities warn, how early, and how often for nothing: a line for each of them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lisse.maths.comparison import holm, share_difference
from lisse.maths.intervals import bootstrap, share_interval
from lisse_experiments.early_warning.alarms import DETECTORS, FALLS, first_alarm, moved, scores, threshold
from lisse_experiments.early_warning.plan import WAYS, Settings, Training
from lisse_experiments.form import Claim, Finding, Outcome
from lisse_experiments.outputs import csv_file

Results = Mapping[Training, Mapping[str, Any]]
#: What every other quantity is held against.
USUAL = ("gradient", "jump")


@dataclass(frozen=True)
class Line:
    """One quantity under one detector: the diverging trainings it ``warned`` of, its ``leads`` in steps, false alarms.

    ``warned`` and ``false`` hold a truth value for each training, in one order for all lines.
    """

    quantity: str
    detector: str
    warned: tuple[bool, ...]
    leads: tuple[int, ...]
    false: tuple[bool, ...]


def lines(plan: Settings, results: Results) -> list[Line]:
    """Every quantity under every detector, its thresholds from the trainings of the other half of the seeds."""
    ends = {training: moved(result["losses"]) for training, result in results.items()}
    quantities = sorted({name for result in results.values() for look in result["looks"] for name in look})
    table = []
    for quantity in quantities:
        for detector in DETECTORS:
            series = {
                training: scores(
                    [look.get(quantity, float("nan")) for look in result["looks"]], detector, falls=quantity in FALLS
                )
                for training, result in results.items()
            }
            limits = {
                half: threshold([series[t] for t, end in ends.items() if end is None and t.seed % 2 != half])
                for half in (0, 1)
            }
            warned, leads, false = [], [], []
            for training, end in ends.items():
                limit = limits[training.seed % 2]
                if end is None:
                    false.append(first_alarm(series[training], limit) is not None)
                    continue
                # The look of a step is taken before it: looks up to the one at the moving step's own start count.
                alarm = first_alarm(series[training], limit, until=end // plan.every + 1)
                step = None if alarm is None else alarm * plan.every
                warned.append(step is not None and step < end)
                if step is not None and step < end:
                    leads.append(end - step)
            table.append(Line(quantity, detector, tuple(warned), tuple(leads), tuple(false)))
    return table


def outcome(plan: Settings, results: Results, out: Path, files: Sequence[Path], notes: Sequence[str]) -> Outcome:
    """Findings, claims, and the table as CSV."""
    ends = {training: moved(result["losses"]) for training, result in results.items()}
    table = lines(plan, results)
    diverged = sum(end is not None for end in ends.values())
    remarks = [
        f"{way} ({says}): the loss moved in {sum(end is not None for t, end in ends.items() if t.way == way)} of "
        f"{sum(t.way == way for t in ends)} trainings."
        for way, says in WAYS.items()
    ]
    columns = ["quantity", "detector", "warned", "of", "median lead", "false alarms", "of"]
    cells = [
        [line.quantity, line.detector, sum(line.warned), len(line.warned),
         statistics.median(line.leads) if line.leads else "", sum(line.false), len(line.false)]
        for line in table
    ]  # fmt: skip
    csv = csv_file(out / "table.csv", [columns, *cells])
    return Outcome(
        tuple(findings(table)), tuple(claims(table)), (csv, *files),
        (f"The loss moved in {diverged} of {len(ends)} trainings.", *remarks, *notes),
    )  # fmt: skip


def findings(table: Sequence[Line]) -> list[Finding]:
    """Shares and leads of every line."""
    numbers = []
    for line in table:
        key, label = f"{line.quantity}/{line.detector}", f"{line.quantity}, {line.detector}"
        for name, answers, says in (
            ("warned", line.warned, "warned of, of the trainings that diverged"),
            ("false", line.false, "alarms, of the trainings that did not"),
        ):
            if answers:
                share = share_interval(sum(answers) / len(answers), len(answers))
                low, high = float(share.low), float(share.high)
                numbers.append(
                    Finding(f"{key}/{name}", f"{label}: {says}", float(share.value), low, high, len(answers))
                )
        if line.leads:
            value = float(statistics.median(line.leads))
            ends: tuple[float | None, float | None] = (None, None)
            if len(line.leads) >= 8:
                draws = torch.Generator().manual_seed(0)
                interval = bootstrap(torch.tensor(line.leads, dtype=torch.float64), "median", generator=draws)
                ends = float(interval.low), float(interval.high)
            numbers.append(
                Finding(f"{key}/lead", f"{label}: steps before the loss moved", value, *ends, len(line.leads))
            )
    return numbers


def claims(table: Sequence[Line]) -> list[Claim]:
    """Whether a quantity warns of more trainings, or of fewer, than the gradient's norm: McNemar, Holm's correction."""
    usual = next((line for line in table if (line.quantity, line.detector) == USUAL), None)
    rivals = [line for line in table if line is not usual]
    if usual is None or not usual.warned:
        return []
    tests = [share_difference(torch.tensor(line.warned), torch.tensor(usual.warned)) for line in rivals]
    corrected = holm([test.p for test in tests])
    sentences = []
    for line, test, p in zip(rivals, tests, corrected.tolist(), strict=True):
        detail = (
            f"{sum(line.warned)} against {sum(usual.warned)} of {len(usual.warned)}, p = {p:.2g} after correction; "
            f"false alarms {sum(line.false)} against {sum(usual.false)} of {len(usual.false)}"
        )
        says = f"{line.quantity} ({line.detector}) warns of more diverging trainings than the gradient's norm (jump)"
        holds = None if p > 0.05 else bool(test.value > 0)
        sentences.append(Claim(f"{line.quantity}/{line.detector}", says, holds, detail, theirs=False))
    return sentences
