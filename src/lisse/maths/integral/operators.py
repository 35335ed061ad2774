r"""The integral operator K of [cao2022] (14) applied to values without the p × p matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from lisse.maths.given import floating
from lisse.maths.integral.kernels import PAIRED, KernelKind, TokenKernel, attention_kernel, tokens_and_scale

_Way = Literal["fused", "chunked"]
#: Scores of one chunk of rows take about this many numbers: 1 MiB of float32, which stays in a processor's cache.
SCORES_PER_CHUNK = 1 << 18


@dataclass(frozen=True)
class IntegralOperator:
    r"""The operator of a kernel between queries ``[…, p, d]`` and keys ``[…, p', d]``; see :func:`attention_kernel`.

    ``operator(v)`` is :math:`\alpha^{-1} K v` (10), ``operator.raw(v)`` is :math:`K v` (14) with the counting measure,
    ``operator.alpha()`` and ``operator.log_alpha()`` the row sums (15). None of them forms the matrix:

    - ``way`` ``"fused"`` (default) writes every kind as the softmax of one product, :math:`\tilde q_i \cdot \tilde k_j`
      up to a term of the row alone, which normalisation removes (for ``rbf_w``: :math:`2\gamma \langle w_i, w_j\rangle
      - \gamma\|w_j\|^2`, one column more), and gives it to ``scaled_dot_product_attention``: O(p d) memory, forward and
      backward. Tokens are centred first, which changes no distance and saves digits.
    - ``"chunked"`` works row block by row block: distances as they are in the matrix form, O(``chunk``) numbers at a
      time in the forward. ``raw`` and ``alpha`` are always chunked. A backward through it keeps the blocks.

    O(p p' d) time.
    """

    q: Tensor
    k: Tensor
    kind: KernelKind = "dot"
    gamma: float | None = None
    scale: float | None = None
    way: _Way = "fused"
    chunk: int = SCORES_PER_CHUNK

    def __post_init__(self) -> None:
        q, k, gamma, scale = tokens_and_scale("IntegralOperator", self.q, self.k, self.kind, self.gamma, self.scale)
        for name, value in (("q", q), ("k", k), ("gamma", gamma), ("scale", scale)):
            object.__setattr__(self, name, value)
        if self.way not in ("fused", "chunked"):
            raise ValueError(f"IntegralOperator: way must be fused or chunked, got {self.way!r}.")
        if self.chunk < 1:
            raise ValueError(f"IntegralOperator: chunk must be at least 1, got {self.chunk}.")

    @property
    def tokens(self) -> int:
        """The number of queries."""
        return self.q.shape[-2]

    @property
    def symmetric(self) -> bool:
        """Whether the kind is symmetric by its formula."""
        return self.kind in PAIRED

    def __call__(self, v: Tensor) -> Tensor:
        r""":math:`\alpha^{-1} K v` ``[…, p, e]`` for values ``[…, p', e]``."""
        v = self._values(v)
        if self.way == "chunked":
            return self._gathered(lambda block: block.softmax(-1) @ v, v.shape)
        q, k = self._factors(rows=False)
        # One width for all three, or the fused kernels fall back to the matrix; on GPUs they want it in eights.
        widest = max(q.shape[-1], v.shape[-1])
        width = widest + (-widest % 8 if q.is_cuda else 0)
        inputs = [pad(x, (0, width - x.shape[-1])) if x.shape[-1] < width else x for x in (q, k, v)]
        lead = torch.broadcast_shapes(*(x.shape[:-2] for x in inputs))
        heads = [x.expand(*lead, *x.shape[-2:]).reshape(-1, 1, *x.shape[-2:]) for x in inputs]
        outputs = scaled_dot_product_attention(heads[0], heads[1], heads[2], scale=1.0)[..., : v.shape[-1]]
        return outputs.reshape(*lead, *outputs.shape[-2:])

    def raw(self, v: Tensor) -> Tensor:
        r""":math:`K v` ``[…, p, e]``, not normalised."""
        v = self._values(v)
        # Values are finite, and inf times anything is inf or NaN: an overflow of K shows in the p × e sums. Its p × p
        # entries need no pass of their own.
        return self._finite(self._gathered(lambda block: block.exp_() @ v, v.shape))

    def log_alpha(self) -> Tensor:
        r""":math:`\log \alpha_i = \log \sum_j K_{ij}` ``[…, p]``."""
        return self._gathered(lambda block: block.logsumexp(-1, keepdim=True), self.k[..., :1].shape)[..., 0]

    def alpha(self) -> Tensor:
        r""":math:`\alpha_i` ``[…, p]``."""
        return self._finite(self.log_alpha().exp())

    def dense(self) -> TokenKernel:
        """The same kernel as a matrix."""
        return attention_kernel(self.q, self.k, kind=self.kind, gamma=self.gamma, scale=self.scale)

    def on(self, rows: Tensor | slice) -> IntegralOperator:
        """The operator of some of the queries alone; ``dot`` and ``gauss_qk`` only."""
        if self.symmetric:
            raise ValueError(f"IntegralOperator.on: kind must be dot or gauss_qk, got {self.kind}.")
        return replace(self, q=self.q[..., rows, :])

    def _factors(self, *, rows: bool) -> tuple[Tensor, Tensor]:
        """Two matrices whose product is log K, or log K up to a term of the row alone."""
        if self.kind == "dot":
            return self.q * (self.scale or 1.0), self.k
        w = self.q - self.k if self.symmetric else None
        if self.kind == "eq11_literal" and w is not None:
            return w * -(self.gamma or 1.0), w
        x, y = (self.q, self.k) if w is None else (w, w)
        centre = y.mean(-2, keepdim=True)
        factor = 2 * (self.gamma or 0.0) if w is not None else self.scale or 0.0
        return _with_norms(x - centre, y - centre, factor, rows=rows)

    def _blocks(self) -> Iterator[Tensor]:
        """log K, a few rows at a time."""
        left, right = self._factors(rows=True)
        width = right.shape[-2] * max(1, left[..., 0, 0].numel(), right[..., 0, 0].numel())
        step = max(1, self.chunk // width)
        for start in range(0, self.tokens, step):
            block = left[..., start : start + step, :] @ right.mT
            # A squared distance is not negative; its rounding may be.
            yield block if self.kind in ("dot", "eq11_literal") else block.clamp_max(0)

    def _gathered(self, work: Callable[[Tensor], Tensor], shape: torch.Size) -> Tensor:
        """What ``work`` makes of every block, ``[…, p, e]``, for values of ``shape``."""
        if torch.is_grad_enabled():
            return torch.cat([work(block) for block in self._blocks()], -2)
        # Written in place: small results kept between large blocks would break up the heap, which then grows.
        lead = torch.broadcast_shapes(self.q.shape[:-2], self.k.shape[:-2], shape[:-2])
        outputs = self.q.new_empty(*lead, self.tokens, shape[-1])
        start = 0
        for block in self._blocks():
            outputs[..., start : start + block.shape[-2], :] = work(block)
            start += block.shape[-2]
        return outputs

    def _values(self, v: Tensor) -> Tensor:
        values = floating("IntegralOperator", "v", v).to(self.q)
        if values.ndim < 2 or values.shape[-2] != self.k.shape[-2]:
            raise ValueError(
                f"IntegralOperator: v must be [..., {self.k.shape[-2]}, e], one row per key, got {list(values.shape)}."
            )
        return values

    def _finite(self, sums: Tensor) -> Tensor:
        if not bool(torch.isfinite(sums).all()):
            raise ValueError(
                f"IntegralOperator: scores must stay in the range of {sums.dtype} in exp, got an overflow. Use the "
                "normalised operator and log_alpha, or float64."
            )
        return sums


def _with_norms(x: Tensor, y: Tensor, factor: float, *, rows: bool) -> tuple[Tensor, Tensor]:
    """-factor/2 ‖x_i - y_j‖² as one product; without ``rows`` the term of ‖x_i‖² is left out."""
    norms = -y.square().sum(-1, keepdim=True) / 2
    left, right = [x, torch.ones_like(x[..., :1])], [y, norms]
    if rows:
        left.append(-x.square().sum(-1, keepdim=True) / 2)
        right.append(torch.ones_like(norms))
    return torch.cat(left, -1) * factor, torch.cat(right, -1)
