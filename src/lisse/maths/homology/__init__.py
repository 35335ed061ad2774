"""Persistent homology of point clouds: diagrams, distances between them, and what is read off them."""

from .alpha import cech_persistence
from .critical import (
    CriticalEdges,
    Cycle,
    critical_edges,
    differentiable_persistence,
    representative_cycles,
)
from .diagram import Diagram
from .matching import diagram_distance
from .metric import distance_matrix
from .rips import persistence
from .sampling import covering, landmarks
from .spanning import SpanningTree, spanning_tree
from .summaries import betti_curve, landscape, persistence_entropy, total_persistence

__all__ = [
    "CriticalEdges",
    "Cycle",
    "Diagram",
    "SpanningTree",
    "betti_curve",
    "cech_persistence",
    "covering",
    "critical_edges",
    "diagram_distance",
    "differentiable_persistence",
    "distance_matrix",
    "landmarks",
    "landscape",
    "persistence",
    "persistence_entropy",
    "representative_cycles",
    "spanning_tree",
    "total_persistence",
]
