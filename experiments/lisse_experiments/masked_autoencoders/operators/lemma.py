r"""Lemma 6.1 of [cao2022] without a network: does what mask tokens cost fall like 1/n?

Tokens are smooth random functions sampled at n × n patches, 75 % of them replaced by one mask token; the three maps
of a head are random. Everything but the sampling stays the same while n grows, so the power of n with which a residual
changes is the lemma's. Five constructions take the given maps; in a sixth, ``optimised``, affine maps :math:`\hat Q,
\hat K, \hat V` are searched for, for each sample of tokens anew: what is left is an upper bound of the least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import torch
from torch import Tensor

from lisse.maths.given import floating
from lisse.maths.intervals import bootstrap
from lisse.maths.masking import LemmaResiduals, attention_residuals
from lisse.maths.power_law import power_law
from lisse.networks.masked import sincos_positions
from lisse_experiments.form import Claim, Finding

WIDTH = 16
WAVES = 3  # the highest frequency of the tokens, in half waves over the image
TRIVIAL = 1e-6  # residuals, of outputs of size about 1, that are rounding
CONSTRUCTIONS = (*(field.name for field in fields(LemmaResiduals)), "optimised")
STEPS, RATE = 150, 0.03  # of the search for maps


def random_mask(count: int, tokens: int, ratio: float = 0.75, *, generator: torch.Generator | None = None) -> Tensor:
    """``count`` random masks ``[count, tokens]``, True where a token is hidden: round(ratio · tokens) in each."""
    if not 0 < ratio < 1:
        raise ValueError(f"random_mask: ratio must lie in (0, 1), got {ratio}.")
    if count < 1 or tokens < 2:
        raise ValueError(f"random_mask: count must be at least 1 and tokens at least 2, got {count} and {tokens}.")
    hidden = min(max(round(ratio * tokens), 1), tokens - 1)
    order = torch.rand(count, tokens, generator=generator).argsort(-1)
    return torch.zeros(count, tokens, dtype=torch.bool).scatter_(1, order[:, :hidden], True)


def lemma_residuals(
    tokens: Tensor,
    masked: Tensor,
    wq: Tensor,
    wk: Tensor,
    wv: Tensor,
    *,
    positions: Tensor | None = None,
    scale: float | None = None,
) -> LemmaResiduals:
    r"""The residual of (24) in five constructions, for one head on ``tokens`` ``[p, d]``.

    Masked rows of ``tokens`` hold the mask token, as they come; ``positions`` ``[p, d]`` are added to all rows.
    ``wq``, ``wk``, ``wv`` ``[d, e]``: queries are ``tokens @ wq``. ``scale`` is by default :math:`1/\sqrt e`. Whether a
    residual falls like 1/n is seen from several n: :func:`lisse.maths.power_law.power_law` has slope and interval.
    Reference: [cao2022] lemma 6.1.
    """
    where = "lemma_residuals"
    y = floating(where, "tokens", tokens)
    if y.ndim != 2:
        raise ValueError(f"{where}: tokens must be [p, d], got shape {list(y.shape)}.")
    hidden = masked.to(y.device)
    maps = [floating(where, name, w).to(y) for name, w in (("wq", wq), ("wk", wk), ("wv", wv))]
    for name, w in zip(("wq", "wk", "wv"), maps, strict=True):
        if w.ndim != 2 or len(w) != y.shape[1]:
            raise ValueError(f"{where}: {name} must be [{y.shape[1]}, e], got shape {list(w.shape)}.")
    if maps[0].shape != maps[1].shape:
        raise ValueError(
            f"{where}: wq and wk must have the same width, got {maps[0].shape[1]} and {maps[1].shape[1]}. Their dot "
            "products are taken."
        )
    offsets = torch.zeros_like(y) if positions is None else floating(where, "positions", positions).to(y)
    if offsets.shape != y.shape:
        raise ValueError(f"{where}: positions must be {list(y.shape)}, as the tokens are, got {list(offsets.shape)}.")
    factor = maps[0].shape[1] ** -0.5 if scale is None else scale

    def head(rows: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = (rows @ w for w in maps)
        return (factor * q @ k.T).softmax(-1), v

    attention, values = head(y + offsets)
    return attention_residuals(attention, values, hidden, zeroed=head(torch.where(hidden[:, None], 0.0, y) + offsets))


def residuals(sides: Sequence[int], draws: int, *, seed: int, steps: int = STEPS) -> Tensor:
    """Mean residuals over masked queries ``[draws, sides, constructions]``; a draw is maps, functions and masks.

    ``steps`` are those of the search for maps.
    """
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
            positions = sincos_positions(n, WIDTH).double()
            remainders = lemma_residuals(tokens, hidden, *maps, positions=positions)
            for at, name in enumerate(CONSTRUCTIONS[:-1]):
                norms[draw, index, at] = getattr(remainders, name)[hidden].mean()
            norms[draw, index, -1] = optimised_residual(tokens + positions, hidden, maps, steps=steps)
    return norms


def optimised_residual(rows: Tensor, hidden: Tensor, maps: Sequence[Tensor], *, steps: int = STEPS) -> Tensor:
    r"""The mean of (24) over masked queries for affine maps that make it small, begun at the given ones.

    ``rows`` ``[p, d]`` are tokens with their positions. :math:`\hat V` is the best one for :math:`\hat Q, \hat K` by
    least squares, these two go down by Adam, the rate falling to 0. The least mean norm of all steps is returned.
    """
    scale = maps[0].shape[1] ** -0.5
    padded = torch.cat([rows, torch.ones_like(rows[:, :1])], 1)  # affine
    queries, keys = (torch.cat([w, torch.zeros_like(w[:1])]).requires_grad_() for w in maps[:2])
    with torch.no_grad():
        q, k, v = (rows @ w for w in maps)
        target = ((scale * q @ k.T).softmax(-1) @ v)[hidden]
    optimiser = torch.optim.Adam([queries, keys], lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    least = torch.tensor(torch.inf, dtype=rows.dtype)
    for _ in range(steps):
        weights = (scale * (padded[hidden] @ queries) @ (padded[~hidden] @ keys).T).softmax(-1)
        means = weights @ padded[~hidden]
        # The gradient does not see the values' map: at its best it has none.
        values = torch.linalg.lstsq(means.detach(), target, driver="gelsd").solution
        remainder = means @ values - target
        least = torch.minimum(least, remainder.detach().norm(dim=-1).mean())
        optimiser.zero_grad()
        remainder.square().sum(-1).mean().backward()
        optimiser.step()
        schedule.step()
    return least


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
                within=1e-3 if name != "optimised" else 0.2,  # a search carries rounding further
            )
        )
        near.append((float(mean.value), float(mean.low), float(mean.high), name))
    left = bootstrap(norms[:, -1, -1] / norms[:, -1, 0], generator=torch.Generator().manual_seed(seed))
    findings.append(
        Finding(
            "operators/lemma61/left",
            f"Lemma 6.1: residual with maps that were searched for, over that of the given maps, n = {sides[-1]}",
            float(left.value),
            float(left.low),
            float(left.high),
            left.n,
            within=0.5 * float(left.value),
        )
    )
    value, low, high, name = min(near)
    claim = Claim(
        "operators/lemma61/slope",
        "in some construction that is not trivial the residual falls like 1/n (slope under −½)",
        high < -0.5,
        f"the steepest is {name}: {value:.2f} [{low:.2f}, {high:.2f}]",
    )
    return findings, [claim]
