"""What was found, as findings and claims by question."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lisse.instruments.propagation.masked import TOGETHER
from lisse.profile import Profile, Row
from lisse_experiments.form import Claim, Finding, above
from lisse_experiments.masked_autoencoders.networks import LABELS, LONG
from lisse_experiments.masked_autoencoders.reconstruction import COMPONENTS

Results = Mapping[str, Any]
Profiles = Mapping[str, Profile]
_WAYS = {
    "model": "MAE",
    "mean": "mean of the visible pixels",
    "nearest": "nearest visible patch",
    "pca": f"PCA (at most {COMPONENTS[-1]} components)",
    "linear": "the best linear estimate",
}


# How far a rerun of the same seed may be, relative to the value. At the smoke scale, arithmetic with other instructions
# moves errors by less than 0.01 %, probes by one image of 364 and means over layers by up to 0.3 %; another seed moves
# the autoencoder's error by 4 to 10 %. At the paper scale it differs by 1.8 % from the symmetric kernel's and by 3 %
# from that with one decoder block. Ways that count pixels have nothing random but the masks, which the seed fixes.
COUNTED, TRAINED, PROBED = 1e-3, 0.015, 0.03
LAYERS, KERNELS, ALIKE = 0.1, 0.15, 0.03


def findings(results: Results, profiles: Profiles) -> tuple[Finding, ...]:
    """Painting, probes, and the means over layers of what Propagation saw."""
    numbers = []
    for way, says in _WAYS.items():
        error, near = results["mae"]["errors"][way], TRAINED if way == "model" else COUNTED
        numbers.append(_finding(f"q2/error/{way}", f"Q2 error on hidden pixels, {says}", error, near))
    trained = [name for name in LABELS if name in results]
    for name in trained:
        if name != "mae" and name != "vit":
            error = results[name]["errors"]["model"]
            numbers.append(_finding(f"error/{name}", f"error on hidden pixels, {LABELS[name][0]}", error, TRAINED))
    for name in (*trained, "random", "pixels"):
        label = {"random": "MAE at its start", "pixels": "pixels"}.get(name) or LABELS[name][0]
        numbers.append(_finding(f"probe/{name}", f"linear probe, {label}", results[name]["probe"], PROBED))
    for name, profile in profiles.items():
        for key, says, quantity, at, within in _MEASURED:
            rows = _rows(profile, quantity, at)
            if rows:
                label = "MAE at its start" if name == "random" else LABELS[name][0]
                value = _mean(rows)
                low, high, note = over_layers(rows)
                wide = None if within is None else within * max(abs(value), 0.05)
                numbers.append(
                    Finding(
                        f"{key}/{name}", f"{says}, {label}", value, low, high, rows[0].n, within=wide, note=note
                    )
                )  # fmt: skip
    return tuple(numbers)


# Key, words, quantity, coordinates, and how far a rerun may be, relative to the value.
_MEASURED: tuple[tuple[str, str, str, Mapping[str, Any], float | None], ...] = (
    ("q1/asymmetry", "Q1 asymmetry of the kernel", "asymmetry", {"of": "kernel"}, KERNELS),
    ("q1/key_term", "Q1 share of ½‖k‖² in (12)", "norm_term", {"of": "key"}, LAYERS),
    ("q1/difference_term", "Q1 share of ½‖q−k‖² in (12)", "norm_term", {"of": "difference"}, LAYERS),
    ("q1/reading", "Q1 distance of the attention from its RBF reading", "reading_distance", {"to": "rbf_w"}, KERNELS),
    ("q1/offset", "Q1 share that is no convolution", "offset_defect", {}, KERNELS),
    ("q1/rank", "Q1 rank that the FFN adds", "added_rank", {}, None),
    ("q3/attention", "Q3 n·ρ, attention alone", "scaled_ratio", {"of": "attention"}, LAYERS),
    ("q3/skip", "Q3 n·ρ, sub-layer with its skip", "scaled_ratio", {"of": "sublayer"}, LAYERS),
    ("q3/no_skip", "Q3 n·ρ, sub-layer without", "scaled_ratio", {"of": "sublayer without skip"}, LAYERS),
    ("q3/block", "Q3 n·ρ, block", "scaled_ratio", {"of": "block"}, LAYERS),
    ("q3/no_skips", "Q3 n·ρ, block, no attention with a skip", "scaled_ratio", {"of": "block without skips"}, LAYERS),
    ("q3/cka", "Q3 CKA of neighbouring layers", "similarity", {"pair": "neighbours"}, ALIKE),
    ("q5/mass", "Q5 attention of masked patches within one patch, over unmasked", "attention_mass",
     {"radius": 1, "queries": "masked, unmasked keys"}, KERNELS),
    ("q5/uniform", "Q5 the same if it were uniform", "attention_mass",
     {"radius": 1, "queries": "masked, unmasked keys, uniform"}, COUNTED),
    ("q5/weights", "Q5 sizes of the weights of (25) within one patch", "attention_mass",
     {"radius": 1, "queries": "masked, weights of (25)"}, None),
    ("q5/mask_tokens", "Q5 attention to mask tokens", "mask_mass", {"queries": "masked"}, KERNELS),
    ("q5/restricted", "Q5 Lemma 6.1, mask tokens left out: share of the output", "lemma_share",
     {"construction": "restricted"}, None),
    ("q5/span", "Q5 outside the span of (25), head by head", "span_residual", {}, None),
    ("q5/span_together", "Q5 outside the span of (25), all heads together", "span_residual",
     {"queries": f"masked, {TOGETHER}"}, None),
    ("q5/slope", "Q5 Lemma 6.1, slope in n (the lemma: −1)", "lemma_slope", {"construction": "restricted"}, None),
    ("q5/constant", "Q5 least constant of (26)", "interpolation_constant", {}, None),
)  # fmt: skip


def over_layers(rows: list[Row]) -> tuple[float | None, float | None, str]:
    """Low, high and note of a mean over layers: one layer has its own interval, several have a range and no interval.

    The range goes from the lowest to the highest end of the layers' intervals over images. It says how the layers
    differ, not how well their mean is known, so it is words and never stands where an interval does.
    """
    low = min(row.low if row.low is not None else row.value for row in rows)
    high = max(row.high if row.high is not None else row.value for row in rows)
    if len(rows) == 1:
        return low, high, ""
    return None, None, spread(low, high, len(rows))


def spread(low: float, high: float, layers: int) -> str:
    """The range over layers, in words."""
    return f"mean of {layers} layers, which go from {low:.4g} to {high:.4g}, ends of their intervals"


def claims(results: Results, profiles: Profiles) -> tuple[Claim, ...]:
    """The paper's answers, and what a pretraining must do at least, each true or false here."""
    mae, start = results["mae"], results["random"]
    sentences = []
    for name, who in (("mae", "the autoencoder"), (LONG, "the autoencoder that was trained longer")):
        for way in _WAYS if name in results else ():
            if way != "model":
                less, level = results[name]["less"][way], results[name]["errors"][way]["value"]
                sentences.append(
                    Claim(
                        f"q2/beats_{way}" + ("_longer" if name == LONG else ""),
                        f"{who} paints better than {_WAYS[way]}",
                        above((less["low"], less["high"])),
                        f"by {less['value']:.4f} [{less['low']:.4f}, {less['high']:.4f}] of {level:.4f}",
                        theirs=False,
                    )
                )
    for name, other in (("pixels", results["pixels"]), ("random", start)):
        words = {"pixels": "pixels", "random": "its random start"}[name]
        sentences.append(
            _above(
                f"probe/beats_{name}", f"its linear probe beats {words}", mae["probe"], other["probe"], printed=False
            )
        )
    positions = results["mae_no_positions"]["errors"]["model"]
    sentences.append(
        Claim(
            "q1/positions", "Q1 positions carry the reconstruction: without them the error is larger",
            above(_ends(positions), _ends(mae["errors"]["model"])),
            f"{positions['value']:.4f} without, {mae['errors']['model']['value']:.4f} with",
        )
    )  # fmt: skip
    asymmetry = [row.value for row in _rows(profiles["mae"], "asymmetry", {"of": "kernel"})]
    sentences.append(
        Claim(
            "q1/symmetric", "Q1 the learned kernel is symmetric (defect under 0.1 in every layer)",
            max(asymmetry) < 0.1, f"{min(asymmetry):.3f} to {max(asymmetry):.3f}",
        )
    )  # fmt: skip
    keys = [row.value for row in _rows(profiles["mae"], "norm_term", {"of": "key"})]
    queries = [row.value for row in _rows(profiles["mae"], "norm_term", {"of": "query"})]
    both = [a + b for a, b in zip(keys, queries, strict=True)]
    sentences.append(
        Claim(
            "q1/norm_terms", "Q1 the norm terms of (12) are small beside the third (together under a third)",
            max(both) < 1 / 3, f"shares {min(both):.2f} to {max(both):.2f}",
        )
    )  # fmt: skip
    cka = [row.value for row in _rows(profiles["mae"], "similarity", {"pair": "neighbours"})]
    sentences.append(
        Claim(
            "q3/alike",
            "Q3 neighbouring layers are alike (CKA of 0.8 or more)",
            min(cka) >= 0.8,
            f"{min(cka):.3f} to {max(cka):.3f}",
        )
    )
    skip = _rows(profiles["mae"], "scaled_ratio", {"of": "sublayer"})
    none = _rows(profiles["mae"], "scaled_ratio", {"of": "sublayer without skip"})
    pairs = [(a, b) for a, b in zip(skip, none, strict=True)]
    sentences.append(
        Claim(
            # Without its skip a small z is about ‖v‖ away from v, whatever it is: the ablation is q3/no_skips.
            "q3/skip", "Q3 every sub-layer stays nearer to its input with its skip than without (nearly a tautology)",
            all(_under(a, b) for a, b in pairs), f"n·ρ {_mean(skip):.3f} with, {_mean(none):.3f} without",
        )
    )  # fmt: skip
    four, single, zero = (results[name] for name in ("mae", "mae_decoder1", "mae_decoder0"))
    sentences.append(
        _above(
            "q4/probe",
            "Q4 a deeper decoder gives a better encoder: probe against one block",
            four["probe"],
            single["probe"],
        )
    )
    sentences.append(_above("q4/none", "Q4 without a decoder block the encoder is worse", four["probe"], zero["probe"]))
    error = single["errors"]["model"]
    sentences.append(
        Claim(
            "q4/paints", "Q4 a deeper decoder paints better than one block",
            above(_ends(error), _ends(four["errors"]["model"])),
            f"{four['errors']['model']['value']:.4f} against {error['value']:.4f}",
        )
    )  # fmt: skip
    near = _rows(profiles["mae"], "attention_mass", {"radius": 1, "queries": "masked, unmasked keys"})
    even = _rows(profiles["mae"], "attention_mass", {"radius": 1, "queries": "masked, unmasked keys, uniform"})
    sentences.append(
        Claim(
            "q5/global", "Q5 masked patches look beyond their neighbours: under half of the attention within one patch",
            all(row.value < 0.5 for row in near),
            ", ".join(f"{row.value:.3f}" for row in near) + f"; uniform attention {_mean(even):.3f}",
            theirs=False,  # the paper says global, and gives no threshold
        )
    )  # fmt: skip
    span = _rows(profiles["mae"], "span_residual", {"queries": f"masked, {TOGETHER}"})
    sentences.append(
        Claim(
            "q5/span",
            "Q5 (25): masked outputs lie in the span of the unmasked values, all heads together (residual under 1 %)",
            all(row.value < 0.01 for row in span), f"{_mean(span):.3f} of the output is outside",
        )
    )  # fmt: skip
    slopes = _rows(profiles["mae"], "lemma_slope", {"construction": "restricted"})
    sentences.append(
        Claim(
            "q5/slope", "Q5 Lemma 6.1: leaving out mask tokens costs O(1/n) (slope under −½ in every layer)",
            bool(slopes) and all(row.value < -0.5 for row in slopes), ", ".join(f"{row.value:+.2f}" for row in slopes),
        )
    )  # fmt: skip
    return tuple(sentences)


