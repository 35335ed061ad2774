"""Every instrument on models of the size that people measure, on a GPU, over the forwards it makes.

    python benchmarks/large_models.py --device cuda --models vit,llama --instruments topology,isometry --write

Warm, in one process: each instrument once untimed, then timed, over three floors: the bare forwards of as many samples
as it sent through the network (counted by a hook), in batches of the run's size; the device's time inside its own
forwards, jvp and vjp, counted; and the bare forward of the samples that were asked for. Robustness also over a bare
PGD loop. ``--profile`` prints where the host's time goes instead, ``--tiny`` tries it all on a small model.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import functools
import io
import pstats
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from timing import publish
from torch import Tensor, nn
from torch.autograd import DeviceType

import lisse
from lisse import instruments
from lisse.data import Dataset


def vit(device: torch.device, tiny: bool) -> tuple[nn.Module, Dataset, str]:
    """ViT-B/16 with random weights on 512 smooth random images, float32."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    small = {"image_size": 64, "hidden_size": 96, "intermediate_size": 192, "num_hidden_layers": 3} if tiny else {}
    config = ViTConfig(num_labels=10, **small)
    model = ViTForImageClassification(config).eval().to(device)
    images = nn.functional.interpolate(torch.rand(512, 3, 14, 14), size=config.image_size, mode="bicubic").clamp(0, 1)
    data = Dataset("smooth noise", images, targets=torch.arange(512) % 10)
    return model, data, "a tiny ViT" if tiny else "ViT-B/16, 512 images, float32"


def llama(device: torch.device, tiny: bool, samples: int = 256) -> tuple[nn.Module, Dataset, str]:
    """A Llama of 1.1 billion parameters with random weights on 256 sequences of 256 tokens, bfloat16."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32, num_key_value_heads=4,
        vocab_size=32000, max_position_embeddings=2048, attn_implementation="sdpa",
    )  # fmt: skip
    if tiny:
        config.hidden_size, config.intermediate_size, config.num_hidden_layers, config.head_dim = 128, 256, 3, 4
    with torch.device(device):
        model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    ids = torch.randint(0, 32000, (samples, 256), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    data = Dataset("random tokens", inputs, lengths=torch.full((samples,), 256))
    size = "tiny" if tiny else "1.1 billion parameters"
    return model, data, f"Llama-shaped, {size}, {samples} × 256 tokens, bfloat16"


NAMES = {kind().name: kind for kind in instruments.ALL}
MODELS: dict[str, Callable[[torch.device, bool], tuple[nn.Module, Dataset, str]]] = {"vit": vit, "llama": llama}


class _Late(BaseException):  # not caught on its way by what mends or reports errors
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


def clock(device: torch.device) -> float:
    """Seconds by the clock once a GPU is done; of the processor, where that does the work."""
    if device.type != "cuda":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


class Products:
    """The forwards of a model and the calls of ``torch.autograd.grad`` (every vjp and jvp is one), counted and timed.

    On a GPU by events around them: the time between the first and the last kernel of each. Else by processor time.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.model, self.cuda = model, device.type == "cuda"
        self.samples = self.climbed = self.gradients = 0  # climbed: samples forwarded with a graph
        self._spans: list[tuple[Any, Any]] = []
        self._depth = 0

    @property
    def seconds(self) -> float:
        """In all of them."""
        if not self.cuda:
            return sum(end - start for start, end in self._spans)
        torch.cuda.synchronize()
        return sum(start.elapsed_time(end) for start, end in self._spans) / 1000

    def _now(self) -> Any:
        if not self.cuda:
            return time.process_time()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _begin(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        count = len(next(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)))
        self.samples += count
        self.climbed += count if torch.is_grad_enabled() else 0
        self._start = self._now()

    def _end(self, *_: Any) -> None:
        self._spans.append((self._start, self._now()))

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        plain = torch.autograd.grad

        def grad(*args: Any, **kwargs: Any) -> Any:
            self.gradients += 1
            start = self._now()
            try:
                return plain(*args, **kwargs)
            finally:
                self._spans.append((start, self._now()))

        handles = [
            self.model.register_forward_pre_hook(self._begin, with_kwargs=True),
            self.model.register_forward_hook(self._end),
        ]
        torch.autograd.grad = grad
        try:
            yield
        finally:
            torch.autograd.grad = plain
            for handle in handles:
                handle.remove()


@torch.inference_mode()
def bare(model: nn.Module, data: Dataset, batch: int, device: torch.device) -> float:
    """Seconds per sample of the bare forwards, the best of three after one untimed."""
    times = []
    for _ in range(4):
        start = clock(device)
        for part in data.batches(batch, device=device):
            model(**part.inputs) if isinstance(part.inputs, dict) else model(part.inputs)
        times.append(clock(device) - start)
    return min(times[1:]) / len(data)


def bare_climb(model: nn.Module, data: Dataset, batch: int, device: torch.device) -> float:
    """Seconds per sample and step of a bare PGD loop, the best of two after one untimed."""
    times = []
    for _ in range(3):
        start = clock(device)
        for part in data.batches(batch, device=device):
            clean = part.inputs
            assert isinstance(clean, Tensor)
            assert part.targets is not None
            x = clean.clone()
            for _ in range(10):
                loss = nn.functional.cross_entropy(model(x.requires_grad_()).logits, part.targets, reduction="sum")
                (slope,) = torch.autograd.grad(loss, x)
                x = (x.detach() + slope.sign() / 1000).clamp(clean - 4 / 255, clean + 4 / 255).clamp(0, 1)
        times.append(clock(device) - start)
    return min(times[1:]) / (10 * len(data))


