r"""The distance of order infinity between two point sets: how far the worst atom must be carried."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from lisse.maths.given import Values
from lisse.maths.transport.exact import pair_of
from lisse.maths.transport.measure import Measure
from lisse.maths.transport.solvers import ground_distances


def wasserstein_infinity(x: Measure | Values, y: Measure | Values, *, ground: float = 2) -> Tensor:
    r""":math:`W_\infty(\mu, \nu) = \min_\gamma \max_{\gamma_{ij} > 0} \|x_i - y_j\|`, the limit of :math:`W_p`.

    ``x`` ``[n, d]`` and ``y`` ``[m, d]`` are point sets of equal weights, n and m as they are; ``ground`` is the norm:
    1, 2 or inf. A scalar tensor, exact to rounding: it is one of the n·m distances t, the smallest for which the pairs
    no further than t apart carry all mass. Bisection over them, from the Hausdorff distance up; at each a bipartite
    matching (n = m, by Birkhoff; Hopcroft–Karp), else a maximum flow of masses lcm/n and lcm/m. O(nm √(n + m) log nm)
    for n = m, no gradients. Reference: [peyre2019] sec. 2.4.
    """
    mu, nu = pair_of("wasserstein_infinity", x, y)
    if mu.weights is not None or nu.weights is not None:
        raise ValueError("wasserstein_infinity: x and y must have equal weights, got weights. Give the points alone.")
    if ground not in (1, 2, math.inf):
        raise ValueError(f"wasserstein_infinity: ground must be 1, 2 or inf, got {ground}.")
    near, far = (side.points.detach().cpu().double().numpy() for side in (mu, nu))
    costs = ground_distances(near, far, ground)
    kind = torch.promote_types(mu.points.dtype, nu.points.dtype)
    return torch.tensor(_bottleneck(costs), dtype=kind, device=mu.points.device)


def _bottleneck(costs: np.ndarray) -> float:
    """The least t such that the pairs with costs ``[n, m]`` up to t carry everything."""
    least = max(costs.min(0).max(), costs.min(1).max())  # every atom goes somewhere
    levels = np.unique(costs[costs >= least])
    low, high = 0, len(levels) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _carries(costs <= levels[middle]) else (middle + 1, high)
    return float(levels[low])


def _carries(near: np.ndarray) -> bool:
    """Whether equal masses on both sides can be carried along the pairs that are ``near`` ``[n, m]``."""
    from scipy.sparse import block_array, csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching, maximum_flow

    n, m = near.shape
    if n == m:
        return bool((maximum_bipartite_matching(csr_array(near), perm_type="column") >= 0).all())
    total = math.lcm(n, m)
    supply, demand = np.full((1, n), total // n, np.int32), np.full((m, 1), total // m, np.int32)
    edges = csr_array(near.astype(np.int32) * np.int32(total))
    # source, the n atoms of x, the m of y, sink
    graph = block_array(
        [[csr_array((1, 1), dtype=np.int32), csr_array(supply), None, None],
         [None, csr_array((n, n), dtype=np.int32), edges, None],
         [None, None, csr_array((m, m), dtype=np.int32), csr_array(demand)],
         [None, None, None, csr_array((1, 1), dtype=np.int32)]], format="csr",
    )  # fmt: skip
    return int(maximum_flow(graph.astype(np.int32), 0, n + m + 1).flow_value) == total
