"""Contraction: how much each attention layer stretches the distance between two inputs, measured and bounded."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from lisse.instruments.contraction_local import Form, Points, forms_of
from lisse.instruments.contraction_pairs import (
    Distances,
    Embedding,
    Metric,
    Pairs,
    Readout,
    Source,
    embedding_of,
    mask_token,
)
from lisse.instruments.contraction_picture import picture
from lisse.instruments.contraction_quantities import QUANTITIES
from lisse.instruments.contraction_rows import LEAST, Notes, Rows, local_rows, site_rows, weight_bounds
from lisse.maths.corruption import CORRUPTIONS
from lisse.networks.attention_sites import AttentionSite, attention_sites
from lisse.profile import Part, Quantity, Row
from lisse.recording import parse_bytes
from lisse.run import Instrument, Run
from lisse.taps import Tap


@dataclass(frozen=True)
class Contraction(Instrument):
    """Per attention layer and head: transport distance of pairs of inputs before and after, stretch, and its bounds.

    A sample is the measure of its tokens, so that samples of different length can be compared. Pairs are the data's own
    (a sentence and its partner), or an image and its corrupted version, or a sample and another one. Beside the
    measured stretch (from below) stand the bound of the layer's weights on the ball its inputs reach, the one on the
    hull of the very tokens, and the local ones; a bound whose hypotheses fail is not given, with the reason.
    """

    samples: int = field(default=256, metadata={"help": "most pairs"})
    against: Source | None = field(
        default=None,
        metadata={"help": "the other side: the data's partner, the image corrupted, or another sample (shuffled)"},
    )
    p: float = field(default=1.0, metadata={"help": "order of the transport distance"})
    ground: Literal[1, 2] = field(default=1, metadata={"help": "norm between tokens: the sum (1) or Euclid's (2)"})
    corruption: str = field(default="gaussian_noise", metadata={"help": "how images are corrupted"})
    severity: int = field(default=3, metadata={"help": "how much, 1 to 5"})
    embedding: Embedding = field(
        default="auto", metadata={"help": "what is compared behind the last block: mask, first or mean token"}
    )
    points: int = field(default=8, metadata={"help": "pairs at which local constants are taken; 0 leaves them out"})
    noise: float = field(default=0.1, metadata={"help": "noise on the keys of cross-attention, over their size"})
    shown: int = field(default=4, metadata={"help": "pairs that are kept for the picture of two sentences"})
    max_iter: int = field(default=8, metadata={"help": "most Lanczos steps for a Jacobian's norm"})
    tol: float = field(default=1e-2, metadata={"help": "relative residual at which they stop"})
    level: float = field(default=0.95, metadata={"help": "confidence level of the intervals"})
    quick: bool = field(default=False, metadata={"help": "32 pairs, 2 points, no intervals"})

    QUANTITIES: ClassVar[tuple[Quantity, ...]] = QUANTITIES

    def __post_init__(self) -> None:
        for name, least in (("samples", 1), ("points", 0), ("shown", 0), ("max_iter", 1)):
            given = getattr(self, name)
            if isinstance(given, bool) or not isinstance(given, int) or given < least:
                raise ValueError(f"Contraction: {name} must be a whole number of at least {least}, got {given!r}.")
        if self.against not in (None, "partner", "corrupted", "shuffled"):
            raise ValueError(
                f"Contraction: against must be partner, corrupted, shuffled or None, got {self.against!r}."
            )
        if not 1 <= self.p < math.inf:
            raise ValueError(f"Contraction: p must be finite and at least 1, got {self.p}.")
        if self.ground not in (1, 2):
            raise ValueError(f"Contraction: ground must be 1 or 2, got {self.ground!r}.")
        if self.corruption not in CORRUPTIONS or self.corruption == "frost":
            known = ", ".join(name for name in CORRUPTIONS if name != "frost")
            raise ValueError(f"Contraction: corruption must be one of {known}, got {self.corruption!r}.")
        if self.severity not in (1, 2, 3, 4, 5):
            raise ValueError(f"Contraction: severity must be 1, 2, 3, 4 or 5, got {self.severity!r}.")
        if self.embedding not in ("auto", "mean", "first", "mask"):
            raise ValueError(f"Contraction: embedding must be auto, mean, first or mask, got {self.embedding!r}.")
        for name in ("noise", "tol"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"Contraction: {name} must be positive, got {getattr(self, name)}.")
        if not 0 < self.level < 1:
            raise ValueError(f"Contraction: level must lie in (0, 1), got {self.level}.")

    # -- what fits -------------------------------------------------------------------------------------------------

    def fits(self, run: Run) -> str | None:
        """Networks with attention that can be read, on pairs."""
        source = self._source(run)
        if source == "partner" and run.data.partner is None:
            return f"{run.data.name} holds no pairs. Give a file of pairs, or against='shuffled'."
        if source == "partner":
            mine, theirs = (_keys(side.inputs) for side in (run.data, run.data.partner) if side is not None)
            if mine != theirs:
                return f"the two sides of {run.data.name} have different inputs ({mine} and {theirs})."
        if source == "corrupted" and not _images(run):
            return f"only images can be corrupted, and {run.data.name} holds none."
        if source == "shuffled" and len(run) < 2:
            return f"another sample is needed to compare with, and {run.data.name} has {len(run)}."
        sites, reasons = self._sites(run)
        if not sites:
            return "no attention layer was found" + (f": {' '.join(reasons[:3])}" if reasons else " in this network.")
        mixed = [tap.name for tap in run.taps if tap.mixes]
        if mixed:
            return f"a sample's activation at {mixed[0]} changes with the samples beside it, so it is no map of inputs."
        if self.embedding == "mask" and mask_token(run) is None:
            return "embedding='mask' needs a [MASK] token in every text and the model's own tokenizer."
        return None

    def _source(self, run: Run) -> Source:
        if self.against is not None:
            return self.against
        if run.data.partner is not None:
            return "partner"
        return "corrupted" if _images(run) else "shuffled"

    def _sites(self, run: Run) -> tuple[list[AttentionSite], list[str]]:
        example = next(iter(run.data.batches(min(3, len(run)), stop=min(3, len(run)), device=run.device)))
        sites, reasons = attention_sites(run.model, example.inputs, statistics=run.statistics)
        if run.layers is not None:  # the attention inside the layers that were asked for, or around them
            chosen = [tap.module for tap in run.taps]
            sites = [
                site
                for site in sites
                if any(_inside(site.entry.module, name) or _inside(name, site.entry.module) for name in chosen)
            ]
        return sites, reasons

    # -- the measurement -------------------------------------------------------------------------------------------

    def part(self, run: Run) -> Part:
        """Measure."""
        source = self._source(run)
        pairs = Pairs(run, source, self.corruption, self.severity)
        metric = Metric(self.p, self.ground)
        sites, reasons = self._sites(run)
        notes = Notes()
        said = [_told(source, self)] + ([f"Not read: {' '.join(reasons)}"] if reasons else [])
        n = run.take(min(self.samples, 32) if self.quick else self.samples)
        forms = forms_of(pairs, sites, min(n, 8))
        depth = [tap for tap in run.taps if len(tap.shape) == 2 and tap.role in ("stem", "block", "chosen")]
        depth = [tap for tap in depth if tap.numel and _tokens(tap, sites)]
        embed, name = self._embedding(run) if depth else (None, "")
        crossed = frozenset(place for place, form in enumerate(forms) if form.cross)
        computed = {
            place: form.mode == "causal"
            for place, (site, form) in enumerate(zip(sites, forms, strict=True))
            if site.heads is None and not form.cross and form.mode in ("full", "causal")
        }
        distances = Distances(pairs, sites, depth, metric, embed, crossed, computed)
        found = self._blocks(run, distances, n)
        rows = Rows(run, self.level, self.quick)
        made = self._depth_rows(rows, depth, found, name, said)
        for place, (site, form) in enumerate(zip(sites, forms, strict=True)):
            bounds = None
            if form.mode is not None:
                radius = float(found[f"radius/{place}"].max())
                if form.cross:
                    radius = max(radius, float(found[f"key_radius/{place}"].max()))
                bounds = weight_bounds(site.weights, radius, site.entry.shape[0], metric, cross=form.cross)
            made += site_rows(rows, site, place, form, found, bounds, metric, notes)
            run.tell(f"{self.name}: bounds", place + 1, len(sites), "layers")
        near = self._local(run, pairs, sites, forms, metric, rows, said, n)
        places = {site.name: place for place, site in enumerate(sites)}
        for row in near:
            if row.quantity == "log_hull_bound" and row.layer is not None:
                place = places[row.layer]
                notes.judge(row.quantity, row.layer, row.value, found[f"before/{place}"], found[f"room/{place}"])
        made += near
        arrays = {
            key: value.numpy()
            for key, value in found.items()
            if key.partition("/")[0] in ("depth", "output", "before", "after")
        }
        arrays |= self._pictures(run, pairs, sites, forms, metric, min(self.shown, n))
        if not self.quick and n < LEAST:
            said.append(f"{n} pairs are too few for an interval.")
        order = {quantity.name: place for place, quantity in enumerate(self.QUANTITIES)}
        made.sort(key=lambda row: (bool(row.at), order[row.quantity]))
        return Part(self.name, tuple(made), self.QUANTITIES, (*said, *notes.sentences()), arrays)

    def _blocks(self, run: Run, distances: Distances, n: int) -> dict[str, Tensor]:
        """Everything over all pairs; a piece per stretch of pairs that fits the run's memory."""
        sizes = [tap.numel for site in distances.sites for tap in site.taps] + [tap.numel for tap in distances.depth]
        step = max(1, min(run.batch, parse_bytes(run.memory) // (3 * 4 * sum(sizes))))
        blocks = []
        for start in range(0, n, step):
            stop = min(start + step, n)
            blocks.append(run.piece(self, ("pairs", start, stop), partial(distances.block, start, stop)))
            run.tell(f"{self.name}: pairs", stop, n, "pairs")
        return {key: torch.cat([block[key] for block in blocks]) for key in blocks[0]}

    def _depth_rows(
        self, rows: Rows, depth: list[Tap], found: dict[str, Tensor], embedding: str, said: list[str]
    ) -> list[Row]:
        made: list[Row] = []
        for place, tap in enumerate(depth):
            values = found[f"depth/{place}"]
            made.append(rows.mean("distance", values, "estimate", (tap.name, tap.depth)))
            before = found.get(f"depth/{place - 1}") if place else None
            if before is not None and bool((before > 0).any()):
                ratios = values[before > 0] / before[before > 0]
                made.append(Row("block_stretch", float(ratios.max()), "lower", len(ratios), tap.name, tap.depth))
        if "output" in found:
            made.append(rows.mean("output_distance", found["output"], "estimate", (None, None)))
            one = rows.correlation(found["depth/0"], found["output"], (None, None))
            if one is not None:
                made.append(one)
            said.append(f"The embedding is {embedding} behind {depth[-1].name}; its distance is in the ground norm.")
        return made

    def _embedding(self, run: Run) -> tuple[Readout, str]:
        token = mask_token(run)
        chosen = self.embedding if self.embedding != "auto" else "mean" if token is None else "mask"
        words = {"mask": "the [MASK] token", "first": "the first token", "mean": "the mean of the valid tokens"}
        return embedding_of(chosen, token), words[chosen]

    def _local(
        self, run: Run, pairs: Pairs, sites: list[AttentionSite], forms: list[Form], metric: Metric, rows: Rows,
        said: list[str], n: int,
    ) -> list[Row]:  # fmt: skip
        count = min(n, 2 if self.quick else self.points, self.points)
        if not count:
            return []
        points = Points(pairs, sites, forms, metric, self.noise, self.max_iter, self.tol)
        largest = max(site.entry.numel for site in sites)
        step = max(1, min(8, parse_bytes(run.memory) // (4 * (2 * self.max_iter + 40) * largest)))
        blocks = []
        for start in range(0, count, step):
            stop = min(start + step, count)
            blocks.append(run.piece(self, ("points", start, stop), partial(points.block, start, stop)))
        shared = [key for key in blocks[0] if all(key in block for block in blocks)]
        found = {key: torch.cat([block[key] for block in blocks]) for key in shared}
        unsettled = sum(int((~found[key].bool()).sum()) for key in found if key.endswith("/converged"))
        if unsettled:
            said.append(
                f"{unsettled} Jacobian norms had a residual over {self.tol:g} after {self.max_iter} steps; "
                "they are lower estimates all the same."
            )
        return [
            row
            for place, (site, form) in enumerate(zip(sites, forms, strict=True))
            for row in local_rows(rows, site, place, form, found, self.ground)
        ]

    def _pictures(
        self, run: Run, pairs: Pairs, sites: list[AttentionSite], forms: list[Form], metric: Metric, count: int
    ) -> dict[str, np.ndarray]:
        alone = [site for site, form in zip(sites, forms, strict=True) if not form.cross]
        if not count or not alone:
            return {}
        return picture(pairs, alone[0], metric, count)


def _told(source: Source, options: Contraction) -> str:
    pair = {
        "partner": "a sample and its partner",
        "corrupted": f"an image and the same under {options.corruption} of severity {options.severity}",
        "shuffled": "a sample and another one, drawn at random",
    }[source]
    norm = {1: "sum of absolute differences", 2: "Euclidean distance"}[options.ground]
    return f"A pair is {pair}. Distances are W_{options.p:g} of the token measures; between tokens, the {norm}."


def _images(run: Run) -> bool:
    given = run.data.inputs
    return isinstance(given, Tensor) and given.ndim == 4 and given.shape[1] in (1, 3)


def _keys(inputs: Tensor | dict[str, Tensor]) -> list[str]:
    return sorted(inputs) if isinstance(inputs, dict) else ["a tensor"]


def _inside(module: str, name: str) -> bool:
    return module == name or module.startswith(f"{name}.") or not name


def _tokens(tap: Tap, sites: list[AttentionSite]) -> bool:
    """Whether a place along depth holds tokens: as wide as what enters some attention."""
    return any(tap.shape[-1] == site.entry.shape[-1] for site in sites)
