"""Bounds on the input gradients of a network with an isometric loss: [beshkov2022] eq. (5), (6) and (14)."""

from __future__ import annotations

import torch
from torch import Tensor

from lisse.maths.bounds.bound import Bound, BoundVariant, Hypothesis, bound, checked, log
from lisse.maths.given import Values
from lisse.maths.isometry.gradient import gap_direction, gap_sums

_BETWEEN_VECTORS = Hypothesis(
    "the printed inequality is one between numbers", False, "it is printed between vectors; their norms are compared"
)


@checked(not_negative="slope k alpha")
def entropy_gradient(
    slope: float, k: float, *, alpha: float = 1.0, local_norm: float | None = None, variant: BoundVariant = "corrected"
) -> Bound:
    r"""Input gradient of the cross-entropy at one sample, ([beshkov2022] eq. 5).

    .. math:: \|\nabla_x \alpha L_{CSE}\|_2 \le \alpha\, \Big\|\frac{\partial L_{CSE}}{\partial\Phi}\Big\|_2 K

    ``slope`` is :math:`\|\partial L_{CSE}/\partial\Phi\|_2` at the sample (for logits :math:`\|p - t\|`), ``k`` a bound
    on the Jacobian's operator norm :math:`\|\nabla\Phi(x)\|_2` there. Valid where it is one, which ``local_norm``
    checks. The paper takes K = 1 from the isometry, but an isometry on samples bounds nothing between them:
    ``printed`` is the same number with that K, never valid.
    """
    value = log(alpha * slope * k)
    if variant == "printed":
        return bound(value, [_BETWEEN_VECTORS], kind="heuristic", variant="printed")
    return bound(value, _steep(k, local_norm))


@checked(not_negative="k beta")
def translation_gradient_norm(
    x: Values,
    z: Values,
    k: float,
    groups: Values | None = None,
    *,
    beta: float = 1.0,
    local_norm: float | None = None,
    variant: BoundVariant = "corrected",
) -> Bound:
    r"""Derivative of the isometric loss when all samples move together ([beshkov2022] eq. 6 and 14).

    ``corrected``: :math:`\big\|\sum_k \partial \beta L_{ISO}/\partial x_k\big\| \le \frac{8 \beta K}{N^2} \sum_{i>j}
    G_{ij} |H_{ij}|`, since the derivative is :math:`\frac{4\beta}{N^2}\sum_{i>j} G H\,[\nabla\Phi_j -
    \nabla\Phi_i]^\top J`, J is a unit vector and both Jacobians have norm at most ``k``. ∎ ``local_norm`` is the
    largest of them, where it is known.

    ``printed``: the norm of the vector on the right of (14), :math:`\frac{4 \beta K}{N^2} \sum_{i>j} G H J`. Signs
    cancel in it and its factor is half of what is needed: it bounds nothing.
    """
    n = len(x)
    if variant == "printed":
        size = float(torch.linalg.vector_norm(gap_direction(x, z, groups)))
        return bound(log(4 * beta * k / n**2 * size), [_BETWEEN_VECTORS], kind="heuristic", variant="printed")
    total = float(gap_sums(x, z, groups).sum()) / 2
    return bound(log(8 * beta * k / n**2 * total), _steep(k, local_norm))


@checked(not_negative="beta")
def sample_gradient_norms(
    x: Values,
    z: Values,
    k: Values | float,
    groups: Values | None = None,
    *,
    beta: float = 1.0,
    fixed_input: bool = False,
) -> Tensor:
    r"""Upper bounds ``[n]`` of the isometric loss's gradient in each sample, float64.

    .. math:: \Big\|\frac{\partial \beta L_{ISO}}{\partial x_k}\Big\|_2 \le \frac{4\beta}{N^2} \sum_j G_{kj} |H_{kj}|\,
              (1 + K_k)

    with ``k`` a bound on :math:`\|\nabla\Phi(x_k)\|_2`, one number or one per sample: (6) and (14) of [beshkov2022] as
    corrected for what an attack differentiates (docs/errata.md#isometric). ``fixed_input``: without the 1. Proof: every
    term of :func:`~lisse.maths.isometry.isometric_gradient` is a unit vector, or one pulled back by the Jacobian. ∎
    """
    steep = torch.as_tensor(k, dtype=torch.float64)
    if steep.ndim > 1 or not bool((torch.isfinite(steep) & (steep >= 0)).all()):
        raise ValueError("sample_gradient_norms: k must be finite and not negative, one number or one per sample.")
    sums = gap_sums(x, z, groups)
    return 4 * beta / len(sums) ** 2 * sums * (steep.to(sums.device) + (0.0 if fixed_input else 1.0))


def _steep(k: float, local_norm: float | None) -> list[Hypothesis]:
    if local_norm is None:
        return []
    # A norm that was found by iteration is right to a few digits.
    return [
        Hypothesis("K bounds the Jacobian's norm", local_norm <= k * (1 + 1e-9), f"{local_norm:.4g} against {k:.4g}")
    ]
