"""Two models on the same samples: paired differences, one correction for the page, and what must not matter."""

from __future__ import annotations

import dataclasses
import importlib
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from page_samples import profile

from lisse.profile import EVERYTHING, LAYERS, Headline, Part, Profile, Quantity, Row
from lisse.reporting import joined
from lisse.reporting.page.comparisons import compare_pairs
from lisse.reporting.page.document import page
from lisse.reporting.page.entries import entries_of
from lisse.reporting.page.verdict import verdict

N = 80


def ratio_of_medians(values: np.ndarray) -> float:
    return float(np.median(values[:, 0]) / np.median(values[:, 1]))


def largest_mean(layers: np.ndarray) -> float:
    return float(layers.mean(0).max())


WORDS = {largest_mean: "largest", np.median: "median", ratio_of_medians: "ratio of medians"}


def quantity(name: str, *, invariant=EVERYTHING, better="lower", makes="smoother", statistic="mean") -> Quantity:
    headline = Headline(name, f"what {name} says", makes)
    return Quantity(name, name, f"It is {name}.", better=better, headline=headline, invariant=invariant,
                    statistic=statistic)  # fmt: skip


def measured(name: str, values: dict[str, np.ndarray], *, way="samples", statistic=np.mean, half=1.0, better="lower",
             invariant=EVERYTHING, **more) -> Profile:  # fmt: skip
    """A profile whose numbers are a statistic of the samples that it holds, with intervals that are far too wide."""
    numbers = {key: float(statistic(array)) for key, array in values.items()}
    rows = [Row(key, value, "estimate", N, low=value - half, high=value + half) for key, value in numbers.items()]
    word = WORDS.get(statistic, "mean")
    meanings = [quantity(key, better=better, invariant=invariant, statistic=word) for key in values]
    arrays = {f"{way}/{key}": array for key, array in values.items()}
    return profile(name, Part("any", rows, meanings, arrays=arrays), **more)


def comparisons(*profiles: Profile):
    entries = entries_of(profiles)
    return compare_pairs(entries, [(entries.models[0], entries.models[1])])[0, 1]


def words(*profiles: Profile, topic: str | None = None) -> str:
    return " ".join(sentence.text for sentence in verdict(list(profiles)) if topic in (None, sentence.topic))


def noise(seed: int = 0, n: int = N) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=n)


# --- who judges ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("invariant", [(), LAYERS])
def test_a_number_that_does_not_judge_is_in_the_table_and_in_no_sentence(invariant):
    a, b = (measured(name, {"own": noise() + 9 * shift}, invariant=invariant) for shift, name in enumerate("ab"))
    assert comparisons(a, b) == []
    text = words(a, b)
    assert "smoother" not in text
    assert "a and b have no number in common that may judge" in text
    assert "<small>does not judge</small>" in page([a, b])
    papers = [
        dataclasses.replace(
            part, quantities=tuple(dataclasses.replace(q, reference="[a2020] eq. 1") for q in part.quantities)
        )
        for part in (a.parts[0], b.parts[0])
    ]
    cited = [dataclasses.replace(profile, parts=(part,)) for profile, part in zip((a, b), papers, strict=True)]
    assert "as printed in the paper: does not judge" in page(cited)
    judging = [measured(name, {"own": noise() + 9 * shift}) for shift, name in enumerate("ab")]
    assert "a is smoother than b by own." in words(*judging)
    assert "does not judge" not in page(judging)


# --- the same samples ------------------------------------------------------------------------------------------------


def test_pairs_decide_where_intervals_overlap():
    samples = noise()
    a, b = measured("a", {"x": samples}), measured("b", {"x": samples + 0.1 + 0.05 * noise(1)})
    (comparison,) = comparisons(a, b)
    assert (comparison.reason, comparison.better, comparison.way) == ("apart", 0, "samples")
    text = words(a, b, topic="comparison")
    assert "On the same 80 samples they differ by −0.0964 [−0.106, −0.0868], p = " in text
    assert text.endswith("after correction: a is smoother.")
    assert "1 comparison on the same 80 samples, corrected together." in words(a, b, topic="sure")
    assert "sample by sample and corrected together (Holm)" in words(a, b, topic="method")
    assert "Two files were compared, not two ways of training: for those, --join several seeds" in words(a, b)
    arrays = [model.parts[0].arrays["samples/x"] for model in (a, b)]
    (higher,) = comparisons(
        *(measured(name, {"x": array}, better="higher") for name, array in zip("ab", arrays, strict=True))
    )
    assert higher.better == 1


