"""Stability: how a network answers to smooth deformations of an image, relative to noise of the same size."""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from lisse.data import Batch
from lisse.instruments.stability_rows import Found, setting_rows, stability_rows
from lisse.instruments.stability_views import Drawn, Setting, Views, keep_memory, partners
from lisse.maths.diffeomorphism import INTERPOLATIONS, Diffeomorphism
from lisse.maths.diffeomorphism.modes import GridRule, ModeRule, check_rules
from lisse.maths.diffeomorphism.warp import Interpolation
from lisse.maths.relative_stability import squared_distances
from lisse.profile import Part, Quantity, Value
from lisse.recording import parse_bytes
from lisse.run import Instrument, Run
from lisse.taps import Tap, feed, prepared, still, tapped

Statistic = Literal["median", "mean", "coordinates"]
Radius = Literal["global", "sample"]
DeltaRule = Literal["exact", "asymptotic"]
_REFERENCES = 50  # samples z that stand on the other side of the pairs x ≠ z
_BLOCK = 500  # samples between two points from which an interrupted run goes on
_QUICK = 100
_SHOWN, _SETTINGS_SHOWN = 8, 4  # samples, and settings, of which deformed images are kept to look at
_VARIANTS = ("statistic", "radius", "interpolation", "modes", "grid", "delta_rule", "bijective")
_LEAST_SAMPLES = 8  # a bootstrap of fewer does not cover what it says


