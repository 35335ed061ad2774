"""What Contraction finds at a few inputs: which bounds a layer's weights allow, local constants, attention's keys."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from lisse.instruments.contraction_pairs import Metric, Pairs, Side
from lisse.maths.bounds.attention_near import Ground, HeadTerms, lookup_size
from lisse.maths.bounds.bound import Bound, log_sum
from lisse.maths.jacobian import jacobian_norm
from lisse.networks.attention_sites import (
    AttentionSite,
    Mode,
    adds_a_table,
    attended,
    close,
    from_rows,
    masked,
    mode_of,
)
from lisse.networks.attention_weights import AttentionWeights
from lisse.taps import Tap, find, still, tapped


@dataclass(frozen=True)
class Form:
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


def forms_of(pairs: Pairs, sites: Sequence[AttentionSite], count: int) -> list[Form]:
    """Each layer's form, checked on the first ``count`` samples."""
    run = pairs.run
    side, _ = pairs.sides(0, count)
    seen = _read(pairs, side, [tap for site in sites for tap in site.taps])
    low = run.taps[0].dtype in (torch.float16, torch.bfloat16)
    forms, unknown = list[Form](), list[int]()
    for place, site in enumerate(sites):
        x = seen[site.entry]
        keys = seen[site.keys] if site.keys is not None else x
        cross = keys.shape != x.shape or not torch.equal(keys, x)
        valid = side.valid(site.entry, x.shape[1])
        valid_keys = side.valid(site.entry, keys.shape[1], keys=True) if cross else valid
        mode = mode_of(site, x, keys, valid, valid_keys, seen[site.out], tol=5e-2 if low else 1e-3)
        forms.append(Form(mode, cross))
        if mode is None and not cross:
            unknown.append(place)
    if unknown and count >= 2:
        for place, rows in _with_tables(pairs, side, sites, unknown, seen).items():
            forms[place] = Form("table", False, rows)
    return forms


def _with_tables(
    pairs: Pairs, side: Side, sites: Sequence[AttentionSite], unknown: Sequence[int], seen: Mapping[Tap, Tensor]
) -> dict[int, Tap]:
    """Which of the layers add a fixed table to the logits of their weights, and where their rows are read."""
    run = pairs.run
    try:
        found = find(run.model, side.inputs, attention=True, statistics=run.statistics)
    except (ValueError, RuntimeError):
        return {}
    taps = {(tap.module, tap.call): tap for tap in found}
    chosen = {place: taps.get((sites[place].entry.module, sites[place].entry.call)) for place in unknown}
    chosen = {place: tap for place, tap in chosen.items() if tap is not None}
    rows = _read(pairs, side, [tap for tap in chosen.values() if tap is not None])
    good = {}
    for place, tap in chosen.items():
        assert tap is not None
        site, x, p = sites[place], seen[sites[place].entry], rows[tap]
        valid = side.valid(site.entry, x.shape[1])
        if p.shape[1] != len(site.weights.query) or not close(
            from_rows(site.weights, x, p), seen[site.out], valid, 1e-3
        ):
            continue
        if adds_a_table(site, x, x, valid, p):
            good[place] = tap
    return good


def _read(pairs: Pairs, side: Side, taps: Sequence[Tap]) -> dict[Tap, Tensor]:
    run, seen = pairs.run, dict[Tap, Tensor]()

    def on(tap: Tap, activation: Tensor) -> None:
        seen[tap] = activation.detach().cpu().clone()

    if taps:
        with (
            still(run.model, statistics=run.statistics, seed=run.seed),
            tapped(run.model, list(dict.fromkeys(taps)), on),
        ):
            pairs.forward(side)
    return seen


