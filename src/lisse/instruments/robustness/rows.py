"""From right answers to rows: accuracies with intervals, what corruption costs, and the mean corruption error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lisse.instruments.robustness.changes import Axis, Case
from lisse.maths.corruption import corruption_errors, mean_corruption_error
from lisse.profile import Profile, Row, Value
from lisse.run import Run
from lisse.run.rows import mean_rows, sample_row, share_row

QUANTITY: Mapping[Axis, str] = {
    "clean": "clean_accuracy",
    "corruption": "corruption_accuracy",
    "attack": "attack_accuracy",
    "noise": "noise_accuracy",
    "deformation": "deformation_accuracy",
}
_SIZES = 12  # halvings of the largest attack, of which the curve over sizes has a point each
OVERALL = "all"  # the mean over the corruptions


def accuracy_rows(right: Mapping[Case, Tensor], *, level: float) -> list[Row]:
    """One row per case: the share of right answers with Wilson's interval."""
    return [
        share_row(QUANTITY[case.axis], hits.sum(), len(hits), at=case.at, level=level) for case, hits in right.items()
    ]


def corruption_rows(right: Mapping[Case, Tensor], run: Run, *, level: float) -> list[Row]:
    """The mean over severities of each corruption, by how much it is below the clean accuracy, and the mean error.

    One image is seen at every severity: what varies is the image, so images are resampled, not answers.
    """
    clean, shares = right[Case("clean")].double(), _shares(right)
    if not shares:
        return []
    names = list(shares)
    means = torch.stack([*shares.values(), torch.stack(list(shares.values())).mean(0)], 1)  # [n, corruptions + 1]
    columns = {
        "mean_accuracy": (means, [*names, OVERALL]),
        "drop": (clean[:, None] - means, [*names, OVERALL]),
        "mean_corruption_error": (1 - means[:, -1:], [OVERALL]),
    }
    rows = []
    for quantity, (values, labels) in columns.items():
        ats = [{"corruption": label} for label in labels]
        rows += mean_rows(quantity, values, ats, generator=run.generator(f"robustness/{quantity}"), level=level)
    return rows


def sample_errors(right: Mapping[Case, Tensor]) -> Tensor | None:
    """The share ``[n]`` of corruptions and severities at which a sample is lost; ``None`` without corruptions."""
    shares = _shares(right)
    return 1 - torch.stack(list(shares.values())).mean(0) if shares else None


def _shares(right: Mapping[Case, Tensor]) -> dict[str, Tensor]:
    """By corruption, the share ``[n]`` of severities at which a sample is classified right."""
    hits: dict[str, list[Tensor]] = {}
    for case, answers in right.items():
        if case.axis == "corruption":
            hits.setdefault(str(case.at["corruption"]), []).append(answers.double())
    return {name: torch.stack(answers).mean(0) for name, answers in hits.items()}


def distance_rows(distances: Tensor, reach: float, run: Run, *, norm: str, level: float) -> list[Row]:
    """The median distance of an attack ``[n]``, and how many answers it does not reach up to each size.

    Nothing was tried beyond ``reach``: a sample that no attack moved is at least there. Sizes are halves of it, the
    same for every network: from where everything falls to where nothing happens.
    """
    at: dict[str, Value] = {"attack": "pgd", "norm": norm}
    generator = run.generator("robustness/attack_distance")
    values = distances.clamp_max(reach)
    sizes = [reach * 2.0**-power for power in range(_SIZES, -1, -1)]
    return [
        sample_row(
            "attack_distance",
            values,
            at=at,
            statistic="median",
            generator=generator,
            kind="upper",
            level=level,
            least=0.0,
        ),
        *(
            share_row("attack_survival", (distances > eps).sum(), len(values), at={**at, "eps": eps}, level=level)
            for eps in sizes
        ),
    ]


def certified_rows(radii: Tensor, sizes: Sequence[float], run: Run, *, norm: str, level: float) -> list[Row]:
    """The median certified radius, and the share of samples that are proved right up to each size: from below."""
    at: dict[str, Value] = {"norm": norm}
    generator = run.generator("robustness/certified_radius")
    shares = [
        share_row(
            "certified_accuracy", (radii >= max(eps, 1e-300)).sum(), len(radii), at={**at, "eps": eps}, level=level
        )
        for eps in sizes
    ]
    return [
        sample_row(
            "certified_radius",
            radii,
            at=at,
            statistic="median",
            generator=generator,
            kind="lower",
            level=level,
            least=0.0,
        ),
        *(replace(row, kind="lower") for row in shares),
    ]


def corruption_curves(profile: Profile) -> dict[str, list[float]]:
    """The error under each corruption by severity, of a profile that Robustness made."""
    by_severity: dict[str, dict[int, float]] = {}
    for row in profile.rows:
        if row.quantity == QUANTITY["corruption"]:
            by_severity.setdefault(str(row.at["corruption"]), {})[int(row.at["severity"])] = 1 - row.value
    if not by_severity:
        raise ValueError(
            f"corruption_curves: profile must hold accuracies under corruption, got none for {profile.name}. "
            "lisse measure robustness makes them."
        )
    return {name: [by[severity] for severity in sorted(by)] for name, by in by_severity.items()}


def relative_errors(profile: Profile, baseline: Profile) -> dict[str, float]:
    """The corruption errors of a network as shares of a baseline's, and their mean, the mCE, under ``all``.

    Both must have been measured under the same corruptions and severities: see
    :func:`~lisse.maths.corruption.corruption_errors`.
    """
    ours, base = corruption_curves(profile), corruption_curves(baseline)
    shares = {name: float(value) for name, value in zip(ours, corruption_errors(ours, base), strict=True)}
    return {**shares, OVERALL: float(mean_corruption_error(ours, base))}


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
