"""On the regularity of attention [vuckovic2021]: negation and W1, τ against its bounds, inversion and depth."""
