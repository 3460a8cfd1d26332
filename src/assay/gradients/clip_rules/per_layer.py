"""Clipping layer by layer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from assay.gradients.clip_rules import ClipRule

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class PerLayer(ClipRule):
    """Each of L layers is clipped at C/√L, so that the whole gradient is bounded by C = √(Σ C_l²)."""

    name: ClassVar[str] = "per-layer"

    bound: float = 1.0

    @property
    def l2(self) -> float:
        """C, over all layers together."""
        return self.bound

    def groups(self, layers: list[str]) -> list[int]:
        """One group for each layer."""
        return list(range(len(layers)))

    def weights(self, norms: Tensor) -> Tensor:
        """min(1, C_l/‖g_l‖) for each layer."""
        from assay.gradients.arithmetic import at_most

        return at_most(self.bound / math.sqrt(norms.shape[1]), norms)


RULE = PerLayer
