"""Which places of a model are its layers: found by running it on two and on three samples.

Two runs are enough to know everything a tap needs: the axis that grows from 2 to 3 counts the samples (none, or one
that grows from 128 to 192, is a reason to skip), the order of calls is the order of depth, and two modules follow
each other when the one receives the very tensor that the other returned.
"""

from __future__ import annotations

import bisect
import difflib
import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal, overload

import torch
from torch import nn

from lisse.taps.blocks import Call, Sketch, layers_of
from lisse.taps.stillness import Statistics, attention_weights, model_device, plain, still
from lisse.taps.tap import Path, Tap
from lisse.taps.tracing import Trace, samples_of, trace


@dataclass(frozen=True, slots=True)
class Skipped:
    """A place that cannot be a layer, and why."""

    name: str
    reason: str
    kind: str = ""


class Taps(Sequence[Tap]):
    """The layers found, in order of depth; ``skipped`` names the places left out and the reason for each.

    ``source`` is the first layer of all, the input or what stands for it, and ``head`` the network's answer where it is
    more than its last block (``None`` where it is not: it answers hidden states), ``end`` the last block; all three
    also where they were not chosen. ``everywhere`` are all places that can be read, what enters and what leaves each
    module. ``notes`` are sentences for a person on what was not found, or not read.
    """

    def __init__(
        self,
        taps: Iterable[Tap],
        skipped: Iterable[Skipped] = (),
        source: Tap | None = None,
        head: Tap | None = None,
        end: Tap | None = None,
        notes: Iterable[str] = (),
        everywhere: Callable[[], Iterable[Tap]] = tuple,
    ) -> None:
        self._taps = tuple(taps)
        self.skipped, self.notes = tuple(skipped), tuple(notes)
        self.source, self.head, self.end = source, head, end
        self._everywhere = everywhere

    @overload
    def __getitem__(self, index: int) -> Tap: ...
    @overload
    def __getitem__(self, index: slice) -> Taps: ...
    def __getitem__(self, index: int | slice) -> Tap | Taps:
        return self._of(self._taps[index]) if isinstance(index, slice) else self._taps[index]

    def __len__(self) -> int:
        return len(self._taps)

    def __repr__(self) -> str:
        return f"Taps({', '.join(self.names)}; {len(self.skipped)} skipped)"

    @property
    def names(self) -> list[str]:
        """The layers' names, in order of depth."""
        return [tap.name for tap in self._taps]

    @property
    def blocks(self) -> Taps:
        """Only the blocks: without input, stem and output."""
        return self._of(tap for tap in self._taps if tap.role == "block")

    @property
    def everywhere(self) -> Taps:
        """All places that can be read, as ``find(model, example, ["**", "**:in"])`` gives them; nothing is run.

        For that, some thousand numbers of each place are kept (:class:`~lisse.taps.blocks.Sketch`).
        """
        return self._of(self._everywhere())

    def _of(self, taps: Iterable[Tap]) -> Taps:
        return Taps(taps, self.skipped, self.source, self.head, self.end, self.notes, self._everywhere)


