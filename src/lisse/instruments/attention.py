"""The attention layers of a run's model, found once for every instrument that reads them."""

from __future__ import annotations

from lisse.networks.attention import AttentionSite, attention_sites, has_attention
from lisse.run import Run
from lisse.taps import Taps


def attention_of(run: Run) -> tuple[Taps, list[AttentionSite], list[str]]:
    """Every tap of the model, its attention layers, and a sentence for each that cannot be read."""

    def search() -> tuple[Taps, list[AttentionSite], list[str]]:
        if not has_attention(run.model):
            return run.taps, [], []
        example = next(iter(run.data.batches(min(3, len(run)), stop=min(3, len(run)), device=run.device)))
        taps = run.taps.everywhere
        return taps, *attention_sites(run.model, example.inputs, statistics=run.statistics, taps=taps)

    return run.once("attention", search)
