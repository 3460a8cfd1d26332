"""A bound that is assumed and not enforced."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from assay._util.lazy import torch
from assay.gradients.clip_rules import ClipRule

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Assumed(ClipRule):
    """Nothing is clipped: the gradients are assumed to be within G. No finite ε follows from that.

    This is for published algorithms that assume a Lipschitz constant. Their noise is relative to G.
    """

    name: ClassVar[str] = "assumed"

    bound: float = 1.0

    @property
    def l2(self) -> float:
        """∞: no bound holds."""
        return math.inf

    @property
    def assumed(self) -> float:
        """G."""
        return self.bound

    def weights(self, norms: Tensor) -> Tensor:
        """1 for every record."""
        return torch.ones_like(norms)


RULE = Assumed
