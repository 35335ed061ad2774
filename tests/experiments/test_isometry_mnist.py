from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn import functional

from lisse.data import Dataset
from lisse.networks.attack import attack, clean_gradient_attack, right
from lisse.networks.isometric import isometric_loss
from lisse_experiments.form import Task
from lisse_experiments.isometry import mnist
from lisse_experiments.isometry.mnist import attacks, figures, networks
from lisse_experiments.isometry.mnist.attacks import distortion, stood
from lisse_experiments.isometry.mnist.ensemble import (
    Lesson,
    isometric_losses,
    outputs,
    pairwise_distances,
    starts,
    trained_ensemble,
)
from lisse_experiments.isometry.mnist.networks import pixels, trained_networks

GENERATOR = torch.Generator().manual_seed(5)
X = torch.rand(40, 12, generator=GENERATOR)
Y = torch.randint(3, (40,), generator=GENERATOR)


SHORT = (0.01, 0.05, 0.2, 1.0)


@pytest.fixture(autouse=True)
def few_sizes(monkeypatch):
    for module in (mnist, attacks, figures):
        monkeypatch.setattr(module, "SIZES", SHORT)


def small(**options) -> Lesson:
    return Lesson(**{"beta": 0.5, "width": 7, "depth": 2, "epochs": 2, "batch": 10, **options})


# --- the ensemble ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scaling", ["paper", "code"])
def test_the_batched_loss_is_the_loss(scaling):
    generator = torch.Generator().manual_seed(6)
    hidden = torch.randn(2, 8, 5, generator=generator, dtype=torch.float64)
    x, y = torch.rand(2, 8, 12, generator=generator, dtype=torch.float64), Y[:16].reshape(2, 8)
    same = (y[:, :, None] == y[:, None]) & ~torch.eye(8, dtype=torch.bool)
    found = isometric_losses(hidden, pairwise_distances(x), same, 10.0 if scaling == "code" else 1.0)
    for place in range(2):
        expected = isometric_loss(x[place], hidden[place], y[place], scaling=scaling)
        assert float(found[place]) == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize("lesson", [small(), small(beta=0.0), small(scale=10.0, start="orthogonal")])
def test_a_network_becomes_what_it_would_have_become_alone(lesson):
    """Against ten plain lines of PyTorch, one network at a time."""
    together = trained_ensemble(X, Y, [3, 4], lesson, classes=3)
    for place, seed in enumerate((3, 4)):
        parameters = [p.detach()[:1].clone().requires_grad_() for p in starts([12, 7, 7, 3], [seed], lesson.start)]
        optimiser = torch.optim.Adam(parameters, lr=lesson.rate)
        generator = torch.Generator().manual_seed(1_000_003 + seed)
        for _ in range(lesson.epochs):
            for chosen in torch.randperm(40, generator=generator).split(lesson.batch):
                x, y = X[chosen].double(), Y[chosen]
                logits, hidden = outputs(parameters, x[None])
                scaling = "code" if lesson.scale == 10 else "paper"
                loss = functional.cross_entropy(logits[0], y)
                loss = loss + lesson.beta * isometric_loss(x, hidden[0], y, scaling=scaling)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        for name, value in zip(together[place], parameters, strict=True):
            assert torch.allclose(together[place][name], value.detach()[0].squeeze(0), atol=1e-9), name


def test_orthogonal_starts_and_seeds():
    plain, other, turned = (
        starts([12, 7, 7, 3], [seed], start) for seed, start in ((0, "default"), (1, "default"), (0, "orthogonal"))
    )
    middle = turned[2][0]
    assert torch.allclose(middle @ middle.T, torch.eye(7, dtype=torch.float64), atol=1e-12)
    assert torch.equal(plain[0], turned[0])
    assert not torch.equal(plain[0], other[0])
    assert float(plain[0].detach().abs().max()) <= 12**-0.5


# --- attacks --------------------------------------------------------------------------------------------------------


def tiny(tmp_path):
    task = Task("smoke", tmp_path)
    data = Dataset("squares", X.reshape(40, 1, 3, 4), Y)
    made = trained_networks(task, data, betas=(0.0, 1.0), readings=("paper",), seeds=(0, 1), epochs=1)
    return task, data, made


