"""How often a page of comparisons calls two models different: false calls where nothing differs, power elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from lisse.maths.comparison import Difference, cloud_difference, holm, paired_difference, share_difference
from lisse.maths.given import check_integer, check_positive, check_word
from lisse.maths.intervals import Interval, _Statistic, share_interval

World = Literal["swap", "resample"]


@dataclass(frozen=True, slots=True)
class Pairing:
    """One number of two models: values ``[n, …]`` of both, row by row from the same sample (or cloud), and what is made
    of them: ``mean``, ``median``, a function, ``share`` (true or false), or ``clouds`` (one number per cloud)."""

    a: Tensor
    b: Tensor
    statistic: _Statistic | Literal["share", "clouds"] = "mean"

    def difference(
        self, *, level: float = 0.95, resamples: int = 9999, generator: torch.Generator | None = None
    ) -> Difference:
        """The comparison that fits the statistic."""
        if self.statistic == "share":
            return share_difference(self.a, self.b, level=level)
        if self.statistic == "clouds":
            return cloud_difference(self.a, self.b, level=level, resamples=resamples, generator=generator)
        return paired_difference(self.a, self.b, self.statistic, level=level, resamples=resamples, generator=generator)


@dataclass(frozen=True, slots=True)
class DecisionRates:
    """In how many of ``trials`` worlds at least one pairing was called different (``anything``, with Wilson's interval
    at 95 %), and in which share of them each was (``each_pairing`` ``[m]``)."""

    anything: Interval
    each_pairing: Tensor
    trials: int


def decision_rates(
    family: Sequence[Pairing],
    world: World,
    *,
    trials: int = 500,
    level: float = 0.95,
    factor: float = 1.0,
    resamples: int = 999,
    generator: torch.Generator | None = None,
) -> DecisionRates:
    r"""How often a family of comparisons, after Holm, calls something different, in worlds made from real values.

    ``swap``: the two models' values change sides, sample by sample with probability ½, all numbers of a sample
    together: a world in which nothing differs, with the true sizes, ties and dependences. Every call is a false one; at
    most 1 - level of the worlds should have any. ``resample``: samples are drawn with replacement (``factor`` times as
    many): a world that differs as the values do, and the share of calls is the power.

    Pairings with as many rows are of the same samples and share swaps and draws. p values are those of ``resamples``
    resamples, whose least, about 1/resamples, must stay under (1 - level)/m. Cost: trials × the comparisons, 20 ms
    for a mean of 200 samples.
    """
    name = "decision_rates"
    check_word(name, get_args(World), world=world)
    check_integer(name, 1, trials=trials)
    check_positive(name, factor=factor)
    if not family:
        raise ValueError(f"{name}: family must hold at least one pairing, got none.")
    if world == "swap" and factor != 1:
        raise ValueError(f"{name}: factor must be 1 where pairs are swapped, got {factor}.")
    calls = torch.zeros(trials, len(family), dtype=torch.bool)
    for trial in range(trials):
        versions = _swapped(family, generator) if world == "swap" else _drawn(family, factor, generator)
        p = [pairing.difference(level=level, resamples=resamples, generator=generator).p for pairing in versions]
        calls[trial] = holm(p) <= 1 - level
    share = float(calls.any(1).double().mean())
    return DecisionRates(share_interval(share, trials), calls.double().mean(0), trials)


def _swapped(pairings: Sequence[Pairing], generator: torch.Generator | None) -> list[Pairing]:
    swaps: dict[int, Tensor] = {}
    versions = []
    for pairing in pairings:
        n = len(pairing.a)
        if n not in swaps:
            swaps[n] = torch.randint(2, (n,), generator=generator).bool()
        mask = swaps[n].reshape(n, *[1] * (pairing.a.ndim - 1))
        versions.append(
            replace(pairing, a=torch.where(mask, pairing.b, pairing.a), b=torch.where(mask, pairing.a, pairing.b))
        )
    return versions


def _drawn(pairings: Sequence[Pairing], factor: float, generator: torch.Generator | None) -> list[Pairing]:
    picks: dict[int, Tensor] = {}
    versions = []
    for pairing in pairings:
        n = len(pairing.a)
        if n not in picks:
            picks[n] = torch.randint(n, (max(2, round(factor * n)),), generator=generator)
        versions.append(replace(pairing, a=pairing.a[picks[n]], b=pairing.b[picks[n]]))
    return versions