def find(
    model: nn.Module,
    example: Any,
    layers: Sequence[str] | str | None = None,
    *,
    attention: bool = False,
    statistics: Statistics = "running",
) -> Taps:
    """The layers of a model along depth, found by forwards on two and on three samples of ``example``.

    Without ``layers``: the input (where it is no token id), the stem (what enters the first block), every block, and
    the output (where it is more than the last block; a plain network's last matrix is its head, and so the output, by
    its own name; what only shifts or scales its logits, ``/ 2`` or a log-softmax, belongs to it). Blocks are the
    repeated composite modules that follow each other (residual blocks, Transformer layers…); in a plain network, a
    weighted layer with the norm, activation and pooling that follow it is one. A module called several times is one
    layer per call (``name#0``, ``name#1``…).

    With ``layers``: every place whose name matches a name or glob (``*`` stays within one part of a dotted name,
    ``**`` crosses dots; ``name:in`` is what enters a module). With ``attention``: the attention weights, one tap per
    attention call, in place of the layers.

    ``example`` is an input of at least three samples as the model takes it (of fewer, copies are made), or a
    :class:`~lisse.data.Dataset`. Costs two forwards, and the memory of a forward on three samples.
    """
    root = plain(model)
    if hasattr(example, "batches"):  # a Dataset, which stands above this floor
        count = min(3, len(example))
        example = next(iter(example.batches(count, stop=count, device=model_device(root)))).inputs
    few = [(samples_of(example, count), count) for count in (2, 3)]
    with still(root, statistics=statistics, seed=0):
        if attention:
            with attention_weights(root):
                traces = [trace(root, inputs, count) for inputs, count in few]
        else:
            traces = [trace(root, inputs, count) for inputs, count in few]
    survey = _Survey(root, *traces)
    if attention:
        return Taps(survey.attention(), survey.skipped())
    default = survey.default()
    blocks = [tap for tap in default if tap.role == "block"]
    alone = len(blocks) < 2  # a single layer is the whole network, answer and all
    ends = default[0], default[-1] if default[-1].role == "output" or alone else None, blocks[-1] if blocks else None
    everywhere = partial(survey.selection, ["**", "**:in"], default)
    if layers is None:
        return Taps(default, survey.skipped(), *ends, survey.notes(root, default, default), everywhere)
    if not isinstance(layers, Sequence) or not all(isinstance(pattern, str) for pattern in layers):
        raise TypeError(f"find: layers must be names or globs, got {layers!r}.")
    patterns = [layers] if isinstance(layers, str) else list(layers)
    if not patterns:
        raise ValueError("find: layers must name at least one layer, got none. Leave it out for all of them.")
    taps = survey.selection(patterns, default)
    return Taps(taps, survey.skipped(), *ends, survey.notes(root, default, taps), everywhere)


# -- what two traces tell --------------------------------------------------------------------------------------------


