"""One file per measurement. ``ALL`` is what the command line offers."""

from lisse.instruments.contraction import Contraction
from lisse.instruments.isometry import Isometry
from lisse.instruments.propagation import Propagation
from lisse.instruments.robustness import Robustness
from lisse.instruments.sensitivity import Sensitivity
from lisse.instruments.stability import Stability
from lisse.instruments.topology import Topology
from lisse.run import Instrument

ALL: tuple[type[Instrument], ...] = (Contraction, Isometry, Propagation, Robustness, Sensitivity, Stability, Topology)

__all__ = ["ALL", "Contraction", "Isometry", "Propagation", "Robustness", "Sensitivity", "Stability", "Topology"]
