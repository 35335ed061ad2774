"""FGSM, PGD and APGD, and the form of PGD behind a published figure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from lisse.maths.given import all_finite, check_word
from lisse.networks.answers import Classifier, logits_at, resting, unsquashed
from lisse.networks.attack.adaptive import climbed_adaptively
from lisse.networks.attack.checks import (
    UNIT,
    Bounds,
    check_classes,
    check_unit,
    checked_count,
    checked_samples,
    checked_size,
)
from lisse.networks.attack.losses import AttackLoss, attack_losses, lost_margins
from lisse.networks.attack.norms import Norm, NormBall, lengths, norm_named, steepest

Method = Literal["fgsm", "pgd", "apgd"]
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
    restarts: int = 1,
    loss: AttackLoss = "margin",
    keep: Literal["best", "last"] = "best",
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

    with L each sample's own loss, and :math:`\Pi` the way back into the ball around x and then into the box ``bounds``.
    ``fgsm`` is one step of α = ``eps`` ([goodfellow2015] sec. 4, there with ``loss="cross-entropy"``), ``pgd`` takes
    ``steps`` of α = ``step`` ([madry2018] sec. 2.1), by default 2.5 ``eps``/``steps``: enough to cross the ball, with
    room to turn. ``apgd`` finds its step itself ([croce2020]): the one to trust, with 50 to 100 ``steps``.

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
        restarts: how often in all; every start after the first is random, and goes on for the samples whose answer
            stands still.
        loss: ``margin``, ``dlr`` or ``cross-entropy`` (:func:`~lisse.networks.attack.losses.attack_losses`). With the
            first two the temperature of the logits changes nothing.
        keep: of ``pgd``, the ``best`` iterate of each sample, that of its largest lost margin
            :math:`\max_{c \ne y} z_c - z_y`, or the ``last``, as in the papers' programs.
        bounds: the box; ``None`` for none.
        momentum: μ in :math:`g_{k+1} = \mu g_k + \nabla_k / \|\nabla_k\|_1`; the step follows :math:`u(g_{k+1})`
            ([dong2018] eq. 6). 0 is plain. Not for ``apgd``, which has its own.
        objective: what to make large instead of ``loss``: ``objective(x, logits)``, one number. Not for ``apgd``.
        batch: samples at a time; all by default.

    Cost: one forward and backward per step and start, and a forward for the best; memory: that of training without
    weights' gradients. With ``start=None`` and one start the result is deterministic.
    """
    check_word("attack", get_args(Method), method=method)
    check_word("attack", get_args(AttackLoss), loss=loss)
    check_word("attack", ("best", "last"), keep=keep)
    values, labels = checked_samples("attack", model, x, y, bounds)
    kind, radius = norm_named("attack", norm), checked_size("attack", "eps", eps)
    check_unit("attack", radius, kind, bounds, values[0].numel() if len(values) else None)
    count, starts = checked_count("attack", "steps", steps), checked_count("attack", "restarts", restarts)
    if not 0 <= float(momentum) < float("inf"):
        raise ValueError(f"attack: momentum must be at least 0, got {momentum!r}. 1 is usual, 0 is none.")
    if method == "apgd" and (step is not None or momentum or objective is not None):
        raise ValueError("attack: step, momentum and objective must be left out for apgd, which has its own.")
    if method == "fgsm" and step is not None:
        raise ValueError(f"attack: step must be left out for fgsm, got {step!r}. pgd with steps=1 takes one.")
    if method == "fgsm":
        count, length = 1, radius
    else:
        length = 2.5 * radius / count if step is None else checked_size("attack", "step", step)
    with torch.inference_mode(False):
        widest = NormBall(values, kind, radius, bounds)
        begins = [_start(start, values, widest, generator), *(widest.random(generator) for _ in range(1, starts))]
    climb = _Climb(
        model, kind, radius, bounds, method == "apgd", loss if objective is None else objective, count, length,
        -1.0 if targeted else 1.0, momentum, keep == "best" and method == "pgd", starts > 1,
    )  # fmt: skip

    def climbed(part: slice) -> Tensor:
        centre, target = values[part], labels[part]
        result, margin = climb.climbed(begins[0][part], centre, target)
        for begin in begins[1:]:
            index = (margin <= 0).nonzero()[:, 0]
            if not len(index):
                break
            moved, lost = climb.climbed(begin[part][index], centre[index], target[index])
            better = lost > margin[index]
            result = result.index_put((index[better],), moved[better])
            margin = margin.index_put((index[better],), lost[better])
        return result

    return _by_parts("attack", model, values, batch, climbed)


