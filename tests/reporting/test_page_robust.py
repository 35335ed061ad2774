"""The verdict on a network trained against attacks, beside its plain twin: MNIST, minutes of one core."""

from __future__ import annotations

import dataclasses

import pytest

import lisse
from lisse.instruments import Robustness
from lisse.training import RECIPES

pytestmark = pytest.mark.large


@pytest.fixture(scope="module")
def profiles():
    try:
        train, test = (lisse.load_data("mnist", split=part, limit=n) for part, n in (("train", 12000), ("test", 600)))
    except (ValueError, FileNotFoundError):
        pytest.skip("LISSE_DATA has no MNIST")
    networks = {}
    for name, changes in {"plain": {}, "hardened": {"adversary": "pgd", "eps": 0.2, "adversary_steps": 3}}.items():
        networks[name] = lisse.load_model("zoo:lenet?in_channels=1&size=28")
        recipe = dataclasses.replace(RECIPES["default"], **changes)
        assert lisse.train(networks[name], train, recipe=recipe, epochs=5).status == "finished"
    return lisse.survey(networks, test, size="quick", instruments=[Robustness.sized("quick")])


def test_the_network_trained_against_attacks_is_called_so_and_by_what(profiles):
    sentences = lisse.verdict(profiles)
    (overall,) = [sentence for sentence in sentences if sentence.topic == "overall"]
    assert overall.text.startswith("hardened is ")
    assert "more robust to a screening gradient attack" in overall.text.split(" than plain")[0]
    (meaning,) = [sentence for sentence in sentences if sentence.topic == "meaning"]
    assert "a strong attack such as AutoAttack decides" in meaning.text


def test_a_page_of_small_samples_has_radii_at_which_something_falls(profiles):
    plain, hardened = (
        {row.at["eps"]: row.value for row in profile.rows if row.at.get("attack") == "fgsm" and "eps" in row.at}
        for profile in profiles
    )
    assert max(plain) == 0.3
    assert plain[0.02] > 0.8
    assert plain[0.3] < 0.3
    assert hardened[0.2] > plain[0.2]
