"""The atlas: every network that was measured, a row each, on one page."""

from lisse.reporting.atlas.document import atlas
from lisse.reporting.atlas.rows import AtlasRow, atlas_row, atlas_rows, load_atlas, save_atlas

__all__ = ["AtlasRow", "atlas", "atlas_row", "atlas_rows", "load_atlas", "save_atlas"]
