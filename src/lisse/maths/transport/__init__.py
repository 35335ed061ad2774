"""Measures and the Wasserstein distances between them: exact, batched, and named estimates."""

from lisse.maths.transport.batch import wasserstein_batch
from lisse.maths.transport.estimates import (
    Entropic,
    Sliced,
    Unbalanced,
    entropic_wasserstein,
    sliced_wasserstein,
    unbalanced_transport,
)
from lisse.maths.transport.exact import Plan, plan_of_cost, transport_plan, wasserstein
from lisse.maths.transport.measure import Measure

__all__ = [
    "Entropic",
    "Measure",
    "Plan",
    "Sliced",
    "Unbalanced",
    "entropic_wasserstein",
    "plan_of_cost",
    "sliced_wasserstein",
    "transport_plan",
    "unbalanced_transport",
    "wasserstein",
    "wasserstein_batch",
]
