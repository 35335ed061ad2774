"""Named estimates and relaxations of optimal transport: entropic, sliced, unbalanced; none is ``wasserstein``."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lisse.maths.given import Values, check_least, check_positive
from lisse.maths.transport.exact import _options, pair_of
from lisse.maths.transport.measure import Measure


@dataclass(frozen=True, slots=True)
class Entropic:
    """``value``: the transport cost of the regularised coupling, to the power 1/p; an upper estimate of W_p.

    ``error`` is the ℓ1 distance of the coupling's row sums from the weights at the last step.
    """

    value: Tensor
    coupling: Tensor
    converged: bool
    iterations: int
    error: float


@dataclass(frozen=True, slots=True)
class Sliced:
    """``value``: the mean over directions (power 1/p); ``error``: its standard error; ``n`` directions."""

    value: Tensor
    error: Tensor
    n: int


@dataclass(frozen=True, slots=True)
class Unbalanced:
    """``value``: the least cost of moving and of making or losing mass; ``coupling`` need not have the marginals."""

    value: Tensor
    coupling: Tensor
    converged: bool
    iterations: int


def entropic_wasserstein(
    x: Measure | Values,
    y: Measure | Values,
    *,
    p: float = 1.0,
    ground: float = 1,
    epsilon: float = 0.05,
    tol: float = 1e-9,
    max_iter: int = 10_000,
) -> Entropic:
    r"""Sinkhorn's coupling: :math:`\min_\gamma \langle\gamma, C\rangle + \varepsilon\,\mathrm{KL}(\gamma\,|\,ab^\top)`.

    ``epsilon`` is in units of the mean cost. Iterated in the log domain, so that a small ``epsilon`` is slow but not
    wrong; ends when the marginals are within ``tol``. O(n m) per step; differentiable by unrolling. The value tends
    to :math:`W_p` from above as ``epsilon`` goes to 0. Reference: [peyre2019] ch. 4.
    """
    mu, nu = pair_of("entropic_wasserstein", x, y)
    _options("entropic_wasserstein", p, ground)
    check_positive("entropic_wasserstein", epsilon=epsilon, tol=tol)
    cost = _cost(mu, nu, p, ground)
    strength = epsilon * float(cost.detach().mean()) or 1.0
    log_a, log_b = mu.mass.to(cost).log(), nu.mass.to(cost).log()
    f, g = torch.zeros_like(log_a), torch.zeros_like(log_b)
    error, steps = math.inf, 0
    while steps < max_iter and error > tol:
        steps += 1
        f = -strength * torch.logsumexp(log_b + (g - cost) / strength, 1)
        g = -strength * torch.logsumexp(log_a[:, None] + (f[:, None] - cost) / strength, 0)
        coupling = (log_a[:, None] + log_b + (f[:, None] + g - cost) / strength).exp()
        error = float((coupling.detach().sum(1) - log_a.detach().exp()).abs().sum())
    value = (coupling * cost).sum() ** (1 / p)
    return Entropic(value, coupling.detach(), error <= tol, steps, error)


def sliced_wasserstein(
    x: Measure | Values,
    y: Measure | Values,
    *,
    p: float = 2.0,
    directions: int = 128,
    generator: torch.Generator | None = None,
) -> Sliced:
    r"""Mean over unit directions of the distance on the line: :math:`(\mathbb{E}_\theta W_p^p(\theta_\#\mu,
    \theta_\#\nu))^{1/p}`, by ``directions`` random ones.

    Exact in one dimension, where it is :math:`W_p` itself; never above :math:`W_p` with ground ℓ2. O(K n (d + log n)).
    The standard error is that of the mean over directions, carried through the root. Reference: [bonneel2015].
    """
    mu, nu = pair_of("sliced_wasserstein", x, y)
    _options("sliced_wasserstein", p, 2)
    check_least("sliced_wasserstein", 2, directions=directions)
    kind = torch.promote_types(mu.points.dtype, nu.points.dtype)
    theta = torch.randn(mu.dim, directions, generator=generator, dtype=torch.float64).to(mu.points.device)
    theta = theta / theta.norm(dim=0)
    u, v = mu.points.double() @ theta, nu.points.double() @ theta
    powers = _line(u, v, mu.mass.double(), nu.mass.double(), p)
    mean = powers.mean()
    value = torch.where(mean > 0, mean.clamp_min(1e-300) ** (1 / p), mean * 0)
    spread = powers.detach().std() / directions**0.5
    error = spread * value.detach() / (p * mean.detach()) if float(mean.detach()) > 0 else spread
    return Sliced(value.to(kind), error.to(kind), directions)


def unbalanced_transport(
    x: Measure | Values,
    y: Measure | Values,
    *,
    penalty: float,
    p: float = 1.0,
    ground: float = 1,
    tol: float = 1e-9,
    max_iter: int = 100_000,
) -> Unbalanced:
    r"""Transport in which mass may be left or made at a price: :math:`\min_\gamma \langle\gamma, C\rangle +
    \lambda\,\mathrm{KL}(\gamma 1\,|\,a) + \lambda\,\mathrm{KL}(\gamma^\top 1\,|\,b)`, ``penalty`` λ.

    By the majorisation–minimisation step :math:`\gamma \leftarrow \gamma \sqrt{\frac{a}{\gamma 1}\frac{b}{\gamma^\top
    1}}\, e^{-C/2\lambda}`, without entropy ([chapel2021]). The penalty in units of the cost: as λ grows the value
    tends to :math:`W_p^p` from below; as it shrinks, to 0. It is a cost, not a distance. No gradients.
    """
    mu, nu = pair_of("unbalanced_transport", x, y)
    _options("unbalanced_transport", p, ground)
    check_positive("unbalanced_transport", penalty=penalty, tol=tol)
    with torch.no_grad():
        cost = _cost(mu, nu, p, ground).double()
        a, b = mu.mass.to(cost), nu.mass.to(cost)
        gibbs = (-cost / (2 * penalty)).exp()
        coupling, value, steps, converged = a[:, None] * b, math.inf, 0, False
        while steps < max_iter and not converged:
            steps += 1
            left, right = coupling.sum(1), coupling.sum(0)
            factor = _ratio(a, left).sqrt()[:, None] * _ratio(b, right).sqrt()
            coupling = coupling * factor * gibbs
            new = float((coupling * cost).sum() + penalty * (_kl(coupling.sum(1), a) + _kl(coupling.sum(0), b)))
            converged = abs(value - new) <= tol * max(abs(new), 1e-300)
            value = new
    price = torch.tensor(value).to(mu.points)
    return Unbalanced(price, coupling.to(mu.points), converged, steps)


def _cost(mu: Measure, nu: Measure, p: float, ground: float) -> Tensor:
    difference = mu.points[:, None] - nu.points[None].to(mu.points)
    return torch.linalg.vector_norm(difference, ord=ground, dim=-1) ** p


def _line(u: Tensor, v: Tensor, a: Tensor, b: Tensor, p: float) -> Tensor:
    """W_p^p of weighted columns ``[n, k]`` and ``[m, k]``, column by column, through quantile functions."""
    (u, i), (v, j) = u.sort(0), v.sort(0)
    up, vp = a[i].cumsum(0), b[j].cumsum(0)
    levels = torch.cat([up, vp]).sort(0).values
    steps = torch.diff(levels, dim=0, prepend=levels.new_zeros(1, levels.shape[1]))
    # A level reached by both only up to rounding makes a step of 1e-16, whose place does not matter.
    left = torch.searchsorted(up.T.contiguous(), levels.T.contiguous()).T.clamp_max(len(u) - 1)
    right = torch.searchsorted(vp.T.contiguous(), levels.T.contiguous()).T.clamp_max(len(v) - 1)
    return ((u.gather(0, left) - v.gather(0, right)).abs() ** p * steps).sum(0)


def _kl(left: Tensor, right: Tensor) -> Tensor:
    return torch.special.xlogy(left, _ratio(left, right)).sum() - left.sum() + right.sum()


def _ratio(over: Tensor, under: Tensor) -> Tensor:
    return torch.where(under > 0, over / under.clamp_min(1e-300), 0.0)
