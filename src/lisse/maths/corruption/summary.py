"""How much corruption costs, in one number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Errors = Mapping[str, Sequence[float] | Tensor] | Sequence[Sequence[float]] | Tensor


def corruption_errors(errors: Errors, baseline: Errors | None = None) -> Tensor:
    r"""The error under each corruption ``[k]``, over its severities: float64, in the order of ``errors``.

    ``errors`` is ``[k, severities]`` (usually 5), or a mapping from a corruption's name to its errors, as fractions or
    in per cent. Without a baseline the mean over severities; with one, of the same shape or the same names,
    :math:`\mathrm{CE}_c = \sum_s E_{s,c} / \sum_s E^{\text{base}}_{s,c}` ([hendrycks2019] sec. 4).
    """
    names = list(errors) if isinstance(errors, Mapping) else None
    table = _table("errors", errors, names)
    if baseline is None:
        return table.mean(1)
    if isinstance(baseline, Mapping) != (names is not None):
        raise TypeError(
            "corruption_errors: baseline must be of the kind of errors, got a mapping and an array. "
            "Give both by name, or both as [corruptions, severities]."
        )
    base = _table("baseline", baseline, names)
    if base.shape != table.shape:
        raise ValueError(
            f"corruption_errors: baseline must have the shape of errors, got {tuple(base.shape)} and "
            f"{tuple(table.shape)}. Measure both on the same corruptions and severities."
        )
    totals = base.sum(1)
    if bool((totals == 0).any()):
        raise ValueError(
            "corruption_errors: baseline must make some error under every corruption, got none under one. "
            "A weaker network is the usual baseline."
        )
    return table.sum(1) / totals


def mean_corruption_error(errors: Errors, baseline: Errors | None = None) -> Tensor:
    r"""The mean over corruptions of :func:`corruption_errors`: a single number, float64.

    With a baseline (AlexNet in [hendrycks2019]) it is the mCE, :math:`\frac1k \sum_c \mathrm{CE}_c`, a fraction of the
    baseline's: 1 is as good. Without one it is the mean error, in the unit of ``errors``.
    """
    return corruption_errors(errors, baseline).mean()


def _table(side: str, errors: Any, names: list[str] | None) -> Tensor:
    if names is not None:
        if sorted(errors) != sorted(names):
            odd = ", ".join(sorted(set(errors) ^ set(names)))
            raise ValueError(f"corruption_errors: {side} must hold the corruptions of errors, got a difference: {odd}.")
        rows = [torch.as_tensor(errors[name], dtype=torch.float64).reshape(-1) for name in names]
        if len({len(row) for row in rows}) > 1:
            raise ValueError(
                f"corruption_errors: {side} must have as many severities for every corruption, got "
                f"{', '.join(f'{name} {len(row)}' for name, row in zip(names, rows, strict=True))}."
            )
        table = torch.stack(rows) if rows else torch.zeros(0, 0)
    else:
        table = torch.as_tensor(errors, dtype=torch.float64)
    if table.ndim != 2 or table.numel() == 0:
        raise ValueError(
            f"corruption_errors: {side} must be [corruptions, severities], got shape {tuple(table.shape)}. "
            "Or a mapping from names to five errors."
        )
    if not bool(torch.isfinite(table).all()) or bool((table < 0).any()):
        raise ValueError(f"corruption_errors: {side} must be finite and not negative, got {float(table.min()):g} …")
    return table