def test_the_order_of_the_models_does_not_matter():
    a, b = measured("a", {"x": noise(), "y": noise(3)}), measured("b", {"x": noise() + 0.3, "y": noise(4)})
    assert sorted(s.text for s in verdict([a, b])) == sorted(s.text for s in verdict([b, a]))
    (x, y), (back_x, back_y) = comparisons(a, b), comparisons(b, a)
    assert x.p == back_x.p
    assert y.p == back_y.p
    assert float(y.difference.low) == -float(back_y.difference.high)
    assert (x.better, back_x.better) == (0, 1)


def test_what_agrees_on_every_sample_is_equal_up_to_rounding():
    a, b = measured("a", {"x": 1 + noise() ** 2}), measured("b", {"x": (1 + noise() ** 2) * (1 + 5e-4)})
    (comparison,) = comparisons(a, b)
    assert (comparison.reason, comparison.better) == ("equal", None)
    assert "Nothing here tells a and b apart: they are equal on every sample in x." in words(a, b)
    assert "no reason to prefer one of them" in words(a, b, topic="meaning")


def test_an_open_difference_says_how_many_samples_would_decide():
    a, b = measured("a", {"x": noise()}), measured("b", {"x": noise(5) + 0.1})
    (comparison,) = comparisons(a, b)
    assert comparison.reason == "open"
    spread, size = comparison.difference.spread, abs(float(comparison.difference.value))
    expected = (1.96 + 0.84) ** 2 * spread**2 / size**2 + 2
    assert comparison.needed == pytest.approx(expected, rel=0.02)
    assert f"About {comparison.needed:,.0f} samples would decide a difference of this size." in words(a, b)


def test_more_comparisons_ask_for_more():
    """One surprising number alone decides; among many that are not, Holm says that it does not."""
    base = noise()
    step = base + 0.3 * (noise(7) - noise(7).mean()) + 0.085
    (alone,) = comparisons(measured("a", {"x": base}), measured("b", {"x": step}))
    assert alone.reason == "apart"
    assert 0.004 < alone.p < 0.05
    more = {f"y{k}": noise(20 + k) for k in range(12)}
    rivals = {f"y{k}": noise(40 + k) for k in range(12)}
    a, b = measured("a", {"x": base, **more}), measured("b", {"x": step, **rivals})
    crowd = comparisons(a, b)
    assert crowd[0].p == pytest.approx(min(1.0, 13 * alone.p))
    assert {comparison.reason for comparison in crowd} == {"open"}
    assert "13 comparisons on the same 80 samples" in words(a, b, topic="sure")


def test_three_models_are_corrected_together():
    models = entries_of([measured(name, {"x": noise(seed)}) for seed, name in enumerate("abc")])
    pairs = [(models.models[i], models.models[j]) for i, j in ((0, 1), (0, 2), (1, 2))]
    together = compare_pairs(models, pairs)
    first = [compare_pairs(models, [pair])[pair[0].index, pair[1].index][0].p for pair in pairs]
    smallest = min(range(3), key=lambda index: first[index])
    key = (pairs[smallest][0].index, pairs[smallest][1].index)
    assert together[key][0].p == pytest.approx(min(1.0, 3 * first[smallest]))


def test_shares_are_compared_by_the_answers_that_differ():
    right = np.arange(N) % 8 != 0
    worse = right & (np.arange(N) % 10 != 1)
    a, b = (measured(name, {"x": array.astype(float)}, better="higher") for name, array in (("a", right), ("b", worse)))
    (comparison,) = comparisons(a, b)
    lost = int((right & ~worse).sum())
    assert comparison.difference.p == pytest.approx(2 * 0.5**lost / 2)  # mid-p of a coin that falls one way
    assert comparison.better == 0


