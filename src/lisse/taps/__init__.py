"""Where a model can be read: taps, and the only hooks in the project.

``find(model, example)`` discovers the layers along depth; ``tapped(model, taps, on)`` reads (or replaces) activations
while the model runs; ``still(model, …)`` makes a forward that leaves no trace on the model.
"""

from lisse.taps.attending import AttentionCall, attending
from lisse.taps.discovery import Skipped, Taps, find
from lisse.taps.shortage import is_shortage
from lisse.taps.stillness import (
    attention_weights,
    is_dispatched,
    model_device,
    modes_restored,
    placed_on,
    plain,
    reseed,
    still,
    tracking_norms,
    unseen_norms,
)
from lisse.taps.tap import Tap, feed, prepared, tapped

__all__ = [
    "AttentionCall",
    "Skipped",
    "Tap",
    "Taps",
    "attending",
    "attention_weights",
    "feed",
    "find",
    "is_dispatched",
    "is_shortage",
    "model_device",
    "modes_restored",
    "placed_on",
    "plain",
    "prepared",
    "reseed",
    "still",
    "tapped",
    "tracking_norms",
    "unseen_norms",
]
