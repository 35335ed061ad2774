"""TopoLip's theorems [chen2024] for weights drawn from N(0, σ²): as printed, and what is true instead.

The printed bounds are ``heuristic``: Theorem 1 is false (two atoms exceed it exponentially, its assumption granted),
Theorem 2 takes a wrong norm, and the compositions inherit both. Their numbers are kept because the paper argues with
them. The corrected ones are theorems; docs/bounds.md tells the story.
"""

from __future__ import annotations

import math

from lisse.maths.bounds.bound import Bound, BoundVariant, Hypothesis, bound, checked, log, log_sum
from lisse.maths.bounds.mean_field import NOT_A_PROOF, log_bracket, needed_a


@checked(natural="d heads", above_zero="sigma t", not_negative="s")
def topolip_attention(
    d: int, sigma: float, t: float, s: float, *, heads: int | None = None, variant: BoundVariant = "corrected"
) -> Bound:
    r"""Attention with Q, K, V (and W^O) of independent N(0, σ²) entries, on measures in the ball of radius tσ.

    With :math:`a = 2\sigma\sqrt d + s` (a tail bound of a square matrix's norm), M = ``heads`` (1 where it is None):

    * ``printed``, [chen2024] Theorem 1: :math:`2t\sigma a(1 + t\sigma a^2/\sqrt d)` for ``heads=None``,
      :math:`2t\sigma\sqrt M a^2(1 + t\sigma\sqrt{M/d}\,a^2)` for ``heads=M``. One head is not the first formula: it has
      another factor a, of W^O. The assumption :math:`\|A\| \ge 2/\sigma^2` is held against the theorem's own upper
      bound :math:`\sqrt{M/d}\,a^2` of :math:`\|A\|`, and even where it holds the bound is false.
    * ``corrected``: :math:`a\,[x + (1+2x)e^{2x}]` with :math:`x = (t\sigma)^2\sqrt{M/d}\,a^2`
      (:func:`mean_field_attention`), for ``heads=M`` times :math:`\sqrt M\,(\sigma\sqrt d(1+\sqrt M) + s)`:
      W^O is d × Md. Valid where :func:`tail_probability` with one-sided tails is positive.
    """
    many = heads or 1
    a, radius = _gaussian_norm(d, d, sigma, s), t * sigma
    a_norm = math.sqrt(many / d) * a**2
    ball = Hypothesis("t > sqrt(d)", t > math.sqrt(d), f"t {t:.6g}, sqrt(d) {math.sqrt(d):.6g}")
    if variant == "printed":
        tail = math.sqrt(2 * math.log(2))
        # s is often made as q·σ: its own rounding must not decide.
        enough = s >= sigma * tail * (1 - 1e-12)
        conditions = (
            ball,
            Hypothesis("s >= sigma sqrt(2 ln 2)", enough, f"s/sigma {s / sigma:.6g}, needed {tail:.6g}"),
            needed_a(a_norm, sigma),
            NOT_A_PROOF,
        )
        value = 2 * radius * a * (1 + radius * a_norm)
        value *= 1 if heads is None else math.sqrt(many) * a
        probability = tail_probability(d, sigma, t, s, heads=heads, variant="printed")
        return bound(log(value), conditions, kind="heuristic", variant=variant, probability=probability)
    logarithm = log(a) + log_bracket(a_norm, radius)
    if heads is not None:
        logarithm += 0.5 * math.log(many) + log(_gaussian_norm(d, many * d, sigma, s))
    probability = tail_probability(d, sigma, t, s, heads=heads, two_sided=False)
    return bound(logarithm, (ball, _likely(probability)), variant=variant, probability=probability)


@checked(natural="channels", not_negative="k", above_zero="sigma t")
def topolip_convolution(
    k: int, channels: int, sigma: float, t: float, *, variant: BoundVariant = "corrected"
) -> Bound:  # fmt: skip
    r"""Mean-field convolution: (2k+1)×(2k+1) kernels, C = ``channels``, weights N(0, σ²/(C(2k+1)²)), inputs N(0, σ²).

    * ``printed``, [chen2024] Theorem 2: :math:`(2k+1)\sqrt{t\sigma C(1 + 1/((2k+1)\sqrt C))}`: the norm of a gradient
      was bounded by :math:`\sqrt{\sum|\cdot|}` in place of :math:`\sqrt{\sum(\cdot)^2}`.
    * ``corrected``: :math:`(2k+1)\,t\sigma\sqrt C\,\sqrt{1 + 1/((2k+1)^2C)}`, the true largest gradient of
      :math:`(W, y) \mapsto \sum_\beta W_\beta y_\beta` on :math:`|y_\beta| \le t\sigma`, :math:`|W_\beta| \le
      t\sigma/((2k+1)\sqrt C)`, times :math:`\sqrt C` for the C output channels. Valid where the probability that all
      :math:`2(2k+1)^2` Gaussian variables lie in that box is shown positive by a union bound.
    """
    if k != int(k):
        raise ValueError(
            f"topolip_convolution: k must be a whole number, got {k}. The kernel has 2k + 1 pixels a side."
        )
    side, reach = 2 * k + 1, t * sigma
    if variant == "printed":
        value = side * math.sqrt(reach * channels * (1 + 1 / (side * math.sqrt(channels))))
        probability = convolution_tail_probability(t, variant="printed")
        wrong = Hypothesis(
            "the printed argument is a proof", False, "a gradient's norm is taken as sqrt(sum |.|), not sqrt(sum .^2)"
        )
        conditions = (_likely(probability), wrong)
        return bound(log(value), conditions, kind="heuristic", variant=variant, probability=probability)
    value = side * reach * math.sqrt(channels) * math.sqrt(1 + 1 / (side**2 * channels))
    probability = convolution_tail_probability(t, variables=2 * side**2)
    return bound(log(value), (_likely(probability),), variant=variant, probability=probability)


