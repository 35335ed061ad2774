"""How far the samples of a run are spread at its layers: the unit in which Sensitivity measures stretch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lisse.instruments.origin import has_points, points_at
from lisse.maths.spread import spread
from lisse.run import Instrument, Run
from lisse.taps import Tap

_NUMBERS = 2**22  # of a batch in float64 at a time
_FEATURES = 4096  # of a layer at a time: a wide one is never copied as a whole


def layer_spreads(instrument: Instrument, run: Run, taps: Sequence[Tap], n: int) -> dict[str, float]:
    """The spread of the first ``n`` samples at every layer, by its name, as Jacobians see them: all valid tokens."""
    if run.readout is None and all(has_points(run, tap) for tap in taps):

        def piece(tap: Tap) -> dict[str, Tensor]:
            return run.piece(instrument, ("spread", tap.name), lambda: {"values": _spread(points_at(run, tap, n))})

        return {tap.name: float(piece(tap)["values"]) for tap in taps}
    spreads = run.piece(instrument, ("spreads",), lambda: _streamed_spreads(run, taps, n))
    return {tap.name: float(spreads[tap.name]) for tap in taps}


def valid_tokens(activation: Tensor, mask: Tensor | None) -> Tensor:
    """Token activations ``[n, t, d]`` with the padding set to zero: padding is not data, and must not stretch."""
    if mask is None or activation.ndim != 3 or mask.shape != activation.shape[:2]:
        return activation
    return activation * mask[..., None].to(activation.dtype)


def token_mask(inputs: object) -> Tensor | None:
    """The mask of valid tokens among a batch's inputs, if there is one."""
    return inputs.get("attention_mask") if isinstance(inputs, dict) else None


def _spread(points: Tensor) -> Tensor:
    """That of activations ``[n, …]``: squares of spreads add up over features."""
    # A GPU would wait for a few numbers of each part.
    features = _FEATURES if points.device.type == "cpu" else max(_FEATURES, 2**25 // len(points))
    parts = points.flatten(1).split(features, dim=1)
    centre = math.hypot(*(float(torch.linalg.vector_norm(part.double().mean(0))) for part in parts))
    return _beyond_rounding(math.hypot(*(spread(part) for part in parts)), centre, points.dtype)


def _beyond_rounding(size: float, centre: float, dtype: torch.dtype) -> Tensor:
    """A spread, or 0 where it is what rounding makes of one point as far from the origin as the centre."""
    precision = torch.finfo(dtype).eps if dtype.is_floating_point else 0.0
    return torch.tensor(size if size > 4 * precision * centre else 0.0, dtype=torch.float64)


def _streamed_spreads(run: Run, taps: Sequence[Tap], n: int) -> dict[str, Tensor]:
    """The same of whole activations, where the recording holds what was read out of them (Welford's update)."""
    form = run.data.form
    masks = (token_mask(batch.inputs) for batch in run.batches(n)) if isinstance(form, dict) else itertools.repeat(None)
    means: dict[str, Tensor] = {}
    squares: dict[str, Tensor] = {}
    mask, position = next(masks), 0

    def on(tap: Tap, activation: Tensor) -> None:
        points = valid_tokens(activation, mask).flatten(1)
        count = position + len(points)
        mean = means.setdefault(tap.name, points.new_zeros(points.shape[1], dtype=torch.float64))
        total = squares.get(tap.name, mean.new_zeros(()))
        for part, before in zip(*(t.split(_NUMBERS // len(points) + 1, dim=-1) for t in (points, mean)), strict=True):
            numbers = part.double()
            centre = numbers.mean(0)
            shift = centre - before
            total = total + (numbers - centre).square_().sum()
            total = total + shift.square().sum() * position * len(points) / count
            before += shift * len(points) / count
        squares[tap.name] = total

    for batch in run.clean(n, taps, on):
        position = batch.start + batch.size
        mask = next(masks, None)
        run.tell("spread", position, n, "samples")
    return {
        tap.name: _beyond_rounding(math.sqrt(float(squares[tap.name]) / n), float(means[tap.name].norm()), tap.dtype)
        for tap in taps
    }
