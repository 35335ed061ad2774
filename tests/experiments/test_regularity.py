"""The regularity experiment: its pairs, statistics, distances, searches, iterations, claims; the smoke run is slow."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import linear_sum_assignment

from lisse.maths.intervals import Interval
from lisse_experiments import PAPERS, Task, form, study
from lisse_experiments.regularity import depth, negation, pairs, stretches, tables
from lisse_experiments.regularity.negation import Distances
from lisse_experiments.regularity.pairs import Pair
from lisse_experiments.regularity.statistics import difference, pearson, ranked, welch, within

# --- pairs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sentence", "negated", "kind"),
    [
        ("A trout is a [MASK].", "A trout is not a [MASK].", "insertion"),
        ("X (born [MASK]).", "X (not born [MASK]).", "insertion"),
        ("Not one is [MASK].", "Not one is not [MASK].", "insertion"),
        ("Fiddling requires [MASK].", "Fiddling does not require [MASK].", "rewriting"),
        ("Birds can [MASK].", "Birds cannot [MASK].", "rewriting"),
        ("He used to work in [MASK].", "He never worked in [MASK].", "rewriting"),
        ("A b [MASK] .", "A b [MASK].", "none"),
    ],
)
def test_the_two_types_of_negation(sentence, negated, kind):
    assert Pair(sentence, negated).kind == kind


def test_templates_have_both_types_one_mask_and_true_answers():
    made, known = pairs.templates(), set(pairs.sentences())
    assert {pair.kind for pair in made} == set(pairs.KINDS)
    assert all(pair.sentence.count("[MASK]") == pair.negation.count("[MASK]") == 1 for pair in made)
    assert len(set(made)) == len(made)
    assert "an owl is a bird ." in known
    assert "an owl is not a fish ." in known
    assert "an owl is not a bird ." not in known
    answers = {text.split()[-2] for text in known}
    for pair in made:  # every sentence has exactly one true answer
        assert len({a for a in answers if pair.sentence.replace("[MASK]", a) in known}) == 1


def test_pairs_from_a_file(tmp_path):
    row = {"source": "S", "relation": "R", "masked_sentence": "a [MASK]", "masked_negation": "not a [MASK]"}
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps(row) + "\n\n" + json.dumps(row | {"relation": "Q"}) + "\n")
    assert pairs.read_pairs(str(file)) == [
        Pair("a [MASK]", "not a [MASK]", "S R"),
        Pair("a [MASK]", "not a [MASK]", "S Q"),
    ]
    file.write_text(json.dumps(row | {"masked_negation": "none"}))
    with pytest.raises(ValueError, match="a sentence must have one \\[MASK\\], got 'none' in line 1"):
        pairs.read_pairs(str(file))


def test_stored_predictions(tmp_path, monkeypatch):
    monkeypatch.setenv("LISSE_DATA", str(tmp_path))
    folder = tmp_path / "negation"
    folder.mkdir()
    texts = ["A cat is an animal,", "A cat is not a machine,", "A dog  is a pet,", "A dog is not a tool,"]
    (folder / "NEG-136-SIMP.txt").write_text("\n".join([*texts, *texts[2:]]))
    lists = ["['', 'Cat', 'dog']", "['dog', 'cat']", "['pet', 'dog']", "['pet', 'cat', 'fish']"]
    (folder / "pred_NEG-136-SIMP_roberta-base.txt").write_text("\n".join([*lists, *lists[2:]]))
    (found,) = pairs.stored_predictions()
    assert (found.network, found.file, len(found.pairs)) == ("roberta-base", "NEG-136-SIMP", 2)  # one pair comes twice
    assert found.stays == [False, True]
    assert found.overlap == [1.0, 0.25]
    assert found.comparable == [False, True]  # "an" became "a"
    assert found.blank == pytest.approx(1 / 6)
    assert found.masked == (Pair("A dog is a [MASK].", "A dog is not a [MASK]."),)
    (folder / "pred_NEG-136-SIMP_roberta-base.txt").write_text("['a']")
    with pytest.raises(ValueError, match="must have a line for each of the 6 sentences, in pairs, got 1"):
        pairs.stored_predictions()


@pytest.mark.large
def test_the_real_files():
    found = pairs.read_pairs()
    assert len(found) == 11_163
    kinds = [pair.kind for pair in found]
    assert [kinds.count(kind) for kind in ("insertion", "rewriting", "none")] == [9572, 1255, 336]
    stored = pairs.stored_predictions()
    assert len(stored) == 15
    assert {len(one.pairs) for one in stored} == {18, 750, 770}


def published(stays, *, file="NEG-1500-SIMP-GEN") -> pairs.Stored:
    """Ten pairs that differ by "not", of which the first words of some stay."""
    sentences = tuple((f"word{index} is a fish,", f"word{index} is not a fish,") for index in range(len(stays)))
    words = tuple((("fish",), ("fish" if stay else "tool",)) for stay in stays)
    return pairs.Stored("bert", file, sentences, words)


@pytest.mark.parametrize(("sign", "holds"), [(1.0, True), (-1.0, False), (0.0, None)])
def test_stored_predictions_are_tested_beside_the_distances_of_a_proxy(sign, holds):
    stays = [index % 2 == 0 for index in range(10)]
    noise = torch.linspace(0, 1, 10, dtype=torch.float64)
    moved = 30 - sign * 5 * torch.tensor(stays).double() + noise
    lengths = ["8 tokens" if stay else "9 tokens" for stay in stays]  # the length alone says what stays
    (network,), by_file = (published(stays),), {"NEG-1500-SIMP-GEN": (moved, lengths)}
    numbers = {finding.key: finding for finding in tables.of_stored([network], by_file)}
    where = "stored/NEG-1500-SIMP-GEN/bert"
    even, odd = moved[::2], moved[1::2]
    assert numbers[f"{where}/input"].value == pytest.approx(float(odd.mean() - even.mean()))
    assert numbers[f"{where}/length"].value == pytest.approx(0.0, abs=1e-9)
    claims = {claim.key: claim.holds for claim in tables.stored_claims([network], by_file)}
    assert claims == {"stored/input": holds, "stored/length": None}
    assert tables.stored_claims([published(stays, file="NEG-136-SIMP")], {"NEG-136-SIMP": (moved, lengths)}) == []
    assert tables.stored_claims([network], {}) == []


# --- statistics -----------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), n=st.integers(2, 30), m=st.integers(2, 30), shift=st.floats(-3, 3))
def test_welchs_test_is_scipys(seed, n, m, shift):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=n), 3 * rng.normal(size=m) + shift
    ours, theirs = welch(torch.from_numpy(a), torch.from_numpy(b)), stats.ttest_ind(a, b, equal_var=False)
    assert (ours.t, ours.p_value, ours.freedom) == pytest.approx((theirs.statistic, theirs.pvalue, theirs.df), rel=1e-9)
    interval = theirs.confidence_interval()
    assert (ours.low, ours.high) == pytest.approx((interval.low, interval.high), rel=1e-7, abs=1e-9)
    assert ours.n == (n, m)


def test_bad_samples_for_welch():
    with pytest.raises(ValueError, match="at least 2 values, got 1 and 3"):
        welch(torch.ones(1), torch.ones(3))
    with pytest.raises(ValueError, match="got two constants"):
        welch(torch.ones(2), torch.zeros(3))


def test_correlations_and_their_intervals():
    rng = np.random.default_rng(0)
    x = rng.normal(size=400)
    y = 0.5 * x + rng.normal(size=400)
    found = pearson(torch.from_numpy(x), torch.from_numpy(y))
    assert found.value == pytest.approx(stats.pearsonr(x, y).statistic, rel=1e-9)
    fisher = stats.pearsonr(x, y).confidence_interval()
    assert (found.low, found.high) == pytest.approx((fisher.low, fisher.high), abs=0.02)
    ranks = pearson(ranked(torch.from_numpy(x)), ranked(torch.from_numpy(y**3)))
    assert ranks.value == pytest.approx(stats.spearmanr(x, y).statistic, rel=1e-9)
    assert pearson(torch.ones(5), torch.arange(5.0)).value == 0
    assert pearson(torch.from_numpy(x), torch.from_numpy(y), seed=1).low != found.low
    with pytest.raises(ValueError, match=r"must be \[n\] with n at least 3, got \[2\] and \[2\]"):
        pearson(torch.ones(2), torch.ones(2))


def test_whole_groups_are_resampled():
    rng = np.random.default_rng(0)
    shifts = rng.normal(size=(20, 2)).repeat(30, 0)  # between groups nothing in common, within them little noise
    x, y = torch.from_numpy((shifts + 0.1 * rng.normal(size=(600, 2))).T)
    groups = [str(k // 30) for k in range(600)]
    over_pairs, over_groups = pearson(x, y), pearson(x, y, groups=groups)
    assert over_groups.value == over_pairs.value
    ratio = (over_groups.high - over_groups.low) / (over_pairs.high - over_pairs.low)
    assert 3 < ratio < 9  # about the root of 30
    one = pearson(x, y, groups=[str(k) for k in range(600)])
    assert (one.low, one.high) == (over_pairs.low, over_pairs.high)


def test_differences_of_means():
    values = torch.tensor([1.0, 2.0, 6.0, 8.0])
    first = torch.tensor([False, False, True, True])
    found = difference(values, first)
    assert found.value == 5.5
    assert found.low <= 5.5 <= found.high
    rng = np.random.default_rng(0)
    many, which = torch.from_numpy(rng.normal(size=4000)), torch.arange(4000) % 2 == 0
    found, expected = difference(many, which), welch(many[which], many[~which])
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.01)
    with pytest.raises(ValueError, match="first must be true for some and not for all, got 4 of 4"):
        difference(values, first | True)


def test_within_takes_the_means_of_groups_away():
    found = within(torch.tensor([1.0, 3.0, 10.0, 20.0]), ["a", "a", "b", "b"])
    assert found.tolist() == [-1, 1, -5, 5]


# --- distances ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    from lisse import load_model
    from lisse_experiments.regularity.wordpiece import trained_tokenizer

    folder = tmp_path_factory.mktemp("bert")
    words = trained_tokenizer(pairs.sentences(), 300)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    transformers.BertForMaskedLM(config).save_pretrained(folder)
    words.save_pretrained(folder)
    return load_model(f"hf:{folder}")


def test_distances_are_those_of_a_naive_reading(model):
    some = [pairs.templates()[place] for place in (0, 1, 50, 100)]
    found = negation.distances(model, some)
    words = model.lisse.tokenizer
    for place, pair in enumerate(some):
        sides = []
        for text in (pair.sentence, pair.negation):
            ids = words(text, return_tensors="pt")["input_ids"]
            with torch.no_grad():
                out = model(input_ids=ids, output_hidden_states=True)
            at = int((ids[0] == words.mask_token_id).nonzero())
            sides.append((out.hidden_states[0][0], out.hidden_states[-1][0, at], int(out.logits[0, at].argmax())))
        (x, a, first), (y, b, second) = sides
        copies = math.lcm(len(x), len(y))  # W1 by an assignment of copies
        cost = torch.cdist(
            x.double().repeat_interleave(copies // len(x), 0), y.double().repeat_interleave(copies // len(y), 0), p=1
        )
        w1 = float(cost[linear_sum_assignment(cost)].mean())
        assert float(found.input[place]) == pytest.approx(w1, rel=1e-5)
        assert float(found.output[place]) == pytest.approx(float((a - b).abs().sum()), rel=1e-4)
        assert found.predicted[place].tolist() == [first, second]
    assert found.of("insertion").tolist() == [pair.kind == "insertion" for pair in some]
    alone, lengths = negation.input_distances(model, some)  # of which nothing but the embeddings is run
    torch.testing.assert_close(alone, found.input, rtol=1e-5, atol=0)
    assert lengths[0] == f"{len(words(some[0].sentence)['input_ids'])} tokens"
    assert (found.words < found.input).all()  # before the normalisation words are small
    assert negation.word(model, words.convert_tokens_to_ids("robin")) == "robin"


def test_models_without_a_known_head_are_read_whole(model, monkeypatch):
    some = pairs.templates()[:5]
    found = negation.distances(model, some)
    head = model.cls

    class Whole(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.lisse = model, model.lisse
            self.get_input_embeddings = model.get_input_embeddings

        def forward(self, **given):
            return self.inner(**given)

    again = negation.distances(Whole(), some)
    torch.testing.assert_close(again.input, found.input)
    assert torch.equal(again.predicted, found.predicted)
    assert head is model.cls


def test_the_stored_predictions_alone_need_a_model_and_the_papers_scale(tmp_path):
    chosen = study("regularity")
    for task, match in (
        (Task("paper", tmp_path, units=("bounds",)), "units must be stored for regularity, got bounds"),
        (Task("paper", tmp_path, minutes=1.0), "got none"),
        (Task("paper", tmp_path, units=("stored",)), "units must go with --scale paper and --model"),
        (Task("smoke", tmp_path, units=("stored",), model="hf:a"), "units must go with --scale paper and --model"),
    ):
        with pytest.raises(ValueError, match=match):
            chosen.run(task)


def test_distances_are_kept_for_the_same_weights_and_pairs(model, tmp_path):
    some, told = pairs.templates()[:6], []
    file = tmp_path / "found.arrays"
    first = negation.kept_distances(file, model, some, tell=lambda done, total: told.append((done, total)))
    assert told == [(6, 6)]
    again = negation.kept_distances(file, model, some, tell=lambda done, total: told.append((done, total)))
    assert len(told) == 1
    assert torch.equal(again.input, first.input)
    assert torch.equal(again.stays, first.stays)
    negation.kept_distances(file, model, some[:4], tell=lambda done, total: told.append((done, total)))
    assert told[-1] == (4, 4)


def test_bad_texts(model):
    with pytest.raises(ValueError, match=r"a text must have one \[MASK\], got 0 in 'a robin'"):
        negation.encodings(model, ["a robin"])
    with pytest.raises(ValueError, match="pairs must hold at least one pair"):
        negation.distances(model, [])
    with pytest.raises(ValueError, match="model must be a masked language model with its tokenizer"):
        negation.encodings(torch.nn.Linear(1, 1), ["[MASK]"])


# --- searches and iterations ----------------------------------------------------------------------------------------


def test_the_printed_theorem_is_exceeded_on_a_small_ball_and_the_corrected_one_is_not(tmp_path):
    file = tmp_path / "stretches.json"
    found = stretches.kept_stretches(file, (1, 2), (0.2, 1.0), budget=60, seed=0)
    assert [one.violated for one in found] == [True, False, True, False]
    assert all(one.measured <= one.corrected for one in found)
    written = file.stat().st_mtime_ns
    assert stretches.kept_stretches(file, (1, 2), (0.2, 1.0), budget=60, seed=0) == found
    assert file.stat().st_mtime_ns == written
    assert stretches.kept_stretches(file, (1,), (0.2,), budget=80, seed=0)[0].n >= 80


def test_theorem_2_is_exceeded_from_13063_points_on():
    assert stretches.gaussian_ratio(12_000, 2.86, 1e-3) == pytest.approx(14.380089, abs=1e-6)
    below, above = stretches.growth([(13_061 - 1) // 2, (13_063 - 1) // 2])
    assert below.measured < below.intended
    assert above.measured > above.intended
    few = stretches.growth([3])[0]
    grid = max(stretches.gaussian_ratio(3, r) for r in np.linspace(1, 3, 400))
    assert few.measured == pytest.approx(grid, rel=1e-4)
    assert few.n == 7


@pytest.mark.slow
def test_where_theorem_2_begins_to_fail():
    assert stretches.first_violation() == 13_063
    assert stretches.first_violation(literal=True) == 29_363


def test_one_token_is_inverted_at_the_rate_of_its_scale():
    half, whole = depth.inversions([0.5, 1.0], count=1, max_iter=300)
    assert half.rate == pytest.approx(0.5, abs=1e-6)
    assert half.converged
    assert half.error < 1e-9
    assert not whole.converged
    assert whole.rate == pytest.approx(1.0)


def test_inversion_is_certain_below_the_guaranteed_scale():
    scale = depth.guaranteed_scale()
    radius = (1 + scale) / (1 - scale)  # of the ball that y and all iterates lie in, where tokens come from R = 1
    assert scale == pytest.approx(1 / ((4 * math.sqrt(2) * radius**2 + 1) * math.exp(2 * radius**2)), rel=1e-9)
    assert scale == pytest.approx(0.01672, abs=1e-5)
    (one,) = depth.inversions([0.99 * scale])
    assert one.converged
    assert one.error < 1e-9
    assert one.rate < 0.99
    (far,) = depth.inversions([1.5])
    assert not far.converged
    assert math.isinf(far.error)


def test_repeated_attention_meets_where_the_input_says_unless_it_contracts():
    first, second = depth.tokens_of(0), depth.tokens_of(1)
    vanilla = depth.without_injection(first, second, depth=60)
    assert vanilla.spreads[-1] < 1e-12 < vanilla.spreads[0]
    assert vanilla.apart > 0.1
    scaled = depth.without_injection(first, second, scale=0.5, depth=60)
    assert scaled.apart < 1e-12
    injected = depth.with_injection(first, second, scale=0.5, depth=20)
    assert injected.apart > 0.1
    assert depth.depends_on_start(first, scale=0.5) < 1e-9


# --- findings and claims --------------------------------------------------------------------------------------------


def found_distances(shift: float) -> Distances:
    rng = np.random.default_rng(0)
    kinds = [Pair("a [MASK]", "not a [MASK]", "A"), Pair("a [MASK]", "never an [MASK]", "B")]
    chosen = tuple(kinds[k % 2] for k in range(80))
    same = torch.tensor([(k // 2) % 2 == 0 for k in range(80)])
    near = torch.from_numpy(rng.normal(10, 1, 80)) + torch.tensor([2.0 * (k % 2) for k in range(80)])
    near = near + torch.where(same, 0.0, shift)
    predicted = torch.stack([torch.zeros(80).long(), (~same).long()], 1)
    return Distances(chosen, near, 0.1 * near, 3 * near + torch.from_numpy(rng.normal(0, 0.1, 80)), predicted)


def results(shift: float = 5.0, **changed) -> tables.Results:
    value = torch.tensor(0.4, dtype=torch.float64)
    interval = Interval(value, value - 0.1, value + 0.1, 30, 0.95)
    consensus = depth.Consensus((1.0, 0.0), (torch.zeros(2, 2), torch.ones(2, 2)))
    met = depth.Consensus((1.0, 0.0), (torch.zeros(2, 2), torch.zeros(2, 2)))
    standard = tables.Results(
        distances=found_distances(shift), quality=tables.Quality(interval, interval, 30, 99),
        stored=(pairs.Stored("bert", "NEG", (("a b", "not a b"), ("c d", "not c d")),
                             ((("x",), ("x",)), (("x",), ("y",)))),),
        stretches=(stretches.Stretch(1, 0.2, 1.02, "light", 60), stretches.Stretch(1, 1.0, 1.7, "light", 60)),
        growth=tuple(stretches.Growth(n, 2.0, 2 * math.log(n)) for n in (3, 20_001)), first_violation=13_063,
        inversions=(depth.Inversion(0.01, 12, True, 5, 1e-12, 0.01), depth.Inversion(1.0, 12, False, 9, math.inf, 1.1)),
        single=(depth.Inversion(1.0, 1, False, 9, 1.0, 1.0),), guaranteed=0.02, largest=0.75,
        vanilla=consensus, scaled=met, injected=consensus, start_matters=0.0,
    )  # fmt: skip
    return dataclasses.replace(standard, **changed)


def holds(found: tables.Results) -> dict[str, bool]:
    return {claim.key: claim.holds for claim in tables.claims(found)}


def test_claims_follow_the_numbers():
    claims = holds(results())
    assert claims == {
        "negation/kinds": True, "negation/correlation": True, "negation/ranks": True, "negation/inside": True,
        "negation/templates": True, "negation/prediction": True, "negation/prediction-templates": True,
        "negation/within": True,
        "bounds/theorem1": False, "bounds/corrected": True, "bounds/below": True, "bounds/theorem2": False,
        "depth/invertible": True, "depth/vanilla": False, "depth/forgets": False, "depth/forgets-scaled": True,
        "depth/injected": True,
    }  # fmt: skip
    assert not holds(results(shift=0.0))["negation/prediction"]
    assert not holds(results(shift=-5.0))["negation/prediction"]
    wild = (stretches.Stretch(1, 0.2, 2.0, "light", 60),)
    assert not holds(results(stretches=wild))["bounds/corrected"]
    assert holds(results(stretches=(stretches.Stretch(1, 1.0, 1.7, "light", 60),)))["bounds/theorem1"]
    assert not holds(results(stretches=(stretches.Stretch(1, 2.0, 1.0, "diracs", 60),)))["bounds/below"]
    assert not holds(results(start_matters=1.0))["depth/injected"]


def test_the_papers_own_source_is_looked_at_alone():
    found = found_distances(5.0)
    named = tuple(dataclasses.replace(pair, group=f"ConceptNet {pair.group}") for pair in found.pairs[:40])
    mixed = dataclasses.replace(found, pairs=named + found.pairs[40:])
    assert tables.conceptnet(found) is None
    assert torch.equal(tables.conceptnet(mixed).input, found.input[:40])
    claims = holds(results(distances=mixed))
    assert claims["conceptnet/prediction"]
    assert claims["conceptnet/correlation"]
    numbers = {finding.key: finding for finding in tables.findings(results(distances=mixed), tolerances=False)}
    assert numbers["conceptnet/same"].n == 40
    assert "Welch" in numbers["conceptnet/difference/predictions"].note


def test_one_sided_predictions_leave_the_tests_out():
    alike = dataclasses.replace(found_distances(0.0), predicted=torch.zeros(80, 2).long())
    assert tables.negation(alike) is None
    found = results(distances=alike)
    assert "negation/prediction" not in holds(found)
    keys = {finding.key for finding in tables.findings(found, tolerances=True)}
    assert "negation/same" in keys
    assert "negation/correlation" not in keys


def test_findings_have_n_intervals_and_the_papers_numbers():
    found = {finding.key: finding for finding in tables.findings(results(), tolerances=True)}
    assert found["tau/d1/r0.2"].theirs == pytest.approx(0.3467, abs=5e-5)
    assert found["negation/same"].value == 0.5
    assert found["stored/NEG/bert/same"].value == 0.5
    assert "p = " in found["negation/difference/predictions"].note
    assert all(finding.n for finding in found.values())
    assert all(finding.within is not None for finding in found.values())
    for key, finding in found.items():
        if key.startswith(("negation", "model", "stored")):
            assert finding.low is not None, key
            assert finding.low <= finding.value <= finding.high
    plain = tables.findings(results(quality=None), tolerances=False)
    assert not [finding for finding in plain if finding.key.startswith("model")]


def test_tables_and_pictures(tmp_path, model):
    figures = pytest.importorskip("lisse_experiments.regularity.figures")
    pair = pairs.templates()[0]
    seen = negation.encodings(model, [pair.sentence, pair.negation])
    drawn = figures.draw(results(), seen, pair, "a model", tmp_path)
    assert [path.name for path in drawn] == ["figure-1.png", "figure-2.png", "bounds.png", "depth.png", "stored.png"]
    assert all(path.stat().st_size > 10_000 for path in drawn)
    first, second = tables.write_tables(results(), tmp_path)
    assert len(first.read_text().splitlines()) == 81
    assert second.read_text().splitlines()[1].startswith("1,0.2,1.02,0.34")


def test_it_is_listed_and_says_what_it_needs():
    assert "regularity" in PAPERS
    about = study("regularity").about
    assert set(about.needs) == {"smoke", "paper"}
    assert (about.folder / "README.md").is_file()


def test_a_model_of_ones_own_is_for_the_paper_scale(tmp_path):
    chosen = study("regularity")
    with pytest.raises(ValueError, match="model must be left out at the smoke scale, got 'hf:mine'"):
        chosen.run(Task("smoke", tmp_path, model="hf:mine"))
    assert "masked language model" in chosen.about.models
    with pytest.raises(ValueError, match=r"model must be left out, got 'hf:mine'\. topolip has its own networks"):
        form.timed(study("topolip"), Task("smoke", tmp_path, model="hf:mine"))


@pytest.mark.slow
def test_the_smoke_run_finds_what_is_committed(tmp_path):
    pytest.importorskip("transformers")
    chosen = study("regularity")
    outcome, _ = form.timed(chosen, Task("smoke", tmp_path))
    committed = form.expected(chosen.about.folder)["smoke"]
    assert form.differences(outcome, committed) == []
    assert len([finding for finding in outcome.findings if finding.within is not None]) > 40
    claims = {claim.key: claim.holds for claim in outcome.claims}
    assert claims["negation/correlation"]
    assert not claims["bounds/theorem1"]
    assert claims["bounds/corrected"]
    assert not claims["bounds/theorem2"]
    assert not claims["depth/forgets"]
