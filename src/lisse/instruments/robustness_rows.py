"""From right answers to rows: accuracies with intervals, what corruption costs, and the mean corruption error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lisse.instruments.robustness_cases import Axis, Case
from lisse.maths.corruption import corruption_errors, mean_corruption_error
from lisse.maths.intervals import bootstrap, share_interval
from lisse.profile import Profile, Row, Value
from lisse.run import Run

QUANTITY: Mapping[Axis, str] = {
    "clean": "clean_accuracy",
    "corruption": "corruption_accuracy",
    "attack": "attack_accuracy",
    "noise": "noise_accuracy",
    "deformation": "deformation_accuracy",
}
ALL = "all"  # the mean over the corruptions
_LEAST = 8  # a bootstrap of fewer does not cover what it says


def accuracy_rows(found: Mapping[Case, Tensor], *, level: float, interval: bool) -> list[Row]:
    """One row per case: the share of right answers and, as an estimate, Wilson's interval."""
    rows = []
    for case, right in found.items():
        n = len(right)
        share = share_interval(right.double().mean(), n, level=level)
        ends = {"low": float(share.low), "high": float(share.high)} if interval else {}
        kind = "estimate" if interval else "exact"
        rows.append(Row(QUANTITY[case.axis], float(share.value), kind, n, at=dict(case.at), **ends))  # type: ignore[arg-type]
    return rows


def corruption_rows(found: Mapping[Case, Tensor], run: Run, *, level: float, interval: bool) -> list[Row]:
    """The mean over severities of each corruption, by how much it is below the clean accuracy, and the mean error.

    One image is seen at every severity: what varies is the image, so images are resampled, not answers.
    """
    clean = found[Case("clean")].double()
    names = list(dict.fromkeys(str(case.at["corruption"]) for case in found if case.axis == "corruption"))
    if not names:
        return []
    each = [
        torch.stack([right.double() for case, right in found.items() if case.at.get("corruption") == name]).mean(0)
        for name in names
    ]
    means = torch.stack([*each, torch.stack(each).mean(0)], 1)  # [n, corruptions + 1]
    columns = {"mean_accuracy": means, "drop": clean[:, None] - means}
    rows = []
    for quantity, values in columns.items():
        rows += _mean_rows(quantity, values, [*names, ALL], run, level=level, interval=interval)
    return [*rows, *_mean_rows("mean_corruption_error", 1 - means[:, -1:], [ALL], run, level=level, interval=interval)]


def _mean_rows(
    quantity: str, values: Tensor, names: Sequence[str], run: Run, *, level: float, interval: bool
) -> list[Row]:
    n = len(values)
    ats: list[dict[str, Value]] = [{"corruption": name} for name in names]
    if not interval or n < _LEAST:
        return [Row(quantity, float(values[:, k].mean()), "exact", n, at=at) for k, at in enumerate(ats)]
    found = bootstrap(values, level=level, generator=run.generator(f"robustness/{quantity}"))
    return [
        Row(
            quantity, float(found.value[k]), "estimate", n, low=float(found.low[k]), high=float(found.high[k]), at=at
        )
        for k, at in enumerate(ats)
    ]  # fmt: skip


def errors(profile: Profile) -> dict[str, list[float]]:
    """The error under each corruption by severity, of a profile that Robustness made."""
    found: dict[str, dict[int, float]] = {}
    for row in profile.rows:
        if row.quantity == QUANTITY["corruption"]:
            found.setdefault(str(row.at["corruption"]), {})[int(row.at["severity"])] = 1 - row.value
    if not found:
        raise ValueError(
            f"errors: profile must hold accuracies under corruption, got none for {profile.name}. "
            "lisse measure robustness makes them."
        )
    return {name: [by[severity] for severity in sorted(by)] for name, by in found.items()}


def relative_errors(profile: Profile, baseline: Profile) -> dict[str, float]:
    """The corruption errors of a network as shares of a baseline's, and their mean, the mCE, under ``all``.

    Both must have been measured under the same corruptions and severities: see
    :func:`~lisse.maths.corruption.corruption_errors`.
    """
    own, base = errors(profile), errors(baseline)
    found = corruption_errors(own, base)
    named = {name: float(value) for name, value in zip(own, found, strict=True)}
    return {**named, ALL: float(mean_corruption_error(own, base))}


def corruption_table(profiles: Sequence[Profile]) -> list[dict[str, Value]]:
    """One line per network, as Table 2 of [chen2024]: clean accuracy, then by how much each corruption changes it."""
    table: list[dict[str, Value]] = []
    for profile in profiles:
        line: dict[str, Value] = {"model": profile.name}
        for row in profile.rows:
            if row.quantity == "clean_accuracy":
                line["clean"] = row.value
            elif row.quantity == "drop":
                line[str(row.at["corruption"])] = -row.value
        table.append(line)
    return table
