"""The training loss as a side query (`assay.mechanisms.types.SideQuery`), which is released with noise."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_LEVELS = 1 << 20
"""In how many whole parts of the bound a loss is counted. Sums of whole numbers are exact; those of float32 would let
one record of a million move a sum by a sixth more than the bound."""


class MeanLoss:
    """The training loss: Σ min(loss, bound) with noise, averaged over the steps since `reset`.

    Printing the loss itself would be a release without noise. This takes one percent of a step's privacy, and the
    gradient's noise grows by half a percent. Over an epoch of MNIST the average is still accurate to a hundredth.

    Attributes:
        last: What the last step released, which noise may take below 0.
    """

    def __init__(self, bound: float = 3.0, share: float = 0.01) -> None:
        self.bound, self.share = bound, share
        self.last = 0.0
        self._sum, self._steps = 0.0, 0

    @property
    def sensitivity(self) -> float:
        """The bound, in the units of `measure`."""
        return _LEVELS

    def measure(self, losses: Tensor, norms: Tensor) -> Tensor:  # noqa: ARG002
        """The sum of the losses, each clamped to [0, bound] and rounded to whole parts; NaN counts as the bound."""
        shares = losses.detach().float().nan_to_num(nan=self.bound).clamp(0.0, self.bound) / self.bound
        return shares.mul(_LEVELS).round().to(torch.int64).sum()

    def receive(self, noisy: float, expected_size: float) -> None:
        """Add one step's average."""
        self.last = noisy * self.bound / _LEVELS / expected_size
        self._sum += self.last
        self._steps += 1

    @property
    def value(self) -> float | None:
        """The average so far, at least 0; None before the first step."""
        return max(0.0, self._sum / self._steps) if self._steps else None

    def reset(self) -> None:
        """Begin a new average."""
        self._sum, self._steps = 0.0, 0

    def state(self) -> dict[str, Any]:
        """The running average; released values only."""
        return {"sum": self._sum, "steps": self._steps}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a running average."""
        self._sum, self._steps = float(state["sum"]), int(state["steps"])
