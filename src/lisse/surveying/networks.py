"""survey(): one profile for each model, and beside it what says whether its numbers are remarkable."""

from __future__ import annotations

import dataclasses
import re
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn

from lisse.data import Dataset, as_dataset, load_data
from lisse.instruments import ALL
from lisse.instruments.by_name import kinds_named
from lisse.models import load_model, tokenizer_for
from lisse.models.specs import DRAWN, parse
from lisse.profile import Part, Profile, options_of
from lisse.progress import Bar, Event, Listener
from lisse.recording.recorder import Readout
from lisse.run import Instrument, Order, Run, Size, joined, profile_of
from lisse.run.accuracy import measured_score
from lisse.run.cache import Cache, default_cache
from lisse.run.calibration import CALIBRATION, calibrated
from lisse.run.instrument import distinct_instruments, provenance_of
from lisse.run.pair import RunPair, profile_of_pair
from lisse.surveying.beside import at_start, seconds_per_sample, with_pictures, zoo_architecture
from lisse.taps import tracking_norms

SUFFIX = ".profile"
SCORED: dict[Size, int | None] = {"quick": 300, "usual": 2000, "full": None}  # samples on which accuracy is counted
STARTS: dict[Size, int] = {"quick": 1, "usual": 2, "full": 3}
LEAST_CLOUD = 30

_Model = str | nn.Module | Profile


def survey(
    models: _Model | Sequence[_Model] | Mapping[str, _Model],
    data: Any = None,
    *,
    size: Size = "usual",
    starts: int | None = 1,
    instruments: str | Sequence[type[Instrument] | Instrument] | None = None,
    layers: Sequence[str] | str | None = None,
    seed: int = 0,
    batch: int = 100,
    memory: str | int | None = None,
    device: str | torch.device | None = None,
    readout: Readout | None = None,
    order: Order = "drawn",
    split: str = "test",
    limit: int | None = None,
    join: Mapping[str, str] | None = None,
    folder: str | Path | None = None,
    cache: str | Path | bool | None = None,
    progress: Listener | bool | None = None,
) -> list[Profile]:
    """Measure models by every instrument that fits: what ``lisse report`` puts on its page.

    ``models`` are specs of :func:`~lisse.load_model`, modules, saved profiles (or their files, ``.profile``), or a
    mapping from names to these. ``data`` is a spec of :func:`~lisse.load_data`, which takes ``split`` and ``limit``, or
    anything that :func:`~lisse.measure` takes. ``instruments`` are kinds, taken at ``size`` (``quick``, ``usual``,
    ``full``), instruments, taken as they are, or names (``"topology,my.module:Silence"``); without any, all of lisse's.
    Those that look at two networks are given each model beside the first before it that they have something to say of
    (most blocks of one stand for blocks of the other, for one), and their parts are in its profile.

    A profile says in its provenance how often the model is right (``score``), and is followed by those of the same
    architecture with random weights (``reference``), where the network is of the zoo: ``starts`` of them; ``None``
    is one, two or three by size, but none beside weights that are random themselves. ``order`` is that of the
    samples, as in :func:`~lisse.measure`. ``join`` maps a name to a glob: models whose spec or name matches are
    seeds of one training and become one profile (:func:`~lisse.run.joined`).

    Everything that can be wrong with the arguments is an error before the first minute of work, then what will be
    measured and what it takes is told to ``progress``. A model that fails leaves a profile that says so. Profiles are
    saved in ``folder`` as they come, and with ``cache`` an interrupted survey goes on where it stopped.
    """
    if size not in get_args(Size):
        raise ValueError(f"survey: size must be one of {', '.join(get_args(Size))}, got {size!r}.")
    if starts is not None and starts < 0:
        raise ValueError(f"survey: starts must be at least 0, got {starts}.")
    entries = _entries(models)
    groups = _groups(join or {}, list(dict(entries)))
    distinct, sized = _instruments(instruments, size)
    bar = Bar(memory=True, keep=False) if progress is True else None
    work = _Work(
        size=size,
        starts=starts,
        instruments=distinct,
        sized=sized,
        asked_for=instruments is not None,
        seeds=set(groups),
        data=data if data is None or isinstance(data, str) else as_dataset(data),
        data_options={"split": split, "limit": limit, "seed": seed},
        run_options={
            "layers": layers,
            "seed": seed,
            "batch": batch,
            "memory": memory,
            "readout": readout,
            "order": order,
        },
        device=device,
        folder=None if folder is None else Path(folder),
        cache=None if cache is None or cache is False else Cache(default_cache() if cache is True else cache),
        progress=bar or (progress if callable(progress) else None),
    )
    try:
        profiles = work.profiles(dict(entries), titled=isinstance(models, Mapping))
    finally:
        if bar is not None:
            bar.close()
    return _grouped([(key, profiles[key]) for key, _ in entries], groups)


