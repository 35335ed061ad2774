"""Vietoris–Rips persistence: the tree for H0, and GUDHI's copy of Ripser at the smallest threshold that suffices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lisse.maths.given import Values
from lisse.maths.homology.diagram import Diagram
from lisse.maths.homology.metric import _distance_matrix, as_cloud, as_distances, as_points, centred, check_either
from lisse.maths.homology.spanning import SpanningTree, cloud_tree, matrix_tree


def landmarks(
    points: Values, count: int, *, start: int | None = None, generator: torch.Generator | None = None
) -> Tensor:
    r"""Indices ``[count]`` of a maxmin (farthest point) sample of a cloud ``[n, d]``, in the order they were taken.

    Each landmark is the point farthest from those taken before. At every length of the list it covers the cloud within
    twice the radius that the best choice of as many points could (Gonzalez), so the Rips diagram of the landmarks is
    within twice its covering radius of the cloud's, in bottleneck distance. The first is ``start``, or drawn by
    ``generator``, or point 0. On the device of the points; O(count · n · d). Reference: [desilva2004] sec. 2.3.
    """
    cloud = as_points(points, name="landmarks")
    n = len(cloud)
    if not 1 <= count <= n:
        raise ValueError(f"landmarks: count must be between 1 and the {n} points, got {count}.")
    if start is not None and not 0 <= start < n:
        raise ValueError(f"landmarks: start must be an index under {n}, got {start}.")
    if start is None:
        start = 0 if generator is None else int(torch.randint(n, (1,), generator=generator, device=generator.device))
    flat, norms, _ = centred(cloud)
    indices = torch.empty(count, dtype=torch.long, device=cloud.device)
    indices[0] = start
    far = torch.full((n,), torch.inf, dtype=torch.float64, device=cloud.device)
    for step in range(count):
        last = indices[step]
        squares = torch.addmv(norms + norms[last], flat, flat[last], alpha=-2.0).clamp_(min=0)
        far = torch.minimum(far, squares)
        far[last] = -1.0
        if step + 1 < count:
            indices[step + 1] = far.argmax()
    return indices


def covering(distances: Tensor, count: int) -> tuple[Tensor, float]:
    r"""Maxmin landmarks of a cloud from its distances ``[n, n]``, and their covering radius.

    The first point, then always the point farthest from those taken; indices ``[count]`` in increasing order. No point
    is farther than the radius r from a landmark, so that the Vietoris-Rips diagrams of the landmarks and of the cloud
    are at most 2 r apart in bottleneck distance (diameter convention). Cost: O(count n).
    """
    if not 1 <= count <= len(distances):
        raise ValueError(f"covering: count must lie between 1 and the {len(distances)} points, got {count}.")
    nearest = distances[0].clone()
    picks = [0]
    while len(picks) < count:
        picks.append(int(nearest.argmax()))
        torch.minimum(nearest, distances[picks[-1]], out=nearest)
    return torch.tensor(sorted(picks), device=distances.device), float(nearest.max())


try:  # The engine itself; the estimator around it costs an import of scikit-learn and a sparse copy.
    from gudhi._ripser_ext import _full as _engine
except ImportError:  # other versions of GUDHI keep it elsewhere
    _engine = None

_WITNESSES = 8
_ROUNDING = 32 * 2.0**-52


def persistence(
    points: Values | None = None, *, distances: Values | None = None, dims: Sequence[int] = (0, 1)
) -> Diagram:
    r"""Persistent homology over Z/2 of the Vietoris–Rips filtration of a cloud ``[n, d]`` or a matrix ``[n, n]``.

    A simplex enters at its diameter, :math:`\max_{i,j} \|x_i - x_j\|` (the radius convention is half of it), so the
    complex at r has an edge wherever the distance is at most r. ``dims``: which dimensions, 0, 1 or 2.

    H0 is the minimum spanning tree. H1 is found by GUDHI's copy of Ripser in float64 ([bauer2021]), at a threshold
    under the radius at which the complex becomes a cone. It is exact all the same: an edge can give birth to a class
    of H1 only if no third point is nearer to both of its ends (its triangle would fill it at once), and the threshold
    is above all such edges; a class that is still alive there sends the engine on with three times as many edges, up
    to the cone. H2 takes the whole filtration, after edge collapses ([boissonnat2020]).

    From points: distances of :func:`distance_matrix` in float64; bars shorter than rounding (32 ulp of the largest
    distance) are left out. A given matrix keeps every bar of positive length. Infinite bars are in
    ``diagram.infinite``: one of H0, none above. Diagrams are on the CPU, in float64, whatever went in.

    Cost: n² d for the distances, and for H1 typically 10⁻⁷ n³ s and a few n² numbers; H2 only for a few hundred points.
    Reference: [chen2024] appendix A.
    """
    name = "persistence"
    check_either(name, points, distances)
    degrees = _dims(dims)
    if distances is not None:
        matrix = as_distances(distances, name=name)
        tree = matrix_tree(matrix)
        slack = 0.0
    else:
        assert points is not None
        cloud = as_cloud(points, name=name).detach()
        if max(degrees) == 0:
            return Diagram({0: _deaths(cloud_tree(cloud, name=name))}, {0: torch.zeros(1)})
        matrix = _distance_matrix(cloud, name=name)
        tree = matrix_tree(matrix)
        slack = _ROUNDING * float(matrix.max())
    finite: dict[int, Tensor] = {}
    if 0 in degrees:
        finite[0] = _deaths(tree)
    if max(degrees) > 0:
        bars_by_dim = _bars(matrix.cpu().numpy(), max(degrees), float(tree.lengths[-1]))
        for dim in degrees:
            if dim > 0:
                bars = torch.from_numpy(np.asarray(bars_by_dim[dim], dtype=np.float64).reshape(-1, 2))
                finite[dim] = bars[bars[:, 1] - bars[:, 0] > slack]
    return Diagram(finite, {dim: torch.zeros(1 if dim == 0 else 0) for dim in degrees})


def _dims(dims: Sequence[int]) -> tuple[int, ...]:
    degrees = (dims,) if isinstance(dims, int) else tuple(dims)
    if not degrees or any(isinstance(dim, bool) or dim not in (0, 1, 2) for dim in degrees):
        raise ValueError(f"persistence: dims must be some of 0, 1 and 2, got {dims!r}.")
    return tuple(sorted({int(dim) for dim in degrees}))


def _deaths(tree: SpanningTree) -> Tensor:
    lengths = tree.lengths.cpu()
    return torch.stack([torch.zeros_like(lengths), lengths], 1)


def _bars(matrix: np.ndarray, top: int, longest: float) -> list[np.ndarray]:
    """Bars by dimension; ``longest``: the longest edge of the spanning tree."""
    matrix = np.ascontiguousarray(matrix)
    n = len(matrix)
    cone = float(matrix.max(1).min())
    if n < 3:
        return [np.empty((0, 2))] * (top + 1)
    if top > 1:
        return _full_diagrams(matrix, top, cone)
    threshold = min(cone, 1.03 * last_birth(matrix, longest))
    while True:
        bars = _ripser(matrix, threshold)
        if threshold >= cone or not np.isinf(bars).any():
            return [np.empty((0, 2)), bars[np.isfinite(bars[:, 1])]]
        count = int((matrix <= threshold).sum())
        more = min(3 * count, matrix.size - 1)
        threshold = min(cone, max(1.1 * threshold, float(np.partition(matrix.ravel(), more)[more])))


def last_birth(matrix: np.ndarray, longest: float) -> float:
    """The longest edge that no third point is nearer to at both ends; at least ``longest``, itself such an edge.

    Witnesses near the middle rule out most pairs at once; the few that remain are looked at one by one, the longest
    first.
    """
    open_pairs = matrix > longest
    open_pairs &= np.tri(len(matrix), k=-1, dtype=bool)
    middle = np.argsort(matrix.mean(1))
    for witness in middle[:_WITNESSES]:
        row = matrix[witness]
        open_pairs &= matrix <= np.maximum(row[:, None], row[None])
    first, second = np.nonzero(open_pairs)
    order = np.argsort(matrix[first, second])[::-1]
    first, second = first[order], second[order]
    for start in range(0, len(first), 256):
        i, j = first[start : start + 256], second[start : start + 256]
        lengths = matrix[i, j]
        empty = np.maximum(matrix[i], matrix[j]).min(1) >= lengths
        if empty.any():
            return float(lengths[empty.argmax()])
    return longest


def _ripser(matrix: np.ndarray, threshold: float) -> np.ndarray:
    if _engine is not None:
        diagrams = _engine(matrix, max_dimension=1, max_edge_length=threshold, homology_coeff_field=2)
        return np.asarray(diagrams[1], dtype=np.float64).reshape(-1, 2)
    from gudhi.sklearn.rips_persistence import RipsPersistence

    engine = RipsPersistence([1], threshold, "full distance matrix", 0, 2)
    return np.asarray(engine.fit_transform([matrix])[0][0]).reshape(-1, 2)


def _full_diagrams(matrix: np.ndarray, top: int, cone: float) -> list[np.ndarray]:
    from gudhi.sklearn.rips_persistence import RipsPersistence

    engine = RipsPersistence(list(range(top + 1)), cone, "full distance matrix", "auto", 2)
    diagrams = [np.asarray(bars, dtype=np.float64).reshape(-1, 2) for bars in engine.fit_transform([matrix])[0]]
    return [bars[np.isfinite(bars[:, 1])] for bars in diagrams]
