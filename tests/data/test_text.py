from __future__ import annotations

import gzip
import json
import lzma
import tracemalloc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lisse.data import as_dataset, load_data, tokens
from lisse.data.tokens import END, MASK, START, byte_ids, encoded, word_ids


@given(st.text())
def test_bytes_can_be_read_back(text):
    ids = byte_ids(text)
    assert ids[0] == START
    assert ids[-1] == END
    assert bytes(i - 5 for i in ids[1:-1]).decode("utf-8", "surrogatepass") == text


@given(st.text(), st.integers(6, 1000))
def test_words_are_ids_of_the_vocabulary(text, vocabulary):
    ids = word_ids(text, vocabulary)
    assert ids[0] == START
    assert ids[-1] == END
    assert all(0 <= i < vocabulary for i in ids)


def test_words_are_stable_and_split_signs():
    ids = word_ids("A cat, a [MASK].")
    assert len(ids) == 2 + 6
    assert ids[1] == ids[4] != ids[2]
    assert ids[5] == MASK
    assert word_ids("cat")[1] == 2319, "the same on every machine and in every version"
    assert all(5 <= word_ids("cat", v)[1] < v for v in (6, 10, 100))


def write(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return str(path)


def test_text_file_is_padded_with_masks(tmp_path):
    spec = write(tmp_path / "some.txt", "One two three.\n\n  Four.  \nfive six\n")
    data = load_data(f"text:{spec}")
    assert data.name == "some"
    assert data.lengths.tolist() == [6, 4, 4]
    assert data.inputs["input_ids"].shape == (3, 6)
    assert data.inputs["attention_mask"].tolist() == [[1] * 6, [1] * 4 + [0] * 2, [1] * 4 + [0] * 2]
    assert bool((data.inputs["input_ids"][data.inputs["attention_mask"] == 0] == 0).all())
    assert load_data(spec).fingerprint() == data.fingerprint()
    assert load_data(f"{spec}?tokenizer=bytes").lengths.tolist() == [16, 7, 10]
    short = load_data(f"{spec}?length=4")
    assert short.inputs["input_ids"].shape == (3, 4)
    assert short.inputs["input_ids"][0, -1] == END
    assert load_data(spec, limit=2, seed=None).lengths.tolist() == [6, 4]


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_packed(tmp_path, pack):
    plain = write(tmp_path / "a.txt", "one\ntwo three\n")
    (tmp_path / "b.txt.gz").write_bytes(pack(b"one\ntwo three\n"))
    assert load_data(f"{tmp_path}/b.txt.gz").fingerprint() == load_data(plain).fingerprint()
    (tmp_path / "b.txt.gz").write_bytes(pack(b"one\ntwo three\n" * 50)[:-8])
    with pytest.raises(ValueError, match=r"b.txt.gz must be a complete file"):
        load_data(f"{tmp_path}/b.txt.gz")
    (tmp_path / "b.txt.gz").write_bytes(pack(bytes(80 << 20)))
    with pytest.raises(ValueError, match=r"b.txt.gz must not unpack to more than"):
        load_data(f"{tmp_path}/b.txt.gz")


def test_the_fingerprint_is_that_of_the_texts_and_not_of_their_tokens(tmp_path):
    spec = write(tmp_path / "a.txt", "one two three\nfour\nfive six\n")
    words, letters, short = (load_data(f"{spec}?{options}") for options in ("", "tokenizer=bytes", "length=3"))
    assert words.fingerprint() == letters.fingerprint() == short.fingerprint()
    assert len({data.tensor_fingerprint() for data in (words, letters, short)}) == 3
    assert len({data.tokenizer for data in (words, letters, short)}) == 3
    assert load_data(f"{spec}?length=64").tensor_fingerprint() == words.tensor_fingerprint(), "no text is longer"
    other = load_data(write(tmp_path / "b.txt", "one two three\nfour\nfive siX\n"))
    assert other.tensor_fingerprint() == words.tensor_fingerprint(), "words are lower-cased"
    assert other.fingerprint() != words.fingerprint()
    # The order, the choice of samples and a copy are seen through every tokenizer alike.
    for change in (lambda data: data.subset([2, 0, 1]), lambda data: data.take(2)):
        assert change(words).fingerprint() == change(letters).fingerprint() != words.fingerprint()
    assert as_dataset(words, name="renamed").fingerprint() == words.to("cpu").fingerprint() == words.fingerprint()


def test_the_fingerprint_of_texts_sees_labels_and_pairs(tmp_path):
    rows = "text,pair,kind\nA dog,No dog,b\nA cat,No cat,a\n"
    spec = write(tmp_path / "pairs.csv", rows)
    other = write(tmp_path / "other.csv", rows.replace("No cat", "Not a cat"))
    kinds = [f"{spec}?label=kind", f"{spec}?first=text", spec, other, f"{spec}?first=pair&second=text"]
    prints = [load_data(kind).fingerprint() for kind in kinds]
    assert len(set(prints)) == len(kinds)
    assert [load_data(f"{kind}{'&' if '?' in kind else '?'}tokenizer=bytes").fingerprint() for kind in kinds] == prints


def test_pairs_jsonl(tmp_path):
    rows = [
        {"masked_sentence": "A dog is a [MASK].", "masked_negation": "A dog is not a [MASK].", "kind": "b"},
        {"masked_sentence": "A cat is a [MASK].", "masked_negation": "A cat is not a [MASK].", "kind": "a"},
    ]
    spec = write(tmp_path / "pairs.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n")
    data = load_data(f"{spec}?label=kind")
    assert data.lengths.tolist() == [8, 8]
    assert data.partner.lengths.tolist() == [9, 9]
    assert data.classes == ("a", "b")
    assert data.targets.tolist() == [1, 0]
    assert torch.equal(data.inputs["input_ids"][:, :4], data.partner.inputs["input_ids"][:, :4])
    swapped = load_data(f"{spec}?first=masked_negation&second=masked_sentence")
    assert swapped.lengths.tolist() == [9, 9]
    chosen = load_data(f"{spec}?label=kind", limit=1, seed=1)
    assert chosen.fingerprint() != data.fingerprint()
    assert int(chosen.inputs["input_ids"][0, 2]) == word_ids("dog" if int(chosen.targets) == 1 else "cat")[1]
    assert int(chosen.partner.inputs["input_ids"][0, 2]) == int(chosen.inputs["input_ids"][0, 2])


def test_pairs_tsv(tmp_path):
    plain = load_data(write(tmp_path / "a.tsv", "one two\tthree\nfour\tfive six\n"))
    assert plain.lengths.tolist() == [4, 3]
    assert plain.partner.lengths.tolist() == [3, 4]
    headed = load_data(
        write(tmp_path / "b.tsv", "item\tsentence1\tsentence2\n0\tone two\tthree\n1\tfour\tfive six\n") + "?label=item"
    )
    assert headed.lengths.tolist() == [4, 3]
    assert headed.partner.lengths.tolist() == [3, 4]
    assert headed.targets.tolist() == [0, 1]


def test_pairs_csv(tmp_path):
    """Quotation marks hold commas, ends of lines and, doubled, themselves."""
    content = 'id,first,second\n1,"one, two",three\n2,"four\nfive","six ""seven"""\n'
    data = load_data(write(tmp_path / "a.csv", content) + "?label=id")
    assert data.lengths.tolist() == [5, 4]
    assert data.partner.lengths.tolist() == [3, 6]
    assert data.targets.tolist() == [1, 2]
    plain = load_data(write(tmp_path / "b.csv", "one two,three\n"))
    assert (plain.lengths.tolist(), plain.partner.lengths.tolist()) == ([4], [3])


def test_tokenizers_given_as_objects(tmp_path):
    spec = write(tmp_path / "a.txt", "abc\nde\n")
    data = load_data(spec, tokenizer=lambda text: [ord(c) for c in text])
    assert data.inputs["input_ids"].tolist() == [[97, 98, 99], [100, 101, 0]]

    class Speaks:
        model_input_names = ("input_ids",)
        pad_token_id = 9

        def __call__(self, texts, truncation, max_length):
            return {"input_ids": [[7] * min(len(text), max_length) for text in texts]}

    assert load_data(spec, tokenizer=Speaks()).inputs["input_ids"].tolist() == [[7, 7, 7], [7, 7, 9]]
    with pytest.raises(TypeError, match="tokenizer must be 'words', 'bytes', a name, a function"):
        load_data(spec, tokenizer=3)


def test_pretrained_tokenizer_from_a_folder(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    (tmp_path / "tok").mkdir()
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "one": 5, "two": 6}
    vocab = tmp_path / "tok" / "vocab.txt"
    vocab.write_text("\n".join(vocabulary) + "\n")
    transformers.BertTokenizer(vocab=vocabulary).save_pretrained(tmp_path / "tok")
    spec = write(tmp_path / "a.txt", "one two\none\n")
    data = load_data(f"text:{spec}?tokenizer={tmp_path}/tok")
    assert data.inputs["input_ids"].tolist() == [[2, 5, 6, 3], [2, 5, 3, 0]]
    asked = []
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("socket.getaddrinfo", lambda *address, **_: asked.append(address) or [])
    with pytest.raises(ValueError, match=r"a name in the Hugging Face cache, got 'no/such'.*LISSE_DOWNLOAD"):
        load_data(f"text:{spec}?tokenizer=no/such")
    assert asked == []


def test_synthetic_sentences_are_pairs_that_differ_by_not():
    data = load_data("sentences?n=60&length=200", tokenizer=lambda text: [ord(c) for c in text])
    for row, other, length in zip(
        data.inputs["input_ids"], data.partner.inputs["input_ids"], data.lengths, strict=True
    ):
        text = "".join(chr(c) for c in row[:length])
        negated = "".join(chr(c) for c in other if c)
        assert text.endswith("[MASK].")
        assert negated == text.replace(" is ", " is not ", 1)
    assert len(data.classes) == 6
    assert torch.equal(load_data("sentences").partner.lengths, load_data("sentences").lengths + 1)
    assert load_data("sentences?vocabulary=50").inputs["input_ids"].max() < 50
    assert load_data("sentences?length=6").inputs["input_ids"].shape[1] == 6


@pytest.mark.parametrize(
    ("name", "content", "query", "match"),
    [
        ("a.txt", b"\n \n", "", "a.txt must hold at least one text, got an empty file"),
        ("a.txt", b"good\ncaf\xe9 \n", "", "a.txt must be text in utf-8, got other bytes in line 2.*encoding=latin-1"),
        ("a.txt", b"x", "?encoding=klingon", "encoding must be one that Python knows, got 'klingon'"),
        ("a.txt", b"x", "?length=1", "length must be at least 2 tokens, got 1"),
        ("a.txt", b"x", "?vocabulary=5", "vocabulary must be at least 6, got 5"),
        ("a.txt", b"x", "?first=b", "must name columns of a .jsonl, .tsv or .csv file"),
        ("a.jsonl", b'{"text": "x"}\n{"text": \n', "", "JSON object in each line, got an error in line 2"),
        ("a.jsonl", b"[1]\n", "", "got list in line 1"),
        ("a.jsonl", b"[" * 100_000, "", "got an error in line 1"),
        ("a.jsonl", b'{"p": "x", "q": "y"}\n', "", "must say which columns are texts, got 'p', 'q'"),
        ("a.jsonl", b'{"p": "x"}\n', "?first=z", "must have a column 'z', got 'p'"),
        ("a.jsonl", b'{"text": "x"}\n{"text": 3}\n', "", "must have a text 'text' in line 2, got 3"),
        ("a.jsonl", b'{"text": "x"}\n{"text": " "}\n', "", "must have a text 'text' in line 2, got ' '"),
        ("a.jsonl", b'{"text": "x"}\n', "?label=y", "must have a 'y' in every line, got none in line 1"),
        ("a.jsonl", b"", "", "must hold at least one text"),
        ("a.tsv", b"a\tb\nc\n", "", "must have 2 columns in every line, got 1 in line 2"),
        ("a.tsv", b"", "", "must hold at least one text"),
        ("a.jsonl", b'{"text": "x", "y": NaN}\n', "?label=y", "finite 'y' in every line, got nan in line 1"),
        ("a.jsonl", b'{"text": "x", "y": 1' + b"0" * 400 + b"}\n", "?label=y", "finite 'y' in every line, got 1000"),
        ("a.tsv", b"p\tq\nx\ty\n", "?first=p&second=z", "must have a column 'p', got 'first', 'second'"),
    ],
)
def test_bad_files(tmp_path, name, content, query, match):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=match):
        load_data(f"{tmp_path}/{name}{query}")