@dataclass
class _Network:
    """A model that was loaded and tried out, and what is to be measured of it. A page calls it ``title``.

    ``pairs`` are measured of it and of the network ``beside`` it; ``alone`` says why others are not.
    """

    title: str
    name: str
    instruments: list[Instrument]
    fits: list[Instrument]
    random: bool
    starts: int
    seconds: float
    beside: str | None = None
    pairs: list[Instrument] = field(default_factory=list)
    alone: dict[str, str] = field(default_factory=dict)


@dataclass
class _Work:
    """All models of one survey: loaded and tried out first, then measured one after the other."""

    size: Size
    starts: int | None
    instruments: list[Instrument]
    sized: set[str]  # those of them that are as large as the size says, and not as they were given
    asked_for: bool  # whether somebody has asked for these
    seeds: set[str]  # models of groups: seeds of one training are no two networks that should agree
    data: str | Dataset | None
    data_options: dict[str, Any]
    run_options: dict[str, Any]
    device: str | torch.device | None
    folder: Path | None
    cache: Cache | None
    progress: Listener | None
    networks: dict[str, _Network] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)  # until nothing more is to be measured of a network
    datasets: list[tuple[Any, Dataset]] = field(default_factory=list)  # by tokenizer
    finished: int = 0

    def profiles(self, models: Mapping[str, _Model], *, titled: bool) -> dict[str, list[Profile]]:
        """By key, the profile of a model, and those of its architecture with random weights."""
        # Everything that can be wrong with the arguments is said before the first minute of work.
        for key, model in models.items():
            if not isinstance(model, Profile):
                self.networks[key] = self._tried(key, model)
        if not titled:
            self._tell_apart([key for key, model in models.items() if isinstance(model, str)])
        if self.networks:
            self._announce()
        try:
            profiles = {}
            for key, model in models.items():
                profiles[key] = [model] if isinstance(model, Profile) else self._measured(key)
                later = [network.beside for other, network in self.networks.items() if other not in profiles]
                for finished in [key for key in self.runs if key in profiles and key not in later]:
                    del self.runs[finished]
            return profiles
        except KeyboardInterrupt:
            if self.cache is not None:
                self._say(f"what is finished is kept in {self.cache.folder}: the same command goes on.")
            raise

    def _tried(self, key: str, model: str | nn.Module) -> _Network:
        """Load a model, try it on three samples, and see what fits and what it will take."""
        random = isinstance(model, str) and model.startswith(DRAWN) and parse(model).random
        if isinstance(model, str):
            model = load_model(model, device=str(self.device or "cpu"))
        data = self._data_for(model)
        try:
            run = self._run(model, data)
            if random:
                calibrated(run.model, run.data, run.batch, run.device)
        except Exception as error:
            if re.match(rf"[\w.]+: ({'|'.join(self.run_options)}) must ", str(error)):
                raise
            raise RuntimeError(f"{key} does not run on {data.name}: {error}") from error
        try:
            per_sample = seconds_per_sample(run)
        except Exception:  # it ran on three samples; what goes wrong with more is shown when it is measured
            per_sample = 0.01
        instruments = [
            for_few(instrument, len(data)) if self.size != "full" and instrument.name in self.sized else instrument
            for instrument in self.instruments
        ]
        pairs = [instrument for instrument in instruments if instrument.SIDES == 2]
        instruments = [instrument for instrument in instruments if instrument.SIDES == 1]
        fits = [instrument for instrument in instruments if instrument.fits(run) is None]
        costs = {instrument.name: instrument.seconds(per_sample, len(run.taps), len(data)) for instrument in fits}
        again = [costs[instrument.name] for instrument in fits if instrument.AT_START]
        # Beside random weights other random weights say little, unless somebody asks for them.
        starts = self.starts if self.starts is not None else 0 if random else STARTS[self.size]
        starts = starts if again and zoo_architecture(run.model) else 0
        seconds = sum(costs.values()) + run.take(SCORED[self.size]) * per_sample
        seconds += starts * (sum(again) + CALIBRATION * per_sample)
        network = _Network(key, _name(run.model), instruments, fits, random, starts, seconds)
        self._put_beside(key, network, run, pairs)
        network.seconds += sum(item.seconds(per_sample, len(run.taps), len(data)) for item in network.pairs)
        self.runs[key] = run
        return network

    def _put_beside(self, key: str, network: _Network, run: Run, instruments: Sequence[Instrument]) -> None:
        """The first network before this one that instruments for two have something to say of."""
        if self.asked_for:  # what nobody asked for is not missed
            reason = "it looks at two networks beside each other, and none stands beside this one."
            network.alone = {item.name: reason for item in instruments}
        earlier = [] if key in self.seeds else [other for other in self.runs if other not in self.seeds]
        for other in earlier:
            pair = RunPair(self.runs[other], run)
            reasons = {item.name: item.fits_pair(pair) for item in instruments}
            network.alone |= {name: reasons[name] or "" for name in network.alone}
            network.pairs = [item for item in instruments if reasons[item.name] is None]
            if network.pairs:
                network.beside = other
                return

    def _data_for(self, model: nn.Module) -> Dataset:
        """The data, read once; text once for every tokenizer."""
        if self.data is None:
            raise ValueError("survey: data must be given where a model is to be measured, got None.")
        if not isinstance(self.data, str):
            return self.data
        tokenizer = tokenizer_for(model)
        for other, dataset in self.datasets:
            if other is tokenizer:
                return dataset
        self.datasets.append((tokenizer, load_data(self.data, **self.data_options, tokenizer=tokenizer)))
        return self.datasets[-1][1]

    def _run(self, model: nn.Module, data: Dataset) -> Run:
        cache = None if self.cache is None else self.cache.folder
        return Run(model, data, **self.run_options, device=self.device, cache=cache)

    def _tell_apart(self, specs: Sequence[str]) -> None:
        """Networks are called by their own names; where two have the same, with the words in which specs differ."""
        names = {spec: self.networks[spec].name for spec in specs}
        for spec, name in names.items():
            alike = [set(re.split(r"[/?&]", other)) for other in specs if names[other] == name]
            words = [word for word in re.split(r"[/?&]", spec) if word and word not in set.intersection(*alike)]
            self.networks[spec].title = f"{name} ({', '.join(words)})" if words else name

    def _announce(self) -> None:
        """What will be measured, and what it will take."""
        fitting = {item.name for network in self.networks.values() for item in (*network.fits, *network.pairs)}
        names = ", ".join(instrument.name for instrument in self.instruments if instrument.name in fitting)
        count, total = len(self.networks), self._total()
        start = f", {total - count} of them with random weights" if total > count else ""
        seconds = _duration(sum(network.seconds for network in self.networks.values()))
        self._say(
            f"{total} network{'s' * (total > 1)}{start}; {names or 'no instrument fits'}. "
            f"This takes {seconds}, less where work is found done."
        )

    def _measured(self, key: str) -> list[Profile]:
        network, run = self.networks[key], self.runs[key]
        profile = self._profile(run, network.instruments, network.title)
        notes: dict[str, list[str]] = {item.name: [] for item in network.instruments}
        for item in network.instruments:
            notes[item.name] += self._left_out(item)
            if network.random and tracking_norms(run.model):
                first = f"{run.take(CALIBRATION):,} samples"
                notes[item.name].append(f"Random weights: the statistics of batch norms are those of {first}.")
        profile = with_pictures(profile, run, network.instruments, notes)
        if network.random:
            profile = _with(profile, weights="random")
        try:
            error = measured_score(run, network.instruments, profile.parts, SCORED[self.size])
        except Exception as failure:
            self._say(f"accuracy was not counted: {failure}", level="warning")
            error = None
        profile = profile if error is None else _with(profile, score=error)
        profile = self._filed(self._with_pair(key, network, profile))
        return [profile, *self._references(network, run, profile)]

    def _with_pair(self, key: str, network: _Network, profile: Profile) -> Profile:
        """The profile with what instruments for two networks find of it and the one that it stands beside."""
        parts = {part.instrument: part for part in profile.parts}
        if not any(key == other.beside for other in self.networks.values()):  # else they are in the other's profile
            parts |= {name: Part(name, notes=(f"Not measured: {reason}",)) for name, reason in network.alone.items()}
        about: dict[str, Any] = {}
        for item in network.pairs:
            names = (self.networks[str(network.beside)].title, network.title)
            try:
                both = profile_of_pair(RunPair(self.runs[str(network.beside)], self.runs[key], names), item)
                notes = (*both.parts[0].notes, *self._left_out(item))
                parts[item.name] = dataclasses.replace(both.parts[0], notes=notes)
                about = {name: both.provenance[name] for name in ("beside", "forwards")}
            except Exception as error:  # as where one of them fails alone: the rest still comes, and this is said
                self._say(f"{item.name} of {names[1]} beside {names[0]} failed: {error}", level="warning")
                note = f"Failed: {type(error).__name__}: {error}"
                parts[item.name] = Part(item.name, notes=(note,), options=options_of(item), complete=False)
        return _with(dataclasses.replace(profile, parts=tuple(parts.values())), **about)

    def _left_out(self, instrument: Instrument) -> list[str]:
        """What the size of the survey leaves out, where it is the instrument's."""
        sized = instrument.name in self.sized and self.size in instrument.LEFT_OUT
        return [instrument.LEFT_OUT[self.size]] if sized else []

    def _references(self, network: _Network, run: Run, profile: Profile) -> Iterator[Profile]:
        """The profiles of networks with random weights beside a model."""
        instruments = [instrument for instrument in network.fits if instrument.AT_START]
        for seed in range(1000, 1000 + network.starts):
            try:
                start = self._run(at_start(run, seed), run.data)
            except Exception as error:  # a reference is worth less than what it is beside
                self._say(f"{network.title} has no random weights beside it: {error}", level="warning")
                return
            reference = self._profile(start, instruments, f"{network.title} with random weights")
            weights = profile.provenance["model"].get("fingerprint")
            yield self._filed(_with(reference, reference={"kind": "initialisation", "model": weights, "seed": seed}))

    def _profile(self, run: Run, instruments: Sequence[Instrument], title: str) -> Profile:
        self._tell(Event("survey", self.finished, self._total(), "networks"))
        run.progress = lambda event: self._tell(dataclasses.replace(event, task=f"{title}: {event.task}"))
        clock = time.perf_counter()
        try:
            if not instruments:
                return Profile((), provenance_of(run, title, 0.0))
            return profile_of(run, instruments, name=title, on_error="note")
        except Exception as error:  # the whole model, not one instrument: the others still come, and this is said
            self._say(f"{title} failed: {error}", level="warning")
            note = f"Failed: {type(error).__name__}: {error}"
            parts = (Part(item.name, notes=(note,), options=options_of(item)) for item in instruments)
            spec = getattr(getattr(run.model, "lisse", None), "spec", None)
            seconds = round(time.perf_counter() - clock, 3)
            about = {"model": {"name": title, "spec": spec}, "data": {"name": run.data.name}, "seconds": seconds}
            return Profile(tuple(parts), about)
        finally:
            run.close()
            self.finished += 1

    def _filed(self, profile: Profile) -> Profile:
        try:
            if self.cache is not None and profile.rows:
                self.cache.keep_profile(profile)
        except OSError as error:
            self._say(f"the profile is not kept in {self.cache and self.cache.folder} ({error})", level="warning")
        if self.folder is not None:
            seed = profile.provenance.get("reference", {}).get("seed", "")
            profile.save(self.folder / profile_name(profile.name, profile.provenance["data"]["name"], f"report{seed}"))
        return profile

    def _total(self) -> int:
        return sum(1 + network.starts for network in self.networks.values())

    def _tell(self, event: Event) -> None:
        if self.progress is not None:
            self.progress(event)

    def _say(self, text: str, *, level: Literal["info", "warning"] = "info") -> None:
        self._tell(Event("survey", say=text, level=level))


