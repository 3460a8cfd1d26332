"""Flat clipping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from assay.gradients.clip_rules import at_most, check_bound
from assay.mechanisms.types import ClipRule


@dataclass(frozen=True)
class Flat(ClipRule):
    """g · min(1, C/‖g‖) over all parameters together.

    Abadi et al. 2016, "Deep learning with differential privacy", arXiv:1607.00133.
    """

    name: ClassVar[str] = "flat"

    bound: float = 1.0

    def __post_init__(self) -> None:
        check_bound(self.bound)

    @property
    def l2(self) -> float:
        """C."""
        return self.bound

    def weights(self, norms: Tensor) -> Tensor:
        """min(1, C/‖g‖)."""
        return at_most(self.bound, norms)


RULE = Flat
