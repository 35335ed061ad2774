"""Locally isometric networks: the loss that keeps distances within classes, and networks trained with it."""

from lisse.moved import moved_names
from lisse.networks.isometric.loss import isometric_loss, partition
from lisse.networks.isometric.network import IsometricLoss, LocallyIsometric, StackedIsometric, fit
from lisse.networks.isometric.penalty import Isometrically, IsometricTerm

__all__ = [
    "IsometricLoss",
    "IsometricTerm",
    "Isometrically",
    "LocallyIsometric",
    "StackedIsometric",
    "fit",
    "isometric_loss",
    "partition",
]

__getattr__ = moved_names(__name__)