@checked(natural="d heads hidden", above_zero="sigma t", not_negative="s gamma variance eps")
def topolip_transformer(
    d: int,
    sigma: float,
    t: float,
    s: float,
    *,
    heads: int = 1,
    hidden: int | None = None,
    gamma: float = 1.0,
    variance: float = 0.0,
    eps: float = 1e-5,
    variant: BoundVariant = "corrected",
) -> Bound:
    r"""The pre-LN block of [chen2024] §4.2: :math:`(\|W_1\|\|W_2\|\,L_{LN} + 1)(1 + L_{LN}\,L_{MHA})`.

    ``hidden`` is the MLP's width (d by default), ``gamma`` the largest :math:`|\gamma|` of the layer norms.

    * ``printed``: :math:`L_{LN} = \|\gamma\|_\infty`, :math:`\|W_i\| = 2\sigma\sqrt d + s`, MHA as printed. The layer
      norm's constant is false as well.
    * ``corrected``: :math:`L_{LN} = \|\gamma\|_\infty/\sqrt{v + \epsilon}`, v = ``variance`` the least variance of a
      token (0 promises nothing); :math:`\|W_i\| \le \sigma(\sqrt d + \sqrt h) + s`; and attention on the ball that the
      layer norm really reaches, :math:`R = \sqrt d\,\|\gamma\|_\infty`, so that t plays no part. It is astronomically
      large: see ``log10``. The residual sum is :math:`1 + L`, because the attention's bound is a displacement of atoms
      plus a supremum of differences, and both add to the identity's.
    """
    wide = d if hidden is None else hidden
    if variant == "printed":
        attention = topolip_attention(d, sigma, t, s, heads=heads, variant="printed")
        a = _gaussian_norm(d, d, sigma, s)
        norm = Hypothesis(
            "Lip(LN) = max|gamma|", False, "it is max|gamma|/sqrt(var + eps), unbounded as tokens become constant"
        )
        value = (a**2 * gamma + 1) * (1 + gamma * attention.value)
        return bound(
            log(value), (*attention.hypotheses, norm), kind="heuristic", variant=variant,
            probability=attention.probability,
        )  # fmt: skip
    slope = layer_norm_lipschitz(gamma, variance, eps=eps)
    a = _gaussian_norm(d, d, sigma, s)
    out = _gaussian_norm(d, heads * d, sigma, s)
    attention_log = log(a) + log_bracket(math.sqrt(heads / d) * a**2, math.sqrt(d) * gamma)
    attention_log += 0.5 * math.log(heads) + log(out)
    first = _gaussian_norm(wide, d, sigma, s)
    probability = 1 - (3 * heads + 3) * math.exp(-(s**2) / (2 * sigma**2))
    logarithm = log(first**2 * slope + 1) + log_sum(0.0, log(slope) + attention_log)
    return bound(logarithm, (_likely(probability),), variant=variant, probability=probability)


@checked(not_negative="gamma variance eps")
def topolip_resnet(
    k: int,
    channels: int,
    sigma: float,
    t: float,
    *,
    gamma: float = 1.0,
    variance: float = 1.0,
    eps: float = 0.0,
    variant: BoundVariant = "corrected",
) -> Bound:
    r"""The bottleneck block of [chen2024] §4.2: :math:`1 + L_{Conv}^3 L_{BN}^3`.

    ``printed``: Theorem 2's convolution and :math:`L_{BN} = \|\gamma\|_\infty`. ``corrected``: the corrected
    convolution and batch norm in evaluation mode, :math:`\|\gamma\|_\infty/\sqrt{v + \epsilon}`, v = ``variance`` the
    least running variance. (Def. 2 has a ReLU in each convolution; its constant is 1.)
    """
    convolution = topolip_convolution(k, channels, sigma, t, variant=variant)
    slope = gamma if variant == "printed" else batch_norm_lipschitz(gamma, variance, eps=eps)
    logarithm = log_sum(0.0, 3 * (convolution.log10 * math.log(10) + log(slope)))
    return bound(
        logarithm, convolution.hypotheses, kind=convolution.kind, variant=convolution.variant,
        probability=convolution.probability,
    )  # fmt: skip


