"""Kernels applied without their matrix: at most 3× scaled_dot_product_attention, under 10 % of the dense form's memory.

4,096 tokens in R^64, the four kinds of kernel. The dense form makes the row-stochastic matrix and multiplies. Memory is
the peak of a fresh process above what it held before the application, on Linux; results are compared before the race.
Both limits are those of every form without a matrix: fused, chunked, and the raw sums K v, which are always chunked.
"""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from timing import arguments, clock, publish, race, table
from torch.nn.functional import scaled_dot_product_attention

from lisse.maths.integral import IntegralOperator, attention_kernel

LIMIT, SHARE = 3.0, 0.10
FORMS = ("fused", "chunked", "raw, chunked")
KINDS = ("dot", "gauss_qk", "rbf_w", "eq11_literal")


def tokens(count: int, d: int) -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(0)
    return [torch.randn(count, d, generator=source) for _ in range(3)]


def works(kind: str, count: int, d: int) -> dict[str, Callable[[], torch.Tensor]]:
    q, k, v = tokens(count, d)
    fused, chunked = (IntegralOperator(q, k, kind=kind, way=way) for way in ("fused", "chunked"))
    return {
        "scaled_dot_product_attention": lambda: scaled_dot_product_attention(
            q[None, None], k[None, None], v[None, None]
        ),
        "fused": lambda: fused(v),
        "chunked": lambda: chunked(v),
        "raw, chunked": lambda: chunked.raw(v),
        "dense": lambda: attention_kernel(q, k, kind=kind)(v),
    }


def summed(kind: str, count: int, d: int) -> torch.Tensor:
    """K v by the matrix."""
    q, k, v = tokens(count, d)
    return attention_kernel(q, k, kind=kind).raw @ v


def status(name: str) -> int:
    """A number of kibibytes that Linux keeps of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def peak(kind: str, name: str, count: int, d: int, threads: int) -> None:
    """Print the bytes that one application adds to this process at its height."""
    torch.set_num_threads(threads)
    with torch.no_grad():
        works(kind, 64, d)[name]()  # what is loaded on first use is not counted
        work = works(kind, count, d)[name]
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")
        before = status("VmRSS")
        result = work()
        sys.stdout.write(str(max(0, status("VmHWM") - before - result.numel() * 4 // 1024) * 1024))


def measured(kind: str, name: str, options: object) -> int:
    told = [sys.executable, __file__, "--peak", f"{kind}/{name}"]
    told += [f"--{key}={getattr(options, key)}" for key in ("tokens", "features", "threads")]
    return int(subprocess.run(told, check=True, capture_output=True, text=True).stdout)


def main() -> int:
    parser = arguments(__doc__, rounds=10)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--peak", default=None, help="print the peak memory of one KIND/NAME and stop")
    options = parser.parse_args()
    if options.peak:
        kind, _, name = options.peak.partition("/")
        peak(kind, name, options.tokens, options.features, options.threads)
        return 0
    torch.set_num_threads(options.threads)
    body, over = [], []
    for kind in KINDS:
        contenders = works(kind, options.tokens, options.features)
        with torch.no_grad():
            for name in ("fused", "chunked"):
                torch.testing.assert_close(contenders[name](), contenders["dense"](), rtol=1e-4, atol=1e-5)
            sums = summed(kind, options.tokens, options.features)
            near = {"rtol": 1e-4, "atol": 1e-5 * float(sums.abs().max())}
            torch.testing.assert_close(contenders["raw, chunked"](), sums, **near)
            timings = race(contenders, rounds=options.rounds)
        body.append(f"## {kind}, {options.tokens} tokens in R^{options.features}, {options.threads} threads\n")
        body.append(table(timings))
        spent = {name: measured(kind, name, options) for name in contenders}
        whole = spent["dense"]
        shares = ", ".join(f"{name} {used / 2**20:.1f} MiB" for name, used in spent.items())
        body.append(f"\nPeak memory beyond inputs and output: {shares}.")
        best = {timing.name: timing.best for timing in timings}
        for name in FORMS:
            body.append(f"{name}: {spent[name] / whole:.1%} of the dense form's (limit {SHARE:.0%}).")
            if spent[name] > SHARE * whole:
                over.append(f"{kind}, {name}: {spent[name] / whole:.1%} of the dense form's memory")
            ratio = best[name] / best["scaled_dot_product_attention"]
            if ratio > LIMIT:
                over.append(f"{kind}, {name}: {ratio:.2f}× > {LIMIT}×")
        flops = 4 * options.tokens**2 * options.features
        body.append(f"Limit {LIMIT:g}×. Two products, {flops / 1e9:.1f} GFLOP: {clock(flops / 1e11)} at 100 GFLOP/s.\n")
    publish("integral", "Integral operators without their matrix", "\n".join(body), write=options.write)
    sys.stderr.writelines(f"over the limit: {line}\n" for line in over)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
