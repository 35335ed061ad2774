"""The kernel route to attention against scaled_dot_product_attention: at most 1.2× for a uniform measure of 512 tokens.

Both compute softmax(q kᵀ / √d) k for the same points; the kernel also checks its measures and its result.
"""

from __future__ import annotations

import sys

import torch
from timing import arguments, clock, publish, race, table

from lisse.maths.markov import AttentionKernel, DotProduct
from lisse.maths.transport import Measure

LIMIT = 1.2


def main() -> int:
    parser = arguments(__doc__, rounds=40)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    body, over = [], []
    for kind in (torch.float32, torch.float64):
        for d in (64, 768):
            x = torch.randn(options.tokens, d, generator=torch.Generator().manual_seed(0)).to(kind)
            mu, kernel = Measure(x), AttentionKernel(DotProduct(d**-0.5))

            def fused(x=x):
                return torch.nn.functional.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])[
                    0, 0
                ]

            def carried(mu=mu, kernel=kernel):
                return kernel(mu, mu).points

            torch.testing.assert_close(fused(), carried())
            timings = race(
                {
                    "scaled_dot_product_attention": lambda f=fused: [f() for _ in range(5)],
                    "AttentionKernel": lambda f=carried: [f() for _ in range(5)],
                },
                rounds=options.rounds,
                warmup=3,
            )
            ratio = timings[1].best / timings[0].best
            flops = 5 * 4 * options.tokens**2 * d
            body.append(f"## {options.tokens} tokens in R^{d}, {kind}, {options.threads} threads, 5 calls\n")
            body.append(table(timings))
            body.append(
                f"\nLimit {LIMIT}. Two products, {flops / 1e9:.2f} GFLOP: {clock(flops / 1e11)} at 100 GFLOP/s.\n"
            )
            if ratio > LIMIT:
                over.append(f"d = {d}, {kind}: {ratio:.3f} > {LIMIT}")
    publish("markov", "Attention as a map of measures", "\n".join(body), write=options.write)
    sys.stderr.writelines(f"over the limit: {line}\n" for line in over)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
