"""Robustness: how many answers stay right when images are corrupted, attacked, made noisy or deformed."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from lisse.data.corrupted import check_corruptions, frost_textures
from lisse.instruments.robustness_cases import Attack, Case, Changes
from lisse.instruments.robustness_rows import accuracy_rows, corruption_rows
from lisse.maths.corruption.parameters import Strength, Variant
from lisse.networks.attack import logits_of, signs
from lisse.networks.attack.checks import DECLARE
from lisse.profile import Part, Quantity, Row, Value
from lisse.run import Instrument, Run
from lisse.taps import feed, prepared, still

_QUICK = 200


@dataclass(frozen=True)
class Robustness(Instrument):
    """Accuracy under corruption and under attack, against noise and smooth deformations of the same images.

    Every network sees the same changed images, but for those of an attack, which are its own. Accuracy under an attack
    is an upper bound of the accuracy under the worst one.
    """

    corruptions: tuple[str, ...] = field(default=("main",), metadata={"help": "names, or main, extra, all, none"})
    severities: tuple[int, ...] = field(default=(1, 2, 3, 4, 5), metadata={"help": "severities, 1 to 5"})
    strength: Strength = field(default="cifar", metadata={"help": "parameters of CIFAR-10-C or of ImageNet-C"})
    variant: Variant = field(default="hendrycks", metadata={"help": "corruptions as published, or without its slips"})
    attacks: tuple[Attack, ...] = field(
        default=("noise", "fgsm", "pgd"), metadata={"help": "noise, fgsm, pgd, search (blind), autoattack"}
    )
    norm: Literal["linf", "l2"] = field(default="linf", metadata={"help": "the ball of the attacks"})
    eps: tuple[float, ...] = field(
        default=(0.5 / 255, 1 / 255, 2 / 255, 4 / 255, 8 / 255),
        metadata={"help": "its radii, in the unit of the input"},
    )
    step: tuple[float, ...] = field(default=(), metadata={"help": "steps of pgd; without, 2.5 eps / steps"})
    steps: int = field(default=10, metadata={"help": "how many steps pgd takes"})
    random_start: bool = field(default=False, metadata={"help": "start pgd at a random point of the ball"})
    queries: int = field(default=20, metadata={"help": "points that search tries"})
    clip: bool = field(default=True, metadata={"help": "keep attacked and noisy images in [0, 1]"})
    sigma: tuple[float, ...] = field(default=(0.02, 0.05, 0.1, 0.2), metadata={"help": "Gaussian noise, by its std"})
    delta: tuple[float, ...] = field(default=(0.5, 1.0, 2.0), metadata={"help": "deformations, pixels (RMS)"})
    cut: int = field(default=3, metadata={"help": "their highest frequency"})
    samples: int = field(default=1000, metadata={"help": "most samples"})
    level: float = field(default=0.95, metadata={"help": "confidence level of the intervals"})
    quick: bool = field(default=False, metadata={"help": "200 samples, no intervals"})

    QUANTITIES: ClassVar[tuple[Quantity, ...]] = (
        Quantity(
            "clean_accuracy",
            "clean accuracy",
            "The share of samples classified right as they are.",
            r"\frac1n\sum_i 1[\hat y(x_i) = y_i]",
            better="higher",
        ),
        Quantity(
            "corruption_accuracy",
            "accuracy under corruption",
            "The share of corrupted images classified right, at one severity.",
            r"\frac1n\sum_i 1[\hat y(c_s(x_i)) = y_i]",
            "[hendrycks2019] sec. 4",
            better="higher",
        ),
        Quantity(
            "mean_accuracy",
            "accuracy over severities",
            "The mean accuracy over the severities of a corruption.",
            r"a_c = \frac1S\sum_s a_{c,s}",
            "[chen2024] table 2",
            better="higher",
        ),
        Quantity(
            "drop",
            "drop",
            "By how much the mean accuracy over severities is below the clean accuracy.",
            r"a_0 - a_c",
            "[chen2024] table 2",
            better="lower",
        ),
        Quantity(
            "mean_corruption_error",
            "mean corruption error",
            "The mean error over corruptions and severities, not divided by a baseline's.",
            r"1 - \frac1C\sum_c a_c",
            "[hendrycks2019] sec. 4",
            better="lower",
        ),
        Quantity(
            "attack_accuracy",
            "accuracy under attack",
            "The share of samples still classified right after an attack of size ε; noise of the same size beside it.",
            r"\frac1n\sum_i 1[\hat y(x_i + \delta_i) = y_i], \; \|\delta_i\| \le \epsilon",
            "[madry2018] sec. 2.1",
            better="higher",
        ),
        Quantity(
            "noise_accuracy",
            "accuracy under noise",
            "The share of samples classified right with Gaussian noise of standard deviation σ added.",
            r"\frac1n\sum_i 1[\hat y(x_i + \sigma \eta_i) = y_i]",
            better="higher",
        ),
        Quantity(
            "deformation_accuracy",
            "accuracy under deformation",
            "The share of images classified right after a smooth random deformation by δ pixels.",
            r"\frac1n\sum_i 1[\hat y(\tau_i x_i) = y_i]",
            "[petrini2021] eq. 2",
            better="higher",
        ),
    )

    def __post_init__(self) -> None:
        for name in ("corruptions", "severities", "attacks", "eps", "step", "sigma", "delta"):
            given = getattr(self, name)  # one word or number, a list and None are what they look like
            whole = () if given is None else (given,) if isinstance(given, (str, int, float)) else tuple(given)
            object.__setattr__(self, name, whole)
        if self.corruptions not in ((), ("none",)):
            check_corruptions("Robustness", self.corruptions)
        bad = [s for s in self.severities if isinstance(s, bool) or not isinstance(s, int) or not 1 <= s <= 5]
        if bad or not self.severities:
            raise ValueError(f"Robustness: severities must be integers from 1 to 5, got {self.severities!r}.")
        for name, choices in (("strength", Strength), ("variant", Variant)):
            if getattr(self, name) not in get_args(choices):
                given = getattr(self, name)
                raise ValueError(f"Robustness: {name} must be one of {', '.join(get_args(choices))}, got {given!r}.")
        unknown = [name for name in self.attacks if name not in get_args(Attack)]
        if unknown:
            raise ValueError(
                f"Robustness: attacks must be among {', '.join(get_args(Attack))}, got {', '.join(map(str, unknown))}."
            )
        if self.norm not in ("linf", "l2"):
            raise ValueError(f"Robustness: norm must be one of linf, l2, got {self.norm!r}.")
        for name in ("eps", "step", "sigma", "delta"):
            if any(not 0 <= float(value) < float("inf") for value in getattr(self, name)):
                raise ValueError(f"Robustness: {name} must hold numbers of at least 0, got {getattr(self, name)!r}.")
        for name, least in (("steps", 1), ("queries", 1), ("cut", 1), ("samples", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"Robustness: {name} must be at least {least}, got {getattr(self, name)}.")
        if not 0 < self.level < 1:
            raise ValueError(f"Robustness: level must lie in (0, 1), got {self.level}.")

    def fits(self, run: Run) -> str | None:
        """Classifiers on images or vectors with labels."""
        inputs, targets = run.data.inputs, run.data.targets
        if targets is None:
            return f"it counts right answers, and {run.data.name} has no labels."
        if targets.ndim != 1 or targets.is_floating_point():
            return f"it counts right answers, and the targets of {run.data.name} are not one class each."
        if not isinstance(inputs, Tensor) or not (inputs.is_floating_point() or inputs.dtype == torch.uint8):
            return f"it changes images and vectors a little, and {run.data.name} holds neither."
        if len(run) == 0:
            return f"{run.data.name} is empty."
        try:
            with still(run.model, statistics=run.statistics, seed=run.seed):
                batch = next(iter(run.batches(2)))
                logits = logits_of(feed(run.model, prepared(run.model, batch.inputs)), min(2, len(run)))
        except (TypeError, ValueError) as error:
            return f"the model gives no logits ({str(error).removeprefix('logits_of: ')})"
        if int(targets.min()) < 0 or int(targets.max()) >= logits.shape[1]:
            return (
                f"the model has {logits.shape[1]} classes, and {run.data.name} labels from {int(targets.min())} to "
                f"{int(targets.max())}."
            )
        return None

    def part(self, run: Run) -> Part:
        """Measure."""
        notes: list[str] = []
        n = run.take(min(self.samples, _QUICK) if self.quick else self.samples)
        if n < len(run):
            notes.append(f"The first {n:,} of {len(run):,} samples.")
        changes = self._changes(run, n, notes)
        cases = self._cases(run, changes, notes)
        found: dict[Case, Tensor] = {}
        flat = 0.0
        for place, case in enumerate(cases):
            run.tell("robustness", place, len(cases), "ways")
            made = run.piece(self, (case.name, n), functools.partial(changes.right, case))
            found[case] = made["right"].bool()
            if case.at.get("attack") == "fgsm" and float(case.at["eps"]) > 0:
                flat = max(flat, float(made["still"].double().mean()))
        run.tell("robustness", len(cases), len(cases), "ways")
        interval = not self.quick
        rows = accuracy_rows(found, level=self.level, interval=interval)
        rows += corruption_rows(found, run, level=self.level, interval=interval)
        notes += _guesses(run, found[cases[0]])
        notes += self._signs(rows, n, flat)
        arrays = {f"right/{case.name}": right.numpy() for case, right in found.items()}
        return Part(self.name, tuple(rows), self.QUANTITIES, tuple(notes), arrays)

    def _changes(self, run: Run, n: int, notes: list[str]) -> Changes:
        inputs = run.data.inputs
        assert isinstance(inputs, Tensor)
        bounds: tuple[float, float] | None = (0.0, 1.0) if self.clip else None
        if inputs.is_floating_point() and bounds is not None and not _in_unit(inputs[:n]):
            bounds = None
            notes.append("The inputs leave [0, 1], so attacks and noise are not kept in it; ε is in their own unit.")
        if getattr(run.model, "lisse", None) is None and bounds is not None:
            notes.append(
                "The model declares no normalisation: it is given the inputs as they are, in [0, 1], and ε is in that "
                f"unit. If it was trained on others, declare it: {DECLARE}."
            )
        textures = None
        if "frost" in self._names():
            try:
                textures = frost_textures()
            except (ValueError, OSError) as error:
                notes.append(f"frost is left out: its textures are missing ({error})")
        return Changes(
            run, n, self.strength, self.variant, textures, self.norm, self.steps, self.random_start, self.queries,
            bounds,
        )  # fmt: skip

    def _names(self) -> tuple[str, ...]:
        return () if self.corruptions in ((), ("none",)) else check_corruptions("Robustness", self.corruptions)

    def _cases(self, run: Run, changes: Changes, notes: list[str]) -> list[Case]:
        """Clean first, then every way of changing the samples, in the order of the options."""
        inputs = run.data.inputs
        assert isinstance(inputs, Tensor)
        cases = [Case("clean")]
        pictures = inputs.ndim == 4 and inputs.shape[1] in (1, 3) and min(inputs.shape[-2:]) >= 4
        names = [name for name in self._names() if name != "frost" or changes.textures is not None]
        if names and not (pictures and (inputs.dtype == torch.uint8 or _in_unit(inputs[: changes.n]))):
            notes.append("Corruptions are left out: they need images of 1 or 3 channels in [0, 1], 4 pixels or more.")
            names = []
        cases += [Case("corruption", {"corruption": c, "severity": s}) for c in names for s in self.severities]
        for name in self.attacks:
            if name == "autoattack" and changes.bounds is None:
                notes.append("AutoAttack is left out: it works in [0, 1] only.")
                continue
            for eps in sorted(set(map(float, self.eps))):
                common: dict[str, Value] = {"attack": name, "norm": self.norm, "eps": eps}
                if name == "pgd" and self.step:
                    cases += [Case("attack", {**common, "step": float(step)}) for step in self.step]
                else:
                    cases.append(Case("attack", common))
        cases += [Case("noise", {"sigma": float(sigma)}) for sigma in self.sigma]
        if self.delta and inputs.ndim == 4 and min(inputs.shape[-2:]) >= 2:
            cases += [Case("deformation", {"cut": self.cut, "delta": float(delta)}) for delta in self.delta]
        elif self.delta:
            notes.append("Deformations are left out: they need images [n, c, h, w].")
        return cases

    def _signs(self, rows: list[Row], n: int, flat: float) -> list[str]:
        curves: dict[str, dict[float, float]] = {}
        for row in rows:
            if row.quantity == "attack_accuracy":
                curve = curves.setdefault(str(row.at["attack"]), {})
                eps = float(row.at["eps"])
                curve[eps] = min(row.value, curve.get(eps, 1.0))  # the strongest of several steps
        clean = next(row.value for row in rows if row.quantity == "clean_accuracy")
        return [f"Warning sign ({sign.name}): {sign.says}" for sign in signs(curves, clean, n, still=flat)]


def _guesses(run: Run, right: Tensor) -> list[str]:
    """A word where a network that does not say what it takes answers no better than a constant would."""
    assert run.data.targets is not None
    clean = float(right.double().mean())
    constant = float(run.data.targets[: len(right)].bincount().max()) / len(right)
    if getattr(run.model, "lisse", None) is not None or clean > constant:
        return []
    return [
        f"Warning sign (normalisation): the clean accuracy {clean:.3f} is no better than that of one answer for all, "
        f"{constant:.3f}. Untrained, or given inputs that it does not expect? {DECLARE}."
    ]


def _in_unit(values: Tensor) -> bool:
    if values.dtype == torch.uint8 or not values.numel():
        return True
    low, high = values.aminmax()
    return bool(low >= 0) and bool(high <= 1)
