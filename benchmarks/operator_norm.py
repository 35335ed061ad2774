"""Certified spectral norms: the Cholesky certificate against an SVD and against Gram iteration, and convolutions.

The same matrices, double precision, one process. An SVD gives the norm to rounding without a proof; Gram iteration and
the certificate give a number that is not below it. The floor is to form the Gram matrix once (m n r flops by symmetry)
at the speed of a matrix product. Convolutions: our two ends against plain Gram iteration on every frequency of the
torus (the method of [delattre2023] in our words), with the same torus.
"""

from __future__ import annotations

import sys

import torch
from timing import arguments, clock, publish, race, table
from torch import nn

from lisse.maths.spectral_norm import gram_bound, norm_interval
from lisse.networks.bounds import operator_norm


def speed(n: int = 1024) -> float:
    a = torch.rand(n, n, dtype=torch.float64)
    (timing,) = race({"product": lambda: a @ a}, rounds=5)
    return 2 * n**3 / timing.best


def torus_gram(layer: nn.Conv2d, size: int, iterations: int) -> float:
    """Gram iteration on every frequency of the torus that holds the padded image."""
    n = size + 2 * layer.padding[0]
    n = -(-n // layer.stride[0]) * layer.stride[0]
    blocks = torch.fft.rfft2(layer.weight.detach().double(), s=(n, n)).permute(2, 3, 0, 1).flatten(0, 1)
    return max(float(gram_bound(part, iterations=iterations).max()) for part in blocks.split(64))


def main() -> int:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--width", type=int, default=768, help="of the matrices")
    parser.add_argument(
        "--channels", type=int, default=64, help="of the first convolution, 4 times as many of the second"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    flops = speed()
    body = []
    for m, n in ((options.width, options.width), (options.width, 4 * options.width)):
        a = torch.randn(m, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        true = float(torch.linalg.matrix_norm(a, 2))
        ours, gram = norm_interval(a), float(gram_bound(a, iterations=8))
        assert ours.lower <= true <= ours.upper, "not an interval of the norm"
        assert true <= gram, "not a bound"
        timings = race(
            {
                "norm_interval": lambda a=a: norm_interval(a),
                "SVD (no proof)": lambda a=a: torch.linalg.matrix_norm(a, 2),
                "Gram iteration, 8 steps": lambda a=a: gram_bound(a, iterations=8),
            },
            rounds=options.rounds,
        )
        body.append(f"## {m} × {n} Gaussian matrix, {options.threads} threads\n")
        body.append(table(timings))
        floor = m * n * min(m, n) / flops
        body.append(
            f"\nAbove the norm: norm_interval {ours.upper / true - 1:.1e}, Gram iteration {gram / true - 1:.1e}. "
            f"Floor: {clock(floor)} at {flops / 1e9:.0f} GFLOP/s.\n"
        )
    for channels, size in ((options.channels, 32), (4 * options.channels, 8)):
        layer = nn.Conv2d(channels, channels, 3, padding=1)
        shape = (layer.in_channels, size, size)
        found = operator_norm(layer, shape)
        gram = torus_gram(layer, size, 6)
        timings = race(
            {
                "operator_norm, both ends": lambda layer=layer, shape=shape: operator_norm(layer, shape),
                "Gram iteration on the torus, upper end": lambda layer=layer, size=size: torus_gram(layer, size, 6),
            },
            rounds=options.rounds,
        )
        body.append(f"## Convolution 3 × 3, {shape[0]} channels, {size} × {size} pixels, {options.threads} threads\n")
        body.append(table(timings))
        body.append(f"\nlower {found.lower:.6f}, upper {found.upper:.6f}, gap {found.gap:.1e}; Gram {gram:.6f}.\n")
    publish("operator_norm", "Operator norms", "\n".join(body), write=options.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