# --- points ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Points:
    """Local constants at the first samples: see :meth:`block`."""

    pairs: Pairs
    sites: Sequence[AttentionSite]
    forms: Sequence[Form]
    metric: Metric
    noise: float
    max_iter: int
    tol: float

    def block(self, start: int, stop: int) -> dict[str, Tensor]:
        """Samples ``start … stop - 1``; everything is ``[b]``, and bounds are base-10 logarithms.

        Self-attention l: ``jacobian/l`` with ``jacobian/l/converged``, ``near/l`` (ℓ2), ``near_tokens/l`` (the ground
        norm's), ``hull/l``. Cross-attention: ``keys/pair/l``, ``keys/noise/l`` (stretch in the keys), ``keys/near/l``,
        ``keys/hull/l``.
        """
        run = self.pairs.run
        first, second = self.pairs.sides(start, stop)
        found, seen = self._jacobians(first, start)
        whole = [place for place, form in enumerate(self.forms) if form.mode == "full"]
        needed = [
            tap for place in whole for tap in (self.sites[place].entry, self.sites[place].keys) if tap is not None
        ]
        other = _read(self.pairs, second, needed)
        for place, (site, form) in enumerate(zip(self.sites, self.forms, strict=True)):
            if form.mode is None:
                continue
            if form.cross:
                found |= self._keys(place, site, first, second, seen, other, start)
            else:
                found |= self._self(place, site, form, first, second, seen, other)
            run.tell("contraction: local", place + 1, len(self.sites), "layers")
        return found

    def _self(
        self, place: int, site: AttentionSite, form: Form, first: Side, second: Side, seen: Mapping[Tap, Tensor],
        other: Mapping[Tap, Tensor],
    ) -> dict[str, Tensor]:  # fmt: skip
        x = seen[site.entry]
        valid = first.valid(site.entry, x.shape[1])
        if form.rows is not None:
            rows = seen[form.rows].double()
        else:
            rows, _, _ = attended(site.weights, x, x, masked(valid, x.shape[1], causal=form.mode == "causal"))
        ground: Ground = 1 if self.metric.ground == 1 else 2
        norms: set[Ground] = {ground, 2}
        sizes = {norm: head_sizes(site.weights, norm) for norm in norms}
        near: dict[int, list[float]] = {norm: [] for norm in sizes}
        hull = []
        for k, keep in enumerate(valid):
            tokens = x[k][keep].double()
            n, both = len(tokens), tokens
            p = rows[k][:, keep][:, :, keep]
            p = p / p.sum(-1, keepdim=True)  # float32 rows sum to 1 to seven digits
            if form.mode == "full":
                y = other[site.entry][k]
                both = torch.cat([tokens, y[second.valid(site.entry, len(y))[k]].double()])
            terms = head_terms(site.weights, both, both, sizes[ground], ground)
            if form.mode == "full":
                hull.append(_sum([one.on_hull() for one in terms]))
            for norm, size in sizes.items():
                heads = [_part(one, n, size[h], norm) for h, one in enumerate(terms)]
                near[norm].append(_sum([one.near(p[h]) for h, one in enumerate(heads)]))
        near_rows = {name: torch.tensor(near[norm], dtype=torch.float64) for name, norm in _near_names(ground)}
        found = {f"{name}/{place}": values for name, values in near_rows.items()}
        return found | ({f"hull/{place}": torch.tensor(hull, dtype=torch.float64)} if hull else {})

    def _keys(
        self, place: int, site: AttentionSite, first: Side, second: Side, seen: Mapping[Tap, Tensor],
        other: Mapping[Tap, Tensor], start: int,
    ) -> dict[str, Tensor]:  # fmt: skip
        assert site.keys is not None
        x, keys, others = seen[site.entry], seen[site.keys], other[site.keys]
        ground: Ground = 1 if self.metric.ground == 1 else 2
        sizes = head_sizes(site.weights, ground)
        draws = self.pairs.run.draw(f"contraction/noise/{site.name}", start, len(x), keys.shape[1:]).cpu().double()
        kept: dict[str, list[float]] = {name: [] for name in ("pair", "noise", "near", "hull")}
        for k in range(len(x)):
            queries = x[k][first.valid(site.entry, x.shape[1])[k]].double()[None]
            here = first.valid(site.entry, keys.shape[1], keys=True)[k]
            a = keys[k][here].double()
            b = others[k][second.valid(site.entry, others.shape[1], keys=True)[k]].double()
            c = a + self.noise * a.pow(2).mean().sqrt() * draws[k][here]
            rows, _, made = attended(site.weights, queries, a[None])
            for name, moved in (("pair", b), ("noise", c)):
                _, _, there = attended(site.weights, queries, moved[None])
                apart = float(self.metric.between([a], [moved])[0])
                far = float(self.metric.apart(made[0], there[0]).max())
                kept[name].append(far / apart if apart > 0 else math.nan)
            both = torch.cat([a, b, c])
            terms = head_terms(site.weights, queries[0], a, sizes, ground)
            kept["near"].append(_sum([head.keys_near(rows[0, h]) for h, head in enumerate(terms)]))
            terms = head_terms(site.weights, queries[0], both, sizes, ground)
            kept["hull"].append(_sum([head.keys_on_hull() for head in terms]))
        return {f"keys/{name}/{place}": torch.tensor(values, dtype=torch.float64) for name, values in kept.items()}

    def _jacobians(self, side: Side, start: int) -> tuple[dict[str, Tensor], dict[Tap, Tensor]]:
        """The norm of each self-attention's Jacobian, by one forward in which only attention keeps its graph."""
        run = self.pairs.run
        found, seen = dict[str, Tensor](), dict[Tap, Tensor]()
        alone = {site.entry: place for place, site in enumerate(self.sites) if not self.forms[place].cross}
        copies = {tap: site.entry for site in self.sites for tap in site.copies}
        ends = {self.sites[place].out: place for place in alone.values()}
        inputs: dict[Tap, Tensor] = {}

        def on(tap: Tap, activation: Tensor) -> Tensor | None:
            if tap in copies and copies[tap] in inputs:
                return inputs[copies[tap]]
            if tap in alone:
                inputs[tap] = activation.detach().clone().requires_grad_()
                seen[tap] = activation.detach().cpu().clone()
                torch.set_grad_enabled(True)  # from here to the layer's output; still() puts it back at the latest
                return inputs[tap]
            if tap in ends:
                torch.set_grad_enabled(False)
                place = ends[tap]
                x = inputs.pop(self.sites[place].entry)
                valid = side.valid(tap, activation.shape[1]).to(activation)[..., None]
                first = run.draw(f"contraction/jacobian/{place}", start, len(x), x.shape[1:])
                with torch.enable_grad():
                    try:
                        norm = jacobian_norm(activation * valid, x, start=first, max_iter=self.max_iter, tol=self.tol)
                    except (ValueError, RuntimeError) as error:
                        if "second derivatives" not in str(error) and "must depend" not in str(error):
                            raise
                        return activation.detach()
                found[f"jacobian/{place}"] = norm.value.cpu()
                found[f"jacobian/{place}/converged"] = norm.converged.cpu()
                return activation.detach()
            seen[tap] = activation.detach().cpu().clone()
            return None

        taps = [tap for site in self.sites for tap in (site.entry, site.keys, site.out) if tap is not None]
        taps += [tap for form in self.forms for tap in (form.rows,) if tap is not None]
        taps += list(copies)
        # Fused attention has no second derivative; the plain formula has.
        with (
            still(run.model, statistics=run.statistics, seed=run.seed),
            sdpa_kernel(SDPBackend.MATH),
            tapped(run.model, list(dict.fromkeys(taps)), on),
        ):
            self.pairs.forward(side)
        return found, seen