class _Survey:
    """Two traced forwards side by side: the taps they allow, and the reasons against the others."""

    def __init__(self, root: nn.Module, two: Trace, three: Trace) -> None:
        self.two, self.three = two, three
        self.counts: dict[str, int] = defaultdict(int)
        for call in two.calls:
            self.counts[call.module] += 1
        self.names = {name for name, _ in root.named_modules()}
        self.reasons: dict[str, tuple[str, str]] = {}
        self.taps: dict[str, Tap] = {}
        for call in two.calls:
            self._add(call, "in")
            self._add(call, "out")

    def _add(self, call: Call, side: Literal["in", "out"]) -> None:
        name = self.label(call) + (":in" if side == "in" else "")
        entry = self._tensor(call, side)
        if isinstance(entry, str):
            if side == "out":
                self.reasons[name] = (entry, call.kind.__name__)
            return
        path, axis, sketch = entry
        shape = sketch.shape[:axis] + sketch.shape[axis + 1 :]
        kind, calls = call.kind.__name__, self.counts[call.module]
        self.taps[name] = Tap(
            name, call.module, call.number, side, axis, path, shape, sketch.dtype, kind=kind, calls=calls
        )

    def _tensor(self, call: Call, side: str) -> tuple[Path, int, Sketch] | str:
        """Path, sample axis and sketch of the first floating tensor that counts samples, or why there is none."""
        twin = self.three[call.module, call.number]
        if twin is None:
            return "is called a different number of times for two and for three samples"
        sketches, twins = (call.inputs, twin.inputs) if side == "in" else (call.output, twin.output)
        reason = "returns no floating-point tensor"
        for path, sketch in sketches.items():
            if not sketch.dtype.is_floating_point or (side == "in" and _is_mask(path)):
                continue
            axis = _sample_axis(sketch, twins.get(path))
            if isinstance(axis, int):
                return path, axis, sketch
            if reason == "returns no floating-point tensor":
                reason = axis
        return reason

    def label(self, call: Call) -> str:
        """The module's name without wrappers inside it, with the number of the call where there are several."""
        name = ".".join(part for part in call.module.split(".") if part != "_orig_mod")
        return f"{name}#{call.number}" if self.counts[call.module] > 1 else name

    def order(self, tap: Tap) -> int:
        """When the tap's tensor exists, on the clock of the traced forward."""
        call = self.two[tap.module, tap.call]
        assert call is not None  # every place was made from a call of this trace
        return call.begin if tap.side == "in" else call.end

    def sketch(self, tap: Tap, traced: Trace) -> Sketch:
        call = traced[tap.module, tap.call]
        assert call is not None
        return (call.inputs if tap.side == "in" else call.output)[tap.path]

    def told_apart(self, taps: Sequence[Tap]) -> list[Tap]:
        """The taps, with whether two samples alone are others than among three: a device is asked once for all."""
        groups: dict[torch.dtype, dict[tuple[int, int], list[Tap]]] = defaultdict(lambda: defaultdict(list))
        for tap in taps:  # what leaves a module most often enters the next one
            key = id(self.sketch(tap, self.two)), id(self.sketch(tap, self.three))
            groups[tap.dtype][key].append(tap)
        mixed: set[Tap] = set()
        for pairs in groups.values():
            sides = [
                [self.sketch(group[0], traced).rows(group[0].axis)[:2].reshape(-1) for group in pairs.values()]
                for traced in (self.two, self.three)
            ]
            x, y = (torch.cat([values.to(side[0].device) for values in side]) for side in sides)
            alike = x == y
            if not bool(alike.all()):
                alike |= ((x - y).abs() <= 1e-4 + 1e-2 * y.abs()) | (x.isnan() & y.isnan())
            parts = alike.cpu().split([len(values) for values in sides[0]])
            mixed |= {tap for group, part in zip(pairs.values(), parts, strict=True) if not part.all() for tap in group}
        return [replace(tap, mixes=tap in mixed) for tap in taps]

    def skipped(self) -> list[Skipped]:
        return [Skipped(name or "output", reason, kind) for name, (reason, kind) in self.reasons.items()]

    def notes(self, root: nn.Module, default: Sequence[Tap], taps: Sequence[Tap]) -> Iterator[str]:
        """What a person would otherwise not see: layers that no module stands for, and inputs that are not read."""
        scripted = isinstance(root, torch.jit.ScriptModule)
        deep = scripted or sum(weight.ndim >= 2 for weight in root.parameters()) > 1
        if deep and all(tap.role in ("input", "output") for tap in default):
            reason = "a traced TorchScript module hides them" if scripted else "its forward calls no module that is one"
            remedy = "load the original nn.Module" if scripted else "make each an nn.Module and call that"
            yield f"No layers were found between input and output: {reason}. To see them, {remedy}."
        entry = next((tap for tap in taps if tap.role == "input"), None)
        names = [_argument(root, path) for path in self.two.calls[0].inputs if not _is_mask(path)]
        if entry is not None and len(names) > 1:
            name = _argument(root, entry.path)
            remaining = [argument for argument in names if argument != name]
            verb = "is" if len(remaining) == 1 else "are"
            yield f"The model takes several inputs: {entry.name} is {name}, and {', '.join(remaining)} {verb} not read."

    def default(self) -> list[Tap]:
        layers = layers_of(self.two.calls, lambda call: self.label(call) in self.taps)
        blocks = [self.taps[self.label(last)] for _, last in layers]
        result: list[Tap] = []
        entry = self.taps.get(":in")
        if entry is not None and not self._takes_tokens():
            result.append(replace(entry, name=self._word("input"), role="input"))
        if blocks:
            stem = self.taps.get(self.label(layers[0][0]) + ":in")
            if stem is not None and not (result and self._equal(stem, result[0])):
                result.append(replace(stem, name=self._word("stem"), role="stem"))
        result += [replace(tap, role="block") for tap in blocks]
        end = self.taps.get("")
        if end is not None and not (blocks and self._equal(end, blocks[-1])):
            # A head with an operation behind it that changes no decision is the same head: one place, at the end.
            if len(blocks) > 1 and _is_head(*layers[-1]) and self._answers_alike(blocks[-1], end):
                result.pop()
            result.append(replace(end, name=self._word("output"), role="output"))
        elif len(blocks) > 1 and _is_head(*layers[-1]):
            result[-1] = replace(result[-1], role="output")
        if not result:
            reasons = "; ".join(f"{name or 'output'} {why}" for name, (why, _) in list(self.reasons.items())[-3:])
            raise ValueError(f"find: model must have a place where samples can be told apart, got none: {reasons}.")
        depths = _even(len(result))
        return self.told_apart([replace(tap, depth=depth) for tap, depth in zip(result, depths, strict=True)])

    def attention(self) -> list[Tap]:
        """Every tensor [n, heads, queries, keys] whose rows are probabilities, beside a module's main output."""
        pairs = []
        for call in self.two.calls:
            twin = self.three[call.module, call.number]
            for path in call.stochastic:
                sketch = call.output[path]
                axis = _sample_axis(sketch, None if twin is None else twin.output.get(path))
                if isinstance(axis, str):
                    self.reasons[self.label(call)] = (axis, call.kind.__name__)
                    continue
                shape = sketch.shape[:axis] + sketch.shape[axis + 1 :]
                tap = Tap(self.label(call), call.module, call.number, "out", axis, path, shape, sketch.dtype)
                pairs.append((call, replace(tap, role="attention", kind=call.kind.__name__)))
        # A block passes the weights of the attention inside it along: the innermost module that returns them counts.
        inner = [tap for call, tap in pairs if not any(call.holds(other) for other, _ in pairs)]
        if not inner:
            raise ValueError("find: attention=True must be asked of a model with attention, got no attention weights.")
        return [replace(tap, depth=depth) for tap, depth in zip(inner, _even(len(inner)), strict=True)]

    def selection(self, patterns: list[str], default: list[Tap]) -> list[Tap]:
        words = {tap.name: tap for tap in default}
        taps: dict[str, Tap] = {}
        for pattern in patterns:
            matches = [tap for name, tap in {**self.taps, **words}.items() if name and _matches(name, pattern)]
            if not matches and pattern != "**:in":  # all that go in may be integers everywhere
                self._refuse(pattern, [*words, *(name for name in self.taps if name)])
            taps.update((tap.name, tap) for tap in matches)
        times = [self.order(tap) for tap in default]
        remaining = [tap for name, tap in taps.items() if name not in words]
        depths = [_between(self.order(tap), times, default) for tap in remaining]
        remaining = self.told_apart([replace(tap, depth=depth) for tap, depth in zip(remaining, depths, strict=True)])
        taps |= {tap.name: tap for tap in remaining}
        return sorted(taps.values(), key=lambda tap: (self.order(tap), tap.side == "out"))

    def _refuse(self, pattern: str, names: list[str]) -> None:
        for name, (reason, _) in self.reasons.items():
            if _matches(name, pattern):
                raise ValueError(f"find: layers must name places that can be read, got {pattern!r}: {name} {reason}.")
        if pattern in self.names:
            raise ValueError(f"find: layers must name modules that the forward calls, got {pattern!r}, never called.")
        names = list(dict.fromkeys(names))
        near = difflib.get_close_matches(pattern, names, n=5, cutoff=0.3) or names[:5]
        raise ValueError(f"find: layers must match a layer's name, got {pattern!r}. The nearest are {', '.join(near)}.")

    def _takes_tokens(self) -> bool:
        """Whether the first input that is no mask holds integers: token ids are no layer, their embedding is."""
        kinds = [sketch.dtype for path, sketch in self.two.calls[0].inputs.items() if not _is_mask(path)]
        return bool(kinds) and not (kinds[0].is_floating_point or kinds[0] == torch.bool)

    def _equal(self, a: Tap, b: Tap) -> bool:
        x, y = self.sketch(a, self.two), self.sketch(b, self.two)
        if x.numel != y.numel or x.address == y.address:
            return x.numel == y.numel
        values = [(sketch.rows(tap.axis), sketch.total) for tap, sketch in ((a, x), (b, y))]
        return all(torch.equal(first, second.to(first)) for first, second in zip(*values, strict=True))

    def _answers_alike(self, a: Tap, b: Tap) -> bool:
        """Whether two tensors are one answer: the same up to a temperature and a shift of each sample's logits.

        So are logits and their softmax, or its logarithm, or logits in half precision.
        """
        x, y = (self.sketch(tap, self.three) for tap in (a, b))
        if x.numel != y.numel or not x.numel:
            return False
        before, after = (sketch.rows(tap.axis).double() for tap, sketch in ((a, x), (b, y)))
        if before.shape != after.shape:
            return False
        versions = [after, after.log()] if bool((after > 0).all()) else [after]
        return any(_proportional(*(side - side.mean(1, keepdim=True) for side in (before, y))) for y in versions)

    def _word(self, word: str) -> str:
        return f"({word})" if word in self.names else word


