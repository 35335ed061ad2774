"""How far the samples of a run are spread at its layers: the unit in which Sensitivity measures stretch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lisse.instruments.origin import has_points, points_at
from lisse.maths.spread import spread
from lisse.run import Instrument, Run
from lisse.taps import Tap

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
    parts = points.flatten(1).split(_FEATURES, dim=1)
    centre = math.hypot(*(float(torch.linalg.vector_norm(part.double().mean(0))) for part in parts))
    return _beyond_rounding(math.hypot(*(spread(part) for part in parts)), centre, points.dtype)


def _beyond_rounding(size: float, centre: float, dtype: torch.dtype) -> Tensor:
    """A spread, or 0 where it is what rounding makes of one point as far from the origin as the centre."""
    precision = torch.finfo(dtype).eps if dtype.is_floating_point else 0.0
    return torch.tensor(size if size > 4 * precision * centre else 0.0, dtype=torch.float64)


def _streamed_spreads(run: Run, taps: Sequence[Tap], n: int) -> dict[str, Tensor]:
    """The same of whole activations, where the recording holds what was read out of them (Welford's update)."""
    activations: dict[str, Tensor] = {}
    means: dict[str, Tensor] = {}
    squares = dict.fromkeys((tap.name for tap in taps), 0.0)
    for batch in run.clean(n, taps, lambda tap, activation: activations.update({tap.name: activation.clone()})):
        count = batch.start + batch.size
        for name, activation in activations.items():
            points = valid_tokens(activation, token_mask(batch.inputs)).flatten(1).double()
            shift = points.mean(0) - means.get(name, torch.zeros_like(points[0]))
            squares[name] += float((points - points.mean(0)).square().sum())
            squares[name] += float(shift.square().sum()) * batch.start * batch.size / count
            means[name] = means.get(name, torch.zeros_like(shift)) + shift * batch.size / count
        run.tell("spread", count, n, "samples")
    return {
        tap.name: _beyond_rounding(math.sqrt(squares[tap.name] / n), float(means[tap.name].norm()), tap.dtype)
        for tap in taps
    }
