"""Training: one loop on Lightning Fabric that loses nothing. :func:`train` is the door."""

from lisse.training.heads import with_classes
from lisse.training.moment import Callback, Moment
from lisse.training.penalty import Penalty
from lisse.training.recipes import RECIPES, Recipe
from lisse.training.result import Log, Score, Training
from lisse.training.start import train

__all__ = [
    "RECIPES",
    "Callback",
    "Log",
    "Moment",
    "Penalty",
    "Recipe",
    "Score",
    "Training",
    "train",
    "with_classes",
]