@checked(not_negative="lipschitz", natural="points")
def topolip_bound(lipschitz: float, *, p: float = math.inf, points: int | None = None) -> Bound:
    r"""TopoLip of Definition 6, Lip(g)·Lip(f), where it exists: between matched clouds, f L-Lipschitz point by point.

    On measures with :math:`W_1` the diagram map g is not Lipschitz at all (n - 1 copies of 0 and one 1, against n
    copies of 0: distance 1/n, diagrams a constant apart). For clouds :math:`x_i, y_i` matched point by point (Rips,
    diameter convention) the bottleneck distance of any dimension is at most :math:`2\max_i\|f(x_i) - f(y_i)\|`, so
    the constant is 2L; :math:`W_p` of the n - 1 bars of H0 has :math:`2(n-1)^{1/p}L` (``p``, ``points``).
    Not the same object as the change rate that [chen2024] §5 also calls TopoLip.
    """
    if not p >= 1:
        raise ValueError(f"topolip_bound: p must be at least 1, got {p}.")
    if math.isinf(p):
        return bound(log(2 * lipschitz))
    if points is None:
        raise ValueError(f"topolip_bound: points must be given for p = {p}, got None. W_p sums over the bars of H0.")
    return bound(log(2 * lipschitz) + log(points - 1) / p)


@checked(not_negative="gamma variance eps")
def layer_norm_lipschitz(gamma: float, variance: float = 0.0, *, eps: float = 1e-5) -> float:
    r"""Largest slope of layer norm on tokens of variance at least v: :math:`\max|\gamma|/\sqrt{v + \epsilon}`.

    316.2 at a constant token with ε = 1e-5. It holds between any two such tokens, although they are not a convex set:
    with z the centred token, :math:`z \mapsto z/\sqrt{\|z\|^2/d + \epsilon}` keeps directions, and the length it gives
    is concave in ‖z‖ and zero at 0, so neither radii nor arcs are stretched by more than the slope at the least radius.
    """
    return _normalisation(gamma, variance, eps)


@checked(not_negative="gamma running_var eps")
def batch_norm_lipschitz(gamma: float, running_var: float = 1.0, *, eps: float = 1e-5) -> float:
    r"""Slope of batch norm in evaluation mode, a diagonal map: :math:`\max|\gamma|/\sqrt{v + \epsilon}`."""
    return _normalisation(gamma, running_var, eps)


@checked(natural="d tokens", above_zero="sigma t", not_negative="s")
def tail_probability(
    d: int,
    sigma: float,
    t: float,
    s: float,
    *,
    heads: int | None = None,
    tokens: int = 1,
    two_sided: bool = True,
    variant: BoundVariant = "corrected",
) -> float:
    r"""Probability guaranteed for what Theorem 1 uses: tokens in the ball of radius tσ, norms at most 2σ√d + s.

    ``printed``: :math:`\min\{1 - d/t^2, 1 - 2e^{-s^2/2\sigma^2}\}`. ``corrected``: events must hold together, so their
    failures add: :math:`1 - N d/t^2 - 2m\,e^{-s^2/2\sigma^2}` with N = ``tokens`` and m = 3 matrices (Q, K, V), or
    3M + 1 with ``heads=M`` (and W^O). Lemma 2's factor 2 pays for both ends of the spectrum; the largest singular value
    alone needs 1 (``two_sided=False``). A negative value guarantees nothing; it is returned as it is.
    """
    tail = math.exp(-(s**2) / (2 * sigma**2))
    if variant == "printed":
        return min(1 - d / t**2, 1 - 2 * tail)
    matrices = 3 if heads is None else 3 * heads + 1
    return 1 - tokens * d / t**2 - (2 if two_sided else 1) * matrices * tail


@checked(above_zero="t", natural="variables")
def convolution_tail_probability(t: float, *, variables: int = 1, variant: BoundVariant = "corrected") -> float:
    r"""Probability guaranteed that Gaussian variables stay within t standard deviations.

    ``printed``, Theorem 2: :math:`1 - 1/t^2` (Chebyshev, one variable; 0 at t = 1). ``corrected``: the union bound with
    the Gaussian tail, :math:`1 - n\,\mathrm{erfc}(t/\sqrt2)`, n = ``variables``. Negative guarantees nothing.
    """
    return 1 - 1 / t**2 if variant == "printed" else 1 - variables * math.erfc(t / math.sqrt(2))


def _gaussian_norm(rows: int, columns: int, sigma: float, s: float) -> float:
    """σ(√m + √n) + s: exceeded by a matrix of N(0, σ²) with probability at most exp(-s²/2σ²)."""
    return sigma * (math.sqrt(rows) + math.sqrt(columns)) + s


def _likely(probability: float) -> Hypothesis:
    return Hypothesis("the guaranteed probability is positive", probability > 0, f"{probability:.6g}")


def _normalisation(gamma: float, variance: float, eps: float) -> float:
    if variance + eps == 0:
        return math.inf if gamma else 0.0
    return gamma / math.sqrt(variance + eps)
