"""What passes over two networks give: differences per layer and sample, the noise beside them, and swapped layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lisse.instruments.drift.likeness import cloud_sums, likeness, token_distances
from lisse.maths.drift import (
    changed_decisions,
    cosine_of_norms,
    norms,
    prediction_divergence,
    ratio,
    relative_difference,
    split_norms,
    step_share,
)
from lisse.run import RunPair
from lisse.run.pair import PairSide
from lisse.taps import Tap

ORDERS = ("from_input", "from_output")  # in which layers are swapped


def live_side(pair: RunPair) -> PairSide | None:
    """The network that is fed what its layers get in the other one: B where it is none that was only recorded."""
    return "b" if pair.is_live("b") else "a" if pair.is_live("a") else None


def landed(numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Numbers in float64 on the CPU: one copy for each device, for the host waits for a device at every one."""
    values = {key: value.double() for key, value in numbers.items()}
    devices = {value.device for value in values.values()}
    flat: dict[str, Tensor] = {}
    for device in devices:
        keys = [key for key, value in values.items() if value.device == device]
        joined = torch.cat([values[key].flatten() for key in keys]).cpu()
        flat |= dict(zip(keys, joined.split([values[key].numel() for key in keys]), strict=True))
    return {key: flat[key].reshape(value.shape) for key, value in values.items()}


def layer_differences(pair: RunPair, start: int, stop: int, *, full: bool = True) -> dict[str, Tensor]:
    """Per layer and sample: drift, injected, inherited, cosine; of the answers the same. ``QUANTITY/LAYER`` to ``[n]``.

    Three forwards: A, B, and B whose layers get what they get in A. Where B is a recording, A gets what B's had, and
    what is injected is seen at what arrives in B. ``full`` adds how alike clouds are, and divergences of predictions.
    """
    layers, live, mask = pair.layers, live_side(pair), pair.mask(start, stop)
    a_states, a_answers = pair.states("a", start, stop, [layer.a for layer in layers])
    b_states, b_answers = pair.states("b", start, stop, [layer.b for layer in layers])
    numbers: dict[str, Tensor] = {}
    if full:  # before anything goes on with these activations, and may write over them
        for layer in layers:
            a, b = a_states[layer.a], b_states[layer.b].to(a_states[layer.a].device)
            numbers |= cloud_sums(layer.name, a, b, mask if layer.alike else None, start)
    if full and start == 0:
        host_mask = None if mask is None else mask.cpu()
        for layer in pair.alike:
            numbers |= token_distances(layer.name, a_states[layer.a], b_states[layer.b], host_mask)
    forced: dict[Tap, Tensor] = {}  # of each sample five norms
    forced_answers: dict[str, Tensor] = {}
    if live is not None and pair.alike:
        source = a_states if live == "b" else b_states
        spots = {getattr(layer, live): source[layer.a if live == "b" else layer.b] for layer in pair.alike}
        twins = {getattr(layer, live): layer for layer in pair.alike}

        def reduce(tap: Tap, activation: Tensor, offset: int) -> Tensor:
            rows = slice(offset, offset + len(activation))
            a, b = a_states[twins[tap].a][rows], b_states[twins[tap].b][rows]
            return _norms(a, b, activation, None if mask is None else mask[rows])

        forced, forced_answers = pair.patched(live, start, stop, spots, list(spots), reduce)
    for layer in pair.alike:
        sizes = forced.get(layer.b if live == "b" else layer.a)
        if sizes is None:
            sizes = _norms(a_states[layer.a], b_states[layer.b], None, mask)
        numbers |= _rows(layer.name, sizes, live)
    common = [name for name in a_answers if name in b_answers and a_answers[name].shape == b_answers[name].shape]
    output = pair.output
    parts = [
        _rows(output, _norms(a_answers[name], b_answers[name], forced_answers.get(name), mask), live) for name in common
    ]
    for key in parts[0] if parts else ():  # of several answers the one that differs most; the first is what counts
        numbers[key] = parts[0][key] if key.startswith("cosine") else torch.stack([part[key] for part in parts]).amax(0)
    if full and "answer" in common:
        numbers |= _of_predictions(a_answers["answer"], b_answers["answer"], mask)
    numbers = landed(numbers)
    if full:
        sums = {key: numbers.pop(key) for key in list(numbers) if key.startswith(("gram/", "cross/", "sizes/"))}
        numbers |= likeness(sums)
    return numbers


def _norms(a: Tensor, b: Tensor, forced: Tensor | None, mask: Tensor | None) -> Tensor:
    """Norms of activations, of their difference, and of its two parts where one was forced: ``[n, 3 or 5]``."""
    forced = None if forced is None else forced.to(a.device)
    return torch.stack([part for part in split_norms(a, b.to(a.device), forced, mask=mask) if len(part)], 1)


def _rows(name: str, sizes: Tensor, live: PairSide | None) -> dict[str, Tensor]:
    """Of norms ``[n, 3 or 5]``; ``broken/…`` is where of the two that are compared one is finite, and not the other."""
    a, b, difference, *split = sizes.unbind(1)
    numbers = {f"drift/{name}": ratio(difference, a), f"cosine/{name}": cosine_of_norms(a, b, difference)}
    numbers[f"broken/drift/{name}"] = a.isfinite() ^ b.isfinite()
    if split:
        injected, inherited = split if live == "b" else reversed(split)
        numbers |= {f"injected/{name}": ratio(injected, a), f"inherited/{name}": ratio(inherited, a)}
        source, end = (a, b) if live == "b" else (b, a)  # with neither, nothing is known of what was forced
        broken = torch.where(source.isfinite(), ~injected.isfinite(), end.isfinite() & inherited.isfinite())
        numbers[f"broken/injected/{name}"] = broken
    return numbers


