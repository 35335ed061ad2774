"""Catastrophic overfitting: a network that learns its own adversary and falls to any other [wong2020] sec. 5.1."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lisse.data import Dataset
from lisse.maths.intervals import share_interval
from lisse.networks.answers import right
from lisse.networks.attack import Adversary, attack

#: Columns of the log: accuracy under the training's own adversary, and under PGD of ten steps on the margin.
WATCHED = ("trained_attack_accuracy", "attack_accuracy")
_FEWEST, _MOST, _STEPS = 32, 256, 10
#: Of the samples that a training passes through its network, how many the watch may add. Counted, not timed: whether a
#: training ends must not hang on a clock.
SHARE = 0.05


class Watchtower:
    """The same few samples, looked at now and then under the adversary of a training and under a stronger attack.

    An epoch passes ``passed`` samples. Every epoch is looked at where 32 samples or more (256 at most) are no more than
    the watch may add, and otherwise 32 as often as they are: ``every`` epochs, and at the last one.
    """

    def __init__(
        self, adversary: Adversary, data: Dataset, device: torch.device, dtype: torch.dtype, passed: int
    ) -> None:
        self.adversary = adversary
        steps = 1 if adversary.method == "fgsm" else adversary.steps
        look, affordable = steps + _STEPS + 3, SHARE * passed * (steps + 1)
        count = int(min(max(affordable // look, _FEWEST), _MOST, len(data)))
        self.every = max(1, math.ceil(count * look / affordable))
        few = data.sample(count, seed=0)
        assert isinstance(few.inputs, Tensor)
        assert few.targets is not None
        x = few.inputs.to(device)
        self.x = x.to(dtype) if x.is_floating_point() else x.to(dtype).div_(255)
        self.y = few.targets.to(device).long()

    def accuracies(self, model: nn.Module) -> tuple[float, float]:
        """Under the training's own adversary, and under the stronger attack."""
        adversary = self.adversary
        box = None if adversary.bounds is None else (float(adversary.bounds[0]), float(adversary.bounds[1]))
        moved = adversary.moved(model, self.x, self.y)
        harder = attack(
            model,
            self.x,
            self.y,
            method="pgd",
            norm=adversary.norm,
            eps=adversary.eps,
            steps=_STEPS,
            bounds=box,
            start=moved,
        )
        first, second = (right(model, points, self.y).double().mean() for points in (moved, harder))
        return float(first), float(second)

    def fell(self, before: float, harder: float) -> bool:
        """Whether the accuracy under the stronger attack is below an earlier one, beyond both intervals.

        In its first epochs a network may not have learned yet what it will: that it holds against its own adversary
        alone is a collapse where it held against the stronger one before, or where half of the training has passed.
        """
        n = len(self.y)
        return float(share_interval(harder, n).high) < float(share_interval(before, n).low)

    def one_sided(self, usual: float, harder: float) -> bool:
        """Whether the stronger attack takes more than half of what the own one leaves, beyond both intervals.

        Random-start FGSM and PGD leave a sound network nearly the same share of answers. Nothing is lost where the own
        one leaves no more than guessing would; and the adversary of TRADES turns answers, wrong or not: it is watched
        and not judged.
        """
        n = len(self.y)
        left = float(share_interval(usual, n).low)
        guessing = 1 / (int(self.y.max()) + 1)
        return (
            self.adversary.method != "trades" and left > guessing and float(share_interval(harder, n).high) < left / 2
        )
