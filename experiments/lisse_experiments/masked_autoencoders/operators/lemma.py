r"""Lemma 6.1 of [cao2022] without a network: does what mask tokens cost fall like 1/n?

Tokens are smooth random functions sampled at n × n patches, 75 % of them replaced by one mask token; the three maps
of a head are random. Everything but the sampling stays the same while n grows, so the power of n with which a residual
changes is the lemma's. The maps :math:`\hat Q, \hat K` are not optimised: a slope near 0 does not refute that some
exist, it says that these constructions are no proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import torch
from torch import Tensor

from lisse.maths.intervals import bootstrap
from lisse.maths.masking import LemmaResiduals, lemma_residuals, random_mask
from lisse.maths.power_law import power_law
from lisse.networks.masked import sincos_positions
from lisse_experiments.form import Claim, Finding

WIDTH = 16
WAVES = 3  # the highest frequency of the tokens, in half waves over the image
TRIVIAL = 1e-6  # residuals, of outputs of size about 1, that are rounding
CONSTRUCTIONS = tuple(field.name for field in fields(LemmaResiduals))


def residuals(sides: Sequence[int], draws: int, *, seed: int) -> Tensor:
    """Mean residuals over masked queries ``[draws, sides, constructions]``; a draw is maps, functions and masks."""
    source = torch.Generator().manual_seed(seed)
    norms = torch.zeros(draws, len(sides), len(CONSTRUCTIONS), dtype=torch.float64)
    for draw in range(draws):
        maps = [torch.randn(WIDTH, WIDTH, generator=source).double() / WIDTH**0.5 for _ in range(3)]
        waves = torch.randn(WAVES, WAVES, WIDTH, generator=source).double()
        token = torch.randn(WIDTH, generator=source).double()
        for index, n in enumerate(sides):
            tokens = _sampled(waves, n)
            hidden = random_mask(1, n * n, generator=source)[0]
            tokens[hidden] = token
            remainders = lemma_residuals(tokens, hidden, *maps, positions=sincos_positions(n, WIDTH).double())
            for at, name in enumerate(CONSTRUCTIONS):
                norms[draw, index, at] = getattr(remainders, name)[hidden].mean()
    return norms


def _sampled(waves: Tensor, n: int) -> Tensor:
    """Cosine series at the middles of n × n patches ``[n², d]``, of variance about 1."""
    line = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    basis = torch.cos(torch.pi * torch.arange(len(waves)) * line[:, None])
    return torch.einsum("ik,jl,kld->ijd", basis, basis, waves).reshape(n * n, -1) / len(waves)


def lemma_outcome(norms: Tensor, sides: Sequence[int], seed: int) -> tuple[list[Finding], list[Claim]]:
    """Slopes in n, draw by draw, with their interval over draws."""
    findings, near = [], []
    x = torch.tensor(sides, dtype=torch.float64)
    for at, name in enumerate(CONSTRUCTIONS):
        values = norms[:, :, at]
        if float(values.min()) < TRIVIAL:  # weights of any sign reach everything: there is no power of rounding
            continue
        slopes = torch.stack([power_law(x, row).slope.value for row in values])
        mean = bootstrap(slopes, generator=torch.Generator().manual_seed(seed))
        findings.append(
            Finding(
                f"operators/lemma61/slope/{name}",
                f"Lemma 6.1: slope of the residual in n, {name.replace('_', ' ')}",
                float(mean.value),
                float(mean.low),
                float(mean.high),
                mean.n,
                theirs=-1.0,
                source="Lemma 6.1",
                within=1e-3,
            )
        )
        near.append((float(mean.value), float(mean.low), float(mean.high), name))
    value, low, high, name = min(near)
    claim = Claim(
        "operators/lemma61/slope",
        "in some construction that is not trivial the residual falls like 1/n (slope under −½)",
        high < -0.5,
        f"the steepest is {name}: {value:.2f} [{low:.2f}, {high:.2f}]",
    )
    return findings, [claim]
