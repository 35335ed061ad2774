"""Isometric representations: rings and torus with locally isometric networks, and MNIST under attack.

Paper     Isometric representations in neural networks improve robustness [beshkov2022]
Claim     A loss that keeps distances within classes unties linked rings without tearing them, cuts a torus into
          cylinders, and makes networks on MNIST robust against FGSM and PGD
Command   lisse reproduce isometry [--scale smoke | paper] [--units rings,torus,mnist] [--out FOLDER]; the same command
          goes on after a stop
Hardware  smoke: 1 CPU core; paper: 2 CPU cores, 4 GB of memory
Time      smoke: about 1 minute; paper: rings 5 minutes, torus 20 minutes of one core, and MNIST
Expect    both: what expected.json says (smoke: digits in place of MNIST); paper: rings survive with β and not without
          (Figure 2), torus over 0.99 (section 3.4), Table 1 to 0.01 with the paper's loss but for β = 10 (0.918 against
          0.8816), no more accuracy under FGSM and PGD at β = 10 than at 0, and hardly more under the authors' attack
          without β
"""

from __future__ import annotations

from pathlib import Path

from lisse_experiments.form import About, Claim, Finding, Outcome, Task
from lisse_experiments.isometry import rings, torus

ABOUT = About(
    paper="isometry",
    title="Isometric representations in neural networks improve robustness",
    reference="beshkov2022",
    claim="keeping distances within classes unties entangled data without tearing it, and makes networks robust",
    needs={
        "smoke": "1 CPU core, about 1 minute; digits, which come with scikit-learn",
        "paper": "2 CPU cores, under an hour; MNIST; umap-learn for the pictures",
    },
    folder=Path(__file__).parent,
    in_parts=True,
)
PARTS = ("rings", "torus", "mnist")


def run(task: Task) -> Outcome:
    """Rings, torus, MNIST, one after another, or those of ``task.units``; what is finished stays under ``out``."""
    from lisse_experiments.isometry import figures, mnist  # drawing needs matplotlib: said before the work

    parts = task.units or PARTS
    if wrong := [name for name in parts if name not in PARTS]:
        raise ValueError(f"reproduce: units must be some of {', '.join(PARTS)}, got {', '.join(wrong)}.")
    if task.minutes is not None:
        raise ValueError(f"reproduce: minutes must be left out for isometry, got {task.minutes}. Give units.")
    numbers: list[Finding] = []
    claims: list[Claim] = []
    files: list[Path] = []
    ringed = rings.results(task) if "rings" in parts else []
    cuts = torus.results(task) if "torus" in parts else []
    if ringed:
        numbers, claims = [*rings.findings(task, ringed)], [*rings.claims(task, ringed)]
    if cuts:
        numbers, claims = [*numbers, *torus.findings(task, cuts)], [*claims, *torus.claims(cuts)]
    files += figures.draw(task, ringed, cuts)
    notes: list[str] = []
    if "mnist" in parts:
        attacked = mnist.findings(task)
        numbers, claims = [*numbers, *attacked], [*claims, *mnist.claims(task, attacked)]
        files, notes = [*files, *mnist.files(task, attacked)], mnist.notes(task, attacked)
    return Outcome(tuple(numbers), tuple(claims), tuple(files), tuple(notes), parts=task.units)
