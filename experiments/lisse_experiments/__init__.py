"""One folder per paper: run it again, and see our number beside theirs. ``lisse reproduce PAPER`` runs them.

A folder holds ``run.py`` (opens with the paper, the claim, the command, the hardware, the time and the value to expect;
defines ``ABOUT`` and ``run``), ``expected.json`` (their number, ours, interval, n, seed, machine and commit),
``tables.md`` (both, side by side, made from ``expected.json``), ``README.md`` (what was found, in ten lines) and
``method.md`` (what was run and what was chosen). :mod:`lisse_experiments.form` is what they share.
"""

from __future__ import annotations

import difflib
import importlib

from lisse_experiments.form import About, Claim, Finding, Outcome, Scale, Study, Task

# A paper, and what its experiment looks at in one line; the module is lisse_experiments.PAPER.run.
PAPERS: dict[str, str] = {
    "topolip": "how the shape of the data changes along depth in ten networks, and their robustness",
    "diffeomorphisms": "how networks answer to smooth deformations relative to noise, and their test error",
    "masked_autoencoders": "five questions about masked autoencoders: kernels, stability, decoders, masked patches",
    "regularity": "how much attention stretches, against its bounds, and negation in a masked language model",
    "recipes": "what adversaries, penalties, AugMix and deformations buy in training, and what they cost",
    "early_warning": "which watched quantity tells of a training that diverges before its loss does",
    "isometry": "networks that keep distances within classes: linked rings, a torus, and MNIST under attack",
}

__all__ = ["PAPERS", "About", "Claim", "Finding", "Outcome", "Scale", "Study", "Task", "study"]


def study(paper: str) -> Study:
    """The experiment of a paper; a wrong name lists the right ones."""
    if paper not in PAPERS:
        near = difflib.get_close_matches(str(paper), PAPERS, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ValueError(f"study: paper must be one of {', '.join(PAPERS) or '(none)'}, got {paper!r}.{hint}")
    module = importlib.import_module(f"lisse_experiments.{paper}.run")
    return Study(module.ABOUT, module.run)
