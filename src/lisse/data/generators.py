"""Data made by formula: entangled rings, the torus with nested labels, the stripe model, drawn shapes.

Each function draws from one ``seed`` and ``split``: the same seed gives independent train and test points.
"""

from __future__ import annotations

import hashlib
import itertools
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


SIZE = 28
_MOST = 300_000  # images of one set: a gigabyte
_BLOCK = 50  # images drawn at a time
_Stroke = tuple[float, float, float, float]


def _polygon(corners: int, radius: float, turn: float) -> list[_Stroke]:
    angles = [turn + 2 * math.pi * corner / corners for corner in range(corners + 1)]
    points = [(radius * math.cos(angle), radius * math.sin(angle)) for angle in angles]
    return [(*start, *end) for start, end in itertools.pairwise(points)]


#: Each figure as strokes from (x, y) to (x, y), y pointing down, in the square [-1, 1]².
FIGURES: dict[str, list[_Stroke]] = {
    "ring": _polygon(12, 0.9, 0.0),
    "triangle": _polygon(3, 1.0, -math.pi / 2),
    "square": _polygon(4, 1.05, math.pi / 4),
    "star": [(-x, -y, x, y) for x, y, _, _ in _polygon(6, 1.0, math.pi / 2)[:3]],
    "plus": [(-1, 0, 1, 0), (0, -1, 0, 1)],
    "cross": [(-0.8, -0.8, 0.8, 0.8), (-0.8, 0.8, 0.8, -0.8)],
    "corner": [(-0.6, -1, -0.6, 1), (-0.6, 1, 0.7, 1)],
    "tee": [(-0.9, -0.9, 0.9, -0.9), (0, -0.9, 0, 1)],
    "zigzag": [(-0.8, -0.9, 0.8, -0.9), (0.8, -0.9, -0.8, 0.9), (-0.8, 0.9, 0.8, 0.9)],
    "hook": [(-0.6, -1, -0.6, 0.3), (-0.6, 0.3, 0, 0.9), (0, 0.9, 0.6, 0.3), (0.6, 0.3, 0.6, -1)],
}


def shapes(n: int = 1000, *, bend: float = 0.05, clutter: float = 0.25, split: str = "test", seed: int = 0) -> Dataset:
    r"""``n`` grey images ``[n, 1, 28, 28]`` in [0, 1] of ten figures, as many of each.

    Every figure has its own turn (up to 20°), size, shift, thickness, and is lighter or darker than what lies behind
    it: :math:`\tfrac12` plus ``clutter`` times a smooth random field of unit variance. Its plane is bent by sines of
    the lowest four frequencies, with Gaussian coefficients of deviation ``bend`` (in half sides of the image). Nothing
    is interpolated: a pixel's grey is a function of its distance to the nearest stroke.
    """
    if not 10 <= n <= _MOST:
        raise ValueError(f"shapes: n must lie in 10 … {_MOST}, got {n}. It is the number of images.")
    for name, value in (("bend", bend), ("clutter", clutter)):
        if not 0 <= value <= 1:
            raise ValueError(f"shapes: {name} must lie in 0 … 1, got {value}. 0 leaves it out.")
    source = generator("shapes", split, seed)
    labels = torch.arange(n) % len(FIGURES)
    blocks = [_drawn(part, bend, clutter, source) for part in labels.split(_BLOCK)]
    return Dataset("shapes", torch.cat(blocks)[:, None], labels, classes=tuple(FIGURES))


def _drawn(labels: Tensor, bend: float, clutter: float, source: torch.Generator) -> Tensor:
    """Images ``[n, 28, 28]`` of the figures with these numbers."""
    n = len(labels)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(n, *shape, generator=source)

    line = (torch.arange(SIZE) + 0.5) / SIZE * 2 - 1
    plane = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1).reshape(-1, 2)  # [pixels, (x, y)]
    waves = torch.tensor([[a, b] for a in (1, 2) for b in (1, 2)]) * math.pi / 2
    modes = ((plane[:, None] + 1) * waves).sin().prod(-1)
    bent = plane + torch.einsum("pk,nkd->npd", modes, bend * torch.randn(n, len(waves), 2, generator=source))
    size, turn = uniform(0.5, 0.75, 1), uniform(-0.35, 0.35)
    turned = torch.stack([turn.cos(), -turn.sin(), turn.sin(), turn.cos()], -1).reshape(n, 2, 2)
    inside = (bent - uniform(-0.2, 0.2, 1, 2)) / size[..., None] @ turned
    ink = ((uniform(0.06, 0.11, 1) - size * _distance(inside, labels)) / 0.03).sigmoid()
    waves = torch.tensor([[a, b] for a in range(5) for b in range(5) if 0 < a * a + b * b <= 20]) * math.pi / 2
    clouds = ((plane[:, None] + 1) * waves).cos().prod(-1) / len(waves) ** 0.5
    behind = clutter * torch.randn(n, len(waves), generator=source) @ clouds.T
    side = torch.where(uniform(0, 1, 1) < 0.5, -1.0, 1.0)
    return (0.5 + behind + side * uniform(0.25, 0.35, 1) * ink).clamp(0, 1).reshape(n, SIZE, SIZE)


def _distance(points: Tensor, labels: Tensor) -> Tensor:
    """Of points ``[n, p, 2]``, each to the nearest stroke of its image's figure ``[n, p]``."""
    most = max(map(len, FIGURES.values()))
    table = torch.tensor([strokes + strokes[:1] * (most - len(strokes)) for strokes in FIGURES.values()])
    start, end = table[labels].float().split(2, -1)
    away, along = points[:, :, None] - start[:, None], (end - start)[:, None]
    share = ((away * along).sum(-1) / along.square().sum(-1)).clamp(0, 1)
    return (away - share[..., None] * along).norm(dim=-1).amin(-1)
