"""The isometric loss, forward and backward, beside its two distance matrices alone: at most 1.5 times their time.

1,024 samples, 784 numbers before and 100 after, float32. The matrices are ``torch.cdist`` (its product form) with the
backward pass of their sums, in the input as well where the loss has a gradient there. The floor is that of their
products: n² d multiply-adds forward, as many backward, at the speed of a plain product of that size.
"""

from __future__ import annotations

import sys

import torch
from timing import arguments, clock, publish, race, table

from lisse.networks.isometric import isometric_loss

N, BEFORE, AFTER, CLASSES, LIMIT = 1024, 784, 100, 10, 1.5


def floor(device: str, both: bool) -> float:
    """Seconds of the products alone: x xᵀ and z zᵀ, and W z (and W x) backward."""
    x, z = torch.rand(N, BEFORE, device=device), torch.rand(N, AFTER, device=device)
    w = torch.rand(N, N, device=device)
    after = torch.cuda.synchronize if device.startswith("cuda") else None

    def work() -> None:
        x @ x.T
        z @ z.T
        w @ z
        if both:
            w @ x

    (timing,) = race({"products": work}, rounds=10, after=after)
    return timing.best


def main() -> int:
    parser = arguments(__doc__, rounds=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = options.device
    after = torch.cuda.synchronize if device.startswith("cuda") else None
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(N, BEFORE, generator=generator).to(device)
    z = torch.randn(N, AFTER, generator=generator).to(device).requires_grad_()
    moving = x.clone().requires_grad_()
    labels = (torch.arange(N) % CLASSES).to(device)

    def matrices(given):
        (torch.cdist(given, given).sum() + torch.cdist(z, z).sum()).backward()
        z.grad = given.grad = None

    def loss(given, groups, **keywords):
        isometric_loss(given, z, groups, **keywords).backward()
        z.grad = given.grad = None

    plain = (torch.cdist(x.double(), x.double()) - torch.cdist(z.double(), z.double())).square().mean()
    assert abs(float(isometric_loss(x, z.detach())) / float(plain.detach()) - 1) < 1e-4, (
        "the two do not compute the same"
    )
    body, over = [], []
    for title, given, fixed in (("input fixed", x, True), ("gradient in the input too", moving, False)):
        timings = race(
            {
                "two distance matrices": lambda given=given: matrices(given),
                "isometric loss, all pairs": lambda given=given, fixed=fixed: loss(given, None, fixed_input=fixed),
                f"isometric loss, {CLASSES} classes": lambda given=given, fixed=fixed: loss(
                    given, labels, fixed_input=fixed
                ),
                "all pairs, 256 rows at a time": lambda given=given, fixed=fixed: loss(
                    given, None, fixed_input=fixed, chunk=256
                ),
            },
            rounds=options.rounds,
            after=after,
        )
        body.append(f"## {title}: {N} samples, {BEFORE} to {AFTER} numbers, {options.threads} threads, {device}\n")
        body.append(table(timings))
        body.append(f"\nFloor: the products alone take {clock(floor(device, not fixed))}. Limit: {LIMIT}.\n")
        for timing in timings[1:3]:
            ratio = timing.best / timings[0].best
            if ratio > LIMIT:
                over.append(f"{title}, {timing.name}: {ratio:.2f} > {LIMIT}")
    publish("isometry", "Isometric loss", "\n".join(body), write=options.write)
    sys.stderr.writelines(f"over the limit: {line}\n" for line in over)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
