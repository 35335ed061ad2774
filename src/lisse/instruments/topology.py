"""Topology: how the shape of the data changes from layer to layer."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from lisse.instruments.topology_clouds import Clouds, pieces_in_threads, sample_clouds, token_clouds
from lisse.instruments.topology_rows import Distances, Table, curves, equal_layers, layer_rows, summary_rows, unsettled
from lisse.maths.homology import Diagram, covering, diagram_distance, distance_matrix, persistence
from lisse.profile import Part, Quantity, Row, Value
from lisse.recording import Recording, parse_bytes
from lisse.run import Instrument, Run
from lisse.taps import Tap

_MOST_BARS = 5000  # of one diagram in a profile
_ROUNDING = 8.0  # this many units in the last place of a diagram's size are no distance


@dataclass(frozen=True)
class Topology(Instrument):
    """Persistence diagrams of a cloud of samples at every layer, how far apart they are, and how fast that changes.

    The cloud is the same at every layer, activations are flattened, distances are Euclidean, and the filtration is
    Vietoris-Rips in the diameter convention. With ``readout="tokens"`` each token is a point of its own.
    """

    dims: tuple[int, ...] = field(default=(0, 1), metadata={"help": "dimensions of homology: 0, 1, 2"})
    p: tuple[float, ...] = field(default=(1, 2), metadata={"help": "orders of the distance; inf: bottleneck"})
    samples: int = field(default=500, metadata={"help": "most points in a cloud"})
    clouds: int = field(default=5, metadata={"help": "disjoint clouds behind the intervals"})
    ground: float = field(default=math.inf, metadata={"help": "norm between points of a diagram: inf, 2 or any q >= 1"})
    scale: Literal["rms"] | None = field(
        default=None, metadata={"help": "rms: distances over the root of a layer's width"}
    )
    include_input: bool = field(default=True, metadata={"help": "the input is layer 0"})
    landmarks: int | None = field(default=None, metadata={"help": "points kept of each cloud, chosen far apart"})
    level: float = field(default=0.95, metadata={"help": "confidence level of the intervals"})
    quick: bool = field(default=False, metadata={"help": "one cloud, no intervals"})

    QUANTITIES: ClassVar[tuple[Quantity, ...]] = (
        Quantity(
            "diagram_distance",
            "distance between diagrams",
            "How far the shape of the data at this layer is from its shape at the layer before, scale included.",
            r"WD_l = W_p(Dg_{l-1}, Dg_l)",
            "[chen2024] sec. 5",
            scale="log",
        ),
        Quantity(
            "change_rate",
            "absolute change rate",
            "How much the step into this layer differs from the step before it, as a share of that one.",
            r"r_l = |WD_l - WD_{l-1}| / WD_{l-1}",
            "[chen2024] sec. 5",
            better="lower",
        ),
        Quantity(
            "cumulative_change_rate",
            "cumulative change rate",
            "The change rates up to this layer added up: steep where the shape changes abruptly.",
            r"\sum_{k \le l} r_k",
            "[chen2024] sec. 5",
            better="lower",
        ),
        Quantity(
            "topolip_change_rate",
            "TopoLip (largest change rate)",
            "The largest change rate of all layers; small for a network that changes the shape of its data evenly.",
            r"\max_l r_l",
            "[chen2024] sec. 5",
            better="lower",
        ),
        Quantity(
            "mean_change_rate",
            "mean change rate",
            "The mean of the change rates, which, unlike their sum, does not grow with the number of layers.",
            r"\frac1{L-1}\sum_l r_l",
            "[chen2024] sec. 5",
            better="lower",
        ),
    )

    def __post_init__(self) -> None:
        for name in ("dims", "p"):
            given = getattr(self, name)
            plain = isinstance(given, (tuple, list)) and given and all(isinstance(v, (int, float)) for v in given)
            if not plain or len(set(given)) != len(given):
                raise ValueError(f"Topology: {name} must be different numbers, such as (1,), got {given!r}.")
            object.__setattr__(self, name, tuple(given))
        if any(dim not in (0, 1, 2) for dim in self.dims):
            raise ValueError(f"Topology: dims must be some of 0, 1 and 2, got {self.dims}.")
        if not all(order >= 1 for order in self.p):
            raise ValueError(f"Topology: p must be at least 1 (inf: bottleneck), got {self.p}.")
        if not isinstance(self.ground, (int, float)) or not self.ground >= 1:
            raise ValueError(f"Topology: ground must be a norm's order, at least 1 (or inf), got {self.ground!r}.")
        if self.scale not in (None, "rms"):
            raise ValueError(f"Topology: scale must be 'rms' or None, got {self.scale!r}.")
        for name, least in (("samples", 2), ("clouds", 1), ("landmarks", 2)):
            given = getattr(self, name)
            if name == "landmarks" and given is None:
                continue
            if isinstance(given, bool) or not isinstance(given, int) or given < least:
                raise ValueError(f"Topology: {name} must be a whole number of at least {least}, got {given!r}.")
        if not 0 < self.level < 1:
            raise ValueError(f"Topology: level must lie in (0, 1), got {self.level}.")

    def fits(self, run: Run) -> str | None:
        """Networks with three layers or more, on at least two samples."""
        if len(run) < 2:
            return f"a cloud needs at least 2 samples, and {run.data.name} has {len(run)}."
        layers = [tap.name for tap in self._layers(run)]
        if len(layers) < 3:
            counted = "the input counted" if self.include_input else "without the input"
            return (
                f"a change rate needs at least 3 layers, {counted}, and there are {len(layers)} ({', '.join(layers)})."
            )
        return None

    def part(self, run: Run) -> Part:
        """Measure."""
        notes: list[str] = []
        taps = self._layers(run)
        count = 1 if self.quick else self.clouds
        if run.readout == "tokens":
            clouds = token_clouds(run, self, taps, size=self.samples, clouds=count, halves=not self.quick)
            without = [tap.name for tap in taps if tap.name not in clouds.rows]
            taps = [tap for tap in taps if tap.name in clouds.rows]
            if without:
                notes.append(f"Left out, because they hold no tokens: {', '.join(without)}.")
            if len(taps) < 3 or clouds.size < 2:
                notes.append(
                    f"Not measured: a change rate needs at least 3 layers with tokens, and there are {len(taps)}."
                )
                return Part(self.name, (), self.QUANTITIES, tuple(notes))
        else:
            clouds = sample_clouds(run, taps, size=self.samples, clouds=count, halves=not self.quick)
        if not self.quick:
            notes.append(self._estimator(run, clouds))
        diagrams = self._diagrams(run, taps, clouds, notes)
        whole, half = self._distances(run, taps, diagrams, clouds, notes)
        rows: list[Row] = []
        arrays: dict[str, np.ndarray] = {}
        summaries: tuple[list[Row], list[Row]] = [], []
        for at, some in whole:
            rows += layer_rows(taps, some, at, self.level)
            arrays |= curves(some, at)
            summaries[0].extend(summary_rows(some, at, self.level))
        for at, some in half:
            summaries[1].extend(summary_rows(some, at, self.level))
        notes += equal_layers(taps, [some for _, some in whole])
        if half:
            notes += unsettled(half, whole, self.level)
        arrays |= self._kept_diagrams(diagrams)
        return Part(self.name, (*rows, *summaries[0], *summaries[1]), self.QUANTITIES, tuple(notes), arrays)

    def _layers(self, run: Run) -> list[Tap]:
        return [tap for tap in run.taps if self.include_input or tap.role != "input"]

    @property
    def _parts(self) -> tuple[int | str, ...]:
        """The dimensions, and all of them together."""
        return (*self.dims, "all") if len(self.dims) > 1 else self.dims

    def _estimator(self, run: Run, clouds: Clouds) -> str:
        points = "tokens" if run.readout == "tokens" else "samples"
        if clouds.count == 1:
            enough = (
                f" samples={len(run) // self.clouds} would give {self.clouds}." if len(run) // self.clouds > 20 else ""
            )
            return (
                f"One cloud of {clouds.size} {points}, so the numbers are those of this cloud, without intervals: "
                f"{run.data.name} has {len(run)} samples.{enough}"
            )
        few = f" instead of {self.clouds}" if clouds.count < self.clouds else ""
        return f"Means over {clouds.count} disjoint clouds{few} of {clouds.size} {points}, with Student's intervals."

    # -- diagrams --------------------------------------------------------------------------------------------------

    def _diagrams(
        self, run: Run, taps: Sequence[Tap], clouds: Clouds, notes: list[str]
    ) -> dict[str, dict[str, Tensor]]:
        """Per layer, the bars of every cloud: ``whole/k/H0`` ``[m, 2]`` and so on."""
        recording = run.recording(clouds.samples)
        work = {
            tap.name: (
                ("diagrams", tap.name),
                lambda tap=tap: self._of_layer(recording, tap.name, clouds, run.device),
            )
            for tap in sorted(taps, key=lambda tap: -tap.numel)  # the widest first, so that none is left for the end
        }
        found, failed = pieces_in_threads(
            run,
            self,
            f"{self.name}: diagrams",
            work,
            before=lambda: recording.samples,
            threads=self._threads(run, clouds.size),
            unit="layers",
        )
        if failed and not found:
            raise next(iter(failed.values()))
        for name, error in failed.items():
            notes.append(f"No diagram at {name} ({type(error).__name__}: {error}); what needs it is left out.")
        if self.landmarks is not None and self.landmarks < clouds.size:
            radius, name = max((float(some["radius"].max()), name) for name, some in found.items())
            notes.append(
                f"Diagrams are those of {self.landmarks} landmarks of each cloud of {clouds.size}. No point is farther "
                f"than {radius:.3g} from one ({name}), and no bar's end moves by more than twice that."
            )
        return {tap.name: found[tap.name] for tap in taps if tap.name in found}

    def _of_layer(self, recording: Recording, name: str, clouds: Clouds, device: torch.device) -> dict[str, Tensor]:
        points = recording[name]
        scale = math.prod(points.shape[1:]) ** -0.5 if self.scale == "rms" else 1.0
        found: dict[str, Tensor] = {"rounding": torch.tensor(torch.finfo(_precise(points.dtype)).eps)}
        radii = []
        for place, rows in enumerate(clouds.rows[name]):
            matrix = distance_matrix(points, rows=rows, device=device) * scale
            for part, chosen in (("whole", None), ("half", clouds.halves)):
                if part == "half" and chosen is None:
                    continue
                some = matrix if chosen is None else matrix[chosen[place]][:, chosen[place]]
                if self.landmarks is not None and self.landmarks < clouds.size:
                    # Half a cloud has half the landmarks: as many points for each.
                    picks, radius = covering(some, max(2, self.landmarks * len(some) // clouds.size))
                    some = some[picks][:, picks]
                    radii.append(radius)
                diagram = persistence(distances=some, dims=self.dims)
                found |= {f"{part}/{place}/H{dim}": diagram[dim] for dim in self.dims}
        if radii:
            found["radius"] = torch.tensor(radii, dtype=torch.float64)
        return found

    def _threads(self, run: Run, size: int) -> int:
        """As many as PyTorch may use, while their distance matrices fit into the run's memory."""
        return max(1, min(torch.get_num_threads(), parse_bytes(run.memory) // (8 * 8 * size**2)))

    # -- distances -------------------------------------------------------------------------------------------------

    def _distances(
        self,
        run: Run,
        taps: Sequence[Tap],
        diagrams: Mapping[str, Mapping[str, Tensor]],
        clouds: Clouds,
        notes: list[str],
    ) -> tuple[Table, Table]:
        """Of the clouds and of their halves (empty where there are none), by order and dimension."""
        pairs = list(itertools.pairwise(taps))
        work = {
            place: (
                ("distances", before.name, after.name),
                lambda a=diagrams[before.name], b=diagrams[after.name]: self._of_pair(a, b, clouds),
            )
            for place, (before, after) in enumerate(pairs)
            if before.name in diagrams and after.name in diagrams
        }
        found, failed = pieces_in_threads(
            run,
            self,
            f"{self.name}: distances",
            work,
            before=lambda: None,
            threads=self._threads(run, clouds.size),
            unit="pairs of layers",
        )
        for place, error in failed.items():
            before, after = pairs[place]
            notes.append(
                f"No distance between {before.name} and {after.name} ({type(error).__name__}: {error}); what needs it "
                "is left out."
            )
        missing = torch.full((2, clouds.count, len(self.p), len(self._parts)), math.nan, dtype=torch.float64)
        tables: list[Table] = []
        for part, size in (("whole", clouds.size), ("half", clouds.size // 2)):
            if part == "half" and clouds.halves is None:
                tables.append([])
                continue
            each = [found[place][part] if place in found else missing for place in range(len(pairs))]
            values, floors = torch.stack(each, 2)  # [k, pairs, p, dims]
            tables.append(
                [
                    (self._at(order, dim), Distances(values[..., i, j], floors[..., i, j], size))
                    for i, order in enumerate(self.p)
                    for j, dim in enumerate(self._parts)
                ]
            )
        return tables[0], tables[1]

    def _at(self, order: float, dim: int | str) -> dict[str, Value]:
        at: dict[str, Value] = {"p": int(order) if float(order).is_integer() else float(order), "dim": dim}
        return at if self.landmarks is None else at | {"landmarks": self.landmarks}

    def _of_pair(self, a: Mapping[str, Tensor], b: Mapping[str, Tensor], clouds: Clouds) -> dict[str, Tensor]:
        """Distances between two layers, and what rounding may make of equal ones: ``whole`` ``[2, k, p, dims]``."""
        eps = max(float(a["rounding"]), float(b["rounding"]))
        found: dict[str, Tensor] = {}
        for part in ("whole", "half") if clouds.halves is not None else ("whole",):
            values = torch.empty(clouds.count, len(self.p), len(self.dims), dtype=torch.float64)
            floors = torch.empty_like(values)
            for cloud in range(clouds.count):
                before, after = (Diagram({dim: some[f"{part}/{cloud}/H{dim}"] for dim in self.dims}) for some in (a, b))
                for i, order in enumerate(self.p):
                    for j, dim in enumerate(self.dims):
                        values[cloud, i, j] = diagram_distance(before, after, dim=dim, p=order, ground=self.ground)
                        deaths = torch.cat([before[dim][:, 1], after[dim][:, 1]])
                        floors[cloud, i, j] = _ROUNDING * eps * _norm(deaths, order)
            found[part] = torch.stack([self._with_all(values), self._with_all(floors)])
        return found

    def _with_all(self, values: Tensor) -> Tensor:
        """Beside the dimensions ``[…, p, dims]`` all of them together, :math:`(\\sum_k W_k^p)^{1/p}`."""
        if len(self.dims) == 1:
            return values
        together = torch.stack([_norm(values[..., place, :], order) for place, order in enumerate(self.p)], -1)
        return torch.cat([values, together[..., None]], -1)

    def _kept_diagrams(self, diagrams: Mapping[str, Mapping[str, Tensor]]) -> dict[str, np.ndarray]:
        """The first cloud's bars, the longest ``_MOST_BARS`` of each, for figures."""
        kept = {}
        for name, found in diagrams.items():
            for dim in self.dims:
                bars = found[f"whole/0/H{dim}"]
                if len(bars) > _MOST_BARS:
                    longest = (bars[:, 1] - bars[:, 0]).topk(_MOST_BARS).indices
                    bars = bars[longest.sort().values]
                kept[f"diagram/{name}/H{dim}"] = bars.numpy()
        return kept


def _norm(values: Tensor, order: float) -> Tensor:
    """The ``order``-norm along the last axis."""
    return torch.linalg.vector_norm(values, ord=float(order), dim=-1)


def _precise(dtype: torch.dtype) -> torch.dtype:
    """What activations were computed in, at best: half precision is noise in every number, not in a distance."""
    return torch.float64 if dtype == torch.float64 else torch.float32
