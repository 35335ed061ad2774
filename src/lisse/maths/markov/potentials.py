r"""Interaction potentials :math:`G(x, y) = e^{a(x, y)}`, given by their logarithm a, and lookups from keys to values.

A potential is called with queries ``[m, d]`` and keys ``[n, d']`` and gives logits ``[m, n]``; leading batch axes are
allowed. Working with a, never with G, is what keeps large logits from overflowing ([vuckovic2021] def. 3–5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Potential(Protocol):
    """Anything that gives logits ``[m, n]`` for queries ``[m, d]`` and keys ``[n, d']``."""

    def __call__(self, queries: Tensor, keys: Tensor, /) -> Tensor:
        """The logits a(q_i, k_j)."""


class Lookup(Protocol):
    """Anything that gives values ``[n, d_v]`` for keys ``[n, d]``: the function ℓ of a deterministic lookup kernel."""

    def __call__(self, keys: Tensor, /) -> Tensor:
        """The values ℓ(k_j)."""


@dataclass(frozen=True)
class DotProduct:
    r""":math:`a(x, y) = s \langle x, y \rangle`; ``scale`` :math:`1/\sqrt d` gives the scaled one of Transformers."""

    scale: float = 1.0

    def __call__(self, queries: Tensor, keys: Tensor) -> Tensor:
        """The logits ``[m, n]``."""
        q, k, scale = self.products(queries, keys)
        return scale * (q @ k.transpose(-1, -2))

    def products(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, float]:
        """Two matrices and a scale whose product the logits are."""
        _same_dimension("DotProduct", queries, keys)
        return queries, keys, self.scale


@dataclass(frozen=True, eq=False)
class Bilinear:
    r""":math:`a(x, y) = s \langle W_Q x + b_Q, W_K y + b_K \rangle` with ``wq`` ``[k, d]``, ``wk`` ``[k, d']``.

    The paper's head has the scale :math:`1/\sqrt k` ([vuckovic2021] sec. 4.2); here it is 1 unless given.
    """

    wq: Tensor
    wk: Tensor
    scale: float = 1.0
    bq: Tensor | None = None
    bk: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("wq", "wk", "bq", "bk"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, torch.as_tensor(getattr(self, name)))
        if self.wq.ndim != 2 or self.wk.ndim != 2 or len(self.wq) != len(self.wk):
            raise ValueError(
                f"Bilinear: wq and wk must be matrices with as many rows, got {list(self.wq.shape)} and "
                f"{list(self.wk.shape)}."
            )

    @property
    def matrix(self) -> Tensor:
        r"""M ``[d, d']`` of :math:`a(x, y) = x^\top M y` (without the biases)."""
        return self.scale * self.wq.T @ self.wk

    def __call__(self, queries: Tensor, keys: Tensor) -> Tensor:
        """The logits ``[m, n]``."""
        q, k, scale = self.products(queries, keys)
        return scale * (q @ k.transpose(-1, -2))

    def products(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, float]:
        """Two matrices and a scale whose product the logits are."""
        for name, points, weight in (("queries", queries, self.wq), ("keys", keys, self.wk)):
            if points.shape[-1] != weight.shape[1]:
                raise ValueError(f"Bilinear: {name} must lie in R^{weight.shape[1]}, got R^{points.shape[-1]}.")
        return _linear(queries, self.wq, self.bq), _linear(keys, self.wk, self.bk), self.scale


@dataclass(frozen=True)
class Gaussian:
    r""":math:`a(x, y) = -\gamma \|x - y\|_2^2`; ``gamma`` :math:`1/\sqrt d` is the one of [kim2021]."""

    gamma: float = 1.0

    def __post_init__(self) -> None:
        if not self.gamma > 0:
            raise ValueError(f"Gaussian: gamma must be positive, got {self.gamma}.")

    def __call__(self, queries: Tensor, keys: Tensor) -> Tensor:
        """The logits ``[m, n]``."""
        _same_dimension("Gaussian", queries, keys)
        # Differences first: the expanded square loses the digits of points that are near each other and far from 0.
        return -self.gamma * (queries.unsqueeze(-2) - keys.unsqueeze(-3)).pow(2).sum(-1)


@dataclass(frozen=True, eq=False)
class Linear:
    """The lookup ℓ(k) = W k + b, ``weight`` ``[d_v, d]``: the value matrix of a Transformer."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, keys: Tensor) -> Tensor:
        """The values ``[n, d_v]``."""
        weight = torch.as_tensor(self.weight)
        if weight.ndim != 2 or weight.shape[1] != keys.shape[-1]:
            raise ValueError(f"Linear: weight must be [d_v, {keys.shape[-1]}], got {list(weight.shape)}.")
        return _linear(keys, weight, self.bias)


@dataclass(frozen=True, eq=False)
class Table:
    """The lookup of remark 1: ℓ(k_i) = v_i for the keys ``[n, d]`` it was given, and no other. Not Lipschitz."""

    keys: Tensor
    values: Tensor

    def __post_init__(self) -> None:
        if len(self.keys) != len(self.values):
            raise ValueError(f"Table: values must be one per key, got {len(self.values)} for {len(self.keys)}.")

    def __call__(self, keys: Tensor) -> Tensor:
        """The values ``[n, d_v]``."""
        if keys.shape == self.keys.shape and torch.equal(keys, self.keys):
            return self.values
        matches = (keys.unsqueeze(-2) == self.keys).all(-1)
        if not bool(matches.any(-1).all()):
            raise ValueError("Table: keys must be among those of the table, got one that is not.")
        return self.values[matches.to(torch.uint8).argmax(-1)]


def _linear(points: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """W x + b in the type of the points: float32 weights of a network may meet float64 points."""
    return torch.nn.functional.linear(
        points, weight.to(points), None if bias is None else torch.as_tensor(bias).to(points)
    )


def _same_dimension(where: str, queries: Tensor, keys: Tensor) -> None:
    if queries.shape[-1] != keys.shape[-1]:
        raise ValueError(
            f"{where}: queries and keys must have one dimension, got {queries.shape[-1]} and {keys.shape[-1]}."
        )
