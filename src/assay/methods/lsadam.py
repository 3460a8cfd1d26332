"""DP-LSAdam: Adam on the smoothed private gradient of DP-LSSGD, with the same guarantee."""

from __future__ import annotations

from assay.methods.lssgd import Smoothed

METHOD = Smoothed(
    name="lsadam",
    summary="DP-LSAdam: Laplacian smoothing of the noisy gradient, then Adam",
    optimizer="adam",
    claim="moments",
)
