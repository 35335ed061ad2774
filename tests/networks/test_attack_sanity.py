from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from lisse.networks.attack import attack, auto_attack, random_search, random_shift, right, sanity_check, signs

X = torch.rand(200, 5, generator=torch.Generator().manual_seed(0))
WEIGHT = torch.tensor([[0.0, 0, 0, 0, 0], [1, -1, 1, -1, 0.5]])
Y = (X @ WEIGHT[1] > 0.2).long()


class Linear(nn.Module):
    """Right on every sample: class 1 where w·x is above 0.2."""

    def __init__(self, slope: float = 5.0) -> None:
        super().__init__()
        self.weight, self.slope = nn.Parameter(WEIGHT.clone()), slope

    def forward(self, x):
        return self.slope * (x @ self.weight.T - torch.tensor([0.2, 0.4]))  # w·x - 0.2 > 0


class Staircase(Linear):
    """The same answers nearly everywhere, and a gradient that points nowhere."""

    def forward(self, x):
        wrong = -0.01 * x
        return super().forward((x * 1000).round() / 1000 - x.detach() * 0 + wrong - wrong.detach())


# --- noise and blind search -----------------------------------------------------------------------------------------


def test_a_random_shift_is_a_corner_or_a_point_of_the_sphere():
    made = random_shift(X.double(), norm="linf", eps=0.1, bounds=None, generator=torch.Generator().manual_seed(0))
    assert torch.allclose((made - X).abs(), torch.full_like(made, 0.1))
    assert float(((made - X) > 0).double().mean()) == pytest.approx(0.5, abs=4 * 0.5 / 1000**0.5)
    made = random_shift(X.double(), norm="l2", eps=0.1, bounds=None, generator=torch.Generator().manual_seed(0))
    assert torch.allclose((made - X).norm(dim=1), torch.full((200,), 0.1, dtype=torch.float64))
    boxed = random_shift(X, norm="linf", eps=0.9, bounds=(0, 1))
    assert boxed.min() >= 0
    assert boxed.max() <= 1
    given = random_shift(X, norm="linf", eps=0.1, bounds=None, directions=torch.ones_like(X))
    assert torch.allclose(given, X + 0.1)
    with pytest.raises(ValueError, match="directions must have the shape of x"):
        random_shift(X, norm="linf", eps=0.1, directions=X[:3])


def test_a_search_of_more_points_does_more_harm():
    def left(queries: int) -> float:
        generator = torch.Generator().manual_seed(0)
        points = random_search(
            Linear(), X, Y, norm="linf", eps=0.05, queries=queries, bounds=(0, 1), generator=generator
        )
        return float(right(Linear(), points, Y).double().mean())

    assert left(1) > left(4) > left(40)
    best = attack(Linear(), X, Y, norm="linf", eps=0.05, bounds=(0, 1))
    assert left(40) >= float(right(Linear(), best, Y).double().mean())
    with pytest.raises(ValueError, match="queries must be a whole number"):
        random_search(Linear(), X, Y, norm="linf", eps=0.05, queries=0, bounds=(0, 1))


@pytest.mark.parametrize(("queries", "batch"), [(1, 7), (3, 50), (4, 1)])
def test_a_search_does_not_depend_on_batches(queries, batch):
    draws = [torch.randn(X.shape, generator=torch.Generator().manual_seed(k)) for k in range(queries)]
    whole, parts = (
        random_search(
            Linear(), X, Y, norm="l2", eps=0.1, queries=queries, bounds=(0, 1), draw=draws.__getitem__, batch=size
        )
        for size in (None, batch)
    )
    assert torch.equal(whole, parts)


# --- the signs ------------------------------------------------------------------------------------------------------


def test_an_honest_network_shows_none():
    found = sanity_check(
        Linear(), X, Y, norm="linf", eps=(0.02, 0.1, 0.3), bounds=(0, 1), generator=torch.Generator().manual_seed(0)
    )
    assert found.passed
    assert found.clean == 1.0
    assert found.n == 200
    for curve in found.accuracy.values():
        assert curve[0.0] == found.clean  # ε = 0 is clean
    ordered = [found.accuracy["pgd"][eps] for eps in (0.0, 0.02, 0.1, 0.3)]
    assert ordered == sorted(ordered, reverse=True)  # a larger ball never helps
    for eps in (0.02, 0.1, 0.3):
        assert found.accuracy["pgd"][eps] <= found.accuracy["search"][eps] <= found.accuracy["noise"][eps]


