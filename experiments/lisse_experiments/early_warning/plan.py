"""Which trainings, and what is watched of them: everything that differs between the scales."""

from __future__ import annotations

import random
from dataclasses import dataclass

#: How a training is driven: what its line in the table says.
WAYS = {
    "calm": "the rate stays, norms of queries and keys",
    "plain": "the rate stays, no such norms",
    "driven": "the rate rises without end, no such norms",
    "driven-norms": "the rate rises without end, norms of queries and keys",
}
NORMS = ("calm", "driven-norms")


@dataclass(frozen=True)
class Settings:
    """Of one scale: ``seeds`` of every way, ``steps`` of ``batch`` texts of ``length`` bytes, a look every ``every``.

    ``rises`` are the ends between which a driven training's seed draws how many steps its rate needs to grow tenfold.
    """

    seeds: int
    steps: int
    every: int
    layers: int
    width: int
    heads: int
    length: int
    batch: int
    rises: tuple[int, int]
    text: str | None
    watched: int


@dataclass(frozen=True)
class Training:
    """One of them."""

    way: str
    seed: int

    @property
    def name(self) -> str:
        """What its file is called, and how it is asked for."""
        return f"{self.way}:{self.seed}"


def settings(scale: str) -> Settings:
    """Of one scale."""
    if scale == "small":
        return Settings(
            seeds=10, steps=400, every=10, layers=4, width=64, heads=4, length=64, batch=16, rises=(50, 90),
            text="text/wikipedia_sentences.txt.xz", watched=8,
        )  # fmt: skip
    return Settings(
        seeds=2, steps=120, every=10, layers=2, width=16, heads=2, length=24, batch=8, rises=(12, 18), text=None,
        watched=4,
    )  # fmt: skip


def trainings(plan: Settings, seed: int) -> list[Training]:
    """All of them, seed by seed, so that an interrupted run has some of every way."""
    return [Training(way, seed + index) for index in range(plan.seeds) for way in WAYS]


def rate(plan: Settings, training: Training, step: int) -> float:
    """The learning rate of a step, which counts from 0.

    A warm-up to 1e-3 over an eighth of the steps; where it is driven, tenfold again and again from a quarter on.
    """
    warm = min(1.0, (step + 1) / (plan.steps / 8))
    if not training.way.startswith("driven"):
        return 1e-3 * warm
    least, most = plan.rises
    tenfold = least + (most - least) * random.Random(training.seed).random()
    return 1e-3 * warm * 10.0 ** max(0.0, (step - plan.steps / 4) / tenfold)
