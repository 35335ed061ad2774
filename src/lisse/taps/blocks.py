"""Which calls of a traced forward are the network's blocks: rules over classes, nesting and data flow.

Tried in order, the first that finds something counts:

1. *Chained repeats.* Composite modules of one class, at least two calls, where one receives the very tensor another
   returned: residual blocks, Transformer layers. Stages that contain such blocks give way to them; a module in the
   same numbered place as a block (``blocks.0.0`` beside ``blocks.1.0``) is one too.
2. *Repeats that are not chained* (operations in between, as in U-Nets and dense blocks): the outermost ones.
3. *Sequentials alike*: three or more with the same weighted layers inside, the levels of a U-Net written by hand.
4. *Composite members of a ModuleList*, for a Transformer of one layer.
5. *Plain networks*: each weighted layer together with the norm, activation and pooling that follow it, as far as these
   are its own: a pooling that several layers share is none of theirs.

A module is composite when two weighted modules run inside it, so that a convolution with its norm is a layer and not
a block, and the two convolutions inside a residual block are no blocks of their own.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from lisse.taps.tap import Path

_TRANSPARENT = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


@dataclass(frozen=True, eq=False, slots=True)
class Sketch:
    """What is kept of a tensor that went by, in a trace's ``room``: its sum, and behind it numbers of its samples.

    ``address`` is the storage's number, where in it the tensor begins, and how often it had been written to in place.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    strided: bool = True
    address: tuple[int, int, int] | None = None
    room: Tensor = field(default_factory=lambda: torch.empty(0))
    start: int = 0
    spans: Mapping[int, slice] = field(default_factory=dict)

    def rows(self, axis: int) -> Tensor:
        """Numbers ``[n, s]`` of each sample, if this axis counts them."""
        return self.room[self.spans[axis]].view(self.shape[axis], -1 if self.numel else 0)

    @property
    def total(self) -> Tensor:
        """The sum of all numbers."""
        return self.room[self.start]

    @property
    def numel(self) -> int:
        """How many numbers the tensor had."""
        return math.prod(self.shape)


@dataclass(eq=False)
class Call:
    """One call of one module in a traced forward."""

    module: str
    number: int
    kind: type[nn.Module]
    parent: Call | None
    weighted: bool = False
    listed: bool = False
    begin: int = 0
    end: int = 0
    inputs: Mapping[Path, Sketch] = field(default_factory=dict)
    output: Mapping[Path, Sketch] = field(default_factory=dict)
    stochastic: Collection[Path] = ()

    def holds(self, other: Call) -> bool:
        """Whether ``other`` ran inside this call."""
        return self.begin < other.begin and other.end < self.end


def address(sketches: Mapping[Path, Sketch]) -> tuple[int, int, int] | None:
    """Where the first floating tensor lies: equal for reshaped views, so that a flatten in between changes nothing."""
    first = next((sketch for sketch in sketches.values() if sketch.dtype.is_floating_point), None)
    return (*first.address[:2], first.numel) if first is not None and first.address and first.numel else None


Span = tuple[Call, Call]
"""Where a layer begins and where it ends: the same call for a block, two calls for a convolution and its pooling."""


def layers_of(calls: list[Call], readable: Callable[[Call], bool]) -> list[Span]:
    """The network's layers in order; only calls that are ``readable`` (whose samples can be told apart) can end one."""
    weight = _weights_inside(calls)
    composite = [call for call in calls if call.parent is not None and weight[call] >= 2 and readable(call)]
    opaque = [call for call in composite if call.kind not in _TRANSPARENT]
    repeated = _repeated(opaque)
    blocks = _chained(repeated, weight)
    if blocks:
        patterns = {_numbered(call.module) for call in blocks if "#" in _numbered(call.module)}
        blocks += [
            call
            for call in opaque
            if call not in blocks
            and _numbered(call.module) in patterns
            and not any(call.holds(block) or block.holds(call) for block in blocks)
        ]
    else:
        apart = _outermost(repeated)  # a single one: a network inside itself, as some U-Nets are written
        blocks = apart if len(apart) > 1 else _alike(calls, composite, weight)
        blocks = blocks or _outermost([call for call in opaque if call.listed])
    if blocks:
        return [(call, call) for call in sorted(blocks, key=lambda call: call.begin)]
    return _plain_layers([call for call in calls if readable(call)], weight)