def test_medians_are_compared_where_the_number_is_one_and_infinity_is_a_value():
    samples = np.exp(noise())
    samples[:5] = np.inf  # an attack that never succeeds
    a, b = (
        measured(name, {"x": samples * factor}, statistic=np.median, better="higher")
        for name, factor in (("a", 1.0), ("b", 0.5))
    )
    (comparison,) = comparisons(a, b)
    assert float(comparison.difference.value) == pytest.approx(float(np.median(samples)) / 2)
    assert comparison.better == 0


def test_a_number_is_what_its_quantity_says_it_is():
    """A mean and a median that happen to be equal are told apart by the quantity, not by the value."""
    samples = np.concatenate([-np.ones(30), np.zeros(21), np.ones(30)])  # mean and median are 0
    other = np.where(samples < 0, 3 * samples, samples) + 0.1  # the mean falls, the median does not
    mean, median = (
        comparisons(*(measured(name, {"x": x}, statistic=word) for name, x in (("a", samples), ("b", other))))[0]
        for word in (np.mean, np.median)
    )
    assert float(mean.difference.value) == pytest.approx(0.0 - other.mean())
    assert float(median.difference.value) == pytest.approx(-0.1)


def test_a_ratio_of_medians_is_paired():
    """Noise that both models share cancels, also above and below the line; the ratio itself is what was printed."""
    base = np.exp(np.stack([noise(1), noise(2)], 1))
    halved = base * np.array([0.5, 1.0]) * np.exp(0.02 * noise(3))[:, None]
    a, b = (measured(name, {"x": array}, statistic=ratio_of_medians) for name, array in (("a", base), ("b", halved)))
    (comparison,) = comparisons(a, b)
    assert (comparison.way, comparison.reason, comparison.better) == ("samples", "apart", 1)
    expected = ratio_of_medians(base) - ratio_of_medians(halved)
    assert float(comparison.difference.value) == pytest.approx(expected)
    same = comparisons(a, measured("b", {"x": base * 3.0}, statistic=ratio_of_medians))[0]
    assert (same.better, float(same.difference.value)) == (None, pytest.approx(0.0, abs=1e-12))


def test_few_clouds_cannot_decide_and_the_page_says_how_many_could():
    few = np.array([1.0, 1.1, 0.9, 1.05, 0.95])
    a, b = measured("a", {"x": few}, way="clouds"), measured("b", {"x": few + 9}, way="clouds")
    (comparison,) = comparisons(a, b)
    assert (comparison.reason, comparison.way, comparison.needed) == ("open", "clouds", 6)
    assert "About 6 clouds would decide" in words(a, b)
    more = np.concatenate([few, few + 0.01])
    a, b = measured("a", {"x": more}, way="clouds"), measured("b", {"x": more + 9}, way="clouds")
    assert comparisons(a, b)[0].better == 0


def test_missing_values_are_left_out_of_both():
    samples = noise()
    gap = samples + 0.2 + 0.1 * noise(1)
    full = measured("a", {"x": samples})
    missing = measured("b", {"x": gap})
    array = gap.copy()
    array[3] = np.nan
    part = dataclasses.replace(missing.parts[0], arrays={"samples/x": array})
    (comparison,) = comparisons(full, dataclasses.replace(missing, parts=(part,)))
    assert comparison.way == "intervals"  # the rest has another mean than the one that is printed
    near = dataclasses.replace(part, rows=(dataclasses.replace(part.rows[0], value=float(np.nanmean(array))),))
    base = dataclasses.replace(full.parts[0].rows[0], value=float(np.delete(samples, 3).mean()))
    start = dataclasses.replace(full.parts[0], rows=(base,))
    (comparison,) = comparisons(dataclasses.replace(full, parts=(start,)), dataclasses.replace(missing, parts=(near,)))
    assert comparison.difference.n == N - 1


