"""Robustness: how many answers stay right when images are corrupted, attacked, made noisy or deformed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from lisse.data.corrupted import check_corruptions, frost_textures
from lisse.instruments.origin import box_width, inputs_of
from lisse.instruments.robustness.changes import Attack, Case, Changes
from lisse.instruments.robustness.rows import (
    accuracy_rows,
    certified_rows,
    corruption_rows,
    distance_rows,
    sample_errors,
)
from lisse.maths.corruption.parameters import Strength, Variant
from lisse.networks.answers import are_classes, logits_of
from lisse.networks.attack import attack_distance, signs
from lisse.networks.attack.checks import DECLARE, Bounds
from lisse.networks.attack.sanity import FLAT
from lisse.networks.bounds import certified_radius, least_refine
from lisse.networks.recorded import only_recorded
from lisse.profile import EVERYTHING, LAYERS, Chart, Headline, Line, Panel, Part, Quantity, Row, Value
from lisse.run import Instrument, Run, level_option, option
from lisse.taps import feed, is_shortage, prepared, still

# Radii at which published networks begin to fall and have fallen: of colour images, and of grey ones such as MNIST.
_COLOUR, _GREY = (0.5 / 255, 1 / 255, 2 / 255, 4 / 255, 8 / 255), (0.02, 0.05, 0.1, 0.2, 0.3)

_VACUOUS = 1e3  # times the certified distance: an attack's from which on that says nothing


@dataclass(frozen=True)
class Robustness(Instrument):
    """Accuracy under corruption and under attack, against noise and smooth deformations of the same images.

    Every network sees the same changed images, but for those of an attack, which are its own. Accuracy under an attack
    is an upper bound of the accuracy under the worst one.
    """

    corruptions: tuple[str, ...] = option(
        ("main",),
        "names, or main, extra, all, none",
        quick=("gaussian_noise", "defocus_blur", "fog", "jpeg_compression"),
    )
    severities: tuple[int, ...] = option((1, 2, 3, 4, 5), "severities, 1 to 5", quick=(1, 3, 5), usual=(1, 3, 5))
    strength: Strength = option("cifar", "parameters of CIFAR-10-C or of ImageNet-C")
    variant: Variant = option("hendrycks", "corruptions as published, or without its slips")
    attacks: tuple[Attack, ...] = option(
        ("noise", "fgsm", "pgd"), "noise, fgsm, pgd, search (blind), autoattack", quick=("noise", "fgsm")
    )
    norm: Literal["linf", "l2"] = option("linf", "the ball of the attacks")
    eps: tuple[float, ...] | None = option(
        None, "its radii, in the unit of the input; none: up to 8/255, for grey images up to 0.3"
    )
    step: tuple[float, ...] = option((), "steps of pgd; without, 2.5 eps / steps")
    steps: int = option(10, "how many steps pgd takes", least=1)
    random_start: bool = option(False, "start pgd at a random point of the ball")
    queries: int = option(20, "points that search tries", least=1)
    clip: bool = option(True, "keep attacked and noisy images in [0, 1]")
    sigma: tuple[float, ...] = option((0.02, 0.05, 0.1, 0.2), "Gaussian noise, by its std", quick=(0.05, 0.1, 0.2))
    delta: tuple[float, ...] = option((0.5, 1.0, 2.0), "deformations, pixels (RMS)")
    cut: int = option(3, "their highest frequency", least=1)
    samples: int = option(1000, "most samples that are changed", quick=64, usual=300, least=1)
    clean: int | None = option(None, "most samples for clean accuracy; none: all", quick=300, usual=2000, least=1)
    distances: int = option(
        200, "samples whose distance to an attack is searched; 0 leaves it out", quick=32, usual=100, least=0
    )
    certified: int = option(
        0, "samples whose distance to a wrong answer is proved from below; 0 leaves it out", usual=8, least=0
    )
    refine: int = option(
        1024, "effort of this proof: most units of a layer that it looks at one by one", usual=64, least=0
    )
    level: float = level_option()

    LEFT_OUT: ClassVar = {
        "quick": "Left out by --quick: all but four corruptions, two of their severities, and the pgd attack.",
        "usual": "Left out at the usual size: severities 2 and 4. --full has them.",
    }
    CHARTS: ClassVar[tuple[Chart, ...]] = (
        Chart(
            "robustness",
            "Accuracy when the input gets worse",
            "Bands are intervals over samples. Dotted: clean accuracy. An attack should do more harm than noise of its "
            "size, and PGD more than FGSM.",
            (
                Panel("under attack", (Line("attack_accuracy"),), over="eps", base="clean_accuracy", label="ε"),
                Panel(
                    "answers that an attack does not reach",
                    (Line("attack_survival", "not reached"), Line("certified_accuracy", "proved")),
                    over="eps",
                    label="ε",
                ),
                Panel("under PGD, by its step", (Line("attack_accuracy"),), over="step", base="clean_accuracy"),
                Panel("with Gaussian noise", (Line("noise_accuracy"),), over="sigma", base="clean_accuracy", label="σ"),
                Panel(
                    "after a smooth deformation",
                    (Line("deformation_accuracy"),),
                    over="delta",
                    base="clean_accuracy",
                    label="δ, pixels",
                ),
                Panel(
                    "under corruption, mean",
                    (Line("corruption_accuracy", mean="corruption"),),
                    over="severity",
                    base="clean_accuracy",
                ),
            ),
            limits=(0.0, 1.0),
        ),
        Chart(
            "corruptions",
            "Accuracy under corruption",
            "The mean over severities, with its interval over images. Dotted: clean accuracy.",
            (
                Panel(
                    lines=(Line("mean_accuracy"),),
                    form="dots",
                    over="corruption",
                    base="clean_accuracy",
                    label="accuracy",
                ),
            ),
            columns=1,
            limits=(0.0, 1.0),
        ),
    )
    QUANTITIES: ClassVar[tuple[Quantity, ...]] = (
        Quantity(
            "clean_accuracy",
            "clean accuracy",
            "The share of samples classified right as they are.",
            r"\frac1n\sum_i 1[\hat y(x_i) = y_i]",
            better="higher",
            headline=Headline(
                "accuracy",
                "the share of samples classified right as they are",
                "more accurate",
                prefers={"attack": ("pgd", "fgsm"), "corruption": ("all", "gaussian_noise")},
                alone="has an accuracy of {value} on these samples",
                evidence="It is right more often on data like these; of smoothness that says nothing.",
                outcome="Test error",
            ),
            invariant=EVERYTHING,
        ),
        Quantity(
            "corruption_accuracy",
            "accuracy under corruption",
            "The share of corrupted images classified right, at one severity.",
            r"\frac1n\sum_i 1[\hat y(c_s(x_i)) = y_i]",
            "[hendrycks2019] sec. 4",
            better="higher",
            lead=True,
            invariant=EVERYTHING,
        ),
        Quantity(
            "mean_accuracy",
            "accuracy over severities",
            "The mean accuracy over the severities of a corruption.",
            r"a_c = \frac1S\sum_s a_{c,s}",
            "[chen2024] table 2",
            better="higher",
            lead=True,
            invariant=EVERYTHING,
        ),
        Quantity(
            "drop",
            "drop",
            "By how much the mean accuracy over severities is below the clean accuracy.",
            r"a_0 - a_c",
            "[chen2024] table 2",
            better="lower",
            invariant=EVERYTHING,
        ),
        Quantity(
            "mean_corruption_error",
            "mean corruption error",
            "The mean error over corruptions and severities, not divided by a baseline's.",
            r"1 - \frac1C\sum_c a_c",
            "[hendrycks2019] sec. 4",
            better="lower",
            headline=Headline(
                "mCE",
                "the mean error over corruptions and severities, not divided by a baseline's",
                "more robust to corruptions",
                evidence="It errs less under noise, blur, weather and compression; of an attacker that says nothing.",
                outcome="What corruptions add to the error",
                over_error=True,
            ),
            invariant=EVERYTHING,
        ),
        Quantity(
            "attack_accuracy",
            "accuracy under attack",
            "The share of samples still classified right after an attack of size ε; noise of the same size beside it.",
            r"\frac1n\sum_i 1[\hat y(x_i + \delta_i) = y_i], \; \|\delta_i\| \le \epsilon",
            "[madry2018] sec. 2.1",
            better="higher",
            lead=True,
            invariant=LAYERS,
        ),
        Quantity(
            "attack_distance",
            "distance of the attack",
            "The size of an attack that half of the answers do not survive: the smallest that a search found for each "
            "sample, 0 where the answer is wrong already. A stronger attack may need less.",
            r"\operatorname{median}_i \min\{\|\delta\| : \hat y(x_i + \delta) \ne y_i\}",
            "[madry2018] sec. 2.1",
            better="higher",
            headline=Headline(
                "attack",
                "the size of a screening attack (PGD, a few steps) that half of the answers do not survive, from above",
                "more robust to a screening gradient attack",
                evidence="Changes chosen to mislead it must be larger, as far as PGD of a few steps can tell; a strong "
                "attack such as AutoAttack decides. Of noise, blur and weather that says nothing.",
                outcome="Distance to an attack that succeeds",
            ),
            invariant=EVERYTHING,
            statistic="median",
        ),
        Quantity(
            "attack_survival",
            "answers out of the attack's reach",
            "The share of samples that are classified right and for which the search found no change up to this size "
            "that loses the answer.",
            r"\frac1n\sum_i 1[\hat r_i > \epsilon]",
            better="higher",
            invariant=EVERYTHING,
        ),
        Quantity(
            "certified_radius",
            "certified distance to a wrong answer",
            "The size below which no change at all loses the answer, for half of the samples: proved, so from below.",
            r"\operatorname{median}_i r_i, \quad \|\delta\| \le r_i \Rightarrow \hat y(x_i + \delta) = y_i",
            "[zhang2018]",
            scale="log",
            better="higher",
        ),
        Quantity(
            "certified_accuracy",
            "certified accuracy",
            "The share of samples that are classified right under every change up to this size, whoever makes it: "
            "proved, so from below.",
            r"\frac1n\sum_i 1[r_i \ge \epsilon]",
            "[zhang2018]",
            better="higher",
        ),
        Quantity(
            "noise_accuracy",
            "accuracy under noise",
            "The share of samples classified right with Gaussian noise of standard deviation σ added.",
            r"\frac1n\sum_i 1[\hat y(x_i + \sigma \eta_i) = y_i]",
            better="higher",
            invariant=EVERYTHING,
        ),
        Quantity(
            "deformation_accuracy",
            "accuracy under deformation",
            "The share of images classified right after a smooth random deformation by δ pixels.",
            r"\frac1n\sum_i 1[\hat y(\tau_i x_i) = y_i]",
            "[petrini2021] eq. 2",
            better="higher",
            lead=True,
            invariant=EVERYTHING,
        ),
    )

    def __post_init__(self) -> None:
        for name in ("corruptions", "severities", "attacks", "eps", "step", "sigma", "delta"):
            value = getattr(self, name)  # one word or number, a list and None are what they look like
            if name == "eps" and value is None:
                continue
            entries = () if value is None else (value,) if isinstance(value, (str, int, float)) else tuple(value)
            object.__setattr__(self, name, entries)
        if self.corruptions not in ((), ("none",)):
            check_corruptions("Robustness", self.corruptions)
        bad = [s for s in self.severities if isinstance(s, bool) or not isinstance(s, int) or not 1 <= s <= 5]
        if bad or not self.severities:
            raise ValueError(f"Robustness: severities must be integers from 1 to 5, got {self.severities!r}.")
        super().__post_init__()
        for name in ("eps", "step", "sigma", "delta"):
            if any(not 0 <= float(value) < float("inf") for value in getattr(self, name) or ()):
                raise ValueError(f"Robustness: {name} must hold numbers of at least 0, got {getattr(self, name)!r}.")

    SPARES: ClassVar[str] = "Give fewer samples=, or a smaller --batch."

    def seconds(self, per_sample: float, layers: int, n: int) -> float:
        """Forward passes over the samples: a gradient counts as two more, and a corruption takes its own time."""
        passes = {"noise": 1, "fgsm": 3, "pgd": 3 * self.steps, "search": self.queries, "autoattack": 500}
        attacks = sum(passes[name] for name in self.attacks) * len(_COLOUR if self.eps is None else self.eps)
        corruptions = 1.5 * len(self._names()) * len(self.severities)
        changed = min(self.samples, n) * (corruptions + attacks + len(self.sigma) + len(self.delta))
        changed += min(self.distances, n) * (6 * 3 * self.steps + 60) * self._climbs
        return per_sample * (changed + max(min(self.samples, n), min(self.clean or n, n)))

    def passes(self, run: Run) -> int:
        """The samples whose clean answers are counted: at least those that are changed."""
        return max(run.take(self.samples), run.take(self.clean))

    def accuracy(self, part: Part) -> Row | None:
        """The clean accuracy."""
        return next((row for row in part.rows if row.quantity == "clean_accuracy"), None)

    def bytes(self, run: Run) -> int:
        """All samples under one corruption, and the graph of an attack on a batch."""
        form, widths = run.data.form, [tap.numel for tap in run.taps]
        pixels = form[0].numel() if isinstance(form, Tensor) and len(form) else 0
        corrupted = 4 * 4 * run.take(self.samples) * pixels if self._names() else 0
        climbed = 4 * run.batch * (12 * sum(widths) + 12 * pixels) if self._climbs else 4 * 4 * run.batch * max(widths)
        return corrupted + climbed

    def fits(self, run: Run) -> str | None:
        """Classifiers on images or vectors with labels."""
        if (reason := only_recorded(run.model, "it changes inputs")) is not None:
            return reason
        inputs, targets = run.data.form, run.data.targets
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
                logits = logits_of(feed(run.model, prepared(run.model, batch.inputs)), len(batch.inputs))
        except (TypeError, ValueError) as error:
            return f"the model gives no logits ({str(error).removeprefix('logits_of: ')})"
        if not are_classes(targets, logits.shape[1]):
            return (
                f"the model has {logits.shape[1]} classes, and {run.data.name} labels from {int(targets.min())} to "
                f"{int(targets.max())}."
            )
        return None

    def part(self, run: Run) -> Part:
        """Measure."""
        notes: list[str] = []
        n, total = run.take(self.samples), self.passes(run)
        if n < len(run):
            more = f"; clean accuracy is that of the first {total:,}" if total > n else ""
            notes.append(f"The first {n:,} of {len(run):,} samples{more}.")
        changes = self._changes(run, n, notes)
        cases = self._cases(run, changes, notes)
        right: dict[Case, Tensor] = {}
        clean, flat = torch.empty(0, dtype=torch.bool), 0.0
        for index, case in enumerate(cases):
            run.tell(self.name, index, len(cases), "ways")
            answers = changes.right(case)
            right[case] = answers["right"].bool()[:n]  # of the clean ones, those that are changed
            if case.axis == "clean":
                clean = answers["right"].bool()
            if case.at.get("attack") == "fgsm" and float(case.at["eps"]) > 0:
                flat = max(flat, float(answers["still"].double().mean()))
        run.tell(self.name, len(cases), len(cases), "ways")
        counted = {**right, cases[0]: clean}
        rows = [*accuracy_rows(counted, level=self.level), *corruption_rows(right, run, level=self.level)]
        arrays = {f"right/{case.name}": hits.numpy() for case, hits in counted.items()}
        arrays["samples/clean_accuracy"] = clean.double().numpy()
        errors = sample_errors(right)
        if errors is not None:
            arrays["samples/mean_corruption_error"] = errors.numpy()
        if self._climbs and self.distances and flat > FLAT:
            notes.append(
                f"No distance of the attack: {flat:.0%} of the samples have no gradient at all, and a search that "
                "climbs it finds nothing there, however near a wrong answer is. Probabilities that are 0 or 1 to the "
                "last digit do that: measure the logits."
            )
        elif self._climbs and self.distances:
            distances, reach = self._attack_distances(run, changes.bounds)
            rows += distance_rows(distances, reach, run, norm=self.norm, level=self.level)
            arrays["samples/attack_distance"] = distances.clamp_max(reach).numpy()
        if self.certified:
            rows += self._certified_rows(run, arrays, notes)
        notes += _guesses(run, clean)
        notes += self._signs(rows, n, flat, float(right[cases[0]].double().mean()))
        # Frost's textures may be there the next time.
        complete = changes.textures is not None or "frost" not in self._names()
        return self.part_of(rows, notes, arrays, complete=complete)

    # -- how far an attack has to go -------------------------------------------------------------------------------

    @property
    def _climbs(self) -> bool:
        """Whether there is an attack that needs gradients: a network without them is not searched."""
        return bool({"fgsm", "pgd", "autoattack"} & set(self.attacks))

    def _attack_distances(self, run: Run, bounds: Bounds | None) -> tuple[Tensor, float]:
        """Distances ``[n]`` of samples, and the largest that was tried: the width of the box.

        Where there is no box, that which holds the samples.
        """
        n = run.take(self.distances)
        inputs = inputs_of(run, n)
        if bounds is not None and _in_unit(inputs):
            reach = (bounds[1] - bounds[0]) * (1.0 if self.norm == "linf" else inputs.shape[1] ** 0.5)
        else:
            bounds, reach = None, box_width(inputs)[self.norm]

        def searched(start: int, stop: int) -> dict[str, Tensor]:
            (batch,) = run.data.batches(stop - start, start=start, stop=stop, device=run.device)
            distances = attack_distance(
                run.model, batch.inputs, batch.targets, norm=self.norm, largest=reach, steps=self.steps, bounds=bounds
            )
            return {"distances": distances.cpu()}

        task = f"{self.name}: distance of the attack"
        return run.blocks(self, "attack distance", n, searched, task=task)["distances"], reach

    def _certified_rows(self, run: Run, arrays: dict[str, np.ndarray], notes: list[str]) -> list[Row]:
        """What is proved of the first samples, at the sizes of the attacks."""
        n = run.take(self.certified)
        reach = box_width(inputs_of(run, n))[self.norm]
        form = run.data.form
        if not isinstance(form, Tensor):
            notes.append("Nothing is certified: the inputs are not one tensor.")
            return []

        def proved(start: int, stop: int) -> dict[str, Tensor]:
            (batch,) = run.data.batches(stop - start, start=start, stop=stop, device=run.device)
            assert isinstance(batch.inputs, Tensor)
            assert batch.targets is not None
            radii = certified_radius(
                run.model, batch.inputs, batch.targets, norm=self.norm, largest=reach, refine=self.refine
            )
            return {"radii": radii.cpu()}

        try:
            least = least_refine(run.model, tuple(form.shape[1:]))
            if 0 < self.refine < least:
                notes.append(
                    f"Nothing is certified: a network and inputs of this size ask for refine={least:.0f} (it is "
                    f"{self.refine}), and then for minutes a sample."
                )
                return []
            radii = run.blocks(self, "certified", n, proved, task=f"{self.name}: certified radius", step=16)["radii"]
        except TypeError as refusal:
            notes.append(f"Nothing is certified: {str(refusal).removeprefix('Relaxation: ')}")
            return []
        arrays["samples/certified_radius"] = radii.numpy()
        distances = torch.as_tensor(arrays.get("samples/attack_distance", np.zeros(0)))[:n]
        if len(distances) == n and float(radii.median()) < float(distances.median()) / _VACUOUS:
            notes.append(
                f"The proved radius, {float(radii.median()):.2g} for half of {n} samples, says nothing beside "
                f"{float(distances.median()):.2g} of the attack: intervals grow with every layer."
            )
            return []
        return certified_rows(radii, self._sizes(run), run, norm=self.norm, level=self.level)

    def _sizes(self, run: Run) -> list[float]:
        """The radii that were asked for, or those that fit the data."""
        inputs = run.data.form
        grey = isinstance(inputs, Tensor) and inputs.ndim == 4 and inputs.shape[1] == 1
        return sorted(set(map(float, (_GREY if grey else _COLOUR) if self.eps is None else self.eps)))

    # -- the cases -------------------------------------------------------------------------------------------------

    def _changes(self, run: Run, n: int, notes: list[str]) -> Changes:
        inputs = run.data.form
        assert isinstance(inputs, Tensor)
        bounds: tuple[float, float] | None = (0.0, 1.0) if self.clip else None
        if inputs.is_floating_point() and bounds is not None and not _in_unit(run.data.take(n).inputs):
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
            except ValueError as error:
                if is_shortage(error):
                    raise
                notes.append(f"frost is left out: its textures are missing ({error})")
        return Changes(run, self, n, textures, bounds)

    def _names(self) -> tuple[str, ...]:
        return () if self.corruptions in ((), ("none",)) else check_corruptions("Robustness", self.corruptions)

    def _cases(self, run: Run, changes: Changes, notes: list[str]) -> list[Case]:
        """Clean first, then every way of changing the samples, in the order of the options."""
        inputs = run.data.form
        assert isinstance(inputs, Tensor)
        cases = [Case("clean")]
        pictures = inputs.ndim == 4 and inputs.shape[1] in (1, 3) and min(inputs.shape[-2:]) >= 4
        names = [name for name in self._names() if name != "frost" or changes.textures is not None]
        if names and not (pictures and (inputs.dtype == torch.uint8 or _in_unit(run.data.take(changes.n).inputs))):
            notes.append("Corruptions are left out: they need images of 1 or 3 channels in [0, 1], 4 pixels or more.")
            names = []
        cases += [Case("corruption", {"corruption": c, "severity": s}) for c in names for s in self.severities]
        for name in self.attacks:
            if name == "autoattack" and changes.bounds is None:
                notes.append("AutoAttack is left out: it works in [0, 1] only.")
                continue
            for eps in self._sizes(run):
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

    def _signs(self, rows: list[Row], n: int, flat: float, clean: float) -> list[str]:
        curves: dict[str, dict[float, float]] = {}
        for row in rows:
            if row.quantity == "attack_accuracy":
                curve = curves.setdefault(str(row.at["attack"]), {})
                eps = float(row.at["eps"])
                curve[eps] = min(row.value, curve.get(eps, 1.0))  # the strongest of several steps
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


def _in_unit(values: Tensor | dict[str, Tensor]) -> bool:
    assert isinstance(values, Tensor)  # fits() has looked
    if values.dtype == torch.uint8 or not values.numel():
        return True
    low, high = values.aminmax()
    return bool(low >= 0) and bool(high <= 1)
