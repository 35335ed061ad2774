"""LocallyIsometric: a small classifier trained to keep the distances within its classes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

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
        entropy = functional.cross_entropy(logits, targets)
        if beta == 0:
            return IsometricLoss(alpha * entropy, entropy, torch.zeros_like(entropy))
        if not self._looked:
            self._looked = True
            self._look(x)
        isometric = isometric_loss(
            x if distances is None else distances,
            hidden if self.on == "hidden" else logits,
            None if all_pairs else targets if groups is None else groups,
            metric=metric if distances is None else "precomputed",
            output_metric=None if distances is None else metric,
            scaling=scaling,
            fixed_input=fixed_input,
        )
        return IsometricLoss(alpha * entropy + beta * isometric, entropy, isometric)

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
