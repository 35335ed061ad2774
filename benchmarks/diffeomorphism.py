"""Sampling and applying deformations, against the published algorithm: ≥ 15× (32²), ≥ 6× (224²), Gaussian ≥ 50×.

The published algorithm (github.com/pcsl-epfl/diffeomorphism) deforms a batch by one field; independent fields take a
loop over images. With ``--peer FOLDER`` its own checkout is run; without, the loop below, written from its description:
n²-sized sums over modes by einsum, four gathers for bilinear, the full O(n⁴) sum for Gaussian. "Plain batched" is what
one would write first: separable fields for the whole batch by einsum, then grid_sample. On several threads that has an
advantage: it runs on PyTorch's own, which spin for some milliseconds after every operation and leave no core to the
compiled loop's; where a batch takes as little as that, the loop is alone. (OMP_WAIT_POLICY=PASSIVE ends the spinning.)
"""

from __future__ import annotations

import itertools
import math
import sys
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from timing import Timing, arguments, clock, publish, race, table

from lisse.maths.diffeomorphism import SIGMA, Diffeomorphism, deform

#: (side, images, cut, least ratio to the loop)
BILINEAR = ((32, 512, 3, 15.0), (32, 512, 15, 15.0), (224, 512, 3, 6.0), (224, 512, 15, 6.0))
GAUSSIAN = ((32, 16, 3, 50.0), (64, 4, 3, 50.0))


def described(image: torch.Tensor, temperature: float, cut: int, interpolation: str) -> torch.Tensor:
    """One image by the published algorithm, from its description."""
    n = image.shape[-1]
    k = torch.arange(1, cut + 1.0)
    radius = (k[:, None] ** 2 + k**2).sqrt()
    weights = (radius < cut + 0.5) / radius
    sines = torch.sin(math.pi * torch.linspace(0, 1, n)[:, None] * k)
    u, v = (torch.einsum("ij,xi,yj->yx", torch.randn(cut, cut) * weights, sines, sines) for _ in range(2))
    return remapped(image, temperature**0.5 * n * u, temperature**0.5 * n * v, interpolation)


def remapped(image: torch.Tensor, u: torch.Tensor, v: torch.Tensor, interpolation: str) -> torch.Tensor:
    n = image.shape[-1]
    rows, columns = torch.meshgrid(torch.arange(n).to(u), torch.arange(n).to(u), indexing="ij")
    x, y = (columns - u).clamp(0, n - 1), (rows - v).clamp(0, n - 1)
    if interpolation == "gaussian":
        far = (x[..., None, None] - columns) ** 2 + (y[..., None, None] - rows) ** 2
        weights = torch.exp(-far / (2 * SIGMA**2))
        weights = weights / weights.sum((2, 3), keepdim=True)
        return (weights * image[..., None, None, :, :]).sum((-1, -2))
    x0, y0, x1, y1 = x.floor().long(), y.floor().long(), x.ceil().long(), y.ceil().long()
    a, b = x - x0, y - y0
    top = (1 - a) * image[..., y0, x0] + a * image[..., y0, x1]
    return (1 - b) * top + b * ((1 - a) * image[..., y1, x0] + a * image[..., y1, x1])


def plain(images: torch.Tensor, temperature: float, cut: int) -> torch.Tensor:
    """Separable fields for the whole batch, then grid_sample."""
    count, _, n, _ = images.shape
    k = torch.arange(1, cut + 1.0)
    square = k[:, None] ** 2 + k**2
    sines = torch.sin(math.pi * (torch.arange(n) + 0.5)[:, None] / n * k)
    c = torch.randn(count, 2, cut, cut) * ((square <= cut**2) / square.sqrt() * temperature**0.5)
    moves = torch.einsum("nkyj,xj->nkyx", torch.einsum("nkij,yj->nkyi", c, sines), sines)
    line = torch.linspace(-1, 1, n)
    base = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1)
    grid = base - moves.permute(0, 2, 3, 1) * (2 * n / (n - 1))
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=True)


def ours(images: torch.Tensor, temperature: float, cut: int, interpolation: str = "bilinear") -> torch.Tensor:
    ensemble = Diffeomorphism((images.shape[2], images.shape[3]), cut)
    return deform(images, ensemble.sample(len(images), temperature), interpolation=interpolation)


