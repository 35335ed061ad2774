"""The negation experiment: how far a sentence moves when it is denied, at the input of a model and at its [MASK]."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from lisse.maths.transport import wasserstein_batch
from lisse.profile_file import load_arrays, save_arrays
from lisse_experiments.regularity.pairs import Pair

Tell = Callable[[float, float], None]
_BATCH = 128


@dataclass(frozen=True, eq=False)
class Distances:
    """Of each pair: W1 (ground ℓ1) of the token measures, the ℓ1 distance of the [MASK] outputs, the predictions.

    ``input`` compares what enters the first layer (words with positions), ``words`` the word embeddings alone;
    ``predicted`` are the ids of the first words for sentence and negation, ``[n, 2]``.
    """

    pairs: tuple[Pair, ...]
    input: Tensor
    words: Tensor
    output: Tensor
    predicted: Tensor

    @property
    def stays(self) -> Tensor:
        """Whether the first word stays."""
        return self.predicted[:, 0] == self.predicted[:, 1]

    def of(self, kind: str) -> Tensor:
        """Which pairs negate in a way."""
        return torch.tensor([pair.kind == kind for pair in self.pairs])

    def selection(self, which: Tensor) -> Distances:
        """The pairs that are chosen by booleans ``[n]``."""
        pairs = tuple(pair for pair, selected in zip(self.pairs, which.tolist(), strict=True) if selected)
        return Distances(pairs, self.input[which], self.words[which], self.output[which], self.predicted[which])


@dataclass(frozen=True, eq=False)
class Encoding:
    """One text in a model: its ``tokens``, their embeddings ``[t, d]`` with and without positions; the place and output
    ``[d]`` of the [MASK]; the id of the first word predicted there.
    """

    tokens: tuple[str, ...]
    input: Tensor
    words: Tensor
    output: Tensor
    mask: int
    predicted: int


def encodings(
    model: nn.Module, texts: Sequence[str], *, device: str = "cpu", tell: Tell | None = None
) -> list[Encoding]:
    """``model`` (a masked language model of transformers, as ``load_model`` gives it) on texts with one [MASK] each."""
    tokenizer = _tokenizer(model)
    ids = tokenizer([text.replace("[MASK]", tokenizer.mask_token) for text in texts])["input_ids"]
    order = sorted(range(len(ids)), key=lambda index: len(ids[index]))
    by_index: dict[int, Encoding] = {}
    model.to(device).eval()
    table: Any = model.get_input_embeddings()  # type: ignore[operator]
    with torch.no_grad():
        for start in range(0, len(order), _BATCH):
            batch = order[start : start + _BATCH]
            longest = max(len(ids[index]) for index in batch)
            inputs = torch.full((len(batch), longest), tokenizer.pad_token_id)
            for row, index in enumerate(batch):
                inputs[row, : len(ids[index])] = torch.tensor(ids[index])
            lengths = torch.tensor([len(ids[index]) for index in batch])
            mask = (torch.arange(longest) < lengths[:, None]).long().to(device)
            inputs = inputs.to(device)
            at = (inputs == tokenizer.mask_token_id).float().argmax(1)
            states, scores = _read(model, inputs, mask, at)
            first, last = (states[end].float().cpu() for end in (0, -1))
            words = table(inputs).float().cpu()
            for row, index in enumerate(batch):
                n = len(ids[index])
                marks = ids[index].count(tokenizer.mask_token_id)
                if marks != 1:
                    raise ValueError(f"encodings: a text must have one [MASK], got {marks} in {texts[index]!r}.")
                position, best = int(at[row]), int(scores[row].argmax())
                tokens = tuple(tokenizer.convert_ids_to_tokens(ids[index]))
                by_index[index] = Encoding(
                    tokens, first[row, :n].clone(), words[row, :n].clone(), last[row, position].clone(), position, best
                )
            if tell is not None:
                tell(min(start + _BATCH, len(order)), len(order))
    return [by_index[index] for index in range(len(texts))]


def _read(model: Any, ids: Tensor, mask: Tensor, at: Tensor) -> tuple[Sequence[Tensor], Tensor]:
    """The states after the embeddings and after each layer, and the scores ``[b, v]`` at one place of each text."""
    head = getattr(model, "cls", None) or getattr(model, "lm_head", None)
    rows = torch.arange(len(ids), device=ids.device)
    if head is None:
        out = model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
        return out.hidden_states, out.logits[rows, at]
    # The head costs more than the encoder of a small model: it is asked where it is needed.
    out = model.base_model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
    return out.hidden_states, head(out.last_hidden_state[rows, at][:, None])[:, 0]


def distances(model: nn.Module, pairs: Sequence[Pair], *, device: str = "cpu", tell: Tell | None = None) -> Distances:
    """Both sides of every pair through the model, and how far they are apart."""
    if not pairs:
        raise ValueError("distances: pairs must hold at least one pair, got none.")
    parts = []
    for start in range(0, len(pairs), 1024):  # so that the tokens of all texts need not be held at once
        chunk = pairs[start : start + 1024]
        both = encodings(model, [pair.sentence for pair in chunk] + [pair.negation for pair in chunk], device=device)
        left, right = both[: len(chunk)], both[len(chunk) :]
        parts.append(
            [
                wasserstein_batch(
                    [sentence.input.double() for sentence in left], [sentence.input.double() for sentence in right]
                ),
                wasserstein_batch(
                    [sentence.words.double() for sentence in left], [sentence.words.double() for sentence in right]
                ),
                torch.stack([(a.output - b.output).double().abs().sum() for a, b in zip(left, right, strict=True)]),
                torch.tensor([[a.predicted, b.predicted] for a, b in zip(left, right, strict=True)]),
            ]
        )
        if tell is not None:
            tell(min(start + 1024, len(pairs)), len(pairs))
    return Distances(tuple(pairs), *(torch.cat([part[index] for part in parts]) for index in range(4)))


def input_distances(model: nn.Module, pairs: Sequence[Pair]) -> tuple[Tensor, list[str]]:
    """W1 (ground ℓ1) ``[n]`` of what enters the first layer, and each sentence's length; no head is needed."""
    tokenizer, encoder = _tokenizer(model), cast("Any", model).base_model
    sides: list[list[Tensor]] = []
    with torch.no_grad():
        for texts in zip(*((pair.sentence, pair.negation) for pair in pairs), strict=True):
            rows = tokenizer([text.replace("[MASK]", tokenizer.mask_token) for text in texts])["input_ids"]
            sides.append([encoder.embeddings(input_ids=torch.tensor([row]))[0].double() for row in rows])
    return wasserstein_batch(*sides), [f"{len(tokens)} tokens" for tokens in sides[0]]


