"""DP-LSAdam: the smoothed private gradient of DP-LSSGD given to Adam, before its moments. Same guarantee as DP-LSSGD."""

from __future__ import annotations

from assay.methods.lssgd import Smoothed

METHOD = Smoothed(
    name="lsadam",
    summary="DP-LSAdam: Laplacian smoothing of the noisy gradient, then Adam",
    optimizer="adam",
    claim="moments",
)
