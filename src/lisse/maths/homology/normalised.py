"""Diagrams of clouds in units of their own spread, and the distance between two of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lisse.maths.given import Values
from lisse.maths.spread import SpreadKind

from .diagram import Diagram
from .matching import diagram_distance
from .rips import persistence
from .shape import Shape, shape_of


@dataclass(frozen=True, slots=True)
class ShapeDistance:
    """``value``: the distance of two shapes; ``floor``: up to here it may be rounding, and the shapes the same."""

    value: float
    floor: float

    @property
    def zero(self) -> bool:
        """Whether the two shapes cannot be told apart."""
        return self.value <= self.floor


def normalised_diagram(
    points: Values | Shape, *, dims: Sequence[int] = (0, 1), kind: SpreadKind = "centroid"
) -> Diagram:
    r"""Rips diagram of a cloud ``[n, …]`` (or of its shape) divided by its own :func:`~lisse.maths.spread.spread`.

    Rotations, shifts and multiples of the cloud have the same one, to rounding. A cloud that is one point has none.
    """
    shape = points if isinstance(points, Shape) else shape_of(points, kind=kind)
    if not shape.spread > 0:
        raise ValueError("normalised_diagram: points must differ, got a cloud without spread.")
    return persistence(distances=shape.distances / shape.spread, dims=dims)


def normalised_diagram_distance(
    a: Values,
    b: Values,
    *,
    dims: Sequence[int] = (0, 1),
    p: float = 1.0,
    ground: float = math.inf,
    kind: SpreadKind = "centroid",
    rounding: float | None = None,
) -> ShapeDistance:
    r""":math:`W_p` between the diagrams of two clouds, each in units of its own spread; what of it may be rounding.

    A distance, not a ratio of two: where both are small, as between neighbouring layers, a ratio is that of two errors.
    Not paired: clouds of equal size are compared as shapes, whichever point is where
    (:func:`~lisse.maths.homology.divergence.topology_divergence` is paired). ``p``, ``ground`` and the sum over
    ``dims`` are those of :func:`diagram_distance`.

    ``floor``: if the distances of either cloud, in its units, are right to :math:`\rho_a, \rho_b`
    (:func:`~lisse.maths.spread.distance_rounding`) and the unit, which is an average of them, as well, then
    :math:`\delta = (\rho_a + \rho_b)(1 + \max D)` bounds the bottleneck distance between diagrams of copies
    ([cohensteiner2007]): all N bars of both can be matched, to each other or to the diagonal, within δ. So

    .. math:: \text{floor} = \delta \, N^{1/p} \, 2^{1/q}

    (q the ground norm's order), and what is at most that is 0 for all anyone can say. For 200 points in 64 dimensions
    and p = 1 it is 1.5e-8 in float64 and 9e-4 in float32, where two layers are at a distance of 25; nothing divides by
    it. A cloud whose spread is itself rounding has no shape: the value is NaN. Cost: two diagrams and their distance,
    0.02 s for 200 points, 0.08 s for 400.
    """
    shapes = [shape_of(points, kind=kind, rounding=rounding) for points in (a, b)]
    errors = [shape.error for shape in shapes]
    if max(errors) >= 1:
        return ShapeDistance(float("nan"), max(errors))
    diagrams = [normalised_diagram(shape, dims=dims) for shape in shapes]
    bars = sum(len(diagram[dim]) for diagram in diagrams for dim in diagram)
    slack = sum(errors) * (1 + max(float(shape.distances.max()) / shape.spread for shape in shapes))
    many = 1.0 if math.isinf(p) else bars ** (1 / p)
    wide = 1.0 if math.isinf(ground) else 2 ** (1 / ground)
    return ShapeDistance(diagram_distance(*diagrams, p=p, ground=ground), slack * many * wide)