def _is_head(first: Call, last: Call) -> bool:
    """Whether a layer is a matrix with nothing behind it that would make it more than the network's answer."""
    behind = (nn.Softmax, nn.LogSoftmax, nn.Flatten, nn.Dropout, nn.Identity)
    return issubclass(first.kind, nn.Linear) and (last is first or issubclass(last.kind, behind))


def _proportional(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether one is the other times a positive number, up to the rounding of half precision."""
    factor = (x * y).sum() / (x * x).sum()
    return bool(factor > 0) and bool((y - factor * x).norm() <= 1e-2 * y.norm())


def _sample_axis(two: Sketch, three: Sketch | None) -> int | str:
    if three is None or len(two.shape) != len(three.shape):
        return "returns something else for three samples than for two"
    if not two.strided:
        return "returns a nested or sparse tensor"
    changed = [axis for axis, (a, b) in enumerate(zip(two.shape, three.shape, strict=True)) if a != b]
    sizes = [(two.shape[axis], three.shape[axis]) for axis in changed]
    if sizes == [(2, 3)]:
        return changed[0]
    if not changed:
        return f"does not depend on the number of samples (shape {two.shape})"
    if len(sizes) == 1 and sizes[0][0] * 3 == sizes[0][1] * 2:
        parts = sizes[0][0] // 2
        return f"folds {parts} parts of each sample into the batch (axis {changed[0]} holds {parts} × samples)"
    return f"has no axis that counts samples (shape {two.shape} for two, {three.shape} for three)"


def _argument(root: nn.Module, path: Path) -> str:
    """What the model's forward calls the argument that a path of its inputs, (args, kwargs), leads to."""
    side, key, *inside = path
    if not side:
        names = [] if isinstance(root, torch.jit.ScriptModule) else [*inspect.signature(root.forward).parameters]
        key = names[int(key)] if int(key) < len(names) else f"number {int(key) + 1}"
    return ".".join(map(str, (key, *inside)))


def _is_mask(path: Path) -> bool:
    return any(isinstance(key, str) and "mask" in key for key in path)


def _matches(name: str, pattern: str) -> bool:
    """Dotted glob; a bare module name also matches all its calls (``block`` matches ``block#0``)."""
    if ":" not in pattern and name.endswith(":in"):
        return False
    return _expression(pattern).fullmatch(name) is not None


@cache
def _expression(pattern: str) -> re.Pattern[str]:
    parts = (part for part in re.split(r"(\*\*|\*|\?)", pattern))
    special = {"**": ".*", "*": "[^.]*", "?": "[^.]"}
    return re.compile("".join(special.get(part, re.escape(part)) for part in parts) + r"(#\d+)?")


def _between(time: int, times: list[int], default: list[Tap]) -> float:
    """Depth of a moment of the forward, linear between the layers before and after it."""
    index = bisect.bisect_left(times, time)
    if index == 0 or index == len(times):
        return default[min(index, len(times) - 1)].depth
    share = (time - times[index - 1]) / (times[index] - times[index - 1])
    return default[index - 1].depth + share * (default[index].depth - default[index - 1].depth)


def _even(count: int) -> list[float]:
    return [1.0] if count == 1 else [index / (count - 1) for index in range(count)]
