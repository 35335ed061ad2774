"""Accuracy on clean and on corrupted images: the measurement behind Table 2."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from lisse.data import Dataset, frost_textures
from lisse.maths.corruption import corrupt
from lisse.maths.intervals import bootstrap, share_interval
from lisse.profile import Part, Quantity, Row, Value
from lisse.run import Instrument, Run
from lisse.taps import feed, prepared, still

# The paper's five, in the order of its Table 2.
CORRUPTIONS = {
    "gaussian_noise": "Gaussian noise",
    "motion_blur": "motion blur",
    "snow": "snow",
    "impulse_noise": "impulse noise",
    "pixelate": "pixelate",
}
SEVERITIES = (1, 2, 3, 4, 5)
ALL = "all"  # the mean over the corruptions
_STEP = 1000  # images corrupted at a time


@dataclass(frozen=True)
class CorruptedAccuracy(Instrument):
    """The share of images classified right, clean and under each corruption and severity, and what corruption costs.

    Every network sees the same corrupted images: they depend on the run's seed, the corruption and the severity alone.
    """

    corruptions: tuple[str, ...] = field(default=tuple(CORRUPTIONS), metadata={"help": "names of corruptions"})
    severities: tuple[int, ...] = field(default=SEVERITIES, metadata={"help": "severities, 1 to 5"})

    QUANTITIES: ClassVar[tuple[Quantity, ...]] = (
        Quantity(
            "accuracy",
            "accuracy",
            "The share of images classified right, at one severity.",
            r"\frac1n\sum_i 1[\hat y_i = y_i]",
            "[chen2024] table 2",
            better="higher",
        ),
        Quantity(
            "mean_accuracy",
            "accuracy over severities",
            "The mean accuracy over the severities of a corruption.",
            r"\frac15\sum_s a_s",
            "[chen2024] table 2",
            better="higher",
        ),
        Quantity(
            "drop",
            "drop",
            "By how much the mean accuracy over severities is below the clean accuracy.",
            r"a_0 - \frac15\sum_s a_s",
            "[chen2024] table 2",
            better="lower",
        ),
        Quantity(
            "lost_share",
            "share lost",
            "The drop as a share of the clean accuracy.",
            r"1 - \frac15\sum_s a_s / a_0",
            better="lower",
        ),
    )

    def fits(self, run: Run) -> str | None:
        """Images with labels."""
        images = isinstance(run.data.inputs, Tensor) and run.data.inputs.ndim == 4
        return None if images and run.data.targets is not None else "it needs images with labels."

    def part(self, run: Run) -> Part:
        """Measure."""
        cases = [("clean", 0), *((name, severity) for name in self.corruptions for severity in self.severities)]
        right: dict[tuple[str, int], Tensor] = {}
        for index, (name, severity) in enumerate(cases):
            run.tell("accuracy", index, len(cases), "sets of images")
            answers = run.piece(self, (name, severity), functools.partial(_right, run, name, severity))
            right[name, severity] = answers["right"].bool()
        run.tell("accuracy", len(cases), len(cases), "sets of images")
        arrays = {f"right/{name}/{severity}": answers.numpy() for (name, severity), answers in right.items()}
        return Part(self.name, tuple(self._rows(run, right)), self.QUANTITIES, (), arrays)

    def _rows(self, run: Run, right: dict[tuple[str, int], Tensor]) -> list[Row]:
        rows = []
        for (name, severity), answers in right.items():
            share = share_interval(int(answers.sum()) / len(answers), len(answers))
            value, low, high = (float(end) for end in (share.value, share.low, share.high))
            at: dict[str, Value] = {"corruption": name, "severity": severity}
            rows.append(Row("accuracy", value, "estimate", len(answers), low=low, high=high, at=at))
        # One image is seen at every severity: what varies is the image, so images are resampled, not answers.
        clean = right["clean", 0].double()
        columns = [torch.stack([right[name, s].double() for s in self.severities]).mean(0) for name in self.corruptions]
        means = torch.stack([*columns, torch.stack(columns).mean(0)], 1)  # [n, corruptions + 1]
        accuracy = bootstrap(means, generator=run.generator("mean accuracy"))
        drop = bootstrap(clean[:, None] - means, generator=run.generator("drop"))
        for index, name in enumerate((*self.corruptions, ALL)):
            for quantity, interval in (("mean_accuracy", accuracy), ("drop", drop)):
                value, low, high = (float(end[index]) for end in (interval.value, interval.low, interval.high))
                rows.append(Row(quantity, value, "estimate", len(clean), low=low, high=high, at={"corruption": name}))
        if float(clean.mean()) > 0:
            # A ratio of two means over the same images: resampled together.
            pair = torch.stack([clean, means[:, -1]], 1)
            share = bootstrap(pair, _lost, generator=run.generator("share"))
            value, low, high = (float(end[0]) for end in (share.value, share.low, share.high))
            rows.append(Row("lost_share", value, "estimate", len(clean), low=low, high=high, at={"corruption": ALL}))
        return rows


def _lost(pair: Tensor) -> Tensor:
    """``1 - corrupted / clean`` of the columns' means, as often as there are columns; NaN-free for an empty clean."""
    clean, corrupted = pair.mean(0)
    return (1 - corrupted / clean.clamp_min(1e-9)).expand(2)


def _right(run: Run, name: str, severity: int) -> dict[str, Tensor]:
    """``right`` ``[n]`` bytes: 1 where the network is."""
    images, targets = run.data.inputs, run.data.targets
    assert isinstance(images, Tensor)
    assert targets is not None
    generator = run.generator(f"{name} {severity}")
    textures = frost_textures() if name == "frost" else None
    answers = []
    with still(run.model, statistics=run.statistics, seed=run.seed) as model, torch.no_grad():
        for start in range(0, len(images), _STEP):
            part = images[start : start + _STEP].to(run.device)
            if severity:
                part = corrupt(part, name, severity, generator=generator, textures=textures, variant="hendrycks")
            labels = targets[start : start + _STEP].to(run.device)
            for batch in Dataset(name, part, labels).batches(run.batch):
                scores = feed(model, prepared(run.model, batch.inputs))
                answers.append((scores.argmax(1) == batch.targets).to(torch.uint8).cpu())
    return {"right": torch.cat(answers)}
