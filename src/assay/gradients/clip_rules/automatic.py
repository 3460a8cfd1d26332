"""Automatic clipping."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, ClassVar

from assay.errors import check_above_zero
from assay.gradients.clip_rules import ClipRule

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Automatic(ClipRule):
    """C · g/(‖g‖ + γ): every record is normalised, so there is no threshold to choose.

    Bu et al. 2022, "Automatic clipping: differentially private deep learning made easier and stronger",
    arXiv:2206.07136.
    """

    name: ClassVar[str] = "auto"

    bound: float = 1.0
    _: KW_ONLY
    gamma: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_above_zero("clip gamma", self.gamma)

    @property
    def l2(self) -> float:
        """C."""
        return self.bound

    def weights(self, norms: Tensor) -> Tensor:
        """C/(‖g‖ + γ)."""
        from assay.gradients.arithmetic import SHRINK, exact

        return exact((norms + self.gamma).reciprocal_().mul_(self.bound * SHRINK[norms.dtype]))


RULE = Automatic
