"""Training: one loop on Lightning Fabric that loses nothing. :func:`train` is the door."""

from lisse.training.heads import with_classes
from lisse.training.penalty import Penalty, penalty_of
from lisse.training.plan import Lesson
from lisse.training.recipes import RECIPES, Recipe
from lisse.training.result import Callback, Log, Moment, Score, Training
from lisse.training.start import train

__all__ = [
    "RECIPES",
    "Callback",
    "Lesson",
    "Log",
    "Moment",
    "Penalty",
    "Recipe",
    "Score",
    "Training",
    "penalty_of",
    "train",
    "with_classes",
]
