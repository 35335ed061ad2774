"""Where a model can be read: taps, and the only hooks in the project.

``find(model, example)`` discovers the layers along depth; ``tapped(model, taps, on)`` reads (or replaces) activations
while the model runs; ``still(model, …)`` makes a forward that leaves no trace on the model.
"""

from lisse.taps.discovery import Skipped, Taps, find
from lisse.taps.stillness import attention_weights, model_device, plain, reseed, still
from lisse.taps.tap import Tap, feed, prepared, tapped

__all__ = [
    "Skipped",
    "Tap",
    "Taps",
    "attention_weights",
    "feed",
    "find",
    "model_device",
    "plain",
    "prepared",
    "reseed",
    "still",
    "tapped",
]
