"""What is known of the networks after training and measuring, and how it is put together over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from lisse.experiments.diffeomorphisms.networks import Architecture, Source
from lisse.experiments.diffeomorphisms.stripe import Stripe
from lisse.experiments.diffeomorphisms.treatments import PLAIN, Treatment
from lisse.maths.intervals import Interval
from lisse.maths.power_law import geometric_mean
from lisse.profile import Profile, Row

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

    ``profiles`` is empty where the training diverged.
    """

    job: Job
    error: float
    n: int
    profiles: Mapping[str, Profile] = field(repr=False, default_factory=dict)
    depth: int = 0
    parameters: int = 0
    batch_norm: bool = False

    @property
    def diverged(self) -> bool:
        """Whether the loss stopped being a number."""
        return not self.profiles

    def rows(self, quantity: str, which: str = "trained", *, cut: int, delta: float = 1.0) -> list[Row]:
        """Along depth; the last is the output's."""
        profile = self.profiles.get(which)
        found = [
            row
            for row in (profile.rows if profile else ())
            if row.quantity == quantity and row.at["cut"] == cut and row.at["delta"] == delta and row.layer is not None
        ]
        return sorted(found, key=lambda row: row.depth or 0.0)

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


@dataclass(frozen=True)
class Results:
    """All of them, and the stripe model's."""

    all: tuple[Result, ...]
    stripes: tuple[Stripe, ...] = ()

    def of(self, source: Source, architecture: str, p: int | None = None, treatment: str = "plain") -> list[Result]:
        """Over seeds; ``p=None`` is the whole training set. Diverged ones are left out."""
        found = [
            result
            for result in self.all
            if result.job.source.name == source.name
            and result.job.architecture.name == architecture
            and result.job.treatment.name == treatment
            and not result.diverged
        ]
        size = p if p is not None else max((result.job.p for result in found), default=0)
        return sorted((result for result in found if result.job.p == size), key=lambda result: result.job.seed)

    def sizes(self, source: Source, architecture: str) -> list[int]:
        """The P at which it was trained, in order."""
        chosen = (
            result.job.p
            for result in self.all
            if (result.job.source.name, result.job.architecture.name) == (source.name, architecture)
            and result.job.treatment.name == "plain"
            and not result.diverged
        )
        return sorted(set(chosen))

    def stripe(self, p: int) -> list[Stripe]:
        """Over seeds."""
        return [one for one in self.stripes if one.p == p]


def level(
    results: Sequence[Result], quantity: str = R, which: str = "trained", *, cut: int, delta: float = 1.0
) -> Interval | None:
    """The geometric mean over seeds at the output, as the paper takes it; of one seed, its interval over samples."""
    chosen = [result for result in results if result.output(quantity, which, cut=cut, delta=delta) is not None]
    if not chosen:
        return None
    if len(chosen) == 1:
        row = chosen[0].rows(quantity, which, cut=cut, delta=delta)[-1]
        low, high = (row.value if end is None else end for end in (row.low, row.high))
        return _interval(row.value, low, high, row.n)
    return geometric_mean(torch.tensor([result.output(quantity, which, cut=cut, delta=delta) for result in chosen]))


def mean_error(results: Sequence[Result]) -> Interval | None:
    """The mean test error over seeds with Student's interval; of one seed, the binomial one over samples."""
    if not results:
        return None
    if len(results) == 1:
        from lisse.training.result import binomial_interval

        one = results[0]
        low, high = binomial_interval(round(one.error * one.n), one.n)
        return _interval(one.error, low, high, one.n)
    from scipy.special import stdtrit

    errors = torch.tensor([result.error for result in results], dtype=torch.float64)
    half = float(stdtrit(len(errors) - 1, 0.975)) * errors.std() / len(errors) ** 0.5
    return Interval(errors.mean(), (errors.mean() - half).clamp_min(0), errors.mean() + half, len(errors), 0.95)


def positive_error(results: Sequence[Result]) -> float | None:
    """The mean test error, at least half a sample over all seeds: its logarithm is taken."""
    found = mean_error(results)
    return None if found is None else max(float(found.value), 0.5 / sum(result.n for result in results))


def _interval(value: float, low: float, high: float, n: int) -> Interval:
    ends = torch.tensor([value, low, high], dtype=torch.float64)
    return Interval(ends[0], ends[1], ends[2], n, 0.95)


def paired_ratio(above: Iterable[float | None], below: Iterable[float | None]) -> Interval | None:
    """The geometric mean over seeds of ratios of the same seed: what seeds have in common cancels."""
    ratios = [a / b for a, b in zip(above, below, strict=False) if a is not None and b is not None and b > 0]
    return geometric_mean(torch.tensor(ratios, dtype=torch.float64)) if ratios else None
