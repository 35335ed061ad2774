"""Adversarial training: what a batch becomes before the network learns from it, and the loss of its answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from lisse import taps
from lisse.networks.answers import answer_of
from lisse.networks.attack.checks import UNIT, Bounds, check_inside, check_unit, checked_count, checked_size
from lisse.networks.attack.norms import Norm, NormBall, norm_named, steepest

Opponent = Literal["fgsm", "pgd", "trades"]
_TRADES_START = 1e-3  # of the noise where TRADES begins: at x itself its gradient is 0


@dataclass(frozen=True)
class Adversary:
    r"""Moves the samples of every batch within ``eps`` to where the network does worst, and learns from them there.

    .. math:: \min_\theta \frac1n \sum_i \max_{\|\delta_i\| \le \epsilon} L(f_\theta(x_i + \delta_i), y_i)

    - ``fgsm``: one step of 1.25 ε from a random point of the ball ([wong2020] algorithm 3);
    - ``pgd``: ``steps`` of 2.5 ε/``steps`` from a random point, the last iterate ([madry2018] eq. 2.1);
    - ``trades``: clean samples, and ``beta`` times how far the moved ones turn the answer,
      :math:`\beta\, KL(p(x) \,\|\, p(x'))`, which is what its ``steps`` climb too ([zhang2019] eq. 5).

    In a loop of one's own ``adversary.loss(model, x, y)`` is all that changes; :func:`lisse.train` takes
    ``lesson=adversary``, :class:`Adversarially` goes into a Trainer of Hugging Face. ``bounds`` is the box of the
    inputs, ``None`` for none; ``eps`` is in their unit: both are others for images that were normalised before. Samples
    are moved with the network in evaluation mode (its running statistics, no dropout), for the deterministic network is
    what is attacked later; all random numbers come from torch's global generators, where the samples are. The
    cross-entropy is what fgsm and pgd climb.

    Cost: a pass over the batch for the step of the weights, and one more for each step of the adversary; TRADES
    learns from two batches and looks at the clean answers once.
    """

    method: Opponent = "fgsm"
    eps: float = 8 / 255
    norm: Norm = "linf"
    steps: int = 10
    step: float | None = None
    beta: float = 6.0
    bounds: Bounds | None = UNIT

    def __post_init__(self) -> None:
        """Check the options."""
        if self.method not in get_args(Opponent):
            raise ValueError(f"Adversary: method must be one of {', '.join(get_args(Opponent))}, got {self.method!r}.")
        object.__setattr__(self, "norm", norm_named("Adversary", self.norm))
        check_unit("Adversary", checked_size("Adversary", "eps", self.eps), self.norm, self.bounds)
        checked_count("Adversary", "steps", self.steps)
        checked_size("Adversary", "beta", self.beta)
        if self.step is not None:
            checked_size("Adversary", "step", self.step)

    def moved(self, network: Callable[[Tensor], Any], x: Tensor, y: Tensor) -> Tensor:
        """``x`` moved to where the network does worse, inside the ball and the box; without a graph."""
        count = 1 if self.method == "fgsm" else self.steps
        usual = 1.25 * self.eps if self.method == "fgsm" else 2.5 * self.eps / count
        length = usual if self.step is None else self.step
        x = x.detach()
        ball = NormBall(x, self.norm, self.eps, self.bounds)
        with _unmoved(network), torch.enable_grad():
            if self.method == "trades":
                with torch.no_grad():
                    clean = _logits(network, x).softmax(1)
                point = ball.back(x + _TRADES_START * torch.randn_like(x))
            else:
                clean, point = None, self._random(ball)
            for _ in range(count):
                leaf = point.requires_grad_()
                logits = _logits(network, leaf)
                if clean is None:
                    value = functional.cross_entropy(logits, y, reduction="sum")
                else:
                    value = functional.kl_div(logits.log_softmax(1), clean, reduction="sum")
                (slope,) = torch.autograd.grad(value, leaf)
                point = ball.back(point.detach() + length * steepest(slope, self.norm))
        return point

    def views(self, network: Callable[[Tensor], Any], x: Tensor, y: Tensor | None) -> Tensor:
        """What the network is to see: the moved samples ``[n, …]``; for TRADES the clean ones before them."""
        if y is None or y.ndim != 1 or y.is_floating_point():
            raise ValueError("Adversary: y must hold a class for each sample, got none. Train on data with labels.")
        moved = self.moved(network, x, y)
        return torch.cat([x, moved]) if self.method == "trades" else moved

    def task(self, output: Tensor, y: Tensor, loss: Callable[[Any, Any], Tensor] = functional.cross_entropy) -> Tensor:
        """The loss of the answers to :meth:`views`."""
        if self.method != "trades":
            return loss(output, y)
        clean, moved = output.float().chunk(2)
        turned = functional.kl_div(moved.log_softmax(1), clean.log_softmax(1), reduction="batchmean", log_target=True)
        return loss(clean, y) + self.beta * turned

    def loss(self, network: Callable[[Tensor], Any], x: Tensor, y: Tensor) -> Tensor:
        """The whole loss of a batch, with gradient by the weights: for a loop of one's own."""
        self.check(x)
        return self.task(_logits(network, self.views(network, x, y)), y)

    def check(self, x: Tensor) -> None:
        """See that a batch lies in the box (what is outside it would be thrown onto its edge), and ε in its unit."""
        check_unit("Adversary", self.eps, self.norm, self.bounds, x[0].numel() if len(x) else None)
        if self.bounds is not None:
            check_inside(
                "Adversary", x.detach(), self.bounds, "Are these normalised? Give bounds=None, and eps in their unit."
            )

    def _random(self, ball: NormBall) -> Tensor:
        """A point uniform in the ball, drawn where the samples are."""
        x = ball.x
        if self.norm == "linf":
            return ball.back(x + self.eps * (2 * torch.rand_like(x) - 1))
        drawn = torch.randn(len(x), x[0].numel() + 2, dtype=x.dtype, device=x.device)
        drawn = drawn[:, :-2] / torch.linalg.vector_norm(drawn, dim=1, keepdim=True)
        return ball.back(x + self.eps * drawn.reshape(x.shape))


