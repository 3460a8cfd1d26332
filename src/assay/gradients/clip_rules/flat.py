"""Flat clipping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from assay.gradients.clip_rules import ClipRule

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Flat(ClipRule):
    """g · min(1, C/‖g‖) over all parameters together.

    Abadi et al. 2016, "Deep learning with differential privacy", arXiv:1607.00133.
    """

    name: ClassVar[str] = "flat"

    bound: float = 1.0

    @property
    def l2(self) -> float:
        """C."""
        return self.bound

    def weights(self, norms: Tensor) -> Tensor:
        """min(1, C/‖g‖)."""
        from assay.gradients.arithmetic import at_most

        return at_most(self.bound, norms)


RULE = Flat
