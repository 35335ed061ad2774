"""A WordPiece vocabulary made from the texts at hand, in the manner of BERT's uncased one, the same in every run.

The trainer of ``tokenizers`` breaks ties as its hash tables fall out: two runs give two vocabularies, and with them two
models. Here pieces are counted and sorted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from lisse.libraries import extra

SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
_WHOLE = 0.75  # of the vocabulary: candidates words; the rest are parts of the others
_BEGINNING, _MIDDLE = 6, 4  # how long a part may be


def trained_tokenizer(texts: Iterable[str], vocabulary: int) -> Any:
    """A tokenizer of transformers with at most ``vocabulary`` pieces, lower case without accents, [CLS] … [SEP]."""
    tokenizers = extra("tokenizers", "hf", "trained_tokenizer")
    transformers = extra("transformers", "hf", "trained_tokenizer")
    if vocabulary < 100:
        raise ValueError(f"trained_tokenizer: vocabulary must be at least 100 pieces, got {vocabulary}.")
    normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    splitter = tokenizers.pre_tokenizers.BertPreTokenizer()
    counts = Counter(word for text in texts for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)))
    numbers = {piece: index for index, piece in enumerate(pieces(counts, vocabulary))}
    words = tokenizers.Tokenizer(tokenizers.models.WordPiece(numbers, unk_token="[UNK]", max_input_chars_per_word=100))
    words.normalizer, words.pre_tokenizer = normalizer, splitter
    words.decoder = tokenizers.decoders.WordPiece()
    ends = [(mark, words.token_to_id(mark)) for mark in ("[CLS]", "[SEP]")]
    words.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, **SPECIAL)


def pieces(counts: Counter[str], vocabulary: int) -> list[str]:
    """The special marks, then letters, frequent words, and frequent parts of the words that are not among them.

    A letter is there at the beginning of a word and after it (``##x``), the most frequent first, in at most half of
    the vocabulary: texts in many scripts have many. A part counts as often as its words occur, times its length: the
    letters that it saves.
    """
    letters: Counter[str] = Counter()
    for word, count in counts.items():
        letters[word[0]] += count
        for letter in word[1:]:
            letters[f"##{letter}"] += count
    entries = [*SPECIAL.values(), *_first(letters, vocabulary // 2 - len(SPECIAL))]
    vocabulary_set = set(entries)
    room = vocabulary - len(entries)
    candidates = Counter({word: count for word, count in counts.items() if word not in vocabulary_set})
    words = _first(candidates, int(_WHOLE * room))
    vocabulary_set.update(words)
    parts: Counter[str] = Counter()
    for word, count in counts.items():
        if word in vocabulary_set:
            continue
        for end in range(2, min(_BEGINNING, len(word) - 1) + 1):
            parts[word[:end]] += count * end
        for start in range(1, len(word) - 1):
            for end in range(start + 2, min(start + _MIDDLE, len(word)) + 1):
                parts[f"##{word[start:end]}"] += count * (end - start)
    new_parts = Counter({part: count for part, count in parts.items() if part not in vocabulary_set})
    return [*entries, *words, *_first(new_parts, room - len(words))]


def _first(counts: Counter[str], most: int) -> list[str]:
    """The most frequent, equal ones by the alphabet."""
    return [name for name, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[: max(most, 0)]]
