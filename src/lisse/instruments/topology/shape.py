"""The shape of the data at every layer against its shape at the first place, each in units of its own spread."""

from __future__ import annotations

import functools
import itertools
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lisse.instruments.clouds import Clouds, judging_clouds
from lisse.instruments.origin import origin_of, points_at
from lisse.instruments.topology.pieces import free_threads, pieces_in_threads
from lisse.instruments.topology.rows import row_coordinates, with_all
from lisse.maths.homology import Diagram, diagram_distance
from lisse.maths.homology.divergence import normalised_diagram, topology_divergence
from lisse.maths.homology.shape import Shape, shapes_of
from lisse.profile import Row
from lisse.run import Run
from lisse.run.rows import clouds_row
from lisse.taps import Tap

if TYPE_CHECKING:
    from lisse.instruments.topology import Topology

# Seconds of one core for twelve clouds of 100 points: their diagrams and distances; their divergences.
_SHAPES, _DIVERGENCES, _GROWTH = 0.5, 3.0, 2.5


def shape_seconds(samples: int, layers: int, divergence: str) -> float:
    """What :func:`shape_part` takes beside its forwards."""
    paired = {"none": 0, "last": 1, "all": layers}[divergence]
    return (layers * _SHAPES + paired * _DIVERGENCES) * (samples / 1200) ** _GROWTH


def shape_part(
    options: Topology, run: Run, taps: Sequence[Tap], failures: list[str]
) -> tuple[list[Row], dict[str, np.ndarray]]:
    """Rows of ``shape_distance`` and ``topology_divergence``, and the headline's values over clouds.

    A layer's number rests on the first place and on the layer, whatever is
    read between them.
    """
    samples, last = options.passes(run), run.last_block
    taps = list(taps)
    if options.include_input and run.readout != "tokens":
        taps = [origin_of(run), *(tap for tap in taps if tap.name != origin_of(run).name)]
    clouds = judging_clouds(run, options, taps, samples=samples)
    first, *layers = (tap for tap in taps if tap.name in clouds.rows)
    shapes = _Shapes(options, run, clouds, first, None if last is None else last.name)
    pieces, failed = pieces_in_threads(
        run,
        options,
        {
            ("shape", tap.name): functools.partial(shapes.against, tap)
            for tap in sorted(layers, key=lambda tap: (tap is not last, -tap.numel))  # the longest first
        },
        before=lambda: run.recording(clouds.samples).samples,
        task=f"{options.name}: shape",
        unit="layers",
        threads=free_threads(run, clouds.size),
    )
    failures += [
        f"No shape at {name} ({type(error).__name__}: {error}); what needs it is left out."
        for (_, name), error in failed.items()
    ]
    row = functools.partial(clouds_row, size=clouds.size, level=options.level, least=0.0)
    rows: list[Row] = []
    for tap in layers:
        piece = pieces.get(("shape", tap.name), {})
        if "distances" in piece:
            rows += [
                row("shape_distance", piece["distances"][:, i, j], layer=tap, at={**at, "cloud": clouds.size})
                for (i, j), at in row_coordinates(options.p, options.dims).items()
            ]
        if "divergence" in piece:
            rows.append(row("topology_divergence", piece["divergence"], layer=tap, at={"cloud": clouds.size}))
    headline = {} if last is None else pieces.get(("shape", last.name), {})
    if "distances" not in headline:
        return rows, {}
    order = min(range(len(options.p)), key=lambda index: options.p[index] if options.p[index] in (1, 2) else math.inf)
    return rows, {"clouds/shape_distance": headline["distances"][:, order, -1].numpy()}


@dataclass(frozen=True)
class _Shapes:
    """The clouds of a run at its first place, and how far they are from those of a layer."""

    options: Topology
    run: Run
    clouds: Clouds
    first: Tap
    last: str | None
    lock: threading.Lock = field(default_factory=threading.Lock, compare=False)

    def against(self, tap: Tap) -> dict[str, Tensor]:
        """``distances`` ``[k, p, dims]``, NaN where a cloud is a point; ``divergence`` ``[k]`` where asked for."""
        p, dims = self.options.p, self.options.dims
        distances = torch.full((self.clouds.count, len(p), len(dims)), math.nan, dtype=torch.float64)
        divergences = torch.full((self.clouds.count,), math.nan, dtype=torch.float64)
        paired = self._paired(tap)
        for index, (shape, (first, before)) in enumerate(zip(self._shapes(tap), self._origin(), strict=True)):
            after = _diagram(shape, dims)
            if before is None or after is None:
                continue
            for (i, order), (j, dim) in itertools.product(enumerate(p), enumerate(dims)):
                distances[index, i, j] = diagram_distance(before, after, dim=dim, p=order, ground=self.options.ground)
            if paired:
                divergences[index] = topology_divergence(first, shape).value
        tensors = {"distances": with_all(distances, p)}
        return {**tensors, "divergence": divergences} if paired else tensors

    def _origin(self) -> list[tuple[Shape, Diagram | None]]:
        """The clouds that all layers are compared with, made by the thread that asks first."""
        with self.lock:
            return self._of_first

    @functools.cached_property
    def _of_first(self) -> list[tuple[Shape, Diagram | None]]:
        return [(shape, _diagram(shape, self.options.dims)) for shape in self._shapes(self.first)]

    def _paired(self, tap: Tap) -> bool:
        compared = {"all": True, "last": tap.name == self.last, "none": False}[self.options.divergence]
        # Tokens of two layers are the same ones where both have as many.
        return compared and torch.equal(self.clouds.rows[tap.name], self.clouds.rows[self.first.name])

    def _shapes(self, tap: Tap) -> list[Shape]:
        points = points_at(self.run, tap, self.clouds.samples)
        return shapes_of(points, self.clouds.rows[tap.name], device=self.run.device)


def _diagram(shape: Shape, dims: Sequence[int]) -> Diagram | None:
    """The diagram of a cloud in units of its spread; ``None`` where all its points are one, to rounding."""
    return normalised_diagram(shape, dims=dims) if shape.error < 1 else None
