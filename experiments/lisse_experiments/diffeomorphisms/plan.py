"""What is trained and measured at each scale."""

from __future__ import annotations

from dataclasses import dataclass

from lisse.data.augmentation import CropFlip
from lisse_experiments.diffeomorphisms import networks, stripe
from lisse_experiments.diffeomorphisms.networks import Architecture, Source
from lisse_experiments.diffeomorphisms.result import Job
from lisse_experiments.diffeomorphisms.treatments import BARE, PLAIN, RANDOM, SMOOTHED, WORST, Treatment


@dataclass(frozen=True)
class Settings:
    """What differs between the scales.

    All ``architectures`` are trained on the whole of the first source, unless others have; ``curves`` on subsets of
    ``sizes`` of every source (``good`` stand for the paper's state of the art, ``primitive`` for Figure 4);
    ``on_other_sources`` on the whole of the other sources; ``treated`` under all ``treatments``. Networks of which no
    curve is drawn and that are under no treatment are trained with ``seeds_elsewhere`` seeds: the fit over networks has
    one point of each. Without ``deltas`` nothing but (c, δ = 1) is measured. The stripe model has ``stripe_seeds``
    networks of each size.
    """

    sources: tuple[Source, ...]
    architectures: tuple[Architecture, ...]
    good: tuple[str, ...]
    primitive: tuple[str, ...]
    on_other_sources: tuple[str, ...]
    treated: tuple[str, ...]
    treatments: tuple[Treatment, ...]
    sizes: tuple[int, ...]
    seeds: int
    samples: int
    deltas: tuple[float, ...]
    worst_steps: int
    batch: int
    stripe: stripe.Recipe
    stripe_sizes: tuple[int, ...]
    cuts_drawn: tuple[int, ...]
    fields_drawn: int
    seeds_elsewhere: int = 3
    stripe_seeds: int = 3

    @property
    def curves(self) -> tuple[str, ...]:
        """Networks of which R(P) is taken."""
        return (*self.good, *self.primitive)

    @property
    def cut(self) -> int:
        """The cut-off of Figure 5: 3, for the paper's sizes."""
        return self.sources[0].cuts[0]


_OCTAVES = tuple(2**k for k in range(7, 16))


def settings(scale: str) -> Settings:
    """Of one scale."""
    if scale == "paper":
        return Settings(
            sources=(networks.CIFAR, networks.MNIST, networks.FASHION), architectures=networks.printed(),
            good=("resnet18", "efficientnet_b0"), primitive=("fc4", "lenet"), on_other_sources=("alexnet", "vgg11_bn"),
            treated=("resnet18", "lenet"), treatments=(PLAIN, BARE, RANDOM, WORST),
            sizes=(500, 1000, 2000, 5000, 10000, 20000), seeds=3, samples=500,
            deltas=(0.1, 0.2, 0.5, 1.0, 2.0, 4.0), worst_steps=3, batch=100,
            stripe=stripe.DESCENT, stripe_sizes=_OCTAVES, stripe_seeds=5,
            cuts_drawn=(2, 3, 4, 5, 7, 10, 15, 20, 30), fields_drawn=256,
        )  # fmt: skip
    if scale == "sizes":
        return Settings(
            sources=(networks.CIFAR,),
            architectures=tuple(a for a in networks.in_minutes() if a.name in ("resnet18", "efficientnet_b0")),
            good=("resnet18", "efficientnet_b0"), primitive=(), on_other_sources=(), treated=(), treatments=(PLAIN,),
            sizes=(500, 1000, 2000, 5000, 10000, 20000), seeds=3, samples=500, deltas=(), worst_steps=1, batch=100,
            stripe=stripe.DESCENT, stripe_sizes=_OCTAVES, stripe_seeds=5, cuts_drawn=(), fields_drawn=0,
        )  # fmt: skip
    if scale == "medium":
        return Settings(
            sources=(networks.CIFAR,), architectures=networks.in_minutes(), good=("resnet18",),
            primitive=("fc4", "lenet"), on_other_sources=(), treated=("resnet18",),
            treatments=(PLAIN, BARE, SMOOTHED, RANDOM, WORST), sizes=(), seeds=3, seeds_elsewhere=1, samples=500,
            deltas=(0.25, 0.5, 1.0, 2.0), worst_steps=1, batch=100, stripe=stripe.Recipe(),
            stripe_sizes=(128, 256, 512, 1024, 2048, 4096, 8192), cuts_drawn=(2, 3, 4, 5, 7, 10, 15, 20, 30),
            fields_drawn=256,
        )  # fmt: skip
    if scale == "small":
        return Settings(
            sources=(networks.CIFAR_SMALL,), architectures=networks.for_photographs(), good=("resnet8",),
            primitive=("fc4", "lenet"), on_other_sources=(), treated=("vgg7_bn",),
            treatments=(PLAIN, BARE, RANDOM, WORST),
            sizes=(500, 2000), seeds=3, samples=500, deltas=(0.25, 0.5, 1.0, 2.0), worst_steps=2, batch=100,
            stripe=stripe.Recipe(), stripe_sizes=(128, 256, 512, 1024, 2048, 4096, 8192),
            cuts_drawn=(2, 3, 4, 5, 7, 10, 15, 20, 30), fields_drawn=64,
        )  # fmt: skip
    return Settings(
        sources=(networks.DIGITS,),
        architectures=networks.for_digits(),
        good=("conv",),
        primitive=("fc4",),
        on_other_sources=(),
        treated=("conv",),
        treatments=(PLAIN, Treatment("crops", "crops", crops=CropFlip(1, flip=False)), RANDOM, WORST),
        sizes=(180, 512),
        seeds=3,
        samples=364,
        deltas=(0.25, 0.5, 1.0),
        worst_steps=2,
        batch=91,
        stripe=stripe.Recipe(hidden=256, test=2000),
        stripe_sizes=(128, 512, 2048, 4096, 8192),
        cuts_drawn=(2, 3, 5, 10, 20, 30),
        fields_drawn=32,
    )


def jobs(plan: Settings, sizes: dict[str, int], seed: int) -> list[Job]:
    """Every training, each once; ``sizes`` are those of the training sets that are there."""
    by_name = {architecture.name: architecture for architecture in plan.architectures}
    sources = [source for source in plan.sources if source.name in sizes]
    seeds = range(seed, seed + plan.seeds)
    first, trainings = sources[0], []
    for source in sources:
        full = sizes[source.name]
        all_ = plan.architectures if source is first else [by_name[n] for n in (*plan.curves, *plan.on_other_sources)]
        for architecture in all_:  # the weights of others are there once
            often = seeds if architecture.name in (*plan.curves, *plan.treated) else seeds[: plan.seeds_elsewhere]
            trainings += [Job(architecture, source, architecture.weights.p, seed)] if architecture.weights else [
                Job(architecture, source, full, s) for s in often
            ]  # fmt: skip
        smaller = [p for p in plan.sizes if p < full]
        trainings += [Job(by_name[name], source, p, s) for name in plan.curves for p in smaller for s in seeds]
    more = [treatment for treatment in plan.treatments if treatment != PLAIN]
    full = sizes[first.name]
    trainings += [Job(by_name[name], first, full, s, t) for name in plan.treated for t in more for s in seeds]
    return trainings
