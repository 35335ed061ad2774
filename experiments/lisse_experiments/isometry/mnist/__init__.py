"""Section 3.3 of [beshkov2022]: six weights β of the isometric loss on MNIST; Table 1, Figure 3, and the gradients.

Every β is trained with the paper's loss and with that of the authors' code (which multiplies the layer's distances by
10 and starts hidden layers orthogonal), from several seeds; and attacked by FGSM, by a correct PGD, and by the PGD of
the authors' code, as it is and with β left out of what it climbs, with images kept in [0, 1] and free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lisse.data import Dataset, load_data
from lisse.maths.intervals import Interval, across_clouds, share_interval
from lisse_experiments.form import Claim, Finding, Task, above
from lisse_experiments.isometry.mnist.attacks import ATTACKS, BALL, SIZES, STEPS, Attack, Stood, over_beta, stood
from lisse_experiments.isometry.mnist.networks import BETAS, LOSSES, READINGS, Reading, trained_networks
from lisse_experiments.outputs import csv_file

#: Table 1: test accuracy by β.
TABLE_1 = {0.0: 0.9701, 0.001: 0.9688, 0.01: 0.9686, 0.1: 0.9665, 1.0: 0.9588, 10.0: 0.8816}
ATTACKED: dict[Attack, str] = {
    "fgsm": "FGSM",
    "pgd": "PGD",
    "authors": "the authors' PGD",
    "error": "the authors' PGD of the error alone",
}
#: Where a curve is read off for the table: ε of FGSM and step of both PGDs, of :data:`SIZES`.
READ_OFF: dict[Attack, int] = {"fgsm": 3, "pgd": 0, "authors": 0, "error": 0}


@dataclass(frozen=True)
class Settings:
    """What differs between the scales."""

    data: str
    betas: tuple[float, ...]
    seeds: int
    epochs: int


def settings(scale: str) -> Settings:
    """Of one scale. The smoke scale is on scikit-learn's 8 × 8 digits, which are embedded."""
    return Settings("mnist", BETAS, 5, 5) if scale == "paper" else Settings("digits", (0.0, 0.1, 10.0), 2, 20)


def results(task: Task) -> list[Stood]:
    """Train and attack all networks, each unless that has been done."""
    plan = settings(task.scale)
    train, test = _data(plan)
    trained = trained_networks(
        task, train, betas=plan.betas, readings=READINGS, seeds=range(task.seed, task.seed + plan.seeds),
        epochs=plan.epochs,
    )  # fmt: skip
    return stood(task, trained, test, name=f"{len(train)}x{plan.epochs}")


def _data(plan: Settings) -> tuple[Dataset, Dataset]:
    parts = [load_data(plan.data, split=split, seed=None) for split in ("train", "test")]
    return parts[0], parts[1]


