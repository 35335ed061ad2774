"""Networks that differ in nothing that matters, measured and given to the verdict: it finds no difference."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable

import pytest
import torch
from torch import nn

import lisse
from lisse.data import Dataset
from lisse.instruments import Isometry, Robustness, Sensitivity, Stability, Topology
from lisse.profile import Profile
from lisse.reporting.page.comparisons import compare_pairs
from lisse.reporting.page.entries import entries_of
from lisse.reporting.page.verdict import verdict
from lisse.run import Instrument


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.relu(self.first(self.norm(x))))


class Residual(nn.Module):
    """A stem, blocks, and a head or none."""

    def __init__(self, blocks: int = 5, *, head: bool = True) -> None:
        super().__init__()
        self.stem = nn.Linear(64, 24)
        self.blocks = nn.ModuleList(Block(24) for _ in range(blocks))
        self.head = nn.Linear(24, 10) if head else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x.flatten(1))
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(x)


def images(n: int = 96) -> Dataset:
    """Soft blobs with a label: data on which every instrument has something to say."""
    generator = torch.Generator().manual_seed(5)
    labels = torch.randint(10, (n,), generator=generator)
    centres = torch.rand(10, 1, 8, 8, generator=generator)
    return Dataset("blobs", (centres[labels] + 0.2 * torch.rand(n, 1, 8, 8, generator=generator)).clamp(0, 1), labels)


def measured(model: nn.Module, name: str, *, layers: list[str] | None = None) -> Profile:
    instruments: list[Instrument] = [
        Topology(samples=8, clouds=8, dims=(0,), p=(1,)),
        Isometry(samples=32, clouds=3, points=0),
        Sensitivity(samples=32, points=4, max_iter=5),
        Stability(samples=64),
        Robustness(samples=64, corruptions=("gaussian_noise",), severities=(3,), attacks=()),
    ]
    return lisse.measure(model.eval(), images(), instruments, layers=layers, name=name)


def no_difference(first: Profile, second: Profile, *numbers: str) -> None:
    """That both have these judging numbers, and that no sentence calls one better."""
    entries = entries_of([first, second])
    compared = compare_pairs(entries, [(entries.models[0], entries.models[1])])[0, 1]
    assert set(numbers) <= {comparison.heading.label for comparison in compared}
    assert {comparison.better for comparison in compared} == {None}
    assert "intervals" not in {comparison.way for comparison in compared if comparison.counts}
    sentences = verdict(entries)
    assert not any("smoother than" in sentence.text or "is more " in sentence.text for sentence in sentences)
    assert any("Nothing here tells" in sentence.text for sentence in sentences)


def plain() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(32, 10))


@torch.no_grad()
def rescaled(model: nn.Sequential, factor: float) -> nn.Sequential:
    """The same function: one layer times a factor, the next divided by it."""
    model = copy.deepcopy(model)
    for parameter in model[3].parameters():
        parameter *= factor
    model[5].weight /= factor
    return model


@torch.no_grad()
def cooler(model: nn.Sequential, factor: float) -> nn.Sequential:
    """The same decisions: logits times a factor."""
    model = copy.deepcopy(model)
    for parameter in model[-1].parameters():
        parameter *= factor
    return model


@pytest.mark.parametrize(("change", "factor"), [(rescaled, 30.0), (rescaled, 0.01), (cooler, 0.5), (cooler, 20.0)])
def test_rescaled_layers_and_a_temperature_are_no_difference(change, factor):
    model = plain()
    no_difference(measured(model, "plain"), measured(change(model, factor), "changed"), "shape", "R_f", "accuracy")


def test_an_encoder_is_the_same_with_and_without_its_head():
    torch.manual_seed(1)
    whole = Residual()
    bare = copy.deepcopy(whole)
    bare.head = None
    first, second = measured(whole, "whole"), measured(bare, "bare")
    no_difference(first, second, "shape", "R_f")
    assert any(
        "whole was read up to its head, bare up to its last block" in sentence.text
        for sentence in verdict([first, second])
    )


class Behind(nn.Module):
    """A network with an operation behind it that is no module."""

    def __init__(self, model: nn.Module, operation: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.model, self.operation = model, operation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.operation(self.model(x))


class Functional(nn.Module):
    """The matrices of a network, with activations that are no modules."""

    def __init__(self, model: nn.Sequential) -> None:
        super().__init__()
        self.matrices = nn.ModuleList(module for module in copy.deepcopy(model) if isinstance(module, nn.Linear))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        for matrix in self.matrices[:-1]:
            x = torch.relu(matrix(x))
        return self.matrices[-1](x)


@functools.cache
def trained() -> nn.Sequential:
    """A network that is right often enough to have margins."""
    model, data = plain(), images()
    adam = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(40):
        adam.zero_grad()
        nn.functional.cross_entropy(model(data.inputs), data.targets).backward()
        adam.step()
    return model.eval()


@functools.cache
def trained_profile() -> Profile:
    return measured(trained(), "modules")


JUDGES = ("shape", "R_f", "relative stretch", "margin", "accuracy", "mCE")


@pytest.mark.parametrize(
    "operation",
    [
        lambda answers: answers / 2,
        lambda answers: torch.log_softmax(answers, 1),
        lambda answers: torch.softmax(answers, 1),
        lambda answers: answers.to(torch.bfloat16).to(answers.dtype) + 0.0,
    ],
    ids=["temperature", "log-probabilities", "probabilities", "half precision"],
)
def test_an_operation_behind_the_head_that_changes_no_decision_is_no_difference(operation):
    first, second = trained_profile(), measured(Behind(copy.deepcopy(trained()), operation), "behind")
    no_difference(first, second, *JUDGES)
    assert [layer["role"] for layer in first.provenance["layers"]] == [
        layer["role"] for layer in second.provenance["layers"]
    ]


@torch.no_grad()
def by_channels(model: nn.Sequential) -> nn.Sequential:
    """The same function: every channel of the last hidden layer times a constant of its own."""
    model, factors = copy.deepcopy(model), torch.logspace(-1, 1, 32)
    model[5].weight *= factors[:, None]
    model[5].bias *= factors
    model[7].weight /= factors
    return model


@pytest.mark.parametrize("written", [Functional, by_channels])
def test_one_function_written_in_two_ways_is_one_function(written):
    """Its layers are other ones, or are read elsewhere: what comes out says that it is the same."""
    first, second = trained_profile(), measured(written(trained()), "otherwise")
    no_difference(first, second, *JUDGES)
    (overall,) = [sentence.text for sentence in verdict([first, second]) if sentence.topic == "overall"]
    assert "only how one function is written can differ in shape, R_f and relative stretch" in overall


def test_being_right_on_the_same_samples_is_not_being_the_same_function():
    other = copy.deepcopy(trained())
    with torch.no_grad():
        other[3].weight += 0.02 * torch.randn(32, 32, generator=torch.Generator().manual_seed(0))
    first, second = trained_profile(), measured(other, "second")
    assert "how one function is written" not in " ".join(sentence.text for sentence in verdict([first, second]))


def test_samples_of_one_class_judge_no_answer():
    """A network that never answers anything else would be right on all of them."""
    data = dataclasses.replace(images(), targets=torch.full((96,), 3))
    constant = copy.deepcopy(trained())
    with torch.no_grad():
        constant[-1].bias[3] += 100
    instruments = [Robustness(samples=64, corruptions=("gaussian_noise",), severities=(3,), attacks=())]
    profiles = [
        lisse.measure(model, data, instruments, name=name)
        for name, model in (("trained", trained()), ("constant", constant))
    ]
    (overall,) = [sentence.text for sentence in verdict(profiles) if sentence.topic == "overall"]
    assert overall == (
        "Nothing here tells constant and trained apart: all samples are of one class, which a constant answer gets "
        "right, in accuracy and mCE."
    )


def test_samples_that_are_there_several_times_decide_nothing():
    data, other = images(), copy.deepcopy(trained())
    with torch.no_grad():
        other[5].weight *= torch.rand(32, 32, generator=torch.Generator().manual_seed(0)).round()
    fourfold = Dataset("fourfold", torch.cat([data.inputs[:24]] * 4), torch.cat([data.targets[:24]] * 4))
    instruments = [Sensitivity(samples=32, points=0, draws=96, max_iter=5)]

    def answer(samples: Dataset) -> str:
        models = {"whole": trained(), "thinned": other}
        profiles = [lisse.measure(model, samples, instruments, name=name) for name, model in models.items()]
        return " ".join(sentence.text for sentence in verdict(profiles) if sentence.topic == "overall")

    assert "than" in answer(data)
    assert answer(fourfold) == (
        "Nothing here tells thinned and whole apart: many samples are in the data more than once, which p values take "
        "for new ones, in margin."
    )


def test_all_blocks_or_every_second_are_no_difference():
    torch.manual_seed(2)
    model = Residual()
    everything = measured(model, "all")
    names = [layer["name"] for layer in everything.provenance["layers"] if layer["role"] == "block"]
    second = measured(model, "second", layers=["input", *names[::2]])
    # the same weights: only another fingerprint lets the verdict look at all
    card = {**second.provenance["model"], "fingerprint": "another"}
    no_difference(everything, Profile(second.parts, {**second.provenance, "model": card}), "shape", "R_f")


def test_what_does_differ_is_found():
    """The tests above could pass by silence."""
    torch.manual_seed(3)
    model, collapsed = plain(), plain()
    with torch.no_grad():
        collapsed[3].weight[1:] = 0.001 * collapsed[3].weight[1:]  # almost one direction is left
    entries = entries_of([measured(model, "plain"), measured(collapsed, "collapsed")])
    (compared,) = compare_pairs(entries, [(entries.models[0], entries.models[1])]).values()
    assert 0 in {comparison.better for comparison in compared}
