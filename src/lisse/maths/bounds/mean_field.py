"""Attention with given norms: as a map of measures (any number of tokens), and of sequences (a given number)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lisse.maths.bounds.bound import Bound, BoundVariant, Hypothesis, bound, checked, log, log_sum

NOT_A_PROOF = Hypothesis(
    "the printed argument is a proof",
    False,
    "two atoms R/2 and R exceed it: their ratio tends to exp(|A|R^2/4) in one dimension",
)


@checked(not_negative="value_norm a_norm radius bias_norm", above_zero="sigma")
def mean_field_attention(
    value_norm: float,
    a_norm: float,
    radius: float,
    *,
    bias_norm: float = 0.0,
    sigma: float | None = None,
    variant: BoundVariant = "corrected",
) -> Bound:
    r"""Lipschitz constant in :math:`W_1` (ℓ2 ground) of mean-field attention on measures in the ball of radius R.

    :math:`\Gamma_\mu(x) = \int e^{\langle Ax + c, y\rangle} Vy\,d\mu(y) / \int e^{\langle Ax + c, y\rangle} d\mu(y)`,
    with :math:`\|V\|` ``value_norm``, :math:`\|A\|` ``a_norm`` (the scale :math:`1/\sqrt{d/M}` included) and
    :math:`\|c\|` ``bias_norm`` (the query's bias seen by the keys, :math:`c = K^\top b_Q/\sqrt{d/M}`; a key's bias
    cancels in the softmax, a value's bias is a shift).

    ``corrected``: :math:`\|V\|\,[R^2\|A\| + (1 + 2RG)\,e^{2RG}]`, :math:`G = R\|A\| + \|c\|`. Proof: (i)
    :math:`\nabla\Gamma_\mu(x) = V\,\mathrm{Cov}(y)\,A`, and the covariance of a law on the ball is at most
    :math:`R^2`, so moving the atoms costs :math:`\|V\|R^2\|A\|`. (ii) :math:`\Gamma_\mu(x) - \Gamma_\nu(x) = \int K
    (Vy - \Gamma_\nu(x))\,d(\mu - \nu) / \int K d\mu`; the integrand has Lipschitz constant at most :math:`\sup K\,\|V\|
    (1 + 2RG)`, and :math:`\sup K/\inf K \le e^{2RG}`. ∎ It grows exponentially, and in
    :math:`W_1` with any weights it must: see :func:`mean_field_attention_below`. With a given number of equal weights
    it need not: see :func:`sequence_attention`.

    ``printed``: :math:`2R\|V\|(1 + R\|A\|)`, [chen2024] Theorem 1 before the norms are replaced by their tails. It
    assumes :math:`\|A\| \ge 2/\sigma^2` (checked where ``sigma`` is given) and is false even then: ``heuristic``.
    """
    if variant == "printed":
        conditions = [NOT_A_PROOF]
        if sigma is not None:
            conditions.append(needed_a(a_norm, sigma))
        value = 2 * radius * value_norm * (1 + radius * a_norm)
        return bound(log(value), conditions, kind="heuristic", variant=variant)
    return bound(log(value_norm) + log_bracket(a_norm, radius, bias_norm))


@checked(not_negative="out_norm")
def mean_field_multi_head(
    value_norms: Sequence[float],
    a_norms: Sequence[float],
    out_norm: float,
    radius: float,
    *,
    bias_norms: Sequence[float] | None = None,
    variant: BoundVariant = "corrected",
) -> Bound:
    r"""The same for M heads under an output map: :math:`\|W^O\| \sqrt{\sum_m L_m^2}`, :math:`L_m` the heads' bounds.

    Heads act side by side, so their differences add in squares. ``printed`` puts the printed bound of every head in
    :math:`\|W^O\|\sqrt{\sum_m L_m^2}`, which is [chen2024] Theorem 1 before the tails where all heads have equal norms.
    """
    biases = [0.0] * len(value_norms) if bias_norms is None else list(bias_norms)
    if not len(value_norms) == len(a_norms) == len(biases) or not len(value_norms):
        raise ValueError(
            f"mean_field_multi_head: value_norms, a_norms and bias_norms must have one number per head, "
            f"got {len(value_norms)}, {len(a_norms)} and {len(biases)}."
        )
    heads = [
        mean_field_attention(v, a, radius, bias_norm=c, variant=variant)
        for v, a, c in zip(value_norms, a_norms, biases, strict=True)
    ]
    logarithm = log(out_norm) + 0.5 * log_sum(*(2 * head.log10 * math.log(10) for head in heads))
    return bound(logarithm, heads[0].hypotheses, kind=heads[0].kind, variant=heads[0].variant)


@checked(not_negative="value_norm a_norm radius")
def mean_field_attention_below(value_norm: float, a_norm: float, radius: float) -> Bound:
    r"""What no upper bound can be under, in one dimension: :math:`|V| \max(1, e^{|A|R^2/4})`, ``kind="lower"``.

    Diracs give :math:`|V|`. Atoms R/2 of mass 1 - p and R of mass p → 0, with A > 0: the share of the second atom seen
    from the first moves by :math:`e^{AR^2/4}\,dp`, over the distance R/2 that dp itself travels.
    """
    return bound(log(value_norm) + a_norm * radius**2 / 4, kind="lower")


@checked(not_negative="value_norm a_norm radius bias_norm", natural="tokens")
def sequence_attention(
    value_norm: float, a_norm: float, radius: float, tokens: int, *, bias_norm: float = 0.0
) -> Bound:
    r"""Lipschitz constant of one head on sequences of n tokens in the ball of radius R, Frobenius norm on both sides.

    :math:`\|V\|\,[\sqrt n + R^2\|A\| + \sqrt n\,R\,G]`, :math:`G = R\|A\| + \|c\|` as in :func:`mean_field_attention`.
    Proof: with weights :math:`P` (rows sum to one), means :math:`m_i` and covariances :math:`C_i \le R^2` of the tokens
    under row i, :math:`df_i = V[\sum_j P_{ij}dx_j + C_i A\,dx_i + \sum_j P_{ij}(x_j - m_i)\langle g_i, dx_j\rangle]`,
    :math:`\|g_i\| \le G`. The three parts: :math:`\|P\| \le \sqrt n`; a block diagonal; and by Cauchy–Schwarz row i is
    at most :math:`\|C_i\|^{1/2}G(\sum_j P_{ij}\|dx_j\|^2)^{1/2}`, whose squares sum to :math:`n R^2G^2\|dx\|^2`. The
    set of sequences in the ball is convex. ∎ [castin2024] Theorem 3.3 has the same growth,
    :math:`\|V\|(3(\|A\|^2R^4(4n+1)+n))^{1/2}`, which is larger. Not exponential, but it grows with the tokens.

    Without a mask it also bounds :math:`W_2` (ℓ2) between inputs of N and M equal-weight tokens, with n = lcm(N, M):
    repeat tokens and couple them by a permutation. :func:`~lisse.maths.bounds.attention_between` is sharper there.
    """
    root = math.sqrt(tokens)
    spread = radius**2 * a_norm + root * radius * (radius * a_norm + bias_norm)
    return bound(log(value_norm) + log(root + spread))


def needed_a(a_norm: float, sigma: float) -> Hypothesis:
    """The assumption of [chen2024] Theorem 1 on ‖A‖."""
    needed = 2 / sigma**2
    return Hypothesis("|A| >= 2/sigma^2", a_norm >= needed, f"|A| {a_norm:.6g}, 2/sigma^2 {needed:.6g}")


def log_bracket(a_norm: float, radius: float, bias_norm: float = 0.0) -> float:
    """Logarithm of R²A + (1 + 2RG) e^{2RG}, G = RA + ‖c‖."""
    reach = 2 * radius * (radius * a_norm + bias_norm)
    if reach < 700:
        return log(radius**2 * a_norm + (1 + reach) * math.exp(reach))
    return log_sum(log(radius**2 * a_norm), math.log1p(reach) + reach)
