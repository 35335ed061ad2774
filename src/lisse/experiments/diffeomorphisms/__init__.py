"""Relative stability toward diffeomorphisms [petrini2021]: R_f against the test error, the training set and depth."""
