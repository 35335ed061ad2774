"""What Contraction finds at a few inputs: which bounds a layer's weights allow, local constants, attention's keys."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from lisse.instruments.contraction.pairs import Metric, Pairs, Side
from lisse.maths.bounds.bound import Bound, log_sum
from lisse.maths.bounds.near import Ground, HeadTerms
from lisse.maths.fetching import fetched
from lisse.maths.jacobian import jacobian_norm
from lisse.maths.machine_code import in_turn
from lisse.maths.spectral_norm import gram_bound
from lisse.maths.transport.device import device_costs
from lisse.maths.transport.exact import bottleneck
from lisse.maths.transport.solvers import ground_distances
from lisse.networks.attention import (
    AttentionSite,
    AttentionWeights,
    Mode,
    adds_a_table,
    attended,
    close,
    from_rows,
    masked,
    mode_of,
)
from lisse.run import Instrument, Run
from lisse.taps import Tap, find, is_shortage, still, tapped

_LN10 = math.log(10)
_MODES: tuple[Mode | None, ...] = (None, "full", "causal", "table")


@dataclass(frozen=True)
class AttentionForm:
    """What a layer turned out to be: how its weights make its output (``None``: not by themselves), and of what."""

    mode: Mode | None
    cross: bool
    rows: Tap | None = None  # where its attention weights are read, in mode "table"

    @property
    def reason(self) -> str:
        """Why the bounds of measures do not hold for it; empty where they do."""
        if self.mode == "causal":
            return "its mask is causal: order matters, so it is no map of measures"
        if self.mode == "table":
            return (
                "it adds a table to its logits (relative positions, a mask): order matters, so it is no map of measures"
            )
        return "" if self.mode == "full" else "its weights alone do not give its output (turned or normalised queries?)"


def forms_of(instrument: Instrument, pairs: Pairs, sites: Sequence[AttentionSite], count: int) -> list[AttentionForm]:
    """Each layer's form, checked on the first ``count`` samples."""
    checked = pairs.run.piece(instrument, "forms", partial(_checked, pairs, sites, count))
    modes = [_MODES[index] for index in checked["mode"].tolist()]
    rows = _row_taps(pairs.run, sites) if "table" in modes else [None] * len(sites)
    return [
        AttentionForm(mode, cross, tap if mode == "table" else None)
        for mode, cross, tap in zip(modes, checked["cross"].tolist(), rows, strict=True)
    ]


def _checked(pairs: Pairs, sites: Sequence[AttentionSite], count: int) -> dict[str, Tensor]:
    """The mode of each site, as its index, and whether it is cross-attention."""
    side, _ = pairs.sides(0, count)
    taps = [tap for site in sites for tap in (site.entry, site.keys, site.out) if tap is not None]
    activations = pairs.read(side, taps)
    low = pairs.run.taps[0].dtype in (torch.float16, torch.bfloat16)
    modes, crosses = list[Mode | None](), list[bool]()
    for site in sites:
        x = activations[site.entry]
        keys = activations[site.keys] if site.keys is not None else x
        cross = keys.shape != x.shape or not torch.equal(keys, x)
        valid = side.valid(site.entry, x.shape[1])
        valid_keys = side.valid(site.entry, keys.shape[1], keys=True) if cross else valid
        modes.append(mode_of(site, x, keys, valid, valid_keys, activations[site.out], tol=5e-2 if low else 1e-3))
        crosses.append(cross)
    unknown = [index for index, mode in enumerate(modes) if mode is None and not crosses[index]]
    if unknown and count >= 2:
        for index in _with_tables(pairs, side, sites, unknown, activations):
            modes[index] = "table"
    return {"mode": torch.tensor([_MODES.index(mode) for mode in modes]), "cross": torch.tensor(crosses)}


def _with_tables(
    pairs: Pairs, side: Side, sites: Sequence[AttentionSite], unknown: Sequence[int], activations: Mapping[Tap, Tensor]
) -> list[int]:
    """Which of the layers add a fixed table to the logits of their weights."""
    taps = _row_taps(pairs.run, sites)
    readable = {index: tap for index in unknown if (tap := taps[index]) is not None}
    rows = pairs.read(side, list(readable.values()))
    tables = []
    for index, tap in readable.items():
        site, x, p = sites[index], activations[sites[index].entry], rows[tap]
        valid = side.valid(site.entry, x.shape[1])
        if (
            p.shape[1] == site.count
            and close(from_rows(site.weights_on(x.device), x, p), activations[site.out], valid, 1e-3)
            and adds_a_table(site, x, x, valid, p)
        ):
            tables.append(index)
    return tables