def measured(model: nn.Module, data: Dataset, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds, what was sent through the network and derived, peak device memory of one instrument with defaults."""
    kind = NAMES[name]
    device = torch.device(options.device)

    def work() -> None:
        profile = lisse.measure(model, data, kind(), batch=options.batch, memory=options.memory)
        reasons = [note for note in profile.parts[0].notes if note.startswith(("Not measured", "Failed"))]
        if reasons:
            raise ValueError(reasons[0])

    cold = 0.0
    try:
        for turn in range(2):
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            products, start = Products(model, device), clock(device)
            with at_most(options.cap), products.counted():
                work()
            seconds = clock(device) - start
            cold = seconds if turn == 0 else cold
            if seconds > options.once:
                break
    except _Late:
        return {"note": f"over {options.cap} s"}
    except (ValueError, RuntimeError, NotImplementedError, IndexError, TypeError) as error:
        return {"note": f"{type(error).__name__}: {error}"[:120]}
    peak = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0
    return {"seconds": seconds, "cold": cold, "products": products, "peak": peak}


def profiled(model: nn.Module, data: Dataset, name: str, options: argparse.Namespace) -> None:
    """Where the host's time goes and, on a GPU, what the device does meanwhile; warm, or as much as the cap allows."""
    kind = NAMES[name]
    work = functools.partial(lisse.measure, model, data, kind(), batch=options.batch, memory=options.memory)
    with contextlib.suppress(_Late), at_most(options.cap):
        work()
    host = cProfile.Profile()
    start = time.perf_counter()
    with contextlib.suppress(_Late), at_most(options.cap):
        host.runcall(work)
    text = io.StringIO()
    pstats.Stats(host, stream=text).sort_stats(options.sort).print_stats(options.lines)
    print(f"#### {name}: {time.perf_counter() - start:.2f} s")
    print("\n".join(line[:150] for line in text.getvalue().splitlines() if line.strip())[: options.lines * 160])
    if options.device.startswith("cuda"):
        with torch.profiler.profile(activities=list(torch.profiler.supported_activities())) as device:
            start = time.perf_counter()
            with contextlib.suppress(_Late), at_most(options.cap):
                work()
            torch.cuda.synchronize()
            seconds = time.perf_counter() - start
        events = device.key_averages()
        busy = sum(event.self_device_time_total for event in events if event.device_type == DeviceType.CUDA) / 1e6
        counts = {event.key: event.count for event in events}
        syncs = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
        waits = sum(counts.get(key, 0) for key in syncs)
        launches = sum(count for key, count in counts.items() if "LaunchKernel" in key)
        print(f"device busy {busy:.2f} of {seconds:.2f} s, {launches:,} launches, {waits:,} waits")
        for event in sorted(events, key=lambda event: -event.self_device_time_total)[: options.lines]:
            print(f"{event.self_device_time_total / 1e3:9.1f} ms {event.count:7,} {event.key[:110]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", default="vit,llama")
    parser.add_argument("--instruments", default=",".join(NAMES))
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--samples", type=int, default=None, help="fewer samples than the table's")
    parser.add_argument("--memory", help="as of lisse.measure (default: its own)")
    parser.add_argument("--cap", type=int, default=60, help="seconds that one measurement may take")
    parser.add_argument("--once", type=float, default=30, help="what takes longer is not measured a second time, warm")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--sort", default="tottime")
    parser.add_argument("--lines", type=int, default=14)
    parser.add_argument("--tiny", action="store_true", help="small models, to try the benchmark itself")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    device = torch.device(options.device)
    sections = []
    for key in options.models.split(","):
        model, data, title = MODELS[key](device, options.tiny)
        data = data if options.samples is None else data.take(options.samples)
        per_sample = bare(model, data, options.batch, device)
        rows = ["| instrument | seconds | samples forwarded | over as many bare forwards "
                "| over its forwards, jvp and vjp (count) | over one pass | peak memory |",
                "|---|---|---|---|---|---|---|"]  # fmt: skip
        remark = ""
        print(f"## {title}: bare forward {per_sample * len(data):.3f} s", flush=True)
        for name in options.instruments.split(","):
            if options.profile:
                profiled(model, data, name, options)
                continue
            result = measured(model, data, name, options)
            if "note" in result:
                rows.append(f"| {name} | {result['note']} | | | | | |")
            else:
                products, seconds = result["products"], result["seconds"]
                rows.append(
                    f"| {name} | {seconds:.2f} (cold {result['cold']:.2f}) | {products.samples:,} | "
                    f"{seconds / (products.samples * per_sample):.2f} × | "
                    f"{seconds / products.seconds:.2f} × ({products.gradients:,}) | "
                    f"{seconds / (per_sample * len(data)):.1f} × | {result['peak']:.1f} GiB |"
                )
                if name == "robustness":
                    climb = bare_climb(model, data.take(min(len(data), 2 * options.batch)), options.batch, device)
                    floor = climb * products.climbed + per_sample * (products.samples - products.climbed)
                    remark = (
                        f"Robustness over a bare PGD loop of as many steps ({products.climbed:,} samples in all) and "
                        f"as many bare forwards as it made beside them: {seconds / floor:.2f} ×."
                    )
            print(rows[-1], flush=True)
        if remark:
            print(remark, flush=True)
        text = "\n".join(rows) + (f"\n\n{remark}" if remark else "")
        sections.append(f"## {title}\n\nOne bare pass: {per_sample * len(data):.3f} s.\n\n{text}")
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
