"""A file or a folder per measurement. ``ALL`` is what the command line offers, in the order of a page."""

from lisse.instruments.contraction import Contraction
from lisse.instruments.drift import Drift
from lisse.instruments.extremes import Extremes
from lisse.instruments.isometry import Isometry
from lisse.instruments.lipschitz import Lipschitz
from lisse.instruments.propagation import Propagation
from lisse.instruments.robustness import Robustness
from lisse.instruments.sensitivity import Sensitivity
from lisse.instruments.stability import Stability
from lisse.instruments.topology import Topology
from lisse.run import Instrument

#: From the shape of the data to what comes of it; last, two networks beside each other. (Extremes is for trainings: by
#: its path, or in a Watch.)
ALL: tuple[type[Instrument], ...] = (
    Topology,
    Stability,
    Contraction,
    Propagation,
    Isometry,
    Sensitivity,
    Lipschitz,
    Robustness,
    Drift,
)

__all__ = [
    "ALL",
    "Contraction",
    "Drift",
    "Extremes",
    "Isometry",
    "Lipschitz",
    "Propagation",
    "Robustness",
    "Sensitivity",
    "Stability",
    "Topology",
]