@dataclass(frozen=True)
class Stability(Instrument):
    """Per layer: the answer to max-entropy diffeomorphisms of the image relative to the answer to noise of their size.

    D is the squared distance that a deformation moves a representation by, over that between two samples; G the same
    for noise on the sphere whose radius is the deformations' mean size; R = D / G. Every sample has fields and noise of
    its own. Images only; several cut-offs and displacements share the clean pass.
    """

    cut: int | tuple[int, ...] = field(default=3, metadata={"help": "highest frequency of the fields; several: 3,5,15"})
    delta: float | tuple[float, ...] = field(
        default=1.0, metadata={"help": "RMS displacement at the centre in pixels; several: 0.5,1,2"}
    )
    statistic: Statistic = field(
        default="median",
        metadata={"help": "of squared distances over samples; coordinates: a sum of medians per coordinate"},
    )
    samples: int = field(default=500, metadata={"help": "most samples"})
    fields: int = field(default=1, metadata={"help": "fields, and noises, per sample"})
    radius: Radius = field(
        default="global", metadata={"help": "length of the noise: the mean of the deformations', or each sample's own"}
    )
    interpolation: Interpolation = field(default="bilinear", metadata={"help": "between the pixels"})
    modes: ModeRule = field(default="paper", metadata={"help": "modes below the cut, as the paper or its code"})
    grid: GridRule = field(default="cell", metadata={"help": "where pixels lie; linspace: as the paper's code"})
    delta_rule: DeltaRule = field(default="exact", metadata={"help": "temperature from delta; asymptotic: eq. 3"})
    bijective: bool = field(default=False, metadata={"help": "draw fields that fold again"})
    level: float = field(default=0.95, metadata={"help": "confidence level of the intervals"})
    quick: bool = field(default=False, metadata={"help": "at most 100 samples, no intervals"})

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
        ),
        Quantity(
            "deformation_stability",
            "answer to deformations D",
            "How far a smooth deformation moves a sample at this layer, as a share of the distance between samples.",
            r"D = \langle\|f(\tau x) - f(x)\|^2\rangle / \langle\|f(x) - f(z)\|^2\rangle",
            "[petrini2021] eq. 5",
            scale="log",
            better="lower",
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
        ),
        Quantity(
            "bijective_share",
            "share of bijective fields",
            "How many of the fields are diffeomorphisms; the others fold the image, and R speaks of them too.",
            r"P(\min\det(I - \nabla\tau) > 0)",
            "[petrini2021] sec. 2.2",
            better="higher",
        ),
        Quantity(
            "acceptance",
            "accepted share of fields",
            "How many of the fields that were drawn do not fold: with bijective, the others are drawn again.",
            r"P(\min\det(I - \nabla\tau) > 0)",
            "[petrini2021] sec. 2.2",
            better="higher",
        ),
        Quantity(
            "noise_radius",
            "norm of the noise",
            "The mean distance between an image and its deformed one: how long the noise is, in values of [0, 1].",
            r"\langle\|\tau x - x\|\rangle",
            "[petrini2021] sec. 3",
        ),
        Quantity(
            "temperature",
            "temperature T",
            "The temperature of the fields at this displacement and image size.",
            r"T = \delta^2 / ((h^2 + w^2) S_{odd})",
            "[petrini2021] eq. 3",
            scale="log",
        ),
    )

    def __post_init__(self) -> None:
        for name in ("cut", "delta"):
            given = getattr(self, name)
            some = tuple(given) if isinstance(given, (tuple, list)) else (given,)
            if not some or len(set(some)) != len(some):
                raise ValueError(f"Stability: {name} must be a number or different numbers, got {given!r}.")
            if isinstance(given, list):
                object.__setattr__(self, name, some)
        for cut in self.cuts:
            check_rules("Stability", cut, self.modes, self.grid)
        for delta in self.deltas:
            if isinstance(delta, bool) or not isinstance(delta, (int, float)) or not 0 < delta < math.inf:
                raise ValueError(f"Stability: delta must be positive and finite, in pixels, got {delta!r}.")
        for name, allowed in (
            ("statistic", get_args(Statistic)),
            ("radius", get_args(Radius)),
            ("interpolation", INTERPOLATIONS),
            ("delta_rule", get_args(DeltaRule)),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"Stability: {name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}.")
        if self.delta_rule == "asymptotic" and min(self.cuts) <= 1:
            raise ValueError("Stability: cut must be above 1 for delta_rule='asymptotic', got 1: ln 1 = 0.")
        for name, least in (("samples", 2), ("fields", 1)):
            given = getattr(self, name)
            if isinstance(given, bool) or not isinstance(given, int) or given < least:
                raise ValueError(f"Stability: {name} must be an integer of at least {least}, got {given!r}.")
        if not 0 < self.level < 1:
            raise ValueError(f"Stability: level must lie in (0, 1), got {self.level}.")

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
        known = {each.name: each.default for each in dataclasses.fields(self)}
        return {name: getattr(self, name) for name in _VARIANTS if getattr(self, name) != known[name]}

    def fits(self, run: Run) -> str | None:
        """Networks on images: one tensor of ``[n, c, h, w]``, at least two of them, of two pixels a side or more."""
        inputs = run.data.inputs
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
        settings = self._settings(run)
        taps, notes = self._layers(run, len(settings))
        n = run.take(min(self.samples, _QUICK) if self.quick else self.samples)
        views = Views(run, self.interpolation, self.bijective)
        drawn = self._drawn(run, views, settings, n)
        chosen = self._references(run, taps, n)
        keep_memory()
        with warnings.catch_warnings():
            # Noise on the sphere leaves [0, 1] a little, and is meant to.
            warnings.filterwarnings("ignore", "Normalised: images must lie in", UserWarning)
            found = self._found(run, views, settings, drawn, taps, chosen, n)
        ats: list[dict[str, Value]] = [{"cut": each.cut, "delta": each.delta, **self._variant} for each in settings]
        interval = not self.quick and n >= _LEAST_SAMPLES
        rows, said = stability_rows(
            taps,
            found,
            ats,
            statistic=self.statistic,
            level=self.level,
            interval=interval,
            pairs=chosen[partners(chosen, 0, n)],
            generator=functools.partial(run.generator, "stability/intervals"),
        )
        for setting, some, at in zip(settings, drawn, ats, strict=True):
            more, told = setting_rows(
                setting,
                some,
                at,
                rejecting=self.bijective,
                level=self.level,
                interval=interval,
                generator=run.generator("stability/radius"),
            )
            rows, said = rows + more, said + told
        if not self.quick and not interval:
            notes.append(f"{n} samples are too few for intervals.")
        strips = zip(settings[:_SETTINGS_SHOWN], drawn, strict=False)
        arrays = {f"strip/{each.name}": views.strip(each, some, min(n, _SHOWN)).numpy() for each, some in strips}
        return Part(self.name, tuple(rows), self.QUANTITIES, (*notes, *said), arrays)

    def _settings(self, run: Run) -> list[Setting]:
        assert isinstance(run.data.inputs, Tensor)  # fits() has looked
        h, w = run.data.inputs.shape[-2:]
        found = []
        for cut in self.cuts:
            ensemble = Diffeomorphism((h, w), cut, modes=self.modes, grid=self.grid)
            for delta in self.deltas:
                heat = float(ensemble.temperature(float(delta), asymptotic=self.delta_rule == "asymptotic"))
                found.append(Setting(cut, float(delta), ensemble, heat))
        return found

    def _layers(self, run: Run, settings: int) -> tuple[list[Tap], list[str]]:
        """The layers that can be measured, and notes on the others."""
        notes = []
        if run.readout is not None:
            notes.append(f"Distances are between whole activations, not between readouts ({run.readout}).")
        if any(tap.mixes for tap in run.taps):
            notes.append(
                "A sample's activation changes with the samples beside it (batch statistics, or random numbers in the "
                "network): R is that of batches of "
                f"{run.batch}."
            )
        if self.statistic != "coordinates":
            return list(run.taps), notes
        # Medians per coordinate need every sample's differences at once: the narrowest layers that fit.
        n, left = run.take(self.samples), parse_bytes(run.memory)
        kept: set[str] = set()
        for tap in sorted(run.taps, key=lambda tap: tap.numel):
            left -= 4 * n * tap.numel * (1 + 2 * settings * self.fields)
            if left >= 0 or not kept:
                kept.add(tap.name)
        out = [tap.name for tap in run.taps if tap.name not in kept]
        if out:
            notes.append(
                f"Left out, because the differences of all coordinates need more than {run.memory}: {', '.join(out)}."
            )
        return [tap for tap in run.taps if tap.name in kept], notes

    def _blocks(self, run: Run, n: int) -> list[tuple[int, int]]:
        """Ranges of samples, whole batches each: batches are the same as without them."""
        step = max(1, _BLOCK // run.batch) * run.batch
        return [(start, min(start + step, n)) for start in range(0, n, step)]

    # -- the images alone ------------------------------------------------------------------------------------------

    def _drawn(self, run: Run, views: Views, settings: Sequence[Setting], n: int) -> list[Drawn]:
        """Per setting, of all samples: sizes of the deformations, rejected fields, which are bijective."""
        found: list[list[dict[str, Tensor]]] = [[] for _ in settings]
        for start, stop in self._blocks(run, n):
            for kept, setting in zip(found, settings, strict=True):

                def make(setting: Setting = setting, start: int = start, stop: int = stop) -> dict[str, Tensor]:
                    return vars(views.drawn(setting, self.fields, start, stop))

                kept.append(run.piece(self, ("drawn", setting.cut, setting.delta, start, stop), make))
            run.tell(f"{self.name}: fields", stop, n, "samples")
        return [Drawn(**{key: torch.cat([some[key] for some in kept]) for key in kept[0]}) for kept in found]

    # -- the network -----------------------------------------------------------------------------------------------

    def _references(self, run: Run, taps: Sequence[Tap], n: int) -> Tensor:
        """The samples z that stand on the other side of the pairs: as many as the memory holds."""
        budget = parse_bytes(run.memory) // (4 * 4 * sum(tap.numel for tap in taps))
        chosen = torch.randperm(n, generator=run.generator("stability/references"))
        return chosen[: max(2, min(_REFERENCES, n, budget))].sort().values

    def _found(
        self,
        run: Run,
        views: Views,
        settings: Sequence[Setting],
        drawn: Sequence[Drawn],
        taps: Sequence[Tap],
        chosen: Tensor,
        n: int,
    ) -> list[Found]:
        """Per layer, of all samples."""
        references = functools.cache(lambda: _activations(run, views, taps, chosen))
        blocks = []
        for start, stop in self._blocks(run, n):
            make = functools.partial(self._block, run, views, settings, drawn, taps, chosen, references, start, stop)
            blocks.append(run.piece(self, ("views", start, stop), make))
            run.tell(f"{self.name}: views", stop, n, "samples")
        return [
            Found(
                *(torch.cat([block[f"{side}/{place}"] for block in blocks]) for side in ("deformed", "noisy", "apart"))
            )
            for place in range(len(taps))
        ]

    def _block(
        self,
        run: Run,
        views: Views,
        settings: Sequence[Setting],
        drawn: Sequence[Drawn],
        taps: Sequence[Tap],
        chosen: Tensor,
        references: Callable[[], Mapping[str, Tensor]],
        start: int,
        stop: int,
    ) -> dict[str, Tensor]:
        """``deformed/l``, ``noisy/l`` ``[b, settings, fields(, d)]`` and ``apart/l`` ``[b(, d)]`` of the l-th layer."""
        others = references()
        apart: dict[str, list[Tensor]] = {tap.name: [] for tap in taps}

        def reduce(tap: Tap, clean: Tensor, view: Tensor, rows: Tensor | None = None) -> Tensor:
            if self.statistic == "coordinates":
                other = view if rows is None else view[rows.to(view.device)]
                found = (clean.float() if clean.dtype != torch.float64 else clean).flatten(1) - other.flatten(1)
            else:
                found = squared_distances(clean, view, rows=rows)
            # The sum tells as much in a tenth of the time, unless finite numbers overflow in it.
            if not math.isfinite(float(found.sum())) and not bool(torch.isfinite(found).all()):
                raise ValueError(f"Stability: activations at {tap.name} must be finite, got NaN or infinity there.")
            return found

        def look(tap: Tap, clean: Tensor, begin: int) -> None:
            rows = partners(chosen, begin, len(clean))
            apart[tap.name].append(reduce(tap, clean, others[tap.name], rows).cpu())

        def make(batch: Batch) -> Iterator[tuple[str, Tensor]]:
            assert isinstance(batch.inputs, Tensor)
            clean, here = _clean(views, batch), slice(batch.start, batch.start + len(batch.inputs))
            for place, (setting, some) in enumerate(zip(settings, drawn, strict=True)):
                for number in range(self.fields):
                    name, tries = f"{place}/{number}", some.tries[here, number]
                    yield f"deformed/{name}", views.deformed(batch.inputs, setting, number, batch.start, tries)
                    radius = some.shift[here, number] if self.radius == "sample" else float(some.shift.double().mean())
                    yield f"noisy/{name}", views.noisy(clean, number, batch.start, radius)

        names = [tap.name for tap in taps]
        found = run.views(
            stop, make, reduce, layers=names, start=start, reference=lambda batch: _clean(views, batch), look=look
        )
        kept = {}
        for place, layer in enumerate(names):
            for kind in ("deformed", "noisy"):
                by_setting = [
                    torch.stack([found[f"{kind}/{j}/{number}"][layer] for number in range(self.fields)], 1)
                    for j in range(len(settings))
                ]
                kept[f"{kind}/{place}"] = torch.stack(by_setting, 1)
            kept[f"apart/{place}"] = torch.cat(apart[layer])
        return kept


def _clean(views: Views, batch: Batch) -> Tensor:
    assert isinstance(batch.inputs, Tensor)  # fits() has looked
    return views.clean(batch.inputs)


def _activations(run: Run, views: Views, taps: Sequence[Tap], chosen: Tensor) -> dict[str, Tensor]:
    """Clean activations of the chosen samples at every layer, in one small pass."""
    kept: dict[str, list[Tensor]] = {}

    def on(tap: Tap, activation: Tensor) -> None:
        kept.setdefault(tap.name, []).append(activation.clone())

    with still(run.model, statistics=run.statistics, seed=run.seed), tapped(run.model, taps, on):
        for batch in run.data.subset(chosen).batches(run.batch, device=run.device):
            feed(run.model, prepared(run.model, _clean(views, batch)))
    return {name: torch.cat(rows) for name, rows in kept.items()}