def _row_taps(run: Run, sites: Sequence[AttentionSite]) -> list[Tap | None]:
    """Where the attention weights of each site are read; ``None`` where the network does not show them."""

    def search() -> dict[tuple[str, int], Tap]:
        example = next(iter(run.batches(min(3, len(run)))))
        try:
            taps = find(run.model, example.inputs, attention=True, statistics=run.statistics)
        except (ValueError, RuntimeError) as error:
            if is_shortage(error):
                raise
            return {}
        return {(tap.module, tap.call): tap for tap in taps}

    taps = run.once("attention weights", search)
    return [taps.get((site.entry.module, site.entry.call)) for site in sites]


WeightNorms = tuple[list[float], list[float], list[float], float]  # as AttentionWeights.norms gives them


# --- points ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LocalConstants:
    """Local constants at the first samples: see :meth:`block`."""

    pairs: Pairs
    sites: Sequence[AttentionSite]
    forms: Sequence[AttentionForm]
    metric: Metric
    noise: float
    max_iter: int
    tol: float

    def block(self, start: int, stop: int) -> dict[str, Tensor]:
        """Samples ``start … stop - 1``; everything is ``[b]``, and bounds are base-10 logarithms.

        Self-attention l: ``jacobian/l`` with ``jacobian/l/converged``, ``near/l`` (ℓ2), ``near_tokens/l`` (the ground
        norm's), ``hull/l``, and of the worst token ``worst/l`` (stretch) and ``worst_hull/l``. Cross-attention:
        ``keys/pair/l``, ``keys/noise/l`` (stretch in the keys), ``keys/near/l``, ``keys/hull/l``.
        """
        sides = self.pairs.sides(start, stop)
        numbers, clean = self._jacobians(sides[0], start)
        counterpart = self.pairs.read(
            sides[1],
            [
                tap
                for site, form in zip(self.sites, self.forms, strict=True)
                for tap in (site.entry, site.keys if form.cross else site.out)
                if tap is not None
            ],
        )
        levels: list[Tensor] = []
        for index, form in enumerate(self.forms):
            site = self.sites[index]
            weights = site.weights_on(clean[site.entry].device) if form.mode is not None else None
            if not form.cross:
                levels += self._worst(index, sides, clean, counterpart)
            if weights is None:
                continue
            if form.cross:
                numbers |= self._keys(index, sides, clean, counterpart, start)
            else:
                numbers |= self._worst_hull(index, weights, sides, clean, counterpart)
                numbers |= self._tokens(index, weights, sides, clean, counterpart)
            self.pairs.run.tell("contraction: local", index + 1, len(self.sites), "layers")
        numbers = fetched(numbers)
        alone = [index for index, form in enumerate(self.forms) if not form.cross]
        for index, ends in zip(alone, _bottlenecks(levels).reshape(len(alone), stop - start, 2), strict=True):
            near, far = ends.unbind(1)
            numbers[f"worst/{index}"] = (far / near).where(near > 0, math.nan)
            if f"worst_hull/{index}" in numbers:
                numbers[f"worst_hull/{index}"] = numbers[f"worst_hull/{index}"].where(near > 0, math.nan)
        return numbers

    def _tokens(
        self,
        index: int,
        weights: AttentionWeights,
        sides: tuple[Side, Side],
        clean: Mapping[Tap, Tensor],
        counterpart: Mapping[Tap, Tensor],
    ) -> dict[str, Tensor]:
        """Bounds of self-attention at and between the tokens of each pair."""
        site, form = self.sites[index], self.forms[index]
        x = clean[site.entry]
        valid = sides[0].valid(site.entry, x.shape[1])
        if form.rows is not None:
            rows = clean[form.rows].double()
        else:
            rows, _, _ = attended(weights, x, x, masked(valid.to(x.device), x.shape[1], causal=form.mode == "causal"))
        ground = self.metric.ground
        norms: set[Ground] = {ground, 2}
        sizes = {norm: torch.tensor(head_sizes(weights, norm), dtype=torch.float64, device=x.device) for norm in norms}
        near: dict[int, list[Tensor]] = {norm: [] for norm in sizes}
        hull = []
        for k, keep in enumerate(valid):
            tokens = points = _valid(x[k], keep).double()
            p = _valid(_valid(rows[k], keep, 1), keep, 2)
            p = p / p.sum(-1, keepdim=True)  # float32 rows sum to 1 to seven digits
            if form.mode == "full":
                y = counterpart[site.entry][k]
                points = torch.cat([tokens, _valid(y, sides[1].valid(site.entry, len(y))[k]).double()])
            terms = head_terms(weights, points, points, sizes[ground], ground)
            if form.mode == "full":
                hull.append(_log10_sum(terms.hull_log(self.metric.p)))
            for norm, size in sizes.items():
                near[norm].append(_log10_sum(_first_tokens(terms, len(tokens), size, norm).near_log(p)))
        numbers = {"near": near[2], "near_tokens": near[ground]} | ({"hull": hull} if hull else {})
        return {f"{name}/{index}": torch.stack(values) for name, values in numbers.items()}

    def _worst(
        self, index: int, sides: tuple[Side, Side], clean: Mapping[Tap, Tensor], counterpart: Mapping[Tap, Tensor]
    ) -> list[Tensor]:
        """Of each pair what W_∞ in ℓ2 is taken of, at the entry and at the output: costs, or a number alone.

        Where order matters both sides are sequences, compared place by place if their tokens lie at the same places.
        """
        site, form = self.sites[index], self.forms[index]
        levels = []
        valid = [side.valid(site.entry, values[site.entry].shape[1]) for side, values in
                 zip(sides, (clean, counterpart), strict=True)]  # fmt: skip
        for k, keeps in enumerate(zip(*valid, strict=True)):
            for tap in (site.entry, site.out):
                x, y = (_valid(side[tap][k], keep).double()
                        for side, keep in zip((clean, counterpart), keeps, strict=True))  # fmt: skip
                if form.mode == "full":
                    levels.append(_costs(x, y))
                else:
                    levels.append(_place_by_place(x, y) if torch.equal(*keeps) else x.new_zeros(()))
        return levels

    def _worst_hull(
        self,
        index: int,
        weights: AttentionWeights,
        sides: tuple[Side, Side],
        clean: Mapping[Tap, Tensor],
        counterpart: Mapping[Tap, Tensor],
    ) -> dict[str, Tensor]:
        """The bound of the stretch of the worst token on the hull of each pair's tokens."""
        tap = self.sites[index].entry
        x, y = clean[tap], counterpart[tap]
        lengths = weight_norms(self.pairs.run, self.sites[index])
        values, out = torch.tensor(lengths[0], dtype=torch.float64, device=x.device), lengths[3]
        alone = replace(weights, out=torch.eye(weights.out.shape[1], dtype=torch.float64, device=x.device))
        sizes = torch.tensor(head_sizes(weights, 2), dtype=torch.float64, device=x.device)
        bounds = []
        for k, keeps in enumerate(zip(sides[0].valid(tap, x.shape[1]), sides[1].valid(tap, y.shape[1]), strict=True)):
            points = torch.cat([_valid(x[k], keeps[0]), _valid(y[k], keeps[1])]).double()
            shares = head_terms(weights, points, points, sizes, 2).hull_log(math.inf)
            heads = head_terms(alone, points, points, values, 2).hull_log(math.inf)
            # Heads add up; or they lie side by side, in squares, before the output map.
            side_by_side = math.log10(max(out, 1e-300)) + 0.5 * _log10_sum(2 * heads)
            bounds.append(torch.minimum(_log10_sum(shares), side_by_side))
        return {f"worst_hull/{index}": torch.stack(bounds)}

    def _keys(
        self, index: int, sides: tuple[Side, Side], clean: Mapping[Tap, Tensor], counterpart: Mapping[Tap, Tensor],
        start: int,
    ) -> dict[str, Tensor]:  # fmt: skip
        """Stretch of cross-attention in its keys, other ones and noisy ones, and its bounds."""
        site, ground = self.sites[index], self.metric.ground
        assert site.keys is not None
        x, keys, moved_keys = (
            values[tap].cpu() for values, tap in ((clean, site.entry), (clean, site.keys), (counterpart, site.keys))
        )
        sizes = torch.tensor(head_sizes(site.weights, ground), dtype=torch.float64)
        draws = self.pairs.run.draw(f"contraction/noise/{site.name}", start, len(x), keys.shape[1:]).cpu().double()
        valid = sides[0].valid(site.entry, x.shape[1])
        valid_keys = sides[0].valid(site.entry, keys.shape[1], keys=True)
        valid_moved = sides[1].valid(site.entry, moved_keys.shape[1], keys=True)
        numbers: dict[str, list[float]] = {name: [] for name in ("pair", "noise", "near", "hull")}
        for k in range(len(x)):
            queries = x[k][valid[k]].double()[None]
            a = keys[k][valid_keys[k]].double()
            b = moved_keys[k][valid_moved[k]].double()
            c = a + self.noise * a.pow(2).mean().sqrt() * draws[k][valid_keys[k]]
            rows, _, output = attended(site.weights, queries, a[None])
            for name, moved in (("pair", b), ("noise", c)):
                _, _, moved_output = attended(site.weights, queries, moved[None])
                apart = float(self.metric.between([a], [moved])[0])
                far = float(self.metric.apart(output[0], moved_output[0]).max())
                numbers[name].append(far / apart if apart > 0 else math.nan)
            terms = head_terms(site.weights, queries[0], a, sizes, ground).heads()
            numbers["near"].append(_total([head.keys_near(rows[0, h]) for h, head in enumerate(terms)]))
            terms = head_terms(site.weights, queries[0], torch.cat([a, b, c]), sizes, ground).heads()
            numbers["hull"].append(_total([head.keys_on_hull() for head in terms]))
        return {f"keys/{name}/{index}": torch.tensor(values, dtype=torch.float64) for name, values in numbers.items()}

    def _jacobians(self, side: Side, start: int) -> tuple[dict[str, Tensor], dict[Tap, Tensor]]:
        """The norm of each self-attention's Jacobian, by one forward in which only attention keeps its graph."""
        run = self.pairs.run
        numbers, activations = dict[str, Tensor](), dict[Tap, Tensor]()
        entries = {site.entry: index for index, site in enumerate(self.sites) if not self.forms[index].cross}
        copies = {tap: site.entry for site in self.sites for tap in site.copies}
        ends = {self.sites[index].out: index for index in entries.values()}
        inputs: dict[Tap, Tensor] = {}

        def on(tap: Tap, activation: Tensor) -> Tensor | None:
            if tap in copies and copies[tap] in inputs:
                return inputs[copies[tap]]
            if tap in ends:
                activations[tap] = activation.detach().clone()
                torch.set_grad_enabled(False)
                valid = side.valid(tap, activation.shape[1]).to(activation)[..., None]
                x = inputs.pop(self.sites[ends[tap]].entry)
                numbers.update(self._norm(ends[tap], activation, valid, x, start))
                return activation.detach()
            activations[tap] = activation.detach().clone()
            if tap in entries:
                inputs[tap] = activation.detach().clone().requires_grad_()
                torch.set_grad_enabled(True)  # from here to the layer's output; still() puts it back at the latest
                return inputs[tap]
            return None

        taps = [tap for site in self.sites for tap in (site.entry, site.keys, site.out) if tap is not None]
        taps += [form.rows for form in self.forms if form.rows is not None]
        # Fused attention has no second derivative; the plain formula has.
        with (
            still(run.model, statistics=run.statistics, seed=run.seed),
            sdpa_kernel(SDPBackend.MATH),
            tapped(run.model, list(dict.fromkeys([*taps, *copies])), on),
        ):
            self.pairs.forward(side)
        return fetched(numbers), activations

    def _norm(self, index: int, output: Tensor, valid: Tensor, x: Tensor, start: int) -> dict[str, Tensor]:
        first = self.pairs.run.draw(f"contraction/jacobian/{index}", start, len(x), x.shape[1:])
        with torch.enable_grad():
            try:
                norm = jacobian_norm(output * valid, x, start=first, max_iter=self.max_iter, tol=self.tol)
            except (ValueError, RuntimeError) as error:
                if "second derivatives" not in str(error) and "must depend" not in str(error):
                    raise
                return {}
        return {f"jacobian/{index}": norm.value, f"jacobian/{index}/converged": norm.converged}


