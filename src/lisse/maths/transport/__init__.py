"""Measures and the Wasserstein distances between them: exact, and batched."""

from lisse.maths.transport.batch import wasserstein_batch
from lisse.maths.transport.exact import Plan, plan_of_cost, transport_plan, wasserstein, wasserstein_infinity
from lisse.maths.transport.measure import Measure
from lisse.moved import moved_names

__all__ = [
    "Measure",
    "Plan",
    "plan_of_cost",
    "transport_plan",
    "wasserstein",
    "wasserstein_batch",
    "wasserstein_infinity",
]

__getattr__ = moved_names(__name__)