def head_terms(
    weights: AttentionWeights, queries: Tensor, keys: Tensor, sizes: Sequence[float], ground: Ground
) -> list[HeadTerms]:
    """The terms of every head together with its share of the output map: their bounds add up to the layer's."""
    q = weights.scale * (torch.einsum("nd,mhd->mnh", queries, weights.query) + weights.query_bias[:, None])
    k = torch.einsum("nd,mhd->mnh", keys, weights.key)
    outs = weights.out.unflatten(1, (len(q), -1)).transpose(0, 1)
    v = torch.einsum("nd,mhd->mnh", keys, weights.value) @ outs.transpose(1, 2)
    logits, pulls, slopes = q @ k.transpose(1, 2), weights.scale * (k @ weights.query), q @ weights.key
    return [HeadTerms(*parts, sizes[h], ground) for h, parts in enumerate(zip(logits, v, pulls, slopes, strict=True))]


def _part(terms: HeadTerms, n: int, norm: float, ground: Ground) -> HeadTerms:
    """The terms of the first n tokens, in another norm."""
    parts = (terms.logits[:n, :n], terms.values[:n], terms.pulls[:n], terms.slopes[:n])
    return HeadTerms(*parts, norm, ground)


def _near_names(ground: Ground) -> tuple[tuple[str, Ground], tuple[str, Ground]]:
    return ("near", 2), ("near_tokens", ground)


def head_sizes(weights: AttentionWeights, ground: int) -> list[float]:
    """‖W^O_h V_h‖ of each head, in ℓ1 or ℓ2."""
    outs = weights.out.unflatten(1, (len(weights.value), -1)).transpose(0, 1)
    if ground == 1:
        return [lookup_size(o @ v, 1) for o, v in zip(outs, weights.value, strict=True)]
    # The norm of o v is that of r v, with the small factor of o = Q r.
    return [lookup_size(torch.linalg.qr(o).R @ v, 2) for o, v in zip(outs, weights.value, strict=True)]


def _sum(bounds: Sequence[Bound]) -> float:
    """The base-10 logarithm of a sum of bounds."""
    return log_sum(*(one.log10 * math.log(10) for one in bounds)) / math.log(10)
