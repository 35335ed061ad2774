"""The atlas: every network that was measured, a row each, on one page."""

from lisse.reporting.atlas.document import atlas
from lisse.reporting.atlas.rows import (
    AtlasRow,
    atlas_row,
    atlas_rows,
    headline_words,
    load_atlas,
    measured_by,
    row_profile,
    save_atlas,
)
from lisse.reporting.atlas.worth import outcomes, worths

__all__ = [
    "AtlasRow",
    "atlas",
    "atlas_row",
    "atlas_rows",
    "headline_words",
    "load_atlas",
    "measured_by",
    "outcomes",
    "row_profile",
    "save_atlas",
    "worths",
]
