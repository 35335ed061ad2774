"""Run: one model on one data set in one order, and the services every instrument shares."""

from __future__ import annotations

import functools
import hashlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor, nn

from lisse.data import Batch, Dataset, Drawn
from lisse.identity import checksum, class_source, function_identity, tensor_identity
from lisse.profile import Kind, Part, Row, Value, last_block, options_of
from lisse.progress import Event, Listener
from lisse.recording import Recording, batch_seed, budgets, parse_bytes
from lisse.recording.recorder import Pass, Readout
from lisse.run.cache import Cache, default_cache
from lisse.run.fingerprint import digest_of, library_versions, model_fingerprint, package_fingerprint
from lisse.run.rows import sample_row
from lisse.taps import Tap, Taps, feed, find, model_device, placed_on, plain, prepared, reseed, still, tapped
from lisse.taps.stillness import Statistics
from lisse.taps.tap import tensors

_T = TypeVar("_T")
Views = Callable[[Batch], Mapping[str, Any] | Iterable[tuple[str, Any]]]
Reduce = Callable[[Tap, Tensor, Tensor], Tensor]
Order = Literal["drawn", "given"]

_FEW = 3  # samples that are looked at twice


class Run:
    """One model on one data set in one order. It owns batch, device, seed, recording, cache and progress.

    An instrument asks it for activations (:meth:`recording`), for views against the clean pass (:meth:`views`), for
    random numbers that do not depend on the batch size (:meth:`draw`), keeps finished work with :meth:`piece` and
    says how far it is with :meth:`tell`. It knows no instrument. ``order`` is that of the samples: ``drawn`` at random
    with the seed (:class:`~lisse.data.Drawn`), so that the first n are a sample of all, or as ``given``.
    """

    patience = 20.0  # seconds of work that are worth a file

    def __init__(
        self,
        model: nn.Module,
        data: Dataset,
        *,
        layers: Sequence[str] | str | None = None,
        seed: int = 0,
        batch: int = 100,
        memory: str | int | None = None,
        device: str | torch.device | None = None,
        statistics: Statistics = "running",
        readout: Readout | None = None,
        order: Order = "drawn",
        cache: str | Path | bool | None = None,
        progress: Listener | None = None,
        processes: bool = False,
    ) -> None:
        if batch < 1:
            raise ValueError(f"Run: batch must be at least 1, got {batch}.")
        if not isinstance(seed, int):
            raise TypeError(f"Run: seed must be an integer, got {seed!r}.")
        if readout is not None and readout not in get_args(Readout):
            raise ValueError(f"Run: readout must be one of {', '.join(get_args(Readout))} or None, got {readout!r}.")
        if order not in get_args(Order):
            raise ValueError(f"Run: order must be one of {', '.join(get_args(Order))}, got {order!r}.")
        if progress is not None and not callable(progress):
            raise TypeError(f"Run: progress must be a function of an Event, got {progress!r}.")
        self.model = plain(placed_on(model, device))
        self.data = Drawn(data, _seed_of(repr((seed, "order")))) if order == "drawn" else data
        self.seed, self.batch = seed, batch
        self.statistics: Statistics = statistics
        self.device = model_device(self.model)
        self.memory = "2GiB" if memory is None else memory  # of the machine
        host, room = budgets(memory, self.device)
        self.device_memory = room or host  # bytes, where the model computes
        self._given_memory = memory
        # By the kind of data, not by their lengths: the same text must be read alike however it was cut and padded.
        self.readout: Readout | None = readout or ("mean" if data.is_text else None)
        self.progress = progress
        example = next(iter(data.batches(min(3, len(data)), stop=min(3, len(data)), device=self.device)))
        self.layers = layers  # as they were asked for; None: those along depth
        self.taps: Taps = find(self.model, example.inputs, layers, statistics=statistics)
        self.cache = None if cache is None or cache is False else Cache(default_cache() if cache is True else cache)
        self.processes = processes and torch.distributed.is_available() and torch.distributed.is_initialized()
        self._pass: Pass | None = None
        self._shared = 0
        self._in_turns = False  # while processes take samples in turns
        self._own_taps: tuple[Tap, ...] = ()  # that are no layers, and recorded with them
        self._passing: list[tuple[Any, str | Sequence[Any]]] = []  # pieces that go with the run
        self._saved = [0]  # where the stretches of the clean pass that are on disk begin and end
        self._blocks: dict[tuple[str, str], tuple[str, Tensor]] = {}
        self._answers: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self.data)

    def take(self, n: int | None) -> int:
        """``n``, or as many samples as there are where that is fewer (``None``: all)."""
        return len(self.data) if n is None else min(n, len(self.data))

    def batches(self, n: int | None = None, *, start: int = 0) -> Iterator[Batch]:
        """The first ``n`` samples from ``start`` on, in the run's order, on the device, by the run's batch."""
        return self.data.batches(self.batch, start=start, stop=self.take(n), device=self.device)

    def once(self, key: str, make: Callable[[], _T]) -> _T:
        """``make()``, or what it gave before in this run: what more than one instrument must find out."""
        if key not in self._answers:
            self._answers[key] = make()
        return self._answers[key]

    @property
    def order(self) -> dict[str, str]:
        """In which order samples are taken, and a digest of it where it was drawn."""
        return {"by": "drawn", "digest": self.data.digest} if isinstance(self.data, Drawn) else {"by": "given"}

    @property
    def last_block(self) -> Tap | None:
        """Where headlines stand: the last block, never the head (:func:`lisse.profile.last_block`)."""
        name = last_block({tap.name: tap.role for tap in self.taps})
        return next((tap for tap in self.taps if tap.name == name), None)

    @cached_property
    def attention_taps(self) -> tuple[Tap, ...]:
        """Where attention gives its weights, in order; none where the network has no attention that does."""
        batch = next(iter(self.data.batches(min(3, len(self)), stop=min(3, len(self)), device=self.device)))
        try:
            return tuple(find(self.model, batch.inputs, attention=True, statistics=self.statistics))
        except ValueError:
            return ()

    # -- activations ---------------------------------------------------------------------------------------------

    def recording(self, n: int | None = None) -> Recording:
        """Activations of the first ``n`` samples. One recording is shared by all instruments: grown, never repeated.

        It grows in whole batches, so that asking for 50 and then for 500 gives the same bits as asking for 500.
        """
        if self._pass is None:
            self._pass = self._resumed_pass()
        return Recording(self._pass, self.take(n))

    def _resumed_pass(self) -> Pass:
        """The clean pass, gone on with from what an interrupted run has kept of it."""
        stretches: list[dict[str, Tensor]] = []
        while (rows := self.finished(None, self._stretch(self._saved[-1]))) is not None:
            self._saved.append(int(rows.pop("stop")))
            stretches.append(rows)
        self._clock = time.monotonic()
        clean = Pass(
            self.model,
            self.batches(start=self._saved[-1]),
            self.taps,
            beside=self._own_taps,
            memory=self._given_memory,
            statistics=self.statistics,
            readout=self.readout,
            seed=self.seed,
            total=len(self.data),
            expected=self._shared,
            progress=self.progress,
            after=self._save_rows,
        )
        for rows, (start, stop) in zip(stretches, itertools.pairwise(self._saved), strict=True):
            clean.restore(rows, stop - start)
        if stretches and self.data.targets is not None:
            clean.targets.append(self.data.targets[: clean.recorded])
        return clean

    def _save_rows(self, clean: Pass) -> None:
        """Keep what was recorded since the last time, where that took long and is no more than the memory allows."""
        if self.cache is None or time.monotonic() - self._clock < self.patience:
            return
        if self._fits_memory((*self.taps, *self._own_taps), clean.recorded):
            rows = clean.rows_since(self._saved[-1])
            self._finish(None, self._stretch(self._saved[-1]), {**rows, "stop": torch.tensor(clean.recorded)})
            self._saved.append(clean.recorded)
        self._clock = time.monotonic()

    def _stretch(self, start: int) -> tuple[Any, ...]:
        """The key of what was recorded from a sample on: of other places it is another."""
        return ("recording", start, *(tap.name for tap in self._own_taps))

    def _fits_memory(self, taps: Iterable[Tap], samples: int) -> bool:
        return sum(tap.numel * tap.dtype.itemsize for tap in taps) * samples <= parse_bytes(self.memory)

    def forget(self) -> None:
        """Remove what was kept of the clean pass, and pieces that do not last: all parts are finished."""
        stretches = [(None, self._stretch(position)) for position in self._saved[:-1]]
        for instrument, key in (*stretches, *self._passing):
            if self.cache is not None:
                self.cache.remove_arrays(self._key(instrument, key))

    def share(self, counts: Iterable[int], taps: Iterable[Tap] = ()) -> None:
        """Say how many samples each instrument passes over: what two of them will read is recorded in passing.

        ``taps`` beside the layers are recorded with them, where the memory holds them whole.
        """
        self._shared = sorted((0, 0, *counts))[-2]
        layers = self.taps if self.readout is None else ()
        extra = tuple(dict.fromkeys(tap for tap in taps if tap not in layers))
        self._own_taps = extra if self._fits_memory(extra, self._shared) else ()

    def clean(
        self,
        n: int | None,
        taps: Iterable[Tap],
        on: Callable[[Tap, Tensor], Any],
        *,
        start: int = 0,
        reference: Callable[[Batch], Any] | None = None,
    ) -> Iterator[Batch]:
        """Samples ``start … n - 1`` as they are, batch by batch: ``on(tap, activation)`` sees each forward first.

        What was recorded is not run again, and what other instruments of the run will ask for is recorded in passing,
        so all of them share one clean pass. ``taps`` may be any places of the model, not the run's alone (then there
        is always a forward). While a batch is looked at, forwards through the model reach ``on`` as well.
        ``reference(batch)`` gives what is fed as the clean pass, where that is not the batch itself.
        """
        taps, most = list(taps), None

        def look(tap: Tap, activation: Tensor) -> Any:
            return on(tap, activation[:most])

        if start < self._shared:
            self.recording()  # with what an interrupted run has kept of it
        with ExitStack() as stack:
            stack.enter_context(still(self.model, statistics=self.statistics, seed=self.seed))
            stack.enter_context(tapped(self.model, taps, look))
            for batch in self.batches(n, start=start):
                stop = batch.start + batch.size
                if reference is not None:
                    self.forward(reference(batch), batch.start)
                elif self._holds(taps, stop):
                    for tap in taps:
                        on(tap, self._recorded(tap)[batch.start : stop].to(self.device))
                elif self._records(batch.start):
                    most = batch.size  # it grows in whole batches, also where fewer samples are asked for
                    self.recording(stop).samples  # noqa: B018  # its forward reaches ``on``
                    most = None
                else:
                    self.forward(batch.inputs, batch.start)
                yield batch

    def forward_size(self, start: int, stop: int) -> int:
        """How many samples a forward of :meth:`clean` from ``start`` on has: whole batches are recorded."""
        return min(self.batch, len(self) - start) if self._records(start) else stop - start

    def _records(self, start: int) -> bool:
        recorded = 0 if self._pass is None else self._pass.recorded
        return start == recorded and start < self._shared and not self._in_turns

    def _holds(self, taps: Sequence[Tap], stop: int) -> bool:
        """Whether the recording has whole activations of these places up to a sample."""
        layers = self.taps if self.readout is None else ()
        return (
            self._pass is not None
            and not self._in_turns
            and self._pass.recorded >= stop
            and all(tap in layers or tap in self._own_taps for tap in taps)
        )

    def _recorded(self, tap: Tap) -> Tensor:
        assert self._pass is not None  # :meth:`_holds` has looked
        return self._pass.read(self._pass.beside.get(tap, tap.name))

    def views(
        self,
        n: int | None,
        make: Views,
        reduce: Reduce,
        *,
        layers: Sequence[str] | None = None,
        start: int = 0,
        reference: Callable[[Batch], Any] | None = None,
        look: Callable[[Tap, Tensor, int], None] | None = None,
        task: str | None = "views",
        buffers: dict[str, Tensor] | None = None,
    ) -> dict[str, dict[str, Tensor]]:
        """Stream altered views of the samples against the clean pass: ``result[view][layer]`` ``[n - start, …]``.

        ``make(batch)`` gives the views of a batch, by name: a mapping, or an iterable of pairs when they should not
        all exist at once. ``reduce(tap, clean, view)`` turns a layer's clean and altered activations ``[b, …]`` into a
        few numbers per sample inside the tap; only those are kept, and one batch of clean activations. Samples before
        ``start`` are left out. ``reference(batch)`` gives what is fed as the clean pass, where that is not the batch
        itself; ``look(tap, clean, start of the batch)`` sees the clean activations. Without a ``task`` progress is not
        told: by a step of :meth:`blocks`, which tells it. The next step writes faster into the ``buffers`` of the last.
        """
        taps = self.taps if layers is None else [tap for tap in self.taps if tap.name in set(layers)]
        numbers: dict[str, dict[str, list[Tensor]]] = {}
        clean: dict[str, Tensor] = {} if buffers is None else buffers
        view: str | None = None
        position = start

        def on(tap: Tap, activation: Tensor) -> None:
            if view is None:
                before = clean.get(tap.name)
                # Memory that was touched before is much faster to write to than fresh memory.
                if before is not None and before.shape == activation.shape and before.dtype == activation.dtype:
                    before.copy_(activation)
                else:
                    clean[tap.name] = activation.clone()
                if look is not None:
                    look(tap, clean[tap.name], position)
            else:
                values = reduce(tap, clean[tap.name], activation)
                # A number a sample may wait where it is: fetched at once, the device would stand still at every layer.
                numbers.setdefault(view, {}).setdefault(tap.name, []).append(
                    values if values.ndim == 1 else values.cpu()
                )

        total = self.take(n)
        for batch in self.clean(n, taps, on, start=start, reference=reference):
            views = make(batch)
            for name, inputs in views.items() if isinstance(views, Mapping) else views:
                view = name
                self.forward(inputs, batch.start)
            view, position = None, batch.start + batch.size
            if task is not None:
                self.tell(task, position, total, "samples")
        return {name: {layer: torch.cat(rows).cpu() for layer, rows in by.items()} for name, by in numbers.items()}

    def forward(self, inputs: Any, start: int) -> Any:
        """What the network gives for the samples from ``start`` on; inside :func:`~lisse.taps.still`."""
        # The same random numbers inside the network for every view of a batch: a view differs by its input alone.
        reseed(self.model, batch_seed(self.seed, start))
        return feed(self.model, prepared(self.model, inputs))

    # -- randomness ----------------------------------------------------------------------------------------------

    def draw(
        self, key: str, start: int, count: int, shape: Sequence[int], *, law: Literal["normal", "uniform"] = "normal"
    ) -> Tensor:
        """Random numbers ``[count, *shape]`` for samples ``start … start + count - 1``, the same in any batch size.

        Standard normal, or uniform on [0, 1). They are drawn for fixed blocks of samples, each from a generator that
        is seeded by the run's seed, ``key`` and the block's number: on a GPU its own, whose numbers are others than the
        CPU's, for there it would wait for them.
        """
        shape = tuple(shape)
        device = self.device if self.device.type == "cuda" else None
        block = max(1, min(256, 2 ** (22 if device else 24) // max(1, int(torch.Size(shape).numel()))))
        rows = []
        position = start
        while position < start + count:
            number, offset = divmod(position, block)
            length = min(block - offset, start + count - position)
            label = repr((self.seed, key, law, number, shape))
            if device is not None:
                values = _drawn_on(device, label, law, (block, *shape))
            else:
                values = self._drawn(label, (key, law), offset + length, block, shape)
            rows.append(values[offset : offset + length])
            position += length
        return torch.cat(rows).to(self.device) if rows else torch.empty((0, *shape), device=self.device)

    def _drawn(self, label: str, key: tuple[str, str], needed: int, block: int, shape: tuple[int, ...]) -> Tensor:
        """The first ``needed`` rows of a block or more. The last block of each key is kept: batches walk in order."""
        drawn, values = self._blocks.get(key, ("", torch.empty(0)))
        if drawn != label or len(values) < needed:
            # A stretch of a stream is the same however much of it is drawn, in sixteens of numbers, which PyTorch makes
            # at once. Twice as much as before, so that no block is drawn more than about twice.
            count = -(-max(needed, 2 * len(values) if drawn == label else 0) // 16) * 16
            count = block if count >= block - 16 else count
            values = _drawn_on(torch.device("cpu"), label, key[1], (count, *shape))
            self._blocks[key] = label, values
        return values

    def generator(self, key: str) -> torch.Generator:
        """A CPU generator of its own for everything that is not per sample (intervals, the choice of clouds)."""
        return torch.Generator().manual_seed(_seed_of(repr((self.seed, key))))

    # -- resume --------------------------------------------------------------------------------------------------

    @cached_property
    def _model_fingerprint(self) -> str:
        return model_fingerprint(self.model)

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """Hashes of the model, of the data, and of what the model is given of them (token ids, where they are text)."""
        data = self.data
        return {
            "model": self._model_fingerprint,
            "data": data.fingerprint(),
            "tensors": data.tensor_fingerprint(),
        }

    @cached_property
    def identity(self) -> str:
        """A hash of all that this run's numbers depend on: model, data, layers, seed, batch, mode, device, versions."""
        taps = [(tap.name, tap.module, tap.call, tap.side, tap.axis, tap.path) for tap in self.taps]
        settings = [self.seed, self.order, self.batch, self.statistics, self.readout, self.device.type]
        versions = [package_fingerprint(), torch.__version__, *library_versions().values()]
        return digest_of(self.fingerprints, self._probe(), taps, settings, versions)

    def _probe(self, size: int | None = None) -> dict[str, str]:
        """Hashes of every layer and the output on the first batch: what no attribute and no source shows is seen here.

        A global that the forward reads, a hook with a closure, a patched function all change what the model computes.
        """
        bits: dict[str, str | Tensor] = {}

        def on(tap: Tap, activation: Tensor) -> None:
            bits[tap.name] = _bits(activation)

        batch = next(iter(self.data.batches(size or self.batch, device=self.device)))
        with still(self.model, statistics=self.statistics, seed=self.seed), tapped(self.model, self.taps, on):
            output = self.forward(batch.inputs, batch.start)
        answers = [_bits(tensor) for _, tensor in tensors(output)]
        digests = {name: _text(value) for name, value in bits.items()}
        return {**digests, "": digest_of([_text(value) for value in answers])}

    @cached_property
    def restless(self) -> list[str]:
        """Layers where the same samples, with the same random numbers, do not give the same bits twice."""
        first, second = self._probe(_FEW), self._probe(_FEW)
        return [name or "the output" for name in first if first[name] != second[name]]

    def piece(
        self,
        instrument: Any,
        key: str | Sequence[Any],
        make: Callable[[], Mapping[str, Tensor]],
        *,
        lasting: bool = True,
    ) -> dict[str, Tensor]:
        """The unit of resume: ``make()``, or what it gave before for the same run, instrument and key.

        Give it work of seconds to minutes, with a key that names it among the instrument's pieces. A piece is on disk
        whole or not at all, so a run that was killed goes on from the last finished one. Without a cache, ``make()``.
        What is large and soon made is not ``lasting``: kept if it took ``patience`` seconds, and until the run is over.
        """
        if not lasting:
            self._passing.append((instrument, key))
        tensors, clock = self.finished(instrument, key), time.monotonic()
        if tensors is None:
            tensors = dict(make())
            if lasting or time.monotonic() - clock >= self.patience:
                self._finish(instrument, key, tensors)
        return tensors

    def finished(self, instrument: Any, key: str | Sequence[Any]) -> dict[str, Tensor] | None:
        """A piece that was made before, or ``None``."""
        if self.cache is None:
            return None
        arrays = self.cache.arrays(self._key(instrument, key))
        self._complain()
        return None if arrays is None else {name: torch.from_numpy(array) for name, array in arrays.items()}

    def _finish(self, instrument: Any, key: str | Sequence[Any], tensors: Mapping[str, Tensor]) -> None:
        if self.cache is not None:
            digest = self._key(instrument, key)
            arrays = {name: _array(value) for name, value in tensors.items()}
            self._keep(lambda cache: cache.keep_arrays(digest, arrays))

    def blocks(
        self,
        instrument: Any,
        key: str | Sequence[Any],
        n: int,
        make: Callable[[int, int], Mapping[str, Tensor]],
        *,
        task: str,
        step: int | None = None,
        waiting: Callable[[], Mapping[str, Tensor]] | None = None,
    ) -> dict[str, Tensor]:
        """Work that goes over samples: of ``make(start, stop)``, tensors ``[stop - start, …]``, all ``[n, …]``.

        It goes ``step`` samples at a time (a batch). What is finished is kept every ``patience`` seconds, so that an
        interrupted run loses no more than these, or one step. What only the first steps give ends with them. A step
        that a device has no room for is taken again at half the size: samples and draws are the same.
        ``waiting()`` is what the next step goes on from, kept until the run is over: :meth:`waited` gives it back.
        """
        if self.processes and instrument.SHARED:
            return self._shared_blocks(n, make, step or self.batch)
        step, position = step or self.batch, 0
        stretches: list[dict[str, Tensor]] = []
        while position < n and (stretch := self.finished(instrument, (key, n, position))) is not None:
            position = int(stretch.pop("stop"))
            stretches.append(stretch)
        pending: list[dict[str, Tensor]] = []
        begin, clock = position, time.monotonic()
        while position < n:
            stop, values = min(position + step, n), None
            with suppress(torch.OutOfMemoryError) if self.may_shrink(stop - position) else nullcontext():
                values = dict(make(position, stop))
            if values is None:
                step = self.shrink(stop - position)
                continue
            pending.append(values)
            position = stop
            if position == n or time.monotonic() - clock >= self.patience:
                stretch = _joined(pending)
                if waiting is not None and position < n:
                    self._passing.append((instrument, (key, n, position, "waiting")))
                    self._finish(*self._passing[-1], waiting())
                self._finish(instrument, (key, n, begin), {**stretch, "stop": torch.tensor(position)})
                stretches.append(stretch)
                pending, begin, clock = [], position, time.monotonic()
            self.tell(task, position, n, "samples")
        return _joined(stretches)

    def _shared_blocks(self, n: int, make: Callable[[int, int], Mapping[str, Tensor]], step: int) -> dict[str, Tensor]:
        """:meth:`blocks` in turn by all processes, whose numbers are gathered; all make as many forwards as each other.

        A network whose weights are spread over the processes stops where one of them makes a forward alone.
        """
        group = torch.distributed
        rank, count = group.get_rank(), group.get_world_size()
        step = min(step, -(-n // count))
        starts = list(range(0, n, step))
        blocks: list[tuple[int, dict[str, Tensor]]] = []
        # Only the process whose turn the first samples are would record them in passing, and make fewer forwards later.
        self._in_turns = True
        try:
            for turn in range(-(-len(starts) // count)):
                start = starts[min(turn * count + rank, len(starts) - 1)]
                values = dict(make(start, min(start + step, n)))
                if turn * count + rank < len(starts):
                    blocks.append((start, values))
        finally:
            self._in_turns = False
        gathered: list[Any] = [None] * count
        group.all_gather_object(gathered, blocks)
        return _joined([values for _, values in sorted(itertools.chain(*gathered), key=lambda block: block[0])])

    def may_shrink(self, size: int) -> bool:
        """Whether ``size`` samples at a time can be fewer and give the same numbers."""
        return size > 1 and self.statistics == "running"

    def shrink(self, size: int) -> int:
        """Take half as many samples at a time from here on, for ``size`` were too many: how many, which is told.

        Called outside of the handler of the error, whose frames hold what is in the way.
        """
        size = max(1, size // 2)
        self.batch = min(self.batch, size)
        if self._pass is not None and self._pass.broken is not None:
            self._pass = None
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        self.say("memory", f"the device is full: from here on {size} samples at a time", level="warning")
        return size

    def waited(self, instrument: Any, key: str | Sequence[Any], n: int, start: int) -> dict[str, Tensor] | None:
        """What an interrupted :meth:`blocks` has kept for its step from ``start`` on, or ``None``."""
        self._passing.append((instrument, (key, n, start, "waiting")))
        return self.finished(*self._passing[-1])

    def per_layer(
        self,
        instrument: Any,
        function: Callable[[Tensor], Tensor],
        *,
        n: int | None = None,
        layers: Iterable[Tap] | None = None,
    ) -> dict[str, Tensor]:
        """``function`` of each layer's activations ``[n, …]``, by layer: every one is a piece, and progress is told."""
        recording = self.recording(n)
        taps = list(self.taps if layers is None else layers)
        key = (function_identity(function), self.take(n))
        values: dict[str, Tensor] = {}
        for index, tap in enumerate(taps):
            make = functools.partial(lambda layer: {"values": function(recording[layer]).cpu()}, tap.name)
            values[tap.name] = self.piece(instrument, (key, tap.name), make)["values"]
            self.tell(instrument.name, index + 1, len(taps), "layers")
        return values

    def mean_rows(
        self,
        quantity: str,
        values: Mapping[str, Tensor],
        *,
        kind: Kind = "estimate",
        level: float = 0.95,
        at: Mapping[str, Value] | None = None,
    ) -> list[Row]:
        """A row per layer: the mean over samples of ``values[layer]`` ``[n]``, with its interval."""
        return [
            sample_row(
                quantity, values[name], tap, at, generator=self.generator(quantity + name), kind=kind, level=level
            )
            for name, tap in zip(self.taps.names, self.taps, strict=True)
            if name in values
        ]

    def part(self, instrument: Any, make: Callable[[], Part]) -> Part:
        """An instrument's whole part: ``make()``, or what it gave before for the same run and options.

        What is kept is complete: a shortage of memory must not be remembered as the result.
        """
        if self.cache is None:
            return make()
        key = self._key(instrument, "part")
        part = self.cache.part(key)
        self._complain()
        if part is None:
            fresh = part = make()
            if fresh.complete:
                self._keep(lambda cache: cache.keep_part(key, fresh))
        return part

    def _keep(self, write: Callable[[Cache], None]) -> None:
        """Write to the cache; where that fails, say so and go on without it: the work is worth more than its copy."""
        if self.cache is None:
            return
        try:
            write(self.cache)
        except OSError as error:
            self.say("cache", f"nothing more is kept in {self.cache.folder} ({error})", level="warning")
            self.cache = None

    def _key(self, instrument: Any, key: str | Sequence[Any]) -> str:
        if instrument is None:
            return digest_of(self.identity, key)
        kind: Any = type(instrument)
        name = f"{kind.__module__}.{kind.__qualname__}"
        return digest_of(self.identity, name, class_source(kind), options_of(instrument), key)

    def _complain(self) -> None:
        if self.cache is not None and self.cache.complaint is not None:
            self.say("cache", self.cache.complaint, level="warning")

    # -- progress ------------------------------------------------------------------------------------------------

    def tell(self, task: str, done: float, total: float | None = None, unit: str = "") -> None:
        """Say how far a task is."""
        if self.progress is not None:
            self.progress(Event(task, done, total, unit))

    def say(self, task: str, text: str, *, level: Literal["info", "warning"] = "info") -> None:
        """Say something a person should read."""
        if self.progress is not None:
            self.progress(Event(task, say=text, level=level))

    def close(self) -> None:
        """Let go of the recording's memory and files."""
        if self._pass is not None:
            self._pass.store.close(release=False)
            self._pass = None


def _joined(stretches: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Tensors of stretches of samples, one after the other, each as far as consecutive stretches have it."""
    joined: dict[str, list[Tensor]] = {name: [] for name in (stretches[0] if stretches else ())}
    for index, stretch in enumerate(stretches):
        for name, rows in joined.items():
            if name in stretch and len(rows) == index:
                rows.append(stretch[name])
    return {name: torch.cat(rows) for name, rows in joined.items()}


def _bits(tensor: Tensor) -> str | Tensor:
    """What tells a tensor from any other: its hash, or on a GPU its checksum, which waits for nothing."""
    return checksum(tensor) if tensor.is_cuda else tensor_identity(tensor)


def _text(bits: str | Tensor) -> str:
    return bits if isinstance(bits, str) else str(bits.tolist())


def _drawn_on(device: torch.device, label: str, law: str, shape: Sequence[int]) -> Tensor:
    generator = torch.Generator(device).manual_seed(_seed_of(label))
    maker = torch.randn if law == "normal" else torch.rand
    return maker(tuple(shape), generator=generator, dtype=torch.float32, device=device)


def _array(value: Tensor) -> np.ndarray:
    value = value.detach().cpu()
    return np.asarray((value.float() if value.dtype == torch.bfloat16 else value).numpy())


def _seed_of(label: str) -> int:
    return (
        int.from_bytes(hashlib.blake2b(label.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little") >> 1
    )
