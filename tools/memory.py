"""How far resident memory rises while each instrument measures, against what it was given and what it announces.

    python tools/memory.py [--write FILE]

Every line is a process of its own: the instrument once on a few samples, then the peak is set back (Linux), then the
measurement. Allowed are a tenth more than the budget, what ``Instrument.bytes`` announces, and one batch: the batch's
activations at every layer, as a forward and its graph hold them.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

import lisse
from lisse.data import Dataset
from lisse.instruments import ALL, Extremes
from lisse.run import Instrument, Run

MIB = 2**20
#: Instrument, its options, model, shape of a sample, samples, budget in MiB.
CASES: list[tuple[str, dict[str, Any], str, tuple[int, ...], int, int]] = [
    ("Topology", {"samples": 500, "clouds": 1, "dims": [0, 1]}, "fc4?in_channels=1&size=32", (1, 32, 32), 500, 100),
    ("Topology", {"samples": 3000, "clouds": 1, "dims": [0]}, "fc4?in_channels=1&size=32", (1, 32, 32), 3000, 100),
    ("Topology", {"samples": 1000, "clouds": 1, "dims": [0, 1]}, "fc4?in_channels=1&size=32", (1, 32, 32), 1000, 100),
    ("Sensitivity", {"samples": 200, "clouds": 2, "margins": 50}, "resnet20", (3, 32, 32), 400, 50),
    ("Stability", {"samples": 200}, "resnet20", (3, 32, 32), 200, 50),
    ("Isometry", {"samples": 200, "clouds": 1}, "resnet20", (3, 32, 32), 200, 50),
    ("Isometry", {"samples": 1000, "clouds": 1, "points": 0}, "fc4?in_channels=1&size=32", (1, 32, 32), 1000, 50),
    ("Lipschitz", {"points": 8}, "resnet20", (3, 32, 32), 40, 50),
    (
        "Robustness",
        {
            "corruptions": ["gaussian_noise", "motion_blur"],
            "severities": [3],
            "attacks": ["pgd"],
            "samples": 100,
            "distances": 32,
            "clean": 100,
        },
        "resnet20",
        (3, 32, 32),
        100,
        50,
    ),
    ("Extremes", {"samples": 32}, "vit_small?size=64&depth=4", (3, 64, 64), 32, 50),
    ("Propagation", {"samples": 32}, "vit_small?size=64&depth=4", (3, 64, 64), 32, 50),
    ("Propagation", {"samples": 32}, "mae_small", (3, 32, 32), 32, 50),
    ("Contraction", {"samples": 8, "points": 2}, "vit_small?size=64&depth=4", (3, 64, 64), 8, 50),
]


def status(key: str) -> int:
    """A size of this process, in bytes, as Linux knows it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) * 1024


def measured(case: int) -> dict[str, float]:
    """What one case was given, announced, and took."""
    name, options, spec, shape, samples, budget = CASES[case]
    kinds: tuple[type[Instrument], ...] = (*ALL, Extremes)
    (kind,) = [kind for kind in kinds if kind.__name__ == name]
    arguments: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in options.items()}
    instrument: Any = kind(**arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    generator = torch.Generator().manual_seed(0)
    data = Dataset("noise", torch.rand(samples, *shape, generator=generator), torch.arange(samples) % 10)
    model = lisse.load_model(f"zoo:{spec}")
    smaller = {"samples": 16, "points": 2, "distances": 4, "clean": 16}
    least = kind(**{**arguments, **{key: v for key, v in smaller.items() if key in kind.__dataclass_fields__}})
    lisse.measure(model, data.take(min(32, samples)), least, batch=8)
    run = Run(model, data, batch=32, memory=budget * MIB)
    announced, batch = instrument.bytes(run), min(32, samples) * sum(4 * 3 * tap.numel for tap in run.taps)
    run.close()
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    lisse.measure(model, data, instrument, memory=budget * MIB, batch=32)
    return {
        "budget": budget,
        "announced": announced / MIB,
        "batch": batch / MIB,
        "rise": (status("VmHWM") - before) / MIB,
    }


def main() -> int:
    """The table; exit code 1 where an instrument took more than is allowed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--case", type=int)
    options = parser.parse_args()
    if options.case is not None:
        print(json.dumps(measured(options.case)))
        return 0
    lines = [
        f"{platform.machine()}, Python {platform.python_version()}, PyTorch {torch.__version__}, one thread; MiB.",
        "",
        "| instrument | network | budget | announced | a batch | allowed | rise |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    beyond = 0
    for case, (name, arguments, spec, *_) in enumerate(CASES):
        command = [sys.executable, __file__, "--case", str(case)]
        numbers = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        allowed = 1.1 * (numbers["budget"] + numbers["announced"] + numbers["batch"])
        beyond += numbers["rise"] > allowed
        words = ", ".join(f"{key}={value}".replace("'", "") for key, value in arguments.items())
        cells = [numbers["budget"], numbers["announced"], numbers["batch"], allowed, numbers["rise"]]
        lines.append(f"| {name}({words}) | {spec.partition('?')[0]} | " + " | ".join(f"{v:,.0f}" for v in cells) + " |")
        print(lines[-1], flush=True)
    if options.write:
        options.write.write_text("\n".join(lines) + "\n")
    return int(beyond > 0)


if __name__ == "__main__":
    sys.exit(main())
