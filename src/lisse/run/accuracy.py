"""How often a network is wrong on the samples of a run, with an interval."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from lisse.maths.intervals import share_interval
from lisse.networks.answers import are_classes, hits, logits_of
from lisse.profile import Part, Row
from lisse.run.instrument import Instrument
from lisse.run.run import Run
from lisse.taps import feed, prepared, still


def measured_score(
    run: Run, instruments: Iterable[Instrument], parts: Iterable[Part], n: int | None
) -> dict[str, Any] | None:
    """Error and interval as an instrument has counted it in its part; where none has, on the first ``n`` samples."""
    pairs = zip(instruments, parts, strict=True)
    counts = [row for item, part in pairs if (row := item.accuracy(part)) is not None]
    return _score_of(counts) if counts else score(run, n)


def score(run: Run, n: int | None) -> dict[str, Any] | None:
    """Error on the first ``n`` samples with its interval; ``None`` where the labels do not fit the output."""
    labels = run.data.targets
    if labels is None:
        return None
    total, wrong = run.take(n), 0
    with still(run.model, statistics="running", seed=0):
        for batch in run.batches(total):
            assert batch.targets is not None  # the data have labels
            output = feed(run.model, prepared(run.model, batch.inputs))
            try:
                logits = logits_of(output, len(batch.targets))
            except (TypeError, ValueError):
                return None
            if not are_classes(labels, logits.shape[1]):
                return None
            wrong += int((~hits(logits, batch.targets)).sum())
    ends = share_interval(wrong / total, total)
    low, high = float(ends.low), float(ends.high)
    return {"error": wrong / total, "low": low, "high": high, "n": total} if math.isfinite(low) else None


def _score_of(accuracies: Iterable[Row]) -> dict[str, Any]:
    """Error and interval of an accuracy that instruments have counted: of several, the one of most samples."""
    row = max(accuracies, key=lambda row: row.n)
    low, high = (row.value if end is None else end for end in (row.low, row.high))
    return {"error": 1 - row.value, "low": 1 - high, "high": 1 - low, "n": row.n}