def test_a_staircase_is_found_out():
    found = sanity_check(
        Staircase(), X, Y, norm="linf", eps=(0.1,), queries=40, bounds=(0, 1),
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert not found.passed
    assert "blind beats gradient" in {sign.name for sign in found.signs}


def test_a_network_without_gradients_is_found_out():
    class Flat(Linear):
        def forward(self, x):
            return super().forward((x * 1000).round() / 1000 + 0 * x)

    found = sanity_check(Flat(), X, Y, norm="linf", eps=(0.1,), bounds=(0, 1))
    assert "zero gradient" in {sign.name for sign in found.signs}


def test_each_sign_by_itself():
    def named(curves, clean=0.9, n=1000, **options):
        return [sign.name for sign in signs(curves, clean, n, **options)]

    assert named({"pgd": {0.1: 0.5, 0.2: 0.3}, "fgsm": {0.1: 0.6}, "noise": {0.1: 0.88}}) == []
    assert named({"pgd": {0.1: 0.3, 0.2: 0.5}}) == ["rises"]
    assert named({"pgd": {0.1: 0.5}, "fgsm": {0.1: 0.4}}) == ["single beats multi"]
    assert named({"pgd": {0.1: 0.5}, "search": {0.1: 0.4}}) == ["blind beats gradient"]
    assert named({"fgsm": {0.1: 0.5}, "noise": {0.1: 0.4}}) == ["blind beats gradient"]
    assert named({"autoattack": {0.1: 0.5}, "pgd": {0.1: 0.4}}) == ["weak attack"]
    assert named({"pgd": {0.1: 0.97}}) == ["attack helps"]
    assert named({}, still=0.2) == ["zero gradient"]
    assert named({}, still=0.05) == []
    # within chance it is no sign
    assert named({"pgd": {0.1: 0.50}, "fgsm": {0.1: 0.48}}) == []
    assert named({"pgd": {0.1: 0.50}, "fgsm": {0.1: 0.48}}, n=100_000) == ["single beats multi"]
    assert named({"pgd": {0.1: 0.50}, "fgsm": {0.1: 0.46}}, level=0.5) == ["single beats multi"]


def test_what_a_sanity_check_refuses():
    with pytest.raises(ValueError, match="x and eps must not be empty"):
        sanity_check(Linear(), X, Y, norm="linf", eps=(), bounds=(0, 1))

    class Random(Linear):
        def forward(self, x):
            return super().forward(x) + torch.randn(len(x), 2) * 10

    with pytest.raises(ValueError, match="must answer the same twice"):
        sanity_check(Random(), X, Y, norm="linf", eps=(0.1,), bounds=(0, 1))


# --- AutoAttack -----------------------------------------------------------------------------------------------------


def test_autoattack_on_a_linear_network_is_as_strong_as_fgsm():
    """Where the network is linear nothing beats FGSM; AutoAttack leaves alone what it cannot mislead."""
    pytest.importorskip("pyautoattack")
    x, y = X[:40], Y[:40]
    model = Linear(50.0)
    state = torch.get_rng_state()
    made = auto_attack(model, x, y, norm="linf", eps=0.1, attacks=("apgd-ce",), bounds=(0, 1))
    assert torch.equal(state, torch.get_rng_state())
    assert made.shape == x.shape
    assert float((made - x).abs().max()) <= 0.1 + 1e-6
    best = right(model, attack(model, x, y, norm="linf", eps=0.1, bounds=(0, 1)), y)
    ours = right(model, made, y)
    assert int((best != ours).sum()) <= 1  # on the very edge of the margin
    assert torch.equal(made[ours], x[ours])
    assert torch.equal(auto_attack(model, x, y, norm="l2", eps=0, bounds=(0, 1)), x)
    assert all(weight.grad is None for weight in model.parameters())


def test_what_autoattack_refuses():
    pytest.importorskip("pyautoattack")
    with pytest.raises(ValueError, match="attacks must be among apgd-ce"):
        auto_attack(Linear(), X, Y, norm="linf", eps=0.1, attacks=("pgd",), bounds=(0, 1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"bounds must be \(0, 1\)"):
        auto_attack(Linear(), X, Y, norm="linf", eps=0.1, bounds=None)
    with pytest.raises(ValueError, match="eps must be"):
        auto_attack(Linear(), X, Y, norm="linf", eps=math.inf, bounds=(0, 1))


def test_without_the_package_the_error_names_the_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pyautoattack", None)
    with pytest.raises(ImportError, match=r'pip install "lisse\[attack\]"'):
        auto_attack(Linear(), X, Y, norm="linf", eps=0.1)
