"""Drawn: the samples of a data set in a random order, read as they are needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lisse.data.dataset import Batch, Dataset, check_seed
from lisse.identity import tensor_identity


class Drawn(Dataset):
    """The samples of ``data`` in an order drawn with ``seed``: the first n are those of ``data.sample(n, seed)``.

    A file may be sorted by class, by date or by difficulty; the first samples of a drawn order are a sample of all, and
    those that one measurement takes are among those of a larger one. ``batches``, ``take`` and ``subset`` read the rows
    they need and nothing else; ``inputs`` as a whole is a copy, made when it is first asked for (``form`` has its
    shapes). Partners stay beside their samples. The fingerprint is that of the data: the order stands beside it
    (:attr:`digest`). Drawn again, the data have the new order.
    """

    def __init__(self, data: Dataset, seed: int) -> None:
        base = data.base if isinstance(data, Drawn) else data
        check_seed("Drawn", seed)
        order = torch.randperm(len(base), generator=torch.Generator().manual_seed(seed))
        words = {"name": base.name, "classes": base.classes, "tokenizer": base.tokenizer, "_digests": base._digests}
        vars(self).update(words, base=base, order=order, seed=seed)

    base: Dataset
    order: Tensor  # [n]: the row of each sample in the data
    seed: int

    @cached_property
    def digest(self) -> str:
        """A digest of the order: two runs with the same one on the same data have seen the same samples."""
        return tensor_identity(self.order)

    def _row(self, values: Tensor | None) -> Any:
        return None if values is None else values[self.order.to(values.device)]

    @cached_property
    def inputs(self) -> Tensor | dict[str, Tensor]:
        """All inputs in this order: a copy."""
        inputs = self.base.inputs
        return (
            {key: self._row(value) for key, value in inputs.items()} if isinstance(inputs, dict) else self._row(inputs)
        )

    @cached_property
    def targets(self) -> Tensor | None:
        """The targets in this order."""
        return self._row(self.base.targets)

    @cached_property
    def lengths(self) -> Tensor | None:
        """The lengths in this order."""
        return self._row(self.base.lengths)

    @cached_property
    def texts(self) -> Tensor | None:
        """The texts' digests in this order."""
        return self._row(self.base.texts)

    @cached_property
    def partner(self) -> Dataset | None:
        """The other sides of the pairs, in this order."""
        return None if self.base.partner is None else Drawn(self.base.partner, self.seed)

    @property
    def form(self) -> Tensor | dict[str, Tensor]:
        """Shapes and dtypes of the inputs, without reading any."""
        return self.base.form

    def _batches(self, size: int, start: int, stop: int, device: str | torch.device | None) -> Iterator[Batch]:
        for begin in range(start, stop, size):
            rows = self.base.subset(self.order[begin : min(begin + size, stop)])
            (batch,) = rows.batches(len(rows), device=device)
            yield batch._replace(start=begin)

    def take(self, n: int) -> Dataset:
        """The first ``n`` samples in this order: a copy of these rows."""
        self._count("take", n)
        return self.base.subset(self.order[:n])

    def subset(self, indices: Sequence[int] | Tensor) -> Dataset:
        """The samples at ``indices`` of this order."""
        return self.base.subset(self.order[self._indices(indices)])

    def to(self, device: str | torch.device) -> Dataset:
        """The same data in the same order on ``device``."""
        return Drawn(self.base.to(device), self.seed)

    def fingerprint(self) -> str:
        """That of the data, whatever the order."""
        return self.base.fingerprint()

    def tensor_fingerprint(self) -> str:
        """That of the data, whatever the order."""
        return self.base.tensor_fingerprint()