def _entries(models: Any) -> list[tuple[str, _Model]]:
    """Models by key: the name it was given, else the spec or the file, else the name of a module or profile."""
    if isinstance(models, Mapping):
        entries = list(models.items())
    else:
        models = [models] if isinstance(models, (str, nn.Module, Profile)) else list(models)
        entries = list(zip(_keys(models), models, strict=True))
    for _, model in entries:
        if not isinstance(model, (str, nn.Module, Profile)):
            raise TypeError(
                f"survey: models must be specs, modules or profiles, got {type(model).__name__}. "
                "Give one, a list of them, or a mapping from names to them."
            )
    if not entries:
        raise ValueError("survey: models must be one or more, got none.")
    files = {model: Profile.load(model) for _, model in entries if isinstance(model, str) and model.endswith(SUFFIX)}
    return [(key, files.get(model, model) if isinstance(model, str) else model) for key, model in entries]


def _keys(models: Sequence[Any]) -> Iterator[str]:
    """Specs as they are, also twice; other models by name, with a number where the name is there already."""
    counts: dict[str, int] = {}
    for model in models:
        key = model if isinstance(model, str) else model.name if isinstance(model, Profile) else _name(model)
        counts[key] = counts.get(key, 0) + 1
        yield key if isinstance(model, str) or counts[key] == 1 else f"{key} ({counts[key]})"


