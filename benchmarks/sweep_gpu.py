"""A sweep of small networks that share a GPU, killed once and finished, against the same sweep by one process.

    PYTHONPATH=src python3 benchmarks/sweep_gpu.py --write      # about 40 s; --device cpu tries the script itself

Four processes take a quarter of the GPU each (`--gpus 0.25`). The driver is killed (SIGKILL) when the first profiles
are there; the same call then measures the others. One process fills a second folder meanwhile, and both are read
unit by unit, number by number. Needs torch, SciPy, safetensors and lightning-fabric (or pytorch-lightning); without
GUDHI, Topology is left out. What is done is said on standard error with the seconds since the start, and after
``--most`` seconds everything is ended.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from timing import arguments, clock, publish

from lisse.profile import Profile
from lisse.sweeping.verification import CLOSE, all_numbers, relative_gap

PLAN = Path(__file__).resolve().parent / "plans" / "gpu.toml"
#: `lisse sweep --json`, which would also need what draws bars.
DRIVER = """import json, sys, lisse
plan, out, workers, gpus = sys.argv[1:]
for record in lisse.sweep(plan, out=out, workers=int(workers), gpus=float(gpus)).records():
    print(json.dumps(record))
"""
START = time.perf_counter()
_GROUPS: set[int] = set()  # of processes that are ended with this one


def tell(text: str) -> None:
    print(f"{time.perf_counter() - START:6.1f} s  {text}", file=sys.stderr, flush=True)


def started(words: list[str]) -> subprocess.Popen[str]:
    """A sweep in a group of processes of its own, which its workers join."""
    driver = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )  # fmt: skip
    _GROUPS.add(driver.pid)
    return driver


def end_all(code: int | None = None) -> None:
    """End every sweep that is under way; with a ``code`` this process too."""
    for group in _GROUPS:
        if living(group):
            os.killpg(group, signal.SIGKILL)
    if code is not None:
        tell("out of time")
        os._exit(code)


def living(group: int) -> int:
    """How many processes of a group there are; one that ended and was not waited for is none."""
    count = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, members = path.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):  # it ended meanwhile
            continue
        count += int(members) == group and state not in "ZX"
    return count


def command(plan: Path, out: Path, processes: int, share: float) -> list[str]:
    return [sys.executable, "-c", DRIVER, str(plan), str(out), str(processes), str(share)]


def profiles(out: Path) -> dict[str, Path]:
    return {path.name: path for path in (out / "profiles").glob("*.profile")}


def killed(words: list[str], out: Path, least: int) -> float:
    """Start a sweep, kill its driver when ``least`` profiles are there; seconds until its workers had ended."""
    driver = started(words)
    while len(profiles(out)) < least:
        if driver.poll() is not None:
            raise RuntimeError(f"the sweep ended by itself: {driver.communicate()[1][-2000:]}")
        time.sleep(0.02)
    os.kill(driver.pid, signal.SIGKILL)
    begun = time.perf_counter()
    driver.communicate()
    while living(driver.pid):
        if time.perf_counter() - begun > 20:
            raise RuntimeError(f"{living(driver.pid)} processes outlived their driver.")
        time.sleep(0.02)
    return time.perf_counter() - begun


def finished(words: list[str]) -> tuple[float, list[dict[str, Any]]]:
    """Run a sweep to its end: seconds, and its table."""
    begun = time.perf_counter()
    driver = started(words)
    output, errors = driver.communicate()
    records = [json.loads(line) for line in output.splitlines()]
    if driver.returncode or not records or any(record["file"] is None or record["reason"] for record in records):
        raise RuntimeError(f"{[record['reason'] for record in records if record['reason']][:2]} {errors[-2000:]}")
    return time.perf_counter() - begun, records


def compared(a: Path, b: Path) -> tuple[int, int, float]:
    """Numbers of two folders of the same units: how many, how many differ at all, and the largest relative gap."""
    count, apart, largest = 0, 0, 0.0
    for name, path in profiles(a).items():
        ours, theirs = (all_numbers(Profile.load(file)) for file in (path, profiles(b)[name]))
        if ours.keys() != theirs.keys():
            raise RuntimeError(f"{name} holds other numbers: {sorted(ours.keys() ^ theirs.keys())[:3]}")
        gaps = [relative_gap(ours[key], theirs[key]) for key in ours]
        count, apart, largest = count + len(ours), apart + sum(gap > 0 for gap in gaps), max(largest, *gaps)
    return count, apart, largest


def main() -> int:
    parser = arguments(__doc__, rounds=1)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--processes", type=int, default=4, help="that share the device (default %(default)s)")
    parser.add_argument("--most", type=float, default=300.0, help="seconds after which all is ended (%(default)s)")
    options = parser.parse_args()
    threading.Timer(options.most, end_all, [1]).start()
    share = 1 / options.processes if options.device.startswith("cuda") else 0.0
    text = PLAN.read_text("utf-8").replace('device = "cuda"', f'device = "{options.device}"')
    if importlib.util.find_spec("gudhi") is None:
        tell("no GUDHI: without Topology")
        text = text.replace('"topology", ', "")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as side:
        plan = Path(folder, "plan.toml")
        plan.write_text(text, "utf-8")
        many, single = Path(folder, "many"), Path(folder, "single")
        alone = side.submit(finished, command(plan, single, 1, min(share, 1.0)))
        words = command(plan, many, options.processes, share)
        end = killed(words, many, options.processes)
        kept = {name: path.stat().st_mtime_ns for name, path in profiles(many).items()}
        tell(f"killed at {len(kept)} profiles, processes ended {clock(end)} later")
        rest, records = finished(words)
        tell(f"finished: {len(records)} networks")
        if any(path.stat().st_mtime_ns != kept.get(name, path.stat().st_mtime_ns)
               for name, path in profiles(many).items()):  # fmt: skip
            raise RuntimeError("a profile that was there was measured again.")
        whole, others = alone.result()
        tell("one process has finished")
        count, apart, largest = compared(many, single)
    new = [record["seconds"] for record in records if record["status"] == "done"]
    body = (
        f"{len(records)} networks of `plans/gpu.toml` on {options.device}, {options.processes} processes, and one more "
        "beside them that measures all by itself.\n\n"
        f"- The driver was killed by SIGKILL at {len(kept)} profiles, and its processes had ended {clock(end)} later. "
        f"The same call found {sum(record['status'] == 'whole' for record in records)} and measured {len(new)} "
        f"in {clock(rest)}, start included.\n"
        f"- One process measured all {len(others)} in {clock(whole)}, start included.\n"
        f"- A unit took {clock(statistics.median(record['seconds'] for record in others))} by the one process"
        + (f" and {clock(statistics.median(new))} by one of {options.processes}" if new else "")
        + " (medians; the first of a process starts the device).\n"
        f"- Numbers of both folders: {count:,}, of which {apart:,} are not the same bit for bit; the largest relative "
        f"gap is {largest:.1e} (`lisse verify` takes {CLOSE:g} for rounding). Each folder trained its own "
        "networks, and sums on a GPU come in no fixed order."
    )
    publish("sweep-gpu", "A sweep on a GPU", body, write=options.write)
    return 0


if __name__ == "__main__":
    try:
        code = main()
    except BaseException as error:
        tell(f"failed: {error!r}")
        end_all(1)
    sys.stdout.flush()
    os._exit(code)  # without waiting for the timer