def _of_predictions(a: Tensor, b: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
    if a.ndim < 2 or a.shape[-1] < 2:
        return {}
    b, mask = b.to(a.device), None if mask is None else mask.to(a.device)
    finite = torch.isfinite(norms(a, mask) + norms(b, mask))
    values = {
        "prediction_divergence": prediction_divergence(a, b, mask=mask),
        "changed_decisions": changed_decisions(a, b, mask=mask),
    }
    return {key: torch.where(finite, value, torch.nan) for key, value in values.items()}


def attention_differences(pair: RunPair, start: int, stop: int) -> dict[str, Tensor]:
    """Half the sum of what attention weights differ by, query by query, the mean of heads and queries: ``maps/LAYER``.

    0 where both look alike, 1 where no key is looked at by both. Attention in its eager form, which gives weights.
    """
    sides = [pair.a.attention_taps, pair.b.attention_taps]
    twins = [(a, b) for a, b in zip(*sides, strict=False) if len(sides[0]) == len(sides[1]) and a.shape == b.shape]
    if not twins:
        return {}
    a_states, _ = pair.states("a", start, stop, [a for a, _ in twins])
    b_states, _ = pair.states("b", start, stop, [b for _, b in twins])
    mask, numbers = pair.mask(start, stop), {}
    for a, b in twins:
        change = (a_states[a].float() - b_states[b].to(a_states[a].device)).abs().sum(-1).mean(1) / 2  # [n, q]
        weights = torch.ones_like(change) if mask is None or mask.shape != change.shape else mask.to(change)
        numbers[f"maps/{a.name}"] = (change * weights).sum(1) / weights.sum(1)
    return landed(numbers)


def swaps(pair: RunPair, layers: Sequence[str], start: int, stop: int) -> dict[str, Tensor]:
    """What each of these layers adds to the change of the answer, while one after the other becomes that of B.

    ``from_input/LAYER`` ``[n]``: layers become B's from the input on (A goes on with what leaves B's). ``from_output``:
    from the answer on (B goes on with what leaves A's). Each is a share of the change, projected on it. Layers between
    two of them are swapped with the later of the two boundaries, as ``…/rest``.
    """
    alike, output = pair.alike, pair.output
    a_states, a_answers = pair.states("a", start, stop, [layer.a for layer in alike])
    b_states, b_answers = pair.states("b", start, stop, [layer.b for layer in alike])
    first, last = a_answers["answer"], b_answers["answer"].to(a_answers["answer"].device)
    names = [layer.name for layer in alike]
    cuts = sorted({cut for name in layers if name != output for cut in (names.index(name) - 1, names.index(name))})
    if output in layers:
        cuts = sorted({*cuts, len(names) - 1})
    cuts = [cut for cut in cuts if cut >= 0]
    numbers: dict[str, Tensor] = {}
    for order in ORDERS:
        side: PairSide = "a" if order == "from_input" else "b"
        if not pair.is_live(side):
            continue
        values = {
            (layer.a if side == "a" else layer.b): (b_states[layer.b] if side == "a" else a_states[layer.a])
            for layer in alike
        }
        taps = list(values)
        remainder = torch.zeros(stop - start, dtype=torch.float64, device=first.device)
        state = first if side == "a" else last  # the answer with no layer swapped
        for cut, previous in zip(cuts, [-1, *cuts], strict=False):
            _, answers = pair.patched(side, start, stop, {tap: values[tap] for tap in taps[: cut + 1]})
            after = answers["answer"].to(first)
            # From the output on, the way is walked backwards: with A's layers up to a cut, what lies behind it is B's.
            step = (state, after) if side == "a" else (after, state)
            share, state = step_share(*step, first, last), after
            if names[cut] in layers and previous == cut - 1:
                numbers[f"{order}/{names[cut]}"] = share
            else:
                remainder = remainder + share
        step = (state, last) if side == "a" else (first, state)
        share = step_share(*step, first, last)
        if output in layers:
            numbers[f"{order}/{output}"] = share
        else:
            remainder = remainder + share
        numbers[f"{order}/rest"] = remainder
    return landed(numbers)


def singles(pair: RunPair, start: int, stop: int) -> dict[str, Tensor]:
    """The relative change of A's answer where one layer alone is that of B, layer by layer: ``alone/LAYER`` ``[n]``.

    Of several answers it is that of the one that changes most, as in ``drift``.
    """
    alike = pair.alike
    a_states, a_answers = pair.states("a", start, stop, [layer.a for layer in alike])
    spots = {layer.b: a_states[layer.a] for layer in alike}
    forced, _ = pair.patched("b", start, stop, spots, list(spots))
    numbers = {}
    for layer in alike:
        _, answers = pair.patched("a", start, stop, {layer.a: forced[layer.b]})
        changes = [relative_difference(a_answers[name], answers[name]) for name in a_answers]
        numbers[f"alone/{layer.name}"] = torch.stack(changes).amax(0)
    return landed(numbers)
