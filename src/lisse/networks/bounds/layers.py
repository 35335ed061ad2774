"""What the weights alone promise of the blocks and layers of a network, and of the whole: a table without data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lisse.maths.bounds import Bound
from lisse.networks.bounds.blocks import stack_of
from lisse.networks.bounds.module import BoundMetric, of_module
from lisse.networks.bounds.operators import LINEAR, Still, operator_norm
from lisse.networks.bounds.slopes import slope
from lisse.progress import Event, Listener
from lisse.taps import Tap, find, is_shortage, plain

WHOLE_NETWORK = "(network)"
MOST_EXACT = 2**22  # numbers in and out of a layer up to which its lower end is searched


@dataclass(frozen=True, slots=True)
class LayerBound:
    """A layer, a block or the whole network (:data:`WHOLE_NETWORK`) with its bound, or the ``reason`` why it has none.

    ``shape`` is that of one sample where it enters. ``lower`` is a proved lower end of the same constant, which linear
    layers have: their operator norm lies between the two.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    bound: Bound | None
    lower: float | None = None
    reason: str = ""


def layer_bounds(
    model: nn.Module,
    example: Any,
    *,
    layers: Sequence[str] | None = None,
    radius: float | Mapping[str, float] = 1.0,
    variance: float = 0.0,
    metric: BoundMetric = "euclidean",
    tol: float = 1e-3,
    bounded: bool = True,
    progress: Listener | None = None,
) -> list[LayerBound]:
    """Upper bounds of the Lipschitz constants of every block, of the layers beside blocks, and of the network.

    Of the weights alone: of ``example``, a batch of three samples or more, only the shapes count. A bound is that of
    :func:`of_module`, which explains ``radius`` (of what enters *each* module, or a mapping from names; only attention
    asks for it), ``variance``, ``metric`` and ``tol``. Linear layers have :func:`operator_norm`'s lower end beside it.
    ``layers`` chooses modules by names or globs, as :func:`lisse.taps.find` does, in place of these: ``**`` is all of
    them; ``bounded=False`` lists them without bounds. Cost: seconds for ten million weights; a module without a bound
    costs nothing and has its reason. A Transformer of words is bounded from the tokens that enter its first block to
    the norm behind the last.
    """
    radii = radius if isinstance(radius, Mapping) else {"": radius}
    for argument, values in {"radius": radii.values(), "variance": [variance]}.items():
        for value in values:
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"layer_bounds: {argument} must be finite and not negative, got {value}.")
    root = plain(model)
    modules = dict(root.named_modules())
    sites = find(root, example, ["**", "**:in"])
    entries = {(tap.module, tap.call): tap.shape for tap in sites if tap.side == "in"}
    calls = [tap for tap in sites if tap.side == "out" and tap.module]
    if layers is not None:
        taps = [tap for tap in find(root, example, list(layers)) if tap.side == "out"]
    else:
        blocks = [tap.module for tap in find(root, example) if tap.module and any(modules[tap.module].children())]
        taps = [tap for tap in calls if tap.module in blocks or _beside(tap, modules[tap.module], blocks)]
    spots = [(tap.name, modules[tap.module], entries.get((tap.module, tap.call))) for tap in taps]
    if layers is None:
        stack = None if ("", 0) in entries else stack_of(root)
        # A Transformer of words is bounded from the tokens that enter its first block on.
        first = "" if stack is None else next(name for name, module in modules.items() if module is stack[0])
        spots.append((WHOLE_NETWORK, root, entries.get((first, 0))))
    if not bounded:
        return [LayerBound(name, type(module).__name__, shape or (), None) for name, module, shape in spots]
    rows = []
    for index, (name, module, shape) in enumerate(spots):
        size = radii.get(name, radii.get("", 1.0))
        rows.append(_row(name, module, shape, radius=size, variance=variance, metric=metric, tol=tol))
        if progress is not None:
            progress(Event("bounds", index + 1, len(spots), "layers"))
    return rows


def _beside(tap: Tap, module: nn.Module, blocks: Sequence[str]) -> bool:
    """Whether it is a single layer outside the blocks that does more than keep, move or squash entries."""
    inside = any(tap.module.startswith(f"{block}.") for block in blocks)
    return not (inside or any(module.children()) or isinstance(module, Still) or slope(module) is not None)


def _row(name: str, module: nn.Module, shape: tuple[int, ...] | None, **options: Any) -> LayerBound:
    kind = type(module).__name__
    if shape is None:
        return LayerBound(name, kind, (), None, reason="what enters it is no tensor of numbers, one row a sample")
    try:
        bound = of_module(module, input_shape=shape, **options)
    except (TypeError, ValueError, RuntimeError) as refusal:
        if is_shortage(refusal):
            raise
        return LayerBound(name, kind, shape, None, reason=str(refusal).removeprefix("of_module: "))
    lower = None
    if isinstance(module, LINEAR) and torch.Size(shape).numel() <= MOST_EXACT:
        lower = min(operator_norm(module, shape, tol=options["tol"]).lower, bound.value)
    return LayerBound(name, kind, shape, bound, lower)
