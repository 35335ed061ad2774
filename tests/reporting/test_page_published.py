"""The verdict on networks that others trained, on real images: ResNet-20 and ResNet-56 on CIFAR-10."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import lisse
from lisse.instruments import Stability, Topology
from lisse.reporting.page.entries import entries_of
from lisse.reporting.page.verdict import verdict

pytestmark = pytest.mark.large
FILES = {"resnet20": "resnet20-12fca82f.th", "resnet56": "resnet56-4bfd9763.th"}


@pytest.fixture(scope="module")
def profiles():
    folder = Path(os.environ.get("LISSE_DATA", ".")) / "checkpoints"
    if not all((folder / file).is_file() for file in FILES.values()):
        pytest.skip("LISSE_DATA has no checkpoints")
    data = lisse.load_data("cifar10", limit=300)
    chosen = [Topology(samples=100, clouds=3, dims=(0,), p=(1,)), Stability(samples=150)]
    models = [lisse.load_model(f"zoo:{name}?weights={folder / file}") for name, file in FILES.items()]
    return [lisse.measure(model, data, chosen) for model in models]


def told(*profiles) -> list[str]:
    return [one.text for one in verdict(entries_of(profiles)) if one.topic in ("overall", "comparison")]


def test_the_order_of_the_models_does_not_matter_and_every_sentence_has_rows(profiles):
    a, b = profiles
    assert sorted(told(a, b)) == sorted(told(b, a))
    entries = entries_of([a, b])
    for one in verdict(entries):
        assert one.rows or one.topic == "caveat"
        assert all(0 <= row < len(entries.rows) for row in one.rows)


def test_only_numbers_that_judge_are_compared(profiles):
    entries = entries_of(profiles)
    compared = [one for one in verdict(entries) if one.topic == "comparison"]
    assert "stability" in {one.instrument for one in compared}
    assert not any("TopoLip" in one.text for one in verdict(entries) if one.topic in ("overall", "comparison"))
    for one in compared:
        a, b = (entries.rows[row].row for row in one.rows[:2])  # a ratio has the rows of its two parts behind its own
        assert a.layer != "output"
        if "the same" not in one.text:  # without values sample by sample, intervals decide
            assert ("smoother" in one.text) == (a.high < b.low or b.high < a.low)


def test_a_model_against_itself_shows_no_difference(profiles, tmp_path):
    (said,) = told(profiles[0], profiles[0])
    assert said == "resnet20 and resnet20 (2) are the same network, weight for weight: there is no difference to find."
    assert lisse.report(profiles, tmp_path / "r.html").stat().st_size < 5_000_000
