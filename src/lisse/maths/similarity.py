r"""Similarity of representations: linear CKA [kornblith2019], exact and from mini-batches [nguyen2021]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from lisse.maths.given import check_word, floating

Estimator = Literal["biased", "unbiased"]


def linear_cka(x: Tensor, y: Tensor, *, estimator: Estimator = "biased") -> Tensor:
    r"""Linear centred kernel alignment of two representations ``[n, …]`` of the same n samples.

    .. math:: \mathrm{CKA} = \frac{\|Y^\top X\|_F^2}{\|X^\top X\|_F\, \|Y^\top Y\|_F}

    with centred features: 1 where one is a rotation and scaling of the other, at most 1, at least 0. ``"biased"`` is
    that; for n not much larger than the dimension it is near 1 for any two random clouds. ``"unbiased"`` replaces each
    term by the U-statistic of HSIC ([song2012] eq. 5; needs n ≥ 4), whose mean is 0 for independent ones, and which can
    be below 0. O(n d min(n, d)) time. A representation that is one point gives NaN.
    """
    check_word("linear_cka", get_args(Estimator), estimator=estimator)
    a, b = _flat("linear_cka", "x", x), _flat("linear_cka", "y", y)
    n = len(a)
    if len(b) != n:
        raise ValueError(f"linear_cka: x and y must have as many samples, got {n} and {len(b)}.")
    least = 2 if estimator == "biased" else 4
    if n < least:
        raise ValueError(f"linear_cka: x must hold at least {least} samples, got {n}.")
    dtype = torch.promote_types(a.dtype, b.dtype)
    a, b = (part.to(dtype) - part.to(dtype).mean(0) for part in (a, b))
    if estimator == "unbiased":
        return gram_cka(a @ a.T, b @ b.T)
    norm = torch.linalg.matrix_norm
    if n < max(a.shape[1], b.shape[1]):
        left, right = a @ a.T, b @ b.T
        return (left * right).sum() / (norm(left) * norm(right))
    return norm(b.T @ a).square() / (norm(a.T @ a) * norm(b.T @ b))


def gram_cka(a: Tensor, b: Tensor) -> Tensor:
    """The unbiased :func:`linear_cka` of two representations by the Gram matrices ``[n, n]`` of centred points."""
    grams = torch.stack([a, b])
    table = _hsic(grams, grams)
    return table[0, 1] / (table[0, 0].clamp_min(0) * table[1, 1].clamp_min(0)).sqrt()


class CKAStream:
    r"""Linear CKA between all pairs of layers, batch by batch: the mini-batch estimator of [nguyen2021].

    ``update(xs)`` takes one batch of every layer, ``[b, …]`` each (b ≥ 4); ``update(xs, ys)`` compares the layers of
    two models. The unbiased HSIC of each batch is averaged before the ratio is taken, so that the result does not
    depend on the batch size but for noise. Memory: L b² numbers, whatever the layers' widths.
    """

    def __init__(self) -> None:
        self._cross: list[Tensor] = []
        self._left: list[Tensor] = []
        self._right: list[Tensor] = []
        self._shape: tuple[int, int] | None = None

    def update(self, xs: Sequence[Tensor], ys: Sequence[Tensor] | None = None) -> None:
        """Add a batch."""
        left = _grams(xs)
        right = left if ys is None else _grams(ys)
        if left.shape[1] != right.shape[1]:
            raise ValueError(
                f"CKAStream: xs and ys must be of the same samples, got {left.shape[1]} and {right.shape[1]}."
            )
        shape = (len(left), len(right))
        if self._shape not in (None, shape):
            raise ValueError(f"CKAStream: every batch must have as many layers, got {shape} after {self._shape}.")
        self._shape = shape
        cross = _hsic(left, right)
        self._cross.append(cross.cpu())
        self._left.append((cross if ys is None else _hsic(left, left)).diagonal().cpu())
        self._right.append((cross if ys is None else _hsic(right, right)).diagonal().cpu())

    @classmethod
    def of(cls, tables: Tensor) -> CKAStream:
        """The stream of one model's layers whose batches gave these :attr:`tables`."""
        stream = cls()
        stream._cross = list(tables)
        stream._left, stream._right = ([table.diagonal() for table in tables] for _ in range(2))
        stream._shape = (tables.shape[1], tables.shape[2])
        return stream

    @property
    def tables(self) -> Tensor:
        """HSIC of all pairs of layers, batch by batch, ``[k, L, M]``: what goes into the mean."""
        return torch.stack(self._cross)

    @property
    def batches(self) -> int:
        """How many batches were added."""
        return len(self._cross)

    def value(self, *, batches: Sequence[int] | None = None) -> Tensor:
        """CKA ``[L, M]`` from all batches, or from some (repeats allowed: for a bootstrap over batches)."""
        if not self._cross:
            raise ValueError("CKAStream: value must come after an update, got none.")
        picked = range(len(self._cross)) if batches is None else batches
        cross = torch.stack([self._cross[k] for k in picked]).mean(0)
        left, right = (torch.stack([side[k] for k in picked]).mean(0) for side in (self._left, self._right))
        return cross / (left[:, None].clamp_min(0) * right.clamp_min(0)).sqrt()


def _grams(layers: Sequence[Tensor]) -> Tensor:
    if not len(layers):
        raise ValueError("CKAStream: xs must hold at least one layer, got none.")
    flat = [_flat("CKAStream", "xs", layer) for layer in layers]
    n = len(flat[0])
    if n < 4 or any(len(layer) != n for layer in flat):
        raise ValueError(
            f"CKAStream: layers must have the same samples, at least 4 a batch, got {[len(layer) for layer in flat]}."
        )
    # HSIC does not see a shift; centring keeps a large common mean from eating the digits.
    centred = [layer.double() - layer.double().mean(0) for layer in flat]
    return torch.stack([layer @ layer.T for layer in centred])


def _hsic(left: Tensor, right: Tensor) -> Tensor:
    """Unbiased HSIC ``[L, M]`` of all pairs of Gram matrices ``[L, n, n]``, ``[M, n, n]``."""
    n = left.shape[-1]
    left, right = (grams - torch.diag_embed(grams.diagonal(dim1=-2, dim2=-1)) for grams in (left, right))
    inner = left.flatten(1) @ right.flatten(1).T
    rows, columns = left.sum(-1), right.sum(-1)
    sums = rows.sum(-1)[:, None] * columns.sum(-1)[None, :] / ((n - 1) * (n - 2))
    return (inner + sums - 2 / (n - 2) * rows @ columns.T) / (n * (n - 3))


def _flat(where: str, name: str, value: Tensor) -> Tensor:
    points = floating(where, name, value)
    if points.ndim < 2:
        raise ValueError(f"{where}: {name} must be [samples, features…], got shape {list(points.shape)}.")
    return points.flatten(1)
