"""Čech persistence of small clouds in the plane and in space, by the alpha complex."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lisse.maths.given import Values
from lisse.maths.homology.diagram import Diagram
from lisse.maths.homology.metric import as_points

_ROUNDING = 64 * 2.0**-52


def cech_persistence(points: Values, *, dims: Sequence[int] = (0, 1)) -> Diagram:
    r"""Persistent homology over Z/2 of the Čech filtration of a cloud ``[n, d]``, d ≤ 3, in the radius convention.

    A simplex enters at the least r at which balls of radius r around its points meet. By the nerve theorem this is the
    homology of the union of the balls, which the alpha complex (GUDHI, exact predicates) has too, with
    :math:`O(n^{\lceil d/2 \rceil})` simplices. In the diameter convention of :func:`persistence` every value doubles:
    Rips and Čech then have the same edges, and so the same H0, but a Rips triangle enters with its longest edge.

    ``dims``: any of 0 … d - 1 (there is nothing above). Duplicate and collinear points are allowed.
    References: [chen2024] appendix A, figures 5 and 6; [edelsbrunner2010] III.
    """
    cloud = as_points(points, name="cech_persistence").detach().cpu().double()
    d = cloud.shape[1]
    if d > 3:
        raise ValueError(
            f"cech_persistence: points must lie in at most 3 dimensions, got {d}. Use persistence (Vietoris–Rips)."
        )
    degrees = tuple(sorted({int(dim) for dim in dims}))
    if not degrees or degrees[0] < 0 or degrees[-1] > 2:
        raise ValueError(f"cech_persistence: dims must be some of 0, 1 and 2, got {dims!r}.")
    from gudhi import AlphaComplex

    flat = cloud if d > 1 else torch.cat([cloud, torch.zeros_like(cloud)], 1)
    middle = flat.mean(0)
    tree = AlphaComplex(points=(flat - middle).numpy(), precision="exact").create_simplex_tree()
    tree.compute_persistence(homology_coeff_field=2, min_persistence=0.0, persistence_dim_max=True)
    slack = _ROUNDING * float((flat - middle).abs().max())
    finite: dict[int, Tensor] = {}
    infinite: dict[int, Tensor] = {}
    for dim in degrees:
        squares = np.asarray(tree.persistence_intervals_in_dimension(dim), dtype=np.float64).reshape(-1, 2)
        bars = torch.from_numpy(np.sqrt(np.maximum(squares, 0.0)))
        ends = torch.isfinite(bars[:, 1])
        infinite[dim] = bars[~ends, 0]
        bars = bars[ends]
        finite[dim] = bars[bars[:, 1] - bars[:, 0] > slack]
    return Diagram(finite, infinite)
