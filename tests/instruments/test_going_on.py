"""Killed at any moment, an instrument goes on where it stopped: at most one batch of forwards is made again."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lisse
from lisse.data import Dataset
from lisse.instruments import Isometry, Sensitivity, Stability, Topology
from lisse.run import Run

BATCH = 20
DATA = Dataset("pictures", torch.rand(120, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(120) % 3)
INSTRUMENTS = [
    Topology(samples=30, clouds=3),
    Isometry(samples=30, clouds=3, points=16, max_iter=2),
    Sensitivity(samples=30, clouds=3, points=16, max_iter=2),
    Stability(samples=70, cut=(2, 3)),
    Stability(samples=70, interpolation="gaussian", statistic="coordinates"),
]
FORWARDS = [0]  # samples that went through a Counted; not an attribute, which a cache would know the model by


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        convolutions = nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 4, 3), nn.Flatten()
        self.layers = nn.Sequential(*convolutions, nn.Linear(64, 9), nn.Tanh(), nn.Linear(9, 3))

    def forward(self, x):
        FORWARDS[0] += len(x)
        return self.layers(x)


class Reader(nn.Module):
    """Words with padding, and a pooled answer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.a, self.b, self.head = (
            nn.Embedding(9, 4),
            nn.Linear(4, 5),
            nn.Linear(5, 3),
            nn.Linear(3, 2),
        )

    def forward(self, input_ids, attention_mask):
        FORWARDS[0] += len(input_ids)
        return self.head(self.b(torch.tanh(self.a(self.embedding(input_ids)))).mean(1))


def texts():
    generator = torch.Generator().manual_seed(1)
    mask = (torch.arange(6) < torch.randint(2, 7, (120, 1), generator=generator)).long()
    return {"input_ids": torch.randint(1, 9, (120, 6), generator=generator) * mask, "attention_mask": mask}


def measured(instrument, model=Counted, data=DATA, **options):
    """The profile, and how many samples went through the network for it."""
    before = FORWARDS[0]
    profile = lisse.measure(model(), data, instrument, batch=BATCH, **options)
    return profile, FORWARDS[0] - before


@pytest.mark.parametrize("instrument", INSTRUMENTS, ids=lambda instrument: instrument.name)
def test_a_kill_costs_at_most_one_batch(tmp_path, monkeypatch, instrument):
    check_kills(tmp_path, monkeypatch, instrument)


def test_a_kill_costs_at_most_one_batch_where_every_token_is_a_point(tmp_path, monkeypatch):
    instrument = Topology(samples=30, clouds=3)
    check_kills(tmp_path, monkeypatch, instrument, model=Reader, data=texts(), readout="tokens")


def check_kills(tmp_path, monkeypatch, instrument, **options):
    monkeypatch.setattr(Run, "patience", 0.0)
    events = []
    expected, fresh = measured(instrument, cache=tmp_path / "fresh", progress=events.append, **options)
    _, start = measured(instrument, cache=tmp_path / "fresh", **options)  # finds the layers, and looks at a first batch
    for moment in sorted({1, 2, *(len(events) * share // 8 for share in range(1, 8)), len(events) - 1}):
        count = 0

        def stop(event, moment=moment):
            nonlocal count
            count += 1
            if count == moment:
                raise KeyboardInterrupt

        before = FORWARDS[0]
        with pytest.raises(KeyboardInterrupt):
            measured(instrument, cache=tmp_path / str(moment), progress=stop, **options)
        profile, _ = measured(instrument, cache=tmp_path / str(moment), **options)
        words = f"killed at event {moment} of {len(events)}: {events[moment - 1]}"
        assert FORWARDS[0] - before <= fresh + start + BATCH, words
        assert [repr(row) for row in profile.rows] == [repr(row) for row in expected.rows], words
        assert profile.notes == expected.notes


def test_stability_reads_the_clean_pass_of_the_others():
    """Where the clean image is the image: not where the interpolation blurs it."""
    fifty = 50  # samples on the other side of pairs are not the first ones
    alone, together, blurred = (
        measured(instruments)[1]
        for instruments in (
            Stability(samples=80),
            [Topology(samples=30, clouds=3), Stability(samples=80)],
            [Topology(samples=30, clouds=3), Stability(samples=80, interpolation="gaussian")],
        )
    )
    start = alone - 3 * 80 - fifty
    assert 0 < start < 16  # to find the layers, and to see whether three samples give the same bits twice
    assert together == start + 100 + 2 * 80 + fifty  # 90 samples of clouds are five batches
    assert blurred == start + 100 + 3 * 80 + fifty


def test_nothing_large_stays_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(Run, "patience", 0.0)
    sizes = []

    def look(event):
        sizes.append(max((file.stat().st_size for file in tmp_path.rglob("*.arrays")), default=0))

    measured(Stability(samples=70), cache=tmp_path, progress=look)
    numbers = sum(tap.numel for tap in Run(Counted(), DATA).taps)
    assert max(sizes) > 50 * 4 * numbers  # the partners' activations, while they are needed
    assert all(file.stat().st_size < 50 * 4 * numbers for file in tmp_path.rglob("*.arrays"))