def head_terms(weights: AttentionWeights, queries: Tensor, keys: Tensor, sizes: Tensor, ground: Ground) -> HeadTerms:
    """The terms of all heads, each with its share of the output map: their bounds add up to the layer's."""
    q = weights.scale * (torch.einsum("nd,mhd->mnh", queries, weights.query) + weights.query_bias[:, None])
    k = torch.einsum("nd,mhd->mnh", keys, weights.key)
    outs = weights.out.unflatten(1, (len(q), -1)).transpose(0, 1)
    v = torch.einsum("nd,mhd->mnh", keys, weights.value) @ outs.transpose(1, 2)
    logits, pulls, slopes = q @ k.transpose(1, 2), weights.scale * (k @ weights.query), q @ weights.key
    return HeadTerms(logits, v, pulls, slopes, sizes, ground)


def _valid(values: Tensor, keep: Tensor, axis: int = 0) -> Tensor:
    """The valid tokens along an axis; which they are is known on the CPU."""
    return values if bool(keep.all()) else values.index_select(axis, keep.nonzero()[:, 0].to(values.device))


def _place_by_place(x: Tensor, y: Tensor) -> Tensor:
    return (x - y).norm(dim=1).max()


def _costs(x: Tensor, y: Tensor) -> Tensor:
    """Euclidean distances ``[n, m]``."""
    if x.is_cuda:
        return device_costs(x[None], y[None], ground=2)[0]
    return torch.from_numpy(ground_distances(x.numpy(), y.numpy(), 2))