def test_a_ratio_says_which_of_its_parts_moved():
    """An answer to noise that fell raises R; that is no larger answer to deformations."""

    def stable(name: str, deformations: float, noisy: float) -> Profile:
        numbers = {"r": deformations / noisy, "d": deformations, "g": noisy}
        rows = [Row(key, value, "estimate", N, low=0.99 * value, high=1.01 * value) for key, value in numbers.items()]
        headline = Headline("R", "D over G", ratio=("d", "g"))
        meaning = Quantity("r", "ratio R", "R.", better="lower", headline=headline, invariant=EVERYTHING)
        labels = (Quantity("d", "answer to deformations D", "D."), Quantity("g", "answer to noise G", "G."))
        return profile(name, Part("any", rows, (meaning, *labels)))

    a, b = stable("a", 0.5, 0.3), stable("b", 0.5, 0.1)
    (comparison,) = comparisons(a, b)
    assert (comparison.reason, comparison.better) == ("denominator", None)
    assert "smoother than" not in words(a, b)
    (overall,) = [sentence.text for sentence in verdict([a, b]) if sentence.topic == "overall"]
    assert overall == (
        "Nothing here tells a and b apart: the numerator is open in R (only its answer to noise G moved)."
    )
    both = words(stable("c", 0.4, 0.1), stable("d", 0.2, 0.3), topic="meaning")
    assert both.endswith("Of R, answer to deformations D is lower for d and answer to noise G is lower for c.")
    one = words(stable("c", 0.4, 0.1), stable("d", 0.2, 0.1), topic="meaning")
    assert one.endswith("Of R, answer to deformations D is lower for d.")
    (sentence,) = [sentence for sentence in verdict([a, b]) if sentence.topic == "comparison"]
    assert sentence.text.endswith(
        "its numerator does not say the same: the denominator moved, and that judges nothing. answer to deformations D "
        "is 0.5 [0.495, 0.505] for a and 0.5 [0.495, 0.505] for b. answer to noise G is 0.3 [0.297, 0.303] for a and "
        "0.1 [0.099, 0.101] for b."
    )
    assert len(sentence.rows) == 6
    # a ratio that is lower although its numerator is higher
    assert comparisons(stable("a", 0.5, 0.9), stable("b", 0.2, 0.1))[0].reason == "denominator"
    (lower,) = comparisons(stable("a", 0.3, 0.3), stable("b", 0.9, 0.1))
    assert (lower.reason, lower.better) == ("apart", 0)
    assert "answer to noise" not in words(a, stable("b", 0.5, 0.3))


# --- where there are no pairs ----------------------------------------------------------------------------------------


def fallback(a: Profile, b: Profile) -> None:
    (comparison,) = comparisons(a, b)
    assert comparison.difference is None
    assert comparison.way == "intervals"
    assert comparison.reason == "overlap"
    assert "only by intervals that do not overlap, because the profiles do not hold" in words(a, b)


def test_without_arrays_of_the_same_samples_intervals_decide():
    a, b = measured("a", {"x": noise()}), measured("b", {"x": noise() + 0.5})
    bare = dataclasses.replace(b, parts=(dataclasses.replace(b.parts[0], arrays={}),))
    fallback(a, bare)
    fallback(a, measured("b", {"x": noise() + 0.5}, seed=1))  # another seed draws other samples
    fallback(a, measured("b", {"x": noise(n=N - 1) + 0.5}))
    strange = dataclasses.replace(b, parts=(dataclasses.replace(b.parts[0], arrays={"samples/x": noise(9)}),))
    fallback(a, strange)  # not the samples behind the number
    far = dataclasses.replace(measured("b", {"x": noise() + 9}), parts=(
        dataclasses.replace(measured("b", {"x": noise() + 9}).parts[0], arrays={}),))  # fmt: skip
    assert comparisons(a, far)[0].better == 0


