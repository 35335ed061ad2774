"""A sweep of small networks that share a GPU, killed once and finished, against the same sweep by one process.

    python benchmarks/sweep_gpu.py --write            # plans/gpu.toml; --device cpu tries the script itself

Four processes take a quarter of the GPU each (`--gpus 0.25`). The driver is killed (SIGKILL) when the first profiles
are there; the same command then measures the others. A second folder is filled by one process. Both are read unit by
unit, number by number.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from timing import arguments, clock, publish

from lisse.profile import Profile
from lisse.sweeping.verification import CLOSE, all_numbers, relative_gap

PLAN = Path(__file__).resolve().parent / "plans" / "gpu.toml"


def command(plan: Path, out: Path, processes: int, share: float) -> list[str]:
    words = [sys.executable, "-m", "lisse", "sweep", str(plan), "--out", str(out), "--json"]
    return [*words, "--workers", str(processes), *(["--gpus", str(share)] if share else [])]


def profiles(out: Path) -> dict[str, Path]:
    return {path.name: path for path in (out / "profiles").glob("*.profile")}


def killed(words: list[str], out: Path, least: int) -> float:
    """Start a sweep, kill its driver when ``least`` profiles are there; seconds until its workers had ended."""
    driver = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while len(profiles(out)) < least:
        if driver.poll() is not None:
            raise RuntimeError(f"the sweep ended by itself: {driver.stderr.read()[-2000:] if driver.stderr else ''}")
        time.sleep(0.02)
    workers = psutil.Process(driver.pid).children(recursive=True)
    driver.kill()
    begun = time.perf_counter()
    driver.wait()
    _, alive = psutil.wait_procs(workers, timeout=60)
    if alive:
        raise RuntimeError(f"{len(alive)} processes outlived their driver.")
    return time.perf_counter() - begun


def finished(words: list[str]) -> tuple[float, list[dict[str, Any]]]:
    """Run a sweep to its end: seconds, and its table."""
    begun = time.perf_counter()
    run = subprocess.run(words, capture_output=True, text=True)
    records = [json.loads(line) for line in run.stdout.splitlines()]
    if run.returncode or any(record["file"] is None for record in records):
        raise RuntimeError(run.stderr[-2000:])
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
    options = parser.parse_args()
    share = 1 / options.processes if options.device.startswith("cuda") else 0.0
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder, "plan.toml")
        plan.write_text(PLAN.read_text("utf-8").replace('device = "cuda"', f'device = "{options.device}"'), "utf-8")
        many, single = Path(folder, "many"), Path(folder, "single")
        words = command(plan, many, options.processes, share)
        end = killed(words, many, options.processes)
        kept = {name: path.stat().st_mtime_ns for name, path in profiles(many).items()}
        rest, records = finished(words)
        if any(path.stat().st_mtime_ns != kept.get(name, path.stat().st_mtime_ns)
               for name, path in profiles(many).items()):  # fmt: skip
            raise RuntimeError("a profile that was there was measured again.")
        whole, others = finished(command(plan, single, 1, min(share, 1.0)))
        count, apart, largest = compared(many, single)
    new = [record["seconds"] for record in records if record["status"] == "done"]
    alone = [record["seconds"] for record in others]
    body = (
        f"{len(records)} networks of `plans/gpu.toml` on {options.device}, {options.processes} processes.\n\n"
        f"- The driver was killed by SIGKILL at {len(kept)} profiles, and its processes had ended {clock(end)} later. "
        f"The same command found {sum(record['status'] == 'whole' for record in records)} and measured {len(new)} "
        f"in {clock(rest)}, start included.\n"
        f"- One process measured all {len(others)} in {clock(whole)}, start included.\n"
        f"- A unit took {clock(statistics.median(alone))} by one process and {clock(statistics.median(new))} by one of "
        f"{options.processes} (medians; the first of a process starts the device).\n"
        f"- Numbers of both folders: {count:,}, of which {apart:,} are not the same bit for bit; the largest relative "
        f"gap is {largest:.1e} (`lisse verify` takes {CLOSE:g} for rounding)."
    )
    publish("sweep-gpu", "A sweep on a GPU", body, write=options.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
