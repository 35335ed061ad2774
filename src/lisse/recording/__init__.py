"""record(): model + batches -> activations, layer by layer, in bounded memory."""

from lisse.recording.recorder import Recording, batch_seed, batches_of, record, recorded
from lisse.recording.store import Store, budgets, parse_bytes

__all__ = ["Recording", "Store", "batch_seed", "batches_of", "budgets", "parse_bytes", "record", "recorded"]
