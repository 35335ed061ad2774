"""sweep(): every unit of a plan handed to an executor, and what came of each."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from pathlib import Path
from typing import Any, TypeVar

from lisse.maths.given import check_least
from lisse.profile_file import writing
from lisse.profile_file.replacement import remove_left
from lisse.progress import Bar, Event, Listener
from lisse.sweeping.plan import SweepPlan, plan_of
from lisse.sweeping.pool import Workers, fitting_workers
from lisse.sweeping.table import SweepTable
from lisse.sweeping.unit import Unit, UnitOutcome, finished

Task = TypeVar("Task")

#: Seconds until a unit at which another process is is asked for again.
PATIENCE = 0.5


def sweep(
    plan: SweepPlan | Mapping[str, Any] | str | Path,
    *,
    out: str | Path = "sweep",
    executor: Executor | str | None = None,
    workers: int | None = None,
    gpus: float = 0.0,
    retries: int = 2,
    progress: Listener | bool | None = None,
) -> SweepTable:
    """Measure every unit of a plan, by many processes: profiles in ``out/profiles``, and a table of what came of each.

    ``plan`` is a TOML file, a mapping of the same form, or a :class:`SweepPlan`: models × data × instruments × seeds,
    and trainings, recipes × seeds (``docs/atlas.md``). A unit whose profile is in ``out`` already is not measured
    again, so a call that was stopped goes on, and two at once share the work. A unit that fails is a row with its
    reason; it is tried again by the next call, and forgotten when the plan no longer has it.

    ``executor`` is any :class:`concurrent.futures.Executor` whose workers see ``out``; ``None`` is a process for every
    core that there is memory for (at most ``workers``), ``"ray"`` a Ray cluster (``lisse[ray]``). ``gpus`` is the share
    of a GPU that a unit takes, where the plan says ``device = "cuda"``. A unit whose process is killed is tried
    ``retries`` times more. Numbers do not depend on the executor.
    """
    check_least("sweep", 0, retries=retries)
    check_least("sweep", 1, workers=1 if workers is None else workers)
    if not 0 <= gpus <= 1:
        raise ValueError(f"sweep: gpus must lie in 0..1, got {gpus}. A unit is measured on one.")
    plan = plan_of(plan)
    if gpus and not plan.device.startswith("cuda"):
        raise ValueError(
            f"sweep: gpus must be 0 on device {plan.device!r}, got {gpus}. Write device = 'cuda' in the plan."
        )
    units = plan.units
    folder = Path(out).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    remove_left(folder, below=True)  # of workers that were killed while they wrote
    _forget_failures(folder / "failures", plan)
    bar = Bar(keep=True) if progress is True else None
    tell: Listener = bar or (progress if callable(progress) else lambda event: None)
    running, local = _executor(executor, plan, workers, gpus)
    work = functools.partial(finished, folder=str(folder), home=os.getcwd())
    outcomes: dict[str, UnitOutcome] = {}
    failures = 0
    tell(Event("sweep", 0, len(units), "units"))
    try:
        for unit, outcome in drained(units, work, running, retries=retries):
            outcomes[unit.key] = outcome
            _note_failure(folder / "failures" / f"{unit.key[:16]}.json", unit, outcome, plan.file)
            if outcome.reason:
                tell(Event("sweep", say=f"{unit.label} on {unit.data} failed: {outcome.reason}", level="warning"))
            failures += not outcome.file
            tell(Event("sweep", len(outcomes), len(units), "units", failed=failures))
    except KeyboardInterrupt:
        tell(Event("sweep", say=f"what is finished is kept in {folder}: the same command goes on."))
        if local is not None and hasattr(local, "kill"):
            local.kill()
        raise
    finally:
        if local is not None:
            local.shutdown(cancel_futures=True)
        if bar is not None:
            bar.close()
    return SweepTable(folder, tuple((unit, outcomes[unit.key]) for unit in units))


def drained(
    tasks: Sequence[Task], work: Callable[[Task], UnitOutcome], executor: Executor, *, retries: int = 2
) -> Iterator[tuple[Task, UnitOutcome]]:
    """What came of every task, as it comes. No more are under way than the executor's ``window``.

    A task whose process died (``BrokenExecutor``) is tried again, ``retries`` times; one at which another process is
    is asked for again when there is nothing else to do.
    """
    waiting = deque(tasks)
    elsewhere: deque[tuple[float, Task]] = deque()  # when to ask again
    running: dict[Future[UnitOutcome], Task] = {}
    deaths: Counter[int] = Counter()
    window = getattr(executor, "window", None) or 2 * (getattr(executor, "_max_workers", None) or 32)
    while waiting or running or elsewhere:
        while waiting and len(running) < window:
            task = waiting.popleft()
            running[executor.submit(work, task)] = task
        if not running:
            time.sleep(max(0.0, elsewhere[0][0] - time.monotonic()))
        for future in wait(running, PATIENCE if elsewhere else None, FIRST_COMPLETED).done if running else ():
            task = running.pop(future)
            outcome = _outcome(future)
            if outcome.status == "busy":
                elsewhere.append((time.monotonic() + PATIENCE, task))
                continue
            if outcome.status == "killed":
                deaths[id(task)] += 1
                if deaths[id(task)] <= retries:
                    waiting.append(task)
                    continue
                outcome = UnitOutcome("killed", f"its process died {deaths[id(task)]} times ({outcome.reason})")
            yield task, outcome
        while elsewhere and elsewhere[0][0] <= time.monotonic():
            waiting.append(elsewhere.popleft()[1])


def _forget_failures(folder: Path, plan: SweepPlan) -> None:
    """Those of units that this plan no longer has: a slip that was corrected is no network that failed."""
    keys = {unit.key[:16] for unit in plan.units}
    for path in folder.glob("*.json"):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # what is no note of ours is left alone
            if path.stem not in keys and json.loads(path.read_bytes()).get("plan") == plan.file:
                path.unlink(missing_ok=True)


def _note_failure(path: Path, unit: Unit, outcome: UnitOutcome, plan: str) -> None:
    """A file for each failure, for the atlas; none for what has its profile now."""
    if outcome.file:
        path.unlink(missing_ok=True)
        return
    document = {"name": unit.label, "unit": dataclasses.asdict(unit), "reason": outcome.reason, "plan": plan}
    with writing(path) as file:
        file.write(json.dumps(document).encode("utf-8", "backslashreplace"))


def _outcome(future: Future[UnitOutcome]) -> UnitOutcome:
    try:
        return future.result()
    except BrokenExecutor as error:
        return UnitOutcome("killed", " ".join(str(error).split())[:200])
    except Exception as error:  # what cannot be brought to the worker, or back
        return UnitOutcome("failed", f"{type(error).__name__}: {' '.join(str(error).split())}"[:600])


def _executor(
    executor: Executor | str | None, plan: SweepPlan, workers: int | None, gpus: float
) -> tuple[Executor, Executor | None]:
    """The executor, and once more where it was made here and is to be shut down."""
    if isinstance(executor, Executor):
        return executor, None
    if executor == "ray":
        from lisse.sweeping.cluster import RayExecutor

        share = gpus or float(plan.device.startswith("cuda"))  # Ray hides the GPUs that a task did not ask for
        cluster = RayExecutor(cpus=plan.threads, gpus=share, workers=workers)
        return cluster, cluster
    if executor is not None:
        raise ValueError(f"sweep: executor must be an Executor, 'ray' or None, got {executor!r}.")
    count, devices = fitting_workers(memory=plan.memory, threads=plan.threads, device=plan.device, gpus=gpus)
    pool = Workers(min(count if workers is None else workers, max(1, len(plan.units))), devices=devices)
    return pool, pool