def test_many_comparisons_by_intervals_stretch_them():
    gap = {"half": 1.0}
    for count, reason in ((1, "apart"), (8, "apart"), (40, "overlap")):
        values = {f"x{k}": np.zeros(0) for k in range(count)}
        a, b = (measured(name, values, statistic=lambda _, level=level: level, way="none", **gap)
                for name, level in (("a", 0.0), ("b", 2.05)))  # fmt: skip
        assert {comparison.reason for comparison in comparisons(a, b)} == {reason}, count


def seeds(name: str, shifts: tuple[float, ...], start: int = 0) -> Profile:
    """Networks of one recipe, each with the same samples and a shift of its own."""
    marks = (f"{name}{start}{shift}" for shift in shifts)
    members = [measured(mark, {"x": noise() + shift}, half=0.1, fingerprint=mark)
               for mark, shift in zip(marks, shifts, strict=True)]  # fmt: skip
    return joined(members, name)


def test_joined_seeds_are_compared_by_their_networks_and_not_by_the_samples_of_the_first():
    """Two that do not overlap are no surprise: of three and three networks of one recipe, one split in ten does not."""
    low, next_to = seeds("low", (0.0, 1.0, 0.4)), seeds("next", (1.2, 2.5, 1.9))
    (comparison,) = comparisons(low, next_to)
    own = scipy.stats.ttest_ind([0.0, 1.0, 0.4], [1.2, 2.5, 1.9], equal_var=False)
    assert (comparison.way, comparison.reason) == ("networks", "apart")
    assert comparison.p == pytest.approx(own.pvalue)
    assert "Over 6 networks they differ by " in words(low, next_to)
    assert "compared network by network (Welch)" in words(low, next_to)
    (near,) = comparisons(low, seeds("near", (1.1, 1.2, 3.4)))  # no overlap either
    assert (near.better, near.reason) == (None, "open")
    assert "networks of each would decide" in words(low, seeds("near", (1.1, 1.2, 3.4)))
    assert "--join" not in words(low, next_to)


def test_one_network_beside_several_is_asked_whether_it_could_be_one_of_them():
    several = seeds("several", (0.0, 1.0, 0.4, 0.7))
    outside, far = (measured("one", {"x": noise() + shift}, half=0.01) for shift in (1.3, 9.0))
    assert comparisons(several, outside)[0].reason == "open"
    assert comparisons(several, far)[0].better == 0


# --- the same stretch of network -------------------------------------------------------------------------------------

BLOCKS = (("input", "input"), ("b1", "block"), ("b2", "block"))


def along(name: str, values: dict[str, float], *, prefix: str = "", blocks=BLOCKS) -> Profile:
    """A number at every layer; the samples are those of the last block."""
    rows = [
        Row("x", value, "estimate", N, prefix + layer, index / (len(values) - 1), value - 0.01, value + 0.01)
        for index, (layer, value) in enumerate(values.items())
    ]
    last = [layer for layer, role in blocks if role == "block"][-1]
    centred = noise() - noise().mean()
    part = Part("any", rows, (quantity("x"),), arrays={"samples/x": centred + values[last]})
    layers = [{"name": prefix + layer, "role": role} for layer, role in blocks]
    return profile(name, part, layers=layers)


def test_a_head_stands_apart():
    bare = along("bare", {"input": 0.0, "b1": 1.0, "b2": 2.0})
    whole = along("whole", {"input": 0.0, "b1": 1.0, "b2": 2.0, "head": 50.0}, blocks=(*BLOCKS, ("head", "output")))
    (comparison,) = comparisons(bare, whole)
    assert comparison.reason == "equal"
    assert [entry.row.layer for entry in comparison.entries] == ["b2", "b2"]
    text = words(bare, whole)
    assert "smoother" not in text
    assert "whole was read up to its head, bare up to its last block" in text
    assert "head" not in words(bare, dataclasses.replace(bare, provenance=whole.provenance | {"layers": []}))


