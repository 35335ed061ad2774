"""Which part of a layer differs: B's modules inside it are fed what A's got, and those that answer otherwise named."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lisse.instruments.drift.passes import landed, live_side
from lisse.maths.drift import floor_of, parting, relative_difference
from lisse.run import RunPair
from lisse.run.pair import PairSide, fine_taps
from lisse.taps import Tap

_ATTENTION = re.compile(
    r"attn|attention|self_att|mixer|rotary|query|key|value|qkv|[qkvo]_proj|out_proj|q_lin|k_lin|v_lin"
)
_MLP = re.compile(r"mlp|ffn|feed_?forward|intermediate|fc|linear_?\d|lin\d|dense|up_proj|down_proj|gate|expert")
_NORM = re.compile(r"norm|(?:^|\.)(?:ln|bn)_?\d*$", re.IGNORECASE)
LEAST_TESTED = 7  # samples that cannot give a p value that outlives a correction
_SILENT = ("Dropout", "Identity", "DropPath")


@dataclass(frozen=True, slots=True)
class _Twin:
    a: Tap
    b: Tap


def inside(pair: RunPair, name: str) -> list[_Twin]:
    """What can be read between the layer before ``name`` and ``name`` in both networks, in the order it runs."""
    index = [layer.name for layer in pair.layers].index(name) if name != pair.output else len(pair.layers)
    sides = []
    for side in ("a", "b"):
        run = pair.side(side)
        taps = run.once("fine taps", lambda run=run: fine_taps(run))  # type: ignore[misc]
        before = getattr(pair.layers[index - 1], side) if index else None
        end = getattr(pair.layers[index], side) if name != pair.output else None
        sides.append(_between(taps, before, end))
    first, second = sides
    names = {_same_name(tap): tap for tap in second}
    twins = [_Twin(tap, names[_same_name(tap)]) for tap in first if _same_name(tap) in names]
    if len(twins) < min(len(first), len(second)) / 2 and len(first) == len(second):
        twins = [_Twin(*both) for both in zip(first, second, strict=True)]
    return [twin for twin in twins if twin.a.shape == twin.b.shape]


def _between(taps: Sequence[Tap], before: Tap | None, end: Tap | None) -> list[Tap]:
    order = [(tap.module, tap.call, tap.side) for tap in taps]
    first = 0 if before is None else order.index((before.module, before.call, before.side)) + 1
    last = len(taps) if end is None else order.index((end.module, end.call, end.side)) + 1
    return list({(tap.module, tap.call, tap.side): tap for tap in taps[first:last]}.values())


def _same_name(tap: Tap) -> tuple[str, int, str]:
    return tap.module, tap.call, tap.side


def own_differences(pair: RunPair, name: str, start: int, stop: int) -> dict[str, Tensor]:
    """What every place inside a layer differs by, where all that runs before it is as in A: ``own/SIDE/PLACE``.

    One patched forward: every module inside answers what A's did, so that the next gets what it gets in A.
    """
    twins, mask = inside(pair, name), pair.mask(start, stop)
    states, _ = pair.states("a", start, stop, [*[layer.a for layer in pair.alike], *[twin.a for twin in twins]])
    values = {layer.b: states[layer.a] for layer in pair.alike} | {twin.b: states[twin.a] for twin in twins}
    before, _ = pair.patched("b", start, stop, values, [twin.b for twin in twins])
    numbers = {}
    for twin in twins:
        a, b = states[twin.a], before[twin.b].to(states[twin.a].device)
        numbers[f"own/{twin.a.name}"] = relative_difference(a, b, mask=mask)
    return landed(numbers)


def effects(pair: RunPair, name: str, groups: dict[str, list[_Twin]], start: int, stop: int) -> dict[str, Tensor]:
    """The relative change of the answer where of a layer one part alone is as in B: ``part/PART`` ``[n]``."""
    twins, mask = inside(pair, name), pair.mask(start, stop)
    states, answers = pair.states("a", start, stop, [*[layer.a for layer in pair.alike], *[twin.a for twin in twins]])
    values = {layer.b: states[layer.a] for layer in pair.alike} | {twin.b: states[twin.a] for twin in twins}
    before, _ = pair.patched("b", start, stop, values, [twin.b for twin in twins])
    numbers = {}
    for part, members in groups.items():
        _, changed = pair.patched("a", start, stop, {twin.a: before[twin.b] for twin in members})
        numbers[f"part/{part}"] = relative_difference(answers["answer"], changed["answer"], mask=mask)
    return landed(numbers)


def culprits(
    pair: RunPair, name: str, inner: dict[str, Tensor], floors: Tensor, *, margin: float, least: float, level: float
) -> dict[str, list[_Twin]]:
    """The places inside a layer that differ by more than noise, by the part that they belong to.

    Where what enters a module differs already, no module did it but what lies before: its answer is no news, nor, where
    that is a sum that goes on beside the modules, what the layer makes of it in the end.
    """
    twins = inside(pair, name)
    values = torch.stack([inner[f"own/{twin.a.name}"] for twin in twins], 1).nan_to_num(nan=torch.inf)
    called = calls(values, floors, margin=margin, least=least, level=level)
    differs = [twin for twin, call in zip(twins, called.tolist(), strict=True) if call]
    entered = {(twin.a.module, twin.a.call) for twin in differs if twin.a.side == "in"}
    block = next((layer.a.module for layer in pair.layers if layer.name == name), "")
    groups: dict[str, list[_Twin]] = {}
    along = False  # the sum beside the modules differs already
    for index, twin in enumerate(twins):
        between = twin.a.module == block or (twin.a.side == "in" and twin.a.module.rpartition(".")[0] == block)
        consequence = (twin.a.side == "out" and (twin.a.module, twin.a.call) in entered) or (between and along)
        if twin in differs and not consequence:
            groups.setdefault(part_of(pair, name, twins, index), []).append(twin)
            along = along or between
    return groups


def calls(values: Tensor, floors: Tensor, *, margin: float, least: float, level: float) -> Tensor:
    """Which of differences ``[n, L]`` are more than noise ``[m, L]``; where none is by itself, those with any hit."""
    significant = chances(values, floors, margin=margin, least=least) <= 1 - level
    return significant if bool(significant.any()) else (values > floor_of(floors, margin=margin, least=least)).any(0)


def chances(values: Tensor, floors: Tensor, *, margin: float, least: float) -> Tensor:
    """p values as of :func:`~lisse.maths.drift.parting`; of few samples 0 where all are above the noise, or else 1."""
    if len(values) < LEAST_TESTED:
        return 1.0 - (values > floor_of(floors, margin=margin, least=least)).all(0).double()
    return parting(values, floors, margin=margin, least=least)


def modules_in_words(groups: dict[str, list[_Twin]], parts: Sequence[str]) -> str:
    """The modules that differ by themselves, or before which something does."""
    members = [twin.a for part in parts for twin in groups[part]]
    spots = dict.fromkeys(
        ("what enters " if tap.side == "in" else "") + (tap.module or "the answer") for tap in members
    )
    return ", ".join(list(spots)[:5]) + (f" and {len(spots) - 5} more" if len(spots) > 5 else "")


def part_of(pair: RunPair, name: str, twins: Sequence[_Twin], index: int) -> str:
    """What the place belongs to: attention, MLP, norm, embedding, head, convolution…"""
    if name == pair.output:
        return "head"
    layer = next(layer for layer in pair.layers if layer.name == name)
    if layer.role == "stem":
        return "embedding"
    tap = twins[index].a
    block = layer.a.module
    if tap.side == "out" and tap.module != block:
        word = word_of(tap, block)
        if word != "residual":
            return word
    elif tap.side == "in":
        parent = tap.module.rpartition(".")[0]
        around = _by_name(_below(parent, block)) if parent.startswith(block) and parent != block else None
        if around is not None:
            return around
        word = word_of(tap, block)
        if word not in ("norm", "residual"):
            return word
    return next(
        (
            word
            for twin in reversed(twins[:index])
            if twin.a.side == "out" and twin.a.module != block
            for word in [word_of(twin.a, block)]
            if word not in ("norm", "residual") and twin.a.kind not in _SILENT
        ),
        word_of(tap, ""),  # a layer that is one module
    )


def word_of(tap: Tap, block: str) -> str:
    """The part that a module is of, by its class and its name below the block."""
    name = _below(tap.module, block)
    if "Norm" in tap.kind or _NORM.search(name.rpartition(".")[2]):
        return "norm"
    if tap.kind.startswith("Conv") and "Conv1D" not in tap.kind:
        return "convolution"
    return (
        _by_name(name)
        or _by_name(block.rpartition(".")[2])
        or ("MLP" if tap.kind in ("Linear", "Conv1D") else "residual")
    )


def _by_name(name: str) -> str | None:
    if _ATTENTION.search(name.lower()):
        return "attention"
    return "MLP" if _MLP.search(name.lower()) else None


def _below(module: str, block: str) -> str:
    return module.removeprefix(block).removeprefix(".")


def side_of(pair: RunPair) -> PairSide | None:
    """The side whose modules can be fed, where both sides are networks."""
    return live_side(pair) if pair.is_live("a") and pair.is_live("b") else None