def kept_distances(
    file: Path, model: nn.Module, pairs: Sequence[Pair], *, device: str = "cpu", tell: Tell | None = None
) -> Distances:
    """:func:`distances`, or what an earlier start left in ``file`` for the same weights and pairs."""
    sign = np.frombuffer(_fingerprint(model, pairs), dtype=np.uint8)
    if file.is_file():
        arrays = load_arrays(file)
        if np.array_equal(arrays["sign"], sign):
            return Distances(tuple(pairs), *(torch.from_numpy(np.array(arrays[name])) for name in _NAMES))
    measured = distances(model, pairs, device=device, tell=tell)
    file.parent.mkdir(parents=True, exist_ok=True)
    save_arrays({"sign": sign, **{name: getattr(measured, name).numpy() for name in _NAMES}}, file)
    return measured


_NAMES = ("input", "words", "output", "predicted")


def _fingerprint(model: nn.Module, pairs: Sequence[Pair]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    for pair in pairs:
        digest.update(f"{pair.sentence}\n{pair.negation}\n".encode())
    return digest.digest()


def word(model: nn.Module, identity: int) -> str:
    """The word of an id."""
    return str(_tokenizer(model).decode([identity])).strip()


def _tokenizer(model: nn.Module) -> Any:
    tokenizer = getattr(getattr(model, "lisse", None), "tokenizer", None)
    if tokenizer is None or getattr(tokenizer, "mask_token", None) is None:
        raise ValueError("encodings: model must be a masked language model with its tokenizer, got none with a [MASK].")
    return tokenizer
