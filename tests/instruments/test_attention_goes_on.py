"""What reads attention shares the clean pass, and goes on where it was killed: counted in forwards."""

from __future__ import annotations

import itertools

import pytest
import torch

import lisse
from lisse.data import Dataset
from lisse.instruments import Contraction, Propagation, Topology
from lisse.networks.zoo.vit import VisionTransformer
from lisse.run import Run

N = 24
IMAGES = Dataset("pictures", torch.rand(N, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(N) % 3)
# With the size of a batch, and how often the samples of one that is lost go through the network.
CASES = {
    "contraction": (Contraction(samples=N, points=3, max_iter=2, shown=2), 4, 2),  # both sides of a pair
    "propagation": (Propagation(samples=N, kernels=6), 4, 1),
    "without skips": (Propagation(samples=N, kernels=6, ablation=True), 4, 2),  # with and without
    "across batches": (Propagation(samples=N, kernels=6), 5, 2),  # a group of similarity began in the batch before
}
FORWARDS = [0]  # samples that went through; not an attribute, which a cache would know the model by
KILL = [float("inf")]


class Counted(VisionTransformer):
    def forward(self, x):
        FORWARDS[0] += len(x)
        if FORWARDS[0] >= KILL[0]:
            raise KeyboardInterrupt
        return super().forward(x)


def network():
    torch.manual_seed(0)
    return Counted(3, 8, 5, width=8, heads=2, depth=2, patch=4, eps=1e-6)


def measured(*instruments, **options):
    """The profile, and how many samples went through the network for it."""
    before = FORWARDS[0]
    profile = lisse.measure(network(), IMAGES, list(instruments), **options)
    return profile, FORWARDS[0] - before


def told(profile):
    return [repr(row) for row in profile.rows], profile.notes


@pytest.mark.parametrize("name", CASES)
def test_a_kill_costs_one_batch(name, tmp_path, monkeypatch):
    monkeypatch.setattr(Run, "patience", 0.0)
    instrument, batch, times = CASES[name]
    events = []
    expected, fresh = measured(instrument, batch=batch, cache=tmp_path / "fresh", progress=events.append)
    # Again finds the layers, and looks at a first batch; whoever goes on also finds the attention layers again.
    _, again = measured(instrument, batch=batch, cache=tmp_path / "fresh")
    most = fresh + again + 5 + times * batch
    for count in range(again + 1, fresh, 9):
        before, folder = FORWARDS[0], tmp_path / f"forward {count}"
        KILL[0] = before + count
        with pytest.raises(KeyboardInterrupt):
            measured(instrument, batch=batch, cache=folder)
        KILL[0] = float("inf")
        profile, _ = measured(instrument, batch=batch, cache=folder)
        assert FORWARDS[0] - before <= most, f"killed in forward {count} of {fresh}"
        assert told(profile) == told(expected)
    for moment in range(1, len(events), 4):
        ticks = itertools.count(1)

        def listen(event, ticks=ticks, moment=moment):
            if next(ticks) == moment:
                raise KeyboardInterrupt

        before, folder = FORWARDS[0], tmp_path / f"event {moment}"
        with pytest.raises(KeyboardInterrupt):
            measured(instrument, batch=batch, cache=folder, progress=listen)
        profile, _ = measured(instrument, batch=batch, cache=folder)
        assert FORWARDS[0] - before <= most, f"killed at event {moment} of {len(events)}: {events[moment - 1]}"
        assert told(profile) == told(expected)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("samples", [N, 10])
def test_the_recording_is_made_in_passing(name, samples):
    instrument, batch, _ = CASES[name]
    alone, forwards = measured(instrument, batch=batch)
    topology = Topology(samples=samples, clouds=1, dims=(0,), p=(1,))
    both, together = measured(topology, instrument, batch=batch)
    assert together == forwards
    assert told(both)[0][-len(alone.rows) :] == told(alone)[0]
    assert [repr(row) for row in both["topology"].rows] == [repr(row) for row in measured(topology)[0].rows]
