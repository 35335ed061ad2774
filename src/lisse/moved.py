"""What has moved: an old path of a module or a name works for one release more, with a warning that says the new."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

#: Old paths and new ones, folders with all that is in them; emptied at each release.
MOVED = {
    "lisse.data.drawn": "lisse.data.dataset",
    "lisse.data.shapes": "lisse.data.generators",
    "lisse.experiments": "lisse_experiments",
    "lisse.instruments.robustness_rows": "lisse.instruments.robustness.rows",
    "lisse.instruments.stability_fits": "lisse_experiments.diffeomorphisms.laws",
    "lisse.maths.corruption.spatter": "lisse.maths.corruption.weather",
    "lisse.maths.diffeomorphism.adversary": "lisse_experiments.diffeomorphisms.adversary",
    "lisse.maths.homology.alpha": "lisse_experiments.topolip.alpha",
    "lisse.maths.homology.critical": "lisse_experiments.topolip.critical",
    "lisse.maths.homology.normalised": "lisse.maths.homology.divergence",
    "lisse.maths.homology.sampling": "lisse.maths.homology.rips",
    "lisse.maths.homology.summaries": "lisse_experiments.topolip.summaries",
    "lisse.maths.integral.nonlocal_means": "lisse_experiments.masked_autoencoders.nonlocal_means",
    "lisse.maths.integral.solvers": "lisse.maths.integral.equations",
    "lisse.maths.isometry.scale_free": "lisse.maths.isometry.distortion",
    "lisse.maths.markov.domains": "lisse.maths.markov.stretch",
    "lisse.maths.markov.potentials": "lisse.maths.markov.kernels",
    "lisse.maths.transport.bottleneck": "lisse.maths.transport.exact",
    "lisse.maths.transport.estimates": "lisse_experiments.regularity.estimates",
    "lisse.networks.attention.calls": "lisse.networks.attention.heads",
    "lisse.networks.attention_heads": "lisse.networks.attention",
    "lisse.networks.attention_sites": "lisse.networks.attention",
    "lisse.networks.constants": "lisse_experiments.topolip.constants",
    "lisse.networks.isometric.fitting": "lisse.networks.isometric.network",
    "lisse.networks.isometric.projection": "lisse_experiments.isometry.projection",
    "lisse.networks.isometric.stacked": "lisse.networks.isometric.network",
    "lisse.networks.isometric.stress": "lisse.networks.isometric.loss",
    "lisse.recording.folder": "lisse.recording.recorder",
    "lisse.reporting.cech": "lisse_experiments.topolip.cech",
    "lisse.reporting.constants": "lisse_experiments.topolip.constants",
    "lisse.reporting.contraction": "lisse.reporting.former",
    "lisse.reporting.isometry": "lisse.reporting.former",
    "lisse.reporting.law_figures": "lisse_experiments.diffeomorphisms.law_figures",
    "lisse.reporting.planes": "lisse_experiments.isometry.planes",
    "lisse.reporting.propagation": "lisse.reporting.former",
    "lisse.reporting.robustness": "lisse.reporting.former",
    "lisse.reporting.seeds": "lisse.run.seeds",
    "lisse.reporting.stability": "lisse.reporting.former",
    "lisse.reporting.stability_laws": "lisse_experiments.diffeomorphisms.laws",
    "lisse.reporting.topology": "lisse.reporting.former",
}
#: Names that left a package which itself has stayed.
MOVED_NAMES = {
    "lisse.maths.bounds": {
        "lisse_experiments.topolip.orders": (
            "attention_order attention_terms convolution_order resnet_order transformer_order"
        )
    },
    "lisse.maths.diffeomorphism": {"lisse_experiments.diffeomorphisms.adversary": "WorstField worst_field"},
    "lisse.maths.homology": {
        "lisse_experiments.topolip.alpha": "cech_persistence",
        "lisse_experiments.topolip.critical": (
            "CriticalEdges Cycle critical_edges differentiable_persistence representative_cycles"
        ),
        "lisse_experiments.topolip.summaries": "betti_curve landscape persistence_entropy total_persistence",
    },
    "lisse.maths.integral": {
        "lisse_experiments.masked_autoencoders.nonlocal_means": "non_local_means pixel_patches",
        "lisse_experiments.masked_autoencoders.spectra": "Decay Mercer mercer spectral_decay",
    },
    "lisse.maths.masking": {"lisse_experiments.masked_autoencoders.operators.lemma": "lemma_residuals random_mask"},
    "lisse.maths.transport": {
        "lisse_experiments.regularity.estimates": (
            "Entropic Sliced Unbalanced entropic_wasserstein sliced_wasserstein unbalanced_transport"
        )
    },
    "lisse.networks.isometric": {"lisse_experiments.isometry.projection": "IsometricProjection"},
    "lisse.reporting.measures": {"lisse_experiments.regularity.measures": "two_measures"},
    "lisse.reporting.former": {
        "lisse_experiments.diffeomorphisms.law_figures": "delta_figure error_figure size_figure"
    },
}


def new_path(name: str) -> str | None:
    """Where a module is now; ``None`` for one that has not moved."""
    for old, new in MOVED.items():
        if name == old or name.startswith(old + "."):
            return new + name.removeprefix(old)
    return None


def moved_names(package: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package: names that have left it are found where they are now, with a warning."""
    homes = {name: home for home, names in MOVED_NAMES[package].items() for name in names.split()}

    def name_of(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(_home(f"{package}.{name}", homes[name]), name)
        warnings.warn(f"{package}.{name} has moved: import it from {homes[name]}.", DeprecationWarning, stacklevel=2)
        return value

    return name_of


def _home(old: str, new: str) -> ModuleType:
    try:
        return importlib.import_module(new)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "lisse_experiments":
            raise
        raise ImportError(f'{old} is now in {new}. pip install "lisse[experiments]"', name=old) from error


class _Forwarding:
    """A finder and loader of modules that pass every name on to their new home."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """A spec for an old path, and nothing for any other."""
        return None if new_path(name) is None else ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The usual kind of module."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Let the module give what its new home has."""
        path = new_path(module.__name__)
        assert path is not None  # find_spec has looked
        home = _home(module.__name__, path)
        warnings.warn(f"{module.__name__} has moved: import it from {path}.", DeprecationWarning, stacklevel=2)
        module.__getattr__ = lambda name: getattr(home, name)  # type: ignore[method-assign]


def forward() -> None:
    """Let imports of old paths find their new homes."""
    if not any(isinstance(finder, _Forwarding) for finder in sys.meta_path):
        sys.meta_path.append(_Forwarding())  # after all others: it is asked for what is gone
