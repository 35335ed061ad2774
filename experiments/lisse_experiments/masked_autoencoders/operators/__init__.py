r"""What [cao2022] says of operators, without a network: Theorems 5.1 and 5.2, Proposition 3.1, Lemma 6.1.

Theorem 5.1: the ratio n·ρ against the number of patches per side, for a smooth and a stepped input, with the kernel's
width fixed (γ = 20) and with it shrinking (γ = n²). Theorem 5.2: the skip connection against the solve. Proposition
3.1: images from a cross of patch-rows and patch-columns, error against rank and mask ratio, on photographs (``images``
in ``LISSE_DATA``) at paper scale and on generated pictures at smoke scale. Lemma 6.1: what mask tokens cost against n.

Hardware: any CPU. Time: half a minute (smoke), a few minutes (paper).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lisse.data import places
from lisse.data.images import IMAGE_SUFFIXES, read_image
from lisse.maths.integral import IntegralOperator
from lisse.maths.intervals import Interval, bootstrap
from lisse.maths.power_law import power_law
from lisse.maths.variation import Cross, bv_seminorm, cross_approximation, patch_cross, propagated
from lisse.maths.variation.cross import CrossMethod
from lisse_experiments.form import Claim, Finding, Outcome, Task, above
from lisse_experiments.masked_autoencoders.operators import figures
from lisse_experiments.masked_autoencoders.operators.lemma import STEPS, lemma_outcome, residuals
from lisse_experiments.masked_autoencoders.operators.skip import skip_against_solve, skip_outcome

#: The width of the kernel where it does not shrink with n.
FIXED = 20.0
INPUTS = ("smooth", "step")
KERNELS = ("fixed", "shrinking")
#: Patch-rows and patch-columns kept of 14, and the ranks of the other crosses (those below the side of a patch).
KEPT = (1, 2, 4, 7, 10)
RANKS = (1, 2, 4, 8, 15)
METHODS: tuple[CrossMethod, ...] = ("svd", "aca", "maxvol")
#: Singular values of the meeting patches below this share of the largest are left out.
TRUNCATION = 0.05
PATCHES = 14


@dataclass(frozen=True)
class Ratio:
    """n·ρ of one input under one kernel, over the patches per side, in L² and in the supremum norm."""

    sides: tuple[int, ...]
    mean: tuple[float, ...]
    supremum: tuple[float, ...]


@dataclass(frozen=True)
class Crosses:
    """Errors relative to the image less its mean: 1 is what its mean grey value alone would leave.

    ``by_rank`` ``[images, methods, ranks]``, ``by_mask`` ``[images, kept]`` with the SVD of the same rank beside it,
    ``ranks_used`` likewise; ``bv_*`` the same in the BV seminorm; ``pictures`` of the first image for the figure.
    ``constants`` ``[images, methods, ranks]`` and ``constants_by_mask`` ``[images, kept]`` are the least C of (2): the
    error in BV over the ε that the truncated SVD of the same rank leaves in BV.
    """

    names: tuple[str, ...]
    ranks: tuple[int, ...]
    by_rank: Tensor
    bv_by_rank: Tensor
    by_mask: Tensor
    bv_by_mask: Tensor
    optimum: Tensor
    ranks_used: Tensor
    masks: tuple[float, ...]
    pictures: tuple[tuple[str, Tensor], ...]
    constants: Tensor
    constants_by_mask: Tensor


def operators(task: Task) -> Outcome:
    """All four, with their figures in ``task.out``; every key begins with ``operators/``."""
    small = task.scale == "smoke"
    sides = (8, 12, 16, 24, 32) if small else (8, 12, 16, 24, 32, 48, 64)
    task.tell("Theorem 5.1", 0, 4, "parts")
    ratios = {(v, k): stability_ratio(v, k, sides) for v in INPUTS for k in KERNELS}
    task.tell("Theorem 5.2", 1, 4, "parts")
    images = _generated(task.seed) if small else photographs(size=224)
    skip = skip_against_solve(next(iter(images.values())), grid=8 if small else PATCHES, seed=task.seed)
    task.tell("Proposition 3.1", 2, 4, "parts")
    crosses = cross_errors(images)
    grids, draws = ((8, 12, 16), 8) if small else ((8, 12, 16, 24), 16)
    task.tell("Lemma 6.1", 3, 4, "parts")
    lemma = residuals(grids, draws, seed=task.seed, steps=20 if small else STEPS)
    task.tell("Lemma 6.1", 4, 4, "parts")
    task.out.mkdir(parents=True, exist_ok=True)
    files = (
        figures.ratio_figure(ratios, task.out / "theorem51.png"),
        figures.skip_figure(skip, task.out / "tikhonov.png"),
        figures.cross_figure(crosses, METHODS, crosses.ranks, task.out / "proposition31.png"),
        figures.picture_figure(crosses.pictures, task.out / "proposition31-pictures.png"),
    )
    findings, claims = list[Finding](), list[Claim]()
    lemma_part = lemma_outcome(lemma, grids, task.seed)
    for part in (_of_ratios(ratios), skip_outcome(skip), _of_crosses(crosses, task.seed), lemma_part):
        findings += part[0]
        claims += part[1]
    notes = ("Proposition 3.1 ran on generated pictures, not photographs.",) if small else ()
    return Outcome(tuple(findings), tuple(claims), files, notes)


# --- Theorem 5.1 ----------------------------------------------------------------------------------------------------


def stability_ratio(input_: str, kernel: str, sides: Sequence[int]) -> Ratio:
    """n·ρ of ``smooth`` or ``step`` values at n × n positions under the ``fixed`` or the ``shrinking`` RBF of them."""
    mean, supremum = [], []
    for n in sides:
        line = (torch.arange(n, dtype=torch.float64) + 0.5) / n
        position = torch.stack(torch.meshgrid(line, line, indexing="ij"), -1).reshape(-1, 2)
        if input_ == "smooth":
            values = torch.sin(2 * math.pi * position[:, :1]) * torch.cos(math.pi * position[:, 1:]) + 0.5
        else:
            values = (position[:, :1] > 0.5).double()
        gamma = FIXED if kernel == "fixed" else float(n * n)
        with torch.no_grad():
            after = IntegralOperator(position, torch.zeros_like(position), kind="rbf_w", gamma=gamma)(values)
        moved = propagated(values, after)
        mean.append(float(moved.scaled))
        supremum.append(float(moved.scaled_supremum))
    return Ratio(tuple(sides), tuple(mean), tuple(supremum))


def _of_ratios(ratios: dict[tuple[str, str], Ratio]) -> tuple[list[Finding], list[Claim]]:
    findings, claims, slopes = [], [], {}
    for (input_, kernel), ratio in ratios.items():
        for name, values in (("L2", ratio.mean), ("sup", ratio.supremum)):
            # The last sides only: the law is of large n.
            law = power_law(torch.tensor(ratio.sides[-4:], dtype=torch.float64), torch.tensor(values[-4:]))
            slope = slopes[input_, kernel, name] = float(law.slope.value)
            findings.append(
                Finding(
                    f"operators/theorem51/{input_}/{kernel}/{name}",
                    f"Thm 5.1: slope of n·ρ in n, {input_} input, γ {_width(kernel)}, {name}",
                    slope,
                    float(law.slope.low),
                    float(law.slope.high),
                    law.n,
                    theirs=0.0,
                    source="Thm 5.1: bounded",
                    within=1e-3,
                )
            )
    growing = min(slopes[v, "fixed", "L2"] for v in INPUTS)
    claims.append(
        Claim(
            "operators/theorem51/fixed",
            "n·ρ is bounded in n for a fixed kernel",
            growing < 0.1,
            f"n·ρ grows like n^{growing:.2f} or faster",
        )
    )
    smooth = slopes["smooth", "shrinking", "L2"]
    claims.append(
        Claim(
            "operators/theorem51/smooth",
            "n·ρ is bounded for smooth inputs once the kernel shrinks with the patches",
            smooth < 0.2,
            f"n·ρ goes like n^{smooth:.2f} in L²",
            theirs=False,
        )
    )
    step = slopes["step", "shrinking", "L2"], slopes["step", "shrinking", "sup"]
    claims.append(
        Claim(
            "operators/theorem51/step",
            "n·ρ is bounded for inputs of bounded variation with a jump, once the kernel shrinks",
            max(step) < 0.2,
            f"grows like n^{step[0]:.2f} in L², n^{step[1]:.2f} in the supremum",
        )
    )
    return findings, claims


def _width(kernel: str) -> str:
    return f"= {FIXED:g}" if kernel == "fixed" else "= n²"


# --- Proposition 3.1 ------------------------------------------------------------------------------------------------


def photographs(*, size: int) -> dict[str, Tensor]:
    """The photographs of the folder ``images`` in the data's places, grey squares ``[size, size]`` in [0, 1]."""
    folder = next(iter(places.candidates(["images"])), None)
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES) if folder else []
    if not files:
        raise ValueError("operators: photographs must lie in a folder images of LISSE_DATA, got none. See lisse data.")
    return {path.stem: _grey(path, size) for path in files}


