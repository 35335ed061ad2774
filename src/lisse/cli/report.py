"""``lisse report MODEL… --data SPEC``: every instrument that fits, and one page about it."""

from __future__ import annotations

import dataclasses
import difflib
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from lisse.cli.outcome import Failed, arguments, check_writable

SUFFIX = ".profile"


@click.command()
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.option("--data", metavar="SPEC", help="Data set; `lisse data` lists them. Not needed for saved profiles.")
@click.option("--out", default="report.html", type=click.Path(dir_okay=False), help="The page.  [default: report.html]")
@click.option("--instruments", metavar="NAME[,…]", help="Only these.  [default: all that fit]")
@click.option("--quick", is_flag=True, help="Small samples, with intervals: under a minute for a small network.")
@click.option("--full", is_flag=True, help="The papers' sizes.")
@click.option("--split", default="test", metavar="NAME", help="Part of the data set.  [default: test]")
@click.option("--limit", type=click.IntRange(min=1), help="Use at most this many samples.")
@click.option("--layers", multiple=True, metavar="GLOB", help="Only these layers; may be repeated.")
@click.option("--seed", type=int, default=0, help="Of everything random.  [default: 0]")
@click.option("--batch", type=click.IntRange(min=1), default=100, help="Samples at a time.  [default: 100]")
@click.option("--memory", default="2GiB", metavar="SIZE", help="Most for activations.  [default: 2GiB]")
@click.option("--device", metavar="NAME", help="Where to compute: cpu, cuda, cuda:1, mps.")
@click.option("--readout", type=click.Choice(["cls", "mean", "tokens"]), help="What a sample of text is.")
@click.option(
    "--start/--no-start", default=None, help="Also measure networks of the zoo with random weights.  [default: yes]"
)
@click.option("--start-seeds", type=click.IntRange(min=1), help="How many such networks.  [default: 1, 2 or 3 by size]")
@click.option(
    "--join", multiple=True, metavar="NAME=GLOB", help="MODELs that match are seeds of one training: one band."
)
@click.option("--profiles", "folder", type=click.Path(file_okay=False), help="Also save the profiles in this folder.")
@click.option("--title", help="Of the page.  [default: the models' names]")
@click.option("--cache", type=click.Path(file_okay=False), help="Folder of finished work, to go on from.")
@click.option("--no-cache", is_flag=True, help="Keep no finished work.")
@click.pass_context
def command(
    ctx: click.Context, models: tuple[str, ...], out: str, title: str | None, folder: str | None, **values: Any
) -> None:
    """Measure MODELs on data by every instrument that fits, and write one page that compares them.

    MODEL is zoo:NAME, hf:NAME, timm:NAME, torchvision:NAME, package.module:factory, a .safetensors checkpoint, or a
    saved .profile. Ctrl-C keeps what is finished, and the same command goes on from there.
    """
    import lisse

    if values["quick"] and values["full"]:
        raise click.UsageError("--quick and --full exclude each other", ctx)
    if values["cache"] and values["no_cache"]:
        raise click.UsageError("--cache and --no-cache exclude each other", ctx)
    check_writable(Path(out), "page")
    profiles = measured(ctx, models, folder, values)
    if not any(profile.rows for profile in profiles):
        reasons = dict.fromkeys(note for profile in profiles for note in profile.notes)
        raise Failed("nothing was measured: " + (" ".join(reasons) or "the profiles have no rows."))
    replaced = " (in place of the one before)" if Path(out).exists() else ""
    with arguments(ctx, "profiles"):
        saved = lisse.report(profiles, out, title=title)
    print_verdict(profiles)
    print(f"Saved {saved}{replaced}, {saved.stat().st_size / 1e6:.1f} MB. Open it in a browser.", file=sys.stderr)


def print_verdict(profiles: Sequence[Any]) -> None:
    """The sentences of the page's first screen, on standard output."""
    from lisse.cli.table import printable
    from lisse.reporting.page.entries import entries_of
    from lisse.reporting.page.verdict import verdict

    for sentence in verdict(entries_of(profiles)):
        if sentence.topic != "comparison":
            print(printable(("" if sentence.topic == "overall" else "- ") + sentence.text))
    sys.stdout.flush()


def measured(ctx: click.Context, models: Sequence[str], folder: str | None, values: dict[str, Any]) -> list[Any]:
    """A profile for every MODEL, in order, each followed by those of the same architecture with random weights."""
    from lisse.cli.figure import load
    from lisse.cli.join import groups, together
    from lisse.progress import Bar

    names = groups(ctx, values["join"], models)
    given = [(spec, load(spec) if spec.endswith(SUFFIX) else None) for spec in models]
    if all(profile is not None for _, profile in given):
        return together([(spec, [profile]) for spec, profile in given], names)
    if values["data"] is None:
        raise click.UsageError("--data is needed to measure a model; `lisse data` lists what there is", ctx)
    kinds = _kinds(ctx, values["instruments"])
    with Bar(memory=True, keep=False) as bar:
        work = _Work(ctx, kinds, values, bar)
        # Everything that can be wrong with what was typed is said before the first minute of work.
        for spec, profile in given:
            if profile is None:
                work.add(spec)
        work.announce()
        found: list[tuple[str, list[Any]]] = []
        try:
            for spec, profile in given:
                found.append((spec, [profile] if profile is not None else work.measure(spec, folder)))
        except KeyboardInterrupt:
            if work.cache is not None:
                bar.close()
                print(
                    f"lisse: what is finished is kept in {work.cache.folder}: the same command goes on.",
                    file=sys.stderr,
                )
            raise
    return together(found, names)