def _weights_inside(calls: list[Call]) -> dict[Call, int]:
    """How many weighted calls run inside each call, itself included."""
    count: dict[Call, int] = defaultdict(int)
    for call in calls:
        if call.weighted:
            above: Call | None = call
            while above is not None:
                count[above] += 1
                above = above.parent
    return count


def _repeated(calls: list[Call]) -> list[Call]:
    by_kind: dict[type[nn.Module], list[Call]] = defaultdict(list)
    for call in calls:
        by_kind[call.kind].append(call)
    return [call for group in by_kind.values() if len(group) >= 2 for call in group]


def _chained(calls: list[Call], weight: dict[Call, int]) -> list[Call]:
    """Calls of the classes that have two in a row; a stage, made mostly of other such calls, gives way to them."""
    returned = {(call.kind, address(call.output)) for call in calls if address(call.output) is not None}
    kinds = {
        call.kind
        for call in calls
        if (call.kind, address(call.inputs)) in returned and address(call.inputs) != address(call.output)
    }
    linked = [call for call in calls if call.kind in kinds]
    total: dict[type[nn.Module], int] = defaultdict(int)
    inside: dict[type[nn.Module], int] = defaultdict(int)
    for call in linked:
        total[call.kind] += weight[call]
        inner = _outermost([other for other in linked if other.kind is not call.kind and call.holds(other)])
        inside[call.kind] += sum(weight[other] for other in inner)
    return _outermost([call for call in linked if 2 * inside[call.kind] < total[call.kind]])


def _alike(calls: list[Call], composite: list[Call], weight: dict[Call, int]) -> list[Call]:
    """Sequentials of the same weighted layers, three or more that hold most of the network, and what is between.

    They follow each other, with something in between that is no module (a concatenation): no two receive the same
    tensor, as heads and towers side by side do.
    """
    inner = [call for call in composite if not any(call.holds(other) for other in composite)]
    makeup = {
        call: tuple(part.kind for part in calls if part.weighted and call.holds(part))
        for call in inner
        if issubclass(call.kind, nn.Sequential)
    }
    groups = [
        [call for call, kinds in makeup.items() if kinds == pattern] for pattern in dict.fromkeys(makeup.values())
    ]
    blocks = [call for group in groups if len(group) > 1 for call in group]
    if not any(len({call.module for call in group}) > 2 for group in groups):
        return []
    entries = {address(call.inputs) for call in blocks}
    origins = [address({path: sketch}) for path, sketch in calls[0].inputs.items()]
    side_by_side = len(entries) < len(blocks) or len(entries.intersection(origins)) > 1
    if side_by_side or 2 * sum(weight[call] for call in blocks) < weight[calls[0]]:
        return []
    begin, end = min(call.begin for call in blocks), max(call.end for call in blocks)
    return blocks + [call for call in inner if call not in blocks and begin < call.begin and call.end < end]


def _outermost(calls: list[Call]) -> list[Call]:
    return [call for call in calls if not any(other.holds(call) for other in calls)]


def _numbered(module: str) -> str:
    return ".".join("#" if re.fullmatch(r"\d+", part) else part for part in module.split("."))


def _plain_layers(calls: list[Call], weight: dict[Call, int]) -> list[Span]:
    """Each weighted call, taken as far as its own norm, activation, pooling and reshaping after it go."""
    parents = {call.parent for call in calls}
    counts = Counter(call.module for call in calls)
    units: list[Call] = []
    for call in calls:
        if call.parent is None or (call in parents and weight[call] != 1):
            continue
        # A wrapper around a single weighted layer stands for it; what runs inside the wrapper is part of it.
        if not any(unit.holds(call) for unit in units):
            units.append(call)
    layers: list[Span] = []
    for unit in units:
        if weight[unit] >= 1:
            layers.append((unit, unit))
        elif layers and counts[unit.module] == counts[layers[-1][0].module]:
            layers[-1] = (layers[-1][0], unit)
    # An embedding is what the first layer receives: the stem, not a layer of its own.
    return [layer for layer in layers if not issubclass(layer[0].kind, (nn.Embedding, nn.EmbeddingBag))]
