"""Tokenizers: two that need nothing (bytes, words), and any of transformers'; texts become ids, masks and lengths."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import torch

from lisse.data.dataset import Dataset, text_digests
from lisse.libraries import brings_code, may_download, pretrained_tokenizer

PAD, UNKNOWN, START, END, MASK = range(5)
SPECIAL = {"[pad]": PAD, "[unk]": UNKNOWN, "[cls]": START, "[sep]": END, "[mask]": MASK}
#: A text's token ids, with the marks of start and end.
Tokenizer = Callable[[str], list[int]]

_PIECES = re.compile(r"\[(?:mask|pad|unk|cls|sep)\]|\w+|[^\w\s]")


def byte_ids(text: str, most: int | None = None) -> list[int]:
    """[CLS], each byte (at most the first ``most``) of the UTF-8 text as 5 + byte, [SEP]: 261 ids in all."""
    return [START, *(5 + byte for byte in text[:most].encode("utf-8", "surrogatepass")[:most]), END]


def word_ids(text: str, vocabulary: int = 30522, most: int | None = None) -> list[int]:
    """[CLS], each lower-cased word or sign hashed into 5 … vocabulary - 1, [SEP]. ``[MASK]`` is one token.

    The same word has the same id on every machine. Two words may share one: 2 % of 600 words do at 30,522 ids.
    Only the first ``most`` words are looked at, however long the text.
    """
    pieces = (match.group() for match in islice(_PIECES.finditer(text.lower()), most))
    return [START, *(SPECIAL[piece] if piece in SPECIAL else _hashed(piece, vocabulary) for piece in pieces), END]


def _hashed(word: str, vocabulary: int) -> int:
    digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return 5 + int.from_bytes(digest) % (vocabulary - 5)


def encoded(
    name: str,
    texts: Sequence[str],
    tokenizer: Any,
    *,
    length: int = 128,
    vocabulary: int = 30522,
    targets: torch.Tensor | None = None,
    classes: tuple[str, ...] | None = None,
    partner: Dataset | None = None,
) -> Dataset:
    """``texts`` as a Dataset of ``input_ids`` and ``attention_mask``, padded on the right to the longest.

    ``tokenizer`` is ``"words"``, ``"bytes"``, a function from text to ids, a tokenizer of transformers, or the name or
    folder of one. A text of more than ``length`` tokens is cut (the end mark stays).
    """
    if length < 2:
        raise ValueError(f"load_data: length must be at least 2 tokens, got {length}. 128 is a good start.")
    if vocabulary < 6:
        raise ValueError(f"load_data: vocabulary must be at least 6, got {vocabulary}. The first 5 ids are special.")
    if isinstance(tokenizer, str) and tokenizer not in ("words", "bytes"):
        tokenizer = named_tokenizer(tokenizer)
    if tokenizer == "words":
        rows = [_cut(word_ids(text, vocabulary, length), length) for text in texts]
    elif tokenizer == "bytes":
        rows = [_cut(byte_ids(text, length), length) for text in texts]
    elif hasattr(tokenizer, "model_input_names"):
        rows = tokenizer(list(texts), truncation=True, max_length=length)["input_ids"]
    elif callable(tokenizer):
        rows = [[int(token) for token in tokenizer(text)][:length] for text in texts]
    else:
        raise TypeError(
            f"load_data: tokenizer must be 'words', 'bytes', a name, a function or a tokenizer of transformers, "
            f"got {type(tokenizer).__name__}. Leave it out for words."
        )
    empty = next((index for index, row in enumerate(rows) if not row), None)
    if empty is not None:
        raise ValueError(
            f"load_data: every text must have a token, got none for {texts[empty]!r} (text {empty}). Remove it."
        )
    lengths = torch.tensor([len(row) for row in rows])
    pad = getattr(tokenizer, "pad_token_id", None) or PAD
    ids = torch.full((len(rows), int(lengths.max())), pad)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row)
    mask = (torch.arange(ids.shape[1])[None] < lengths[:, None]).long()
    inputs = {"input_ids": ids, "attention_mask": mask}
    speaker = f"{_tokenizer_name(tokenizer, vocabulary)}, at most {length} tokens"
    return Dataset(name, inputs, targets, lengths, partner, classes, text_digests(texts), speaker)


def _tokenizer_name(tokenizer: Any, vocabulary: int) -> str:
    if isinstance(tokenizer, str):
        return f"words as {vocabulary} ids" if tokenizer == "words" else tokenizer
    name = getattr(tokenizer, "name_or_path", "") or getattr(tokenizer, "__qualname__", "")
    return str(name or type(tokenizer).__name__)


def _cut(row: list[int], length: int) -> list[int]:
    return row if len(row) <= length else [*row[: length - 1], END]


def named_tokenizer(name: str) -> Any:
    """A tokenizer of transformers by folder or name; from the network only if downloads were asked for."""
    try:
        return pretrained_tokenizer(name, "load_data", network=may_download(False))
    except ImportError as error:
        raise ValueError(
            f"load_data: tokenizer must be 'words' or 'bytes' without transformers, got {name!r}. "
            'pip install "lisse[hf]" for pretrained tokenizers.'
        ) from error
    except Exception as error:  # a damaged file raises whatever the reader of its format raises
        if brings_code(error):
            raise ValueError(
                f"load_data: tokenizer must be readable without code of its own, got {name!r}, which brings some "
                "(auto_map); it was not run. Write package.module:factory around one that you trust."
            ) from None
        raise ValueError(
            f"load_data: tokenizer must be 'words', 'bytes', a folder or a name in the Hugging Face cache, "
            f"got {name!r}. "
            "Set LISSE_DOWNLOAD=1 to fetch it."
        ) from error