def _instruments(instruments: Any, size: Size) -> tuple[list[Instrument], set[str]]:
    """The instruments, and the names of those that are kinds at a size and not as they were given."""
    if instruments is None or isinstance(instruments, str):
        instruments = list(ALL) if instruments is None else kinds_named(instruments)
    items = list(instruments) if isinstance(instruments, (list, tuple)) else [instruments]
    kinds = [item for item in items if isinstance(item, type) and issubclass(item, Instrument)]
    distinct = distinct_instruments("survey", [item.sized(size) if item in kinds else item for item in items])
    return distinct, {kind.__name__.lower() for kind in kinds}


def for_few(instrument: Any, n: int) -> Instrument:
    """Smaller clouds where ``n`` samples do not fill several of the size: one cloud has no interval.

    Clouds of fewer than ``LEAST_CLOUD`` samples say too little, so then it stays one cloud.
    """
    samples = n // getattr(instrument, "clouds", 1)
    smaller = samples < n and LEAST_CLOUD <= samples < getattr(instrument, "samples", 0)
    return dataclasses.replace(instrument, samples=samples) if smaller else instrument


def _groups(join: Mapping[str, str], keys: Sequence[str]) -> dict[str, str]:
    """By key, the name of the group of seeds that it belongs to."""
    groups: dict[str, str] = {}
    for name, pattern in join.items():
        members = [key for key in keys if fnmatchcase(key, pattern)]
        if len(members) < 2:
            raise ValueError(
                f"survey: join must match two models or more, got {', '.join(members) or 'none'} for {name}={pattern}."
            )
        for key in members:
            if key in groups:
                raise ValueError(f"survey: join must name a model once, got {key} in {groups[key]} and {name}.")
            groups[key] = name
    return groups


