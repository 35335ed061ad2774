"""The one sentence that a pair of networks comes down to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lisse.profile import Row


@dataclass(frozen=True, slots=True)
class Finding:
    """Where B parts from A: the first layer that does, which part of it, and all others behind it."""

    first: str | None
    part: str | None
    layers: Sequence[str]
    output_parts: bool


def sentence(names: tuple[str, str], finding: Finding, share: Row | None, drift: Row | None) -> str:
    """The finding in words, with the share of the answer's change that comes from the first layer."""
    a, b = names
    if finding.first is None:
        size = "" if drift is None else f" The answers differ by {drift.value:.2g} of their size."
        if finding.output_parts:
            return f"{b} parts from {a}, but in no layer by more than noise.{size}"
        return f"{b} does not part from {a}: no answer differs by more than noise.{size}"
    if not finding.output_parts:
        return (
            f"{b} gives what {a} gives, but for noise: its layers differ from {finding.first} on, and nothing of it is "
            "left in the answer."
        )
    where = f"at {finding.first}" + (f", in its {finding.part}" if finding.part else "")
    if share is None:
        return f"{b} parts from {a} {where}."
    interval = "" if share.low is None or share.high is None else f" [{100 * share.low:.0f}, {100 * share.high:.0f}]"
    text = (
        f"{b} parts from {a} {where}: {100 * share.value:.0f} %{interval} of the change of the output comes from there."
    )
    more = len(finding.layers) - 1
    return text + (f" {more} more layer{'s differ' if more > 1 else ' differs'} by more than noise." if more else "")