@dataclass(frozen=True)
class _Climb:
    """The way uphill of :func:`attack` from a point: ``way`` is -1 where a class shall be reached."""

    model: Classifier
    norm: Norm
    eps: float
    bounds: Bounds | None
    adaptive: bool
    loss: AttackLoss | Objective
    steps: int
    length: float
    way: float
    momentum: float
    best: bool  # of all iterates, or the last
    measured: bool  # whether the margin is asked for at the end: other starts follow

    def climbed(self, begin: Tensor, centre: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Where it ends, and the lost margins there ``[n]``."""
        ball = NormBall(centre, self.norm, self.eps, self.bounds)

        def uphill(point: Tensor, first: bool) -> tuple[Tensor, Tensor, Tensor]:
            slope, value, margin = _slopes(self.model, point, target, self.loss, "attack", first=first)
            return self.way * slope, self.way * value, self.way * margin

        if self.adaptive:
            return climbed_adaptively(uphill, ball, begin, self.steps)
        best, worst = begin, torch.full((len(begin),), -torch.inf, device=begin.device)
        moved = begin.clone()
        running: Tensor | None = None
        for turn in range(self.steps):
            slope, _, margin = uphill(moved, turn == 0)
            if self.best:
                best, worst = _better(moved, margin, best, worst)
            if self.momentum:
                total = slope.flatten(1).abs().sum(1).clamp_min(1e-12).reshape(-1, *[1] * (slope.ndim - 1))
                slope = running = slope / total + (0.0 if running is None else self.momentum * running)
            moved = ball.back(moved.add_(steepest(slope, self.norm), alpha=self.length))
        if not (self.best or self.measured):
            return moved, worst
        with torch.no_grad():
            logits = logits_at(self.model, moved, function="attack")
            margin = self.way * lost_margins(logits, target.to(logits.device)).to(moved.device)
        return _better(moved, margin, best, worst) if self.best else (moved, margin)


def _better(moved: Tensor, margin: Tensor, best: Tensor, worst: Tensor) -> tuple[Tensor, Tensor]:
    """The points of the larger margin, and it; ``moved`` may be changed in place afterwards."""
    rises = (margin > worst).reshape(-1, *[1] * (moved.ndim - 1))
    return torch.where(rises, moved, best), torch.maximum(margin.to(worst), worst)


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
    values, labels = checked_samples("clean_gradient_attack", model, x, y, bounds)
    radius = checked_size("clean_gradient_attack", "eps", eps)
    length = checked_size("clean_gradient_attack", "step", step)
    reach = min(checked_count("clean_gradient_attack", "steps", steps) * length, radius)

    def stepped(part: slice) -> Tensor:
        slope = _gradient(model, values[part], labels[part], objective, "clean_gradient_attack")
        return values[part] + reach * slope.sign()

    moved = _by_parts("clean_gradient_attack", model, values, batch, stepped)
    return moved if bounds is None else moved.clamp_(*bounds)


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
    values, labels = checked_samples("input_gradients", model, x, y, bounds)

    def slopes(part: slice) -> Tensor:
        return _gradient(model, values[part], labels[part], objective, "input_gradients")

    return _by_parts("input_gradients", model, values, batch, slopes)


def _by_parts(
    function: str, model: Classifier, values: Tensor, batch: int | None, result: Callable[[slice], Tensor]
) -> Tensor:
    """``result`` of every ``batch`` samples (all by default), like ``values``: the model rests, gradients flow."""
    size = max(1, len(values)) if batch is None else checked_count(function, "batch", batch)
    with torch.inference_mode(False), resting(model, grad=True), torch.enable_grad():
        output = torch.empty_like(values)
        for begin in range(0, len(values), size):
            part = slice(begin, begin + size)
            output[part] = result(part)
    return output


def _start(start: Any, x: Tensor, ball: NormBall, generator: torch.Generator | None) -> Tensor:
    if start is None:
        return x
    if isinstance(start, str):
        if start != "random":
            raise ValueError(f"attack: start must be None, 'random' or a tensor like x, got {start!r}.")
        return ball.random(generator)
    point = torch.as_tensor(start)
    if point.shape != x.shape or not bool(torch.isfinite(point).all()):
        raise ValueError(
            f"attack: start must be finite and of the shape of x, {list(x.shape)}, got {list(point.shape)}. "
            "It is a point, not a shift: x + shift."
        )
    return ball.back(point.to(x).clone())


def _gradient(
    model: Classifier, x: Tensor, y: Tensor, objective: Objective | None, function: str, *, first: bool = True
) -> Tensor:
    """The gradient by ``x`` of the cross-entropy, or of an objective of one's own."""
    return _slopes(model, x, y, objective or "cross-entropy", function, first=first)[0]


def _slopes(
    model: Classifier, x: Tensor, y: Tensor, loss: AttackLoss | Objective, function: str, *, first: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient by ``x`` of what is to grow, its values and the lost margins ``[n]``.

    Labels are looked at in the ``first`` of several steps.
    """
    leaf = x.detach().requires_grad_()
    logits = unsquashed(logits_at(model, leaf, function=function))
    target = y.to(logits.device)
    if first:
        check_classes(function, logits, target)
        if loss == "dlr" and logits.shape[1] < 3:
            raise ValueError(f"{function}: loss must not be dlr for {logits.shape[1]} classes. Leave it out.")
    # A sum, so that each sample's gradient is that of its own loss, whatever the batch.
    values = loss(leaf, logits).sum() if callable(loss) else attack_losses(logits, target, loss)
    try:
        (slope,) = torch.autograd.grad(values.sum(), leaf)
    except RuntimeError as error:
        if "does not require grad" not in str(error) and "not have been used" not in str(error):
            raise
        raise ValueError(
            f"{function}: model must have a gradient by its input, got none ({error}). It detaches or rounds; "
            "random_search needs no gradient."
        ) from error
    if not all_finite(slope):
        raise ValueError(f"{function}: the gradient must be finite, got NaN or infinity. The network overflows there.")
    with torch.no_grad():
        return slope, values.detach().to(x.device), lost_margins(logits, target).to(x.device)


def gradient_norms(slopes: Tensor) -> tuple[Tensor, Tensor]:
    """ℓ1 (what an ℓ∞ attack can gain per ε) and ℓ2 norms ``[n]`` of gradients ``[n, …]``."""
    return slopes.flatten(1).abs().sum(1), lengths(slopes).flatten()
