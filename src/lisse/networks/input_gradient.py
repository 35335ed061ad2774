"""How steep a network is at its samples, as penalties: by double backward, for a loop of one's own or a training."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def gradient_penalty(x: Tensor, logits: Tensor, y: Tensor) -> Tensor:
    r"""Mean square norm of the loss's gradient by the input: :math:`\frac1n \sum_i \|\nabla_x L(x_i, y_i)\|_2^2`.

    L is the cross-entropy; ``logits`` ``[n, c]`` were computed from ``x`` ``[n, …]``, which requires gradients. The
    result has a gradient by the weights. Exact; cost: a backward pass, and another through it (the whole step takes
    about twice a plain one's). Reference: [drucker1992].
    """
    labels = _labels("gradient_penalty", y, len(x))
    value = functional.cross_entropy(logits, labels, reduction="sum")
    return _slopes("gradient_penalty", value, x).flatten(1).square().sum(1).mean()


def jacobian_penalty(x: Tensor, logits: Tensor, *, projections: int = 1) -> Tensor:
    r"""Mean square Frobenius norm of the Jacobian of the logits by the input, estimated without bias.

    .. math:: \frac1n \sum_i \|J_i\|_F^2 = \mathbb E_v \, \frac cn \sum_i \|v_i^\top J_i\|_2^2, \quad
              v_i \text{ uniform on the sphere of } \mathbb R^c

    by ``projections`` draws of v from torch's global generators, a backward pass each. ``logits`` ``[n, c]`` were
    computed from ``x``, which requires gradients. Reference: [hoffman2019] sec. 2.3.
    """
    if isinstance(projections, bool) or not isinstance(projections, int) or projections < 1:
        raise ValueError(f"jacobian_penalty: projections must be a whole number of at least 1, got {projections!r}.")
    total = logits.new_zeros(())
    for _ in range(projections):
        ways = functional.normalize(torch.randn_like(logits), dim=1)
        slopes = _slopes("jacobian_penalty", (ways * logits).sum(), x)
        total = total + logits.shape[1] * slopes.flatten(1).square().sum(1).mean()
    return total / projections


def _slopes(function: str, value: Tensor, x: Tensor) -> Tensor:
    if not x.requires_grad:
        raise ValueError(f"{function}: x must require gradients, got a tensor that does not. x.requires_grad_() first.")
    try:
        (slopes,) = torch.autograd.grad(value, x, create_graph=True)
    except RuntimeError as error:
        if "not have been used" not in str(error):
            raise
        raise ValueError(f"{function}: logits must be computed from x, got others. Give the very tensors.") from error
    return slopes


def _labels(function: str, y: Tensor | None, n: int) -> Tensor:
    if not isinstance(y, Tensor) or y.shape != (n,) or y.is_floating_point():
        got = "none" if y is None else f"{y.dtype} of shape {list(y.shape)}" if isinstance(y, Tensor) else repr(y)
        raise ValueError(
            f"{function}: y must be a class for each of the {n} samples, got {got}. Its loss needs labels."
        )
    return y
