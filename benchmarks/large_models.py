"""Every instrument on models of the size that people measure, on a GPU, over the forwards it makes.

    python benchmarks/large_models.py --device cuda --models vit,llama --instruments topology,isometry --write

Warm, in one process: each instrument once untimed, then timed. The floor is the time of the bare forwards of as many
samples as the instrument sent through the network (counted by a hook), in batches of the same size; beside it the bare
forward of the samples that were asked for. ``--profile`` prints where the host's time goes instead.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import io
import pstats
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from timing import publish
from torch import Tensor, nn

import lisse
from lisse import instruments
from lisse.data import Dataset


def vit(device: torch.device) -> tuple[nn.Module, Dataset, str]:
    """ViT-B/16 with random weights on 512 smooth random images, float32."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    model = ViTForImageClassification(ViTConfig(num_labels=10)).eval().to(device)
    coarse = torch.rand(512, 3, 14, 14)
    images = nn.functional.interpolate(coarse, size=224, mode="bicubic").clamp(0, 1)
    return model, Dataset("smooth noise", images, targets=torch.arange(512) % 10), "ViT-B/16, 512 images, float32"


def llama(device: torch.device, samples: int = 256) -> tuple[nn.Module, Dataset, str]:
    """A Llama of 1.1 billion parameters with random weights on 256 sequences of 256 tokens, bfloat16."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32, num_key_value_heads=4,
        vocab_size=32000, max_position_embeddings=2048, attn_implementation="sdpa",
    )  # fmt: skip
    with torch.device(device):
        model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    ids = torch.randint(0, 32000, (samples, 256), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    data = Dataset("random tokens", inputs, lengths=torch.full((samples,), 256))
    return model, data, f"Llama-shaped, 1.1 billion parameters, {samples} × 256 tokens, bfloat16"


NAMES = {kind().name: kind for kind in instruments.ALL}
MODELS: dict[str, Callable[[torch.device], tuple[nn.Module, Dataset, str]]] = {"vit": vit, "llama": llama}


class _Late(Exception):
    """The time that one measurement may take is over."""


@contextlib.contextmanager
def at_most(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise _Late

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def forwarded(model: nn.Module, work: Callable[[], object]) -> int:
    """How many samples go through the network during ``work``."""
    counts: list[int] = []

    def count(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        values = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        counts.append(len(values[0]))

    handle = model.register_forward_pre_hook(count, with_kwargs=True)
    try:
        work()
    finally:
        handle.remove()
    return sum(counts)


@torch.inference_mode()
def bare(model: nn.Module, data: Dataset, batch: int, device: torch.device) -> float:
    """Seconds per sample of the bare forwards, the best of three after one untimed."""
    times = []
    for _ in range(4):
        start = time.perf_counter()
        for part in data.batches(batch, device=device):
            model(**part.inputs) if isinstance(part.inputs, dict) else model(part.inputs)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:]) / len(data)


def measured(model: nn.Module, data: Dataset, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds, samples sent through the network, peak device memory of one instrument with defaults."""
    kind = NAMES[name]
    device = torch.device(options.device)

    def work() -> None:
        profile = lisse.measure(model, data, kind(), batch=options.batch, memory=options.memory)
        reasons = [note for note in profile.parts[0].notes if note.startswith(("Not measured", "Failed"))]
        if reasons:
            raise ValueError(reasons[0])

    start = time.perf_counter()
    try:
        with at_most(options.cap):
            samples = forwarded(model, work)
        cold = time.perf_counter() - start
        if device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        with at_most(options.cap):
            work()
        if device.type == "cuda":
            torch.cuda.synchronize()
    except _Late:
        return {"note": f"over {options.cap} s"}
    except (ValueError, RuntimeError, NotImplementedError, IndexError, TypeError) as error:
        return {"note": f"{type(error).__name__}: {error}"[:120]}
    seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0
    return {"seconds": seconds, "cold": cold, "samples": samples, "peak": peak}


def profiled(model: nn.Module, data: Dataset, name: str, options: argparse.Namespace) -> None:
    """Where the host's time goes, after one run (or as much of it as the cap allows)."""
    profiler = cProfile.Profile()
    kind = NAMES[name]
    start = time.perf_counter()
    with contextlib.suppress(_Late), at_most(options.cap):
        profiler.runcall(lisse.measure, model, data, kind(), batch=options.batch, memory=options.memory)
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).sort_stats(options.sort).print_stats(options.lines)
    print(f"#### {name}: {time.perf_counter() - start:.2f} s")
    print("\n".join(line[:150] for line in text.getvalue().splitlines() if line.strip())[: options.lines * 160])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", default="vit,llama")
    parser.add_argument("--instruments", default=",".join(NAMES))
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--samples", type=int, default=None, help="fewer samples than the table's")
    parser.add_argument("--memory", help="as of lisse.measure (default: its own)")
    parser.add_argument("--cap", type=int, default=60, help="seconds that one measurement may take")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--sort", default="tottime")
    parser.add_argument("--lines", type=int, default=14)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    device = torch.device(options.device)
    sections = []
    for key in options.models.split(","):
        model, data, title = MODELS[key](device)
        data = data if options.samples is None else data.take(options.samples)
        per_sample = bare(model, data, options.batch, device)
        rows = ["| instrument | seconds | samples forwarded | over its forwards | over one pass | peak memory |",
                "|---|---|---|---|---|---|"]  # fmt: skip
        print(f"## {title}: bare forward {per_sample * len(data):.3f} s", flush=True)
        for name in options.instruments.split(","):
            if options.profile:
                profiled(model, data, name, options)
                continue
            result = measured(model, data, name, options)
            if "note" in result:
                rows.append(f"| {name} | {result['note']} | | | | |")
            else:
                floor = result["samples"] * per_sample
                rows.append(
                    f"| {name} | {result['seconds']:.2f} (cold {result['cold']:.2f}) | {result['samples']:,} | "
                    f"{result['seconds'] / floor:.2f} × | {result['seconds'] / (per_sample * len(data)):.1f} × | "
                    f"{result['peak']:.1f} GiB |"
                )
            print(rows[-1], flush=True)
        sections.append(f"## {title}\n\nOne bare pass: {per_sample * len(data):.3f} s.\n\n" + "\n".join(rows))
        del model, data
    if not options.profile:
        publish(
            "large-models",
            __doc__.splitlines()[0],
            "\n\n".join(sections),
            write=options.write,
            packages=["transformers"],
        )


if __name__ == "__main__":
    main()
