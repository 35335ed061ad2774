"""What `lisse drift` costs over the bare forwards of its two networks, and over all the forwards it must make.

    python benchmarks/drift.py --device cuda --model llama --cap 60 --write    # H200: 1.1 billion parameters, bfloat16
    python benchmarks/drift.py --write                                         # ResNet-20, on the CPU

B is A with the matrices of one block rounded to 4 bits, so that every step of a comparison is taken. The layer pass is
what gives `drift`, `injected` and `inherited`: A, B, and B whose layers get what they get in A; its noise apart.
The whole is `lisse.drift` with defaults, without clouds and with them. Forwards are counted by a hook, in each
precision (noise runs a copy in a finer one), and their floor is the time that as many samples take bare, in batches of
the same size. Each work is done once untimed, then timed in turns with the bare forwards; the best of as many rounds as
its `--cap` seconds allow is printed at once. On a CPU seconds are those of the processor. `--waits` prints where the
host waits for a GPU instead, `--profile` where its time goes.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import copy
import cProfile
import functools
import io
import os
import pstats
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from large_models import _Late, at_most, clock, llama
from timing import publish
from torch import Tensor, nn

import lisse
from lisse.data import Dataset
from lisse.instruments.drift import Drift
from lisse.instruments.drift.passes import layer_differences
from lisse.run import Run, RunPair

Network = tuple[nn.Module, Dataset, str, str]


def resnet(device: torch.device, samples: int) -> Network:
    """The ResNet-20 that others have trained, on pictures of CIFAR-10; without ``LISSE_DATA``, random ones."""
    weights = Path(os.environ.get("LISSE_DATA", "")) / "checkpoints" / "resnet20-12fca82f.th"
    spec, kind = (f"zoo:resnet20?weights={weights}", "trained") if weights.exists() else ("zoo:resnet20", "random")
    images = torch.rand(samples, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    data = lisse.load_data("cifar10", limit=samples) if kind == "trained" else Dataset("noise", images)
    title = f"ResNet-20, {kind}, {samples} images, float32"
    return lisse.load_model(spec, device=str(device)).eval(), data, title, "network.layer2.1"


def small(device: torch.device, samples: int) -> Network:
    """A Llama of four small blocks, to try this script with."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=100, attn_implementation="sdpa",
    )  # fmt: skip
    ids = torch.randint(0, 100, (samples, 32), generator=torch.Generator().manual_seed(0))
    data = Dataset("random tokens", {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    title = f"Llama-shaped, four blocks of 64, {samples} × 32 tokens, bfloat16"
    return LlamaForCausalLM(config).to(device, torch.bfloat16).eval(), data, title, "model.layers.2"


def large(device: torch.device, samples: int) -> Network:
    return (*llama(device, False, samples), "model.layers.11")


MODELS: dict[str, Callable[[torch.device, int], Network]] = {"resnet20": resnet, "llama": large, "small": small}


@torch.no_grad()
def rounded(model: nn.Module, block: str) -> nn.Module:
    """A copy with the matrices of a block in 4 bits, a scale for each row."""
    model = copy.deepcopy(model)
    for weight in model.get_submodule(block).parameters():
        if weight.ndim > 1:
            rows = weight.flatten(1)
            scale = rows.abs().amax(1, keepdim=True) / 7
            weight.copy_(((rows / scale).round() * scale).reshape(weight.shape))
    return model


def counted(models: tuple[nn.Module, nn.Module], work: Callable[[], object]) -> dict[torch.dtype, int]:
    """How many samples go through the networks and copies of them during ``work``, by precision."""
    counts: collections.Counter[torch.dtype] = collections.Counter()

    def count(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        first = next(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        counts[next(model.parameters()).dtype] += len(first)

    handles = [model.register_forward_pre_hook(count, with_kwargs=True) for model in models]
    try:
        work()
    finally:
        for handle in handles:
            handle.remove()
    return dict(counts)


@torch.inference_mode()
def bare(model: nn.Module, data: Dataset, batch: int, device: torch.device) -> None:
    """The forwards of a network alone."""
    for part in data.batches(batch, device=device):
        model(**part.inputs) if isinstance(part.inputs, dict) else model(part.inputs.to(next(model.parameters()).dtype))


def waits(work: Callable[[], object]) -> str:
    """Where the host waits for the GPU during ``work``: how often, file and line, most first."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            work()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    spots = collections.Counter(
        f"{'/'.join(Path(entry.filename).parts[-3:])}:{entry.lineno}"
        for entry in caught
        if "synchroniz" in str(entry.message)
    )
    return "\n".join(f"{count:6d}  {spot}" for spot, count in spots.most_common(40))


class Floors:
    """Seconds that a sample takes bare, by precision: the best of the passes that were made."""

    def __init__(self, model: nn.Module, data: Dataset, batch: int, device: torch.device) -> None:
        self.model, self.data, self.batch, self.device = model, data, batch, device
        self.own = next(model.parameters()).dtype
        self.seconds: dict[torch.dtype, float] = {}

    def race(self, dtype: torch.dtype, rounds: int = 1) -> None:
        """Make some more passes: all of the data in the model's own precision, a batch of it in another."""
        model = self.model if dtype == self.own else copy.deepcopy(self.model).to(dtype)
        data = self.data if dtype == self.own else self.data.take(min(self.batch, len(self.data)))
        for _ in range(rounds):
            start = clock(self.device)
            bare(model, data, self.batch, self.device)
            seconds = (clock(self.device) - start) / len(data)
            self.seconds[dtype] = min(seconds, self.seconds.get(dtype, seconds))

    def of(self, forwards: dict[torch.dtype, int]) -> float:
        """Seconds of so many samples."""
        for dtype in forwards:
            if dtype not in self.seconds:
                self.race(dtype, 3)
        return sum(count * self.seconds[dtype] for dtype, count in forwards.items())


def timed(work: Callable[[], object], floors: Floors, rounds: int, cap: int) -> tuple[float | None, int]:
    """The best of so many rounds, in turns with bare passes, or of those that ``cap`` seconds allow; and how many."""
    best, count = None, 0
    with contextlib.suppress(_Late), at_most(cap):
        for _ in range(rounds):
            floors.race(floors.own)
            start = clock(floors.device)
            work()
            seconds = clock(floors.device) - start
            best, count = min(seconds, best or seconds), count + 1
    return best, count


def profiled(work: Callable[[], object]) -> str:
    """Where the host's time goes during ``work``, with what is called from there."""
    profiler, text = cProfile.Profile(), io.StringIO()
    profiler.runcall(work)
    pstats.Stats(profiler, stream=text).sort_stats("cumtime").print_stats("lisse", 40)
    return "\n".join(line[:140] for line in text.getvalue().splitlines() if line.strip())


def main() -> None:
    """Time each of the works, and print their table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", choices=MODELS, default="resnet20")
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--memory", default="2GiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cap", type=int, default=120, help="seconds for the untimed and the timed rounds of a work")
    parser.add_argument("--waits", action="store_true", help="print where the host waits for a GPU, and no times")
    parser.add_argument("--profile", action="store_true", help="print where the host's time goes, and no ratios")
    parser.add_argument("--write", action="store_true", help="benchmarks/results/drift-MODEL.md")
    options = parser.parse_args()
    device = torch.device(options.device)
    a, data, title, block = MODELS[options.model](device, options.samples)
    b = rounded(a, block)
    runs = [Run(model, data, batch=options.batch, memory=options.memory) for model in (a, b)]
    pair = RunPair(*runs)
    taps = [tap for layer in pair.layers for tap in (layer.a, layer.b)]
    step, n = pair.step(taps, copies=2), len(data)

    def layer_pass(full: bool) -> None:
        for start in range(0, n, step):
            layer_differences(pair, start, min(start + step, n), full=full)

    sentences: list[str] = []

    def whole(likeness: bool) -> None:
        instrument = Drift(likeness=likeness)
        profile = lisse.drift(a, b, data, instrument=instrument, batch=options.batch, memory=options.memory)
        sentences.append(profile.notes[0])

    works: dict[str, Callable[[], Any]] = {
        "layer pass": functools.partial(layer_pass, False),
        "layer pass with clouds and predictions": functools.partial(layer_pass, True),
        "whole, without clouds": functools.partial(whole, False),
        "whole": functools.partial(whole, True),
    }
    if options.waits or options.profile:
        for name, work in works.items():
            work()
            print(f"## {name}\n{waits(work) if options.waits else profiled(work)}", flush=True)
        return
    floors = Floors(a, data, options.batch, device)
    floors.race(floors.own, 3)
    two = 2 * n * floors.seconds[floors.own]
    about = f"{title}; batches of {options.batch}, {step} at a time in the layer pass."
    head = [
        "| | seconds | rounds | samples forwarded | over two bare passes | over its forwards |",
        "|---|" + "---|" * 5,
    ]
    print(about, *head, sep="\n", flush=True)
    lines = []
    for name, work in works.items():
        forwards: dict[torch.dtype, int] = {}
        with contextlib.suppress(_Late), at_most(options.cap):
            forwards = counted((a, b), work)
        best, count = timed(work, floors, options.rounds, options.cap) if forwards else (None, 0)
        if best is None:
            lines.append(f"| {name} | over {options.cap} | | | | |")
        else:
            words = " + ".join(f"{count:,} in {str(dtype).removeprefix('torch.')}" for dtype, count in forwards.items())
            floor, two = floors.of(forwards), 2 * n * floors.seconds[floors.own]
            lines.append(f"| {name} | {best:.2f} | {count} | {words} | {best / two:.2f} × | {best / floor:.2f} × |")
        print(lines[-1], flush=True)
    times = ", ".join(
        f"{1000 * seconds:.3g} ms in {str(dtype).removeprefix('torch.')}" for dtype, seconds in floors.seconds.items()
    )
    peak = f" Peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB." if device.type == "cuda" else ""
    said = f"{block} in 4 bits. Said of it: {sentences[-1]}" if sentences else ""
    body = "\n\n".join([f"{about} Bare, per sample: {times}.{peak}", "\n".join([*head, *lines]), said])
    publish(f"drift-{options.model}", "Drift", body, write=options.write, packages=["transformers"])


if __name__ == "__main__":
    main()