@dataclasses.dataclass
class _Job:
    """A model to measure, its data, and the networks with random weights beside it."""

    spec: str
    model: Any
    data: Any
    instruments: list[Any]
    fits: list[Any]
    starts: int
    seconds: float
    untrained: bool


class _Work:
    """All models of one report: loaded and tried out first, then measured one after the other."""

    def __init__(self, ctx: click.Context, kinds: Sequence[type], values: dict[str, Any], bar: Any) -> None:
        from lisse.cli.sizes import Size, instruments
        from lisse.run.cache import Cache, default_cache

        self.ctx, self.values, self.bar = ctx, values, bar
        self.size: Size = "quick" if values["quick"] else "full" if values["full"] else "usual"
        self.instruments = instruments(kinds, self.size)
        self.cache = None if values["no_cache"] else Cache(values["cache"] or default_cache())
        self.jobs: dict[str, _Job] = {}
        self.done = 0

    def add(self, spec: str) -> None:
        """Load a model, try it on three samples, and see what fits and what it will take."""
        import lisse
        from lisse.cli.baselines import CALIBRATION
        from lisse.cli.cost import estimate, seconds_per_sample
        from lisse.cli.sizes import AT_START, SCORED, START_SEEDS, for_few
        from lisse.models import tokenizer_for
        from lisse.run import Run

        if spec in self.jobs:
            return
        values = self.values
        with arguments(self.ctx):
            model = lisse.load_model(spec, device=values["device"] or "cpu")
            chosen = {key: values[key] for key in ("split", "limit", "seed")}
            data = lisse.load_data(values["data"], **chosen, tokenizer=tokenizer_for(model))
        try:
            with arguments(self.ctx, "layers", "memory", "batch", "seed", "readout"):
                run = Run(
                    model,
                    data,
                    layers=list(values["layers"]) or None,
                    seed=values["seed"],
                    batch=values["batch"],
                    memory=values["memory"],
                    readout=values["readout"],
                )
        except click.UsageError:
            raise
        except Exception as error:
            raise Failed(f"{spec} does not run on {data.name}: {error}") from error
        try:
            per_sample = seconds_per_sample(run.model, data, run.batch, run.device)
        except Exception:  # it ran on three samples; what goes wrong with more is shown when it is measured
            per_sample = 0.01
        chosen_for = self.instruments if self.size == "full" else for_few(self.instruments, len(data))
        fits = [each for each in chosen_for if each.fits(run) is None]
        costs = {each.name: estimate(each, per_sample, len(run.taps), len(data)) for each in fits}
        untrained = spec.startswith("zoo:") and "weights=" not in spec
        # Beside random weights other random weights say little, unless somebody asks for them.
        asked = values["start"] or (values["start"] is None and (values["start_seeds"] or not untrained))
        wanted = asked and str(getattr(model.lisse, "architecture", "")).startswith("zoo:")
        starts = (values["start_seeds"] or START_SEEDS[self.size]) if wanted else 0
        again = sum(cost for name, cost in costs.items() if name in AT_START)
        again += CALIBRATION * per_sample
        seconds = sum(costs.values()) + min(SCORED[self.size] or len(data), len(data)) * per_sample + starts * again
        self.jobs[spec] = _Job(spec, model, data, chosen_for, fits, starts, seconds, untrained)

    def announce(self) -> None:
        """What will be measured, and what it will take."""
        from lisse.cli.cost import told

        fitting = {each.name for job in self.jobs.values() for each in job.fits}
        names = ", ".join(each.name for each in self.instruments if each.name in fitting)
        networks = sum(1 + job.starts for job in self.jobs.values())
        start = f", {networks - len(self.jobs)} of them with random weights" if networks > len(self.jobs) else ""
        seconds = told(sum(job.seconds for job in self.jobs.values()))
        count = "1 network" if networks == 1 else f"{networks} networks"
        self._say(
            f"{count}{start}; {names or 'no instrument fits'}. This takes {seconds}, less where work is found done."
        )

    def measure(self, spec: str, folder: str | None) -> list[Any]:
        """The profile of a model, and those of its architecture with random weights."""
        from lisse.cli.baselines import at_start, calibrated, score, with_film, with_left_out
        from lisse.cli.sizes import AT_START, SCORED

        job, values = self.jobs[spec], self.values
        name = names_of(list(self.jobs.values()))[spec]
        own = self._profile(job, job.model, job.instruments, name)
        own = with_left_out(own, self.size)
        if job.untrained:
            own = dataclasses.replace(own, provenance={**own.provenance, "weights": "random"})
        device = next((weight.device for weight in job.model.parameters()), None)
        own = self._told(own, "score", lambda: score(job.model, job.data, SCORED[self.size], values["batch"], device))
        own = with_film(own, job.model, job.data, values["seed"])
        found = [self._kept(own, folder)]
        for seed in range(job.starts):
            instruments = [each for each in job.fits if each.name in AT_START]
            if not instruments:
                break
            model = at_start(spec, seed, values["device"] or "cpu")
            if model is None:
                break
            model = calibrated(model, job.data, values["batch"], device)
            made = self._profile(job, model, instruments, f"{name} with random weights")
            fingerprint = own.provenance.get("model", {}).get("fingerprint")
            reference = {"kind": "initialisation", "model": fingerprint, "seed": 1000 + seed}
            made = dataclasses.replace(made, provenance={**made.provenance, "reference": reference})
            found.append(self._kept(made, folder))
        return found

    def _profile(self, job: _Job, model: Any, instruments: Sequence[Any], name: str) -> Any:
        import lisse
        from lisse.profile import Part, Profile, options_of

        values, begun = self.values, time.perf_counter()
        try:
            made = lisse.measure(
                model,
                job.data,
                instruments,
                layers=list(values["layers"]) or None,
                seed=values["seed"],
                batch=values["batch"],
                memory=values["memory"],
                readout=values["readout"],
                cache=False if self.cache is None else self.cache.folder,
                progress=self._listener(name),
                name=name,
                on_error="note",
            )
        except Exception as error:  # the whole model, not one instrument: the page still comes and says so
            self._say(f"{name} failed: {error}", level="warning")
            note = f"Failed: {type(error).__name__}: {error}"
            parts = tuple(Part(each.name, notes=(note,), options=options_of(each)) for each in instruments)
            made = Profile(parts, {"model": {"name": name, "spec": job.spec}, "data": {"name": job.data.name},
                                   "seconds": round(time.perf_counter() - begun, 3)})  # fmt: skip
        self.done += 1
        return made

    def _told(self, profile: Any, key: str, make: Any) -> Any:
        """A profile that also says where the model stands, where that can be found out."""
        try:
            value = make()
        except Exception as error:
            self._say(f"accuracy was not counted: {error}", level="warning")
            value = None
        return profile if value is None else dataclasses.replace(profile, provenance={**profile.provenance, key: value})

    def _kept(self, profile: Any, folder: str | None) -> Any:
        from lisse.cli.measure import file_name

        try:
            if self.cache is not None and profile.rows:
                self.cache.keep_profile(profile)
        except OSError as error:
            self._say(f"the profile is not kept in {self.cache and self.cache.folder} ({error})", level="warning")
        if folder is not None:
            seed = profile.provenance.get("reference", {}).get("seed", "")
            data = profile.provenance["data"]["name"]
            profile.save(Path(folder) / file_name(profile.name, data, f"report{seed}"))
        return profile

    def _listener(self, name: str) -> Any:
        from lisse.progress import Event

        total = sum(1 + job.starts for job in self.jobs.values())
        self.bar(Event("report", self.done, total, "networks"))

        def listen(event: Event) -> None:
            self.bar(dataclasses.replace(event, task=f"{name}: {event.task}"))

        return listen

    def _say(self, text: str, *, level: Any = "info") -> None:
        from lisse.progress import Event

        self.bar(Event("report", say=text, level=level))


