"""Images per second of each corruption, beside a per-image loop of imagecorruptions-imaug: none slower, median ≥ 5×.

Both work at ImageNet strength on the same 32 × 32 byte images, in turns; imagecorruptions-imaug (``pip install
imagecorruptions-imaug``) prints as missing where it is not installed. The last columns are ours at CIFAR strength, as
``lisse data make cifar10-c`` runs it, and the 50,000 images of a CIFAR-10-C file at that rate. The floor is one copy
of the images: bytes read and written once.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import warnings

import numpy as np
import torch
from timing import arguments, clock, publish, race

from lisse.data import load_data
from lisse.data.corrupted import frost_textures
from lisse.maths.corruption import CORRUPTIONS, corrupt


def pictures(count: int, side: int) -> torch.Tensor:
    """CIFAR-10's test images where they are found, else smooth random ones; enlarged if ``side`` is not 32."""
    try:
        images = load_data("cifar10", seed=None, limit=count).inputs
    except ValueError:
        coarse = torch.rand(count, 3, 6, 6, generator=torch.Generator().manual_seed(0))
        images = torch.nn.functional.interpolate(coarse, size=32, mode="bicubic").clamp(0, 1).mul(255).byte()
    if side != 32:
        images = torch.nn.functional.interpolate(images.float(), size=side, mode="bilinear").byte()
    return images


def main() -> int:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--count", type=int, default=500, help="images a round (default %(default)s)")
    parser.add_argument("--side", type=int, default=32, help="their height and width (default %(default)s)")
    parser.add_argument("--severity", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    peer = None
    if importlib.util.find_spec("imagecorruptions"):
        import imagecorruptions as peer
    images = pictures(options.count, options.side)
    singles = [np.ascontiguousarray(image.permute(1, 2, 0).numpy()) for image in images]
    textures = frost_textures()
    generator = torch.Generator().manual_seed(0)
    (copy,) = race({"copy": images.clone}, rounds=10)
    lines = [
        f"{options.count} images of {options.side} × {options.side}, severity {options.severity}, "
        f"{options.threads} threads. Floor, a copy of the images: {clock(copy.best)}.\n",
        "| corruption | ours, images/s | peer, images/s | ratio | CIFAR strength, images/s | 50,000 |",
        "|---|---|---|---|---|---|",
    ]
    ratios, slow = [], []
    for name in CORRUPTIONS:

        def ours(name: str = name, strength: str = "imagenet") -> object:
            return corrupt(images, name, options.severity, strength=strength, generator=generator, textures=textures)

        def theirs(name: str = name) -> object:
            return [peer.corrupt(single, severity=options.severity, corruption_name=name) for single in singles]

        contenders = {"ours": ours, "cifar": lambda work=ours: work(strength="cifar")}
        if peer is not None:
            contenders["peer"] = theirs
        best = {timing.name: timing.best for timing in race(contenders, rounds=options.rounds)}
        rate = {key: f"{options.count / seconds:,.0f}" for key, seconds in best.items()}
        ratio = best["peer"] / best["ours"] if peer else float("nan")
        ratios.append(ratio)
        if ratio < 1:
            slow.append(f"{name}: {ratio:.2f}")
        whole = clock(50_000 * best["cifar"] / options.count)
        lines.append(
            f"| {name} | {rate['ours']} | {rate.get('peer', 'missing')} | {ratio:.1f} | {rate['cifar']} | {whole} |"
        )
    middle = statistics.median(ratios)
    lines.append(f"\nMedian ratio {middle:.1f} (limit 5), least {min(ratios):.1f} (limit 1).")
    packages = ("imagecorruptions-imaug",) if peer else ()
    publish("corruption", "Corruptions", "\n".join(lines), write=options.write, packages=packages)
    if peer is None:
        return 0
    sys.stderr.writelines(f"slower than the peer: {line}\n" for line in slow)
    return 1 if slow or middle < 5 else 0


if __name__ == "__main__":
    sys.exit(main())
