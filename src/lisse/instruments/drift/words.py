"""The one sentence that a pair of networks comes down to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lisse.profile import Row


@dataclass(frozen=True, slots=True)
class Finding:
    """Where B parts from A: the layers that do, in order, the parts of the first, and whether the answer does.

    ``few`` is in how many of how many samples, where these are too few for a layer to be told from chance by itself;
    ``answered`` whether both have an answer.
    """

    layers: Sequence[str] = ()
    parts: Sequence[str] = ()
    output_parts: bool = False
    few: tuple[int, int] | None = None
    comparable: bool = True
    answered: bool = True

    @property
    def first(self) -> str | None:
        """The first layer that parts."""
        return self.layers[0] if self.layers else None


def sentence(
    names: tuple[str, str], finding: Finding, share: Row | None, drift: Row | None, largest: Row | None = None
) -> str:
    """The finding in words, with the share of the answer's change that comes from the first layer, and the largest."""
    a, b = names
    size = "" if drift is None else f" The answers differ by {drift.value:.2g} of their size."
    if finding.first is None:
        if not finding.answered:
            return f"{b} does not part from {a} in a layer that was recorded; whether the answer does is not known."
        if finding.output_parts and not finding.comparable:
            return f"{b} parts from {a}; in which layer cannot be said, for none of one is as that of the other.{size}"
        if finding.output_parts:
            return f"{b} parts from {a}, but in no layer by more than noise.{size}"
        return f"{b} does not part from {a}: no answer differs by more than noise.{size}"
    if not finding.output_parts:
        layers = f"layers differ from {finding.first} on"
        return f"{b} does not part from {a}: {layers}, and no answer by more than noise.{size}"
    where = f"at {finding.first}" + (f", in its {' and '.join(finding.parts[:2])}" if finding.parts else "")
    if finding.few is not None:
        where += f", in {finding.few[0]} of {finding.few[1]} samples"
    if share is None:
        return f"{b} parts from {a} {where}."
    interval = "" if share.low is None or share.high is None else f" [{100 * share.low:.0f}, {100 * share.high:.0f}]"
    text = (
        f"{b} parts from {a} {where}: {100 * share.value:.0f} %{interval} of the change of the output comes from there."
    )
    if not (more := len(finding.layers) - 1):
        return text
    text += f" {more} more layer{'s differ' if more > 1 else ' differs'} by more than noise"
    if not -0.05 <= share.value <= 1.05:
        return f"{text}; some take back what others add."
    if largest is None or round(100 * largest.value) <= round(100 * share.value):
        return f"{text}."
    return f"{text}, with the largest share, {100 * largest.value:.0f} %, at {largest.layer}."
