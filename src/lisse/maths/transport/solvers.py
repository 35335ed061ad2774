"""Exact optimal couplings of one pair of weighted point sets, in NumPy, float64: sorting, assignment, network simplex.

A coupling is a list of ``(i, j, mass)``: an extreme point of the transport polytope has at most n + m - 1 of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lisse.maths.machine_code import loops

LOOPS = "lisse.maths.transport.loops"
_METRICS = {1.0: "cityblock", 2.0: "euclidean", float("inf"): "chebyshev"}


class Coupling(NamedTuple):
    """``mass[k]`` goes from atom ``rows[k]`` to atom ``columns[k]``."""

    rows: np.ndarray
    columns: np.ndarray
    mass: np.ndarray


def ground_distances(x: np.ndarray, y: np.ndarray, ground: float) -> np.ndarray:
    """Distances ``[n, m]`` in the norm ``ground`` (1, 2, inf) between float64 points ``[n, d]`` and ``[m, d]``.

    Exact zeros between equal points, and no cancellation: differences first, whatever the dimension. Without numba, and
    for ``inf``, SciPy's: the same numbers, slower.
    """
    compiled = loops(LOOPS) if ground in (1, 2) else None
    if compiled is None:
        from scipy.spatial.distance import cdist

        return cdist(x, y, _METRICS[ground])
    out = np.empty((len(x), len(y)))
    compiled.ground_costs(np.ascontiguousarray(x), np.ascontiguousarray(y), float(ground), out)
    return out


def assigned(cost: np.ndarray) -> Coupling:
    """The coupling of two empirical measures of one size: a permutation (Birkhoff), by shortest augmenting paths."""
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(cost)
    return Coupling(rows, columns, np.full(len(rows), 1 / len(rows)))


def sorted_line(x: np.ndarray, y: np.ndarray, a: np.ndarray, b: np.ndarray) -> Coupling:
    """The monotone coupling on the line, optimal for every convex cost |x - y|^p: O((n + m) log(n + m))."""
    i, j = np.argsort(x, kind="stable"), np.argsort(y, kind="stable")
    i, j = i[a[i] > 0], j[b[j] > 0]
    up, vp = np.cumsum(a[i]), np.cumsum(b[j])
    up[-1] = vp[-1] = max(up[-1], vp[-1])  # both are 1 but for rounding
    levels = np.union1d(up, vp)
    mass = np.diff(levels, prepend=0.0)
    return Coupling(i[np.searchsorted(up, levels)], j[np.searchsorted(vp, levels)], mass)


def line_distance(x: np.ndarray, y: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    """W1 on the line, ∫|F - G|: net mass at each place first, so that measures that differ by 1e-12 keep digits."""
    positions, where = np.unique(np.concatenate([x, y]), return_inverse=True)
    of_x, of_y = where[: len(x)], where[len(x) :]
    net = np.bincount(of_x, a, len(positions)) - np.bincount(of_y, b, len(positions))
    return float(np.abs(np.cumsum(net))[:-1] @ np.diff(positions))


def simplex(cost: np.ndarray, a: np.ndarray, b: np.ndarray, max_iter: int) -> tuple[Coupling, np.ndarray]:
    """The coupling of any two weightings by the network simplex (POT), and the raw dual of the atoms with mass in a."""
    import ot

    i, j = np.flatnonzero(a), np.flatnonzero(b)
    complete = len(i) == len(a) and len(j) == len(b)
    inside = np.ascontiguousarray(cost if complete else cost[np.ix_(i, j)], dtype=np.float64)
    u, v = a[i] / a[i].sum(), b[j] / b[j].sum()
    plan, log = ot.emd(u, v, inside, numItermax=max_iter, log=True, check_marginals=False)
    if log["warning"]:
        raise RuntimeError(f"transport: the network simplex did not end in {max_iter} steps: {log['warning']}.")
    rows, columns = np.nonzero(plan)
    return Coupling(i[rows], j[columns], plan[rows, columns]), np.asarray(log["u"])


def simplex_potentials(
    cost: np.ndarray, a: np.ndarray, b: np.ndarray, dual: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """A feasible dual pair on all atoms, also those without mass: each potential is the c-transform of the other."""
    i, j = np.flatnonzero(a), np.flatnonzero(b)
    g = (cost[np.ix_(i, j)] - dual[:, None]).min(0)
    f = (cost[:, j] - g).min(1)
    return f, (cost - f[:, None]).min(0)


def assignment_potentials(cost: np.ndarray, coupling: Coupling) -> tuple[np.ndarray, np.ndarray]:
    """Dual potentials of an optimal assignment: shortest paths in the residual graph, by Bellman and Ford."""
    column = np.empty(len(cost), dtype=int)
    column[coupling.rows] = coupling.columns
    matched = cost[np.arange(len(cost)), column]
    steps = cost[:, column] - matched  # what i pays more for the partner of k than k does
    f = np.zeros(len(cost))
    for _ in range(len(cost)):
        new = np.minimum(f, (steps + f[None, :]).min(1))  # f_i <= f_k + steps_ik: nobody gains by a swap
        if np.array_equal(new, f):
            break
        f = new
    g = (cost - f[:, None]).min(0)
    return f, g


def without_common(cost: np.ndarray, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, Coupling]:
    """What is left of both weightings when mass that lies at the same place stays there, and that mass's coupling.

    For a cost that is a metric this loses nothing (triangle inequality), and it is what keeps W1 of two measures that
    differ by a mass of 1e-12 exact to the last digits: those digits are subtracted here, once, and not in a solver.
    """
    a, b = a.copy(), b.copy()
    rows, columns, mass = [], [], []
    for i, j in np.argwhere(cost == 0):
        stays = min(a[i], b[j])
        if stays > 0:
            a[i] -= stays
            b[j] -= stays
            rows.append(i)
            columns.append(j)
            mass.append(stays)
    return a, b, Coupling(np.array(rows, dtype=int), np.array(columns, dtype=int), np.array(mass))
