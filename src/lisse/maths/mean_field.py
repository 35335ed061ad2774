"""Attention and convolution as maps of measures, on weighted atoms ([chen2024] Definitions 4 and 5)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lisse.maths.transport import Measure


def attention_form(query: Tensor, key: Tensor, *, heads: int = 1) -> Tensor:
    r"""The form :math:`A = K^\top Q/\sqrt{d/M}` ``[d, d]`` of one head, M = ``heads``.

    ``query`` and ``key`` are ``[h, d]``; d is the width of the tokens, as in [chen2024] Definition 4: heads of the
    full width are scaled as split ones.
    """
    query, key = torch.as_tensor(query), torch.as_tensor(key)
    if query.ndim != 2 or query.shape != key.shape:
        raise ValueError(
            f"attention_form: query and key must be matrices of one shape, got {list(query.shape)} and "
            f"{list(key.shape)}."
        )
    if heads < 1:
        raise ValueError(f"attention_form: heads must be at least 1, got {heads}.")
    return key.T @ query / math.sqrt(query.shape[1] / heads)


def attention_map(x: Tensor, measure: Measure, a: Tensor, value: Tensor) -> Tensor:
    r"""What a token at x sees: :math:`\Gamma_\mu(x) = \int e^{x^\top A^\top y}Vy\,d\mu/\int e^{x^\top A^\top y}d\mu`.

    ``x`` ``[n, d]``, ``a`` ``[d, d]``, ``value`` ``[h, d]`` to ``[n, h]``. In logarithms, so it cannot overflow; atoms
    of weight 0 are not seen. O(n m d) for m atoms. [chen2024] Definition 4.
    """
    d = measure.dim
    points = measure.points
    x, a, value = (torch.as_tensor(one).to(points) for one in (x, a, value))
    if x.ndim != 2 or x.shape[1] != d:
        raise ValueError(f"attention_map: x must have shape [n, {d}], got {list(x.shape)}.")
    if a.shape != (d, d):
        raise ValueError(f"attention_map: a must have shape [{d}, {d}], got {list(a.shape)}.")
    if value.ndim != 2 or value.shape[1] != d:
        raise ValueError(f"attention_map: value must have shape [h, {d}], got {list(value.shape)}.")
    scores = (x @ a.T) @ points.T
    if measure.weights is not None:
        scores = scores + torch.log(measure.weights)
    return torch.softmax(scores, dim=1) @ (points @ value.T)


def attention(measure: Measure, a: Tensor, value: Tensor) -> Measure:
    r"""Mean-field self-attention :math:`F(\mu) = (\Gamma_\mu)_\#\mu` of one head: atoms move, weights stay."""
    return measure.push(attention_map(measure.points, measure, a, value))


def multi_head_attention(measure: Measure, forms: Sequence[Tensor], values: Sequence[Tensor], out: Tensor) -> Measure:
    r"""The same with M heads: :math:`x \mapsto W^O(\Gamma^1_\mu(x) \oplus \dots \oplus \Gamma^M_\mu(x))`.

    ``forms`` M times ``[d, d]`` (:func:`attention_form`), ``values`` M times ``[h, d]``, ``out`` ``[o, M·h]``.
    """
    if len(forms) != len(values) or not len(forms):
        raise ValueError(
            f"multi_head_attention: forms and values must be one per head, got {len(forms)} and {len(values)}."
        )
    heads = [attention_map(measure.points, measure, a, v) for a, v in zip(forms, values, strict=True)]
    joined = torch.cat(heads, dim=1)
    out = torch.as_tensor(out).to(joined)
    if out.ndim != 2 or out.shape[1] != joined.shape[1]:
        raise ValueError(f"multi_head_attention: out must have shape [o, {joined.shape[1]}], got {list(out.shape)}.")
    return measure.push(joined @ out.T)


def convolution(kernels: Tensor, responses: Tensor, *, bias: float = 0.0, weights: Tensor | None = None) -> Tensor:
    r"""Mean-field convolution: :math:`\bar y(\alpha) = \int\sum_\beta W_\beta\,y(\alpha + \beta)\,d\mu(W, y) + b`.

    ``kernels`` ``[c, 2k+1, 2k+1]`` and ``responses`` ``[c, h, w]`` are the atoms (W, y) of μ, one per channel, with
    ``weights`` ``[c]`` (equal by default); out comes ``[h, w]``, zero outside the image. [chen2024] Definition 5
    integrates over the joint law of (W, y); read as the average over channels. The image does not depend on the point
    that is pushed forward, so F(μ) is a Dirac: :math:`W_1` of two images is the Euclidean distance.
    """
    responses = torch.as_tensor(responses)
    kernels = torch.as_tensor(kernels).to(responses)
    if kernels.ndim != 3 or responses.ndim != 3 or len(kernels) != len(responses):
        raise ValueError(
            "convolution: kernels [c, 2k+1, 2k+1] and responses [c, h, w] must have one channel each, "
            f"got {list(kernels.shape)} and {list(responses.shape)}."
        )
    if kernels.shape[1] % 2 == 0 or kernels.shape[2] % 2 == 0:
        raise ValueError(f"convolution: kernels must have odd sides, got {list(kernels.shape[1:])}.")
    c = len(kernels)
    # A measure's own checks: not negative, sum 1.
    mass = Measure(torch.arange(c, dtype=responses.dtype), weights).mass.to(responses)
    weighted = (kernels * mass[:, None, None])[None]
    padding = (kernels.shape[1] // 2, kernels.shape[2] // 2)
    return torch.nn.functional.conv2d(responses[None], weighted, padding=padding)[0, 0] + bias
