"""What recording every layer costs beside the plain forward, in memory: at most 1.15× (ResNet18), 1.2× (ResNet-56).

The plain forward runs the same batches without gradients and keeps nothing. Recording finds the layers (two small
forwards), copies every layer's activations and checks each number for NaN. Its floor is to write those bytes once.
"""

from __future__ import annotations

import sys
import time

import torch
from timing import arguments, clock, publish, race, table

import lisse
from lisse.networks import zoo

LIMITS = {"resnet18": 1.15, "resnet56": 1.2}


def bandwidth(device: str) -> float:
    """Bytes per second of a plain copy into memory touched before (from a GPU: page-locked), best of ten."""
    source = torch.rand(2**24, device=device)
    target = torch.empty(2**24, pin_memory=source.is_cuda)
    after = torch.cuda.synchronize if source.is_cuda else None
    (timing,) = race({"copy": lambda: target.copy_(source)}, rounds=10, after=after)
    return 2**26 / timing.best


def main() -> int:
    parser = arguments(__doc__, rounds=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = options.device
    after = torch.cuda.synchronize if device.startswith("cuda") else None
    images = torch.rand(options.samples, 3, 32, 32, generator=torch.Generator().manual_seed(0)).to(device)
    speed = bandwidth(device)
    body, over = [], []
    for name, limit in LIMITS.items():
        model = zoo.build(name).eval().to(device)

        def plain(model=model):
            with torch.no_grad():
                return torch.cat([model(part) for part in images.split(100)])

        def recorded(model=model):
            recording = lisse.record(model, images, memory="8GiB")
            return recording["output"], recording

        expected = plain().cpu()
        started = time.perf_counter()
        kept, recording = recorded()
        first = time.perf_counter() - started
        assert torch.equal(kept, expected), "the two do not compute the same"
        size = sum(tap.numel * 4 for tap in recording.taps) * options.samples
        del kept, recording
        timings = race(
            {"plain forward": plain, f"record, {len(lisse.taps.find(model, images))} layers": recorded},
            rounds=options.rounds,
            after=after,
        )
        ratio = timings[1].best / timings[0].best
        body.append(f"## {name}, {options.samples} images, batch 100, {options.threads} threads, {device}\n")
        body.append(table(timings))
        floor = 1 + size / speed / timings[0].best
        body.append(
            f"\nThe first recording of this network in the process, into memory never touched before: {clock(first)}, "
            f"a ratio of {first / timings[0].best:.3f}; later ones use that memory again."
        )
        body.append(
            f"\nKept: {size / 2**20:.0f} MiB. Floor: writing them once at the measured {speed / 2**30:.1f} GiB/s takes "
            f"{clock(size / speed)}, a ratio of {floor:.3f}." + (f" Limit: {limit}.\n" if device == "cpu" else "\n")
        )
        if ratio > limit and device == "cpu":
            over.append(f"{name}: {ratio:.3f} > {limit}")
    publish("record" if device == "cpu" else "record-gpu", "Recording", "\n".join(body), write=options.write)
    sys.stderr.writelines(f"over the limit: {line}\n" for line in over)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
