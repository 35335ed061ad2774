"""StackedIsometric: locally isometric stages one behind the other, each with a partition of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from lisse.networks.isometric.loss import LossScaling, PairMetric, isometric_loss
from lisse.networks.isometric.network import IsometricLoss, LocallyIsometric
from lisse.networks.zoo import seeded


class StackedIsometric(nn.Module):
    r"""Stages of :class:`LocallyIsometric` in a row, each trained on its own labels ([beshkov2022] §3.4).

    Stage k takes the representation of stage k - 1 and keeps the distances of *its own input* within its own classes;
    together they cut (or glue) the data at finer and finer resolution. Calling it gives the last stage's logits,
    :meth:`logits` those of all stages, :meth:`losses` one loss per stage.

    ``grad_depth`` says how far back the loss of a stage reaches: 0 stops at its own input (the default: gradients do
    not interfere), 1 also moves the stage before it (the paper's words), ``None`` all of them. The values do not
    depend on it, the cost does: each stage is computed ``grad_depth`` times more. After ``eval()`` nothing stops,
    so that attacks and Jacobians see the whole function. A distance of a stage's input is a constant where the gradient
    stops there, and is trained too where it goes on, unless ``losses`` is told otherwise.

    ``classifier="separate"`` uses the stages' own heads; ``"shared"`` one linear layer on every representation, with
    as many classes as the finest partition, as in the authors' program: all stages must have one width.
    """

    def __init__(
        self,
        stages: Sequence[LocallyIsometric],
        *,
        grad_depth: int | None = 0,
        classifier: Literal["separate", "shared"] = "separate",
        seed: int = 0,
    ) -> None:
        super().__init__()
        stages = list(stages)
        if not stages or not all(isinstance(stage, LocallyIsometric) for stage in stages):
            kinds = ", ".join(type(stage).__name__ for stage in stages) or "none"
            raise TypeError(
                f"StackedIsometric: stages must be LocallyIsometric networks, got {kinds}. Give at least one."
            )
        for index, (first, second) in enumerate(itertools.pairwise(stages)):
            if first.hidden[-1] != second.in_dim:
                raise ValueError(
                    f"StackedIsometric: stage {index + 1} must take the {first.hidden[-1]} numbers of stage {index}, "
                    f"got in_dim={second.in_dim}. Make it LocallyIsometric({first.hidden[-1]}, …)."
                )
        depth = isinstance(grad_depth, int) and not isinstance(grad_depth, bool) and grad_depth >= 0
        if grad_depth is not None and not depth:
            raise ValueError(f"StackedIsometric: grad_depth must be 0, 1, … or None (all), got {grad_depth!r}.")
        if classifier not in ("separate", "shared"):
            raise ValueError(f"StackedIsometric: classifier must be 'separate' or 'shared', got {classifier!r}.")
        self.stages = nn.ModuleList(stages)
        self.grad_depth = grad_depth
        self.shared: nn.Linear | None = None
        if classifier == "shared":
            widths = sorted({stage.hidden[-1] for stage in stages})
            if len(widths) > 1:
                raise ValueError(
                    f"StackedIsometric: classifier 'shared' needs stages of one width, got {widths}. Use 'separate'."
                )
            with seeded(seed):
                self.shared = nn.Linear(widths[0], max(stage.classes for stage in stages))
            for stage in stages:
                stage.head.requires_grad_(False)  # not used: no optimiser should decay it, no test miss its gradient

    def forward(self, x: Tensor) -> Tensor:
        """``x`` [n, …] to the last stage's logits."""
        *_, (_, hidden) = self._chain(x)
        return self._classified(len(self.stages) - 1, hidden)

    def representations(self, x: Tensor) -> tuple[Tensor, ...]:
        """The representation of every stage, each with the gradient that ``grad_depth`` leaves it."""
        return tuple(hidden for _, hidden in self._chain(x))

    def logits(self, x: Tensor) -> tuple[Tensor, ...]:
        """The logits of every stage, likewise."""
        return tuple(self._classified(k, hidden) for k, hidden in enumerate(self.representations(x)))

    def losses(
        self,
        x: Tensor,
        targets: Sequence[Tensor],
        *,
        alpha: float = 1.0,
        beta: float = 1.0,
        metric: PairMetric = "euclidean",
        scaling: LossScaling = "paper",
        fixed_input: bool | None = None,
        distances: Tensor | None = None,
    ) -> tuple[IsometricLoss, ...]:
        """One loss per stage, with its own ``targets`` ``[n]``; the sum of their totals trains all stages at once.

        Distances are kept within the classes of each stage. ``fixed_input`` (default: where the gradient stops there)
        takes a stage's input distances as constants. ``distances`` ``[n, n]``: those of ``x``, for the first stage.
        """
        if len(targets) != len(self.stages):
            raise ValueError(
                f"StackedIsometric: targets must hold labels for each of {len(self.stages)} stages, got {len(targets)}."
                " Coarser labels come first: [y // 4, y // 2, y]."
            )
        losses = []
        for k, (labels, (before, hidden)) in enumerate(zip(targets, self._chain(x), strict=True)):
            logits = self._classified(k, hidden)
            entropy = functional.cross_entropy(logits, labels)
            if beta == 0:
                losses.append(IsometricLoss(alpha * entropy, entropy, torch.zeros_like(entropy)))
                continue
            lengths = distances if k == 0 else None
            isometric = isometric_loss(
                before if lengths is None else lengths,
                hidden if self._at(k).on == "hidden" else logits,
                labels,
                metric=metric if lengths is None else "precomputed",
                output_metric=None if lengths is None else metric,
                scaling=scaling,
                fixed_input=not before.requires_grad if fixed_input is None else fixed_input,
            )
            losses.append(IsometricLoss(alpha * entropy + beta * isometric, entropy, isometric))
        return tuple(losses)

    def _at(self, k: int) -> LocallyIsometric:
        stage = self.stages[k]
        assert isinstance(stage, LocallyIsometric)
        return stage

    def _chain(self, x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Input and representation of each stage, with gradient through the last ``grad_depth`` stages alone."""
        stops = self.training and self.grad_depth is not None
        starts = [x]  # the inputs of the stages; behind the first, as values where the gradient stops
        for k in range(len(self.stages)):
            first = max(0, k - (self.grad_depth or 0)) if stops else k
            before = starts[first]
            for index in range(first, k):
                before = self._at(index).representation(before)
            hidden = self._at(k).representation(before)
            starts.append(hidden.detach() if stops else hidden)
            yield before, hidden

    def _classified(self, k: int, hidden: Tensor) -> Tensor:
        logits: Tensor = (self._at(k).head if self.shared is None else self.shared)(hidden)
        return logits
