"""Several networks as one profile: means, and a band from the lowest to the highest."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_samples import LAYERS, profile, stability, topology

from lisse.profile import Part, Profile, Quantity, Row
from lisse.reporting import joined
from lisse.reporting.page.document import page
from lisse.reporting.page.entries import entries_of
from lisse.reporting.page.verdict import verdict


def networks(*rates: tuple[float, float, float], name: str = "net", half: float | None = 0.1) -> list[Profile]:
    return [
        profile(name, topology(one, half=half), fingerprint=f"{name}{place}", score={"error": place / 10, "n": 90})
        for place, one in enumerate(rates)
    ]


def values(found: Profile, quantity: str = "change_rate") -> list[tuple[Any, ...]]:
    return [(row.value, row.low, row.high) for row in found.rows if row.quantity == quantity]


def test_values_are_means_and_ends_the_outermost() -> None:
    found = joined(networks((1.0, 2.0, 3.0), (2.0, 4.0, 3.0), (3.0, 0.0, 3.0)), "net")
    assert values(found) == [pytest.approx(some) for some in ((2.0, 0.9, 3.1), (2.0, -0.1, 4.1), (3.0, 2.9, 3.1))]
    assert {row.kind for row in found.rows} == {"estimate"}
    assert {row.n for row in found.rows} == {150}
    assert [row.layer for row in found.rows] == [*LAYERS[1:], None]
    assert found.name == "net (3 networks)"
    said = found.provenance
    assert said["score"] == pytest.approx({"error": 0.1, "low": 0.0, "high": 0.2, "n": 90})
    assert said["seconds"] == 4.5
    assert [one["fingerprint"] for one in said["model"]["members"]] == ["net0", "net1", "net2"]
    assert found.notes[0].startswith("Means over 3 networks; bands reach from the lowest to the highest")
    diagrams = {f"diagram/{layer}/H{dim}" for layer in LAYERS for dim in (0, 1)}
    assert set(found["topology"].arrays) == {*diagrams, "networks"}
    own = [[1.0, 2.0, 3.0], [2.0, 4.0, 0.0], [3.0, 3.0, 3.0], [3.0, 4.0, 3.0]]  # of every row, each network's
    assert found["topology"].arrays["networks"].tolist() == own
    assert "Pictures are those of the first of the 3 networks." in found.notes


def test_exact_numbers_get_their_range_and_stay_exact() -> None:
    found = joined(networks((1.0, 2.0, 3.0), (2.0, 4.0, 3.0), half=None), "net")
    assert values(found) == [(1.5, 1.0, 2.0), (3.0, 2.0, 4.0), (3.0, None, None)]
    assert {row.kind for row in found.rows} == {"exact"}


@pytest.mark.parametrize(("kind", "ends"), [("exact", (1.0, 3.0)), ("lower", None), ("upper", None)])
def test_a_range_of_bounds_is_not_made_an_interval(kind: Any, ends: tuple[float, float] | None) -> None:
    meaning = Quantity("bound", "bound", "A bound.")
    some = [
        profile("net", Part("any", (Row("bound", value, kind, 5, "first", 0.0),), (meaning,)), fingerprint=str(value))
        for value in (1.0, 3.0)
    ]
    (row,) = joined(some, "net").rows
    assert (row.value, row.kind) == (2.0, kind)
    assert (row.low, row.high) == (ends or (None, None))


def test_rows_that_one_of_them_lacks_are_left_out_and_said() -> None:
    whole, half = networks((1.0, 2.0, 3.0), (2.0, 4.0, 3.0))
    part = half["topology"]
    half = Profile((Part("topology", part.rows[1:], part.quantities),), half.provenance)
    found = joined([whole, half], "net")
    assert [row.layer for row in found.rows] == ["second", "output", None]
    assert "Left out: 1 numbers that not every one of the 2 networks has." in found.notes


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_has_no_mean(bad: float) -> None:
    found = joined(networks((1.0, 2.0, 3.0), (bad, 4.0, 3.0), half=None), "net")
    first, second, *_ = values(found)
    assert math.isnan(first[0])
    assert first[1:] == (None, None)
    assert second == (3.0, 2.0, 4.0)


@given(st.lists(st.tuples(*[st.floats(0, 9)] * 3), min_size=2, max_size=5), st.randoms())
def test_the_order_does_not_matter_and_the_mean_lies_within(rates: list[Any], random: Any) -> None:
    some = networks(*rates)
    shuffled = random.sample(some, len(some))
    found = joined(some, "net")
    assert values(joined(shuffled, "net")) == values(found)
    assert joined(shuffled, "net").provenance["model"]["fingerprint"] == found.provenance["model"]["fingerprint"]
    for value, low, high in values(found):
        assert low <= value <= high


@pytest.mark.parametrize(
    ("some", "match"),
    [
        (lambda: networks((1.0, 2.0, 3.0)), "joined: profiles must be two or more, got 1"),
        (
            lambda: [*networks((1.0, 2.0, 3.0)), profile("net", topology((1.0, 2.0, 3.0)), data="others")],
            "joined: profiles must have the same data, got others in net and net",
        ),
        (
            lambda: [
                *networks((1.0, 2.0, 3.0)),
                profile("wide", topology((1.0, 2.0, 3.0)), layers=[{"name": "a", "shape": [9]}]),
            ],
            "joined: profiles must have the same layers, got others in net and wide. Join networks of one arch",
        ),
        (lambda: networks((1.0, 2.0, 3.0)) * 2, "joined: profiles must be of different networks, got the same weights"),
    ],
)
def test_what_cannot_be_joined(some: Any, match: str) -> None:
    with pytest.raises(ValueError, match=re.escape(match)):
        joined(some(), "net")


def test_networks_that_read_other_tokens_are_not_joined() -> None:
    text = [{"name": "t", "fingerprint": "t", "tokenizer": {"name": n, "fingerprint": n}} for n in ("words", "bytes")]
    members = [profile(f"net{n}", topology((1.0, 2.0, 3.0))) for n in (0, 1)]
    members = [
        Profile(member.parts, {**member.provenance, "data": data}) for member, data in zip(members, text, strict=True)
    ]
    with pytest.raises(ValueError, match="joined: profiles must have the same data"):
        joined(members, "net")


def test_profiles_must_be_profiles() -> None:
    with pytest.raises(TypeError, match=r"joined: profiles must be Profiles, got \['str'\]"):
        joined(["a.profile"], "net")  # type: ignore[list-item]


def test_a_joined_profile_survives_its_file(tmp_path: Any) -> None:
    found = joined(networks((1.0, 2.0, 3.0), (2.0, 4.0, 3.0)), "net")
    back = Profile.load(found.save(tmp_path / "a.profile"))
    assert back.rows == found.rows
    assert entries_of(back).models[0].networks == 2


# --- on the page -----------------------------------------------------------------------------------------------------


def test_the_page_draws_one_line_and_one_band() -> None:
    document = page([joined(networks((1.0, 2.0, 3.0), (2.0, 4.0, 3.0), (3.0, 2.0, 3.0)), "net")])
    figure = document.split('id="topology-change-rate"')[1].split("</figure>")[0]
    assert figure.count('class="line m0"') == 1
    assert figure.count('class="band m0"') == 1
    assert figure.count('class="mark m0"') == 3
    assert "lowest to highest of the networks" in figure
    assert "Those of several networks reach from the lowest to the highest of them." in figure
    assert "<dt>networks</dt><dd>3</dd>" in document
    plain = page(networks((1.0, 2.0, 3.0)))
    assert "of the networks" not in plain
    assert "<dt>networks</dt>" not in plain


def told(*profiles: Profile) -> str:
    return " ".join(one.text for one in verdict(entries_of(profiles)))


def test_the_verdict_compares_the_networks_of_each() -> None:
    low = joined(networks((0.2, 1.0, 0.5), (0.2, 1.4, 0.5), (0.2, 1.2, 0.5)), "low")
    high = joined(networks((0.2, 3.0, 0.5), (0.2, 4.0, 0.5), (0.2, 3.3, 0.5), name="other"), "high")
    wide = joined(networks((0.2, 1.6, 0.5), (0.2, 9.0, 0.5), (0.2, 2.0, 0.5), name="another"), "wide")
    assert "low (3 networks) is smoother than high (3 networks) by TopoLip." in told(low, high)
    assert "Nothing here tells low (3 networks) and wide (3 networks) apart" in told(low, wide)
    assert "low (3 networks): numbers are means over the networks" in told(low)


def test_ranges_of_exact_numbers_tell_nothing_apart() -> None:
    low = joined(networks((0.2, 1.0, 0.5), (0.2, 1.4, 0.5), half=None), "low")
    high = joined(networks((0.2, 3.0, 0.5), (0.2, 4.0, 0.5), name="other", half=None), "high")
    said = told(low, high)
    assert "there are no intervals to go by for TopoLip" in said
    assert "smoother" not in said


def test_random_networks_of_all_members_are_references_once() -> None:
    members = [profile("net", stability((1.0, 0.8, 0.5, 0.2 + place / 9)), fingerprint=f"n{place}") for place in (0, 1)]
    starts = [
        profile("start", stability((1.0, 1.0, 1.0, 1.0 + seed)), fingerprint=f"s{seed}",
                reference={"kind": "initialisation", "model": f"n{place}", "seed": seed})
        for place in (0, 1) for seed in (0, 1)
    ]  # fmt: skip
    found = entries_of([joined(members, "net"), *starts])
    assert len(found.models) == 1
    assert [some.provenance["model"]["fingerprint"] for some in found.models[0].initial] == ["s0", "s1"]
    alone = entries_of([members[0], *starts[:2]])
    assert len(alone.models[0].initial) == 2
