"""Data that needs no file: scikit-learn's digits, and sentences made from a small grammar."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lisse.data.dataset import Dataset
from lisse.data.generators import generator
from lisse.data.request import Request
from lisse.data.tokens import encoded


def digits(request: Request) -> Dataset:
    """1,797 handwritten digits ``[n, 1, 8, 8]`` as floats in [0, 1] (scikit-learn's have 17 grey levels: x / 16).

    A fixed split that does not depend on the seed: of every class every fifth sample in a fixed shuffled order is test
    (364 test, 1,433 train). The split "all" has them all in scikit-learn's order.
    """
    from sklearn.datasets import load_digits

    split = request.one_of("digits", "train", "test", "all")
    pixels, answers = load_digits(return_X_y=True)
    images, labels = torch.from_numpy(pixels).float().div(16).view(-1, 1, 8, 8), torch.from_numpy(answers).long()
    order = torch.randperm(len(labels), generator=generator("digits", "split", 0))
    test = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(10):
        test[order[labels[order] == label][::5]] = True
    keep = {"train": ~test, "test": test, "all": torch.ones_like(test)}[split]
    return Dataset("digits", images[keep], labels[keep], classes=tuple("0123456789"))


_NOUNS = {
    "animal": ("beagle", "cat", "sparrow", "horse", "trout", "spider"),
    "plant": ("oak", "rose", "fern", "tulip", "cactus", "pine"),
    "tool": ("hammer", "saw", "drill", "shovel", "wrench", "chisel"),
    "instrument": ("violin", "flute", "drum", "trumpet", "piano", "cello"),
    "vehicle": ("car", "train", "bicycle", "ship", "tram", "lorry"),
    "food": ("apple", "cheese", "soup", "bread", "omelette", "plum"),
}
_ADJECTIVES = ("", "", "old ", "small ", "beautiful ", "very old ", "large and heavy ")
_ENDINGS = ("a [MASK]", "a kind of [MASK]", "what people call a [MASK]", "one of the things that we know as a [MASK]")
_PLACES = ("", "", " in the garden", " at the end of the road", " near my house")


def sentences(
    request: Request, *, n: int = 200, tokenizer: str = "", length: int = 64, vocabulary: int = 30522
) -> Dataset:
    """Masked sentences of 8 to 25 tokens, and as partner the same sentences negated (after Kassner and Schütze).

    "A small beagle near my house is a kind of [MASK]." and "… is not a kind of [MASK]."; the target is the kind that
    is asked for (six classes). ``tokenizer`` as for text files.
    """
    if not 1 <= n <= 1_000_000:
        raise ValueError(f"sentences: n must lie in 1 … 1000000, got {n}. It is the number of pairs.")
    source = generator("sentences", request.one_of("sentences", "train", "test"), request.seed or 0)

    def pick(choices: Sequence[str]) -> str:
        return choices[int(torch.randint(len(choices), (), generator=source))]

    plain, negated, labels = [], [], []
    for _ in range(n):
        labels.append(int(torch.randint(len(_NOUNS), (), generator=source)))
        subject = pick(_ADJECTIVES) + pick(tuple(_NOUNS.values())[labels[-1]])
        article = "An" if subject[0] in "aeiou" else "A"
        begin, end = f"{article} {subject}{pick(_PLACES)} is ", f"{pick(_ENDINGS)}."
        plain.append(begin + end)
        negated.append(begin + "not " + end)
    speaker = tokenizer or request.tokenizer or "words"
    partner = encoded("sentences, negated", negated, speaker, length=length, vocabulary=vocabulary)
    return encoded(
        "sentences",
        plain,
        speaker,
        length=length,
        vocabulary=vocabulary,
        targets=torch.tensor(labels),
        classes=tuple(_NOUNS),
        partner=partner,
    )
