"""Relative stability toward diffeomorphisms [petrini2021]: R_f against the test error, the training set and depth."""

import lisse.reporting  # noqa: F401 -- where matplotlib is missing, its error names the extra, before hours of work
