"""Did the attack work? Warning signs that a network hides its gradients, rather than being robust.

After [athalye2018] sec. 3.1 and [carlini2019] sec. 5: an attack with more freedom must not do worse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lisse.maths.intervals import share_interval
from lisse.networks.answers import Classifier, logits_at, resting, right
from lisse.networks.attack.blind import random_search, random_shift
from lisse.networks.attack.checks import UNIT, Bounds, checked_samples
from lisse.networks.attack.gradient import attack, input_gradients
from lisse.networks.attack.norms import Norm, norm_named

#: Accuracies by attack and ε: ``{"pgd": {0.1: 0.35}}``.
Curves = Mapping[str, Mapping[float, float]]


@dataclass(frozen=True)
class Sign:
    """A warning sign: ``name``, and a sentence with the numbers."""

    name: str
    says: str


@dataclass(frozen=True)
class Check:
    """What :func:`sanity_check` found: the accuracy by attack and ε, on how many samples, and the signs among them."""

    accuracy: Curves
    clean: float
    n: int
    signs: tuple[Sign, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against the attacks."""
        return not self.signs


#: Share of samples without any gradient beyond which what an attack by gradients does not find says nothing.
FLAT = 0.1


def signs(curves: Curves, clean: float, n: int, *, still: float = 0.0, level: float = 0.95) -> tuple[Sign, ...]:
    """Warning signs in accuracies that were measured on the same ``n`` samples.

    ``curves`` may hold ``noise`` (:func:`random_shift`), ``fgsm``, ``pgd``, ``search`` (:func:`random_search`) and
    ``autoattack``; ``still`` is the share of samples whose gradient is exactly 0. An attack counts as worse only
    beyond the two Wilson intervals of ``level``.

    - ``rises``: accuracy rises with ε. A larger ball holds the smaller one.
    - ``single beats multi``: FGSM does more harm than PGD.
    - ``blind beats gradient``: noise or a search that sees answers only does more harm than the gradient.
    - ``attack helps``: accuracy under attack is above the clean accuracy.
    - ``zero gradient``: more than a tenth of the samples have none.
    """
    warnings: list[Sign] = []

    def worse(stronger: float, weaker: float) -> bool:
        """Whether the attack that should be stronger leaves more right, beyond chance."""
        a, b = (share_interval(min(max(value, 0.0), 1.0), n, level=level) for value in (stronger, weaker))
        return float(a.low) > float(b.high)

    for name, curve in curves.items():
        ordered = sorted(curve)
        rising = [
            (small, large)
            for index, small in enumerate(ordered)
            for large in ordered[index + 1 :]
            if worse(curve[large], curve[small])
        ]
        if rising and name != "noise":
            small, large = rising[0]
            warnings.append(
                Sign(
                    "rises",
                    f"Under {name}, accuracy rises from {curve[small]:.3f} at ε = {small:g} to {curve[large]:.3f} at "
                    f"ε = {large:g}: the attack gets stuck, or its steps are too long.",
                )
            )
        over = [eps for eps in ordered if worse(curve[eps], clean)]
        if over and name != "noise":
            says = f"Under {name} at ε = {over[0]:g}, accuracy is {curve[over[0]]:.3f}, above the clean {clean:.3f}."
            warnings.append(Sign("attack helps", says))
    for strong, weak, name in (
        ("pgd", "fgsm", "single beats multi"),
        ("pgd", "search", "blind beats gradient"),
        ("pgd", "noise", "blind beats gradient"),
        ("fgsm", "noise", "blind beats gradient"),
        ("autoattack", "pgd", "weak attack"),
    ):
        for eps in sorted(set(curves.get(strong, {})) & set(curves.get(weak, {}))):
            if worse(curves[strong][eps], curves[weak][eps]):
                says = (
                    f"At ε = {eps:g}, {weak} leaves {curves[weak][eps]:.3f} right and {strong} "
                    f"{curves[strong][eps]:.3f}: the gradients may be masked."
                )
                warnings.append(Sign(name, says))
                break
    if still > FLAT:
        says = f"{still:.0%} of the samples have no gradient at all: the loss is flat there to the last digit."
        warnings.append(Sign("zero gradient", says))
    return tuple(warnings)


def sanity_check(
    model: Classifier,
    x: Any,
    y: Any,
    *,
    norm: Norm | float | str,
    eps: Sequence[float],
    steps: int = 10,
    queries: int = 20,
    bounds: Bounds | None = UNIT,
    generator: torch.Generator | None = None,
    batch: int | None = None,
) -> Check:
    """Attack a classifier by noise, FGSM, PGD and a blind search at every ``eps``, and look for warning signs.

    ε = 0 is always among them, and gives the clean accuracy under every attack; a network whose answers change from
    call to call is refused, since no number would mean anything. Cost: about ``len(eps) * (3 steps + queries)``
    forwards.
    """
    values, labels = checked_samples("sanity_check", model, x, y, bounds)
    kind = norm_named("sanity_check", norm)
    if len(values) == 0 or not eps:
        raise ValueError(f"sanity_check: x and eps must not be empty, got {len(values)} samples and {list(eps)}.")
    size = batch or 500
    box: Bounds | None = None if bounds is None else (bounds[0], bounds[1])  # a declared box: no warning at each step
    with resting(model, grad=False), torch.no_grad():
        first, second = (logits_at(model, values[:size], function="sanity_check") for _ in range(2))
    if not torch.allclose(first, second, rtol=1e-4, atol=1e-5):
        raise ValueError(
            "sanity_check: model must answer the same twice, got other answers the second time. It has randomness of "
            "its own in evaluation mode; average over it before attacking."
        )
    clean = float(right(model, values, labels, batch=size).double().mean())
    curves: dict[str, dict[float, float]] = {"noise": {}, "fgsm": {}, "pgd": {}, "search": {}}
    for radius in (0.0, *sorted({float(radius) for radius in eps} - {0.0})):
        moved = {
            "noise": random_shift(values, norm=kind, eps=radius, bounds=box, generator=generator),
            "fgsm": attack(model, values, labels, method="fgsm", norm=kind, eps=radius, bounds=box, batch=size),
            "pgd": attack(
                model, values, labels, method="pgd", norm=kind, eps=radius, steps=steps, bounds=box, batch=size
            ),
            "search": random_search(
                model, values, labels, norm=kind, eps=radius, queries=queries, bounds=box, generator=generator,
                batch=size,
            ),
        }  # fmt: skip
        for name, points in moved.items():
            curves[name][radius] = float(right(model, points, labels, batch=size).double().mean())
    slopes = input_gradients(model, values, labels, bounds=box, batch=size).flatten(1)
    flat = float((slopes == 0).all(1).double().mean())
    return Check(curves, clean, len(values), signs(curves, clean, len(values), still=flat))
