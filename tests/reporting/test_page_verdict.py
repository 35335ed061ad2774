"""The verdict: every sentence rests on rows, and says no more than they do."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from page_samples import profile, smooth, stability, topology, torn

from lisse.reporting.page.axis import short_number
from lisse.reporting.page.entries import entries_of
from lisse.reporting.page.verdict import verdict


def sentences(*profiles, topic=None):
    return [one for one in verdict(entries_of(profiles)) if topic in (None, one.topic)]


def words(*profiles, topic=None) -> str:
    return " ".join(one.text for one in sentences(*profiles, topic=topic))


def test_the_smoother_model_is_named_with_its_numbers():
    (overall,) = sentences(smooth(), torn(), topic="overall")
    assert overall.text == "smooth is smoother than torn by TopoLip and R_f."
    by_topolip, by_r = sentences(smooth(), torn(), topic="comparison")
    assert (
        by_topolip.text
        == "TopoLip: 1 [0.9, 1.1] for smooth, 4 [3.9, 4.1] for torn. smooth is smoother: the intervals do not overlap."
    )
    assert by_r.text.startswith("R_f: 0.2 [0.19, 0.21] for smooth, 0.6 [0.59, 0.61] for torn.")


def test_swapping_the_models_swaps_the_verdict():
    forth, back = (sorted(one.text for one in sentences(*pair)) for pair in ((smooth(), torn()), (torn(), smooth())))
    assert forth == back  # the names go with the models
    renamed = sorted(one.text for one in sentences(smooth("torn"), torn("smooth")))
    assert any("torn is smoother than smooth" in text for text in renamed)
    assert not any("smooth is smoother" in text for text in renamed)


def test_a_model_against_itself_shows_no_difference():
    (overall,) = sentences(smooth(), smooth(), topic="overall")
    assert (
        overall.text == "smooth and smooth (2) are the same network, weight for weight: there is no difference to find."
    )
    assert sentences(smooth(), smooth(), topic="comparison") == []
    # the same numbers from other weights
    twin = profile("twin", *smooth().parts)
    assert "smoother" not in words(smooth(), twin)
    assert "Nothing here tells smooth and twin apart" in words(smooth(), twin)


@pytest.mark.parametrize("distance", [0.0, 0.1, 0.2])
def test_overlapping_intervals_forbid_the_word_smoother(distance):
    a = profile("a", topology((1.0, 2.0, 1.0), half=0.1))
    b = profile("b", topology((1.0, 2.0 + distance, 1.0), half=0.1))
    assert "smooth" not in words(a, b)
    assert "overlap" in words(a, b)


def test_intervals_apart_by_a_hair_allow_it():
    a = profile("a", topology((1.0, 2.0, 1.0), half=0.1))
    b = profile("b", topology((1.0, 2.2001, 1.0), half=0.1))
    assert "a is smoother than b by TopoLip." in words(a, b)


def test_numbers_without_intervals_speak_of_their_samples_only():
    a = profile("a", topology((1.0, 2.0, 1.0), half=None))
    b = profile("b", topology((1.0, 9.0, 1.0), half=None))
    said = words(a, b)
    assert "smooth" not in said
    assert "150 samples without intervals" in said
    assert "first look" in said


def test_mixed_measures_name_both():
    a = profile("a", topology((0.5, 1.0, 0.7)), stability((1.0, 0.9, 0.8, 0.6)))
    b = profile("b", topology((0.5, 4.0, 0.7)), stability((1.0, 0.8, 0.5, 0.2)))
    (overall,) = sentences(a, b, topic="overall")
    assert overall.text == "a is smoother than b by TopoLip; b is smoother than a by R_f."


def test_the_reason_is_the_right_one():
    a, b = (profile(name, topology((1.0, 2.0, 1.0), cloud=cloud)) for name, cloud in (("a", 50), ("b", 60)))
    (overall,) = sentences(a, b, topic="overall")
    assert overall.text == "Nothing here tells a and b apart: they were not measured alike in TopoLip."
    a, b = (profile(name, topology((1.0, 2.0, 1.0)), stability((1.0, 1.0, 1.0, 0.5), half=None)) for name in "ab")
    (overall,) = sentences(a, b, topic="overall")
    assert overall.text.endswith("the intervals overlap in TopoLip and there are no intervals to go by for R_f.")


def test_clouds_of_different_size_are_not_compared():
    a, b = profile("a", topology((1.0, 2.0, 1.0), cloud=50)), profile("b", topology((1.0, 9.0, 1.0), cloud=60))
    assert "smooth" not in words(a, b)
    assert "not measured alike (cloud 50 and 60)" in words(a, b)


def test_other_data_are_not_compared():
    a, b = profile("a", topology((1.0, 2.0, 1.0))), profile("b", topology((1.0, 9.0, 1.0)), data="other")
    assert "a and b were measured on different data (points, other): they are not compared." in words(a, b)
    assert "smooth" not in words(a, b)


def test_other_tokenizers_are_the_same_data_and_are_said():
    def tokenized(name, rates, tokenizer, **more):
        read = profile(name, topology(rates), **more)
        text = {**read.provenance["data"], "tokenizer": {"name": tokenizer, "fingerprint": tokenizer}}
        return dataclasses.replace(read, provenance={**read.provenance, "data": text})

    a, b = tokenized("a", (1.0, 2.0, 1.0), "words"), tokenized("b", (1.0, 9.0, 1.0), "bytes")
    assert "measured on the same texts, but their tokenizers differ (words; bytes)" in words(a, b)
    assert "smooth" in words(a, b)
    alike = tokenized("b", (1.0, 9.0, 1.0), "words")
    assert "tokenizers" not in words(a, alike)
    twins = [tokenized(name, (1.0, rate, 1.0), name, fingerprint="x") for name, rate in (("a", 2.0), ("b", 9.0))]
    assert "given other tokens of the same texts (a; b): what differs is what it read" in words(*twins)
    assert "no difference to find" not in words(*twins)
    assert "smoother" not in words(*twins), "one network is not smoother than itself, however its texts are cut"


def test_other_seeds_are_said():
    a, b = profile("a", topology((1.0, 2.0, 1.0))), profile("b", topology((1.0, 9.0, 1.0)), seed=7)
    assert "different seeds (0 and 7)" in words(a, b)


def test_other_versions_of_lisse_are_said():
    a = profile("a", topology((1.0, 2.0, 1.0)))
    b = profile("b", topology((1.0, 9.0, 1.0)), versions={"lisse": "9.1"})
    assert "by different versions of lisse (0 and 9.1)" in words(a, b)
    assert "versions" not in words(a, profile("b", topology((1.0, 9.0, 1.0))))


def test_no_sentence_points_at_a_layer_or_speaks_of_tears():
    """It was tested (benchmarks/peaks.py): nothing follows from where a change rate peaks."""
    for one in (torn("a"), smooth("b")):
        assert not re.search(r"\btears?\b|times its size|\bsecond\b", words(one, smooth("c")) + words(one))


def test_training_is_judged_against_random_weights():
    own = torn()
    before = profile("start", topology((0.5, 1.0, 0.7)), stability((1.0, 0.9, 0.8, 0.605)), fingerprint="other",
                     reference={"kind": "initialisation", "model": "weights of torn"})  # fmt: skip
    (training,) = sentences(own, before, topic="training")
    assert training.text == (
        "Against random weights (1 seed), training of torn raised TopoLip (from 1 to 4 [3.9, 4.1]); it did not "
        "measurably change R_f (from 0.605 to 0.6 [0.59, 0.61])."
    )
    assert len(training.rows) == 4
    # a reference is no second model
    assert [one.models for one in sentences(own, before, topic="overall")] == [(0,)]
    assert not sentences(own, before, topic="comparison")


def test_random_weights_are_not_called_training():
    bare = dataclasses.replace(torn(), provenance={**torn().provenance, "weights": "random"})
    before = profile("start", topology((0.5, 1.0, 0.7)), fingerprint="other",
                     reference={"kind": "initialisation", "model": "weights of torn"})  # fmt: skip
    assert not sentences(bare, before, topic="training")
    assert "torn has random weights" in words(bare, before)


@pytest.mark.parametrize(
    ("value", "half", "said"),
    [(0.2, 0.1, "less strongly than"), (3.0, 0.1, "more strongly than"), (1.05, 0.1, "about as strongly as")],
)
def test_a_model_alone_is_judged_by_its_own_numbers(value, half, said):
    (overall,) = sentences(profile("one", stability((1.0, 1.0, 1.0, value), half=half)), topic="overall")
    assert overall.text.startswith(f"one answers smooth deformations of its input {said} noise of the same size (R_f ")
    assert len(overall.rows) == 1
    assert "two models" not in words(profile("one", stability((1.0, 1.0, 1.0, value), half=half)))


def test_three_models_are_compared_in_pairs():
    middle = profile("middle", topology((0.5, 2.0, 0.7)))
    said = [one.text for one in sentences(smooth(), middle, torn(), topic="pair")]
    assert len(said) == 3
    assert said[0] == "smooth is smoother than middle by TopoLip."
    (overall,) = sentences(smooth(), middle, torn(), topic="overall")
    assert overall.text == (
        "3 of 3 pairs of networks differ in a number that judges; the better one is smooth in 3 and middle in 1 of 4 "
        "cases."
    )
    assert set(overall.rows) == {row for one in sentences(smooth(), middle, torn(), topic="pair") for row in one.rows}


NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?:·10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)?")


@settings(max_examples=40)
@given(
    rates=st.lists(st.floats(0.01, 1e6), min_size=3, max_size=3),
    others=st.lists(st.floats(0.01, 1e6), min_size=3, max_size=3),
    half=st.floats(0.0, 10.0),
)  # fmt: skip
def test_every_number_of_every_sentence_is_one_of_its_rows(rates, others, half):
    entries = entries_of(
        [profile("a", topology(tuple(rates), half=half)), profile("b", topology(tuple(others), half=half))]
    )
    said = verdict(entries)
    assert any(one.topic == "overall" for one in said)
    for one in said:
        rows = [entries.rows[index].row for index in one.rows]
        if one.topic != "caveat":
            assert rows, one
        known = {short_number(value) for row in rows for value in (row.value, row.low, row.high)}
        known |= {f"{row.n:,}" for row in rows} | {str(round(100 * row.depth)) for row in rows if row.depth is not None}
        known = {text.lstrip("−") for text in known} | {"1"}
        assert set(NUMBER.findall(one.text.replace("−", ""))) <= known, one.text
        # the word goes with intervals that are apart
        if "smoother" in one.text and one.topic == "comparison":
            a, b = rows
            assert a.high < b.low or b.high < a.low
        for row in rows:
            assert row.quantity in ("topolip_change_rate", "change_rate")


def test_a_page_takes_the_sentences_that_are_there_already(tmp_path, monkeypatch):
    import lisse

    profiles = [smooth(), torn()]
    told = lisse.verdict(profiles)
    assert told == verdict(entries_of(profiles))
    before = lisse.report(profiles, tmp_path / "a.html").read_text()
    monkeypatch.setattr("lisse.reporting.page.document.verdict", None)
    assert lisse.report(profiles, tmp_path / "b.html", sentences=told).read_text() == before
