"""What is known of the networks after training and measuring, and how it is put together over seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from lisse.maths.intervals import Interval, across_clouds, no_interval, share_interval
from lisse.maths.power_law import geometric_mean
from lisse.profile import Profile, Row
from lisse.profile_file import writing
from lisse_experiments.diffeomorphisms.networks import Architecture, Source
from lisse_experiments.diffeomorphisms.stripe import Stripe
from lisse_experiments.diffeomorphisms.treatments import PLAIN, Treatment

R, D, G = "relative_stability", "deformation_stability", "noise_stability"


@dataclass(frozen=True)
class Job:
    """One training: a network, on ``p`` samples of a data set drawn with ``seed``, under a treatment."""

    architecture: Architecture
    source: Source
    p: int
    seed: int
    treatment: Treatment = PLAIN

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.source.name}/{self.architecture.name}/p{self.p}-{self.treatment.name}-seed{self.seed}"


@dataclass(frozen=True)
class Result:
    """A job, its test error on ``n`` samples, and its profiles: ``initial``, ``trained``, and sweeps over (c, δ).

    ``profiles`` is empty where the training diverged. ``machine`` and ``span`` say where and when (begin and end, in
    seconds of the clock) it was trained and measured.
    """

    job: Job
    error: float
    n: int
    profiles: Mapping[str, Profile] = field(repr=False, default_factory=dict)
    depth: int = 0
    parameters: int = 0
    batch_norm: bool = False
    machine: str = ""
    span: tuple[float, float] = (0.0, 0.0)

    @property
    def diverged(self) -> bool:
        """Whether the loss stopped being a number."""
        return not self.profiles

    def rows(self, quantity: str, which: str = "trained", *, cut: int, delta: float = 1.0) -> list[Row]:
        """Along depth; the last is the output's."""
        profile = self.profiles.get(which)
        rows = [
            row
            for row in (profile.rows if profile else ())
            if row.quantity == quantity and row.at["cut"] == cut and row.at["delta"] == delta and row.layer is not None
        ]
        return sorted(rows, key=lambda row: row.depth or 0.0)

    def output(self, quantity: str, which: str = "trained", *, cut: int, delta: float = 1.0) -> float | None:
        """At the output; ``None`` where it has no positive value."""
        rows = self.rows(quantity, which, cut=cut, delta=delta)
        return rows[-1].value if rows and math.isfinite(rows[-1].value) and rows[-1].value > 0 else None

    def setting(self, quantity: str, *, cut: int, delta: float = 1.0, which: str = "trained") -> Row | None:
        """A row that belongs to (c, δ) and to no layer: the share of bijective fields, the radius."""
        profile = self.profiles.get(which)
        for row in profile.rows if profile else ():
            if row.quantity == quantity and row.layer is None and (row.at["cut"], row.at["delta"]) == (cut, delta):
                return row
        return None


def keep_result(result: Result, folder: Path, request: Mapping[str, Any]) -> None:
    """Leave a result in ``folder``: its profiles, and then its numbers with the ``request`` that they answer."""
    for which, profile in result.profiles.items():
        profile.save(folder / f"{which}.profile")
    numbers = {name: value for name, value in vars(result).items() if name not in ("job", "profiles")}
    document = {"request": request, "profiles": list(result.profiles), "numbers": numbers}
    folder.mkdir(parents=True, exist_ok=True)
    with writing(folder / "result.json") as file:
        file.write(json.dumps(document).encode())


def stored_result(job: Job, folder: Path, request: Mapping[str, Any]) -> Result | None:
    """What :func:`keep_result` left for the same ``request``; ``None`` where it left nothing or another answer."""
    file = folder / "result.json"
    if not file.is_file():
        return None
    document = json.loads(file.read_text(encoding="utf-8"))
    if document["request"] != json.loads(json.dumps(request)):  # tuples are lists there
        return None
    profiles = {which: Profile.load(folder / f"{which}.profile") for which in document["profiles"]}
    numbers = {**document["numbers"], "span": tuple(document["numbers"]["span"])}
    return Result(job, profiles=profiles, **numbers)


