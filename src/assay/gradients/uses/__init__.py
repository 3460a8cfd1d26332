"""Norms and weighted sums of per-record gradients, one file for each way in which a layer uses its parameters."""