def _grey(path: Path, size: int) -> Tensor:
    return torch.from_numpy(read_image(path, size=size, grey=True)[0].copy()).double() / 255


def _generated(seed: int, *, size: int = 112, count: int = 3) -> dict[str, Tensor]:
    """Pictures with the 1/f spectrum of photographs, and a few edges."""
    source = torch.Generator().manual_seed(seed)
    frequency = torch.fft.fftfreq(size, 1 / size).double()
    radius = (frequency[:, None].square() + frequency[: size // 2 + 1].square()).sqrt().clamp_min(1)
    pictures = {}
    for k in range(count):
        noise = torch.randn(size, size, generator=source, dtype=torch.float64)
        u = torch.fft.irfft2(torch.fft.rfft2(noise) / radius**1.5, s=(size, size))
        u = (u - u.min()) / (u.max() - u.min())
        u[size // 4 : size // 2, size // 3 : size // 2 + 5 * k] += 0.5
        pictures[f"generated-{k}"] = u / u.max()
    return pictures


def cross_errors(images: dict[str, Tensor]) -> Crosses:
    """Errors of crosses of each image against rank, and against the share of patches that are left out."""
    tables: list[list[Tensor]] = []
    pictures: list[tuple[str, Tensor]] = []
    masks: tuple[float, ...] = ()
    side = next(iter(images.values())).shape[-1] // PATCHES
    ranks = tuple(rank for rank in RANKS if rank < side)
    for name, u in images.items():
        norm, rough = torch.linalg.matrix_norm(u - u.mean()), cross_approximation(u, 1, method="svd")
        variation = bv_seminorm(u)
        crosses = [[cross_approximation(u, r, method=m) for r in ranks] for m in METHODS]
        spread = [_spread_cross(u, k) for k in KEPT]
        masks = tuple(cross.mask_ratio for cross in spread)
        tables.append(
            [
                torch.tensor([[float(c.error / norm) for c in row] for row in crosses]),
                torch.tensor([[float(c.bv_error / variation) for c in row] for row in crosses]),
                torch.tensor([float(c.error / norm) for c in spread]),
                torch.tensor([float(c.bv_error / variation) for c in spread]),
                torch.tensor([float(c.optimum / norm) for c in spread]),
                torch.tensor([float(c.rank) for c in spread]),
                torch.tensor([[float(c.bv_error / c.bv_optimum) for c in row] for row in crosses]),
                torch.tensor([float(c.bv_error / c.bv_optimum) for c in spread]),
            ]
        )
        if not pictures:
            pictures = [(name, u), ("svd, rank 1", rough.reconstruction)]
            last = [row[-1] for row in crosses]
            pictures += [(f"{m}, rank {best.rank}", best.reconstruction) for m, best in zip(METHODS, last, strict=True)]
            pictures += [
                (f"{cross.mask_ratio:.0%} masked, rank {cross.rank}", cross.reconstruction)
                for cross in (spread[0], spread[2], spread[3])
            ]
    by_rank, bv_by_rank, by_mask, bv_by_mask, optimum, used, constants, by_mask_constants = (
        torch.stack(part) for part in zip(*tables, strict=True)
    )
    return Crosses(
        tuple(images), ranks, by_rank, bv_by_rank, by_mask, bv_by_mask, optimum, used, masks, tuple(pictures),
        constants, by_mask_constants,
    )  # fmt: skip


def _spread_cross(u: Tensor, count: int) -> Cross:
    rows = [int((k + 0.5) * PATCHES / count) for k in range(count)]
    return patch_cross(u, PATCHES, rows=rows, columns=rows, tol=TRUNCATION)


def _of_crosses(crosses: Crosses, seed: int) -> tuple[list[Finding], list[Claim]]:
    def interval(values: Tensor) -> Interval:
        return bootstrap(values, generator=torch.Generator().manual_seed(seed))

    findings = []
    ranks = interval(crosses.by_rank)
    for m, method in enumerate(METHODS):
        for r in range(len(crosses.ranks)):
            says = f"{method}, rank {crosses.ranks[r]}: error relative to the image less its mean"
            findings.append(_finding(f"rank/{method}/{crosses.ranks[r]}", says, ranks, (m, r)))
    shares, best = interval(crosses.by_mask), interval(crosses.optimum)
    for k, mask in enumerate(crosses.masks):
        says = f"patch cross, {mask:.0%} of patches masked: relative error"
        findings.append(_finding(f"mask/{KEPT[k]}", says, shares, (k,)))
        says = f"SVD of the same rank as at {mask:.0%}: relative error"
        findings.append(_finding(f"mask/{KEPT[k]}/svd", says, best, (k,)))
    rough, flat = interval(crosses.bv_by_mask), interval(crosses.bv_by_rank)
    says = f"patch cross, {crosses.masks[0]:.0%} of patches masked: error in BV, relative to the picture's"
    findings.append(_finding("bv/mask/1", says, rough, (0,)))
    says = f"svd, rank {crosses.ranks[-1]}: error in BV, relative to the picture's"
    findings.append(_finding("bv/rank/svd", says, flat, (0, -1)))
    ratios, kept_ratios = interval(crosses.constants), interval(crosses.constants_by_mask)
    for m, method in enumerate(METHODS):
        for r in range(len(crosses.ranks) if method != "svd" else 0):
            says = f"constant C of (2), {method}, rank {crosses.ranks[r]}"
            findings.append(_finding(f"constant/{method}/{crosses.ranks[r]}", says, ratios, (m, r)))
    for k, mask in enumerate(crosses.masks):
        says = f"constant C of (2), patch cross, {mask:.0%} of patches masked"
        findings.append(_finding(f"constant/mask/{KEPT[k]}", says, kept_ratios, (k,)))
    most, least = float(shares.value[0]), float(crosses.by_mask[:, 0].min())
    lowest = float(ranks.value[0, -1])
    claims = [
        Claim(
            "operators/proposition31/recovery",
            f"{1 - crosses.masks[0]:.0%} of the patches of a picture, as a cross, give it back to 10 %",
            most < 0.1,
            f"error {most:.2f} of the picture less its mean, {least:.2f} at best, over {len(crosses.names)} pictures",
            theirs=False,
        ),
        Claim(
            "operators/proposition31/low-rank",
            "pictures have a rank below the side of a patch, to 10 %",
            lowest < 0.1,
            f"the best approximation of rank {crosses.ranks[-1]} leaves {lowest:.0%}",
            theirs=False,
        ),
        Claim(
            "operators/proposition31/constant",
            "(2): the error of the patch cross in BV is bounded by that of the SVD of its rank, with a C that does not "
            "depend on the share of patches (within a factor of 2)",
            _alike(kept_ratios),
            f"C from {float(kept_ratios.value.min()):.2f} to {float(kept_ratios.value.max()):.2f}",
            theirs=False,
        ),
    ]
    return findings, claims


def _alike(constants: Interval) -> bool | None:
    """Whether the largest is at most twice the smallest, by their intervals."""
    top, bottom = int(constants.value.argmax()), int(constants.value.argmin())
    twice = (2 * float(constants.low[bottom]), 2 * float(constants.high[bottom]))
    return above(twice, (float(constants.low[top]), float(constants.high[top])))


def _finding(key: str, says: str, interval: Interval, index: tuple[int, ...]) -> Finding:
    value, low, high = (float(end[index]) for end in (interval.value, interval.low, interval.high))
    return Finding(f"operators/proposition31/{key}", f"Prop. 3.1: {says}", value, low, high, interval.n, within=1e-3)
