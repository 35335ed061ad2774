"""The whole report of a large language model with random weights: how long it takes, and how much of a GPU.

    python benchmarks/large_report.py --device cuda --write              # 8 billion parameters, 256 × 512 tokens
    python benchmarks/large_report.py --small --samples 24 --tokens 32   # the same on a CPU, in a minute

``lisse.survey`` with all that fits and the sizes of ``lisse report``, then the page. Times by instrument are those
between its first word of progress and the next one's; peaks are what PyTorch has allocated at most.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from timing import arguments, publish
from torch import nn

import lisse
from lisse.data import Dataset
from lisse.progress import Event

KINDS = ("llama", "qwen3")
NAMES = [kind().name for kind in lisse.instruments.ALL]


def language_model(kind: str, device: torch.device, *, small: bool) -> nn.Module:
    """A Llama-shaped or Qwen3-shaped network of 8 billion parameters (or of a few thousand) with random weights."""
    import transformers

    sizes = {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 2048,
    }  # fmt: skip
    if small:
        sizes |= {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
                  "num_key_value_heads": 2, "vocab_size": 500}  # fmt: skip
    prefix = {"llama": "Llama", "qwen3": "Qwen3"}[kind]
    config = getattr(transformers, f"{prefix}Config")(**sizes, attn_implementation="sdpa")
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model: nn.Module = getattr(transformers, f"{prefix}ForCausalLM")(config).eval()
    finally:
        torch.set_default_dtype(torch.float32)
    return model


def tokens(samples: int, length: int, vocabulary: int) -> Dataset:
    """Random sequences without padding."""
    ids = torch.randint(0, vocabulary, (samples, length), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return Dataset("random tokens", inputs, lengths=torch.full((samples,), length))


class Clock:
    """When each instrument began to speak."""

    def __init__(self) -> None:
        self.begun: dict[str, float] = {}
        self.words: list[str] = []

    def __call__(self, event: Event) -> None:
        if event.say:
            self.words.append(f"{event.task}: {event.say}")
        for name in NAMES:
            if name not in self.begun and (event.task.endswith(name) or f"{name}:" in event.task):
                self.begun[name] = time.perf_counter()
                print(f"{time.strftime('%X')} {name}", flush=True)

    def spans(self, end: float) -> dict[str, float]:
        """Seconds from the first word of each to that of the next."""
        names, starts = list(self.begun), [*self.begun.values(), end]
        return {name: after - before for name, before, after in zip(names, starts, starts[1:], strict=False)}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--kind", choices=KINDS, default="llama")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--instruments", help="only these")
    parser.add_argument("--page", type=Path, default=Path("lisse-large.html"))
    options: argparse.Namespace = parser.parse_args()
    device = torch.device(options.device)
    model = language_model(options.kind, device, small=options.small)
    parameters = sum(weight.numel() for weight in model.parameters())
    weights = sum(weight.nbytes for weight in model.parameters()) / 2**30
    data = tokens(options.samples, options.tokens, int(model.get_input_embeddings().weight.shape[0]))  # type: ignore[operator]
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    clock, start = Clock(), time.perf_counter()
    profiles = lisse.survey(
        {options.kind: model}, data, batch=options.batch, progress=clock, instruments=options.instruments
    )
    measured = time.perf_counter()
    lisse.report(profiles, options.page)
    seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else float("nan")
    page = seconds - (measured - start)
    lines = [
        f"{options.kind}-shaped, {parameters / 1e9:.2f} billion parameters, bfloat16, {options.samples} × "
        f"{options.tokens} tokens, batches of {options.batch}: **{seconds:.0f} s** for everything, of these {page:.1f} "
        f"s for the page; weights {weights:.1f} GiB, peak {peak:.1f} GiB.",
        "",
        "| | seconds |",
        "|---|---|",
        *(f"| {name} | {span:.1f} |" for name, span in clock.spans(measured).items()),
        "",
        *(f"- {part.instrument}: {note}" for part in profiles[0].parts for note in part.notes[:2]),
    ]
    publish(f"large-report-{options.kind}", "The report of a large language model", "\n".join(lines),
            write=options.write, packages=["transformers"])  # fmt: skip
    print("\n".join(clock.words[-20:]))


if __name__ == "__main__":
    main()