@contextmanager
def _unmoved(network: object) -> Iterator[None]:
    """Evaluation mode inside the block, where the network is a module: statistics stay as they were."""
    if not isinstance(network, nn.Module):
        yield
        return
    with taps.modes_restored(network) as modules:
        for module in modules:
            if module.training:
                module.training = False
        yield


def _logits(network: Callable[[Tensor], Any], x: Tensor) -> Tensor:
    logits: Tensor = answer_of(network(x))
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


class Adversarially(nn.Module):
    """A network that is attacked in training: for trainers that call ``model(pixel_values=…, labels=…)``.

    As those of Hugging Face do: where the network is in training and gets ``labels``, its ``images`` (the name of that
    argument) are moved by ``adversary`` first, and ``loss`` in its output is that of the moved ones. In evaluation
    it is the network. Give the Trainer's arguments ``remove_unused_columns=False`` and ``label_names=["labels"]``, for
    the signature is open here. The trained network is :attr:`network`.
    """

    def __init__(self, network: nn.Module, adversary: Adversary, *, images: str = "pixel_values") -> None:
        super().__init__()
        self.network, self.adversary, self.images = network, adversary, images

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the network gives for the moved images."""
        labels = kwargs.get("labels")
        if not self.training or labels is None:
            return self.network(*args, **kwargs)
        if self.images not in kwargs:
            raise ValueError(
                f"Adversarially: the call must name {self.images}, got {', '.join(kwargs)}. Give images='…', the name."
            )
        self.adversary.check(kwargs[self.images])
        options = {name: value for name, value in kwargs.items() if name not in (self.images, "labels")}

        def answer(x: Tensor) -> Any:
            return self.network(**{self.images: x}, **options)

        with _unmoved(self.network):
            views = self.adversary.views(answer, kwargs[self.images], labels)
        output = answer(views)
        loss = self.adversary.task(answer_of(output), labels)
        if not isinstance(output, dict):
            raise TypeError(f"Adversarially: network must give a dict with logits, got {type(output).__name__}.")
        n = len(labels)
        output["logits"] = output["logits"][:n]
        output["loss"] = loss
        return output
