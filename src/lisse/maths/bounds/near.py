r"""Bounds of attention that use the data: on the convex hull of given tokens, and at one very input.

The bounds on a ball know only how far tokens reach. Here the logits, the spread of the values and the attention rows
are those that occur. All are for :math:`f(x, \mu) = \int e^{a(x, y)}\,Wy\,d\mu(y) / \int e^{a(x, y)}\,d\mu(y)` with
a bilinear potential; up to what is constant in y (and cancels), :math:`a(x, y) = \langle g_x, y\rangle` with
:math:`g_x = M^\top x + c`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lisse.maths.bounds.attention import lookup_norm
from lisse.maths.bounds.bound import Bound, Hypothesis, bound, log
from lisse.maths.given import Values, floating
from lisse.maths.markov.kernels import Bilinear
from lisse.maths.spectral_norm import gram_bound
from lisse.maths.transport.device import device_costs
from lisse.maths.transport.solvers import ground_distances

Ground = Literal[1, 2]
_CHUNK, _DEVICE_CHUNK = 1 << 20, 1 << 25  # numbers that exist at once


def attention_on_hull(atoms: Values, potential: Bilinear, *, lookup: Values | None = None, ground: Ground = 1) -> Bound:
    r"""A bound of :math:`\tau` of self-attention on measures that live on the convex hull E of ``atoms`` ``[n, d]``.

    .. math:: \tfrac12\,\mathrm{diam}(WE)\,\sup_e \mathrm{range}_{y \in E}\langle M^\top e, y\rangle
              + e^{r}\,(\|W\| + \sup_x \|g_x\|_*\,\mathrm{diam}(WE)), \qquad
              r = \sup_{x \in E}\bigl(\sup_y a(x, y) - \inf_y a(x, y)\bigr)

    ``lookup`` is W ``[d_v, d]`` (``None``: the identity), the norms are those of ``ground``: for ℓ1, e runs over the
    axes, :math:`\|W\|` is the largest column sum and :math:`\|\cdot\|_*` the maximum; for ℓ2 the first term is
    :math:`\tfrac14\mathrm{diam}(WE)\,\mathrm{diam}(ME)` and the others are spectral and Euclidean.

    Proof. (i) The query moves: :math:`\partial_e f(x, \mu) = \mathrm{Cov}_\Psi(Wy, \langle M^\top e, y\rangle)`, Ψ a
    law on E. A scalar of range ρ is within ρ/2 of its middle, so the norm is at most :math:`\frac\rho2\,\mathbb{E}\|Wy
    - \mathbb{E}Wy\|`; in ℓ2 both standard deviations are at most half a diameter along any direction (Popoviciu). (ii)
    The measure changes: :math:`f(x, \mu) - f(x, \nu) = \int e^{a(x,y)}(Wy - f(x, \nu))\,d(\mu - \nu) / \int
    e^{a(x,y)}d\mu`; the integrand has Lipschitz constant at most :math:`\sup_y e^{a(x,y)}(\|W\| +
    \|g_x\|_*\mathrm{diam}(WE))`, for :math:`f(x, \nu) \in WE`. (iii) Couple μ and ν optimally for :math:`W_p`: the
    image of a pair (x, y) is at most (i) times its distance and (ii) times :math:`W_1 \le W_p` apart; Minkowski. ∎
    Each supremum is one of a convex function, so it is attained at atoms and computed exactly, in O(n² d).

    It holds for every p ≥ 1, any number of tokens and any weights on E: for all pairs whose tokens are among the
    atoms. Sharp where the potential is constant. It needs attention without a mask: see the instrument's page.
    """
    where = "attention_on_hull"
    points, potential, weight = given_head(where, atoms, potential, lookup, ground)
    return HeadTerms.of(points, points, potential, weight, ground).on_hull()


def keys_on_hull(
    queries: Values, keys: Values, potential: Bilinear, *, lookup: Values | None = None, ground: Ground = 1
) -> Bound:
    r"""Proposition 3 with the data's own constants: how far attention of given queries moves over :math:`W_p` of keys.

    :math:`\max_q e^{r_q}(\|W\| + \|g_q\|_*\,\mathrm{diam}(WE))`, part (ii) of :func:`attention_on_hull`, for each of
    ``queries`` ``[m, d]`` and measures of keys on the hull E of ``keys`` ``[n, d']``. A bound of
    :math:`\max_q\|f(q, \mu) - f(q, \nu)\| / W_p(\mu, \nu)`, p ≥ 1.
    """
    where = "keys_on_hull"
    points, potential, weight = given_head(where, keys, potential, lookup, ground)
    tokens = _points(where, "queries", queries, potential.wq.shape[1])
    return HeadTerms.of(tokens, points, potential, weight, ground).keys_on_hull()


def attention_near(
    rows: Values, atoms: Values, potential: Bilinear, *, lookup: Values | None = None, ground: Ground = 1
) -> Bound:
    r"""A bound of the local Lipschitz constant of self-attention at one input, from its attention rows and its spread.

    ``rows`` P ``[n, n]`` are the attention weights at the tokens ``atoms`` ``[n, d]``; with values
    :math:`v_j = Wx_j`, their means :math:`\bar v_i = \sum_j P_{ij}v_j`, and :math:`z_j = Mx_j`,

    .. math:: df_i = \sum_j P_{ij}\,W\delta_j + \mathrm{Cov}_i(v, z)\,\delta_i
              + \sum_j P_{ij}(v_j - \bar v_i)\langle g_i, \delta_j\rangle .

    ``ground=1``: of :math:`\frac1n\sum_i\|\delta_i\|_1 \mapsto \frac1n\sum_i\|df_i\|_1`, hence of :math:`W_1` for small
    moves of tokens (a small move is its own optimal coupling): with :math:`S_j^2 = \sum_l P_{jl}\|v_l - \bar v_j\|_1^2`

    .. math:: \max_j \Bigl[\|W\|\sum_i P_{ij} + S_j\max_k \mathrm{Var}_j(z_k)^{1/2}
              + \sum_i P_{ij}\|v_j - \bar v_i\|_1\|g_i\|_\infty\Bigr].

    Proof: the sum over i of what :math:`\delta_j` does; the covariance is :math:`\sum_l P_{jl}(v_l - \bar v_j)\langle
    z_l - \bar z_j, \delta_j\rangle`, by Cauchy–Schwarz. ∎

    ``ground=2``: of the Jacobian's spectral norm, :math:`\|P\|\|W\| + \max_i\|\mathrm{Cov}_i(v, z)\|_F + \bigl(\max_j
    \sum_i P_{ij}\|\mathrm{Cov}_i(v)\|_F\|g_i\|_2^2\bigr)^{1/2}`. Proof: a block matrix; a block diagonal; and row i of
    the last part is at most :math:`\|\mathrm{Cov}_i(v)\|^{1/2}\|g_i\|(\sum_jP_{ij}\|\delta_j\|^2)^{1/2}`. ∎

    P may come from any mask and any table added to the logits, as long as neither depends on the tokens: causal
    attention and relative positions are covered. It says nothing about moves that are not small. O(n² d + n³).
    """
    where = "attention_near"
    points, potential, weight = given_head(where, atoms, potential, lookup, ground)
    p = given_rows(where, rows, len(points), len(points))
    return HeadTerms.of(points, points, potential, weight, ground).near(p)


def keys_near(
    rows: Values, queries: Values, keys: Values, potential: Bilinear, *, lookup: Values | None = None,
    ground: Ground = 1,
) -> Bound:  # fmt: skip
    r"""The same in the keys alone, queries fixed: :math:`\max_i n\max_jP_{ij}(\|W\| + \|v_j - \bar v_i\|\|g_i\|_*)`.

    A bound of :math:`\max_i\|df_i\|` over :math:`\frac1n\sum_j\|\delta_j\|`, which is :math:`W_1` of the keys for
    small moves; ``rows`` ``[m, n]`` are the weights of ``queries`` ``[m, d]`` on ``keys`` ``[n, d']``.
    """
    where = "keys_near"
    points, potential, weight = given_head(where, keys, potential, lookup, ground)
    tokens = _points(where, "queries", queries, potential.wq.shape[1])
    p = given_rows(where, rows, len(tokens), len(points))
    return HeadTerms.of(tokens, points, potential, weight, ground).keys_near(p)


# --- pieces ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeadTerms:
    r"""What the bounds near the data are made of, for one head, or for several along axes in front: float64.

    ``logits`` ``[m, n]`` (less what is constant in the keys), ``values`` v ``[n, d_v]``, ``pulls`` z ``[n, d]``,
    ``slopes`` g ``[m, d']`` and ``norm``, that of W in the norm ``ground``; ``turn`` is :math:`\|M\|_2`. For those who
    have them already.
    """

    logits: Tensor
    values: Tensor
    pulls: Tensor
    slopes: Tensor
    norm: float | Tensor
    ground: Ground = 1
    turn: float = math.nan  # ‖A‖, where the bound asks for it

    @classmethod
    def of(cls, queries: Tensor, keys: Tensor, potential: Bilinear, weight: Tensor | None, ground: Ground) -> HeadTerms:
        """From points, a potential and a matrix."""
        q = potential.scale * (queries @ potential.wq.T + (0.0 if potential.bq is None else potential.bq))
        k = keys @ potential.wk.T
        values = keys if weight is None else keys @ weight.T
        pulls = potential.scale * (k @ potential.wq)
        return cls(q @ k.T, values, pulls, q @ potential.wk, lookup_norm(weight, ground=ground), ground)

    def heads(self) -> list[HeadTerms]:
        """Those of each head."""
        sizes = torch.as_tensor(self.norm).expand(len(self.logits)).tolist()
        parts = zip(self.logits, self.values, self.pulls, self.slopes, sizes, strict=True)
        return [HeadTerms(*head, self.ground, self.turn) for head in parts]

    def on_hull(self, p: float = 1.0, count: int | None = None) -> Bound:
        """:func:`attention_on_hull`, and :func:`lisse.maths.bounds.attention_between`; queries are the keys."""
        condition = Hypothesis("tokens lie in the hull" + ("" if math.isinf(p) else ", and no mask hides any"), True)
        return bound(float(self.hull_log(p, count)), [condition])

    def hull_log(self, p: float = 1.0, count: int | None = None) -> Tensor:
        """Its natural logarithm, of each head."""
        width = _diameter(self.values, self.ground)
        if self.ground == 1:
            moving = 0.5 * width * (self.pulls.amax(-2) - self.pulls.amin(-2)).amax(-1)
        else:
            moving = 0.25 * width * _diameter(self.pulls, 2)
        reach = (self.logits.amax(-1) - self.logits.amin(-1)).amax(-1)
        steep = self.norm + self._steepness().amax(-1) * width * spread_share(p, self.ground)
        # As in :func:`concentration`.
        over = reach if count is None else math.log(count) - torch.log1p((count - 1) * torch.exp(-reach))
        logarithm = torch.logaddexp(moving.log(), over / p + steep.log())
        return logarithm.nan_to_num(math.inf, math.inf, -math.inf)

    def within(self, rows: Tensor, eps: float) -> Bound:
        """:func:`lisse.maths.bounds.attention_worst_token` within ``eps`` of an input with the attention ``rows``."""
        v, z = self.values - self.values.mean(0), self.pulls - self.pulls.mean(0)
        steep = self._steepness()
        # A weight that a float takes for 0, or whose products it does, may grow to one: it is no less than this.
        rows = rows.clamp_min(torch.finfo(rows.dtype).tiny ** 0.45)
        moved = (
            eps * (2 * steep + float(_diameter(z, 2))) + 2 * eps**2 * self.turn
        )  # range of the change of row i's logits
        spreads, pulled = (
            # Where the exponential is too large for a float the product may be 0 · inf: half a diameter always holds.
            (torch.exp(moved / 2) * _covariances(rows, x, x)[1].sqrt())
            .nan_to_num(math.inf)
            .clamp_max(float(_diameter(x, 2)) / 2)
            for x in (v, z)
        )
        spreads, pulled, steep = spreads + self.norm * eps, pulled + self.turn * eps, steep + self.turn * eps
        value = float(self.norm + (spreads * (steep + pulled)).max())
        return bound(log(value), [Hypothesis(f"no token is further than {eps:g} from its place", True, "given")])

    def keys_on_hull(self) -> Bound:
        """:func:`keys_on_hull`."""
        width = float(_diameter(self.values, self.ground))
        reach = self.logits.amax(1) - self.logits.amin(1)
        logarithm = (reach + (self.norm + self._steepness() * width).clamp_min(1e-300).log()).max()
        return bound(float(logarithm), [Hypothesis("keys lie in the hull, and no mask hides any", True)])

    def near(self, rows: Tensor) -> Bound:
        """:func:`attention_near`."""
        condition = Hypothesis("tokens move little, about this very input", True)
        return bound(float(self.near_log(rows)), [condition])

    def near_log(self, rows: Tensor) -> Tensor:
        """Its natural logarithm, of each head."""
        v, z = (x - x.mean(-2, keepdim=True) for x in (self.values, self.pulls))
        slopes, norm = self._steepness(), torch.as_tensor(self.norm, dtype=rows.dtype, device=rows.device)
        if self.ground == 1:
            apart = _distances(rows @ v, v, 1)
            spread = (rows * apart**2).sum(-1).sqrt()
            variance = (rows @ z**2 - (rows @ z) ** 2).clamp_min(0).amax(-1)
            steep = (rows * apart * slopes[..., None]).sum(-2)
            value = (norm[..., None] * rows.sum(-2) + spread * variance.sqrt() + steep).amax(-1)
        else:
            both, spreads = _covariances(rows, v, z)
            size = gram_bound(rows, iterations=32) if rows.is_cuda else torch.linalg.matrix_norm(rows, 2)
            last = (rows * (spreads * slopes**2)[..., None]).sum(-2).amax(-1)
            value = size * norm + both.amax(-1) + last.sqrt()
        return value.log().nan_to_num(math.inf, math.inf, -math.inf)

    def keys_near(self, rows: Tensor) -> Bound:
        """:func:`keys_near`."""
        v = self.values - self.values.mean(0)
        apart = _distances(rows @ v, v, self.ground)
        value = rows.shape[1] * (rows * (self.norm + apart * self._steepness()[:, None])).max()
        return bound(log(float(value)), [Hypothesis("keys move little, about these very ones", True)])

    def _steepness(self) -> Tensor:
        """The dual norm of each slope."""
        return self.slopes.abs().amax(-1) if self.ground == 1 else self.slopes.norm(dim=-1)


def concentration(reach: float, count: int | None, p: float = 1.0) -> float:
    r"""log of :math:`c^{1/p}`, :math:`c = L/(1 + (L-1)e^{-r})`: how far over the mean a weight can be, logits within r.

    ``count`` is L; ``None`` for any weights: :math:`c = e^r`.
    """
    over = reach if count is None else math.log(count) - math.log1p((count - 1) * math.exp(-reach))
    return over / p


def spread_share(p: float, ground: float) -> float:
    r"""Of a diameter D, the largest :math:`(E|X|^q)^{1/q}` of a centred X of range D, 1/p + 1/q = 1; 1 in ℓ1."""
    return 1.0 if ground == 1 else 0.25 ** (1 - 1 / min(p, 2.0))


def _covariances(p: Tensor, v: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    r"""Upper bounds of the Frobenius norms of Cov_i(v, z) and of Cov_i(v) ``[…, m]``, to six digits.

    With the Gram matrices G, H of v, z, :math:`a = Gp, b = Hp`, S the sum of a row p, the square of the norm is

    .. math:: \sum_{jk}p_jp_k(G_{jk} - a_j - a_k + p^\top a)(H_{jk} - b_j - b_k + p^\top b)
              = p^\top(G\circ H)p - 2(2-S)\,p^\top(a\circ b) + (2-S)^2\,p^\top a\;p^\top b ,

    products of matrices that all rows share; their rounding is added. Rows of which it would be more than a millionth
    (nearly all weight on one token) are summed term by term. No d × d matrix is made. O(n² (m + d)).
    """
    heads, (m, n) = p.shape[:-2], p.shape[-2:]
    p, v, z = p.reshape(-1, m, n), v.reshape(-1, n, v.shape[-1]), z.reshape(-1, n, z.shape[-1])
    scales = [x.abs().amax((-2, -1)).clamp_min(1e-300) for x in (v, z)]  # fourth powers of small numbers vanish
    v, z = (x / scale[:, None, None] for x, scale in zip((v, z), scales, strict=True))
    grams = v @ v.mT, z @ z.mT
    crosses = [p @ gram for gram in grams]
    centres = [(cross * p).sum(-1) for cross in crosses]
    excess, norms = 2 - p.sum(-1), []
    for other in (1, 0):
        square = ((p @ (grams[0] * grams[other])) * p).sum(-1)
        square = square - 2 * excess * (p * crosses[0] * crosses[other]).sum(-1)
        square = square + excess**2 * centres[0] * centres[other]
        sizes = [grams[side].abs().amax((-2, -1)) for side in (0, other)]
        rounding = (32 * (n + v.shape[-1] + z.shape[-1]) * torch.finfo(p.dtype).eps * sizes[0] * sizes[1])[:, None]
        norm = (square.clamp_min(0) + rounding).sqrt()
        per = max(1, (_DEVICE_CHUNK if p.is_cuda else _CHUNK) // n**2)
        for index in (square < 1e6 * rounding).nonzero().split(per):
            head, row = index.T
            weights, terms = p[head, row], []
            for side in (0, other):
                cross = crosses[side][head, row]
                terms.append(
                    grams[side][head] - cross[:, :, None] - cross[:, None, :] + centres[side][head, row, None, None]
                )
            mass = weights[:, :, None] * weights[:, None, :]
            norm[head, row] = (mass * terms[0] * terms[1]).sum((1, 2)).clamp_min(0).sqrt()
        norms.append((norm * (scales[0] * scales[other])[:, None]).clamp_min(1e-300))
    return norms[0].reshape(*heads, m), norms[1].reshape(*heads, m)


def _distances(x: Tensor, y: Tensor, ground: float) -> Tensor:
    """Between points ``[…, n, d]`` and ``[…, m, d]``, without cancellation."""
    if x.is_cuda:
        costs = device_costs(x.flatten(0, -3), y.flatten(0, -3), ground=ground) if x.ndim > 2 else None
        return device_costs(x[None], y[None], ground=ground)[0] if costs is None else costs.unflatten(0, x.shape[:-2])
    if x.ndim > 2:
        return torch.stack([_distances(*pair, ground) for pair in zip(x, y, strict=True)])
    return torch.from_numpy(ground_distances(x.numpy(), y.numpy(), float(ground)))


def _diameter(points: Tensor, ground: float) -> Tensor:
    return _distances(points, points, ground).amax((-2, -1))


def given_head(
    where: str, atoms: Values, potential: object, lookup: Values | None, ground: float
) -> tuple[Tensor, Bilinear, Tensor | None]:
    """Points, potential and matrix of a head, checked: float64, on the CPU."""
    if not isinstance(potential, Bilinear):
        raise TypeError(f"{where}: potential must be a Bilinear, got {type(potential).__name__}.")
    if ground not in (1, 2):
        raise ValueError(f"{where}: ground must be 1 or 2, got {ground}.")
    wq, wk = (weight.detach().double().cpu() for weight in (potential.wq, potential.wk))
    bq = None if potential.bq is None else potential.bq.detach().double().cpu()
    points = _points(where, "atoms", atoms, potential.wk.shape[1])
    weight = None if lookup is None else _points(where, "lookup", lookup, points.shape[1])
    return points, Bilinear(wq, wk, potential.scale, bq), weight


def _points(where: str, name: str, values: Values, width: int) -> Tensor:
    points = floating(where, name, values).detach().double().cpu()
    if points.ndim != 2 or len(points) == 0 or points.shape[1] != width:
        raise ValueError(f"{where}: {name} must have shape [n, {width}], got {list(points.shape)}.")
    return points


def given_rows(where: str, values: Values, m: int, n: int) -> Tensor:
    """Attention rows, checked; their sums are 1 to the rounding of float64."""
    rows = floating(where, "rows", values).detach().double().cpu()
    if rows.shape != (m, n):
        raise ValueError(f"{where}: rows must have shape [{m}, {n}], got {list(rows.shape)}.")
    off = float((rows.sum(1) - 1).abs().max())
    if float(rows.min()) < 0 or not off <= 1e-4:
        raise ValueError(f"{where}: rows must not be negative and must sum to 1, got rows off by {off:g}.")
    return rows / rows.sum(1, keepdim=True)