def names_of(jobs: Sequence[_Job]) -> dict[str, str]:
    """By spec, what a model is called; where two have one name, with the words in which their specs differ."""
    plain = {
        job.spec: getattr(getattr(job.model, "lisse", None), "name", "") or type(job.model).__name__ for job in jobs
    }
    found = {}
    for spec, name in plain.items():
        same = [other for other, its in plain.items() if its == name]
        common = set.intersection(*(set(re.split(r"[/?&]", other)) for other in same))
        own = [word for word in re.split(r"[/?&]", spec) if word and word not in common]
        found[spec] = f"{name} ({', '.join(own)})" if len(same) > 1 and own else name
    return found


def _kinds(ctx: click.Context, names: str | None) -> list[type]:
    from lisse.cli.measure import known

    there = known()
    if names is None:
        return list(there.values())
    wanted = list(dict.fromkeys(name.strip().lower() for name in names.split(",") if name.strip()))
    for name in wanted:
        if name not in there:
            near = difflib.get_close_matches(name, there, n=3, cutoff=0.4) or list(there)
            raise click.UsageError(f"no instrument {name!r}. The nearest: {', '.join(near)}", ctx)
    if not wanted:
        raise click.UsageError(f"--instruments takes names, commas between them, got {names!r}", ctx)
    return [there[name] for name in wanted]