def test_counts_are_those_of_the_attacks(tmp_path):
    task, data, made = tiny(tmp_path)
    found = stood(task, made, data, name="tiny")
    assert [(one.reading, one.beta, one.seed) for one in found][:3] == [
        ("paper", 0.0, 0),
        ("paper", 0.0, 1),
        ("paper", 1.0, 0),
    ]
    one, network = found[2], made[2].network().float()
    x = pixels(data)
    assert one.clean == int(right(network, x, Y).sum())
    for clipped, bounds in ((True, (0.0, 1.0)), (False, None)):
        for place, size in enumerate(SHORT):
            moved = attack(network, x, Y, norm="linf", eps=size, bounds=bounds)
            assert int(one.curves["fgsm", clipped][place]) == int(right(network, moved, Y).sum())
            moved = attack(network, x, Y, method="pgd", norm="linf", eps=0.5, step=size, bounds=bounds)
            assert int(one.curves["pgd", clipped][place]) == int(right(network, moved, Y).sum())
            moved = clean_gradient_attack(
                network, x, Y, eps=0.5, step=size, bounds=bounds,
                objective=lambda z, logits: functional.cross_entropy(logits, Y)
                + isometric_loss(z, network[:-1](z), Y, scaling="paper"),
            )  # fmt: skip
            assert int(one.curves["authors", clipped][place]) == int(right(network, moved, Y).sum())
            moved = clean_gradient_attack(network, x, Y, eps=0.5, step=size, bounds=bounds)
            assert int(one.curves["error", clipped][place]) == int(right(network, moved, Y).sum())
    leaf = x.clone().requires_grad_()
    logits = network(leaf)
    own = logits.gather(1, Y[:, None])[:, 0]
    margins = own - logits.masked_fill(torch.nn.functional.one_hot(Y, logits.shape[1]).bool(), -torch.inf).amax(1)
    (slope,) = torch.autograd.grad(margins.sum(), leaf)
    torch.testing.assert_close(one.margins, margins.detach())
    torch.testing.assert_close(one.margin_slopes, slope.abs().sum(1))
    hidden = network[:-1](x)
    errors = [
        abs(float((hidden[i] - hidden[j]).norm()) / float((x[i] - x[j]).norm()) - 1)
        for i in range(40)
        for j in range(i)
        if Y[i] == Y[j]
    ]
    assert float(distortion(network, x, Y)) == pytest.approx(sum(errors) / len(errors), rel=1e-4)


def test_what_is_there_is_not_made_again(tmp_path, monkeypatch):
    task, data, made = tiny(tmp_path)
    first = stood(task, made, data, name="tiny")
    (tmp_path / "mnist" / "networks" / "paper-beta1-40x1-seed1.arrays").unlink()
    asked = []
    monkeypatch.setattr(
        networks, "trained_ensemble", lambda *given, **_: asked.append(given[2]) or trained_ensemble(*given)
    )
    monkeypatch.setattr(attacks, "_attacked", lambda *_: pytest.fail("attacked again"))
    *_, again = tiny(tmp_path)
    assert asked == [[1]]  # the seed that is missing, and no other
    assert all(torch.equal(a.parameters["weight0"], b.parameters["weight0"]) for a, b in zip(made, again, strict=True))
    assert [one.clean for one in stood(task, again, data, name="tiny")] == [one.clean for one in first]


# --- the experiment's part ------------------------------------------------------------------------------------------


@pytest.fixture
def smaller(monkeypatch):
    train, test = Dataset("a", X.reshape(40, 1, 3, 4), Y), Dataset("b", X[:30].reshape(30, 1, 3, 4), Y[:30])
    monkeypatch.setattr(mnist, "_data", lambda _: (train, test))
    monkeypatch.setattr(mnist, "settings", lambda scale: mnist.Settings("squares", (0.0, 10.0), 2, 1))


def test_findings_claims_and_files(tmp_path, smaller):
    task = Task("smoke", tmp_path)
    found = mnist.findings(task)
    assert all(finding.key.startswith("mnist/") for finding in found)
    keys = {finding.key for finding in found}
    assert {"mnist/paper/0/clean", "mnist/code/10/pgd/0.01/free", "mnist/paper/10/gradient"} <= keys
    for finding in found:
        assert finding.low is not None
        assert finding.low <= finding.value <= finding.high
        assert finding.n == 2
    claims = mnist.claims(task, found)
    assert {claim.key for claim in claims} >= {"mnist/paper/cost", "mnist/code/gradients", "mnist/paper/pgd"}
    by = {finding.key: finding for finding in found}
    paired = by["mnist/paper/10/error/0.01"].value - by["mnist/paper/0/error/0.01"].value
    assert by["mnist/paper/gain/error"].value == pytest.approx(paired)
    files = mnist.files(task, found)
    assert [file.name for file in files] == ["figure-3.png", "figure-3-free.png", "mnist-trade.png", "mnist-curves.csv"]
    assert all(file.stat().st_size > 1000 for file in files)
    assert len(files[-1].read_text().splitlines()) == 1 + 8 * (1 + 8 * len(SHORT))
    assert "Student's over 2 seeds" in mnist.notes(task, found)[0]


@pytest.mark.parametrize(("gain", "spread", "holds"), [(0.01, 0.01, True), (0.2, 0.01, False), (0.03, 0.05, None)])
def test_what_is_left_without_beta_says_whether_the_gain_is_an_artefact(tmp_path, smaller, gain, spread, holds):
    task = Task("smoke", tmp_path)
    found = mnist.findings(task)
    values = {
        "mnist/paper/gain/authors": (0.4, 0.38, 0.42),
        "mnist/paper/gain/error": (gain, gain - spread, gain + spread),
    }
    moved = [
        dataclasses.replace(f, **dict(zip(("value", "low", "high"), values[f.key], strict=True)))
        if f.key in values
        else f
        for f in found
    ]
    claims = {claim.key: claim for claim in mnist.claims(task, moved)}
    assert claims["mnist/paper/artefact"].holds is holds


def test_an_interval_holds_both_sources_of_chance():
    even = mnist.over_seeds(torch.tensor([0.9, 0.9, 0.9]), 1000)
    assert float(even.low) < 0.89
    assert float(even.high) > 0.91  # Wilson's, though the seeds agree
    uneven = mnist.over_seeds(torch.tensor([0.5, 0.9, 0.7]), 10_000)
    assert float(uneven.high - uneven.low) > 0.4  # Student's, though there are many images
    assert float(uneven.high) <= 1
