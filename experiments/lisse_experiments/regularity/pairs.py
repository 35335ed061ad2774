"""Pairs of a masked sentence and its negation: from a file, or from templates; and which of two ways they negate."""

from __future__ import annotations

import ast
import itertools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lisse.data.places import resolve
from lisse.data.text import read_text

Kind = Literal["insertion", "rewriting", "none"]
KINDS: tuple[Kind, Kind] = ("insertion", "rewriting")
FILE = "negation/negated_pairs_unique.jsonl"
#: Sentences whose predictions by published networks are stored, and who published them.
STORED = {
    "NEG-136-SIMP": "[ettinger2020]",
    "NEG-1500-SIMP-GEN": "[shivagunde2023]",
    "NEG-1500-SIMP-TEMP": "[shivagunde2023]",
}
NETWORKS = ("bert-base-uncased", "bert-large-uncased", "distilbert-base-uncased", "albert-base-v2", "roberta-base")
_PIECES = re.compile(r"\[MASK\]|\w+|[^\w\s]")


@dataclass(frozen=True)
class Pair:
    """A sentence with one [MASK] and its negation; ``group`` is the template that both came from."""

    sentence: str
    negation: str
    group: str = ""

    @property
    def kind(self) -> Kind:
        """``insertion``: one "not" more and nothing else. ``rewriting``: other words too. ``none``: nothing changes.

        "Bailey Peninsula is (not) located in [MASK]" is the first, "requires [MASK]" and "does not require [MASK]",
        "can" and "cannot" the second: the two types of Figure 2b.
        """
        before, after = (_PIECES.findall(text.lower()) for text in (self.sentence, self.negation))
        if before == after:
            return "none"
        positions = (position for position, piece in enumerate(after) if piece == "not")
        return "insertion" if any(after[:k] + after[k + 1 :] == before for k in positions) else "rewriting"


def read_pairs(path: str = FILE) -> list[Pair]:
    """The pairs of a ``.jsonl`` file with ``masked_sentence``, ``masked_negation``, ``source`` and ``relation``."""
    pairs = []
    for number, line in enumerate(read_text(resolve(path)).split("\n"), 1):
        if not line.strip():
            continue
        row = json.loads(line)
        pair = Pair(row["masked_sentence"], row["masked_negation"], f"{row['source']} {row['relation']}")
        for text in (pair.sentence, pair.negation):
            if text.count("[MASK]") != 1:
                raise ValueError(
                    f"read_pairs: a sentence must have one [MASK], got {text!r} in line {number} of {path}."
                )
        pairs.append(pair)
    return pairs


# --- templates ------------------------------------------------------------------------------------------------------

_KINDS = {
    "bird": "robin sparrow eagle owl crow parrot pigeon swan",
    "fish": "trout salmon shark carp herring cod tuna eel",
    "tree": "oak pine birch maple willow cedar elm beech",
    "tool": "hammer saw drill chisel wrench rake spade axe",
    "fruit": "apple pear plum cherry lemon melon grape peach",
}
# A verb, how it is negated, and what each kind of thing does with it.
_VERBS = {
    "lives in a": ("does not live in a", {"bird": "nest", "fish": "river", "tree": "forest"}),
    "is found in a": ("is not found in a", {"tool": "shed", "fruit": "basket", "tree": "park", "fish": "lake"}),
    "has": ("does not have", {"bird": "wings", "fish": "fins", "tree": "leaves", "tool": "handles", "fruit": "seeds"}),
    "needs": ("does not need", {"bird": "grain", "fish": "water", "tool": "oil", "fruit": "sugar", "tree": "light"}),
}


