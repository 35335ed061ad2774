"""The table in benchmarks/results: every row can be asked for again, and the documentation says what is in it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from lisse.reporting.atlas import load_atlas
from lisse.sweeping import Unit
from lisse.training import RECIPES

ROOT = Path(__file__).resolve().parents[2]


def test_every_row_of_the_committed_table_names_what_it_is_made_of():
    path = ROOT / "benchmarks" / "results" / "atlas.json"
    rows, words = load_atlas(path)
    assert len({row.key for row in rows}) == len(rows)
    for row in rows:
        unit = Unit.of(row.unit)
        assert unit.training is None or unit.training.recipe in RECIPES
        assert row.reason or (row.weights and row.data_hash and row.error and row.numbers.keys() <= words.keys())
    page = (ROOT / "docs" / "atlas.md").read_text("utf-8")
    assert f"{len(rows)} rows, {sum(bool(row.reason) for row in rows)} of them failed" in page
    for family, count in Counter(row.family for row in rows).items():
        assert f"{count} {family}" in page
