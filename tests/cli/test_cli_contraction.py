"""lisse measure contraction hf:DIR --pairs FILE, and its figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import Result

from lisse.profile import Profile

Run = Callable[..., Result]
transformers = pytest.importorskip("transformers")
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "fish", "bird", "can", "not", "fly", "swim", "."]
PAIRS = [
    (f"a {animal} can {verb} [MASK] .", f"a {animal} can not {verb} [MASK] .")
    for animal in ("fish", "bird")
    for verb in ("fly", "swim", "fly fly", "swim swim", "fly swim")
]


@pytest.fixture
def model(folder: Path) -> str:
    place = folder / "bert"
    place.mkdir()
    (place / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizer(str(place / "vocab.txt")).save_pretrained(place)
    config = transformers.BertConfig(
        hidden_size=16, num_attention_heads=2, num_hidden_layers=2, intermediate_size=32, vocab_size=len(WORDS),
        max_position_embeddings=16,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.BertForMaskedLM(config).save_pretrained(place)
    return f"hf:{place}"


def write(folder: Path, name: str) -> Path:
    file = folder / name
    if name.endswith(".jsonl"):
        lines = [json.dumps({"masked_sentence": a, "masked_negation": b}) for a, b in PAIRS]
    else:
        between = "\t" if name.endswith(".tsv") else ","
        lines = [between.join(("sentence1", "sentence2")), *(between.join(pair) for pair in PAIRS)]
    file.write_text("\n".join(lines) + "\n")
    return file


def test_prints_the_table_and_draws_the_pictures(lisse: Run, folder: Path, model: str) -> None:
    file = write(folder, "pairs.jsonl")
    result = lisse("measure", "contraction", model, "--pairs", file, "--points", 2, "--order", "given",
                   "--out", "x.profile", "--no-cache")  # fmt: skip
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.partition("\n\n")[2].splitlines()  # headlines stand above
    assert lines[0].split()[:4] == ["layer", "distance_before", "distance_after", "stretch"]
    assert any(line.startswith("bert.encoder.layer.1.attention.self") for line in lines)
    assert "correlation: " in result.stdout
    assert "The embedding is the [MASK] token" in result.stdout
    profile = Profile.load("x.profile")
    assert {row.n for row in profile.rows if row.quantity == "distance_before"} == {len(PAIRS)}
    words = profile["contraction"].arrays["pair/0/second"].tolist()
    assert words == ["[CLS]", "a", "fish", "can", "not", "fly", "[MASK]", ".", "[SEP]"]
    for what, more in (("contraction", ()), ("sentences", ()), ("sentences", ("--where", "pair=2"))):
        drawn = lisse("figure", what, "x.profile", "-o", f"{what}.png", *more)
        assert drawn.exit_code == 0, drawn.stderr
        assert (folder / f"{what}.png").stat().st_size > 5000
    wrong = lisse("figure", "sentences", "x.profile", "--where", "pair=9", "-o", "y.png")
    assert wrong.exit_code == 2
    assert "pair must be one of 0, 1, 2, 3, got 9" in wrong.stderr
    wrong = lisse("figure", "sentences", "x.profile", "x.profile", "-o", "y.png")
    assert "draws one profile" in wrong.stderr
    wrong = lisse("figure", "contraction", "x.profile", "--where", "head=0", "-o", "y.png")
    assert "where of 'contraction' must be left out, got head=0" in wrong.stderr


def test_tabs_and_commas_give_the_same_numbers(lisse: Run, folder: Path, model: str) -> None:
    found = []
    for name in ("a.tsv", "b.csv"):
        line = ["measure", "contraction", model, "--pairs", write(folder, name), "--quick", "--points", 0, "--no-cache"]
        result = lisse(*line, "--out", "x.profile")
        assert result.exit_code == 0, result.stderr
        found.append([row.value for row in Profile.load("x.profile").rows])
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("name", "content", "code", "says"),
    [
        ("p.jsonl", '{"a": "a fish", "b": "a bird"}\nnonsense\n', 2, "object in each line, got an error in line 2"),
        ("p.jsonl", '{"a": "a fish", "b": "a bird"}\n{"a": "a fish"}\n', 2, "must have a text 'b' in line 2, got None"),
        ("p.csv", 'first,second\na fish,a bird\n"a fish,a bird\n', 2, "must be comma-separated, got an error in line"),
        ("p.csv", "first,second\na fish,a bird\na fish\n", 2, "must have 2 columns in every line, got 1 in line 3"),
        ("p.jsonl", '{"text": "a fish"}\n{"text": "a bird"}\n', 1, "--pairs must hold two texts a line, got one in"),
        ("p.txt", "a fish\n", 2, "--pairs takes a file that ends in .jsonl, .ndjson, .tsv, .csv"),
        ("p.jsonl", "", 2, "must hold at least one text"),
    ],
)  # fmt: skip
def test_a_bad_file_is_told_by_line(
    lisse: Run, folder: Path, model: str, name: str, content: str, code: int, says: str
) -> None:
    (folder / name).write_text(content)
    result = lisse("measure", "contraction", model, "--pairs", name, "--no-cache")
    assert result.exit_code == code, result.stderr
    assert says in result.stderr


def test_a_missing_file_and_two_sources_are_errors(lisse: Run, folder: Path, model: str) -> None:
    result = lisse("measure", "contraction", model, "--pairs", "none.jsonl")
    assert result.exit_code != 0
    assert "there is no file 'none.jsonl'" in result.stderr
    both = lisse("measure", "contraction", model, "--pairs", write(folder, "a.tsv"), "--data", "digits")
    assert (both.exit_code, "--data and --pairs exclude each other" in both.stderr) == (2, True)
    neither = lisse("measure", "contraction", model)
    assert "Missing option '--data'" in neither.stderr


def test_a_network_without_attention_is_told(lisse: Run) -> None:
    result = lisse("measure", "contraction", "tiny_models:sound", "--data", "points.npz", "--no-cache")
    assert result.exit_code == 1
    assert "no attention layer was found" in result.stderr


def test_a_report_on_a_text_model(lisse: Run, folder: Path, model: str) -> None:
    result = lisse("report", model, "--data", write(folder, "pairs.jsonl"), "--quick")
    assert result.exit_code == 0, result.stderr
    assert "topology, contraction, propagation, isometry, sensitivity, lipschitz. This takes" in result.stderr
    page = (folder / "report.html").read_text("utf-8")
    assert "Failed: " not in page
    for figure in (
        "contraction-against-bounds",
        "contraction-distance",
        "propagation-scaled-ratio",
        "topology-change-rate",
    ):
        assert f'<figure id="{figure}"' in page
    for words in ("proved, of the weights", "proved, of these tokens", ">measured</text>"):
        assert words in page
    assert "Not measured: it deforms images" in page
