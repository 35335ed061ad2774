"""Isometric representations [beshkov2022]: linked rings, a torus with nested labels, and MNIST under attack."""

import lisse.reporting  # noqa: F401 -- where matplotlib is missing, its error names the extra, before the work
