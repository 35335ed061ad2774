"""What a person asked of load_data besides the spec; every loader receives it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lisse.data.dataset import Dataset, check_seed
from lisse.progress import Listener


@dataclass(frozen=True)
class Request:
    """``split``, at most ``limit`` samples chosen with ``seed`` (``None``: the first ones), a tokenizer for text."""

    split: str = "test"
    limit: int | None = None
    seed: int | None = 0
    tokenizer: Any = None
    progress: Listener | None = None

    def check(self, function: str) -> None:
        """Refuse a limit or a seed that is none."""
        if self.limit is not None and (
            isinstance(self.limit, bool) or not isinstance(self.limit, int) or self.limit < 1
        ):
            raise ValueError(
                f"{function}: limit must be a positive integer or None, got {self.limit!r}. Leave it out to take all."
            )
        if self.seed is not None:
            check_seed(function, self.seed)

    def one_of(self, function: str, *splits: str) -> str:
        """The split, if it is one of ``splits``."""
        if self.split not in splits:
            raise ValueError(
                f"{function}: split must be one of {', '.join(splits)}, got {self.split!r}. Choose one of these."
            )
        return self.split

    def warn_of_no_splits(self, label: str) -> None:
        """``what`` has no splits: say so to whoever asked for one by name ("test" is what nobody has to ask for)."""
        if self.split not in ("test", "all"):
            warnings.warn(
                f"load_data: {label} has no splits: {self.split!r} is the whole of it, as every other split is.",
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
        order = self.choose(len(data))
        if order is None:
            return data
        return data.take(len(order)) if self.seed is None else data.subset(order)
