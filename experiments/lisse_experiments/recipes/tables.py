"""The table: a line a recipe, means over seeds with their intervals, and what the lines say."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from lisse.maths.intervals import Interval, across_clouds, share_interval
from lisse.profile_file import writing
from lisse_experiments.form import Claim, Finding, Outcome
from lisse_experiments.outputs import csv_file
from lisse_experiments.recipes.plan import LABELS, Settings, Unit

Results = Mapping[Unit, dict[str, Any]]
#: What the program of [wong2020] gives with its defaults: clean accuracy, and under PGD of 50 steps and 10 starts at
#: 8/255; PreActResNet18, batch 128, 15 epochs. FGSM with steps of 10/255 as its author ran it, PGD-7 as a reader did.
PRINTED = {"fgsm": (0.7954, 0.4490), "pgd": (0.7664, 0.4725)}
_SOURCE = "[wong2020]'s program, 15 epochs"
#: How far from the literature a line may be.
_POINTS = 0.02


def outcome(plan: Settings, results: Results, out: Path, notes: Sequence[str]) -> Outcome:
    """Findings, claims, and the table as CSV and Markdown."""
    numbers = findings(plan, results)
    columns, lines = table(plan, results)
    text = "\n".join("| " + " | ".join(line) + " |" for line in [columns, ["---"] * len(columns), *lines]) + "\n"
    with writing(out / "table.md") as file:
        file.write(text.encode())
    files = (csv_file(out / "table.csv", [columns, *lines]), out / "table.md")
    collapsed = [unit.name for unit, result in results.items() if result["status"] != "finished"]
    ends = [f"Not finished, and measured with the last good weights: {', '.join(collapsed)}."] if collapsed else []
    return Outcome(
        tuple(numbers), tuple(claims(plan, results, numbers)), files, (*notes, *ends),
        machine="; ".join(sorted({result["machine"] for result in results.values()})),
        seconds=sum(result["seconds"] + result["measuring"] for result in results.values()),
    )  # fmt: skip


def keys_of(results: Results) -> list[str]:
    """What was measured of every network, in the order of the table."""
    keys = dict.fromkeys(key for result in results.values() for key in result["numbers"])
    return ["clean", *(key for key in keys if key != "clean")]


def heading(key: str) -> str:
    """A column's title."""
    kind, _, more = key.partition("/")
    if kind == "attack":
        norm, _, eps = more.partition("/")
        size = float(eps)
        grey = f"{size * 255:.0f}/255" if norm == "linf" and abs(size * 255 - round(size * 255)) < 0.02 else eps
        return f"{'ℓ∞' if norm == 'linf' else 'ℓ2'} {grey}"
    return {"clean": "clean", "corruptions": "corruptions", "pgd-50-10": "PGD-50-10"}.get(kind, more)


def over_seeds(plan: Settings, results: Results, recipe: str, key: str) -> tuple[Interval, int] | None:
    """The mean over seeds, and n: samples of a network."""
    rows = [
        result["numbers"][key] for unit, result in results.items() if unit.recipe == recipe and key in result["numbers"]
    ]
    if not rows:
        return None
    values = torch.tensor([row["value"] for row in rows], dtype=torch.float64)
    n = int(rows[0].get("n") or 1)
    shares = key in ("clean", "corruptions", "pgd-50-10") or key.startswith("attack/")
    if len(rows) == 1:
        row = rows[0]
        low, high = (row["value"] if row.get(end) is None else row[end] for end in ("low", "high"))
        value, low, high = (torch.tensor(end, dtype=torch.float64) for end in (row["value"], low, high))
        return Interval(value, low, high, 1, 0.95), n
    seeds = across_clouds(values)
    if not shares:
        return seeds, n
    # The seeds share their test images: neither source of chance contains the other.
    images = share_interval(float(values.mean()), n)
    low, high = torch.minimum(seeds.low, images.low).clamp_min(0), torch.maximum(seeds.high, images.high).clamp_max(1)
    return Interval(seeds.value, low, high, len(rows), seeds.level), n


def costs(results: Results) -> dict[str, float]:
    """Seconds of an epoch over a plain one's, medians over seeds; for the run's own table, since machines differ."""
    epochs: dict[str, list[float]] = {}
    for unit, result in results.items():
        epochs.setdefault(unit.recipe, []).append(result["seconds"] / max(result["epochs"], 1e-9))
    seconds = {recipe: statistics.median(values) for recipe, values in epochs.items()}
    return {recipe: value / seconds["plain"] for recipe, value in seconds.items()} if "plain" in seconds else {}