def findings(task: Task) -> list[Finding]:
    """Table 1, points of Figure 3, distortion and gradients, per loss and β; means over seeds."""
    numbers: list[Finding] = []
    everything = results(task)
    paper = task.scale == "paper"
    # Seeds of another machine, rounding: what a later run may differ by before it counts as another result.
    loose = 0.01 if paper else 0.05
    for reading in READINGS:
        for beta in settings(task.scale).betas:
            stood_ = over_beta(everything, reading, beta)
            where, label = f"mnist/{reading}/{beta:g}", f"{LOSSES[reading]}, β = {beta:g}"
            clean = over_seeds(torch.tensor([network.clean / network.n for network in stood_]), stood_[0].n)
            numbers.append(
                _share(f"{where}/clean", f"{label}: accuracy", clean, loose, printed=TABLE_1[beta] if paper else None)
            )
            for attack in ATTACKS:
                point = READ_OFF[attack]
                for clipped in (True, False):
                    shares = torch.stack([network.share(attack, clipped)[point] for network in stood_])
                    size = f"ε = {SIZES[point]:.3g}" if attack == "fgsm" else f"step {SIZES[point]:.3g}"
                    pixels = "in [0, 1]" if clipped else "free"
                    key = f"{where}/{attack}/{SIZES[point]:.3g}{'' if clipped else '/free'}"
                    interval = over_seeds(shares, stood_[0].tried(attack))
                    numbers.append(
                        _share(key, f"{label}: under {ATTACKED[attack]}, {size}, {pixels}", interval, 2 * loose)
                    )
                areas = torch.stack([network.share(attack, True).mean() for network in stood_])
                interval = over_seeds(areas, stood_[0].tried(attack))
                numbers.append(
                    _share(
                        f"{where}/{attack}/mean",
                        f"{label}: under {ATTACKED[attack]}, mean over Figure 3",
                        interval,
                        loose,
                    )
                )
            for key, says, values in (
                (
                    "gradient",
                    "median ℓ1 norm of the gradient",
                    _medians([network.steepness for network in stood_]),
                ),
                (
                    "distortion",
                    "relative error of distances within classes",
                    torch.tensor([network.distortion for network in stood_]),
                ),
                ("margin", "median margin of right answers", _medians([network.clear[0] for network in stood_])),
                ("margin-gradient", "its gradient's ℓ1 norm", _medians([network.clear[1] for network in stood_])),
                (
                    "reach",
                    "median of margin over gradient",
                    _medians([network.clear[0] / network.clear[1] for network in stood_]),
                ),
            ):
                interval = across_clouds(values)
                numbers.append(
                    Finding(
                        f"{where}/{key}", f"{label}: {says}", float(interval.value), max(0.0, float(interval.low)),
                        float(interval.high), len(stood_), within=0.5 * float(interval.value),
                    )
                )  # fmt: skip
        numbers += [
            _gain(everything, reading, settings(task.scale).betas[-1], attack) for attack in ("authors", "error")
        ]
    return numbers


def _medians(values: Sequence[Tensor]) -> Tensor:
    """Of every network; 0 where it has no values."""
    return torch.stack([value.double().median() if len(value) else torch.zeros(()).double() for value in values])


def _gain(everything: Sequence[Stood], reading: Reading, beta: float, attack: Attack) -> Finding:
    """What β adds to the accuracy under an attack, seed by seed: networks of one seed begin alike."""
    point = READ_OFF[attack]
    most, none = (
        torch.stack([network.share(attack, True)[point] for network in over_beta(everything, reading, weight)])
        for weight in (beta, 0.0)
    )
    gain = across_clouds(most - none)
    value, low, high = (float(end) for end in (gain.value, gain.low, gain.high))
    return Finding(
        f"mnist/{reading}/gain/{attack}",
        f"{LOSSES[reading]}: what β = {beta:g} adds under {ATTACKED[attack]}, step {SIZES[point]:.3g}",
        value, low, high, len(most), within=0.1,
    )  # fmt: skip


def over_seeds(shares: Tensor, n: int) -> Interval:
    """The mean share over seeds; its interval holds Student's over seeds and Wilson's over the ``n`` test images.

    The seeds share their test images: neither source of chance contains the other.
    """
    seeds, images = across_clouds(shares.double()), share_interval(shares.double().mean(), n)
    low, high = torch.minimum(seeds.low, images.low).clamp_min(0), torch.maximum(seeds.high, images.high).clamp_max(1)
    return Interval(seeds.value, low, high, len(shares), seeds.level)


def _share(key: str, says: str, interval: Interval, within: float, *, printed: float | None = None) -> Finding:
    value, low, high = (float(end) for end in (interval.value, interval.low, interval.high))
    source = "" if printed is None else "Table 1"
    return Finding(key, says, value, low, high, interval.n, theirs=printed, source=source, within=within)


