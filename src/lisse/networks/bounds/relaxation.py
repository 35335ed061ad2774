"""What a network can do in a ball around a sample, proved by linear relaxation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lisse.networks.attack.norms import Norm
from lisse.networks.bounds.steps import ROUNDOFF, TINY, Node, Steps
from lisse.networks.bounds.tangent import MOST_ENTRIES, Tangent, TangentBall

_EFFORT = 2**23  # entries of an input times those of all steps, for each unit of ``refine``: what a tangent may cost
_VANISHED = 1e-300  # over all that underflows where coefficients of one entry are summed
_LOOSE = 1.1  # times the tangent's share of an interval: a walk back is worth while above


class Relaxation:
    r"""A network whose outputs in a ball around each sample are enclosed, in float64.

    Forwards, intervals ``middle ± reach`` go through every layer, and beside them a sample's :class:`Tangent`, which
    knows how entries move together. Backwards, a linear function of the output is followed to the input
    ([zhang2018]): through an affine layer by its adjoint, through an activation σ on [l, u] by two lines that enclose
    it there, the lower one where the coefficient is positive, the upper where it is negative:

    .. math:: a^\top z \ge A x + c \ge A x_0 - \epsilon\|A\|_* + c.

    Before an activation the intervals are made tighter by the same walk from there, for units whose sign is open, where
    they are no more than ``refine`` and the tangent leaves room. Rounding is in the bounds: every affine layer adds
    :math:`\gamma(|L||z| + |b|)` to its interval, and :math:`\gamma\,|a|^\top(|L||z| + |b|)` is taken off in every step
    back, γ as many units of 2^-53 as a sum has terms, four times over. They hold for the real numbers of the weights; a
    forward in float32 differs. Layers: those of :class:`lisse.networks.bounds.steps.Steps`.
    """

    def __init__(self, model: nn.Module, shape: tuple[int, ...], *, refine: int = 1024, chunk: int = 2**24) -> None:
        self.refine, self.chunk = refine, chunk
        steps = Steps(model, shape)
        self.nodes, self.end = steps.nodes, steps.end
        entries = self.nodes[0].shape.numel()
        forwards = entries * sum(node.shape.numel() for node in self.nodes)
        #: The least ``refine`` at which samples have tangents; infinite where none is enough.
        self.least = math.ceil(forwards / _EFFORT) if entries <= MOST_ENTRIES else math.inf

    # -- bounds in a ball ----------------------------------------------------------------------------------------------

    def tangents(self, x: Tensor, norm: Norm) -> list[Tangent]:
        """Those of the samples ``x`` ``[n, …]``; none where ``refine`` is too little for what they cost."""
        if self.refine < self.least:
            return []
        return [Tangent(self.nodes, sample[None].double(), norm) for sample in x]

    @torch.no_grad()
    def lower(self, x: Tensor, eps: Tensor, norm: Norm, rows: Tensor, tangents: Sequence[Tangent]) -> Tensor:
        """Lower bounds ``[n, k]`` of ``rows`` ``[n, k, …]`` times the output, in balls of radius ``eps`` ``[n]``.

        ``tangents`` are those of ``x``, or none.
        """
        x, eps = x.double(), eps.double()
        rows = rows.double().expand(len(x), *rows.shape[1:])
        widest = max(node.shape.numel() for node in self.nodes)
        group = max(1, self.chunk // (self.refine * widest)) if tangents else max(1, len(x))
        margins = []
        for start in range(0, len(x), group):
            part = slice(start, start + group)
            balls = [
                tangent.ball(float(size), self.refine, budget=4 * self.chunk // len(tangents[part]))
                for tangent, size in zip(tangents[part], eps[part], strict=bool(tangents))
            ]
            self._enclose(x[part], eps[part], norm, balls)
            back = self._back(self.end, rows[part], x[part], eps[part], norm)
            margins.append(torch.maximum(back, self._direct(rows[part])))
        return torch.cat(margins)

    def _direct(self, rows: Tensor) -> Tensor:
        """What the output's own intervals say of ``rows``."""
        flat, middle, reach = rows.flatten(2), self.end.middle.flatten(1), self.end.reach.flatten(1)
        room = reach + self.end.gamma * (middle.abs() + reach)
        ends = (flat @ middle[..., None] - flat.abs() @ room[..., None])[..., 0] - TINY
        return torch.where(ends.isnan(), -math.inf, ends)

    def _enclose(self, x: Tensor, eps: Tensor, norm: Norm, balls: Sequence[TangentBall]) -> None:
        first = self.nodes[0]
        first.middle = x
        first.reach = _like(eps, x).expand_as(x) * (1 + 8 * ROUNDOFF) + 4 * ROUNDOFF * x.abs()
        self._step(first, balls, x, x, x)
        for node in self.nodes[1:]:
            inside = node.inputs[0]
            if node.kind == "affine":
                size, shift = inside.middle.abs() + inside.reach, node.function(torch.zeros_like(inside.middle[:1]))
                node.mass = node.magnitude(size) * (1 + node.forward) + shift.abs() + node.shifted
                node.mass = node.mass + TINY * (1 + _like(size.flatten(1).sum(1), node.mass))
                node.middle = node.function(inside.middle)
                node.reach = node.magnitude(inside.reach) * (1 + node.forward) + node.forward * node.mass
            elif node.kind == "sum":
                other = node.inputs[1]
                node.middle = inside.middle + other.middle
                node.mass = inside.middle.abs() + inside.reach + other.middle.abs() + other.reach
                node.reach = inside.reach + other.reach + node.forward * node.mass
                if node.monotone is not None:
                    before, function = node.monotone
                    node.between(*map(function, before.ends()))
            else:
                self._tighten(inside, x, eps, norm)
                self._squash(node, inside)
            self._step(node, balls, *inside.ends(), x)

    @staticmethod
    def _step(node: Node, balls: Sequence[TangentBall], low: Tensor, high: Tensor, x: Tensor) -> None:
        """Make the intervals tighter by what the tangents say."""
        node.straight = 0.0
        if not balls:
            return
        parts = zip(*(part.split(1) for part in (low, high, x)), strict=True)
        ends = [ball.step(node, *interval) for ball, interval in zip(balls, parts, strict=True)]
        node.between(*(torch.cat(side) for side in zip(*ends, strict=True)))
        node.straight = torch.cat([ball.eps * ball.tangent.spans[node] for ball in balls])

    def _tighten(self, node: Node, x: Tensor, eps: Tensor, norm: Norm) -> None:
        """Walk back from the units whose sign is open in a sample."""
        low, high = node.ends()
        loose = (low < 0) & (high > 0) & (node.reach > _LOOSE * node.straight)
        open_ = loose.flatten(1).any(0).nonzero().flatten()
        if not len(open_) or len(open_) > self.refine:
            return
        low, high = low.flatten(1).clone(), high.flatten(1).clone()
        widest = max(step.shape.numel() for step in self.nodes)
        for units in open_.split(max(1, self.chunk // (2 * len(x) * widest))):
            rows = torch.zeros(2 * len(units), node.shape.numel(), dtype=torch.float64, device=x.device)
            rows[torch.arange(len(units)), units] = 1.0
            rows[len(units) + torch.arange(len(units)), units] = -1.0
            ends = self._back(node, rows.reshape(1, -1, *node.shape).expand(len(x), -1, *node.shape), x, eps, norm)
            mask = loose.flatten(1)[:, units]  # the others stay as they are, whatever the batch
            low[:, units] = torch.where(mask, ends[:, : len(units)], low[:, units])
            high[:, units] = torch.where(mask, -ends[:, len(units) :], high[:, units])
        node.between(low.reshape(-1, *node.shape), high.reshape(-1, *node.shape))

    def _squash(self, node: Node, inside: Node) -> None:
        """Two lines around an activation on its interval, and the interval behind it."""
        low, high = inside.ends()
        width, module = high - low, node.module
        if isinstance(module, nn.ReLU | nn.LeakyReLU):
            leak = module.negative_slope if isinstance(module, nn.LeakyReLU) else 0.0
            above, below = node.function(high), node.function(low)
            chord = torch.where(width > 0, (above - below) / width.clamp_min(1e-300), 1.0).clamp(leak, 1.0)
            # The function is convex: any line is above it where it is above both ends.
            room = torch.maximum(above - chord * high, below - chord * low)
            top = room + 8 * ROUNDOFF * (above.abs() + below.abs() + high.abs() + low.abs())
            flat = torch.full_like(low, leak)
            steep = torch.where(low >= 0, 1.0, torch.where(high <= 0, flat, torch.where(high > -low, 1.0, flat)))
            sure = (low >= 0) | (high <= 0)
            chord, top = torch.where(sure, steep, chord), torch.where(sure, 0.0, top)
            node.lines = (steep, torch.zeros_like(low), chord, top)
            ends = below, above
        else:
            above, below = node.function(high), node.function(low)
            chord = torch.where(width > 1e-9, (above - below) / width.clamp_min(1e-300), 0.0)
            bottom, top = node.departure(chord, low, high)
            node.lines = (chord, bottom, chord, top)
            ends = (
                torch.minimum(chord * low, chord * high) + bottom,
                torch.maximum(chord * low, chord * high) + top,
            )
        self._set(node, low.abs() + high.abs(), *ends)

    @staticmethod
    def _set(node: Node, size: Tensor, low: Tensor, high: Tensor) -> None:
        node.middle, node.reach = (low + high) / 2, (high - low) / 2 + 8 * ROUNDOFF * (low.abs() + high.abs())
        node.mass = 2 * size + node.middle.abs() + node.reach

    def _back(self, start: Node, rows: Tensor, x: Tensor, eps: Tensor, norm: Norm) -> Tensor:
        """Lower bounds ``[n, k]`` of ``rows`` times what ``start`` gives."""
        n, k = rows.shape[:2]
        coefficients: dict[Node, Tensor] = {start: rows}
        constant = torch.zeros(n, k, dtype=torch.float64, device=x.device)
        added = constant.clone()  # of the terms' sizes, for the rounding of their sum
        for node in reversed(self.nodes[: self.nodes.index(start) + 1]):
            a = coefficients.pop(node, None)
            if a is None:
                continue
            if node.kind == "input":
                flat = a.flatten(2)
                if norm == "linf":
                    size = flat.abs().sum(2)
                else:  # over the largest first, and a little more: squares of small numbers vanish
                    largest = flat.abs().amax(2)
                    size = torch.linalg.vector_norm(flat / largest.clamp_min(TINY)[..., None], dim=2) * largest
                    size = size + TINY * flat.shape[2]
                size = size * (1 + 4 * (flat.shape[2] + 16) * ROUNDOFF)
                drift = 2 * node.gamma * (flat.abs() * (x.abs() + _like(eps, x)).flatten(1)[:, None]).sum(2)
                extra = (flat * x.flatten(1)[:, None]).sum(2) - eps[:, None] * size - drift
                constant, added = constant + extra, added + extra.abs()
                continue
            drift = node.gamma * torch.einsum("nkd,nd->nk", a.abs().flatten(2), node.mass.flatten(1))
            drift = drift + _VANISHED * node.mass.flatten(1).sum(1, keepdim=True)
            constant, added = constant - drift, added + drift
            for other, part, extra in self._pulled(node, a):
                # A coefficient that underflows takes the value it stands before with it.
                vanished = _VANISHED * (other.middle.abs() + other.reach).flatten(1).sum(1, keepdim=True)
                constant, added = constant + extra - vanished, added + extra.abs()
                coefficients[other] = coefficients[other] + part if other in coefficients else part
        return constant - 8 * (len(self.nodes) + 4) * ROUNDOFF * added - TINY

    def _pulled(self, node: Node, a: Tensor) -> list[tuple[Node, Tensor, Tensor]]:
        """Where coefficients go in one step back: node, coefficients there, and what becomes constant."""
        inside, (n, k) = node.inputs[0], a.shape[:2]
        if node.kind == "sum":
            return [(part, a, a.new_zeros(n, k)) for part in node.inputs]
        if node.kind == "affine":
            with torch.enable_grad():
                point = torch.zeros(1, *inside.shape, dtype=torch.float64, device=a.device, requires_grad=True)
                covectors = a.reshape(n * k, 1, *node.shape)
                (pulled,) = torch.autograd.grad(node.linear(point), point, covectors, is_grads_batched=True)
            shift = node.function(torch.zeros(1, *inside.shape, dtype=torch.float64, device=a.device))
            return [(inside, pulled.reshape(n, k, *inside.shape), (a * shift[:, None]).flatten(2).sum(2))]
        steep, bottom, chord, top = (line[:, None] for line in node.lines)
        pulled, extra = a * steep, a.new_zeros(n, k)
        # Where one line is both, as for a ReLU whose sign is sure, that is all.
        units = ((steep != chord) | (bottom != 0) | (top != 0)).flatten(1).any(0).nonzero().flatten()
        if len(units):
            steep, bottom, chord, top = (line.flatten(2)[:, :, units] for line in (steep, bottom, chord, top))
            coefficients = a.flatten(2)[:, :, units]
            positive, negative = coefficients.clamp_min(0), coefficients.clamp_max(0)
            pulled.view(n, k, -1)[:, :, units] = positive * steep + negative * chord
            extra = (positive * bottom + negative * top).sum(2)
        return [(inside, pulled, extra)]


def _like(values: Tensor, x: Tensor) -> Tensor:
    return values.reshape(-1, *[1] * (x.ndim - 1))
