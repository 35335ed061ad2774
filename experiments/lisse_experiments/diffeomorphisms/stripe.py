r"""The stripe model ([petrini2021] sec. 6): a label that sees one of d directions, and what a network makes of it.

.. math:: R_f = \frac{\langle (f(x_\parallel, x_\perp + \nu) - f(x))^2\rangle}{\langle (f(x + \eta) - f(x))^2\rangle},
          \qquad \|\nu\| = \|\eta\|,

with :math:`\nu` in the d - 1 directions that the label does not see (eq. 6). :math:`R_f \sim 1/P` in the
paper.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from lisse.data import generators
from lisse.maths.relative_stability import ratio_interval, sphere
from lisse.networks.zoo import seeded
from lisse.profile_file import writing
from lisse_experiments.form import Task


@dataclass(frozen=True)
class Recipe:
    """One hidden ReLU layer in the feature-learning regime, the whole set in every step, until no margin is missed.

    Neither the paper nor its code prints these; see method.md, "Choices". ``lr`` is Adam's rate, or that of plain
    gradient descent in units of ``hidden``: slopes of the mean-field scale are as small as 1/``hidden``.
    """

    hidden: int = 512
    d: int = 30
    optimiser: Literal["adam", "descent"] = "adam"
    lr: float = 2e-2
    margin: float = 0.3
    noise: float = 0.3
    steps: int = 2000
    test: int = 4000


DESCENT = Recipe(optimiser="descent", lr=0.3, steps=50_000)


@dataclass(frozen=True)
class Stripe:
    """A trained network: R with its interval, its test error, the steps it took, whether every margin was met."""

    p: int
    seed: int
    value: float
    low: float
    high: float
    error: float
    steps: int
    converged: bool


class OneHidden(nn.Module):
    r""":math:`f(x) = \frac1h\sum_i a_i\,(w_i\cdot x + b_i)_+` less what it was at the start: f begins at zero."""

    def __init__(self, d: int, hidden: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(hidden, d) / math.sqrt(d))
        self.b = nn.Parameter(torch.zeros(hidden))
        self.a = nn.Parameter(torch.randn(hidden))
        for name in ("w", "b", "a"):
            self.register_buffer(f"{name}0", getattr(self, name).detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """``x`` ``[n, d]`` to ``[n]``."""
        return self.since(x, self.before(x))

    def before(self, x: Tensor) -> Tensor:
        """What the first weights make of ``x``: known once for all steps of a training."""
        return functional.linear(x, self.w0, self.b0).relu_() @ self.a0  # type: ignore[operator, arg-type]

    def since(self, x: Tensor, before: Tensor) -> Tensor:
        """The network at ``x`` where :meth:`before` is known."""
        return (functional.linear(x, self.w, self.b).relu_() @ self.a - before) / len(self.a)


def linear_stability(gradient: Tensor) -> float:
    r"""R of a linear function of gradient g ``[d]``: :math:`(|g_\perp|^2/(d-1)) / (|g|^2/d)`, g⊥ without the first."""
    g = torch.as_tensor(gradient).double().square()
    return float(g[1:].mean() / g.mean())


def stripe_stability(
    function: nn.Module, points: Tensor, *, noise: float, generator: torch.Generator, resamples: int = 1000
) -> tuple[float, float, float]:
    """R of eq. 6 over ``points`` ``[n, d]`` with one ν and one η each, a ratio of means, and its 95 % interval."""
    if points.ndim != 2 or points.shape[1] < 2:
        raise ValueError(f"stripe_stability: points must be [n, d] with d at least 2, got {list(points.shape)}.")
    along, all_around = torch.randn(2, *points.shape, generator=generator).to(points)
    along[:, 0] = 0
    with torch.no_grad():
        clean = function(points)
        moved = (function(points + sphere(along, noise)) - clean).square()
        noisy = (function(points + sphere(all_around, noise)) - clean).square()
    ratio = ratio_interval(moved.cpu(), noisy.cpu(), statistic="mean", resamples=resamples, generator=generator)
    return float(ratio.value), float(ratio.low), float(ratio.high)


def trained_stripe(recipe: Recipe, p: int, seed: int, *, device: str = "cpu") -> tuple[OneHidden, int, bool]:
    """A network trained on the hinge loss of ``p`` points, the steps it took, and whether it met every margin."""
    data = generators.stripe(p, d=recipe.d, seed=seed)
    assert isinstance(data.inputs, Tensor)
    assert data.targets is not None
    x, y = data.inputs.to(device), (2 * data.targets - 1).float().to(device)
    with seeded(seed):
        model = OneHidden(recipe.d, recipe.hidden)
    model.to(device)
    optimiser: torch.optim.Optimizer
    if recipe.optimiser == "adam":
        optimiser = torch.optim.Adam(model.parameters(), lr=recipe.lr)
    else:
        optimiser = torch.optim.SGD(model.parameters(), lr=recipe.lr * recipe.hidden)
    before = model.before(x)
    for step in range(recipe.steps):
        with torch.no_grad():
            missed = (y * model.since(x, before) < recipe.margin).nonzero()[:, 0]
        if len(missed) == 0:
            return model, step, True
        # Points that meet the margin have no slope: soon they are most, and the backward is of the others alone.
        loss = (recipe.margin - y[missed] * model.since(x[missed], before[missed])).sum() / p
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model, recipe.steps, False


def measured(recipe: Recipe, p: int, seed: int, *, device: str = "cpu") -> Stripe:
    """Train and measure one network."""
    model, steps, converged = trained_stripe(recipe, p, seed, device=device)
    test = generators.stripe(recipe.test, d=recipe.d, split="test", seed=seed)
    assert isinstance(test.inputs, Tensor)
    assert test.targets is not None
    points = test.inputs.to(device)
    source = generators.generator("stripe noise", "test", seed)
    value, low, high = stripe_stability(model, points, noise=recipe.noise, generator=source)
    with torch.no_grad():
        wrong = (model(points).cpu() > 0) != (test.targets > 0)
    return Stripe(p, seed, value, low, high, float(wrong.double().mean()), steps, converged)


def stored_stripe(task: Task, recipe: Recipe, p: int, seed: int) -> Stripe:
    """:func:`measured`, or what an earlier start left in ``out/stripe``."""
    file = task.out / "stripe" / f"p{p}-seed{seed}.json"
    request = {**asdict(recipe), "p": p, "seed": seed}
    if file.is_file():
        document = json.loads(file.read_text(encoding="utf-8"))
        if document["recipe"] == request:
            return Stripe(**document["result"])
    result = measured(recipe, p, seed, device=task.device)
    _write(file, {"recipe": request, "result": asdict(result)})
    return result


def _write(file: Path, document: dict[str, object]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with writing(file) as stream:
        stream.write(json.dumps(document).encode())


def last_octave(sizes: list[int], values: list[float]) -> float:
    """The slope of log R over log P between the last two sizes."""
    (p, q), (a, b) = sizes[-2:], values[-2:]
    return math.log(b / a) / math.log(q / p)