def test_latin_1_and_byte_order_marks(tmp_path):
    path = write(tmp_path / "a.txt", "café\n", "latin-1")
    wanted = load_data(write(tmp_path / "b.txt", "café\n")).fingerprint()
    assert load_data(f"{path}?encoding=latin-1").fingerprint() == wanted
    assert load_data(write(tmp_path / "c.txt", "café\n", "utf-8-sig")).fingerprint() == wanted


def test_a_tokenizer_that_gives_nothing():
    with pytest.raises(ValueError, match=r"every text must have a token, got none for 'b' .text 1."):
        encoded("x", ["a", "b"], lambda text: [1] if text == "a" else [])


@given(content=st.binary(max_size=60), ending=st.sampled_from(["txt", "jsonl", "tsv", "txt.gz"]))
def test_fuzz(content, ending, tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzz") / f"x.{ending}"
    path.write_bytes(content)
    try:
        load_data(str(path))
    except ValueError as error:
        assert str(path) in str(error)  # noqa: PT017


def test_only_a_newline_ends_a_line(tmp_path):
    data = load_data(write(tmp_path / "a.txt", "one\u2028two\r\nthree\x0cfour\x85five\x1csix\nseven\r\n"))
    assert len(data) == 3
    assert data.lengths.tolist() == [4, 6, 3]
    pairs = load_data(write(tmp_path / "a.tsv", "one\u2028two\tthree\r\nfour\x85five\tsix\r\n"))
    assert pairs.lengths.tolist() == [4, 4]
    assert pairs.partner.lengths.tolist() == [3, 3]


def test_names_given_as_options_mark_a_header(tmp_path):
    spec = write(tmp_path / "a.tsv", "frage\tantwort\tnote\none two\tthree\t1\nfour\tfive six\t0\n")
    data = load_data(f"{spec}?first=frage&second=antwort&label=note")
    assert data.lengths.tolist() == [4, 3]
    assert data.partner.lengths.tolist() == [3, 4]
    assert data.targets.tolist() == [1, 0]
    assert load_data(f"{spec}?first=antwort").lengths.tolist() == [3, 4]


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        (["10.0", "2.0"], [10, 2]),
        (["10", "2"], [10, 2]),
        (["0.5", "2"], [0.5, 2.0]),
        (["-7", "2"], [-7.0, 2.0]),
        (["1e2", "3"], [100, 3]),
    ],
)
def test_numbers_stay_numbers(tmp_path, written, wanted):
    rows = "".join(f'{{"text": "x", "y": {value}}}\n' for value in written)
    data = load_data(write(tmp_path / "a.jsonl", rows) + "?label=y")
    assert data.targets.tolist() == wanted
    assert data.targets.dtype == (torch.int64 if isinstance(wanted[0], int) else torch.float32)
    assert data.classes is None
    lines = "text\tlabel\n" + "".join(f"x\t{value}\n" for value in written)
    assert load_data(write(tmp_path / "a.tsv", lines) + "?label=label").targets.tolist() == wanted


