"""Landmarks: a few points that cover a cloud."""

from __future__ import annotations

import torch
from torch import Tensor

from lisse.maths.given import Values

from .metric import as_points, centred


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
