"""Where a model stands among networks that were measured before: those that compare, and how sure each side is."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from page_samples import profile

from lisse.instruments import Stability
from lisse.profile import Part, Row, options_of
from lisse.reporting.page import page, peers
from lisse.reporting.page.peers import LEAST_PEERS, measured_networks

ROOT = Path(__file__).resolve().parents[2]
SCORE = {"error": 0.3, "low": 0.25, "high": 0.35, "n": 100}


def measured(value=2.0, low=1.5, high=2.5, *, data="toy", score=SCORE, **options):
    row = Row("relative_stability", value, "estimate", 9, "last", 1.0, low=low, high=high, at={"cut": 3, "delta": 1.0})
    part = Part("stability", (row,), Stability.QUANTITIES, options=options_of(Stability(**options)))
    return profile("mine", part, data=data, score=score)


def group(count=LEAST_PEERS, **changes):
    """As many networks: R_f 1, 2, 3, … ± 0.4, all of one error."""
    networks = [[f"f{index % 2}", 0.2, 0.15, 0.24, index + 1.0, index + 0.6, index + 1.4] for index in range(count)]
    options = json.loads(json.dumps({"stability": options_of(Stability())}))
    headlines = [["stability", "relative_stability"]]
    return {"data": "toy", "fingerprints": ["bytes of toy"], "options": options, "headlines": headlines,
            "networks": networks, **changes}  # fmt: skip


@pytest.fixture
def words(monkeypatch):
    """The text below the picture of a profile among a group, or nothing."""

    def read(profile, **changes):
        monkeypatch.setattr(peers, "measured_networks", lambda: (group(**changes),))
        match = re.search(r'<figure id="place-[\w-]+">.*?<p class="facts">(.*?)</p>', page(profile), re.S)
        return match[1] if match else ""

    return read


def test_networks_are_told_apart_where_intervals_do_not_overlap(words):
    text = words(measured())
    assert f"Grey: {LEAST_PEERS} trained networks (10 f0, 10 f1), measured before on the same data" in text
    # [1.5, 2.5] against [0.6, 1.4], [1.6, 2.4], [2.6, 3.4], …
    assert f"1 have a lower R_f, {LEAST_PEERS - 2} a higher one, 1 are not told apart" in text
    assert f"{LEAST_PEERS} have a lower test error, 0 a higher one" in text
    assert "on other samples of toy" in words(measured(), fingerprints=["others"])


def test_a_number_without_an_interval_tells_nobody_apart(words):
    text = words(measured(low=None, high=None, score={"error": 0.3, "n": 9}))
    assert "its R_f has no interval, so that none is told apart; its test error has no interval" in text


def test_only_networks_of_the_same_data_and_options_compare(words):
    assert words(measured(samples=7, level=0.9))  # how much is looked at moves no number
    assert words(measured(), data="renamed")  # the same samples by their fingerprint
    assert words(measured(delta=2.0)) == ""
    assert words(measured(statistic="mean")) == ""
    assert words(measured(data="other")) == ""
    assert words(measured(score={})) == ""


def test_of_too_few_networks_nothing_is_said(words):
    assert words(measured(), count=LEAST_PEERS - 1) == ""
    unknown = [[*network[:4], None, None, None] for network in group(1)["networks"]]
    assert words(measured(), networks=[*group(LEAST_PEERS - 1)["networks"], *unknown]) == ""


def test_an_error_is_not_drawn_against_itself(words):
    networks = [["f", 0.2, 0.1, 0.3, 0.8, 0.7, 0.9]] * LEAST_PEERS
    assert words(measured(), networks=networks) == ""


def test_the_package_carries_the_committed_atlas(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import packaged_atlas

    monkeypatch.delitem(sys.modules, "packaged_atlas")
    path = ROOT / "src" / "lisse" / "reporting" / "page" / "networks.json"
    assert path.read_text("utf-8") == packaged_atlas.packed()  # python benchmarks/packaged_atlas.py --write
    for before in measured_networks():
        assert all(len(network) == 4 + 3 * len(before["headlines"]) for network in before["networks"])
    assert f"{path.stat().st_size / 1e3:.0f} kB" in (ROOT / "docs" / "report.md").read_text("utf-8")