def test_words_that_python_could_read_as_numbers_are_words(tmp_path):
    data = load_data(write(tmp_path / "a.tsv", "text\tlabel\nx\tnan\ny\tinf\nz\t1_0\n") + "?label=label")
    assert data.classes == ("1_0", "inf", "nan")
    truths = load_data(
        write(tmp_path / "a.jsonl", '{"text": "x", "y": true}\n{"text": "x", "y": false}\n') + "?label=y"
    )
    assert truths.classes == ("False", "True")
    assert truths.targets.tolist() == [1, 0]


def test_long_fields_and_lines(tmp_path, monkeypatch):
    data = load_data(write(tmp_path / "a.tsv", "word " * 40_000 + "\tend\n"))
    assert data.lengths.tolist() == [128]
    hashed = []
    hash_one = tokens._hashed
    monkeypatch.setattr(tokens, "_hashed", lambda *given: hashed.append(given) or hash_one(*given))
    long = write(tmp_path / "a.txt", "one two three four " * 50_000 + "\n")
    cut = load_data(f"{long}?length=10").inputs["input_ids"]
    assert len(hashed) <= 10, "words that are cut off are not looked at"
    assert cut[0].tolist() == word_ids("one two three four one two three four")
    assert load_data(f"{long}?tokenizer=bytes&length=5").inputs["input_ids"][0].tolist() == [
        *byte_ids("one")[:-1],
        END,
    ]


@given(st.text(max_size=30), st.integers(2, 12))
def test_cutting_early_changes_nothing(text, length):
    for early, whole in ((word_ids(text, 99, length), word_ids(text, 99)), (byte_ids(text, length), byte_ids(text))):
        assert tokens._cut(early, length) == tokens._cut(whole, length)


def test_a_file_has_no_splits(tmp_path, recwarn):
    spec = write(tmp_path / "a.txt", "one\n")
    load_data(spec)
    assert not recwarn.list
    with pytest.warns(UserWarning, match=r"a.txt has no splits: 'train' is the whole of it"):
        load_data(spec, split="train")


def test_a_file_too_large_to_hold_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "large.txt"
    with path.open("wb") as file:
        file.truncate(20 << 30)  # sparse: no byte of it is on the disk
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"large\.txt must be at most 1,073,741,824 bytes, got 21,474,836,480"):
        load_data(f"text:{path}")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
