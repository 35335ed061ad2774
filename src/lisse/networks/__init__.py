"""Networks and what acts on them: layers, losses, attacks, bounds on real weights, and the zoo of architectures."""