def _a(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def templates() -> list[Pair]:
    """Pairs made here, of both kinds: "a robin is (not) a [MASK] .", "a robin lives in a [MASK] ." and so on."""
    pairs = []
    for kind, names in _KINDS.items():
        for name in names.split():
            pairs.append(Pair(f"{_a(name)} is a [MASK] .", f"{_a(name)} is not a [MASK] .", "is a"))
            for verb, (negated, objects) in _VERBS.items():
                if kind in objects:
                    pairs.append(Pair(f"{_a(name)} {verb} [MASK] .", f"{_a(name)} {negated} [MASK] .", verb))
    return pairs


def sentences() -> list[str]:
    """What a model of the templates is trained on: what is true, and some of what is denied."""
    texts = []
    for kind, names in _KINDS.items():
        for name in names.split():
            wrong = [other for other in _KINDS if other != kind]
            texts += [f"{_a(name)} is a {kind} ."] * 3 + [f"{_a(name)} is not a {other} ." for other in wrong]
            for verb, (negated, objects) in _VERBS.items():
                if kind in objects:
                    texts += [f"{_a(name)} {verb} {objects[kind]} ."] * 3
                    texts += [f"{_a(name)} {negated} {noun} ." for other, noun in objects.items() if other != kind]
    return texts


# --- stored predictions ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stored:
    """What a published network predicted for the unique pairs of a file: at most 20 words each, best first.

    ``blank`` is the share of the stored lists whose first word is empty (roberta-base's, nearly all): it is left out,
    and the second stands for the first.
    """

    network: str
    file: str
    pairs: tuple[tuple[str, str], ...]
    predictions: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    blank: float = 0.0

    @property
    def masked(self) -> tuple[Pair, ...]:
        """The comparable pairs with [MASK] in place of their last word, which is what was predicted."""
        texts = [tuple(f"{' '.join(text.split()[:-1])} [MASK]." for text in pair) for pair in self.pairs]
        return tuple(Pair(*pair) for pair, comparable in zip(texts, self.comparable, strict=True) if comparable)

    @property
    def stays(self) -> list[bool]:
        """Whether sentence and negation have the same first word."""
        return [bool(before and after and before[0] == after[0]) for before, after in self.predictions]

    @property
    def comparable(self) -> list[bool]:
        """Whether both contexts are the same but for "not": "is an" and "is not a" ask for other words."""
        contexts = [[text.lower().split()[:-1] for text in pair] for pair in self.pairs]
        return [before == [word for word in after if word != "not"] for before, after in contexts]

    @property
    def overlap(self) -> list[float]:
        """The share of common words among those of both, |A ∩ B| / |A ∪ B|."""
        sets = [(set(before), set(after)) for before, after in self.predictions]
        return [len(a & b) / len(a | b) if a | b else 0.0 for a, b in sets]


def stored_predictions(folder: str = "negation") -> list[Stored]:
    """All that lie in a folder: ``NAME.txt`` (a sentence and its negation in turns), ``pred_NAME_NETWORK.txt``."""
    predictions = []
    for file, network in itertools.product(STORED, NETWORKS):
        texts, lists = resolve(f"{folder}/{file}.txt"), resolve(f"{folder}/pred_{file}_{network}.txt")
        if texts.is_file() and lists.is_file():
            predictions.append(_stored(network, file, texts, lists))
    return predictions


def _stored(network: str, file: str, texts: Path, lists: Path) -> Stored:
    lines = [" ".join(line.split()) for line in read_text(texts).split("\n") if line.strip()]
    stored = [ast.literal_eval(line) for line in read_text(lists).split("\n") if line.strip()]
    words = [tuple(word.strip().lower() for word in row if word.strip()) for row in stored]
    if len(lines) != len(words) or len(lines) % 2:
        raise ValueError(
            f"stored_predictions: {lists.name} must have a line for each of the {len(lines)} sentences, in pairs, got "
            f"{len(words)}."
        )
    unique = {(lines[k], lines[k + 1]): (words[k], words[k + 1]) for k in range(0, len(lines), 2)}
    blank = sum(not row or not row[0].strip() for row in stored) / len(stored)
    return Stored(network, file, tuple(unique), tuple(unique.values()), blank)
