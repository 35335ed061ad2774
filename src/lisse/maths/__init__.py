"""Tensors in, tensors out: the mathematics, which knows no network, no file and no plot."""