def agree(side: int, interpolation: str, dtype: torch.dtype = torch.float64, *, fields: int = 1) -> float:
    """The largest difference of ``deform`` in ``dtype`` from the published remap in float64, pixels in [0, 1].

    Under ``fields`` fields of ours of δ = 2 pixels, the same numbers in both precisions.
    """
    ensemble = Diffeomorphism((side, side), 5)
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(fields, 3, side, side, generator=generator)
    field = ensemble.sample(fields, ensemble.temperature(2.0), generator=generator)
    moved = deform(images.to(dtype), field.to(dtype=dtype), interpolation=interpolation).double()
    moves = field.to(dtype=torch.float64).displacement
    return max(
        float((moved[k] - remapped(images[k].double(), *moves[k], interpolation)).abs().max()) for k in range(fields)
    )


def main() -> int:
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--peer", type=Path, help="a checkout of the authors' repository, run in place")
    parser.add_argument("--threads", default="1,2", help="numbers of threads, one after the other")
    parser.add_argument("--quick", action="store_true", help="an eighth of the images")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="Diffeomorphism.sample: ")  # that fields fold is no matter here
    single, name = described, "published algorithm, loop"
    if options.peer:
        warnings.filterwarnings("ignore", message="torch.meshgrid")
        sys.path.insert(0, str(options.peer))
        from diff import deform as published

        def single(image, temperature, cut, interpolation):
            return published(image, temperature, cut, {"bilinear": "linear"}.get(interpolation, interpolation))

        name = "authors' code, loop"
    body, under = [], []
    for threads, (side, count, cut, least) in itertools.product(map(int, options.threads.split(",")), BILINEAR):
        torch.set_num_threads(threads)
        count = count // 8 if options.quick else count
        images = torch.rand(count, 3, side, side)
        temperature = float(Diffeomorphism((side, side), cut).temperature(1.0))
        assert agree(side, "bilinear") < 1e-9
        contenders = {
            "lisse": lambda x=images, t=temperature, c=cut: ours(x, t, c),
            "plain batched grid_sample": lambda x=images, t=temperature, c=cut: plain(x, t, c),
            name: lambda x=images, t=temperature, c=cut: torch.stack([single(one, t, c, "bilinear") for one in x]),
        }
        timings = race(contenders, rounds=options.rounds)
        body.append(section(f"{count} images 3 × {side}², c = {cut}, bilinear", timings, images, least))
        ratio, against = timings[2].best / timings[0].best, timings[1].best / timings[0].best
        if ratio < least or against < 1:
            under.append(
                f"{side}², c = {cut}, threads: {threads}: {ratio:.1f}× (least {least:g}), "
                f"{against:.2f}× plain (least 1)"
            )
    for side, count, cut, least in GAUSSIAN:
        images = torch.rand(count, 3, side, side)
        temperature = float(Diffeomorphism((side, side), cut).temperature(1.0))
        double, single_error = (agree(side, "gaussian", dtype, fields=4) for dtype in (torch.float64, torch.float32))
        contenders = {
            "lisse": lambda x=images, t=temperature, c=cut: ours(x, t, c, "gaussian"),
            name: lambda x=images, t=temperature, c=cut: torch.stack([single(one, t, c, "gaussian") for one in x]),
        }
        timings = race(contenders, rounds=options.rounds)
        body.append(section(f"{count} images 3 × {side}², c = {cut}, Gaussian", timings, images, least))
        body.append(
            f"Largest difference from the full sum in float64, 4 fields of δ = 2 px at {side}²: {double:.1e} in "
            f"float64, {single_error:.1e} in float32, which is timed; bar 1e-06.\n"
        )
        if timings[1].best / timings[0].best < least or max(double, single_error) > 1e-6:
            under.append(
                f"Gaussian {side}²: {timings[1].best / timings[0].best:.0f}× (least {least:g}), "
                f"error {double:.1e} and {single_error:.1e}"
            )
    publish("diffeomorphism", "Deformations", "\n".join(body), write=options.write)
    sys.stderr.writelines(f"under the bar: {line}\n" for line in under)
    return 1 if under else 0


def section(title: str, timings: list[Timing], images: torch.Tensor, least: float) -> str:
    threads = torch.get_num_threads()
    base = timings[0].best
    others = ", ".join(f"{t.best / base:.3g}× ({t.name})" for t in timings[1:])
    target = torch.empty_like(images)
    (copy,) = race({"copy": lambda: target.copy_(images)}, rounds=5)
    floor = f"Floor: a copy of the images takes {clock(copy.best)}; lisse takes {base / copy.best:.1f}× that."
    return f"## {title}, threads: {threads}\n\n{table(timings)}\n\nFaster by {others}; bar {least:g}×. {floor}\n"


if __name__ == "__main__":
    sys.exit(main())
