"""What a sweep's driver costs by itself, and what a second worker gains.

Empty units go through the driver to a pool and to Ray (`lisse[ray]`, left out where it is not installed), two workers
each. Then the same small networks are trained on digits and measured by one worker and by two, a thread each, whose
processes have started before; folders are new each time.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import psutil
from timing import arguments, clock, publish, race, table

import lisse
from lisse.sweeping import UnitOutcome
from lisse.sweeping.driver import drained
from lisse.sweeping.pool import Workers


def empty(number: int) -> UnitOutcome:
    return UnitOutcome("done", file=str(number))


def started(executor: Executor) -> float:
    """Seconds until the first answer."""
    begun = time.perf_counter()
    executor.submit(empty, 0).result()
    return time.perf_counter() - begun


def processor_seconds() -> float:
    """Of this process and all that it has started, until now."""
    own = psutil.Process()
    times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    return sum(spent.user + spent.system for spent in times)


def drain(executor: Executor, count: int) -> None:
    answers = sum(outcome.status == "done" for _, outcome in drained(range(count), empty, executor))
    if answers != count:
        raise RuntimeError(f"{answers} of {count} empty units came back.")


def plan(networks: int) -> dict[str, Any]:
    """Networks that differ by their seeds."""
    training = {"models": "zoo:fc2?in_channels=1&size=8&mean=none&width=64", "recipes": {"epochs": 20},
                "seeds": list(range(networks))}  # fmt: skip
    return {"data": "digits", "instruments": ["topology", "stability", "sensitivity"], "trainings": [training]}


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--units", type=int, default=10_000, help="empty units (default %(default)s)")
    parser.add_argument("--networks", type=int, default=24, help="small networks of a sweep (default %(default)s)")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    packages = []
    executors: dict[str, Executor] = {"pool": Workers(2)}
    if importlib.util.find_spec("ray"):
        from lisse.sweeping.cluster import RayExecutor

        executors["Ray"] = RayExecutor(workers=2)
        packages = ["ray"]
    starts = {name: started(executor) for name, executor in executors.items()}
    contenders: dict[str, Callable[[], object]] = {
        name: lambda executor=executor: drain(executor, options.units) for name, executor in executors.items()
    }
    costs = race(contenders, rounds=options.rounds)
    for executor in executors.values():
        executor.shutdown()
    pools = {f"{count} worker{'s' if count > 1 else ''}": Workers(count) for count in (1, 2)}
    with tempfile.TemporaryDirectory() as folder:
        numbers = itertools.count()
        work: dict[str, list[float]] = {name: [] for name in pools}

        def measure(name: str, pool: Executor) -> None:
            before = processor_seconds()
            outcomes = lisse.sweep(plan(options.networks), out=Path(folder, str(next(numbers))), executor=pool)
            if len(outcomes.finished) != options.networks:
                raise RuntimeError(f"{outcomes!r}: {outcomes.failed[0][1].reason}")
            work[name].append(processor_seconds() - before)

        speeds = race(
            {name: functools.partial(measure, name, pool) for name, pool in pools.items()}, rounds=options.rounds
        )
        for pool in pools.values():
            pool.shutdown()
    single, double = (timing.seconds for timing in speeds)
    gains = sorted(a / b for a, b in zip(single, double, strict=True))
    middle = statistics.median(gains)
    lines = [
        f"**The driver alone**: {options.units:,} empty units, two workers, {options.rounds} rounds in turns.",
        "",
        "| | best | median | each, of the median | first answer after |",
        "|---|---|---|---|---|",
    ]
    for timing in costs:
        cells = [timing.best, timing.median, timing.median / options.units, starts[timing.name]]
        lines.append(f"| {timing.name} | {' | '.join(map(clock, cells))} |")
    lines += [
        "",
        f"**A second worker**: {options.networks} small networks (fc2 of 64 units, 20 epochs on digits; Topology, "
        f"Stability and Sensitivity, quick), seeds 0 to {options.networks - 1}, {options.rounds} rounds in turns.",
        "",
        table(speeds),
        "",
        f"Two workers are {middle:.2f} times as fast as one, by rounds {gains[0]:.2f} to {gains[-1]:.2f}.",
        "A network takes "
        + ", ".join(
            f"{clock(min(spent[1:]) / options.networks)} of a processor by {name}" for name, spent in work.items()
        )
        + " (best of the rounds, driver and workers together).",
        "",
        f"Others used the machine too: load {load:.1f} at the start, {os.getloadavg()[0]:.1f} at the end.",
    ]
    publish("sweep", "Sweeps", "\n".join(lines), write=options.write, packages=packages)


if __name__ == "__main__":
    main()
