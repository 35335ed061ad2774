"""Deforming 4,096 images 3×224² on a GPU: at most 2× the time to read and write those bytes once.

The floor is a device-to-device copy of the images. ``deform`` gets fields that lie on the device as coefficients;
"with sampling" also draws them there. The plain contender writes the displacement fields to memory and calls
grid_sample.
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from timing import arguments, publish, race, table

from lisse.maths.diffeomorphism import Diffeomorphism, deform, fused

LIMIT = 2.0


def plain(images: torch.Tensor, field) -> torch.Tensor:
    h, w = images.shape[2:]
    rows, columns = torch.meshgrid(
        torch.linspace(-1, 1, h, device="cuda"), torch.linspace(-1, 1, w, device="cuda"), indexing="ij"
    )
    scale = torch.tensor([2 / (w - 1), 2 / (h - 1)], device="cuda")
    grid = torch.stack([columns, rows], -1) - field.displacement.permute(0, 2, 3, 1) * scale
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=True)


def main() -> int:
    parser = arguments(__doc__, rounds=20)
    parser.add_argument("--images", type=int, default=4096)
    parser.add_argument("--side", type=int, default=224)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.stderr.write("needs a CUDA device\n")
        return 2
    generator = torch.Generator("cuda").manual_seed(0)
    side = options.side
    images = torch.rand(options.images, 3, side, side, device="cuda", generator=generator)
    target = torch.empty_like(images)
    body, over = [], []
    for cut in (3, 15):
        ensemble = Diffeomorphism((side, side), cut)
        temperature = float(ensemble.temperature(1.0))
        field = ensemble.sample(len(images), temperature, generator=generator)
        found = deform(images[:64], field[:64])
        difference = float((found - plain(images[:64], field[:64])).abs().max())
        assert difference < 1e-3, f"the two do not compute the same: {difference}"
        contenders = {
            "copy (floor)": lambda: target.copy_(images),
            "deform, check=False": lambda f=field: deform(images, f, check=False),
            "deform": lambda f=field: deform(images, f),
            "with sampling, check=False": lambda e=ensemble, t=temperature: deform(
                images, e.sample(len(images), t, generator=generator), check=False
            ),
            "fields in memory, then grid_sample": lambda f=field: plain(images, f),
        }
        timings = race(contenders, rounds=options.rounds, warmup=3, after=torch.cuda.synchronize)
        ratio = timings[1].best / timings[0].best
        size = 2 * images.numel() * 4
        body.append(f"## {len(images)} images 3 × {side}², float32, bilinear, c = {cut}, {_way(images, field)}\n")
        body.append(table(timings))
        body.append(
            f"\nRead and written once: {size / 1e9:.2f} GB, copied at {size / timings[0].best / 1e12:.2f} TB/s. Limit: "
            f"{LIMIT}; deform: {ratio:.2f}. Largest difference from grid_sample: {difference:.1e}.\n"
        )
        if ratio > LIMIT:
            over.append(f"c = {cut}: {ratio:.2f} > {LIMIT}")
    publish("diffeomorphism-gpu", "Deformations on a GPU", "\n".join(body), write=options.write)
    sys.stderr.writelines(f"over the limit: {line}\n" for line in over)
    return 1 if over else 0


def _way(images: torch.Tensor, field) -> str:
    return "fused kernel" if fused.kernel_deformed(images, field) is not None else "grid_sample in chunks"


if __name__ == "__main__":
    sys.exit(main())