def notes(results: Results) -> tuple[str, ...]:
    """What a reader should know of the trainings."""
    lines = []
    for name, (label, _, _) in LABELS.items():
        training = results.get(name, {}).get("training")
        if training:
            beside = ", side by side" if training.get("side_by_side") else ""
            speed = f"{training['images_per_second']:,.0f} images a second"
            lines.append(f"{label}: {training['epochs']} epochs, {speed}{beside}.")
    if alone := results.get("alone"):
        lines.append(
            f"{LABELS[alone['network']][0]} with the device to itself: {alone['images_per_second']:,.0f} images a "
            "second."
        )
    floor = results.get("mae", {}).get("training", {}).get("floor_images_per_second")
    if floor and "H200" in str(results.get("machine", "")):
        lines.append(f"Floor of the MAE's training on an H200: {floor:,.0f} images a second.")
    return (" ".join(lines),) if lines else ()


def _finding(key: str, says: str, estimate: Mapping[str, Any], relative: float) -> Finding:
    return Finding(
        key,
        says,
        estimate["value"],
        estimate["low"],
        estimate["high"],
        estimate["n"],
        within=relative * abs(estimate["value"]),
    )


def _ends(estimate: Mapping[str, Any]) -> tuple[float, float]:
    return float(estimate["low"]), float(estimate["high"])


def _above(key: str, says: str, upper: Mapping[str, Any], other: Mapping[str, Any], *, printed: bool = True) -> Claim:
    detail = f"{upper['value']:.3f} [{upper['low']:.3f}, {upper['high']:.3f}] against {other['value']:.3f}"
    return Claim(
        key, says, above(_ends(upper), _ends(other)), f"{detail} [{other['low']:.3f}, {other['high']:.3f}]", printed
    )


def _rows(profile: Profile, quantity: str, at: Mapping[str, Any]) -> list[Row]:
    """In order of depth: those whose coordinates hold ``at``; without ``queries``, all queries."""
    rows = [row for row in profile.rows if row.quantity == quantity and at.items() <= dict(row.at).items()]
    rows = [row for row in rows if "queries" in at or "queries" not in row.at]
    return sorted(rows, key=lambda row: row.depth or 0.0)


def _under(a: Row, b: Row) -> bool:
    return (a.high if a.high is not None else a.value) < (b.low if b.low is not None else b.value)


def _mean(rows: list[Row]) -> float:
    return sum(row.value for row in rows) / max(1, len(rows))
