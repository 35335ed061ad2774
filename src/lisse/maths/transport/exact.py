"""The exact Wasserstein distance between two measures, with couplings, potentials and gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lisse.maths.given import Values, all_finite
from lisse.maths.machine_code import loops
from lisse.maths.transport.measure import Measure, as_measure
from lisse.maths.transport.solvers import (
    LOOPS,
    Coupling,
    assigned,
    assignment_potentials,
    ground_distances,
    line_distance,
    simplex,
    simplex_potentials,
    sorted_line,
    without_common,
)

_MAX_ITER = 10_000_000


@dataclass(frozen=True, slots=True)
class Plan:
    r"""An optimal plan: ``value``, ``coupling`` ``[n, m]`` and dual potentials ``source`` ``[n]``, ``target`` ``[m]``.

    The potentials are feasible, :math:`f_i + g_j \le c_{ij}`, and :math:`\sum_i a_i f_i + \sum_j b_j g_j` equals
    the transport cost: the certificate of optimality.
    """

    value: Tensor
    coupling: Tensor
    source: Tensor
    target: Tensor


def wasserstein(x: Measure | Values, y: Measure | Values, *, p: float = 1.0, ground: float = 1) -> Tensor:
    r"""The p-Wasserstein distance :math:`W_p(\mu, \nu) = \min_\gamma (\sum_{ij} \gamma_{ij} \|x_i-y_j\|^p)^{1/p}`.

    ``x`` and ``y`` are measures, or point sets ``[n, d]``, ``[m, d]`` with equal weights; sizes and weights may
    differ. ``ground`` is the norm: 1 (the paper's), 2 or inf. A scalar tensor, exact to rounding, computed in
    float64 and returned in the type of the points.

    On the line by sorting; equal sizes and weights by assignment, O(n³); otherwise by the network simplex. For p = 1,
    mass that both measures have at the same place is taken out first, so that the distance between measures that
    differ by a tiny mass keeps its digits. Gradients in the points go through the optimal coupling, those in the
    weights through the dual potentials (where the optimum is not unique: a subgradient). Reference: [vuckovic2021]
    sec. 5, [peyre2019] ch. 2–3.
    """
    mu, nu = pair_of("wasserstein", x, y)
    _options("wasserstein", p, ground)
    arrays = _array(mu.points), _array(nu.points), _mass(mu), _mass(nu)
    weighted, moved = _needs_weight_gradient(mu, nu), _needs_point_gradient(mu, nu)
    kind = torch.promote_types(mu.points.dtype, nu.points.dtype)
    if not (weighted or moved):
        return torch.tensor(_power(*arrays, p, ground) ** (1 / p), dtype=kind, device=mu.points.device)
    coupling, f, g = _solve(*arrays, p, ground, potentials=weighted)
    value = _value(mu.points, nu.points, coupling, p, ground)
    if weighted:
        value = value + _through_weights(mu, f) + _through_weights(nu, g)
    return _root(value, p)


def transport_plan(x: Measure | Values, y: Measure | Values, *, p: float = 1.0, ground: float = 1) -> Plan:
    r"""The optimal coupling of two measures for the cost :math:`\|x_i - y_j\|^p`, with its dual potentials.

    ``value`` is :math:`W_p`; the potentials are those of the cost, so their integrals sum to :math:`W_p^p`. No
    gradients: ``wasserstein`` has them.
    """
    mu, nu = pair_of("transport_plan", x, y)
    _options("transport_plan", p, ground)
    coupling, f, g = _solve(_array(mu.points), _array(nu.points), _mass(mu), _mass(nu), p, ground, potentials=True)
    value = _root(_value(mu.points.detach(), nu.points.detach(), coupling, p, ground), p)
    return _plan(value, coupling, f, g, mu.points, nu.points)


def plan_of_cost(cost: Values, source: Values | None = None, target: Values | None = None) -> Plan:
    r"""The optimal plan for a cost matrix of one's own ``[n, m]``: :math:`\min_\gamma \langle \gamma, C \rangle`.

    ``source`` ``[n]`` and ``target`` ``[m]`` are weights that sum to 1 (equal by default). ``value`` has the gradient
    :math:`\gamma` in the cost. The cost may be negative; it must be finite.
    """
    matrix = torch.as_tensor(cost)
    matrix = matrix if matrix.is_floating_point() else matrix.to(torch.get_default_dtype())
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(f"plan_of_cost: cost must have shape [n, m], got {list(matrix.shape)}.")
    if not all_finite(matrix):
        raise ValueError("plan_of_cost: cost must be finite, got NaN or infinity in it.")
    n, m = matrix.shape
    a, b = (
        Measure(matrix.new_zeros(size, 1), None if weights is None else torch.as_tensor(weights))
        for size, weights in ((n, source), (m, target))
    )
    costs = _array(matrix)
    coupling, f, g = _dual_solution(costs, _mass(a), _mass(b))
    rows, columns = (torch.as_tensor(index, device=matrix.device) for index in (coupling.rows, coupling.columns))
    value = (matrix[rows, columns] * torch.as_tensor(coupling.mass).to(matrix)).sum()
    return _plan(value, coupling, f, g, matrix, matrix.T)


# --- one pair -------------------------------------------------------------------------------------------------------


def _solve(
    x: np.ndarray,
    y: np.ndarray,
    a: np.ndarray | None,
    b: np.ndarray | None,
    p: float,
    ground: float,
    *,
    potentials: bool,
) -> tuple[Coupling, np.ndarray, np.ndarray]:
    if not potentials:
        coupling, _ = _optimum(x, y, a, b, p, ground)
        return coupling, np.zeros(0), np.zeros(0)
    return _dual_solution(ground_distances(x, y, ground) ** p, a, b)


def _dual_solution(
    cost: np.ndarray, a: np.ndarray | None, b: np.ndarray | None
) -> tuple[Coupling, np.ndarray, np.ndarray]:
    if a is None and b is None and len(cost) == cost.shape[1]:
        coupling = assigned(cost)
        return (coupling, *assignment_potentials(cost, coupling))
    a, b = _weights(cost.shape, a, b)
    coupling, dual = simplex(cost, a, b, _MAX_ITER)
    return (coupling, *simplex_potentials(cost, a, b, dual))


def _optimum(
    x: np.ndarray, y: np.ndarray, a: np.ndarray | None, b: np.ndarray | None, p: float, ground: float
) -> tuple[Coupling, np.ndarray]:
    """An optimal coupling and the cost of each of its entries."""
    if x.shape[1] == 1:
        coupling = sorted_line(x[:, 0], y[:, 0], *_weights((len(x), len(y)), a, b))
        return coupling, np.abs(x[coupling.rows, 0] - y[coupling.columns, 0]) ** p
    cost = ground_distances(x, y, ground)
    if p != 1:
        cost **= p
    coupling = coupled(cost, a, b, metric=p == 1)
    return coupling, cost[coupling.rows, coupling.columns]


def coupled(cost: np.ndarray, a: np.ndarray | None, b: np.ndarray | None, *, metric: bool) -> Coupling:
    """An optimal coupling for a cost matrix; ``metric``: the cost obeys the triangle inequality."""
    if a is None and b is None and len(cost) == cost.shape[1]:
        coupling = assigned(cost)
    elif not metric:
        coupling, _ = simplex(cost, *_weights(cost.shape, a, b), _MAX_ITER)
    else:
        left, right, coupling = without_common(cost, *_weights(cost.shape, a, b))
        if left.max() > 0 and right.max() > 0:
            moving, _ = simplex(cost, left, right, _MAX_ITER)
            mass = np.concatenate([coupling.mass, moving.mass * (left.sum() + right.sum()) / 2])
            rows, columns = (np.concatenate(pair) for pair in zip(coupling[:2], moving[:2], strict=True))
            coupling = Coupling(rows, columns, mass)
    return coupling


def _power(x: np.ndarray, y: np.ndarray, a: np.ndarray | None, b: np.ndarray | None, p: float, ground: float) -> float:
    """The optimal cost, W_p^p."""
    if x.shape[1] == 1 and p == 1:
        return line_distance(x[:, 0], y[:, 0], *_weights((len(x), len(y)), a, b))
    coupling, costs = _optimum(x, y, a, b, p, ground)
    return float(coupling.mass @ costs)


def _weights(shape: tuple[int, ...], a: np.ndarray | None, b: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    n, m = shape
    return (np.full(n, 1 / n) if a is None else a), (np.full(m, 1 / m) if b is None else b)


def _value(x: Tensor, y: Tensor, coupling: Coupling, p: float, ground: float) -> Tensor:
    """The cost of a coupling, Σ mass ‖x_i - y_j‖^p, with its gradient in the points."""
    rows, columns = (torch.as_tensor(index, device=x.device) for index in (coupling.rows, coupling.columns))
    difference = x[rows].double() - y[columns].double()
    distance = torch.linalg.vector_norm(difference, ord=ground, dim=1)
    power = distance if p == 1 else distance**p
    value = (power * torch.as_tensor(coupling.mass, device=x.device)).sum()
    return value.to(torch.promote_types(x.dtype, y.dtype))


def _through_weights(mu: Measure, potential: np.ndarray) -> Tensor:
    """Nothing, whose derivative in the weights is the potential (defined up to a constant; centred)."""
    if mu.weights is None or not mu.weights.requires_grad:
        return mu.points.new_zeros(())
    slope = torch.as_tensor(potential).to(mu.weights)
    return (slope * (mu.weights - mu.weights.detach())).sum()


def _root(value: Tensor, p: float) -> Tensor:
    if p == 1:
        return value
    # At 0 the root has no derivative; 0 is among its subgradients for a distance.
    return torch.where(value > 0, value.clamp_min(torch.finfo(value.dtype).tiny) ** (1 / p), value * 0)


def _plan(value: Tensor, coupling: Coupling, f: np.ndarray, g: np.ndarray, x: Tensor, y: Tensor) -> Plan:
    dense = np.zeros((len(x), len(y)))
    np.add.at(dense, (coupling.rows, coupling.columns), coupling.mass)
    parts = (torch.as_tensor(part).to(value.detach()) for part in (dense, f, g))
    return Plan(value, *parts)


# --- arguments ------------------------------------------------------------------------------------------------------


def pair_of(where: str, x: Measure | Values, y: Measure | Values) -> tuple[Measure, Measure]:
    """Both sides as measures of one dimension, or an error of ``where``."""
    mu, nu = as_measure(where, "x", x), as_measure(where, "y", y)
    if mu.dim != nu.dim:
        raise ValueError(f"{where}: x and y must have one dimension, got {mu.dim} and {nu.dim}.")
    return mu, nu


def _options(where: str, p: float, ground: float) -> None:
    if not 1 <= p < math.inf:
        raise ValueError(f"{where}: p must be finite and at least 1, got {p}.")
    if ground not in (1, 2, math.inf):
        raise ValueError(f"{where}: ground must be 1, 2 or inf, got {ground}. Other costs: plan_of_cost.")


def _array(values: Tensor) -> np.ndarray:
    return values.detach().cpu().double().numpy()


def _mass(mu: Measure) -> np.ndarray | None:
    return None if mu.weights is None else _array(mu.weights)


def _needs_weight_gradient(*measures: Measure) -> bool:
    return torch.is_grad_enabled() and any(m.weights is not None and m.weights.requires_grad for m in measures)


def _needs_point_gradient(*measures: Measure) -> bool:
    return torch.is_grad_enabled() and any(m.points.requires_grad for m in measures)


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
    return torch.tensor(bottleneck(costs), dtype=kind, device=mu.points.device)


def bottleneck(costs: np.ndarray) -> float:
    """The least t such that the pairs with costs ``[n, m]`` up to t carry everything."""
    compiled = loops(LOOPS) if costs.shape[0] == costs.shape[1] else None
    if compiled is not None:
        return float(compiled.bottleneck_cost(np.ascontiguousarray(costs)))
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