def test_an_older_profile_of_a_plain_network_has_a_head_as_a_new_one_has():
    """Profiles of before orders were drawn call the last matrix a block; it is none, and there is nothing to say."""
    values, kinds = {"input": 0.0, "b1": 1.0, "b2": 2.0, "last": 50.0}, ("Flatten", "Linear", "ReLU", "Linear")

    def plain(name: str, role: str, **more: object) -> Profile:
        said = along(name, values, blocks=(*BLOCKS, ("last", "output")))
        cards = zip((*BLOCKS, ("last", role)), kinds, strict=True)
        layers = [{"name": layer, "role": word, "kind": kind} for (layer, word), kind in cards]
        return dataclasses.replace(said, provenance={**said.provenance, "layers": layers, **more})

    old, new = plain("old", "block"), plain("new", "output", order={"by": "given"})
    (comparison,) = comparisons(old, new)
    assert [entry.row.layer for entry in comparison.entries] == ["b2", "b2"]
    assert comparison.reason == "equal"
    assert "read up to its head" not in words(old, new)
    chosen = plain("new", "block", order={"by": "given"})  # a new profile means what it says
    assert comparisons(old, chosen)[0].entries[1].row.layer == "last"


def test_layers_are_matched_by_position_and_not_by_name():
    short = along("short", {"input": 0.0, "b1": 1.0, "b2": 2.0})
    wrapped = along("wrapped", {"input": 0.0, "b1": 1.0, "b2": 2.0}, prefix="encoder.")
    assert comparisons(short, wrapped)[0].reason == "equal"
    # a longer network has a layer of the name of the other's last, at another position
    longer = along("long", {"input": 0.0, "b1": 1.0, "b2": 2.0, "b3": 9.0}, blocks=(*BLOCKS, ("b3", "block")))
    assert [entry.row.layer for entry in comparisons(short, longer)[0].entries] == ["b2", "b3"]


def test_a_network_that_is_not_read_up_to_its_last_block_is_not_compared_with_one_that_is():
    def ending(name: str, last: str, **values: float) -> Profile:
        said = along(name, {"input": 0.0, "b1": 1.0, "b2": 2.0} | values)
        return dataclasses.replace(said, provenance={**said.provenance, "last_block": last})

    whole, short = ending("whole", "b2"), ending("short", "b9", b2=9.0)
    assert comparisons(whole, ending("other", "b2", b2=9.0))[0].reason == "apart"
    assert comparisons(whole, short)[0].reason == "not as far"
    assert comparisons(short, ending("both short", "b9"))[0].reason == "apart"
    text = words(whole, short)
    assert "smoother" not in text
    assert "they were not read up to the same block for" in text


def test_a_head_is_never_compared_with_a_block():
    whole = along("whole", {"input": 0.0, "b2": 2.0}, blocks=(("input", "input"), ("b2", "block")))
    head = along("head", {"input": 0.0, "b2": 9.0}, blocks=BLOCKS)
    rows = tuple(dataclasses.replace(row, layer="out" if row.layer == "b2" else "input") for row in head.parts[0].rows)
    layers = [{"name": "input", "role": "input"}, {"name": "out", "role": "output"}]
    only = profile("only", dataclasses.replace(head.parts[0], rows=rows), layers=layers)
    assert comparisons(whole, only)[0].reason == "not alike"


def over_depth(name: str, layers: np.ndarray) -> Profile:
    return measured(name, {"x": layers}, statistic=largest_mean)


def test_a_number_over_depth_must_differ_for_every_choice_of_layers():
    base = np.stack([noise(seed) * 0.1 for seed in range(5)], 1)
    peak, everywhere = base.copy(), base + 1 + 0.01 * noise(9)[:, None]
    peak[:, 2] += 5  # one layer that every second or third reading misses
    assert comparisons(over_depth("a", base), over_depth("b", peak))[0].reason == "open"
    assert comparisons(over_depth("a", base), over_depth("b", everywhere))[0].better == 0


def test_the_number_of_layers_stands_beside_a_number_over_depth():
    source = along("a", {"input": 0.0, "b1": 1.0, "b2": 2.0}).parts[0]
    rows = [dataclasses.replace(row, quantity="y") for row in source.rows] + [Row("x", 1.0, "estimate", N)]
    part = Part("any", rows, (quantity("x"), Quantity("y", "y", "It is y.")))
    assert "<small>3 layers read</small>" in page([profile("a", part)])
    part = dataclasses.replace(part, arrays={"samples/x": np.ones(N)})  # of each sample, and so of no choice of layers
    assert "layers read" not in page([profile("a", part)])