@dataclass(frozen=True)
class Results:
    """All of them, and the stripe model's."""

    all: tuple[Result, ...]
    stripes: tuple[Stripe, ...] = ()

    def of(self, source: Source, architecture: str, p: int | None = None, treatment: str = "plain") -> list[Result]:
        """Over seeds; ``p=None`` is the whole training set. Diverged ones are left out."""
        results = [
            result
            for result in self.all
            if result.job.source.name == source.name
            and result.job.architecture.name == architecture
            and result.job.treatment.name == treatment
            and not result.diverged
        ]
        size = p if p is not None else max((result.job.p for result in results), default=0)
        return sorted((result for result in results if result.job.p == size), key=lambda result: result.job.seed)

    def sizes(self, source: Source, architecture: str) -> list[int]:
        """The P at which it was trained, in order."""
        sizes = (
            result.job.p
            for result in self.all
            if (result.job.source.name, result.job.architecture.name) == (source.name, architecture)
            and result.job.treatment.name == "plain"
            and not result.diverged
        )
        return sorted(set(sizes))

    def by_seed(self, source: Source, architecture: str, p: int, quantity: str = R) -> dict[int, float]:
        """A quantity at the output of the networks of one size, at the source's first cut-off."""
        values = {r.job.seed: r.output(quantity, cut=source.cuts[0]) for r in self.of(source, architecture, p)}
        return {seed: value for seed, value in values.items() if value is not None}

    def stripe(self, p: int) -> list[Stripe]:
        """Over seeds."""
        return [network for network in self.stripes if network.p == p]


def level(
    results: Sequence[Result], quantity: str = R, which: str = "trained", *, cut: int, delta: float = 1.0
) -> Interval | None:
    """The geometric mean over seeds at the output, as the paper takes it; of one seed, its interval over samples."""
    finite = [result for result in results if result.output(quantity, which, cut=cut, delta=delta) is not None]
    if not finite:
        return None
    if len(finite) == 1:
        row = finite[0].rows(quantity, which, cut=cut, delta=delta)[-1]
        low, high = (row.value if end is None else end for end in (row.low, row.high))
        return _interval(row.value, low, high, row.n)
    return geometric_mean(torch.tensor([result.output(quantity, which, cut=cut, delta=delta) for result in finite]))


def mean_error(results: Sequence[Result]) -> Interval | None:
    """The mean test error over seeds with Student's interval; of one seed, Wilson's over samples."""
    if not results:
        return None
    if len(results) == 1:
        return share_interval(results[0].error, results[0].n)
    from scipy.special import stdtrit

    errors = torch.tensor([result.error for result in results], dtype=torch.float64)
    half = float(stdtrit(len(errors) - 1, 0.975)) * errors.std() / len(errors) ** 0.5
    return Interval(errors.mean(), (errors.mean() - half).clamp_min(0), errors.mean() + half, len(errors), 0.95)


def positive_error(results: Sequence[Result]) -> float | None:
    """The mean test error, at least half a sample over all seeds: its logarithm is taken."""
    error = mean_error(results)
    return None if error is None else max(float(error.value), 0.5 / sum(result.n for result in results))


def local_slope(below: Mapping[int, float], above: Mapping[int, float], sizes: tuple[int, int]) -> Interval | None:
    r"""The slope :math:`\log(R_q/R_p) / \log(q/p)` of values by seed at P = p and q, with Student's interval.

    Seed by seed: networks of one seed begin alike, and their training sets are nested. One seed has no interval.
    """
    seeds = sorted(below.keys() & above.keys())
    if not seeds:
        return None
    octaves = math.log(sizes[1] / sizes[0])
    slopes = torch.tensor([math.log(above[seed] / below[seed]) / octaves for seed in seeds], dtype=torch.float64)
    return across_clouds(slopes) if len(seeds) > 1 else no_interval(slopes[0], 1, 0.95)


def _interval(value: float, low: float, high: float, n: int) -> Interval:
    ends = torch.tensor([value, low, high], dtype=torch.float64)
    return Interval(ends[0], ends[1], ends[2], n, 0.95)


def paired_ratio(above: Iterable[float | None], below: Iterable[float | None]) -> Interval | None:
    """The geometric mean over seeds of ratios of the same seed: what seeds have in common cancels."""
    ratios = [a / b for a, b in zip(above, below, strict=False) if a is not None and b is not None and b > 0]
    return geometric_mean(torch.tensor(ratios, dtype=torch.float64)) if ratios else None
