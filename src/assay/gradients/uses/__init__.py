"""Norms and weighted sums of per-record gradients, one file a shape of use."""