# --- the whole page --------------------------------------------------------------------------------------------------


def lines_on_top(*profiles: Profile) -> list[str]:
    """The topics of what a page says before its first table or fold."""
    return re.findall(r'data-topic="(\w+)"', re.split("<table|<details", page(profiles))[0])


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", [0, 7])
def test_at_most_three_lines_stand_on_top(count, seed):
    """Whatever there is to know: other seeds, other data, random weights."""
    profiles = [
        measured(name, {"x": noise(index) + index}, seed=seed if index else 0, weights="random", data=data)
        for index, (name, data) in enumerate(
            [("a", "points"), ("b", "points"), ("c", "points"), ("d", "other")][:count]
        )
    ]
    assert len(lines_on_top(*profiles)) <= 3
    assert "random weights" in words(*profiles, topic="sure")


def test_evidence_says_what_a_number_is_good_for():
    """The first line's numbers, smoothness first."""

    def described(name: str, shift: float) -> Profile:
        bare = measured(name, {"x": noise() + shift, "y": noise(2) + shift, "z": noise(3) + shift})
        (part,) = bare.parts
        makes = {"x": "more accurate", "y": "smoother", "z": "calmer"}
        quantities = [
            dataclasses.replace(
                meant,
                headline=dataclasses.replace(meant.headline, makes=makes[meant.name], evidence=f"Of {meant.name}."),
            )
            for meant in part.quantities
        ]
        return dataclasses.replace(bare, parts=(dataclasses.replace(part, quantities=tuple(quantities)),))

    a, b = described("a", 0.0), described("b", 0.3)
    assert words(a, b, topic="overall") == "a is smoother than b by y, calmer and more accurate."
    assert words(a, b, topic="meaning") == "What it means: Of y."


def test_two_models_have_three_lines_on_top():
    a = measured("a", {"x": noise(), "y": noise(2)})
    b = measured("b", {"x": noise() + 0.3, "y": noise(3)})
    assert lines_on_top(a, b) == ["overall", "sure", "meaning"]
    assert "What it means: x is what x says." in words(a, b, topic="meaning")
    assert "not by itself more accurate" in words(a, b, topic="meaning")


@pytest.fixture
def errors(monkeypatch):
    """The script that counts false and true differences."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("verdict_errors")


def test_swapped_samples_are_seldom_called_different(errors):
    pages = errors.swapped_pages(20, n=40, seed=1)
    assert sum(map(bool, pages)) <= 4  # of 20 at one in twenty: more once in four hundred times


def test_the_networks_of_one_recipe_are_seldom_called_different(errors):
    pages = errors.joined_pages(60, 3, seed=1)
    assert sum(map(bool, pages)) <= 9  # of 60 at one in twenty: more once in a thousand times
    assert all("tails" in page for page in errors.joined_pages(4, 5, shift=9.0))


def test_a_true_difference_is_found(errors):
    assert errors.power_pages(5, 1.0, n=60) == 5


@pytest.mark.slow
def test_of_500_pages_of_swapped_samples_at_most_35_call_something_different(errors):
    assert sum(map(bool, errors.swapped_pages(500))) <= 35


@settings(max_examples=25, deadline=None)
@given(scale=st.floats(0.5, 4.0), shift=st.floats(-0.2, 0.2), seed=st.integers(0, 99))
def test_no_word_without_a_p_value_that_holds_it(scale, shift, seed):
    a, b = measured("a", {"x": noise(seed)}), measured("b", {"x": scale * noise(seed) + shift})
    (comparison,) = comparisons(a, b)
    assert (comparison.reason == "apart") == (comparison.p <= 0.05)
    assert ("is smoother" in words(a, b)) == (comparison.better is not None)
    if comparison.better is not None:
        assert float(comparison.difference.low) > 0 or float(comparison.difference.high) < 0
