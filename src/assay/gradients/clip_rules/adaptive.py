"""Adaptive clipping."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from assay.errors import ConfigError, check_above_zero
from assay.gradients.clip_rules import ClipRule, check_bound
from assay.mechanisms.types import SideQuery

if TYPE_CHECKING:
    from torch import Tensor

_LEAST = 1e-15  # the bound stays between this and its inverse, far from 0 and ∞ in float32


@dataclass
class AdaptiveQuantile(ClipRule):
    """A bound that follows a quantile of the norms.

    Andrew et al. 2021, "Differentially private learning with adaptive clipping", arXiv:1905.03871. Each step also
    releases how many records lay below the bound: Σ (1[‖g‖ ≤ C] - ½), which one record moves by ½. That count is a side
    query of the step (`assay.mechanisms.types.SideQuery`): it gets noise, and takes `share` of the step's privacy. The
    bound moves by C ← C · exp(-rate · (fraction - quantile)), a function of released values only.
    """

    name: ClassVar[str] = "adaptive"

    bound: float = 1.0
    _: KW_ONLY
    quantile: float = 0.5
    rate: float = 0.2
    share: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_above_zero("clip rate", self.rate)
        for name in ("quantile", "share"):
            value = getattr(self, name)
            if not 0 < value < 1:
                raise ConfigError(f"clip {name}", value, "a number between 0 and 1, both excluded")
        self._start = self.bound

    @property
    def l2(self) -> float:
        """The bound in force."""
        return self.bound

    @property
    def queries(self) -> tuple[SideQuery, ...]:
        """The count, which the rule itself measures."""
        return (self,)

    def settings(self) -> dict[str, float]:
        """The settings with the first bound."""
        return super().settings() | {"bound": self._start}

    @property
    def sensitivity(self) -> float:
        """What one record moves the count by."""
        return 0.5

    def weights(self, norms: Tensor) -> Tensor:
        """min(1, C/‖g‖) at the bound in force."""
        from assay.gradients.arithmetic import at_most

        return at_most(self.bound, norms)

    def measure(self, losses: Tensor, norms: Tensor) -> Tensor:  # noqa: ARG002
        """Σ (1[‖g‖ ≤ C] - ½)."""
        return ((norms[:, 0] <= self.bound).float() - 0.5).sum()  # exact: halves, far below 2²³

    def receive(self, noisy: float, expected_size: float) -> None:
        """Move the bound by the released count; one step moves it by at most a factor e^rate."""
        fraction = min(1.0, max(0.0, noisy / expected_size + 0.5))
        moved = self.bound * math.exp(-self.rate * (fraction - self.quantile))
        self.bound = min(max(moved, _LEAST), 1 / _LEAST)

    def state(self) -> dict[str, Any]:
        """The bound in force."""
        return {"bound": self.bound}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the bound."""
        check_bound(state["bound"])
        self.bound = float(state["bound"])


RULE = AdaptiveQuantile
