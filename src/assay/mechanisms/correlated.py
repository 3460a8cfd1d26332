"""Gaussian noise that is correlated from step to step: what all such mechanisms have in common."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.mechanisms.gaussian import gaussian_event
from assay.mechanisms.types import Bounded, Private
from assay.randomness.normal import add_vector

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from assay.randomness.streams import Stream


@dataclass(frozen=True, kw_only=True)
class Correlated(ABC):
    """Adds std · w_t in step t, with std = multiplier × bound and w = C⁻¹ z for independent standard normal z.

    C is a lower triangular Toeplitz matrix. The releases of all steps, g + std · C⁻¹ z, are a function of
    C g / std + z.

    A mechanism has a past: it serves one run, in the order of its steps. A run that resumes with fresh randomness makes
    a new one, whose rows are independent. `dataclasses.replace(mechanism)` is one without a past.
    """

    multiplier: float

    @property
    def white(self) -> bool:
        """Yes: within a step, one independent draw of the same scale for every coordinate."""
        return True

    def release(self, grads: Bounded, stream: Stream) -> Private:
        """The noisy sum, in the scale of this step's bound: Σ / l2 has sensitivity 1 in every step for any bound."""
        std = self.multiplier * grads.l2
        # sorted by name, so that the coordinates have the same order in all steps
        values = [grads.total[name] for name in sorted(grads.total)]
        if values and std:
            size = sum(value.numel() for value in values)
            fresh = stream.normal((size,), dtype=values[0].dtype, device=values[0].device)
            add_vector(values, std, self._next(fresh))
        return Private(grads.total, gaussian_event(std / grads.l2), std * math.sqrt(self._variance))

    def catch_up(self, size: int, streams: Sequence[Stream], *, dtype: torch.dtype, device: torch.device) -> None:
        """Draw the noise of earlier steps again, for a run with a seed that is resumed.

        Args:
            size: How many coordinates a step has.
            streams: The streams of the earlier steps, in order.
            dtype: The type of the sums.
            device: Where the sums are.
        """
        for stream in streams:
            self._next(stream.normal((size,), dtype=dtype, device=device))

    @property
    @abstractmethod
    def _variance(self) -> float:
        """That of a coordinate of the latest w; before the first step, of the first."""

    @abstractmethod
    def _next(self, fresh: Tensor) -> Tensor:
        """w_t from z_t, and the steps before."""


def check_same(before: Tensor, fresh: Tensor) -> None:
    """Refuse a step with other coordinates than the one before."""
    if before.shape != fresh.shape:
        raise AssertionError(f"{fresh.shape} coordinates in this step, {before.shape} in the one before")
