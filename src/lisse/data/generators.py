"""Data made by formula: entangled rings, the torus with nested labels, the stripe model.

Each function draws from one ``seed`` and ``split``: the same seed gives independent train and test points.
"""

from __future__ import annotations

import hashlib
import math
from typing import Literal

import torch
from torch import Tensor

from lisse.data.dataset import Dataset

#: The stripe of Paccolat et al. (2021): y = +1 iff low < x_1 < high; half of N(0, 1) lies between (to 5e-7).
STRIPE = (-0.3, 1.18549)
#: Numbers in one set: ten million points of the stripe model in its 30 dimensions (2.4 GB while they are drawn).
_MOST_POINTS = 300_000_000


def generator(name: str, split: str, seed: int) -> torch.Generator:
    """Independent random streams for every data set, split and seed."""
    digest = hashlib.blake2b(f"{name}/{split}/{seed}".encode(), digest_size=7).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest))


def rings(
    n: int = 200,
    *,
    noise: float = 0.001,
    noise_is: Literal["variance", "std"] = "variance",
    offset: float = 1.0,
    split: str = "train",
    seed: int = 0,
) -> Dataset:
    r"""Two linked circles in :math:`\mathbb R^3`, ``n`` points in all, one class each ([beshkov2022] §3.1).

    :math:`(\cos t, \sin t, 0)` and :math:`(\text{offset} + \cos t, 0, \sin t)` with t uniform, plus
    :math:`\nu \sim \mathcal N(0, \text{noise})`: ``noise`` is the variance by default, as the notation says.
    With ``offset`` 1 the linking number is -1; above 2 the circles are apart.
    """
    spread = _spread("rings", noise, noise_is)
    if not math.isfinite(offset):
        raise ValueError(f"rings: offset must be finite, got {offset}. 1 links the circles, above 2 they are apart.")
    _points("rings", n, at_least=2)
    source = generator("rings", split, seed)
    labels = torch.arange(n) % 2
    angle = 2 * math.pi * torch.rand(n, generator=source, dtype=torch.float64)
    zero = torch.zeros_like(angle)
    first = torch.stack([angle.cos(), angle.sin(), zero], 1)
    second = torch.stack([offset + angle.cos(), zero, angle.sin()], 1)
    points = torch.where(labels[:, None] == 0, first, second)
    points = points + spread * torch.randn(points.shape, generator=source, dtype=torch.float64)
    return Dataset("rings", points.float(), labels, classes=("first ring", "second ring"))


def torus(
    n: int = 1600,
    *,
    sectors: int = 8,
    noise: float = 0.001,
    noise_is: Literal["variance", "std"] = "variance",
    major: float = 2.0,
    minor: float = 1.0,
    split: str = "train",
    seed: int = 0,
) -> Dataset:
    r"""A torus cut into ``sectors`` equal cylinders in the long angle ([beshkov2022] §3.4).

    :math:`((R + r\cos φ)\cos θ, (R + r\cos φ)\sin θ, r\sin φ)`, θ and φ uniform, R ``major``, r ``minor``; the label is
    the sector of θ. Labels are nested: ``coarser(labels, 8, 4)`` are the labels of 4 sectors (levels 2, 4, 8).
    ``noise`` as in :func:`rings`.
    """
    spread = _spread("torus", noise, noise_is)
    if not 0 < minor < major < math.inf:
        raise ValueError(
            f"torus: major and minor must be finite with 0 < minor < major, got {major} and {minor}. "
            "The paper's are 2 and 1."
        )
    if not 1 <= sectors <= 100_000:
        raise ValueError(f"torus: sectors must lie in 1 … 100000, got {sectors}. The levels used are 2, 4 and 8.")
    _points("torus", n, at_least=1)
    source = generator("torus", split, seed)
    theta, phi = 2 * math.pi * torch.rand(2, n, generator=source, dtype=torch.float64)
    tube = major + minor * phi.cos()
    points = torch.stack([tube * theta.cos(), tube * theta.sin(), minor * phi.sin()], 1)
    labels = (theta / (2 * math.pi) * sectors).long().clamp(max=sectors - 1)
    points = points + spread * torch.randn(points.shape, generator=source, dtype=torch.float64)
    return Dataset("torus", points.float(), labels, classes=tuple(f"sector {k}" for k in range(sectors)))


def coarser(labels: Tensor, sectors: int, into: int) -> Tensor:
    """Labels of ``sectors`` equal sectors as labels of ``into`` larger ones that contain them."""
    if into < 1 or sectors % into:
        raise ValueError(f"coarser: into must divide sectors = {sectors}, got {into}. For 8 sectors take 4, 2 or 1.")
    return labels // (sectors // into)


def stripe(n: int = 1024, *, d: int = 30, split: str = "train", seed: int = 0) -> Dataset:
    r"""The stripe model ([petrini2021] §6): :math:`x \sim \mathcal N(0, I_d)`, and the label only sees :math:`x_1`.

    Label 1 (y = +1) iff :math:`-0.3 < x_1 < 1.18549`, else 0 (y = -1); both have probability 1/2. The other d - 1
    directions are invariant.
    """
    if d < 1:
        raise ValueError(f"stripe: d must be at least 1, got {d}. The paper's is 30.")
    _points("stripe", n, at_least=1)
    if n * d > _MOST_POINTS:
        raise ValueError(f"stripe: n · d must be at most {_MOST_POINTS:,} numbers, got {n} · {d}. The paper's d is 30.")
    points = torch.randn(n, d, generator=generator("stripe", split, seed), dtype=torch.float64).float()
    low, high = STRIPE
    labels = ((points[:, 0] > low) & (points[:, 0] < high)).long()
    return Dataset("stripe", points, labels, classes=("outside", "inside"))


def _spread(function: str, noise: float, noise_is: str) -> float:
    if noise_is not in ("variance", "std"):
        raise ValueError(
            f"{function}: noise_is must be 'variance' or 'std', got {noise_is!r}. "
            "The paper's 0.001 is read as a variance."
        )
    if not (noise >= 0 and math.isfinite(noise)):
        raise ValueError(
            f"{function}: noise must be finite and at least 0, got {noise}. 0 gives points exactly on the shape."
        )
    return math.sqrt(noise) if noise_is == "variance" else noise


def _points(function: str, n: int, *, at_least: int) -> None:
    if not at_least <= n <= 10_000_000:
        raise ValueError(
            f"{function}: n must lie in {at_least} … 10000000, got {n}. It is the number of points in all."
        )
