"""DP-LSAdam: Adam on the smoothed private gradient of DP-LSSGD, with the same guarantee."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from assay.methods.lssgd import Smoothed


@dataclass(frozen=True, kw_only=True)
class SmoothedAdam(Smoothed):
    """Adam with Laplacian smoothing. The code that the variant `authors` follows has no Adam."""

    VARIANTS: ClassVar[tuple[str, ...]] = ("sound", "published")


METHOD = SmoothedAdam(
    name="lsadam",
    summary="DP-LSAdam: Laplacian smoothing of the noisy gradient, then Adam",
    optimizer="adam",
    claim="moments",
)