def findings(plan: Settings, results: Results) -> list[Finding]:
    """Every number of the table."""
    numbers = []
    for recipe in plan.recipes:
        for key in keys_of(results):
            row = over_seeds(plan, results, recipe, key)
            if row is None:
                continue
            interval, n = row
            value, low, high = (float(end) for end in (interval.value, interval.low, interval.high))
            printed, within = None, None
            if recipe in PRINTED and plan.printed and key in ("clean", "pgd-50-10"):
                printed = PRINTED[recipe][key == "pgd-50-10"]
            if not key.startswith("headline/"):
                within = 0.08 if plan.data == "digits" else 0.03
            seeds = f"{interval.n} seed{'s' if interval.n > 1 else ''}"
            numbers.append(
                Finding(
                    f"{recipe}/{key}", f"{LABELS[recipe]}: {heading(key)}", value, low, high, n, theirs=printed,
                    source=_SOURCE if printed is not None else "", within=within, note=seeds,
                )
            )  # fmt: skip
    return numbers


def table(plan: Settings, results: Results) -> tuple[list[str], list[list[str]]]:
    """Column titles, and a line for each recipe that has a network."""
    keys, cost = keys_of(results), costs(results)
    columns = ["recipe", *(heading(key) for key in keys), "cost", "epochs", "seeds"]
    lines = []
    for recipe in plan.recipes:
        rows = [over_seeds(plan, results, recipe, key) for key in keys]
        seeds = sum(unit.recipe == recipe for unit in results)
        if seeds:
            cells = ["" if row is None else _cell(key, row[0]) for key, row in zip(keys, rows, strict=True)]
            price = f"{cost[recipe]:.2f}" if recipe in cost else ""
            lines.append([LABELS[recipe], *cells, price, str(plan.recipes[recipe].epochs), str(seeds)])
    return columns, lines


def _cell(key: str, interval: Interval) -> str:
    value, low, high = (float(end) for end in (interval.value, interval.low, interval.high))
    if key.startswith("headline/"):
        return f"{value:.3g} [{low:.3g}, {high:.3g}]"
    return f"{100 * value:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def claims(plan: Settings, results: Results, numbers: Sequence[Finding]) -> list[Claim]:
    """What the table says: recipes against plain training, and against the literature."""
    by = {finding.key: finding for finding in numbers}
    norm, eps = plan.radii[0]
    attacked = f"attack/{norm}/{eps:.4g}"
    sentences = []
    for recipe in ("fgsm", "pgd", "trades", "gradient", "isometric", "deform"):
        says = f"{LABELS[recipe]} withstands the strong attack better than plain training"
        sentences += _more(results, (recipe, "plain"), attacked, f"{recipe} withstands", says)
    for recipe in ("augmix", "deform", "fgsm"):
        says = f"{LABELS[recipe]} is right more often under corruptions than plain training"
        sentences += _more(results, (recipe, "plain"), "corruptions", f"{recipe} corrupted", says)
    for recipe in PRINTED:
        finding = by.get(f"{recipe}/pgd-50-10")
        if finding is not None and finding.theirs is not None:
            ends = (finding.value, finding.low, finding.high)
            gap, low, high = (end - finding.theirs for end in ends if end is not None)
            says = f"{LABELS[recipe]} withstands PGD-50-10 as the literature says, within two points or better"
            detail = f"{100 * gap:+.1f} [{100 * low:+.1f} to {100 * high:+.1f}] points"
            sentences.append(Claim(f"{recipe} printed", says, gap >= -_POINTS, detail, theirs=False))
    return sentences


def _more(results: Results, pair: tuple[str, str], measure: str, key: str, says: str) -> list[Claim]:
    """Whether one recipe is above another, by paired differences of their common seeds; undecided beside 0."""
    values = [
        {
            unit.seed: result["numbers"][measure]["value"]
            for unit, result in results.items()
            if unit.recipe == recipe and measure in result["numbers"]
        }
        for recipe in pair
    ]
    seeds = sorted(values[0].keys() & values[1].keys())
    if len(seeds) < 2:
        return []
    gaps = torch.tensor([values[0][seed] - values[1][seed] for seed in seeds], dtype=torch.float64)
    gap = across_clouds(gaps)
    holds = True if gap.low > 0 else False if gap.high < 0 else None
    points = " to ".join(f"{100 * float(end):+.1f}" for end in (gap.low, gap.high))
    return [
        Claim(key, says, holds, f"{100 * float(gap.value):+.1f} [{points}] points, {len(seeds)} seeds", theirs=False)
    ]
