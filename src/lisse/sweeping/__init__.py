"""Many networks: plans of models × data × instruments × seeds, measured by many processes; rows measured again."""

from lisse.sweeping.driver import sweep
from lisse.sweeping.plan import SweepPlan, plan_of
from lisse.sweeping.table import SweepTable
from lisse.sweeping.unit import RecipeRun, Unit, UnitOutcome

__all__ = ["RecipeRun", "SweepPlan", "SweepTable", "Unit", "UnitOutcome", "plan_of", "sweep"]
