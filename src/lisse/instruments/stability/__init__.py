"""Stability: how a network answers to smooth deformations of an image, relative to noise of the same size."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from lisse.instruments.stability.answers import LayerAnswers, ViewPass, narrowest
from lisse.instruments.stability.rows import setting_notes, setting_rows, stability_rows
from lisse.instruments.stability.views import FieldDraws, Perturbations, Setting, keep_memory
from lisse.maths.diffeomorphism import Diffeomorphism
from lisse.maths.diffeomorphism.modes import GridRule, ModeRule, check_rules
from lisse.maths.diffeomorphism.warp import Interpolation
from lisse.networks.recorded import only_recorded
from lisse.profile import EVERYTHING, Chart, Headline, Line, Panel, Part, Quantity, Reduction, Value
from lisse.recording import parse_bytes
from lisse.run import Instrument, Run, level_option, option
from lisse.run.rows import LEAST_SAMPLES
from lisse.taps import Tap

_SAMPLES_SHOWN, _SETTINGS_SHOWN = 8, 4  # of which deformed images are kept to look at
_VARIANTS = ("statistic", "radius", "interpolation", "modes", "grid", "delta_rule", "bijective")


@dataclass(frozen=True)
class Stability(Instrument):
    """Per layer: the answer to max-entropy diffeomorphisms of the image relative to the answer to noise of their size.

    D is the squared distance that a deformation moves a representation by, over that between two samples; G the same
    for noise on the sphere whose radius is the deformations' mean size; R = D / G. Every sample has fields and noise of
    its own. Images only; several cut-offs and displacements share the clean pass.
    """

    cut: int | tuple[int, ...] = option(3, "highest frequency of the fields; several: 3,5,15")
    delta: float | tuple[float, ...] = option(
        1.0, "RMS displacement at the centre in pixels; several: 0.5,1,2", above=0
    )
    statistic: Literal["median", "mean", "coordinates"] = option(
        "median", "of squared distances over samples; coordinates: a sum of medians per coordinate"
    )
    samples: int = option(500, "most samples", quick=150, least=2)
    fields: int = option(1, "fields, and noises, per sample", least=1)
    radius: Literal["global", "sample"] = option(
        "global", "length of the noise: the mean of the deformations', or each sample's own"
    )
    interpolation: Interpolation = option("bilinear", "between the pixels")
    modes: ModeRule = option("paper", "modes below the cut, as the paper or its code")
    grid: GridRule = option("cell", "where pixels lie; linspace: as the paper's code")
    delta_rule: Literal["exact", "asymptotic"] = option("exact", "temperature from delta; asymptotic: eq. 3")
    bijective: bool = option(False, "draw fields that fold again")
    level: float = level_option()

    AT_START: ClassVar = True
    CHARTS: ClassVar[tuple[Chart, ...]] = (
        Chart(
            "stability",
            "Answer to smooth deformations and to noise of the same size",
            "Squared distances over those between two samples. Where R falls far under 1 along depth, the network has "
            "learnt to ignore smooth deformations more than noise.",
            (
                Panel("D: answer to deformations", (Line("deformation_stability"),)),
                Panel("G: answer to noise", (Line("noise_stability"),)),
                Panel("R = D / G", (Line("relative_stability"),)),
            ),
            beside="bijective_share",
        ),
        Chart(
            "deformed",
            "Samples, as they are and deformed",
            "Samples as they are, and deformed by the fields that were used, at the displacement δ.",
            (Panel(form="images", arrays=("strip/",)),),
            columns=1,
        ),
    )
    QUANTITIES: ClassVar[tuple[Quantity, ...]] = (
        Quantity(
            "relative_stability",
            "relative stability R",
            "How strongly the layer answers to smooth deformations relative to noise of the same size; far under 1 "
            "once a network has learnt to ignore them.",
            r"R = D / G",
            "[petrini2021] eq. 4",
            scale="log",
            better="lower",
            headline=Headline(
                "R_f",
                "the last block's answer to smooth deformations over its answer to noise",
                prefers={"cut": (3,), "delta": (1.0,)},
                alone="answers smooth deformations of its input {than} noise of the same size (R_f {value})",
                ratio=("deformation_stability", "noise_stability"),
                evidence="A lower R_f answers small smooth shifts of an image less than noise. Over fifteen CIFAR-10 "
                "networks that went with fewer errors; lowering it on purpose did not.",
                amounts=("samples", "fields", "level"),
            ),
            neutral=1.0,
            invariant=EVERYTHING,
            statistic="ratio of medians",
        ),
        Quantity(
            "deformation_stability",
            "answer to deformations D",
            "How far a smooth deformation moves a sample at this layer, as a share of the distance between samples.",
            r"D = \langle\|f(\tau x) - f(x)\|^2\rangle / \langle\|f(x) - f(z)\|^2\rangle",
            "[petrini2021] eq. 5",
            scale="log",
            better="lower",
            invariant=EVERYTHING,
            statistic="ratio of medians",
        ),
        Quantity(
            "noise_stability",
            "answer to noise G",
            "How far noise of the deformations' size moves a sample at this layer, as a share of the distance between "
            "samples.",
            r"G = \langle\|f(x + \eta) - f(x)\|^2\rangle / \langle\|f(x) - f(z)\|^2\rangle",
            "[petrini2021] eq. 5",
            scale="log",
            better="lower",
            invariant=EVERYTHING,
        ),
        Quantity(
            "bijective_share",
            "share of bijective fields",
            "How many of the fields are diffeomorphisms; the others fold the image, and R speaks of them too.",
            r"P(\min\det(I - \nabla\tau) > 0)",
            "[petrini2021] sec. 2.2",
            better="higher",
            invariant=EVERYTHING,
        ),
        Quantity(
            "acceptance",
            "accepted share of fields",
            "How many of the fields that were drawn do not fold: with bijective, the others are drawn again.",
            r"P(\min\det(I - \nabla\tau) > 0)",
            "[petrini2021] sec. 2.2",
            better="higher",
            invariant=EVERYTHING,
        ),
        Quantity(
            "noise_radius",
            "norm of the noise",
            "The mean distance between an image and its deformed one: how long the noise is, in values of [0, 1].",
            r"\langle\|\tau x - x\|\rangle",
            "[petrini2021] sec. 3",
            invariant=EVERYTHING,
        ),
        Quantity(
            "temperature",
            "temperature T",
            "The temperature of the fields at this displacement and image size.",
            r"T = \delta^2 / ((h^2 + w^2) S_{odd})",
            "[petrini2021] eq. 3",
            scale="log",
            invariant=EVERYTHING,
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("cut", "delta"):
            value = getattr(self, name)
            numbers = tuple(value) if isinstance(value, (tuple, list)) else (value,)
            if not numbers or len(set(numbers)) != len(numbers):
                raise ValueError(f"Stability: {name} must be a number or different numbers, got {value!r}.")
            if isinstance(value, list):
                object.__setattr__(self, name, numbers)
        for cut in self.cuts:
            check_rules("Stability", cut, self.modes, self.grid)
        if self.delta_rule == "asymptotic" and min(self.cuts) <= 1:
            raise ValueError("Stability: cut must be above 1 for delta_rule='asymptotic', got 1: ln 1 = 0.")

    SPARES: ClassVar[str] = "Give fewer samples= or fields=, or a smaller --batch."

    def seconds(self, per_sample: float, layers: int, n: int) -> float:
        """A clean forward, and a deformed and a noisy one for every field of every setting."""
        settings = len(self.cuts) * len(self.deltas)
        return min(self.samples, n) * (1 + 2 * settings * self.fields) * per_sample + 0.05 * layers * settings

    def bytes(self, run: Run) -> int:
        """Distances of every sample under every field, the references, a batch of views and what tells folds."""
        n, fields = run.take(self.samples), len(self.cuts) * len(self.deltas) * self.fields
        numbers = (
            4 * n * (1 + 2 * fields) * sum(tap.numel if self.statistic == "coordinates" else 1 for tap in run.taps)
        )
        if self.statistic == "coordinates":  # no more layers than the memory holds, and these once more as medians
            numbers = 2 * min(numbers, max(parse_bytes(run.memory), numbers // len(run.taps)))
        width = max(tap.numel for tap in run.taps)
        references = min(run.device_memory // 4, 200 * sum(tap.numel for tap in run.taps)) + 200 * width
        folds = 4 * 256 * 12 * int(4 * max(self.cuts) + 1) ** 2
        return int(2 * numbers + references + folds + 4 * 3 * run.batch * width)

    @property
    def cuts(self) -> tuple[int, ...]:
        """All cut-offs."""
        return self.cut if isinstance(self.cut, tuple) else (self.cut,)

    @property
    def deltas(self) -> tuple[float, ...]:
        """All displacements."""
        return self.delta if isinstance(self.delta, tuple) else (self.delta,)

    @property
    def _variant(self) -> dict[str, Value]:
        """What makes R another quantity, where it is not the default: such rows are not compared with others."""
        defaults = {item.name: item.default for item in dataclasses.fields(self)}
        return {name: getattr(self, name) for name in _VARIANTS if getattr(self, name) != defaults[name]}

    def fits(self, run: Run) -> str | None:
        """Networks on images: one tensor of ``[n, c, h, w]``, at least two of them, of two pixels a side or more."""
        if (reason := only_recorded(run.model, "it deforms images")) is not None:
            return reason
        inputs = run.data.form
        if not isinstance(inputs, Tensor) or inputs.ndim != 4:
            shape = f"of shape {list(inputs.shape)}" if isinstance(inputs, Tensor) else "with several parts"
            return f"it deforms images [n, c, h, w], and {run.data.name} has inputs {shape}."
        if not (inputs.is_floating_point() or inputs.dtype == torch.uint8):
            return f"it deforms images of bytes or floats, and {run.data.name} holds {inputs.dtype}."
        if min(inputs.shape[-2:]) < 2:
            return f"a picture needs at least 2 pixels a side, and {run.data.name} has {list(inputs.shape[-2:])}."
        return None if len(run) >= 2 else f"pairs need at least 2 samples, and {run.data.name} has {len(run)}."

    def part(self, run: Run) -> Part:
        """Measure."""
        n, settings = run.take(self.samples), self._settings(run)
        taps, notes = self._layers(run, len(settings))
        views = Perturbations(run, self.interpolation, self.bijective)
        draws = self._draws(run, views, settings, n)
        view_pass = ViewPass(self, run, views, settings, draws, taps, n)
        keep_memory()
        with warnings.catch_warnings():
            # Noise on the sphere leaves [0, 1] a little, and is meant to.
            warnings.filterwarnings("ignore", "Normalised: images must lie in", UserWarning)
            answers = view_pass.answers()
        if n < LEAST_SAMPLES:
            notes.append(f"{n} samples are too few for intervals.")
        ats: list[dict[str, Value]] = [
            {"cut": setting.cut, "delta": setting.delta, **self._variant} for setting in settings
        ]
        rows, silences = stability_rows(
            taps,
            answers,
            ats,
            statistic=self.statistic,
            level=self.level,
            pairs=view_pass.pairs,
            generator=functools.partial(run.generator, "stability/intervals"),
        )
        notes += silences
        arrays = {}
        for index, (setting, drawn, at) in enumerate(zip(settings, draws, ats, strict=True)):
            generator = run.generator("stability/radius")
            rows += setting_rows(setting, drawn, at, rejecting=self.bijective, level=self.level, generator=generator)
            notes += setting_notes(setting, drawn)
            if index < _SETTINGS_SHOWN:
                arrays[f"strip/{setting.name}"] = views.strip(setting, drawn, min(n, _SAMPLES_SHOWN)).numpy()
        arrays |= self._sample_arrays(run, taps, answers, ats)
        # With more memory there may be more layers.
        part = self.part_of(rows, notes, arrays, complete=len(taps) == len(run.taps))
        centre: Reduction = "ratio of means" if self.statistic == "mean" else "ratio of medians"
        meanings = (replace(item, statistic=centre) if item.statistic != "mean" else item for item in part.quantities)
        return replace(part, quantities=tuple(meanings))

    def _sample_arrays(
        self, run: Run, taps: Sequence[Tap], answers: Sequence[LayerAnswers], ats: Sequence[Mapping[str, Value]]
    ) -> dict[str, np.ndarray]:
        """Squared distances above and below the line ``[n, 2, fields]`` of what is compared sample by sample.

        At the last block, and at the setting that a headline prefers. Medians per coordinate are no number of a sample.
        """
        last = run.last_block
        if self.statistic == "coordinates" or last is None or last not in taps:
            return {}
        headline = self.QUANTITIES[0].headline
        assert isinstance(headline, Headline)
        setting = min(
            range(len(ats)), key=lambda index: [ats[index][key] not in first for key, first in headline.prefers.items()]
        )
        layer = answers[list(taps).index(last)]
        above, noise = layer.deformed[:, setting].double(), layer.noisy[:, setting].double()
        below = {"relative_stability": noise, "deformation_stability": layer.apart.double()[:, None].expand_as(above)}
        return {f"samples/{name}": torch.stack([above, other], 1).numpy() for name, other in below.items()}

    def _settings(self, run: Run) -> list[Setting]:
        assert isinstance(run.data.form, Tensor)  # fits() has looked
        h, w = run.data.form.shape[-2:]
        settings = []
        for cut, delta in itertools.product(self.cuts, self.deltas):
            ensemble = Diffeomorphism((h, w), cut, modes=self.modes, grid=self.grid)
            temperature = ensemble.temperature(float(delta), asymptotic=self.delta_rule == "asymptotic")
            settings.append(Setting(cut, float(delta), ensemble, float(temperature)))
        return settings

    def _layers(self, run: Run, settings: int) -> tuple[list[Tap], list[str]]:
        """The layers that can be measured, and notes on the others."""
        notes = []
        if run.readout is not None:
            notes.append(f"Distances are between whole activations, not between readouts ({run.readout}).")
        if any(tap.mixes for tap in run.taps):
            notes.append(
                "A sample's activation changes with the samples beside it (batch statistics, or random numbers in the "
                f"network): R is that of batches of {run.batch}."
            )
        if self.statistic != "coordinates":
            return list(run.taps), notes
        # Medians per coordinate need every sample's differences at once: the narrowest layers that fit.
        numbers = 4 * run.take(self.samples) * (1 + 2 * settings * self.fields)
        least = min(tap.numel for tap in run.taps)
        narrow = narrowest(run.taps, max(parse_bytes(run.memory) // numbers, least))
        wide = [tap.name for tap in run.taps if tap.name not in narrow]
        if wide:
            notes.append(
                f"Left out, because the differences of all coordinates need more than {run.memory}: {', '.join(wide)}."
            )
        return [tap for tap in run.taps if tap.name in narrow], notes

    def _draws(self, run: Run, views: Perturbations, settings: Sequence[Setting], n: int) -> list[FieldDraws]:
        """Per setting, what a pass over the images alone shows of all samples."""
        task = f"{self.name}: fields"
        return [
            FieldDraws(
                **run.blocks(
                    self, (setting.name, "draws"), n, functools.partial(views.draws, setting, self.fields), task=task
                )
            )
            for setting in settings
        ]
