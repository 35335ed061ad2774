"""A data set in a drawn order: the same samples, a random order of them, and nothing read that is not asked for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import lisse
from lisse.data import Dataset, Drawn
from lisse.instruments import Isometry, Robustness, Sensitivity, Stability, Topology
from lisse.reporting.page.comparisons import compare_pairs
from lisse.reporting.page.entries import entries_of
from lisse.run import Run


def by_class(n: int = 60, classes: int = 6) -> Dataset:
    """Images sorted by class, each as bright as its number."""
    images = torch.arange(n, dtype=torch.float32)[:, None, None, None].expand(n, 1, 8, 8) / n
    return Dataset("sorted", images.contiguous(), torch.arange(n) // (n // classes))


def pairs() -> Dataset:
    ids = torch.arange(40).reshape(20, 2)
    sides = [Dataset("pairs", {"input_ids": ids + k}, lengths=torch.arange(20) % 2 + 1) for k in (0, 100)]
    return Dataset("pairs", sides[0].inputs, torch.arange(20), sides[0].lengths, partner=sides[1])


@settings(max_examples=30, deadline=None)
@given(size=st.integers(1, 70), n=st.integers(1, 60), seed=st.integers(-5, 2**63))
def test_the_first_samples_are_those_of_a_random_sample(size, n, seed):
    data = by_class()
    drawn = Drawn(data, seed)
    expected = data.sample(n, seed)
    batches = list(drawn.batches(size, stop=n))
    assert torch.equal(torch.cat([batch.inputs for batch in batches]), expected.inputs)
    assert torch.equal(torch.cat([batch.targets for batch in batches]), expected.targets)
    assert [batch.start for batch in batches] == list(range(0, n, size))
    assert torch.equal(drawn.take(n).inputs, expected.inputs)
    assert torch.equal(drawn.inputs[:n], expected.inputs)
    assert torch.equal(drawn.targets[:n], expected.targets)
    assert sorted(drawn.order.tolist()) == list(range(60))


def test_everything_stays_beside_its_sample():
    data = pairs()
    drawn = Drawn(data, 3)
    assert drawn.order.tolist() != list(range(20))
    rows = drawn.targets
    assert torch.equal(drawn.inputs["input_ids"], data.inputs["input_ids"][rows])
    assert torch.equal(drawn.partner.inputs["input_ids"], data.partner.inputs["input_ids"][rows])
    assert torch.equal(drawn.lengths, data.lengths[rows])
    (batch,) = drawn.partner.batches(4, start=5, stop=9)
    assert torch.equal(batch.inputs["input_ids"], data.partner.inputs["input_ids"][rows[5:9]])
    subset = drawn.subset([4, 2, 4])
    assert torch.equal(subset.targets, rows[[4, 2, 4]])
    assert torch.equal(subset.partner.lengths, data.partner.lengths[rows[[4, 2, 4]]])
    assert torch.equal(drawn.to("cpu").targets, rows)


def test_what_it_is_and_what_it_is_called_do_not_change():
    data = pairs()
    drawn, again = Drawn(data, 3), Drawn(Drawn(data, 4), 3)
    assert (len(drawn), drawn.name, drawn.is_text, drawn.classes) == (20, "pairs", True, None)
    assert drawn.fingerprint() == data.fingerprint()
    assert drawn.tensor_fingerprint() == data.tensor_fingerprint()
    assert "20 samples, inputs {'input_ids'" in repr(drawn)
    assert again.digest == drawn.digest
    assert torch.equal(again.targets, drawn.targets)
    assert Drawn(data, 4).digest != drawn.digest
    assert drawn.form["input_ids"].shape == (20, 2)
    with pytest.raises(ValueError, match="take: n must be an integer in 1 … 20, got 21"):
        drawn.take(21)
    with pytest.raises(ValueError, match="subset: indices must lie in 0 … 19, got 20"):
        drawn.subset([20])
    with pytest.raises(TypeError, match="Drawn: seed must be an integer"):
        Drawn(data, 0.5)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 6))


def test_a_run_takes_a_sample_of_all_classes():
    """Of a sorted file, the first ten as they are given have one class."""
    data = by_class()
    drawn, given = Run(network(), data), Run(network(), data, order="given")
    assert len(set(drawn.data.targets[:10].tolist())) >= 4
    assert len(set(given.data.targets[:10].tolist())) == 1
    assert torch.equal(drawn.recording(10)["input"], drawn.recording(60)["input"][:10])
    assert drawn.order == {"by": "drawn", "digest": drawn.data.digest}
    assert given.order == {"by": "given"}
    assert drawn.identity != given.identity
    assert drawn.identity == Run(network(), data).identity
    assert drawn.order != Run(network(), data, seed=1).order
    assert drawn.fingerprints == given.fingerprints


LOOKS = [
    Topology(samples=8, clouds=4, dims=(0,), p=(1,)),
    Isometry(samples=16, clouds=3, points=4, holes=False),
    Sensitivity(samples=20, points=8, max_iter=3, margins=20),
    Stability(samples=30),
    Robustness(samples=30, corruptions=("gaussian_noise",), severities=(3,), attacks=()),
]


@pytest.fixture(scope="module")
def profiles():
    return {
        (name, order): lisse.measure(model, by_class(), LOOKS, order=order, name=name)
        for name, model in (("a", network()), ("b", nn.Sequential(*network(), nn.Identity())))
        for order in ("drawn", "given")
    }


def test_instruments_read_no_more_than_they_need(monkeypatch):
    run = Run(network(), by_class())
    monkeypatch.setattr(Drawn, "inputs", property(lambda _: pytest.fail("all inputs were read")))
    for look in LOOKS:
        assert look.part(run).rows


def test_profiles_say_which_samples_they_took_and_only_the_same_are_paired(profiles):
    def ways(first, second):
        entries = entries_of([first, second])
        (compared,) = compare_pairs(entries, [entries.models]).values()
        return {comparison.way for comparison in compared if comparison.counts}

    a, b = profiles["a", "drawn"], profiles["b", "drawn"]
    assert a.provenance["order"] == b.provenance["order"]
    assert a.provenance["order"]["by"] == "drawn"
    assert "intervals" not in ways(a, b)
    assert ways(a, profiles["b", "given"]) == {"intervals"}
    assert "intervals" not in ways(profiles["a", "given"], profiles["b", "given"])
