"""Landmarks: a few points that cover a cloud."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .metric import as_points, centred


def landmarks(
    points: Tensor | np.ndarray,
    count: int,
    *,
    start: int | None = None,
    generator: torch.Generator | None = None,
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
    chosen = torch.empty(count, dtype=torch.long, device=cloud.device)
    chosen[0] = start
    far = torch.full((n,), torch.inf, dtype=torch.float64, device=cloud.device)
    for step in range(count):
        last = chosen[step]
        squares = torch.addmv(norms + norms[last], flat, flat[last], alpha=-2.0).clamp_(min=0)
        far = torch.minimum(far, squares)
        far[last] = -1.0
        if step + 1 < count:
            chosen[step + 1] = far.argmax()
    return chosen
