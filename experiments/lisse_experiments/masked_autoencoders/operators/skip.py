"""Theorem 5.2 of [cao2022] without a network: Tikhonov's minimiser, and what a skip connection gives."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lisse.maths.integral import attention_kernel, fredholm_second, skip_connection, tikhonov
from lisse.maths.variation import patchify
from lisse_experiments.form import Claim, Finding
from lisse_experiments.masked_autoencoders.spectra import mercer, spectral_decay

BETAS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


@dataclass(frozen=True)
class Skip:
    """Over β: what is left of (23), relative to z, by the solve, by the unweighted minimiser and by the skip
    connection.

    ``skip`` is that of the best multiple of the skip connection's output, so that only its direction counts.
    ``amplified`` and ``skip_amplified``: how much larger a relative error of z comes out, in the solve and in the skip.
    ``condition``: of the equation of the first kind, and of the second per β.
    """

    betas: tuple[float, ...]
    solve: tuple[float, ...]
    unweighted: tuple[float, ...]
    skip: tuple[float, ...]
    amplified: tuple[float, ...]
    skip_amplified: tuple[float, ...]
    condition: tuple[float, ...]
    first_condition: float
    decay: float


def skip_against_solve(image: Tensor, *, grid: int, seed: int = 0) -> Skip:
    """The patches of a picture as tokens under their own RBF kernel: (23) solved, and what a skip connection gives."""
    side = image.shape[-1] // grid * grid
    tokens = patchify(image[:side, :side], grid)
    tokens = (tokens - tokens.mean(0)) / tokens.std()
    gamma = 1 / float(2 * (tokens.square().sum(1).mean()))
    kernel = attention_kernel(tokens, torch.zeros_like(tokens), kind="rbf_w", gamma=gamma)
    z, norm = tokens, torch.linalg.matrix_norm
    noise = torch.randn(z.shape, generator=torch.Generator().manual_seed(seed), dtype=z.dtype)
    noise = 1e-3 * noise * norm(z) / norm(noise)
    rows: list[tuple[float, ...]] = []
    for beta in BETAS:
        solved = tikhonov(kernel, z, beta, weighting="alpha").solution
        moved = tikhonov(kernel, z + noise, beta, weighting="alpha").solution
        unweighted = tikhonov(kernel, z, beta, weighting="none").solution
        output = skip_connection(kernel, z, beta)
        image_ = skip_connection(kernel, output, beta)
        best = (image_ * z).sum() / image_.square().sum()
        rows.append(
            (
                float(norm(skip_connection(kernel, solved, beta) - z) / norm(z)),
                float(norm(skip_connection(kernel, unweighted, beta) - z) / norm(z)),
                float(norm(best * image_ - z) / norm(z)),
                float(norm(moved - solved) / norm(solved) / 1e-3),
                float(norm(skip_connection(kernel, noise, beta)) / norm(output) / 1e-3),
                float(fredholm_second(kernel, z, beta).condition),
            )
        )
    solve, plain, skipped, amplified, skip_amplified, condition = zip(*rows, strict=True)
    # Two patches that are the same make it singular; the number is then rounding, and is shown as its limit.
    first = min(float(torch.linalg.cond(kernel.matrix)), 1 / torch.finfo(z.dtype).eps)
    decay = spectral_decay(mercer(kernel).values).power
    return Skip(BETAS, solve, plain, skipped, amplified, skip_amplified, condition, first, decay)


def skip_outcome(skip: Skip) -> tuple[list[Finding], list[Claim]]:
    """Findings and claims."""
    at = skip.betas.index(1.0)
    numbers = [
        ("solve", "what the solve leaves of (23), β = 1", skip.solve[at], 1e-9),
        ("unweighted", "what the minimiser of (22), unweighted, leaves of (23), β = 1", skip.unweighted[at], 1e-3),
        ("skip", "what the skip connection's output leaves of (23), best multiple, β = 1", skip.skip[at], 1e-3),
        ("skip-small", "the same at β = 0.1", skip.skip[skip.betas.index(0.1)], 1e-3),
        ("condition", "condition number of (23), β = 0.1", skip.condition[skip.betas.index(0.1)], None),
        ("first", "condition number of the equation of the first kind (20)", skip.first_condition, None),
    ]
    findings = [Finding(f"operators/tikhonov/{key}", f"Thm 5.2: {says}", v, within=w) for key, says, v, w in numbers]
    weighted = max(skip.solve) < 1e-8
    claims = [
        Claim(
            "operators/tikhonov/weighted",
            "(23) is the equation of the minimiser once the data term is weighted by α",
            weighted,
            f"at most {max(skip.solve):.1e} of z is left",
            theirs=False,
        ),
        Claim(
            "operators/tikhonov/printed",
            "(23) is the equation of the minimiser of (22) as printed",
            max(skip.unweighted) < 1e-8,
            f"{min(skip.unweighted):.2g} … {max(skip.unweighted):.2g} of z is left",
        ),
        Claim(
            "operators/tikhonov/skip",
            "a skip connection solves the regularised equation",
            skip.skip[at] < 0.1,
            f"the best multiple of its output leaves {skip.skip[at]:.0%} of z at β = 1: it applies βI + A, it does not "
            "invert it",
        ),
        Claim(
            "operators/tikhonov/stable",
            "the skip term makes the equation well-posed",
            all(c <= (b + 1) / b * 1.5 for b, c in zip(skip.betas, skip.condition, strict=True)),
            f"condition {skip.condition[at]:.2g} at β = 1, {skip.first_condition:.1e} without it",
        ),
    ]
    return findings, claims
