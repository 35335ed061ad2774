"""Extremes: the largest attention logit of every head, and the largest over the median activation of every layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lisse.instruments.attention import attention_of
from lisse.instruments.sensitivity.spreads import token_mask
from lisse.maths.extremes import largest_logit, massive_activation
from lisse.networks.attention import logits
from lisse.profile import Chart, Line, Panel, Part, Quantity, Row
from lisse.run import Instrument, Run, level_option, option
from lisse.run.rows import largest_row, sample_row
from lisse.taps import AttentionCall, Tap, attending


@dataclass(frozen=True)
class Extremes(Instrument):
    """The largest attention logit per head, and per layer the largest over the median activation: one plain forward.

    Both grow before a training diverges or half precision overflows. In several processes each takes its share of the
    samples.
    """

    samples: int = option(100, "samples to look at", quick=20, usual=50, least=1)
    level: float = level_option()

    STREAMS: ClassVar = True
    SHARED: ClassVar = True
    CHARTS: ClassVar[tuple[Chart, ...]] = (
        Chart(
            "extremes",
            "How large the largest numbers are",
            "A layer whose largest number is a thousand times the usual one needs the whole range of half precision; a "
            "head with logits in the hundreds looks at one token alone.",
            (
                Panel("largest over median activation", (Line("massive_activation", at={"over": "mean"}),)),
                Panel("largest attention logit", (Line("largest_logit", at={"over": "heads"}),)),
            ),
        ),
    )
    QUANTITIES: ClassVar[tuple[Quantity, ...]] = (
        Quantity(
            "massive_activation", "largest over median activation",
            "How much larger the largest number of a sample is than its usual one at this layer.",
            r"\max_i|a_i| / \mathrm{median}_i|a_i|", "[sun2024]", "log", "lower",
        ),
        Quantity(
            "largest_logit", "largest attention logit",
            "The largest logit of any query and key before the softmax, head by head, of these samples.",
            r"\max_{ij} s\langle q_i, k_j\rangle", "[dehghani2023]", better="lower",
        ),
    )  # fmt: skip

    def seconds(self, per_sample: float, layers: int, n: int) -> float:
        """One forward of each sample, and what is taken off it."""
        return 1.5 * min(self.samples, n) * per_sample

    def bytes(self, run: Run) -> int:
        """The logits of a batch, and the sizes of a layer's numbers, put in order for their median."""
        size, (_, sites, _) = min(run.batch, run.take(self.samples)), attention_of(run)
        tables = [site.count * site.entry.shape[0] ** 2 for site in sites]
        return 4 * size * 3 * max([*tables, *(tap.numel for tap in run.taps)])

    def own_taps(self, run: Run) -> None:
        """Calls of attention are seen in the forward alone."""

    def part(self, run: Run) -> Part:
        """Measure."""
        taps = [dataclasses.replace(tap, name=f"{tap.name}:size") for tap in run.taps]  # places of its own: a forward
        names = {tap: layer.name for tap, layer in zip(taps, run.taps, strict=True)}

        def block(start: int, stop: int) -> dict[str, Tensor]:
            numbers: dict[str, Tensor] = {}
            (batch,) = run.batches(stop, start=start)
            mask, size = token_mask(batch.inputs), run.forward_size(start, stop)

            def on(tap: Tap, activation: Tensor) -> None:
                numbers[f"activation {names[tap]}"] = massive_activation(activation.detach(), mask).double().cpu()

            def called(call: AttentionCall) -> None:
                scores = call.scores if call.query is None else logits(call)[0]
                if scores is not None and len(scores) == size:  # not of windows of images
                    name = f"logit {call.module}" + (f"#{call.number}" if call.number else "")
                    numbers[name] = largest_logit(scores[: batch.size].detach(), mask).double().cpu()

            with attending(run.model, called):
                for _ in run.clean(stop, taps, on, start=start):
                    pass
            return numbers

        numbers = run.blocks(self, "extremes", run.take(self.samples), block, task=self.name)
        heads = {key[6:]: values for key, values in numbers.items() if key.startswith("logit ")}
        rows = [*self._activations(run, numbers), *_logits(run, heads)]
        notes = [] if heads else ["No attention logits were seen: the network has no attention, or keeps it to itself."]
        return self.part_of(rows, notes)

    def _activations(self, run: Run, numbers: Mapping[str, Tensor]) -> Iterator[Row]:
        for tap in run.taps:
            values, generator = numbers[f"activation {tap.name}"], run.generator(f"massive activation {tap.name}")
            finite = values[values.isfinite()]  # where half of a layer is zero, as behind a ReLU, there is no median
            if len(finite):
                at = {"over": "mean"}
                yield sample_row("massive_activation", finite, tap, at, generator=generator, level=self.level)
                yield largest_row("massive_activation", finite, "lower", tap, {"over": "max"})


def _logits(run: Run, heads: Mapping[str, Tensor]) -> Iterator[Row]:
    for index, (name, values) in enumerate(heads.items()):
        layer = dataclasses.replace(run.taps[0], name=name, depth=index / max(1, len(heads) - 1))
        yield largest_row("largest_logit", torch.as_tensor(values).flatten(), "lower", layer, {"over": "heads"})
        for head, column in enumerate(values.unbind(1)):
            yield largest_row("largest_logit", column, "lower", layer, {"head": head})
