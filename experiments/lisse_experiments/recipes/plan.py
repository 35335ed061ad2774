"""Which networks are trained how, and what is measured of them: everything that differs between the scales."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from lisse.training import Recipe
from lisse.training.recipes import ADVERSARIAL_FGSM, AUGMIX

Radius = tuple[str, float]


@dataclass(frozen=True)
class Settings:
    """Of one scale: data, network, recipes in the order of the table with their number of seeds, and the measurements.

    ``radii`` are norm and ε; the first is the one that the adversaries train at. ``images`` are attacked by APGD of
    ``steps`` steps on two losses with ``restarts`` random starts, ``corrupted`` of them corrupted at ``severities``;
    ``printed`` are the recipes that are held to the literature, by PGD of 50 steps and 10 starts as there, on
    ``comparison`` images.
    """

    data: str
    network: str
    recipes: Mapping[str, Recipe]
    seeds: Mapping[str, int]
    limit: int | None
    radii: tuple[Radius, ...]
    images: int
    steps: int
    restarts: int
    severities: tuple[int, ...]
    corrupted: int
    samples: int
    precision: str | None = None
    printed: tuple[str, ...] = ()
    comparison: int = 1000


@dataclass(frozen=True)
class Unit:
    """One network of the table."""

    recipe: str
    seed: int

    @property
    def name(self) -> str:
        """How it is asked for, and what its file is called."""
        return f"{self.recipe}:{self.seed}"


# What the table says of each row.
LABELS = {
    "plain": "plain",
    "fgsm": "random-start FGSM",
    "pgd": "PGD of 7 steps",
    "trades": "TRADES of 7 steps",
    "gradient": "input-gradient penalty",
    "jacobian": "Jacobian penalty",
    "isometric": "isometric loss, 0.1 at the head",
    "deform": "deformations by up to a pixel",
    "augmix": "AugMix and its consistency",
}


def recipes(base: Recipe, eps: float, *, gradient: float, jacobian: float) -> dict[str, Recipe]:
    """Every way of training, from the same optimisation."""
    return {
        "plain": base,
        "fgsm": dataclasses.replace(base, adversary="fgsm", eps=eps),
        "pgd": dataclasses.replace(base, adversary="pgd", eps=eps, adversary_steps=7),
        "trades": dataclasses.replace(base, adversary="trades", eps=eps, adversary_steps=7),
        "gradient": dataclasses.replace(base, penalties=(f"gradient={gradient:g}",)),
        "jacobian": dataclasses.replace(base, penalties=(f"jacobian={jacobian:g}",)),
        "isometric": dataclasses.replace(base, penalties=("isometric=0.1@head:in",)),
        "deform": dataclasses.replace(base, deform=1.0),
        "augmix": dataclasses.replace(base, augmix=AUGMIX.augmix),
    }


def settings(scale: str) -> Settings:
    """Smoke: 8 × 8 digits, which are embedded; medium: LeNet on MNIST; paper: ResNet18 on CIFAR-10."""
    if scale == "smoke":
        base = Recipe(lr=0.01, batch=100, epochs=8)
        ways = recipes(base, 0.15, gradient=0.3, jacobian=0.01)
        few = {name: ways[name] for name in ("plain", "fgsm", "gradient", "isometric")}
        return Settings(
            "digits", "zoo:fc2?in_channels=1&size=8&mean=none", few, dict.fromkeys(few, 3), None,
            (("linf", 0.15), ("linf", 0.05)), 200, 20, 1, (3,), 100, 60,
        )  # fmt: skip
    if scale == "medium":
        base = Recipe(lr=3e-3, batch=128, epochs=2)
        ways = recipes(base, 0.1, gradient=0.3, jacobian=0.01)
        return Settings(
            "mnist", "zoo:lenet?in_channels=1&size=28", ways,
            dict.fromkeys(ways, 3) | dict.fromkeys(("pgd", "trades", "jacobian"), 1), 10_000,
            (("linf", 0.1), ("linf", 0.05), ("l2", 1.0)), 500, 30, 1, (1, 3, 5), 200, 100,
        )  # fmt: skip
    base = dataclasses.replace(ADVERSARIAL_FGSM, adversary="none")
    ways = recipes(base, 8 / 255, gradient=1.0, jacobian=0.01)
    seeds = dict.fromkeys(ways, 3) | {"pgd": 2, "trades": 1, "jacobian": 1}
    return Settings(
        "cifar10", "zoo:resnet18?mean=cifar10", ways, seeds, None,
        (("linf", 8 / 255), ("linf", 2 / 255), ("l2", 0.5)), 1000, 40, 1, (1, 3, 5), 500, 200,
        precision="bf16-mixed", printed=("fgsm", "pgd"), comparison=4000,
    )  # fmt: skip


def units(plan: Settings, seed: int, choice: tuple[str, ...] = ()) -> list[Unit]:
    """All of them, a seed before the next; or those of ``choice``: ``fgsm``, ``fgsm:1``."""
    most = max(plan.seeds.values())
    everything = [Unit(name, seed + turn) for turn in range(most) for name in plan.recipes if turn < plan.seeds[name]]
    names = {unit.name for unit in everything} | set(plan.recipes)
    wrong = [text for text in choice if text not in names]
    if wrong:
        raise ValueError(
            f"reproduce: units must be recipes or recipe:seed of {', '.join(plan.recipes)}, got {', '.join(wrong)}. "
            f"One is {everything[0].name}."
        )
    return [unit for unit in everything if not choice or unit.name in choice or unit.recipe in choice]
