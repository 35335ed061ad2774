"""The masked language model that the negation experiment trains: its task, batches, resumption and what it leaves."""

import dataclasses
import itertools
import json
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("transformers")

from lisse import load_model
from lisse_experiments.regularity import masked_lm
from lisse_experiments.regularity.masked_lm import IGNORED, Recipe, batches, corrupted, trained_quality
from lisse_experiments.regularity.pairs import sentences
from lisse_experiments.regularity.wordpiece import SPECIAL, pieces, trained_tokenizer

TINY = Recipe(
    layers=1, width=16, heads=2, vocabulary=300, length=16, tokens=512, steps=6, lr=3e-3, dropout=0.0, held_out=50,
    precision="64",
)  # fmt: skip


class Words:
    """The little of a tokenizer that masking needs."""

    all_special_ids, mask_token_id, pad_token_id = [0, 1, 2, 3, 4], 4, 0

    def __len__(self):
        return 1000


def test_masking_is_berts():
    ids = torch.full((400, 200), 7)
    ids[:, 0], ids[:, -1] = 2, 0
    seen, wanted = corrupted(ids, Words(), 0.15, torch.Generator().manual_seed(0))
    chosen = wanted != IGNORED
    assert not chosen[:, [0, -1]].any()
    assert (wanted[chosen] == 7).all()
    assert (seen[~chosen] == ids[~chosen]).all()
    n = 400 * 198
    for share, p, count in (
        (chosen.sum() / n, 0.15, n),
        ((seen[chosen] == 4).double().mean(), 0.8, int(chosen.sum())),
        ((seen[chosen] == 7).double().mean(), 0.1, int(chosen.sum())),  # and one random word in a thousand
    ):
        assert abs(float(share) - p) < 4 * (p * (1 - p) / count) ** 0.5 + 1e-3
    everything, _ = corrupted(ids, Words(), 1.0, torch.Generator().manual_seed(0))
    assert (everything[:, 1:-1] == 4).double().mean() > 0.75


def test_batches_hold_every_text_once_an_epoch_and_no_more_tokens_than_asked():
    lengths = [3 + (7 * k) % 20 for k in range(100)]
    found = list(itertools.islice(batches(lengths, 60, seed=0), 400))
    assert all(len(batch) * max(lengths[k] for k in batch) <= 60 for batch in found)
    first = []
    for batch in found:
        first += batch
        if len(first) >= 100:
            break
    assert sorted(first) == list(range(100))
    assert found == list(itertools.islice(batches(lengths, 60, seed=0), 400))
    assert found != list(itertools.islice(batches(lengths, 60, seed=1), 400))
    assert all(max(lengths[k] for k in b) - min(lengths[k] for k in b) <= 4 for b in found)  # like with like
    assert next(batches([50], 10, seed=0)) == [0]  # a text longer than a batch has one of its own


def test_a_vocabulary_of_the_texts_at_hand():
    words = trained_tokenizer(sentences(), 300)
    ids = words("A Robin is not a [MASK] .")["input_ids"]
    assert words.convert_ids_to_tokens(ids) == ["[CLS]", "a", "robin", "is", "not", "a", "[MASK]", ".", "[SEP]"]
    assert len(words) <= 300
    few = trained_tokenizer(sentences(), 120)
    assert len(few) <= 120
    assert few.decode(few("a robin is not a bird .")["input_ids"], skip_special_tokens=True) == "a robin is not a bird."
    assert few.get_vocab() == trained_tokenizer(sentences(), 120).get_vocab()
    with pytest.raises(ValueError, match="vocabulary must be at least 100 pieces, got 5"):
        trained_tokenizer(["a"], 5)


def test_pieces_are_letters_then_words_then_parts_by_count():
    counts = Counter({"abab": 5, "cd": 9, "ef": 1, "a": 2})
    found = pieces(counts, 20)
    marks, letters = found[:5], found[5:10]
    assert marks == list(SPECIAL.values())
    assert letters == ["##b", "##d", "c", "a", "##a"]  # 10, 9, 9, 7, 5 times; half of 20 less the marks
    assert found[10:] == ["cd", "abab", "ef"]  # "a" is a letter already, and no word is left to have parts
    words = Counter({**{f"w{letter}": 10 for letter in "ijklmno"}, "abcabc": 3})
    assert pieces(words, 20)[-3:] == ["abcab", "##bc", "##bcab"]  # 15, 12, 12 letters saved


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("masked_lm") / "lm"
    return SimpleNamespace(out=out, quality=trained_quality(sentences(), TINY, out))


