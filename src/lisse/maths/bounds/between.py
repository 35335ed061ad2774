r"""Bounds of attention that need no exponential: the worst token (:math:`W_\infty`), and given numbers of tokens.

A head is :math:`f(x_i, X) = \sum_j P_{ij}Wx_j`, :math:`P_{ij} \propto w_je^{a(x_i, x_j)}`, :math:`a(x, y) = s\langle
Qx + b, Ky\rangle` up to what is constant in y, with gradients :math:`g_i = \partial_ya = sK^\top(Qx_i + b)` and
:math:`h_j = \partial_xa = sQ^\top Kx_j`, values :math:`v_j = Wx_j` and :math:`A = sQ^\top K`.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from lisse.maths.bounds.attention import (
    Domain,
    Interaction,
    bilinear_norms,
    constants_of,
    dot_scale,
    lookup_norm,
    query_shift,
)
from lisse.maths.bounds.bound import Bound, Hypothesis, bound, checked, log, log_sum
from lisse.maths.bounds.near import Ground, HeadTerms, concentration, given_head, given_rows, spread_share
from lisse.maths.given import Values
from lisse.maths.markov.kernels import Bilinear, Gaussian


@checked(natural="n m", not_negative="radius")
def attention_between(
    n: int | None,
    m: int | None,
    potential: Interaction,
    *,
    radius: float | None = None,
    atoms: Values | None = None,
    lookup: Values | None = None,
    p: float = 1.0,
    ground: Ground = 1,
    domain: Domain = "ball",
) -> Bound:
    r"""A bound of :math:`W_p(f\mu, f\nu)/W_p(\mu, \nu)` between inputs of ``n`` and of ``m`` equal-weight tokens.

    With :math:`L = \mathrm{lcm}(n, m)`, r the largest range of a query's logits, and D for diameters,

    .. math:: c^{1/p}\,\bigl(\|W\| + \kappa_p D(v)\max\|g\|_*\bigr) + M, \qquad
              c = \frac{L}{1 + (L-1)e^{-r}} \le \min(L, e^r) .

    ``ground=2``: :math:`\kappa_p = 4^{-(1-1/\min(p, 2))}` (1 at p = 1, ½ from p = 2 on), :math:`M = \tfrac14D(v)D(h)`.
    ``ground=1``: :math:`\kappa_p = 1`, :math:`M = \tfrac12D(v)\max_e\mathrm{range}\langle h, e\rangle` over the axes.
    ``n=None`` or ``m=None``: any number of tokens of any weights, :math:`c = e^r`; at p = ∞ c plays no part.

    Proof. Repeat tokens until both inputs have L; attention does not see it. An optimal coupling of L and L equal
    masses is a permutation (Birkhoff; for p = ∞ the coupling's support holds one). Walk along the segment from x_i to
    its partner, :math:`\delta_i` apart: row i of the derivative is

    .. math:: \sum_jP_{ij}W\delta_j + \sum_jP_{ij}(v_j - \bar v_i)\langle g_i, \delta_j\rangle
              + \sum_jP_{ij}(v_j - \bar v_i)\langle h_j, \delta_i\rangle .

    The last sum is a covariance: along a direction u in ℓ2, two standard deviations, each at most half a diameter
    (Popoviciu); in ℓ1, :math:`\|v_j - \bar v_i\|_1 \le D(v)` times half the range of :math:`\langle h, e\rangle`. The
    first two, by Hölder, are at most :math:`(\|W\| + \kappa_pD(v)\|g_i\|_*)(\sum_jP_{ij}\|\delta_j\|^p)^{1/p}`: with q
    conjugate to p and :math:`X = \langle u, v_j - \bar v_i\rangle`, :math:`E|X|^q \le D^{q-2}EX^2 \le D^q/4` for q ≥ 2
    (and for p > 2, Jensen). A weight is at most :math:`1/(1 + (L-1)e^{-r}) = c/L`, so p-th powers sum to at most
    c times :math:`\sum_j\|\delta_j\|^p`. Minkowski, and the integral along the segment; for other weights the same
    along an optimal coupling, whose atoms are the tokens, with :math:`P_{ij} \le w_je^r`. ∎

    ``radius``: tokens lie in that ball of ``domain`` (the constants are those of the ball: :math:`\|g\| \le R\|A\| +
    \|c\|`, :math:`D(v) \le 2R\|W\|`, …; ``potential`` as in :func:`attention_on_ball`, but not a Gaussian).
    ``atoms`` ``[k, d]``: tokens lie in their hull (``potential`` a ``Bilinear``); every supremum is attained at an
    atom. ``lookup`` is W, the identity by default. O(k² d).
    """
    name = "attention_between"
    if not p >= 1:
        raise ValueError(f"{name}: p must be at least 1 (inf: the worst token), got {p}.")
    if (radius is None) == (atoms is None):
        raise ValueError(f"{name}: radius must be given, or atoms, and not both. A ball, or the hull of the data.")
    count = None if n is None or m is None else math.lcm(int(n), int(m))
    if atoms is not None:
        points, head, weight = given_head(name, atoms, potential, lookup, ground)
        return HeadTerms.of(points, points, head, weight, ground).on_hull(p, count)
    if isinstance(potential, Gaussian):
        raise TypeError(
            f"{name}: potential must be a dot product or a Bilinear, got Gaussian. See gaussian_worst_token."
        )
    assert radius is not None
    weight = None if lookup is None else torch.as_tensor(lookup)
    size = lookup_norm(weight, ground=ground)
    if ground == 2:
        if domain != "ball":
            raise ValueError(f"{name}: domain must be 'ball' with ground=2, got {domain!r}.")
        a_norm, bias_norm = _norms(name, potential, weight)
        return on_ball(size, a_norm, radius, bias_norm=bias_norm, p=p, count=count)
    d = _width(name, potential, weight)
    constants = constants_of(name, d, radius, potential, domain)
    changing = concentration(constants.reach, count, p) + log(1 + constants.slope_y * constants.diameter)
    condition = Hypothesis("tokens lie in the domain" + ("" if math.isinf(p) else ", and no mask hides any"), True)
    return bound(log(size) + log_sum(changing, log(constants.slope_x * constants.diameter)), [condition])


@checked(not_negative="radius eps")
def attention_worst_token(
    potential: Interaction,
    *,
    radius: float | None = None,
    atoms: Values | None = None,
    eps: float | None = None,
    rows: Values | None = None,
    lookup: Values | None = None,
) -> Bound:
    r"""A bound of how far the worst token is moved, over how far the worst token was: :math:`W_\infty`, ℓ2.

    On the ball of ``radius``: :math:`\|W\|\,(1 + R^2\|A\| + R\max\|g\|)`, :math:`\max\|g\| = R\|A\| + \|c\|`. On the
    hull of ``atoms`` ``[n, d]``: :math:`\|W\| + \tfrac12D(v)\max_i\|g_i\| + \tfrac14D(v)D(h)`. Any number of tokens,
    of any weights, no exponential: :func:`attention_between` at p = ∞, where the proof is.

    ``atoms`` and ``eps``: for sequences whose every token is within ε of ``atoms``, with the attention ``rows`` P
    ``[n, n]`` there (by default, without a mask, the potential's own):

    .. math:: \|W\| + \max_i\sigma_i(v)\,(\|g_i\| + \|A\|\varepsilon + \sigma_i(h)), \quad
              \sigma_i(v) = \min(e^{r_i/2}\|\mathrm{Cov}_i(v)\|_F^{1/2}, \tfrac12D(v)) + \|W\|\varepsilon, \quad
              r_i = \varepsilon(2\|g_i\| + D(h)) + 2\varepsilon^2\|A\|,

    and :math:`\sigma_i(h)` alike with :math:`\|A\|`. Proof: the logits of row i change by a term of range at most
    :math:`r_i` (bilinear, and what is constant in j cancels), so :math:`P'_{ij} \le e^{r_i}P_{ij}`; then
    :math:`E'\langle u, v_j - \bar v_i\rangle^2 \le e^{r_i}\langle u, \mathrm{Cov}_i(v)u\rangle`, a variance is no more
    than that about another centre or than :math:`D(v)^2/4`, and moving every value by :math:`\|W\|\varepsilon` adds
    that much to a standard deviation. The two sums of the proof above are at most :math:`\sigma_i(v)\|g_i\|` and
    :math:`\sigma_i(v)\sigma_i(h)`. ∎

    As a map of *sequences* (token by token, equal lengths) all three hold under any mask, causal or of a window, and
    with any table added to the logits, for the proof knows of the rows only that they sum to one; as a map of
    measures (any lengths and weights) without. Layer norm, MLPs and residual sums act token by token and compose with
    it: :func:`lisse.networks.bounds.of_module`.
    """
    name = "attention_worst_token"
    if eps is None:
        if rows is not None:
            raise ValueError(f"{name}: rows must come with eps, got rows alone. The hull's bound needs none.")
        return attention_between(None, None, potential, radius=radius, atoms=atoms, lookup=lookup, p=math.inf, ground=2)
    if atoms is None or radius is not None:
        raise ValueError(f"{name}: eps must come with atoms and without radius. It is a distance from given tokens.")
    points, head, weight = given_head(name, atoms, potential, lookup, 2)
    terms = replace(HeadTerms.of(points, points, head, weight, 2), turn=bilinear_norms(head)[0])
    p = torch.softmax(terms.logits, -1) if rows is None else given_rows(name, rows, len(points), len(points))
    return terms.within(p, eps)


@checked(natural="n m", not_negative="lookup")
def gaussian_worst_token(n: int, m: int | None = None, *, lookup: float = 1.0) -> Bound:
    r"""Attention with :math:`G = e^{-\gamma\|x-y\|^2}` on all of :math:`R^d`, worst token: :math:`\|W\|(1 + 4s)`.

    s solves :math:`s\,e^{s+1} = L - 1`, L = lcm(n, m) (n = m by default): it grows like log L, whatever d and γ.

    Proof. The stretch does not depend on the unit of length, so γ = 1. With :math:`y_j = x_j - x_i` row i of the
    derivative is :math:`\sum_jP_j\delta_j + \sum_jP_j(y_j - \bar y)\,2\langle y_j, \delta_i - \delta_j\rangle`; along u
    the second sum is, by Cauchy–Schwarz and :math:`\|\delta_i - \delta_j\| \le 2`, at most :math:`4\sum_jP_j\|y_j\|^2
    = 4\sum r_je^{-r_j}/(1 + \sum e^{-r_j})`, sums over the L − 1 tokens :math:`r_j = \|y_j\|^2` away from i (i itself
    is at 0). At a maximum S every derivative vanishes, :math:`r_j = 1 + S`, and so :math:`Se^{S+1} = L - 1`. ∎
    In the style of [kim2021], who bound another norm. It replaces Theorem 2 (:func:`attention_gaussian`), which is
    false; the dot product has no such bound: its stretch grows as the square of the radius.
    """
    count = math.lcm(int(n), int(n if m is None else m))
    high = 1.0
    while log(high) + high + 1 < log(count - 1):
        high *= 2
    low = 0.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if log(middle) + middle + 1 < log(count - 1) else (low, middle)
    return bound(log(lookup) + log(1 + 4 * high))


def on_ball(
    value_norm: float, a_norm: float, radius: float, *, bias_norm: float = 0.0, p: float = math.inf,
    count: int | None = None,
) -> Bound:  # fmt: skip
    r"""ℓ2, by norms: :math:`\|W\|\,[c^{1/p}(1 + 2\kappa_pRG) + R^2\|A\|]`, :math:`G = R\|A\| + \|c\|`, r = 2RG.

    At p = ∞ the worst token's :math:`\|W\|(1 + RG + R^2\|A\|)`; at p = 1 and any weights ``mean_field_attention``.
    """
    steep = radius * (radius * a_norm + bias_norm)
    changing = concentration(2 * steep, count, p) + log(1 + 2 * steep * spread_share(p, 2))
    condition = Hypothesis("tokens lie in the ball" + ("" if math.isinf(p) else ", and no mask hides any"), True)
    return bound(log(value_norm) + log_sum(changing, log(radius**2 * a_norm)), [condition])


def of_token_maps(
    value_norm: float, spread: float, scale: float, query: tuple[float, float], key: tuple[float, float]
) -> float:
    r"""Worst token, values, queries and keys being any maps of tokens: :math:`L_v + \sigma_vs(\rho_qL_k + \rho_kL_q)`.

    ``value_norm`` is :math:`L_v`, ``spread`` :math:`\sigma_v` half the diameter of the values, ``query`` and ``key``
    the slope L and the largest norm ρ of a query and of a key. It holds with any mask and table; with rotations of
    queries and keys by their positions; with logits that are then capped by a function of slope at most 1.

    Proof. In row i, :math:`t_j = \tau_{ij}s(\langle\partial q_i, k_j\rangle + \langle q_i, \partial k_j\rangle)` with
    rotated q, k and τ the cap's slope, so :math:`|t_j| \le s(L_q\rho_k\|\delta_i\| + \rho_qL_k\|\delta_j\|)`; and
    :math:`|\sum_jP_{ij}\langle u, v_j - \bar v_i\rangle t_j| \le \sigma_v\max|t_j|`. ∎
    """
    return value_norm + spread * scale * (query[1] * key[0] + key[1] * query[0])


# --- norms ------------------------------------------------------------------------------------------------------------


def _norms(name: str, potential: Interaction, weight: torch.Tensor | None) -> tuple[float, float]:
    """‖A‖ and ‖c‖ of a potential."""
    if isinstance(potential, Bilinear):
        return bilinear_norms(potential)[0], float(query_shift(potential).norm())
    return dot_scale(name, _width(name, potential, weight) if potential == "scaled" else 1, potential), 0.0


def _width(name: str, potential: Interaction, weight: torch.Tensor | None) -> int:
    if isinstance(potential, Bilinear):
        return int(potential.wk.shape[1])
    if weight is None:
        raise ValueError(
            f"{name}: lookup must be given with potential={potential!r}, got None. It tells the dimension."
        )
    return int(weight.shape[1])
