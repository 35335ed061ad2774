"""FGSM and PGD, and the form of PGD behind a published figure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

from lisse.networks.attack.checks import (
    UNIT,
    Bounds,
    check_classes,
    checked_count,
    checked_input,
    checked_labels,
    checked_size,
)
from lisse.networks.attack.logits import Classifier, answered, resting
from lisse.networks.attack.norms import Ball, Norm, lengths, norm_named, steepest

Method = Literal["fgsm", "pgd"]
#: ``objective(x, logits)``: a number to make large.
Objective = Callable[[Tensor, Tensor], Tensor]


def attack(
    model: Classifier,
    x: Any,
    y: Any,
    *,
    method: Method = "fgsm",
    norm: Norm | float | str,
    eps: float,
    step: float | None = None,
    steps: int = 10,
    start: Literal["random"] | Tensor | None = None,
    bounds: Bounds | None = UNIT,
    targeted: bool = False,
    momentum: float = 0.0,
    objective: Objective | None = None,
    generator: torch.Generator | None = None,
    batch: int | None = None,
) -> Tensor:
    r"""Inputs within ``eps`` of ``x`` at which the classifier does worse: a tensor like ``x``.

    .. math:: x_{k+1} = \Pi\left(x_k + \alpha\, u(\nabla_x L(x_k, y))\right), \quad
              u(g) = \mathrm{sign}(g) \;(\ell_\infty), \; g/\|g\|_2 \;(\ell_2)

    with L the cross-entropy, each sample's own, and :math:`\Pi` the way back into the ball around x and then into the
    box ``bounds``. ``fgsm`` is one step of α = ``eps`` ([goodfellow2015] sec. 4), ``pgd`` takes ``steps`` of α =
    ``step`` ([madry2018] sec. 2.1), by default 2.5 ``eps``/``steps``: enough to cross the ball, with room to turn.

    Args:
        model: a classifier: logits as a tensor, in a dict or in a Hugging Face output. It is used in evaluation mode
            and left as it was; gradients are taken with ``torch.autograd.grad``, so none are left on its parameters.
        x: floats ``[n, …]`` inside ``bounds``. A model of ``load_model`` takes [0, 1] and normalises inside, so that
            ``eps`` is in pixels. A plain module has to say what it takes, by ``lisse.models.declare`` or by ``bounds``;
            with neither there is a warning.
        y: classes ``[n]``; with ``targeted`` those that the model shall answer (the loss is made small).
        norm: ``linf`` or ``l2`` (also ``inf``, ``math.inf``, ``2``).
        start: where the first step begins: ``x``, ``"random"`` (uniform in the ball, from ``generator``), or a tensor
            like ``x``, which is brought into the ball and the box.
        bounds: the box; ``None`` for none.
        momentum: μ in :math:`g_{k+1} = \mu g_k + \nabla_k / \|\nabla_k\|_1`; the step follows :math:`u(g_{k+1})`
            ([dong2018] eq. 6). 0 is plain.
        objective: what to make large instead of the cross-entropy: ``objective(x, logits)``, one number.
        batch: samples at a time; all by default.

    The last iterate is returned, whether or not it misleads the model. Cost: one forward and backward per step;
    memory: that of training without weights' gradients. With ``start=None`` the result is deterministic.
    """
    if method not in get_args(Method):
        raise ValueError(f"attack: method must be one of fgsm, pgd, got {method!r}. Choose one of these.")
    values = checked_input("attack", model, x, bounds)
    labels = checked_labels("attack", y, len(values)).to(values.device)
    kind, radius = norm_named("attack", norm), checked_size("attack", "eps", eps)
    count = checked_count("attack", "steps", steps)
    if not 0 <= float(momentum) < float("inf"):
        raise ValueError(f"attack: momentum must be at least 0, got {momentum!r}. 1 is usual, 0 is none.")
    if method == "fgsm":
        if step is not None:
            raise ValueError(f"attack: step must be left out for fgsm, got {step!r}. pgd with steps=1 takes one.")
        count, length = 1, radius
    else:
        length = 2.5 * radius / count if step is None else checked_size("attack", "step", step)
    sign = -1.0 if targeted else 1.0
    size = len(values) if batch is None else checked_count("attack", "batch", batch)
    with torch.inference_mode(False), resting(model, grad=True), torch.enable_grad():
        begin = _start(start, values, Ball(values, kind, radius, bounds), generator)
        made = torch.empty_like(values)
        for at in range(0, len(values), max(1, size)):
            here = slice(at, at + size)
            clean, target = values[here], labels[here]
            ball = Ball(clean, kind, radius, bounds)
            moved = begin[here].clone()
            running: Tensor | None = None
            for turn in range(count):
                slope = _gradient(model, moved, target, objective, "attack", first=turn == 0)
                if momentum:
                    total = slope.flatten(1).abs().sum(1).clamp_min(1e-12).reshape(-1, *[1] * (slope.ndim - 1))
                    fresh = slope / total
                    running = fresh if running is None else momentum * running + fresh
                    slope = running
                moved = ball.back(moved.add_(steepest(slope, kind), alpha=sign * length))
            made[here] = moved
    return made


def clean_gradient_attack(
    model: Classifier,
    x: Any,
    y: Any,
    *,
    eps: float,
    step: float,
    steps: int = 10,
    bounds: Bounds | None = UNIT,
    objective: Objective | None = None,
    batch: int | None = None,
) -> Tensor:
    r"""The "PGD" of the code behind Figure 3 of [beshkov2022]: every gradient is taken at the clean input.

    .. math:: x' = \Pi\left(x + \min(k \alpha, \epsilon)\, \mathrm{sign}\, \nabla_x L(x, y)\right)

    with k ``steps`` of α = ``step`` in the ℓ∞ ball of ``eps``: one FGSM of another size, far weaker than PGD. It is
    here because published numbers were made with it. There the loss is cross-entropy plus the isometric loss, which
    ``objective(x, logits)`` can say; it sees ``batch`` samples at a time (all by default).
    """
    values = checked_input("clean_gradient_attack", model, x, bounds)
    labels = checked_labels("clean_gradient_attack", y, len(values)).to(values.device)
    radius = checked_size("clean_gradient_attack", "eps", eps)
    length = checked_size("clean_gradient_attack", "step", step)
    reach = min(checked_count("clean_gradient_attack", "steps", steps) * length, radius)
    size = len(values) if batch is None else checked_count("clean_gradient_attack", "batch", batch)
    with torch.inference_mode(False), resting(model, grad=True), torch.enable_grad():
        made = torch.empty_like(values)
        for at in range(0, len(values), max(1, size)):
            here = slice(at, at + size)
            slope = _gradient(model, values[here], labels[here], objective, "clean_gradient_attack")
            made[here] = values[here] + reach * slope.sign()
    return made if bounds is None else made.clamp_(*bounds)


def input_gradients(
    model: Classifier,
    x: Any,
    y: Any,
    *,
    bounds: Bounds | None = UNIT,
    objective: Objective | None = None,
    batch: int | None = None,
) -> Tensor:
    """The gradient of each sample's own cross-entropy by its input, like ``x``: what FGSM takes the sign of.

    With ``objective(x, logits)`` of that instead, for ``batch`` samples at a time (all by default).
    """
    values = checked_input("input_gradients", model, x, bounds)
    labels = checked_labels("input_gradients", y, len(values)).to(values.device)
    size = len(values) if batch is None else checked_count("input_gradients", "batch", batch)
    with torch.inference_mode(False), resting(model, grad=True), torch.enable_grad():
        made = torch.empty_like(values)
        for at in range(0, len(values), max(1, size)):
            here = slice(at, at + size)
            made[here] = _gradient(model, values[here], labels[here], objective, "input_gradients")
    return made


def _start(start: Any, x: Tensor, ball: Ball, generator: torch.Generator | None) -> Tensor:
    if start is None:
        return x
    if isinstance(start, str):
        if start != "random":
            raise ValueError(f"attack: start must be None, 'random' or a tensor like x, got {start!r}.")
        return ball.random(generator)
    given = torch.as_tensor(start)
    if given.shape != x.shape or not bool(torch.isfinite(given).all()):
        raise ValueError(
            f"attack: start must be finite and of the shape of x, {list(x.shape)}, got {list(given.shape)}. "
            "It is a point, not a shift: x + shift."
        )
    return ball.back(given.to(x).clone())


def _gradient(
    model: Classifier, x: Tensor, y: Tensor, objective: Objective | None, function: str, *, first: bool = True
) -> Tensor:
    """The gradient by ``x`` of what is to grow; labels are looked at in the ``first`` of several steps."""
    leaf = x.detach().requires_grad_()
    logits = answered(model, leaf, function=function)
    target = y.to(logits.device)
    if first:
        check_classes(function, logits, target)
    # A sum, so that each sample's gradient is that of its own loss, whatever the batch.
    loss = functional.cross_entropy(logits, target, reduction="sum") if objective is None else objective(leaf, logits)
    try:
        (found,) = torch.autograd.grad(loss, leaf)
    except RuntimeError as error:
        if "does not require grad" not in str(error) and "not have been used" not in str(error):
            raise
        raise ValueError(
            f"{function}: model must have a gradient by its input, got none ({error}). It detaches or rounds; "
            "random_search needs no gradient."
        ) from error
    # One number tells, with one pass and no copy, unless finite ones overflow in the sum.
    if not bool(torch.isfinite(found.sum())) and not bool(torch.isfinite(found).all()):
        raise ValueError(f"{function}: the gradient must be finite, got NaN or infinity. The network overflows there.")
    return found


def gradient_norms(slopes: Tensor) -> tuple[Tensor, Tensor]:
    """ℓ1 (what an ℓ∞ attack can gain per ε) and ℓ2 norms ``[n]`` of gradients ``[n, …]``."""
    return slopes.flatten(1).abs().sum(1), lengths(slopes).flatten()
