"""Locally isometric networks: classifiers that keep distances within their classes, stacks of them, their training."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from lisse.maths.isometry import euclidean
from lisse.networks.isometric.loss import Groups, LossScaling, PairMetric, isometric_loss
from lisse.networks.zoo import seeded
from lisse.networks.zoo.fully_connected import FullyConnected

Activation = Literal["tanh", "relu"]
Start = Literal["default", "orthogonal"]
_Layer = Literal["hidden", "logits"]


@dataclass(frozen=True)
class IsometricLoss:
    r""":math:`\text{total} = \alpha L_{CSE} + \beta L_{ISO}` ([beshkov2022] eq. 3) with its two parts."""

    total: Tensor
    cross_entropy: Tensor
    isometric: Tensor


class LocallyIsometric(FullyConnected):
    r"""A locally isometric layer (LIL): linear maps with tanh, then a linear classifier ([beshkov2022] §2.2).

    ``in_dim`` numbers in, one hidden layer per entry of ``hidden``, ``classes`` logits out: rings and torus have
    [D, 20, 20, 20, 20, C], MNIST four layers of 100. Calling it gives logits; :meth:`representation` is the last hidden
    layer :math:`\Phi`, and :meth:`loss` is :math:`\alpha L_{CSE} + \beta L_{ISO}`. The isometric loss is taken at
    ``on``: the last hidden layer, or the ``logits`` (the paper writes Φ for both). Layers are named as in
    ``zoo:isometry``, so that weights fit both.

    Distances behind n tanh units are at most :math:`2\sqrt n` (:attr:`reach`): data with larger ones cannot be kept
    isometric, and the first loss warns of it; with ``linear_end`` the last hidden layer has no tanh and no such end.
    ``start="orthogonal"`` makes the maps between hidden layers orthogonal
    at first, as the authors' program does. ``seed`` is that of the first weights; global random state is left alone.
    """

    def __init__(
        self,
        in_dim: int,
        hidden: Sequence[int] = (20,) * 4,
        classes: int | None = None,
        *,
        activation: Activation = "tanh",
        start: Start = "default",
        on: _Layer = "hidden",
        linear_end: bool = False,
        seed: int = 0,
    ) -> None:
        widths = (hidden,) if isinstance(hidden, int) else tuple(hidden)
        if classes is None:
            raise TypeError(
                "LocallyIsometric: classes must be given, got none. LocallyIsometric(3, classes=2) has 4 layers of 20."
            )
        if not widths:
            raise ValueError(
                "LocallyIsometric: hidden must hold at least one width, got none. The paper's is (20,) * 4."
            )
        for name, size in (("in_dim", in_dim), *(("hidden", width) for width in widths), ("classes", classes)):
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(f"LocallyIsometric: {name} must be whole and at least 1, got {size!r}.")
        for name, value, kinds in (("activation", activation, Activation), ("start", start, Start), ("on", on, _Layer)):
            if value not in get_args(kinds):
                words = " or ".join(repr(kind) for kind in get_args(kinds))
                raise ValueError(f"LocallyIsometric: {name} must be {words}, got {value!r}.")
        with seeded(seed):
            super().__init__(in_dim, widths, classes, activation={"tanh": nn.Tanh, "relu": nn.ReLU}[activation])
            if start == "orthogonal":
                for block in list(self.blocks)[1:]:
                    nn.init.orthogonal_(block[0].weight)  # type: ignore[index]
            if linear_end:
                self.blocks[-1] = nn.Sequential(*list(self.blocks[-1].children())[:1])
        self.in_dim, self.hidden, self.classes = in_dim, widths, classes
        self.activation, self.on, self.linear_end = activation, on, linear_end
        self._looked = False

    @property
    def reach(self) -> float:
        """The largest distance that the representation can have: 2√n for n tanh units, else infinity."""
        bounded = self.activation == "tanh" and self.on == "hidden" and not self.linear_end
        return 2 * self.hidden[-1] ** 0.5 if bounded else torch.inf

    def representation(self, x: Tensor) -> Tensor:
        """The last hidden layer ``[n, hidden[-1]]``."""
        hidden: Tensor = self.blocks(self.flatten(x))
        return hidden

    def loss(
        self,
        x: Tensor,
        targets: Tensor,
        *,
        groups: Groups | None = None,
        all_pairs: bool = False,
        alpha: float = 1.0,
        beta: float = 1.0,
        metric: PairMetric = "euclidean",
        scaling: LossScaling = "paper",
        fixed_input: bool = True,
        distances: Tensor | None = None,
    ) -> IsometricLoss:
        r"""Mean cross-entropy with ``targets`` and the isometric loss from ``x`` to the representation.

        Distances are kept within ``groups`` (default: the classes of ``targets``), or with ``all_pairs`` between all of
        them: global isometry. ``beta`` 0 is the plain classifier, and costs no distances. ``distances`` ``[n, n]``:
        those of x, where they are known. The other options are those of :func:`isometric_loss`.
        """
        hidden = self.representation(x)
        logits: Tensor = self.head(hidden)
        if beta and not self._looked:
            self._looked = True
            self._look(x)
        return _both_losses(
            x, hidden if self.on == "hidden" else logits, logits, targets,
            None if all_pairs else targets if groups is None else groups, alpha, beta, distances, metric,
            scaling=scaling, fixed_input=fixed_input,
        )  # fmt: skip

    def _look(self, x: Tensor) -> None:
        """Warn where the data are larger than tanh can represent."""
        points = x.detach().flatten(1)
        # Within a factor of two of the largest distance, without all pairs.
        far = float(torch.linalg.vector_norm(points - points[:1], dim=1).max())
        if far > self.reach:
            warnings.warn(
                f"LocallyIsometric: the data have distances of {far:.3g} and more, and {self.hidden[-1]} tanh units "
                f"reach {self.reach:.3g} at most. Scale the data down, or take more units.",
                stacklevel=3,
            )


def _both_losses(
    x: Tensor, z: Tensor, logits: Tensor, targets: Tensor, groups: Groups | None, alpha: float, beta: float,
    distances: Tensor | None, metric: PairMetric, **options: Any,
) -> IsometricLoss:  # fmt: skip
    """Cross-entropy of the logits, and the isometric loss from x (or its ``distances``) to z."""
    entropy = functional.cross_entropy(logits, targets)
    if beta == 0:
        return IsometricLoss(alpha * entropy, entropy, torch.zeros_like(entropy))
    if distances is None:
        isometric = isometric_loss(x, z, groups, metric=metric, **options)
    else:
        isometric = isometric_loss(distances, z, groups, metric="precomputed", output_metric=metric, **options)
    return IsometricLoss(alpha * entropy + beta * isometric, entropy, isometric)


def fit(
    network: LocallyIsometric | StackedIsometric,
    x: Tensor,
    targets: Tensor | Sequence[Tensor],
    *,
    epochs: int,
    alpha: float = 1.0,
    beta: float = 1.0,
    rate: float = 1e-3,
    all_pairs: bool = False,
    watch: Callable[[int, Sequence[float]], None] | None = None,
) -> list[float]:
    r"""Train with Adam on :math:`\alpha L_{CSE} + \beta L_{ISO}`, one batch of all points; the losses of every epoch.

    The recipe of [beshkov2022] §2.2 for rings and torus (10,000 epochs). A stack is trained on the sum of its stages'
    losses, with one tensor of ``targets`` per stage. ``all_pairs``: global isometry (a single network only). ``watch``
    is called after every epoch with its number (from 1) and the losses so far. A loss that is not finite ends it: the
    list is then shorter than ``epochs``, its last entry not finite, and the weights are those before that step.
    """
    if epochs < 0:
        raise ValueError(f"fit: epochs must be at least 0, got {epochs}.")
    if all_pairs and isinstance(network, StackedIsometric):
        raise ValueError("fit: all_pairs must be false for a stack: its stages have partitions of their own.")
    labels = [targets] if isinstance(targets, Tensor) else list(targets)
    weights = [p for p in network.parameters() if p.requires_grad]
    optimiser = torch.optim.Adam(weights, lr=rate, fused=True)  # small weights: most of the time is calls
    # The input does not move: its distances are made once.
    distances = euclidean(x.detach()) if beta else None
    network.train()
    losses: list[float] = []
    for epoch in range(1, epochs + 1):
        if isinstance(network, StackedIsometric):
            stages = network.losses(x, labels, alpha=alpha, beta=beta, distances=distances)
            total = torch.stack([loss.total for loss in stages]).sum()
        else:
            total = network.loss(x, labels[0], alpha=alpha, beta=beta, all_pairs=all_pairs, distances=distances).total
        losses.append(float(total.detach()))
        if not torch.isfinite(total.detach()):
            break
        optimiser.zero_grad(set_to_none=True)
        total.backward()
        optimiser.step()
        if watch is not None:
            watch(epoch, losses)
    optimiser.zero_grad(set_to_none=True)
    network.eval()
    return losses


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
            losses.append(
                _both_losses(
                    before, hidden if self._at(k).on == "hidden" else logits, logits, labels, labels, alpha, beta,
                    distances if k == 0 else None, metric, scaling=scaling,
                    fixed_input=not before.requires_grad if fixed_input is None else fixed_input,
                )
            )  # fmt: skip
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
