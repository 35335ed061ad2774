"""What `lisse drift` costs over the bare forwards of its two networks, and over all the forwards it must make.

    python benchmarks/drift.py --device cuda --model llama --write     # H200: 1.1 billion parameters, bfloat16
    python benchmarks/drift.py --write                                 # ResNet-20, on the CPU

B is A with the matrices of one block rounded to 4 bits, so that every step of a comparison is taken. The layer pass is
what gives `drift`, `injected` and `inherited`: A, B, and B whose layers get what they get in A; its noise apart.
The whole is `lisse.drift` with defaults, without clouds and with them. Forwards are counted by a hook, in each
precision (noise runs a copy in a finer one), and their floor is the time that as many samples take bare, in batches of
the same size, in turns with the rest. Best of the rounds, after one that is not timed; on a CPU seconds are those of
the processor. `--waits` prints where the host waits for a GPU instead.
"""

from __future__ import annotations

import argparse
import collections
import copy
import functools
import itertools
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from large_models import llama
from timing import publish, race
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


def main() -> None:
    """Time each of the works, and print their table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", choices=MODELS, default="resnet20")
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--memory", default="2GiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--waits", action="store_true", help="print where the host waits for a GPU, and no times")
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

    def whole(likeness: bool) -> lisse.Profile:
        instrument = Drift(likeness=likeness)
        return lisse.drift(a, b, data, instrument=instrument, batch=options.batch, memory=options.memory)

    works: dict[str, Callable[[], Any]] = {
        "layer pass": functools.partial(layer_pass, False),
        "layer pass with clouds and predictions": functools.partial(layer_pass, True),
        "whole, without clouds": functools.partial(whole, False),
        "whole": functools.partial(whole, True),
    }
    if options.waits:
        for name, work in works.items():
            work()
            print(f"## {name}\n{waits(work)}", flush=True)
        return
    own = next(a.parameters()).dtype
    forwards = {name: counted((a, b), work) for name, work in works.items()}
    models = {
        dtype: a if dtype == own else copy.deepcopy(a).to(dtype)
        for dtype in {own, *itertools.chain(*forwards.values())}
    }
    passes = {dtype: functools.partial(bare, model, data, options.batch, device) for dtype, model in models.items()}
    sentence = whole(False).notes[0]
    after = torch.cuda.synchronize if device.type == "cuda" else None
    names = {str(dtype): work for dtype, work in passes.items()}
    now = time.process_time if device.type == "cpu" else time.perf_counter
    timings = race({**names, **works}, rounds=options.rounds, after=after, now=now)
    best = {timing.name: timing.best for timing in timings}
    floors = {dtype: best[str(dtype)] / n for dtype in passes}
    two = 2 * n * floors[own]
    lines = ["| | seconds | samples forwarded | over two bare passes | over its forwards |", "|---|---|---|---|---|"]
    for timing in timings[len(names) :]:
        samples = forwards[timing.name]
        words = " + ".join(f"{count:,} in {str(dtype).removeprefix('torch.')}" for dtype, count in samples.items())
        floor = sum(count * floors[dtype] for dtype, count in samples.items())
        lines.append(
            f"| {timing.name} | {timing.best:.2f} | {words} | {timing.best / two:.2f} × | {timing.best / floor:.2f} × |"
        )
    times = ", ".join(
        f"{1000 * seconds:.3g} ms in {str(dtype).removeprefix('torch.')}" for dtype, seconds in floors.items()
    )
    peak = f" Peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB." if device.type == "cuda" else ""
    about = f"{title}; batches of {options.batch}, {step} at a time in the layer pass. Bare, per sample: {times}.{peak}"
    body = "\n\n".join([about, "\n".join(lines), f"{block} in 4 bits. Said of it: {sentence}"])
    publish(f"drift-{options.model}", "Drift", body, write=options.write, packages=["transformers"])


if __name__ == "__main__":
    main()
