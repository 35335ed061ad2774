"""Contraction: how much each attention layer stretches the distance between two inputs, measured and bounded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from lisse.instruments.attention import attention_of
from lisse.instruments.contraction.local import AttentionForm, LocalConstants, forms_of, weight_norms
from lisse.instruments.contraction.pairs import Counterpart, Distances, Embedding, Metric, Pairs, mask_token, picture
from lisse.instruments.contraction.rows import (
    Notes,
    bound_rows,
    correlation_row,
    depth_rows,
    layer_numbers,
    local_rows,
    pair_mean,
    stretch_rows,
    weight_bounds,
    worst_token_rows,
)
from lisse.maths.corruption import CORRUPTIONS
from lisse.maths.machine_code import workers
from lisse.networks.attention import AttentionSite
from lisse.profile import Chart, Headline, Line, Panel, Part, Quantity, Row
from lisse.run import Instrument, Run, level_option, option
from lisse.run.rows import LEAST_SAMPLES
from lisse.taps import Tap

_PAPER = "[vuckovic2021]"
_MANY = 100  # pairs whose resamples are worth a thread


@dataclass(frozen=True)
class Contraction(Instrument):
    """Per attention layer and head: transport distance of pairs of inputs before and after, stretch, and its bounds.

    A sample is the measure of its tokens, so that samples of different length can be compared. Pairs are the data's own
    (a sentence and its partner), or an image and its corrupted version, or a sample and another one. Beside the
    measured stretch (from below) stand the bound of the layer's weights on the ball its inputs reach, the one on the
    hull of the very tokens, and the local ones; a bound whose hypotheses fail is not given, with the reason.
    """

    samples: int = option(256, "most pairs", quick=32, usual=100, least=1)
    against: Counterpart | None = option(
        None, "the other side: the data's partner, the image corrupted, or another sample (shuffled)"
    )
    p: float = option(1.0, "order of the transport distance; inf is the worst token's")
    ground: Literal[1, 2] = option(1, "norm between tokens: the sum (1) or Euclid's (2)")
    corruption: str = option(
        "gaussian_noise", "how images are corrupted", choices=tuple(name for name in CORRUPTIONS if name != "frost")
    )
    severity: int = option(3, "how much, 1 to 5", choices=(1, 2, 3, 4, 5))
    embedding: Embedding = option("auto", "what is compared behind the last block: mask, first or mean token")
    points: int = option(8, "pairs at which local constants are taken; 0 leaves them out", quick=2, usual=4, least=0)
    noise: float = option(0.1, "noise on the keys of cross-attention, over their size", above=0)
    shown: int = option(4, "pairs that are kept for the picture of two sentences", quick=0, least=0)
    max_iter: int = option(8, "most Lanczos steps for a Jacobian's norm", least=1)
    tol: float = option(1e-2, "relative residual at which they stop", above=0)
    vacuous: float = option(
        4.0, "powers of ten over the worst token's stretch from which its bound is left out", above=0
    )
    level: float = level_option()

    STREAMS: ClassVar = True
    CHARTS: ClassVar[tuple[Chart, ...]] = (
        Chart(
            "contraction",
            "How far attention pulls two inputs apart",
            "Transport: the mean distance of a pair where it enters attention and behind it. Stretch: the largest of a "
            "pair, over which every bound of transport must lie, and the Euclidean ones; the room between is what a "
            "bound does not know. Dots: a pair each, its distance at the entry and at the end.",
            (
                Panel(
                    "transport distance of a pair",
                    (Line("distance_before", "before attention", {}), Line("distance_after", "after", {})),
                ),
                Panel(
                    "stretch and its bounds",
                    (
                        Line("stretch", "largest stretch of a pair (from below)", {}),
                        Line("local_stretch", "largest local stretch, Euclidean (from below)", {}),
                        Line("local_bound", "local bound, Euclidean (from above)", {}),
                        Line("log_hull_bound", "bound on the tokens' hull (from above)", {}, power=True),
                        Line("log_bound", "bound of the weights (from above)", {}, power=True),
                        Line("log_sequence_bound", "bound for one length, Euclidean (from above)", {}, power=True),
                        Line("log_printed_bound", "printed bound (no theorem)", {}, power=True),
                    ),
                    powers=True,
                ),
                Panel(
                    "distance at the end",
                    form="scatter",
                    arrays=("depth/0", "output"),
                    base="correlation",
                    label="transport distance at the entry",
                ),
            ),
            apart=True,
        ),
        Chart(
            "against-bounds",
            "Measured stretch and its bounds",
            "The largest stretch that was seen, from below, and what is proved from above: the truth lies between "
            "them.",
            (
                Panel(
                    "log10 of stretch and bounds",
                    (
                        Line("stretch", "measured", {}),
                        Line("log_bound", "proved, of the weights", {}, power=True),
                        Line("log_hull_bound", "proved, of these tokens", {}, power=True),
                        Line("log_printed_bound", "as printed", {}, power=True),
                    ),
                    powers=True,
                ),
            ),
            apart=True,
            lead=True,
        ),
        Chart(
            "worst-token",
            "The worst token, from both sides",
            "How far the worst token is moved over how far the worst token was: the largest that was seen, and what is "
            "proved. The truth lies between them; a bound that says nothing is not drawn.",
            (
                Panel(
                    "log10 of both ends",
                    (
                        Line("log_token_bound", "proved", {}, power=True),
                        Line("token_stretch", "measured", {}),
                    ),
                    powers=True,
                ),
            ),
            apart=True,
            lead=True,
        ),
        Chart(
            "sentences",
            "Two samples as measures",
            "A disc per token, its area the mass 1/N; grey lines carry the one onto the other at least cost, before "
            "and after the first attention. Each panel has two main directions of its own.",
            (Panel("attention", form="measures", arrays=("pair/",)),),
            columns=2,
        ),
    )
    # In the order in which a table shows them: the first eight are what one looks at first.
    QUANTITIES: ClassVar[tuple[Quantity, ...]] = (
        Quantity(
            "distance_before",
            "distance before",
            "How far apart the two inputs of a pair are where they enter attention: the mean transport distance.",
            r"W_p(m(X), m(Y))",
            f"{_PAPER} sec. 5",
            scale="log",
        ),
        Quantity(
            "distance_after",
            "distance after",
            "How far apart the same pair is behind attention, before the residual is added.",
            r"W_p(m(\tilde X), m(\tilde Y))",
            f"{_PAPER} sec. 5",
            scale="log",
        ),
        Quantity(
            "stretch",
            "largest stretch",
            "The largest ratio of the distance after to the distance before over all pairs: the layer can do at least "
            "this.",
            r"\max \frac{W_p(m(\tilde X), m(\tilde Y))}{W_p(m(X), m(Y))} \le \tau",
            f"{_PAPER} def. 7",
            scale="log",
            better="lower",
        ),
        Quantity(
            "log_bound",
            "bound of the weights (log10)",
            "The proved bound of the stretch of any two inputs whose tokens are no larger than those seen, as a power "
            "of ten.",
            r"\log_{10}\sum_h \|W^O_hV_h\|\,\frac{(\|G\|_{Lip,\infty}+\|G\|_{\infty,Lip})\mathrm{diam}+\|G\|_\infty}"
            r"{\varepsilon(G)}",
            f"{_PAPER} thm. 1, corrected",
            better="lower",
        ),
        Quantity(
            "log_looseness",
            "bound over stretch (log10)",
            "How many powers of ten the bound of the weights is above the largest stretch that was seen.",
            r"\log_{10}(\text{bound} / \text{stretch})",
            better="lower",
            headline=Headline(
                "bound over stretch",
                "powers of ten between the proved bound and the largest stretch that was seen",
                makes="bounded more tightly",
            ),
        ),
        Quantity(
            "log_hull_bound",
            "bound on the tokens' hull (log10)",
            "The proved bound for inputs made of the very tokens of a pair, or of anything between them: a power of "
            "ten, the largest over a few pairs.",
            r"\log_{10}\sum_h\Bigl[\tfrac12\mathrm{diam}(W_hE)\max_k\mathrm{range}(z_k) + e^{r}(\|W_h\| + "
            r"\|g\|_\infty\mathrm{diam}(W_hE))\Bigr]",
            f"{_PAPER} thm. 1, corrected, on the convex hull",
            better="lower",
        ),
        Quantity(
            "local_stretch",
            "local stretch",
            "The largest Euclidean stretch of a small change of the tokens, at a few inputs (from below).",
            r"\max_X\|\partial\tilde X / \partial X\|_2",
            scale="log",
            better="lower",
        ),
        Quantity(
            "local_bound",
            "local bound",
            "The proved bound of the local stretch at the same inputs, from their attention rows and the spread of "
            "their values.",
            r"\max_X\sum_h\Bigl[\|P\|\|W_h\| + \max_i\|\mathrm{Cov}_i(v,z)\|_F + \bigl(\max_j\sum_iP_{ij}"
            r"\|\mathrm{Cov}_i(v)\|_F\|g_i\|^2\bigr)^{1/2}\Bigr]",
            scale="log",
            better="lower",
        ),
        Quantity(
            "token_stretch",
            "worst token's stretch",
            "The largest ratio of W_∞ after to W_∞ before, Euclidean, over a few pairs: how far the worst token is "
            "moved, over how far the worst token was. Where order matters, token by token of pairs of one length.",
            r"\max \frac{W_\infty(m(\tilde X), m(\tilde Y))}{W_\infty(m(X), m(Y))}",
            scale="log",
            better="lower",
        ),
        Quantity(
            "log_token_bound",
            "bound of the worst token (log10)",
            "The best proved bound of the worst token's stretch: for anything between the tokens of these very pairs, "
            "or, where positions turn queries and keys, for tokens no larger than those seen. A power of ten.",
            r"\log_{10}\sum_h\Bigl[\|W_h\| + \tfrac12\mathrm{diam}(v_h)\max_i\|g_i\| + "
            r"\tfrac14\mathrm{diam}(v_h)\,\mathrm{diam}(z_h)\Bigr]",
            better="lower",
        ),
        Quantity(
            "log_token_room",
            "bound over the worst token's stretch (log10)",
            "How many powers of ten the bound is above what was measured at the same pairs: 0 is exact.",
            r"\log_{10}(\text{bound} / \text{stretch})",
            better="lower",
            neutral=0.0,
        ),
        Quantity(
            "radius",
            "largest token",
            "The largest Euclidean norm of a token that enters this layer: the radius of the ball in log_bound.",
            r"\max_i\|x_i\|_2",
            scale="log",
        ),
        Quantity(
            "stretch_mean",
            "mean stretch",
            "The mean over pairs of the ratio of the distance after to the distance before.",
            r"\frac1n\sum \frac{W_p(m(\tilde X), m(\tilde Y))}{W_p(m(X), m(Y))}",
            f"{_PAPER} def. 7",
            scale="log",
            better="lower",
        ),
        Quantity(
            "log_printed_bound",
            "printed bound (log10)",
            "What the paper prints for its theorem 1, as a power of ten. Its proof has a gap, and it can be too small.",
            r"\log_{10}\sum_h \|W^O_hV_h\|\,\frac{2d(\|G\|_{Lip,\infty}+\|G\|_{\infty,Lip})\mathrm{diam}}"
            r"{\varepsilon(G)}",
            f"{_PAPER} thm. 1",
        ),
        Quantity(
            "log_sequence_bound",
            "bound for sequences (log10)",
            "The proved Euclidean bound for inputs of one length, the longest here; it holds under any mask. A power "
            "of ten.",
            r"\log_{10}\|W^O\|\sqrt{\textstyle\sum_h\|V_h\|^2(\sqrt n + R^2\|A_h\| + \sqrt nRG_h)^2}",
            "[castin2024] thm. 3.3, sharpened",
            better="lower",
        ),
        Quantity(
            "local_stretch_mean",
            "mean local stretch",
            "The Euclidean stretch of the steepest small change of the tokens, in the mean over a few inputs.",
            r"\frac1n\sum_X\|\partial\tilde X / \partial X\|_2",
            scale="log",
            better="lower",
        ),
        Quantity(
            "local_token_bound",
            "local bound (transport)",
            "The proved bound of the stretch in transport distance of a small move of tokens, at the same inputs.",
            r"\max_X\sum_h\max_j\Bigl[\|W_h\|\sum_iP_{ij} + S_j\max_k\mathrm{Var}_j(z_k)^{1/2} + \sum_iP_{ij}"
            r"\|v_j - \bar v_i\|_1\|g_i\|_\infty\Bigr]",
            scale="log",
            better="lower",
        ),
        Quantity(
            "key_stretch",
            "stretch in the keys",
            "Cross-attention: how far the furthest query's output moves over how far the keys moved (other encoder "
            "outputs, or noise on them).",
            r"\max_q\frac{\|f(q, X) - f(q, Y)\|}{W_p(m(X), m(Y))}",
            f"{_PAPER} prop. 3",
            scale="log",
            better="lower",
        ),
        Quantity(
            "log_key_bound",
            "bound in the keys (log10)",
            "The proved bound of the stretch in the keys, on the ball that queries and keys reach: a power of ten.",
            r"\log_{10}\sum_h\|W_h\|\frac{\|G(q,\cdot)\|_{Lip}\mathrm{diam}+\|G(q,\cdot)\|_\infty}{\varepsilon(G)}",
            f"{_PAPER} prop. 3, corrected",
            better="lower",
        ),
        Quantity(
            "log_key_hull_bound",
            "bound on the keys' hull (log10)",
            "The proved bound of the stretch in the keys for these very queries and keys, or anything between the "
            "keys: a power of ten.",
            r"\log_{10}\max_q\sum_he^{r_q}(\|W_h\| + \|g_q\|\mathrm{diam}(W_hE))",
            f"{_PAPER} prop. 3, corrected, on the convex hull",
            better="lower",
        ),
        Quantity(
            "log_printed_key_bound",
            "printed bound in the keys (log10)",
            "What the paper prints for its proposition 3, as a power of ten. It is no theorem.",
            r"\log_{10}\sum_h d\|W_h\|\frac{2\|G(q,\cdot)\|_{Lip}\mathrm{diam}}{\varepsilon(G)}",
            f"{_PAPER} prop. 3",
        ),
        Quantity(
            "local_key_bound",
            "local bound in the keys",
            "The proved bound of the stretch of small moves of the keys, at a few inputs.",
            r"\max_X\sum_h\max_{i,j} nP_{ij}(\|W_h\| + \|v_j - \bar v_i\|\|g_i\|)",
            scale="log",
            better="lower",
        ),
        Quantity(
            "distance",
            "distance along depth",
            "How far apart the two inputs of a pair are at the entry of the network's blocks and behind each of them.",
            r"W_p(m(X_l), m(Y_l))",
            f"{_PAPER} sec. 5",
            scale="log",
            lead=True,
        ),
        Quantity(
            "block_stretch",
            "stretch of a block",
            "The largest ratio of a pair's distance behind a whole block to that before it.",
            r"\max \frac{W_p(m(X_l), m(Y_l))}{W_p(m(X_{l-1}), m(Y_{l-1}))}",
            f"{_PAPER} def. 7",
            scale="log",
            better="lower",
        ),
        Quantity(
            "output_distance",
            "distance of the embeddings",
            "How far apart the embeddings of a pair are behind the last block.",
            r"\|e(X) - e(Y)\|",
            f"{_PAPER} fig. 2a",
            scale="log",
        ),
        Quantity(
            "correlation",
            "correlation of distances",
            "Whether pairs that are further apart at the entry are so at the end: the correlation of the transport "
            "distance before the first block with the distance of the embeddings behind the last.",
            r"\mathrm{corr}(W_p(m(X_0), m(Y_0)), \|e(X) - e(Y)\|)",
            f"{_PAPER} fig. 2a",
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.p >= 1:
            raise ValueError(f"Contraction: p must be at least 1 (inf: the worst token), got {self.p}.")

    # -- what fits -------------------------------------------------------------------------------------------------

    SPARES: ClassVar[str] = "Give a smaller memory=, fewer layers=, points=0 or a smaller --batch."

    def bytes(self, run: Run) -> int:
        """The samples on which layers are checked, or a few pairs of tokens, or the tables of all pairs of tokens.

        A table holds a number for each pair of tokens and each head, in float64; the weights are kept in float64 too.
        """
        sites, _ = self._sites(run)
        if not sites:
            return 0
        few = min(run.take(self.samples), 8, run.batch)
        tokens, width, heads = (max(sizes) for sizes in zip(*map(_sizes, sites), strict=True))
        table, reads = 8 * heads * tokens**2, sum(tap.numel for site in sites for tap in site.taps)
        compared = self._at_once(run, sites) * self._pair_bytes(run, sites) + 8 * 6 * tokens**2
        checked = 4 * few * reads + 4 * table
        near = 0
        if self.points:
            points = self._points_at_once(run, sites)
            graph = 4 * points * (2 * self.max_iter + 40) * max(site.entry.numel for site in sites)
            # Rows of the first side; then both sides' tokens, twice as many, and terms of each head as wide as a token.
            near = 8 * points * reads + 2 * points * table + max(graph + 4 * points * table, 16 * table)
            near += 8 * 6 * heads * 2 * tokens * width
        weights = sum(32 * width**2 for _, width, _ in map(_sizes, sites))
        return weights + max(checked, compared, near)

    def fits(self, run: Run) -> str | None:
        """Networks with attention that can be read, on pairs."""
        against = self._counterpart(run)
        if against == "partner" and run.data.partner is None:
            return f"{run.data.name} holds no pairs. Give a file of pairs, or against='shuffled'."
        if against == "partner":
            first, second = (_keys(side.form) for side in (run.data, run.data.partner) if side is not None)
            if first != second:
                return f"the two sides of {run.data.name} have different inputs ({first} and {second})."
        if against == "corrupted" and not _images(run):
            return f"only images can be corrupted, and {run.data.name} holds none."
        if against == "shuffled" and len(run) < 2:
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

    def _counterpart(self, run: Run) -> Counterpart:
        if self.against is not None:
            return self.against
        if run.data.partner is not None:
            return "partner"
        return "corrupted" if _images(run) else "shuffled"

    def _sites(self, run: Run) -> tuple[list[AttentionSite], list[str]]:
        _, sites, reasons = attention_of(run)
        if run.layers is not None:  # the attention inside the layers that were asked for, or around them
            modules = [tap.module for tap in run.taps]
            sites = [
                site
                for site in sites
                if any(_inside(site.entry.module, name) or _inside(name, site.entry.module) for name in modules)
            ]
        return sites, reasons

    def own_taps(self, run: Run) -> list[Tap]:
        """What enters and leaves attention, and the tokens along depth."""
        sites, _ = self._sites(run)
        return [*_along(run, sites), *(tap for site in sites for tap in site.taps)]

    # -- the measurement -------------------------------------------------------------------------------------------

    def part(self, run: Run) -> Part:
        """Measure."""
        pairs = Pairs(run, self._counterpart(run), self.corruption, self.severity)
        sites, reasons = self._sites(run)
        n = run.take(self.samples)
        forms = forms_of(self, pairs, sites, min(n, 8, run.batch))
        plan = self._plan(pairs, sites, forms)
        numbers = run.blocks(self, "pairs", n, plan.block, task=f"{self.name}: pairs", step=self._at_once(run, sites))
        points = self._points(plan, forms, n)
        notes = [self._pair_note(pairs.against), *([f"Not read: {' '.join(reasons)}"] if reasons else [])]
        if plan.depth:
            embedding = {"mask": "the [MASK] token", "first": "the first token", "mean": "the mean of the valid tokens"}
            end = plan.depth[-1].name
            notes.append(
                f"The embedding is {embedding[plan.embedding]} behind {end}; its distance is in the ground norm."
            )
        unsettled = sum(int((~points[key].bool()).sum()) for key in points if key.endswith("/converged"))
        if unsettled:
            notes.append(
                f"{unsettled} Jacobian norms had a residual over {self.tol:g} after {self.max_iter} steps; "
                "they are lower estimates all the same."
            )
        if n < LEAST_SAMPLES:
            notes.append(f"{n} pairs are too few for an interval.")
        rows, sentences = self._rows(plan, forms, numbers, points)
        arrays = {
            key: value.numpy()
            for key, value in numbers.items()
            if key.partition("/")[0] in ("depth", "output", "before", "after")
        }
        alone = [site for site, form in zip(sites, forms, strict=True) if not form.cross]
        if alone and self.shown:
            arrays |= picture(pairs, alone[0], plan.metric, min(self.shown, n))
        return self.part_of(rows, [*notes, *sentences], arrays)

    def _plan(self, pairs: Pairs, sites: list[AttentionSite], forms: list[AttentionForm]) -> Distances:
        """What the pass over pairs reads: attention layers, places along depth that hold tokens, embeddings."""
        depth = _along(pairs.run, sites)
        token = mask_token(pairs.run)
        automatic: Embedding = "mean" if token is None else "mask"
        embedding = automatic if self.embedding == "auto" else self.embedding
        crossed = frozenset(index for index, form in enumerate(forms) if form.cross)
        computed = {
            index: form.mode == "causal"
            for index, (site, form) in enumerate(zip(sites, forms, strict=True))
            if site.heads is None and not form.cross and form.mode in ("full", "causal")
        }
        return Distances(pairs, sites, depth, Metric(self.p, self.ground), embedding, token, crossed, computed)

    def _at_once(self, run: Run, sites: Sequence[AttentionSite]) -> int:
        """As many pairs at a time as fit the run's memory."""
        return max(1, min(run.batch, run.device_memory // self._pair_bytes(run, sites)))

    def _pair_bytes(self, run: Run, sites: Sequence[AttentionSite]) -> int:
        """What a pair holds: the first side's tokens everywhere, and those of the second where it is.

        On the CPU in float32, copied and compared in float64. On a device in their own precision, and there costs of
        all heads and both sides' tokens, turned, at one place at a time.
        """
        taps = [*(tap for site in sites for tap in site.taps), *_along(run, sites)]
        if run.device.type == "cpu":
            return 12 * sum(tap.numel for tap in taps)
        tokens, width, heads = (max(sizes) for sizes in zip(*map(_sizes, sites), strict=True))
        streams = sum(tap.numel * tap.dtype.itemsize for tap in taps)
        return streams + 4 * heads * tokens**2 + 8 * 6 * tokens * width

    def _points_at_once(self, run: Run, sites: Sequence[AttentionSite]) -> int:
        largest = max(site.entry.numel for site in sites)
        return max(1, min(8, run.batch, run.device_memory // (4 * (2 * self.max_iter + 40) * largest)))

    def _points(self, plan: Distances, forms: list[AttentionForm], n: int) -> dict[str, Tensor]:
        """Local constants at the first few pairs."""
        run = plan.pairs.run
        points = LocalConstants(plan.pairs, plan.sites, forms, plan.metric, self.noise, self.max_iter, self.tol)
        step = self._points_at_once(run, plan.sites)
        return run.blocks(self, "points", min(n, self.points), points.block, task=f"{self.name}: points", step=step)

    def _rows(
        self, plan: Distances, forms: list[AttentionForm], numbers: dict[str, Tensor], points: dict[str, Tensor]
    ) -> tuple[list[Row], list[str]]:
        """All rows in the order of the quantities, those of whole layers first, and what is to say of the bounds."""
        run, notes = plan.pairs.run, Notes()
        mean = partial(_submitted, run, self.level)
        rows: list[Row | Future[Row]] = list(depth_rows(mean, plan.depth, numbers))
        if plan.depth and (pearson := correlation_row(run, self.level, numbers["depth/0"], numbers["output"])):
            rows.append(pearson)
        layers = zip(layer_numbers(plan.sites, forms, numbers), layer_numbers(plan.sites, forms, points), strict=True)
        for index, (layer, near) in enumerate(layers):
            rows += stretch_rows(mean, layer)
            bounds = None
            if layer.form.mode is not None:
                tokens = layer.site.entry.shape[0]
                norms, cross = weight_norms(run, layer.site), layer.form.cross
                bounds = weight_bounds(layer.site.weights, norms, layer.radius, tokens, plan.metric, cross=cross)
                rows += bound_rows(layer, bounds)
            notes.look(layer, bounds)
            local = list(local_rows(mean, near, plan.metric))
            for row in local:
                if isinstance(row, Row) and row.quantity == "log_hull_bound":
                    notes.judge(row.quantity, layer, row.value)
            rows += local
            worst, why = worst_token_rows(layer, near, self.vacuous, run.model.get_submodule(layer.site.entry.module))
            rows += worst
            if why:
                notes.loose.setdefault(why, []).append(layer.site.name)
            run.tell(f"{self.name}: bounds", index + 1, len(forms), "layers")
        order = {quantity.name: index for index, quantity in enumerate(self.QUANTITIES)}
        finished = [row if isinstance(row, Row) else row.result() for row in rows]
        finished.sort(key=lambda row: (bool(row.at), order[row.quantity]))
        return finished, list(notes.sentences())

    def _pair_note(self, against: Counterpart) -> str:
        pair = {
            "partner": "a sample and its partner",
            "corrupted": f"an image and the same under {self.corruption} of severity {self.severity}",
            "shuffled": "a sample and another one, drawn at random",
        }[against]
        norm = {1: "sum of absolute differences", 2: "Euclidean distance"}[self.ground]
        order = "∞" if math.isinf(self.p) else f"{self.p:g}"
        return f"A pair is {pair}. Distances are W_{order} of the token measures; between tokens, the {norm}."


def _submitted(run: Run, *args: Any, **at: Any) -> Row | Future[Row]:
    """:func:`pair_mean` by another thread, where there are some: each mean has resamples of its own.

    Not of few numbers: threads whose steps are short wait for the interpreter's lock, and the work that goes on does.
    """
    threads, few = torch.get_num_threads(), len(args[1]) < _MANY
    return pair_mean(run, *args, **at) if threads < 2 or few else workers(threads).submit(pair_mean, run, *args, **at)


def _along(run: Run, sites: Sequence[AttentionSite]) -> list[Tap]:
    """The layers that hold tokens as attention takes them."""
    widths = {site.entry.shape[-1] for site in sites}
    return [
        tap
        for tap in run.taps
        if len(tap.shape) == 2 and tap.role in ("stem", "block", "chosen") and tap.numel and tap.shape[-1] in widths
    ]


def _sizes(site: AttentionSite) -> tuple[int, int, int]:
    """Most tokens of one side, their width, and heads."""
    shapes = [tap.shape for tap in (site.entry, site.keys) if tap is not None]
    return max(shape[0] for shape in shapes), max(shape[-1] for shape in shapes), site.count


def _images(run: Run) -> bool:
    inputs = run.data.form
    return isinstance(inputs, Tensor) and inputs.ndim == 4 and inputs.shape[1] in (1, 3)


def _keys(inputs: Tensor | dict[str, Tensor]) -> list[str]:
    return sorted(inputs) if isinstance(inputs, dict) else ["a tensor"]


def _inside(module: str, name: str) -> bool:
    return module == name or module.startswith(f"{name}.") or not name
