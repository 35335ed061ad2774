"""Persistent homology of point clouds: diagrams, and distances between them."""

from lisse.moved import moved_names

from .diagram import Diagram
from .matching import diagram_distance
from .metric import distance_matrix
from .rips import covering, landmarks, persistence
from .spanning import SpanningTree, spanning_tree

__all__ = [
    "Diagram",
    "SpanningTree",
    "covering",
    "diagram_distance",
    "distance_matrix",
    "landmarks",
    "persistence",
    "spanning_tree",
]

__getattr__ = moved_names(__name__)
