"""RunPair: two networks on the same samples in the same order, their layers matched, run side by side."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from lisse.networks.answers import answer_of
from lisse.networks.recorded import Recorded
from lisse.profile import Part, Profile
from lisse.recording import parse_bytes
from lisse.run.fingerprint import digest_of
from lisse.run.instrument import Instrument, distinct_instruments, provenance_of, with_options
from lisse.run.run import Run
from lisse.taps import Tap, still, tapped
from lisse.taps.tap import tensors

PairSide = Literal["a", "b"]

_SIDES: tuple[PairSide, ...] = ("b", "a")
_ANSWERS = ("logits", "output", "outputs", "answer")
_NO_ANSWER = ("past_key_values", "hidden_states", "attentions", "cross_attentions")


@dataclass(frozen=True, slots=True)
class PairedLayer:
    """A layer of A and the layer of B that stands for it. Where their ``shapes`` differ nothing can be put across."""

    name: str
    depth: float
    role: str
    a: Tap
    b: Tap

    @property
    def alike(self) -> bool:
        """Whether samples of both have one shape."""
        return self.a.shape == self.b.shape


@dataclass
class RunPair:
    """Two runs, of A and of B, over the same samples in the same order.

    What a pair of instruments asks it for: :meth:`states` of a side, :meth:`patched` forwards (in which a network goes
    on with other activations), :meth:`blocks` and :meth:`piece` (resumed as a run's are, keyed by both networks).
    Each batch goes through both sides, and one batch of activations is held. ``forwards`` counts the samples that went
    through A and B as they are, and through patched forwards of either.
    """

    a: Run
    b: Run
    names: tuple[str, str] = ("A", "B")
    layers: tuple[PairedLayer, ...] = ()
    notes: tuple[str, ...] = ()
    forwards: dict[str, int] = field(default_factory=lambda: {"a": 0, "b": 0, "patched": 0})
    twins: list[RunPair] = field(default_factory=list)  # that noise was measured by
    piece_size: int | None = None  # samples of a forward of B, where that is not the batch: what noise is measured by
    autocast: torch.dtype | None = None  # to which B's forwards are cast
    kernels: bool = False  # whether B's convolutions are by other kernels, which is noise too
    columns: int | None = None  # of the answers, where one has more of them than the other: those that both have
    _copies: dict[PairSide, dict[Tap, Tensor]] = field(default_factory=dict, repr=False)  # by :meth:`states`

    def __post_init__(self) -> None:
        if len(self.a) != len(self.b):
            raise ValueError(
                f"RunPair: a and b must have the same samples, got {len(self.a)} and {len(self.b)}. "
                "Take as many of both."
            )
        if not self.layers:
            self.layers, self.notes = matched(self.a, self.b, self.names)
        first, second = (run.taps[-1].shape if run.taps[-1].role == "output" else () for run in (self.a, self.b))
        if (
            self.is_live("a") and self.is_live("b") and first != second and len(first) > 1 and first[:-1] == second[:-1]
        ):  # tokens, and no other classes
            self.columns = min(first[-1], second[-1])
            words = f"{self.names[0]} answers {first[-1]} numbers and {self.names[1]} {second[-1]}"
            self.notes = (*self.notes, f"{words}: the first {self.columns} of both are compared.")

    def __len__(self) -> int:
        return len(self.b)

    # -- which side can do what --------------------------------------------------------------------------------------

    def side(self, side: PairSide) -> Run:
        """The run of a side."""
        return self.a if side == "a" else self.b

    def is_live(self, side: PairSide) -> bool:
        """Whether a side is a network, and no recording of one: whether it can go on with other activations."""
        return not isinstance(self.side(side).model, Recorded)

    @property
    def alike(self) -> list[PairedLayer]:
        """The layers between which activations can be put across."""
        return [layer for layer in self.layers if layer.alike]

    @property
    def output(self) -> str:
        """What the answer is called as a layer."""
        return self.side("b" if self.is_live("b") else "a").taps[-1].name if self._has_head else "output"

    @property
    def _has_head(self) -> bool:
        return self.side("b" if self.is_live("b") else "a").taps[-1].role == "output"

    # -- forwards ----------------------------------------------------------------------------------------------------

    def states(
        self, side: PairSide, start: int, stop: int, taps: Sequence[Tap]
    ) -> tuple[dict[Tap, Tensor], dict[str, Tensor]]:
        """Activations of a side at these taps, copies, and its answers by name, the answer itself first.

        Copies are good until the next call for this side: their memory is used again, for a system is slow to give it.
        """
        copies, count = self._copies.setdefault(side, {}), stop - start
        answers = self._forwards(
            side, start, stop, taps, lambda tap, value, offset: _keep(copies, tap, value, offset, count)
        )
        self.forwards[side] += count
        return {tap: copies[tap][:count] for tap in taps}, answers

    def patched(
        self,
        side: PairSide,
        start: int,
        stop: int,
        values: Mapping[Tap, Tensor],
        looks: Sequence[Tap] = (),
        reduce: Callable[[Tap, Tensor, int], Tensor] | None = None,
    ) -> tuple[dict[Tap, Tensor], dict[str, Tensor]]:
        """A forward that goes on with ``values`` at these taps, and its answers.

        With it comes what stood at the taps ``looks``, of these or of others, before it was replaced: a copy, or what
        ``reduce(tap, activation, offset)`` makes of the samples from ``start + offset`` on, a row for each. A network
        may write over what it is given: it is given copies, but with ``reduce`` the ``values`` themselves.
        """
        before: dict[Tap, Tensor] = {}

        def on(tap: Tap, activation: Tensor, offset: int) -> Tensor | None:
            if tap in looks:
                rows = activation if reduce is None else reduce(tap, activation, offset)
                _keep(before, tap, rows, offset, stop - start)
            if tap not in values:
                return None
            rows = values[tap][offset : offset + len(activation)]
            return rows.to(device=activation.device, dtype=activation.dtype, copy=reduce is None)

        answers = self._forwards(side, start, stop, list(dict.fromkeys([*values, *looks])), on)
        self.forwards["patched"] += stop - start
        return before, answers

    def _forwards(
        self, side: PairSide, start: int, stop: int, taps: Sequence[Tap], on: Callable[[Tap, Tensor, int], Any]
    ) -> dict[str, Tensor]:
        run, offset = self.side(side), 0
        size = (self.piece_size if side == "b" else None) or stop - start
        answers: list[dict[str, Tensor]] = []
        with ExitStack() as stack:
            stack.enter_context(still(run.model, statistics=run.statistics, seed=run.seed))
            stack.enter_context(tapped(run.model, dict.fromkeys(taps), lambda tap, value: on(tap, value, offset)))
            if side == "b" and self.kernels:
                stack.enter_context(_other_kernels())
            if side == "b" and self.autocast is not None:
                stack.enter_context(torch.autocast(run.device.type, self.autocast))
            for batch in run.data.batches(size, start=start, stop=stop, device=run.device):
                output = run.forward(batch.inputs, batch.start)
                if isinstance(run.model, Recorded):
                    output = self._recorded_answer(run.model, batch.inputs)
                answers.append(_answers(output, batch.size))
                offset += batch.size
        joined = {name: torch.cat([part[name] for part in answers]) for name in answers[0]}
        if self.columns is not None and "answer" in joined:
            joined["answer"] = joined["answer"][..., : self.columns]
        return joined

    @property
    def is_answered(self) -> bool:
        """Whether both sides have an answer: a recording may have none."""
        return all(self._answer_name(run.model) for run in (self.a, self.b) if isinstance(run.model, Recorded))

    def _answer_name(self, recorded: Recorded) -> str | None:
        """The layer of a recording that is its answer: called as the network's, or so; of two recordings the last."""
        live = next((self.side(side) for side in _SIDES if self.is_live(side)), None)
        if live is None:
            return recorded.names[-1]
        return next((name for name in (live.taps[-1].name, *_ANSWERS) if name in recorded.names), None)

    def _recorded_answer(self, recorded: Recorded, samples: Any) -> Any:
        name = self._answer_name(recorded)
        return () if name is None else recorded.get_submodule(name)(samples)

    def mask(self, start: int, stop: int) -> Tensor | None:
        """Which tokens count ``[n, t]``, on the device of the run: padding is not data. ``None`` where all do."""
        run = self.side("b" if self.is_live("b") else "a")
        (batch,) = run.data.batches(stop - start, start=start, stop=stop)
        mask = batch.inputs.get("attention_mask") if isinstance(batch.inputs, Mapping) else None
        if not isinstance(mask, Tensor) or mask.ndim != 2 or bool(mask.all()):
            return None
        return mask.bool().to(run.device)

    def step(self, taps: Sequence[Tap], copies: int = 4) -> int:
        """How many samples at a time the memory of the run allows, where so many copies of these taps are held."""
        sample = copies * sum(tap.numel * tap.dtype.itemsize for tap in taps)
        return max(1, min(self.b.batch, self.a.batch, parse_bytes(self.b.memory) // max(1, sample)))

    # -- noise ---------------------------------------------------------------------------------------------------------

    def noises(self, n: int) -> Iterator[tuple[str, RunPair]]:
        """The live network (A, where both are) beside itself: otherwise computed, and in another precision; with words.

        A third of a batch, where ``n`` samples are looked at; where it convolves in float32 by PyTorch's own kernels,
        which add up in another order than those of oneDNN and cuDNN; and in the precision of the other side (or under
        its autocast) where the two differ, or else in one with more digits, which autocast leaves alone.
        """
        side: PairSide = "a" if self.is_live("a") else "b"
        if not self.is_live(side):
            return
        run, other = self.side(side), self.side("b" if side == "a" else "a")
        layers = tuple(replace(layer, a=getattr(layer, side), b=getattr(layer, side)) for layer in self.layers)
        names = (self.names[side == "b"],) * 2
        size = max(1, min(n, self.step([layer.b for layer in layers])) // 3)
        if run.statistics == "running":
            self.twins.append(RunPair(run, run, names, layers, piece_size=size))
            yield f"{size} samples at a time", self.twins[-1]
        # What rounding to 16 bits does is more than what an order of sums does. Their error depends on the batch.
        if dtype_of(run.model).itemsize > 2 and any(isinstance(part, _ConvNd) for part in run.model.modules()):
            self.twins.append(RunPair(run, run, names, layers, kernels=True))
            yield "by other kernels", self.twins[-1]
        precision, opposite, cast = dtype_of(run.model), recorded_dtype(other), autocast_of(other)
        if cast == autocast_of(run):
            cast = None
        dtype = opposite if opposite != precision else precision if cast else _FINER.get(precision, precision)
        if dtype == precision and cast is None:
            return
        twin = run
        if dtype != precision:
            twin = copy.copy(run)  # the same run in all but the network, which is a copy in another precision
            twin.model = copy.deepcopy(run.model).to(dtype)
        self.twins.append(RunPair(run, twin, names, layers, autocast=cast))
        words = "in {}" if cast is None else "under autocast to {}"
        yield words.format(str(cast or dtype).removeprefix("torch.")), self.twins[-1]

    # -- what a run does for an instrument -----------------------------------------------------------------------------

    def take(self, n: int | None) -> int:
        """``n``, or as many samples as there are where that is fewer."""
        return self.b.take(n)

    def blocks(
        self, instrument: Any, key: str, n: int, make: Callable[[int, int], Mapping[str, Tensor]], step: int
    ) -> dict[str, Tensor]:
        """Work over samples as of :meth:`Run.blocks`, whose finished stretches are found again by both networks."""
        try:
            return self.b.blocks(instrument, f"{self._key} {key}", n, make, task=f"{instrument.name}: {key}", step=step)
        finally:
            for pair in (self, *self.twins):
                pair._copies.clear()

    def generator(self, key: str) -> torch.Generator:
        """A generator for intervals."""
        return self.b.generator(key)

    @property
    def _key(self) -> str:
        if self.b.cache is None:
            return ""
        return self.a.once("pair", lambda: digest_of(self.a.identity))

    def say(self, text: str, **options: Any) -> None:
        """Say something a person should read."""
        self.b.say("pair", text, **options)


def _keep(values: dict[Tap, Tensor], tap: Tap, rows: Tensor, offset: int, count: int) -> None:
    """A copy of these rows of ``count``, which may come in pieces, among the values, in the memory that is there."""
    memory = values.get(tap)
    if memory is None or len(memory) < count or memory[:1].shape != rows[:1].shape or memory.dtype != rows.dtype:
        values[tap] = memory = (
            torch.empty_like(rows) if len(rows) == count else rows.new_empty((count, *rows.shape[1:]))
        )
    memory[offset : offset + len(rows)] = rows


@contextmanager
def _other_kernels() -> Iterator[None]:
    backends: Any = (torch.backends.mkldnn, torch.backends.cudnn)
    enabled = [backend.enabled for backend in backends]
    try:
        for backend in backends:
            backend.enabled = False
        yield
    finally:
        for backend, before in zip(backends, enabled, strict=True):
            backend.enabled = before


_FINER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float32: torch.float64}


def dtype_of(model: nn.Module) -> torch.dtype:
    """The precision of a network's first weight that has one."""
    return next((weight.dtype for weight in model.parameters() if weight.is_floating_point()), torch.float32)


def recorded_dtype(run: Run) -> torch.dtype:
    """The precision of a network, or of what was recorded of one."""
    return run.taps[-1].dtype if isinstance(run.model, Recorded) else dtype_of(run.model)


def autocast_of(run: Run) -> torch.dtype | None:
    """The precision to which a network casts inside its forward, or a person around all of this; of two samples."""

    def cast() -> torch.dtype | None:
        dtypes: list[torch.dtype] = []
        kind = run.device.type

        def on(tap: Tap, activation: Tensor) -> None:
            if torch.is_autocast_enabled(kind):
                dtypes.append(torch.get_autocast_dtype(kind))

        (batch,) = run.data.batches(2, stop=min(2, len(run)), device=run.device)
        with still(run.model, statistics=run.statistics, seed=run.seed), tapped(run.model, run.taps[1:], on):
            run.forward(batch.inputs, batch.start)
        return dtypes[0] if dtypes else None

    return None if isinstance(run.model, Recorded) else run.once("autocast", cast)


def _answers(output: Any, count: int) -> dict[str, Tensor]:
    """Every float tensor of an output with a row per sample, by name; the answer that counts first."""
    answers: dict[str, Tensor] = {}
    first = answer_of(output)
    if isinstance(first, Tensor):
        answers["answer"] = first
    for path, value in tensors(output):
        words = {str(part) for part in path}
        if value is not first and value.is_floating_point() and value.ndim and not words.intersection(_NO_ANSWER):
            answers[".".join(map(str, path))] = value
    return {name: value.detach() for name, value in answers.items() if value.ndim and len(value) == count}


# -- which layer stands for which --------------------------------------------------------------------------------------


def matched(a: Run, b: Run, names: tuple[str, str] = ("A", "B")) -> tuple[tuple[PairedLayer, ...], tuple[str, ...]]:
    """The layers of two runs that stand for each other, by name or by position, and what a person should know of it.

    The input is no layer here, nor is the answer, which is compared as such. Same names in both count first. Where
    there are none, blocks stand for blocks by their number, if both have as many or the first so many have one shape.
    """
    left, right = (_inner(run) for run in (a, b))
    by_name = {tap.name: tap for tap in right}
    pairs = [(tap, by_name[tap.name]) for tap in left if tap.name in by_name]
    notes: list[str] = []
    stems = [[tap for tap in taps if tap.role == "stem"] for taps in (left, right)]
    blocks = [[tap for tap in taps if tap.role != "stem"] for taps in (left, right)]
    if len([tap for tap, _ in pairs if tap.role != "stem"]) < min(map(len, blocks)) / 2:
        pairs = list(zip(*stems, strict=False)) if all(stems) else []
        pairs += list(zip(*blocks, strict=False))
        if len(blocks[0]) != len(blocks[1]):
            notes.append(
                f"{names[0]} has {len(blocks[0])} layers and {names[1]} {len(blocks[1])}, under other names: the first "
                f"{len(pairs)} of both stand for each other, by position."
            )
        elif pairs:
            notes.append(f"Layers have other names in {names[1]}: they stand for each other by position.")
    unlike = [(first, second) for first, second in pairs if first.shape != second.shape]
    if unlike:
        first, second = unlike[0]
        notes.append(
            f"{len(unlike)} of {len(pairs)} layers have other shapes in {names[1]}, the first is {first.name} "
            f"({list(first.shape)} and {list(second.shape)}): of these only their similarity is measured."
        )
    if isinstance(a.model, Recorded) and not isinstance(b.model, Recorded):  # whose names may be in any order
        pairs.sort(key=lambda pair: right.index(pair[1]))
    missing = [tap.name for tap in left if tap not in [first for first, _ in pairs] and tap.name not in _ANSWERS]
    alone = [tap.name for tap in right if tap not in [second for _, second in pairs] and tap.name not in _ANSWERS]
    for name, layers in zip(names, (missing, alone), strict=True):
        if layers and pairs:
            notes.append(f"{len(layers)} layers of {name} have no counterpart: {', '.join(layers[:5])}.")
    if not pairs:
        notes.append("No layer of one stands for a layer of the other: only the answers are compared.")
    count = max(1, len(pairs))
    paired = [
        PairedLayer(first.name, index / count, first.role, first, second) for index, (first, second) in enumerate(pairs)
    ]
    return tuple(paired), tuple(notes)


def _inner(run: Run) -> list[Tap]:
    """The layers of a run without the input and the answer."""
    taps = [tap for tap in run.taps if tap.role not in ("input", "output")]
    if isinstance(run.model, Recorded):
        taps = [tap for tap in run.taps if tap.name not in ("input", "inputs")]
    return taps


def fine_taps(run: Run) -> list[Tap]:
    """Everything in a network that can be read, what enters and what leaves every module, in the order it runs."""
    return list(run.taps.everywhere)


# -- what comes of it --------------------------------------------------------------------------------------------------


def profile_of_pair(
    pair: RunPair, instruments: Instrument | Sequence[Instrument], *, name: str | None = None
) -> Profile:
    """A profile of what instruments for two networks (``sides = 2``) find of a pair; of B, beside A."""
    instruments = distinct_instruments("measure", instruments)
    clock = time.perf_counter()
    parts: list[Part] = []
    for instrument in instruments:
        if instrument.SIDES != 2:
            raise ValueError(
                f"measure: instruments must be for two networks, got {instrument.name}. Measure each network by it."
            )
        parts.append(replace(with_options(instrument, instrument.part_of_pair(pair)), beside=pair.names[0]))
    about = provenance_of(pair.b, name, time.perf_counter() - clock)
    beside = provenance_of(pair.a, None, 0.0)
    about["beside"] = {"name": pair.names[0], **{key: beside[key] for key in ("model", "data", "layers", "device")}}
    noise = sum(count for twin in pair.twins for count in twin.forwards.values())
    about["forwards"] = {**pair.forwards, "noise": noise}
    return Profile(tuple(parts), about)