def claims(task: Task, findings: Sequence[Finding]) -> list[Claim]:
    """What section 3.3 says, and what decides whether its explanation holds."""
    by = {finding.key: finding for finding in findings}
    betas = settings(task.scale).betas
    sentences: list[Claim] = []
    for reading in READINGS:

        def ends(quantity: str, reading: Reading = reading) -> tuple[Finding, Finding]:
            return by[f"mnist/{reading}/0/{quantity}"], by[f"mnist/{reading}/{betas[-1]:g}/{quantity}"]

        loss, last = LOSSES[reading], f"β = {betas[-1]:g}"
        none, most = ends("clean")
        sentences.append(
            Claim(
                f"mnist/{reading}/cost", f"{loss}: accuracy at {last} is below that at β = 0",
                above(_ends(none), _ends(most)),
                f"{none.value:.4f} to {most.value:.4f}",
            )
        )  # fmt: skip
        for attack in ATTACKS:
            none, most = ends(f"{attack}/mean")
            sentences.append(
                Claim(
                    f"mnist/{reading}/{attack}",
                    f"{loss}: accuracy under {ATTACKED[attack]}, mean over Figure 3, is higher at {last} than at β = 0",
                    above(_ends(most), _ends(none)),
                    f"{none.value:.3f} to {most.value:.3f}",
                    theirs=attack in ("fgsm", "authors"),
                )
            )
        full, bare = (by[f"mnist/{reading}/gain/{attack}"] for attack in ("authors", "error"))
        low, high = _ends(full)
        sentences.append(
            Claim(
                f"mnist/{reading}/artefact",
                f"{loss}: of the gain of {last} under the authors' PGD less than a tenth is left when it climbs the "
                "error alone",
                above((0.1 * low, 0.1 * high), _ends(bare)),
                f"{full.value:.3f} [{low:.3f}, {high:.3f}] to {bare.value:.3f} [{bare.low:.3f}, {bare.high:.3f}]",
                theirs=False,
            )
        )
        none, most = ends("reach")
        sentences.append(
            Claim(
                f"mnist/{reading}/reach", f"{loss}: margins over their gradients are larger at {last} than at β = 0",
                above(_ends(most), _ends(none)), f"median {none.value:.3f} to {most.value:.3f}", theirs=False,
            )
        )  # fmt: skip
        none, most = ends("gradient")
        sentences.append(
            Claim(
                f"mnist/{reading}/gradients", f"{loss}: gradients are smaller at {last} than at β = 0",
                above(_ends(none), _ends(most)), f"median ℓ1 norm {none.value:.3g} to {most.value:.3g}",
            )
        )  # fmt: skip
        if task.scale == "paper":
            apart = {beta: by[f"mnist/{reading}/{beta:g}/clean"].value - TABLE_1[beta] for beta in betas}
            worst = max(apart, key=lambda beta: abs(apart[beta]))
            sentences.append(
                Claim(
                    f"mnist/{reading}/table1", f"{loss}: Table 1 is met to 0.01 at every β", abs(apart[worst]) <= 0.01,
                    f"furthest at β = {worst:g}: {apart[worst]:+.4f}", theirs=False,
                )
            )  # fmt: skip
    return sentences


def _ends(finding: Finding) -> tuple[float, float]:
    assert finding.low is not None
    assert finding.high is not None
    return finding.low, finding.high


def files(task: Task, findings: Sequence[Finding]) -> list[Path]:
    """Figure 3, the accuracy–robustness curve with the gradients, and all curves as a table."""
    from lisse_experiments.isometry.mnist import figures

    everything = results(task)
    return [*figures.draw(everything, settings(task.scale).betas, task.out), _table(everything, task.out)]


def _table(everything: Sequence[Stood], out: Path) -> Path:
    lines: list[list[object]] = [["loss", "beta", "seed", "attack", "clipped", "size", "accuracy", "n"]]
    for network in everything:
        lines.append([network.reading, network.beta, network.seed, "none", "", 0, network.clean / network.n, network.n])
        for attack in ATTACKS:
            for clipped in (True, False):
                for size, share in zip(SIZES, network.share(attack, clipped).tolist(), strict=True):
                    lines.append(
                        [
                            network.reading,
                            network.beta,
                            network.seed,
                            attack,
                            clipped,
                            size,
                            share,
                            network.tried(attack),
                        ]
                    )
    return csv_file(out / "mnist-curves.csv", lines)


def notes(task: Task, findings: Sequence[Finding]) -> list[str]:
    """What the numbers rest on."""
    plan = settings(task.scale)
    return [
        f"{plan.data}: n counts seeds. An interval holds Student's over {plan.seeds} seeds and Wilson's over the "
        f"test images (PGD on 2,000 of them, chosen once, where there are more). PGD takes {STEPS} steps in a "
        f'ball of {BALL:g}; "mean over Figure 3" is the mean accuracy over its ten sizes, images kept in [0, 1].'
    ]