def _grouped(profiles: Sequence[tuple[str, Sequence[Profile]]], groups: Mapping[str, str]) -> list[Profile]:
    """The profiles of all models, each followed by its references, with those of a group joined where its first was.

    Networks that cannot be joined stay apart, with a warning: what was measured still becomes a page.
    """
    bands: dict[str, list[Profile]] = {}
    for name in dict.fromkeys(groups.values()):
        # A model that was given twice is one network.
        members = [profile for key, (profile, *_) in dict(profiles).items() if groups.get(key) == name]
        try:
            bands[name] = [joined(members, name)]
        except ValueError as error:
            warnings.warn(f"{name} is not joined: {error}", stacklevel=3)
    results: list[Profile] = []
    for key, (profile, *references) in profiles:
        name = groups.get(key, "")
        results += [*bands.get(name, [profile]), *references]
        if name in bands:
            bands[name] = []
    return results


def profile_name(model: str, data: str, instruments: str) -> str:
    """``MODEL-DATA-INSTRUMENT.profile`` with nothing in it that a file's name cannot have."""
    words = (re.sub(r"[^\w.+]+", "-", word).strip("-.") or "unnamed" for word in (model, data, instruments))
    return "-".join(word[:80] for word in words) + SUFFIX


def _name(model: nn.Module) -> str:
    return getattr(getattr(model, "lisse", None), "name", "") or type(model).__name__


def _with(profile: Profile, **provenance: Any) -> Profile:
    return dataclasses.replace(profile, provenance={**profile.provenance, **provenance})


def _duration(seconds: float) -> str:
    if seconds < 10:
        return "a few seconds"
    if seconds < 90:
        return f"about {round(seconds / 10) * 10} seconds"
    return f"about {round(seconds / 60)} minutes" if seconds < 5400 else f"about {seconds / 3600:.1f} hours"
