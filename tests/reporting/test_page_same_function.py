"""Networks that differ in nothing that matters, measured and given to the verdict: it finds no difference."""

from __future__ import annotations

import copy

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