def test_what_is_left_can_be_loaded_and_is_what_was_judged(made):
    model = load_model(f"hf:{made.out / 'model'}")
    assert type(model).__name__ == "BertForMaskedLM"
    texts = sentences()
    held = torch.randperm(len(texts), generator=masked_lm._generator(0, "split"))[:50].tolist()
    ids = model.lisse.tokenizer([texts[index] for index in held])["input_ids"]
    again = masked_lm.judged(model, ids, model.lisse.tokenizer, TINY)
    assert float(again.loss.value) == pytest.approx(float(made.quality.loss.value), rel=1e-5)
    assert again.masked == made.quality.masked
    assert float(again.loss.low) < float(again.loss.value) < float(again.loss.high)
    assert json.loads((made.out / "result.json").read_text())["steps"] == 6
    assert "from scratch, 6 steps" in masked_lm.description(made.out / "result.json")
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight


def test_a_second_start_finds_it_done_and_another_recipe_is_refused(made):
    before = (made.out / "model" / "model.safetensors").stat().st_mtime_ns
    assert trained_quality(sentences(), TINY, made.out).masked == made.quality.masked
    assert (made.out / "model" / "model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(ValueError, match="out must be empty or of the same recipe"):
        trained_quality(sentences(), dataclasses.replace(TINY, lr=1e-4), made.out)


def test_an_interrupted_training_ends_where_an_unbroken_one_does(made, tmp_path, monkeypatch):
    real, count = masked_lm._step, 0

    def stops(*given):
        nonlocal count
        count += 1
        if count == 4:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(masked_lm, "_step", stops)
    monkeypatch.setattr(masked_lm, "SAVE_EVERY", 0.0)
    with pytest.raises(KeyboardInterrupt):
        trained_quality(sentences(), TINY, tmp_path / "lm")
    assert (tmp_path / "lm" / "checkpoint.safetensors").is_file()
    monkeypatch.setattr(masked_lm, "_step", real)
    again = trained_quality(sentences(), TINY, tmp_path / "lm")
    assert float(again.loss.value) == pytest.approx(float(made.quality.loss.value), rel=1e-6)
    assert not (tmp_path / "lm" / "checkpoint.safetensors").exists()


def test_beginning_from_an_encoder_keeps_its_weights_and_words(made):
    recipe = dataclasses.replace(TINY, start=str(made.out / "model"), dropout=0.3)
    encoder = load_model(f"hf:{made.out / 'model'}")
    model = masked_lm.network(recipe, encoder.lisse.tokenizer)
    ours, theirs = model.bert.state_dict(), encoder.bert.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert model.config.hidden_dropout_prob == 0.3
    assert torch.equal(model.cls.predictions.transform.dense.weight, torch.eye(16))
    assert model.config.architectures == ["BertForMaskedLM"]


def test_more_steps_learn_more(tmp_path):
    longer = trained_quality(sentences(), dataclasses.replace(TINY, steps=60), tmp_path / "lm")
    short = trained_quality(sentences(), dataclasses.replace(TINY, minutes=1e-9), tmp_path / "none")
    assert float(longer.loss.value) < float(short.loss.value) - 0.5
    assert json.loads((tmp_path / "none" / "result.json").read_text())["steps"] == 0


def test_bad_recipes(tmp_path):
    with pytest.raises(ValueError, match="precision must be bf16, 32 or 64, got '16'"):
        trained_quality(sentences(), dataclasses.replace(TINY, precision="16"), tmp_path)
    with pytest.raises(ValueError, match="held_out must lie in 1 … 1, got 2"):
        trained_quality(["a", "b"], dataclasses.replace(TINY, held_out=2), tmp_path)
    with pytest.raises(ValueError, match="lr must let the loss stay finite"):
        trained_quality(sentences(), dataclasses.replace(TINY, lr=1e300, steps=40), tmp_path)
