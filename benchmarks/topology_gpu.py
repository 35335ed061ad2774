"""H0 of 20,000 points in R^4096 on a GPU, with its floor: the products' FLOPs, and the bytes of the matrix.

The floor of the products is measured, too: the same number of FLOPs in float64 as one square product. lisse makes one
triangle (half of the FLOPs of the square), keeps the matrix where it fits, and reads it once in every round of Borůvka.
"""

from __future__ import annotations

import sys

import torch
from timing import arguments, clock, publish, race, table

from lisse.maths.homology import spanning_tree


def main() -> int:
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--points", type=int, default=20000)
    parser.add_argument("--features", type=int, default=4096)
    options = parser.parse_args()
    n, d, device = options.points, options.features, options.device
    after = torch.cuda.synchronize if device.startswith("cuda") else None
    points = torch.randn(n, d, generator=torch.Generator().manual_seed(0)).to(device)
    double = points.double()
    matrix = torch.empty(n, n, dtype=torch.float64, device=device)

    def product():
        torch.mm(double, double.T, out=matrix)

    kept, small = spanning_tree(points, memory=2**36), spanning_tree(points, memory=2**30)
    difference = float((kept.lengths - small.lengths).abs().max() / kept.lengths.max())
    assert difference < 1e-12, "the two trees are not as long"
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
    timings = race(
        {
            "lisse, matrix kept": lambda: spanning_tree(points, memory=2**36),
            "lisse, within 1 GiB of rows": lambda: spanning_tree(points, memory=2**30),
            "one square product, float64": product,
            "one pass over the matrix (minimum)": lambda: matrix.amin(1),
        },
        rounds=options.rounds,
        after=after,
    )
    square, scan = timings[2].best, timings[3].best
    flop = n * n * d
    body = f"## n = {n:,}, d = {d:,}, {device}\n\n{table(timings)}\n\n"
    body += f"Floor: one triangle of the products, n² d = {flop / 1e12:.2f} TFLOP, at the square product's "
    body += (
        f"{2 * flop / square / 1e12:.1f} TFLOP/s: {clock(square / 2)}; the matrix of {8 * n * n / 2**30:.1f} GiB read "
    )
    body += f"once: {clock(scan)}. lisse takes {timings[0].best / (square / 2 + scan):.2f}× their sum. "
    body += f"Lengths with and without the matrix agree to {difference:.1e}.\n"
    if device.startswith("cuda"):
        body += f"\nPeak memory of all contenders: {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB.\n"
    publish("topology-gpu", "H0 on a GPU", body, write=options.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
