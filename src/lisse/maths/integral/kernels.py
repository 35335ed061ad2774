r"""The kernels of [cao2022] (6), (9), (11), (13) in their four readings, and their row normalisation (15)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import torch
from torch import Tensor

from lisse.maths.given import floating

KernelKind = Literal["dot", "gauss_qk", "rbf_w", "eq11_literal"]
#: Kinds that are a function of w = q - k at both ends, and so need as many queries as keys.
PAIRED = ("rbf_w", "eq11_literal")


@dataclass(frozen=True)
class TokenKernel:
    r"""A kernel on tokens: ``scores`` ``[…, p, p']`` are the logarithms of ``raw``.

    ``matrix`` :math:`A = \alpha^{-1} K` is row-stochastic, by a softmax that does not overflow. ``raw`` K and ``alpha``
    :math:`\alpha_i = \sum_j K_{ij}` ``[…, p]`` are those of (9) and (15); where they leave the range of the dtype an
    error says so, and ``matrix`` and ``log_alpha`` still work.
    """

    scores: Tensor
    kind: KernelKind
    gamma: float | None
    scale: float | None

    @cached_property
    def matrix(self) -> Tensor:
        """A ``[…, p, p']``, rows that sum to 1."""
        return self.scores.softmax(-1)

    @cached_property
    def raw(self) -> Tensor:
        """K ``[…, p, p']``, not normalised."""
        raw = self.scores.exp()
        if not bool(torch.isfinite(raw).all()):
            raise ValueError(
                f"TokenKernel: scores must be below {torch.finfo(raw.dtype).max:.3g} in exp for raw, got up to "
                f"{float(self.scores.detach().max()):.3g}. Use matrix and log_alpha, or float64."
            )
        return raw

    @property
    def log_alpha(self) -> Tensor:
        """log α ``[…, p]``."""
        return self.scores.logsumexp(-1)

    @property
    def alpha(self) -> Tensor:
        """α ``[…, p]``, the row sums of ``raw``."""
        return self.raw.sum(-1)

    @property
    def symmetric(self) -> bool:
        """Whether the kind is symmetric by its formula, for any queries and keys."""
        return self.kind in PAIRED

    def __call__(self, v: Tensor) -> Tensor:
        """The integral transform (10): A v for values ``[…, p', d]``."""
        values = floating("TokenKernel", "v", v)
        if values.ndim < 2 or values.shape[-2] != self.scores.shape[-1]:
            raise ValueError(
                f"TokenKernel: v must be [..., {self.scores.shape[-1]}, d], one row per key, got {list(values.shape)}."
            )
        return self.matrix @ values.to(self.scores)


def attention_kernel(
    q: Tensor, k: Tensor, *, kind: KernelKind = "dot", gamma: float | None = None, scale: float | None = None
) -> TokenKernel:
    r"""The attention kernel between queries ``[…, p, d]`` and keys ``[…, p', d]``.

    ==================  ==============================================================  ================================
    kind                K\ :sub:`ij`                                                    in [cao2022]
    ==================  ==============================================================  ================================
    ``dot``             :math:`\exp(\langle q_i, k_j\rangle/\sqrt d)`                   (6), and (9) corrected
    ``gauss_qk``        :math:`\exp(-\|q_i - k_j\|^2 / 2\sqrt d)`                       the third term of (12)
    ``rbf_w``           :math:`\exp(-\gamma \|w_i - w_j\|^2)`, :math:`w = q - k`        (13) with the RBF of the text
    ``eq11_literal``    :math:`\exp(-\gamma \langle w_i, w_j\rangle)`                   (11) as printed
    ==================  ==============================================================  ================================

    ``rbf_w`` is the symmetric, positive semidefinite one that Theorems 5.1 and 5.2 need. ``eq11_literal`` is not an
    RBF: it repels what is alike, opposite in sign to (13). ``gauss_qk`` equals ``dot`` after row normalisation exactly
    where all :math:`\|k_j\|` are the same; the norms of queries cancel.

    ``gamma`` is that of ``rbf_w`` and ``eq11_literal`` (default :math:`1/2\sqrt d`) and has no part in the other two;
    ``scale`` stands for :math:`1/\sqrt d` in ``dot`` and ``gauss_qk``. O(p p' d) time, O(p p') memory:
    :class:`~lisse.maths.integral.IntegralOperator` needs no matrix.
    """
    q, k, gamma, scale = tokens_and_scale("attention_kernel", q, k, kind, gamma, scale)
    return TokenKernel(_scores(q, k, kind, gamma, scale), kind, gamma, scale)


def kernel_scores(
    q: Tensor, k: Tensor, *, kind: KernelKind = "dot", gamma: float | None = None, scale: float | None = None
) -> Tensor:
    """log K ``[…, p, p']`` of :func:`attention_kernel`."""
    q, k, gamma, scale = tokens_and_scale("kernel_scores", q, k, kind, gamma, scale)
    return _scores(q, k, kind, gamma, scale)


@dataclass(frozen=True, slots=True)
class Decomposition:
    r"""The three terms of (12), :math:`\langle q_i, k_j\rangle = \tfrac12\|q_i\|^2 + \tfrac12\|k_j\|^2 - \tfrac12\|q_i
    - k_j\|^2`.

    ``query`` ``[…, p]``, ``key`` ``[…, p']`` and ``difference`` ``[…, p, p']`` (negative) sum to the dot product.
    ``key_spread`` ``[…]`` is the standard deviation of the key term over keys times the scale: the only part of the two
    moment terms that a softmax sees, 0 where keys have one length. ``shares`` ``[…, 3]`` are the mean absolute sizes of
    the three, divided by their sum: the paper says that the first two are small.
    """

    query: Tensor
    key: Tensor
    difference: Tensor
    key_spread: Tensor
    shares: Tensor


def dot_decomposition(q: Tensor, k: Tensor, *, scale: float | None = None) -> Decomposition:
    r"""The decomposition (12) of dot products of queries ``[…, p, d]`` and keys ``[…, p', d]``. O(p p' d)."""
    q, k, _, factor = tokens_and_scale("dot_decomposition", q, k, "dot", None, scale)
    query, key = q.square().sum(-1) / 2, k.square().sum(-1) / 2
    difference = -_pairwise_squares(q, k) / 2
    sizes = torch.stack([query.mean(-1), key.mean(-1), -difference.mean((-2, -1))], -1)
    assert factor is not None
    return Decomposition(
        query, key, difference, factor * key.std(-1, correction=0), sizes / sizes.sum(-1, keepdim=True)
    )


def tokens_and_scale(
    where: str, q: Tensor, k: Tensor, kind: KernelKind, gamma: float | None, scale: float | None
) -> tuple[Tensor, Tensor, float | None, float | None]:
    """Queries and keys that fit each other and the kind, with γ or the scale that it uses."""
    q, k = floating(where, "q", q), floating(where, "k", k)
    if kind not in get_args(KernelKind):
        raise ValueError(f"{where}: kind must be one of {', '.join(get_args(KernelKind))}, got {kind!r}.")
    if q.ndim < 2 or k.ndim < 2 or q.shape[-1] != k.shape[-1] or not q.shape[-1]:
        raise ValueError(
            f"{where}: q and k must be [..., tokens, d] with the same d, got {list(q.shape)} and {list(k.shape)}."
        )
    if kind in PAIRED and q.shape[-2] != k.shape[-2]:
        raise ValueError(
            f"{where}: q and k must have as many tokens for {kind} (it is a function of q - k), got {q.shape[-2]} and "
            f"{k.shape[-2]}."
        )
    dtype = torch.promote_types(q.dtype, k.dtype)
    for name, value in (("gamma", gamma), ("scale", scale)):
        if value is not None and not value > 0:
            raise ValueError(f"{where}: {name} must be positive, got {value}.")
    root = q.shape[-1] ** 0.5
    if kind in PAIRED:
        return q.to(dtype), k.to(dtype), 1 / (2 * root) if gamma is None else float(gamma), None
    return q.to(dtype), k.to(dtype), None, 1 / root if scale is None else float(scale)


def _scores(q: Tensor, k: Tensor, kind: KernelKind, gamma: float | None, scale: float | None) -> Tensor:
    if kind in PAIRED:
        w = q - k
        assert gamma is not None
        return -gamma * (_pairwise_squares(w, w) if kind == "rbf_w" else w @ w.mT)
    assert scale is not None
    return scale * (q @ k.mT if kind == "dot" else -_pairwise_squares(q, k) / 2)


def _pairwise_squares(x: Tensor, y: Tensor) -> Tensor:
    """‖x_i - y_j‖² ``[…, p, p']`` as one matrix product, around a common centre so that few digits cancel."""
    centre = y.mean(-2, keepdim=True)
    x, y = x - centre, y - centre
    square = x.square().sum(-1)[..., :, None] + y.square().sum(-1)[..., None, :] - 2 * (x @ y.mT)
    return square.clamp_min(0)