def _bottlenecks(levels: Sequence[Tensor]) -> Tensor:
    """W_∞ from each table of costs, by all threads; a number is that already."""
    tables = list(fetched({str(index): level for index, level in enumerate(levels)}).values())
    values = torch.empty(len(tables), dtype=torch.float64)

    def solve(index: int) -> None:
        table = tables[index].numpy()
        values[index] = bottleneck(table) if table.ndim == 2 and np.isfinite(table).all() else float(table.max())

    in_turn(solve, range(len(tables)), min(torch.get_num_threads(), len(tables)))
    return values


def _first_tokens(terms: HeadTerms, n: int, norm: Tensor, ground: Ground) -> HeadTerms:
    """The terms of the first n tokens, in another norm."""
    parts = (terms.logits[:, :n, :n], terms.values[:, :n], terms.pulls[:, :n], terms.slopes[:, :n])
    return HeadTerms(*parts, norm, ground)


def weight_norms(run: Run, site: AttentionSite) -> WeightNorms:
    """The norms of a layer's weights, taken once where the model is."""
    return run.once(f"norms of {site.name}", lambda: site.weights_on(run.device).norms())


def head_sizes(weights: AttentionWeights, ground: int) -> list[float]:
    """‖W^O_h V_h‖ of each head, in ℓ1 or ℓ2."""
    outs = weights.out.unflatten(1, (len(weights.value), -1)).transpose(0, 1)
    if ground == 1:
        return (outs @ weights.value).abs().sum(-2).amax(-1).tolist()
    # The norm of o v is that of r v, with the small factor of o = Q r.
    factors = torch.linalg.qr(outs, mode="r").R @ weights.value
    if factors.is_cuda:  # whose singular values come matrix by matrix
        return gram_bound(factors, iterations=32).tolist()
    return torch.linalg.matrix_norm(factors, 2).tolist()


def _log10_sum(logarithms: Tensor) -> Tensor:
    """The base-10 logarithm of a sum, from natural ones."""
    return torch.logsumexp(logarithms, -1) / _LN10


def _total(bounds: Sequence[Bound]) -> float:
    """The base-10 logarithm of a sum of bounds."""
    return log_sum(*(bound.log10 * _LN10 for bound in bounds)) / _LN10
