"""Datasets: embedded, local files, checked downloads. ``load_data("digits")`` is the door; ``lisse data`` lists all."""

from lisse.data.augmentation import crop_flip
from lisse.data.conversion import as_dataset
from lisse.data.corrupted import frost_textures
from lisse.data.dataset import Batch, Dataset, Drawn
from lisse.data.sources import load_data

__all__ = ["Batch", "Dataset", "Drawn", "as_dataset", "crop_flip", "frost_textures", "load_data"]
