r"""How far an answer is from turning into another: margins of logits over the gradients of the margins."""

from __future__ import annotations

import torch
from torch import Tensor

from lisse.maths.given import Values, floating


def competing_margins(logits: Values, classes: Values) -> Tensor:
    r"""Margins ``[n, c - 1]`` of logits ``[n, c]`` over every other class: :math:`m_{ik} = z_{i y_i} - z_{ik}`, k ≠ y.

    ``classes`` ``[n]``: y, the class that is defended. The answer itself makes every margin at least 0; the target
    makes the least one negative where the answer is wrong. The others keep their order. A shift of all logits of a
    sample changes nothing. Gradients pass.
    """
    values = floating("competing_margins", "logits", logits)
    index = torch.as_tensor(classes, device=values.device)
    if values.ndim != 2 or values.shape[1] < 2:
        raise ValueError(f"competing_margins: logits must be [n, c], c at least 2, got shape {list(values.shape)}.")
    if index.shape != values.shape[:1] or index.is_floating_point() or index.dtype == torch.bool:
        raise ValueError(
            f"competing_margins: classes must be one index per sample, got {index.dtype} of shape {list(index.shape)}."
        )
    if len(index) and not 0 <= int(index.min()) <= int(index.max()) < values.shape[1]:
        raise ValueError(
            f"competing_margins: classes must lie in 0 … {values.shape[1] - 1}, got {int(index.min())} … "
            f"{int(index.max())}."
        )
    defended = torch.nn.functional.one_hot(index.long(), values.shape[1]).bool()
    return (values[defended][:, None] - values[~defended].reshape(len(values), -1)).reshape(len(values), -1)


def margin_distance(margins: Values, gradient_norms: Values) -> Tensor:
    r"""Estimated distance ``[n]`` of samples to the boundary of the decision: the least margin over its gradient.

    .. math:: \hat r_i = \min_{k \ne y} \frac{m_{ik}}{\|\nabla_x m_{ik}\|_*}

    over *all* competing classes ``[n, c - 1]``: the runner-up is the nearest in logits, not in inputs.
    ``gradient_norms`` are dual norms: Euclidean for Euclidean distances, :math:`\ell_1` for distances in
    :math:`\ell_\infty`. Exact for a linear classifier (the region of a class is an intersection of half-spaces, and the
    distance to its boundary is the least of the distances to their faces); elsewhere the first step of DeepFool
    ([moosavi2016]), an *estimate* that may be too long or too short, and no certificate. Temperatures and shifts of the
    logits cancel. In units of the input; negative where a margin is (a wrong answer: how far to the right one, from
    below). A margin that has no gradient is infinitely far, a margin of 0 is at the boundary. O(n c).
    """
    values = floating("margin_distance", "margins", margins)
    norms = floating("margin_distance", "gradient_norms", gradient_norms)
    if values.shape != norms.shape or values.ndim != 2 or values.shape[1] < 1:
        raise ValueError(
            f"margin_distance: margins and gradient_norms must be [n, c - 1], got {list(values.shape)} and "
            f"{list(norms.shape)}."
        )
    if bool((norms < 0).any()):
        raise ValueError(f"margin_distance: gradient_norms must be at least 0, got {float(norms.min()):.3g}.")
    return torch.where(values == 0, torch.zeros_like(values), values / norms).amin(1)
