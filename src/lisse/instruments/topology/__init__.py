"""Topology: how the shape of the data changes from layer to layer."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from lisse.instruments.clouds import Clouds, engine_bytes, sample_clouds, token_clouds
from lisse.instruments.topology.pieces import free_threads, pieces_in_threads
from lisse.instruments.topology.rows import (
    LayerDistances,
    curves,
    equal_layers,
    layer_rows,
    row_coordinates,
    summary_rows,
    unsettled,
    with_all,
)
from lisse.instruments.topology.shape import shape_part, shape_seconds
from lisse.maths.homology import Diagram, covering, diagram_distance, distance_matrix, persistence
from lisse.profile import EVERYTHING, RIGID, Chart, Headline, Panel, Part, Quantity, Value
from lisse.run import Instrument, Run, level_option, option
from lisse.taps import Tap

# Seconds of one core for 500 points: persistence and distances of one cloud at one layer, and how they grow.
_DIAGRAM, _GROWTH = 0.25, 2.3
# Matrices of n² numbers that one cloud takes.
_MATRICES = 4
_MOST_BARS = 5000  # of one diagram in a profile
_ROUNDING = 8.0  # this many units in the last place of a diagram's size are no distance


@dataclass(frozen=True)
class Topology(Instrument):
    """Persistence diagrams of a cloud of samples at every layer, how far apart they are, and how fast that changes.

    The cloud is the same at every layer, activations are flattened, distances are Euclidean, and the filtration is
    Vietoris-Rips in the diameter convention. With ``readout="tokens"`` each token is a point of its own.
    """

    dims: tuple[int, ...] = option((0, 1), "dimensions of homology: 0, 1, 2")
    p: tuple[float, ...] = option((1, 2), "orders of the distance; inf: bottleneck")
    samples: int = option(500, "most points in a cloud", quick=100, usual=200, least=2)
    clouds: int = option(5, "disjoint clouds behind the intervals", quick=3, least=1)
    ground: float = option(math.inf, "norm between points of a diagram: inf, 2 or any q >= 1")
    scale: Literal["rms"] | None = option(None, "rms: distances over the root of a layer's width")
    include_input: bool = option(True, "the input is layer 0")
    include_output: bool = option(True, "the output, a head's answer, is the last layer, as in the paper")
    divergence: Literal["none", "last", "all"] = option(
        "none", "layers with a topology divergence, which takes long: none, the last block, all"
    )
    landmarks: int | None = option(None, "points kept of each cloud, chosen far apart", least=2)
    level: float = level_option()

    AT_START: ClassVar = True
    CHARTS: ClassVar[tuple[Chart, ...]] = (
        Chart(
            "topology",
            "How the shape of the data changes along depth",
            "A steady network has a low change rate. Dotted: TopoLip, the largest rate of a cloud before "
            "interpolation, over clouds on average.",
            (
                Panel(
                    "absolute change rate",
                    form="curves",
                    arrays=("landscape/change_rate",),
                    base="topolip_change_rate",
                ),
                Panel("cumulative change rate", form="curves", arrays=("landscape/cumulative_change_rate",)),
                Panel("distance between diagrams", form="curves", arrays=("landscape/diagram_distance",)),
            ),
            columns=2,
            prefers={"dim": ("all", 0, 1)},
        ),
        Chart(
            "diagrams",
            "Persistence diagrams",
            "A point is a feature of the cloud of samples: the scale at which it appears and the scale at which it is "
            "filled. Parts (H0) all appear at 0. Each panel has its own scale.",
            (Panel(form="diagrams", arrays=("diagram/",)),),
            columns=4,
        ),
        Chart(
            "barcodes",
            "Barcodes",
            "A bar reaches from the scale at which a feature appears to the scale at which it is filled. At most 60 of "
            "each dimension are drawn, the longest.",
            (Panel(form="barcodes", arrays=("diagram/",)),),
            columns=4,
        ),
    )
    QUANTITIES: ClassVar[tuple[Quantity, ...]] = (
        Quantity(
            "shape_distance",
            "distance of shapes",
            "How far the shape of the data at this layer is from its shape at the input, each cloud in units of its "
            "own spread: 0 where a layer turns, shifts and scales alone.",
            r"W_p(Dg(x_0/s_0), Dg(x_l/s_l)), \quad s^2 = \tfrac1n\sum_i\|x_i - \bar x\|^2",
            better="lower",
            headline=Headline(
                "shape",
                "how far the shape of the data at the last block is from its shape at the input, whatever their sizes",
                makes="gentler to the shape of its data",
                evidence="A gentler network keeps more of the clusters and loops of its data. That it errs less has "
                "not been seen.",
                prefers={"dim": ("all", 0, 1), "p": (1, 2)},
                amounts=("clouds", "level"),
            ),
            lead=True,
            invariant=EVERYTHING,
        ),
        Quantity(
            "topology_divergence",
            "topology divergence (RTD)",
            "Whether parts and loops of the data at this layer are those of the input, sample by sample: 0 where they "
            "are.",
            r"\tfrac12\sum_{(w_0, w_l)}(d - b) + \tfrac12\sum_{(w_l, w_0)}(d - b)",
            "[barannikov2022] sec. 3",
            better="lower",
            invariant=EVERYTHING,
        ),
        Quantity(
            "diagram_distance",
            "distance between diagrams",
            "How far the shape of the data at this layer is from its shape at the layer before, scale included.",
            r"WD_l = W_p(Dg_{l-1}, Dg_l)",
            "[chen2024] sec. 5",
            scale="log",
            invariant=RIGID,
        ),
        Quantity(
            "change_rate",
            "absolute change rate",
            "How much the step into this layer differs from the step before it, as a share of that one.",
            r"r_l = |WD_l - WD_{l-1}| / WD_{l-1}",
            "[chen2024] sec. 5",
            better="lower",
            lead=True,
            invariant=RIGID,
        ),
        Quantity(
            "cumulative_change_rate",
            "cumulative change rate",
            "The change rates up to this layer added up: steep where the shape changes abruptly.",
            r"\sum_{k \le l} r_k",
            "[chen2024] sec. 5",
            better="lower",
            lead=True,
            invariant=RIGID,
        ),
        Quantity(
            "topolip_change_rate",
            "TopoLip (largest change rate)",
            "The largest change rate of all layers; small for a network that changes the shape of its data evenly.",
            r"\max_l r_l",
            "[chen2024] sec. 5",
            better="lower",
            headline=Headline(
                "TopoLip",
                "the largest change rate of the data's shape",
                prefers={"dim": ("all", 0, 1), "p": (1, 2)},
                amounts=("clouds", "level"),
            ),
            invariant=RIGID,
        ),
        Quantity(
            "mean_change_rate",
            "mean change rate",
            "The mean of the change rates, which, unlike their sum, does not grow with the number of layers.",
            r"\frac1{L-1}\sum_l r_l",
            "[chen2024] sec. 5",
            better="lower",
            invariant=RIGID,
        ),
    )

    SPARES: ClassVar[str] = "Give landmarks=, or fewer samples=."

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("dims", "p"):
            numbers = getattr(self, name)
            plain = isinstance(numbers, (tuple, list)) and numbers and all(isinstance(v, (int, float)) for v in numbers)
            if not plain or len(set(numbers)) != len(numbers):
                raise ValueError(f"Topology: {name} must be different numbers, such as (1,), got {numbers!r}.")
            object.__setattr__(self, name, tuple(numbers))
        if any(dim not in (0, 1, 2) for dim in self.dims):
            raise ValueError(f"Topology: dims must be some of 0, 1 and 2, got {self.dims}.")
        if not all(order >= 1 for order in self.p):
            raise ValueError(f"Topology: p must be at least 1 (inf: bottleneck), got {self.p}.")
        if not isinstance(self.ground, (int, float)) or not self.ground >= 1:
            raise ValueError(f"Topology: ground must be a norm's order, at least 1 (or inf), got {self.ground!r}.")

    def seconds(self, per_sample: float, layers: int, n: int) -> float:
        """The forwards, and the diagrams and distances of every cloud at every layer."""
        samples = min(self.samples, n)
        clouds = max(1, min(self.clouds, n // samples))
        diagrams = layers * clouds * 1.3 * _DIAGRAM * (samples / 500) ** _GROWTH
        shapes = shape_seconds(min(self.samples * self.clouds, n), layers, self.divergence)
        return clouds * samples * per_sample + diagrams + shapes

    def bytes(self, run: Run) -> int:
        """For every thread a few n² numbers, and for H1 and H2 what the engine holds of noise, the worst of clouds."""
        size = run.take(self.samples)
        points = size if self.landmarks is None else min(size, self.landmarks)
        threads = free_threads(run, size) if self.dims else 1
        engine = engine_bytes(points) if max(self.dims) else 0
        return int(threads * (_MATRICES * 8 * size**2 + engine))

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
        clouds = self._clouds(run)
        taps = [tap for tap in self._layers(run) if tap.name in clouds.rows]
        without = [tap.name for tap in self._layers(run) if tap.name not in clouds.rows]
        if without:
            notes.append(f"Left out, because they hold no tokens: {', '.join(without)}.")
        if len(taps) < 3 or clouds.size < 2:
            notes.append(f"Not measured: a change rate needs at least 3 layers with tokens, and there are {len(taps)}.")
            return self.part_of((), notes)
        if self.clouds > 1:
            notes.append(self._estimator(run, clouds))
        failures: list[str] = []
        diagrams = self._diagrams(run, taps, clouds, notes, failures)
        steps, halved = self._distances(run, taps, diagrams, clouds, failures)
        rows = [row for step in steps for row in layer_rows(taps, step, self.level)]
        rows += [row for step in (*steps, *halved) for row in summary_rows(step, self.level)]
        arrays = {name: curve for step in steps for name, curve in curves(step).items()}
        shapes, clouds_of_shapes = shape_part(self, run, taps, failures)
        rows, arrays = rows + shapes, arrays | clouds_of_shapes
        notes += [*failures, *equal_layers(taps, steps), *unsettled(halved, steps, self.level)]
        # Another time what failed may succeed.
        return self.part_of(rows, notes, arrays | self._longest_bars(diagrams), complete=not failures)

    def _layers(self, run: Run) -> list[Tap]:
        left_out = {"input": not self.include_input, "output": not self.include_output}
        return [tap for tap in run.taps if not left_out.get(tap.role or "")]

    def _clouds(self, run: Run) -> Clouds:
        taps, halves = self._layers(run), self.clouds > 1
        if run.readout == "tokens":
            return token_clouds(run, self, taps, size=self.samples, clouds=self.clouds, halves=halves)
        return sample_clouds(run, taps, size=self.samples, clouds=self.clouds, halves=halves)

    def _estimator(self, run: Run, clouds: Clouds) -> str:
        points = "tokens" if run.readout == "tokens" else "samples"
        if clouds.count == 1:
            fitting = len(run) // self.clouds
            enough = f" samples={fitting} would give {self.clouds}." if fitting > 20 else ""
            return (
                f"One cloud of {clouds.size} {points}, so the numbers are those of this cloud, without intervals: "
                f"{run.data.name} has {len(run)} samples.{enough}"
            )
        few = f" instead of {self.clouds}" if clouds.count < self.clouds else ""
        return f"Means over {clouds.count} disjoint clouds{few} of {clouds.size} {points}, with Student's intervals."

    # -- diagrams --------------------------------------------------------------------------------------------------

    def _diagrams(
        self, run: Run, taps: Sequence[Tap], clouds: Clouds, notes: list[str], failures: list[str]
    ) -> dict[str, dict[str, Tensor]]:
        """Per layer, the bars of every cloud: ``whole/k/H0`` ``[m, 2]`` and so on."""
        recording = run.recording(clouds.samples)
        pieces, failed = pieces_in_threads(
            run,
            self,
            {
                ("diagrams", tap.name): functools.partial(self._of_layer, recording, tap.name, clouds, run.device)
                for tap in sorted(taps, key=lambda tap: -tap.numel)  # the widest first: no thread waits for it at last
            },
            before=lambda: recording.samples,
            task=f"{self.name}: diagrams",
            unit="layers",
            threads=free_threads(run, clouds.size),
        )
        if failed and not pieces:
            raise next(iter(failed.values()))
        for (_, name), error in failed.items():
            failures.append(f"No diagram at {name} ({type(error).__name__}: {error}); what needs it is left out.")
        if self._thinned(clouds):
            radius, name = max((float(piece["radius"].max()), name) for (_, name), piece in pieces.items())
            notes.append(
                f"Diagrams are those of {self.landmarks} landmarks of each cloud of {clouds.size}. No point is farther "
                f"than {radius:.3g} from one ({name}), and no bar's end moves by more than twice that."
            )
        return {tap.name: pieces["diagrams", tap.name] for tap in taps if ("diagrams", tap.name) in pieces}

    def _thinned(self, clouds: Clouds) -> bool:
        return self.landmarks is not None and self.landmarks < clouds.size

    def _of_layer(
        self, recording: Mapping[str, Tensor], name: str, clouds: Clouds, device: torch.device
    ) -> dict[str, Tensor]:
        points = recording[name]
        scale = math.prod(points.shape[1:]) ** -0.5 if self.scale == "rms" else 1.0
        bars: dict[str, Tensor] = {"rounding": torch.tensor(torch.finfo(_precise(points.dtype)).eps)}
        radii = []
        for index, rows in enumerate(clouds.rows[name]):
            matrix = distance_matrix(points, rows=rows, device=device).cpu() * scale  # where its homology is made
            matrices = {"whole": matrix}
            if clouds.halves is not None:
                matrices["half"] = matrix[clouds.halves[index]][:, clouds.halves[index]]
            for part, distances in matrices.items():
                if self.landmarks is not None and self._thinned(clouds):
                    # Half a cloud has half the landmarks: as many points for each.
                    picks, radius = covering(distances, max(2, self.landmarks * len(distances) // clouds.size))
                    distances = distances[picks][:, picks]
                    radii.append(radius)
                diagram = persistence(distances=distances, dims=self.dims)
                bars |= {f"{part}/{index}/H{dim}": diagram[dim] for dim in self.dims}
        if radii:
            bars["radius"] = torch.tensor(radii, dtype=torch.float64)
        return bars

    # -- distances -------------------------------------------------------------------------------------------------

    def _distances(
        self,
        run: Run,
        taps: Sequence[Tap],
        diagrams: Mapping[str, Mapping[str, Tensor]],
        clouds: Clouds,
        failures: list[str],
    ) -> tuple[list[LayerDistances], list[LayerDistances]]:
        """Of the clouds and of their halves (none where there are none), by order and dimension."""
        keys = [("distances", before.name, after.name) for before, after in itertools.pairwise(taps)]
        pieces, failed = pieces_in_threads(
            run,
            self,
            {
                key: functools.partial(self._of_pair, diagrams[key[1]], diagrams[key[2]], clouds)
                for key in keys
                if key[1] in diagrams and key[2] in diagrams
            },
            task=f"{self.name}: distances",
            unit="pairs of layers",
            threads=free_threads(run, clouds.size),
        )
        for (_, before, after), error in failed.items():
            failures.append(
                f"No distance between {before} and {after} ({type(error).__name__}: {error}); what needs it is left "
                "out."
            )
        grid = row_coordinates(self.p, self.dims)
        missing = torch.full((2, clouds.count, len(self.p), len(grid) // len(self.p)), math.nan, dtype=torch.float64)
        tables: dict[str, list[LayerDistances]] = {"whole": [], "half": []}
        for part, size in (("whole", clouds.size), ("half", clouds.size // 2)):
            if part == "half" and clouds.halves is None:
                continue
            values, floors = torch.stack([pieces[key][part] if key in pieces else missing for key in keys], 2)
            for (i, j), where in grid.items():
                at: dict[str, Value] = {**where, "cloud": size}
                at |= {} if self.landmarks is None else {"landmarks": self.landmarks}
                tables[part].append(LayerDistances(values[..., i, j], floors[..., i, j], at))
        return tables["whole"], tables["half"]

    def _of_pair(self, a: Mapping[str, Tensor], b: Mapping[str, Tensor], clouds: Clouds) -> dict[str, Tensor]:
        """Distances between two layers, and what rounding may make of equal ones: ``whole`` ``[2, k, p, dims]``."""
        eps = max(float(a["rounding"]), float(b["rounding"]))
        distances: dict[str, Tensor] = {}
        for part in ("whole", "half") if clouds.halves is not None else ("whole",):
            values = torch.empty(clouds.count, len(self.p), len(self.dims), dtype=torch.float64)
            floors = torch.empty_like(values)
            for cloud in range(clouds.count):
                before, after = (Diagram({dim: bars[f"{part}/{cloud}/H{dim}"] for dim in self.dims}) for bars in (a, b))
                for (i, order), (j, dim) in itertools.product(enumerate(self.p), enumerate(self.dims)):
                    values[cloud, i, j] = diagram_distance(before, after, dim=dim, p=order, ground=self.ground)
                    deaths = torch.cat([before[dim][:, 1], after[dim][:, 1]])
                    floors[cloud, i, j] = _ROUNDING * eps * torch.linalg.vector_norm(deaths, ord=float(order))
            distances[part] = torch.stack([with_all(values, self.p), with_all(floors, self.p)])
        return distances

    def _longest_bars(self, diagrams: Mapping[str, Mapping[str, Tensor]]) -> dict[str, np.ndarray]:
        """The first cloud's bars, the longest ``_MOST_BARS`` of each, for figures."""
        arrays = {}
        for (name, pieces), dim in itertools.product(diagrams.items(), self.dims):
            bars = pieces[f"whole/0/H{dim}"]
            if len(bars) > _MOST_BARS:
                longest = (bars[:, 1] - bars[:, 0]).topk(_MOST_BARS).indices
                bars = bars[longest.sort().values]
            arrays[f"diagram/{name}/H{dim}"] = bars.numpy()
        return arrays


def _precise(dtype: torch.dtype) -> torch.dtype:
    """What activations were computed in, at best: half precision is noise in every number, not in a distance."""
    return torch.float64 if dtype == torch.float64 else torch.float32
