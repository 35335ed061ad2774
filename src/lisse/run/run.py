"""Run: one model on one data set in one order, and the services every instrument shares."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from lisse.data import Batch, Dataset
from lisse.profile import Part, options_of
from lisse.progress import Event, Listener
from lisse.recording import Recording, batch_seed
from lisse.recording.recorder import Pass, Readout
from lisse.run.cache import Cache, default_cache
from lisse.run.fingerprint import digest_of, hash_tensor, model_fingerprint, package_fingerprint, source_of
from lisse.taps import Tap, Taps, feed, find, model_device, plain, prepared, reseed, still, tapped
from lisse.taps.stillness import Statistics
from lisse.taps.tap import tensors

Views = Callable[[Batch], Mapping[str, Any] | Iterable[tuple[str, Any]]]
Reduce = Callable[[Tap, Tensor, Tensor], Tensor]


class Run:
    """One model on one data set in one order. It owns batch, device, seed, recording, cache and progress.

    An instrument asks it for activations (:meth:`recording`), for views against the clean pass (:meth:`views`), for
    random numbers that do not depend on the batch size (:meth:`draw`), keeps finished work with :meth:`piece` and
    says how far it is with :meth:`tell`. It knows no instrument.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Dataset,
        *,
        layers: Sequence[str] | str | None = None,
        seed: int = 0,
        batch: int = 100,
        memory: str | int = "2GiB",
        device: str | torch.device | None = None,
        statistics: Statistics = "running",
        readout: Readout | None = None,
        cache: str | Path | bool | None = None,
        progress: Listener | None = None,
    ) -> None:
        if batch < 1:
            raise ValueError(f"Run: batch must be at least 1, got {batch}.")
        if not isinstance(seed, int):
            raise TypeError(f"Run: seed must be an integer, got {seed!r}.")
        if readout is not None and readout not in get_args(Readout):
            raise ValueError(f"Run: readout must be one of {', '.join(get_args(Readout))} or None, got {readout!r}.")
        if progress is not None and not callable(progress):
            raise TypeError(f"Run: progress must be a function of an Event, got {progress!r}.")
        self.model = plain(model if device is None else model.to(device))
        self.data, self.seed, self.batch, self.memory = data, seed, batch, memory
        self.statistics: Statistics = statistics
        self.device = model_device(self.model)
        padded = data.lengths is not None and bool((data.lengths != data.lengths[0]).any())
        self.readout: Readout | None = readout or ("mean" if padded else None)
        self.progress = progress
        example = next(iter(data.batches(min(3, len(data)), stop=min(3, len(data)), device=self.device)))
        self.layers = layers  # as they were asked for; None: those along depth
        self.taps: Taps = find(self.model, example.inputs, layers, statistics=statistics)
        self.cache = None if cache is None or cache is False else Cache(default_cache() if cache is True else cache)
        self._pass: Pass | None = None
        self._blocks: dict[tuple[str, str], tuple[str, Tensor]] = {}

    def __len__(self) -> int:
        return len(self.data)

    def take(self, n: int | None) -> int:
        """``n``, or as many samples as there are where that is fewer (``None``: all)."""
        return len(self.data) if n is None else min(n, len(self.data))

    def batches(self, n: int | None = None, *, start: int = 0) -> Iterator[Batch]:
        """The first ``n`` samples from ``start`` on, in order and on the device, in batches of the run's size."""
        return self.data.batches(self.batch, start=start, stop=self.take(n), device=self.device)

    # -- activations ---------------------------------------------------------------------------------------------

    def recording(self, n: int | None = None) -> Recording:
        """Activations of the first ``n`` samples. One recording is shared by all instruments: grown, never repeated.

        It grows in whole batches, so that asking for 50 and then for 500 gives the same bits as asking for 500.
        """
        if self._pass is None:
            self._pass = Pass(
                self.model,
                self.batches(),
                self.taps,
                memory=self.memory,
                statistics=self.statistics,
                readout=self.readout,
                seed=self.seed,
                total=len(self.data),
                progress=self.progress,
            )
        return Recording(self._pass, self.take(n))

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
    ) -> dict[str, dict[str, Tensor]]:
        """Stream altered views of the samples against the clean pass: ``result[view][layer]`` ``[n - start, …]``.

        ``make(batch)`` gives the views of a batch, by name: a mapping, or an iterable of pairs when they should not
        all exist at once. ``reduce(tap, clean, view)`` turns a layer's clean and altered activations ``[b, …]`` into a
        few numbers per sample inside the tap; only those are kept, and one batch of clean activations. Samples before
        ``start`` are left out. ``reference(batch)`` gives what is fed as the clean pass, where that is not the batch
        itself; ``look(tap, clean, start of the batch)`` sees the clean activations.
        """
        taps = self.taps if layers is None else [tap for tap in self.taps if tap.name in set(layers)]
        kept: dict[str, dict[str, list[Tensor]]] = {}
        clean: dict[str, Tensor] = {}
        view: str | None = None
        place = start

        def on(tap: Tap, activation: Tensor) -> None:
            if view is None:
                held = clean.get(tap.name)
                # Memory that was touched before is much faster to write to than fresh memory.
                if held is not None and held.shape == activation.shape and held.dtype == activation.dtype:
                    held.copy_(activation)
                else:
                    clean[tap.name] = activation.clone()
                if look is not None:
                    look(tap, clean[tap.name], place)
            else:
                kept.setdefault(view, {}).setdefault(tap.name, []).append(
                    reduce(tap, clean[tap.name], activation).cpu()
                )

        total = self.take(n)
        with ExitStack() as stack:
            stack.enter_context(still(self.model, statistics=self.statistics, seed=self.seed))
            stack.enter_context(tapped(self.model, taps, on))
            for batch in self.batches(n, start=start):
                view, place = None, batch.start
                self._forward(batch.inputs if reference is None else reference(batch), batch.start)
                made = make(batch)
                for name, inputs in made.items() if isinstance(made, Mapping) else made:
                    view = name
                    self._forward(inputs, batch.start)
                self.tell("views", batch.start + len(next(iter(clean.values()))), total, "samples")
        return {name: {layer: torch.cat(rows) for layer, rows in by.items()} for name, by in kept.items()}

    def _forward(self, inputs: Any, start: int) -> Any:
        # The same random numbers inside the network for every view of a batch: a view differs by its input alone.
        reseed(self.model, batch_seed(self.seed, start))
        return feed(self.model, prepared(self.model, inputs))

    # -- randomness ----------------------------------------------------------------------------------------------

    def draw(
        self, key: str, start: int, count: int, shape: Sequence[int], *, law: Literal["normal", "uniform"] = "normal"
    ) -> Tensor:
        """Random numbers ``[count, *shape]`` for samples ``start … start + count - 1``, the same in any batch size.

        Standard normal, or uniform on [0, 1). They are drawn for fixed blocks of samples, each from a generator that
        is seeded by the run's seed, ``key`` and the block's number, on the CPU whatever the device.
        """
        shape = tuple(shape)
        block = max(1, min(256, 2**24 // max(1, int(torch.Size(shape).numel()))))
        rows = []
        place = start
        while place < start + count:
            number, offset = divmod(place, block)
            label = repr((self.seed, key, law, number, shape))
            made, values = self._blocks.get((key, law), ("", torch.empty(0)))
            if made != label:
                generator = torch.Generator().manual_seed(_seed_of(label))
                maker = torch.randn if law == "normal" else torch.rand
                values = maker((block, *shape), generator=generator, dtype=torch.float32)
                self._blocks[key, law] = label, values  # the last block of each key: batches walk through them in order
            taken = min(block - offset, start + count - place)
            rows.append(values[offset : offset + taken])
            place += taken
        return torch.cat(rows).to(self.device) if rows else torch.empty((0, *shape), device=self.device)

    def generator(self, key: str) -> torch.Generator:
        """A CPU generator of its own for everything that is not per sample (intervals, the choice of clouds)."""
        return torch.Generator().manual_seed(_seed_of(repr((self.seed, key))))

    # -- resume --------------------------------------------------------------------------------------------------

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """Hashes of the model and the data."""
        return {"model": model_fingerprint(self.model), "data": self.data.fingerprint()}

    @cached_property
    def identity(self) -> str:
        """A hash of all that this run's numbers depend on: model, data, layers, seed, batch, mode, device, versions."""
        places = [(tap.name, tap.module, tap.call, tap.side, tap.axis, tap.path) for tap in self.taps]
        settings = [self.seed, self.batch, self.statistics, self.readout, self.device.type]
        versions = [package_fingerprint(), torch.__version__, np.__version__]
        return digest_of(self.fingerprints, self._probe(), places, settings, versions)

    def _probe(self) -> str:
        """A hash of every layer and the output on the first batch: what no attribute and no source shows is seen here.

        A global that the forward reads, a hook with a closure, a patched function all change what the model computes.
        """
        digest = hashlib.blake2b(digest_size=20)

        def on(tap: Tap, activation: Tensor) -> None:
            hash_tensor(digest, activation)

        batch = next(iter(self.batches()))
        with still(self.model, statistics=self.statistics, seed=self.seed), tapped(self.model, self.taps, on):
            output = self._forward(batch.inputs, batch.start)
        for _, tensor in tensors(output):
            hash_tensor(digest, tensor)
        return digest.hexdigest()

    def piece(
        self, instrument: Any, key: str | Sequence[Any], make: Callable[[], Mapping[str, Tensor]]
    ) -> dict[str, Tensor]:
        """The unit of resume: ``make()``, or what it gave before for the same run, instrument and key.

        Give it work of seconds to minutes, with a key that names it among the instrument's pieces. A piece is on disk
        whole or not at all, so a run that was killed goes on from the last finished one. Without a cache, ``make()``.
        """
        if self.cache is None:
            return dict(make())
        place = self._place(instrument, key)
        found = self.cache.arrays(place)
        self._complain()
        if found is None:
            made = dict(make())
            self._keep(lambda cache: cache.keep_arrays(place, {name: _array(value) for name, value in made.items()}))
            return made
        return {name: torch.from_numpy(value) for name, value in found.items()}

    def part(self, instrument: Any, make: Callable[[], Part]) -> Part:
        """An instrument's whole part: ``make()``, or what it gave before for the same run and options."""
        if self.cache is None:
            return make()
        place = self._place(instrument, "part")
        found = self.cache.part(place)
        self._complain()
        if found is None:
            made = found = make()
            self._keep(lambda cache: cache.keep_part(place, made))
        return found

    def _keep(self, write: Callable[[Cache], None]) -> None:
        """Write to the cache; where that fails, say so and go on without it: the work is worth more than its copy."""
        if self.cache is None:
            return
        try:
            write(self.cache)
        except OSError as error:
            self.say("cache", f"nothing more is kept in {self.cache.folder} ({error})", level="warning")
            self.cache = None

    def _place(self, instrument: Any, key: str | Sequence[Any]) -> str:
        kind = type(instrument)
        name = f"{kind.__module__}.{kind.__qualname__}"
        return digest_of(self.identity, name, source_of(kind), options_of(instrument), key)

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


def _array(value: Tensor) -> np.ndarray:
    value = value.detach().cpu()
    return np.asarray((value.float() if value.dtype == torch.bfloat16 else value).numpy())


def _seed_of(label: str) -> int:
    return int.from_bytes(hashlib.blake2b(label.encode(), digest_size=8).digest(), "little") >> 1
