"""What a person asked of load_data besides the spec; every loader receives it."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lisse.data.dataset import Dataset
from lisse.progress import Listener

SPLITS = ("train", "test")


@dataclass(frozen=True)
class Request:
    """``split``, at most ``limit`` samples chosen with ``seed`` (``None``: the first ones), a tokenizer for text."""

    split: str = "test"
    limit: int | None = None
    seed: int | None = 0
    tokenizer: Any = None
    progress: Listener | None = None

    def one_of(self, function: str, *splits: str) -> str:
        """The split, if it is one of ``splits``."""
        if self.split not in splits:
            raise ValueError(
                f"{function}: split must be one of {', '.join(splits)}, got {self.split!r}. Choose one of these."
            )
        return self.split

    def whole(self, what: str) -> None:
        """``what`` has no splits: say so to whoever asked for one by name ("test" is what nobody has to ask for)."""
        if self.split not in ("test", "all"):
            warnings.warn(
                f"load_data: {what} has no splits: {self.split!r} is the whole of it, as every other split is.",
                stacklevel=2,
            )

    def choose(self, count: int) -> Tensor | None:
        """Which of ``count`` samples to read: ``None`` for all of them in order.

        The same choice as ``Dataset.sample(limit, seed)``, so that it does not matter whether a loader chooses before
        reading (images, text) or :meth:`cut` chooses afterwards.
        """
        if self.limit is None or self.limit >= count:
            return None
        if self.seed is None:
            return torch.arange(self.limit)
        return torch.randperm(count, generator=torch.Generator().manual_seed(self.seed))[: self.limit]

    def cut(self, data: Dataset) -> Dataset:
        """At most ``limit`` samples of ``data``."""
        chosen = self.choose(len(data))
        if chosen is None:
            return data
        return data.take(len(chosen)) if self.seed is None else data.subset(chosen)


def may_download(asked: bool) -> bool:
    """Whether the network may be used: ``?download=true`` in the spec or ``LISSE_DOWNLOAD=1`` in the environment."""
    return asked or os.environ.get("LISSE_DOWNLOAD", "").lower() in ("1", "true", "yes")


@contextlib.contextmanager
def hugging_face(network: bool) -> Iterator[None]:
    """Without ``network``, the offline switches of Hugging Face's libraries for a moment.

    Their ``local_files_only`` alone still asks the hub.
    """
    modules: list[Any] = [
        sys.modules[name] for name in ("huggingface_hub.constants", "datasets.config") if name in sys.modules
    ]
    before = [module.HF_HUB_OFFLINE for module in modules]
    try:
        for module in modules:
            module.HF_HUB_OFFLINE = module.HF_HUB_OFFLINE or not network
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = value
