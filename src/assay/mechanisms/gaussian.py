"""The Gaussian mechanism."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from dp_accounting.dp_event import DpEvent, GaussianDpEvent, NonPrivateDpEvent

from assay.errors import ConfigError
from assay.mechanisms.types import Bounded, Private
from assay.randomness.streams import Stream, add_normal


@functools.lru_cache(maxsize=64)
def gaussian_event(multiplier: float) -> DpEvent:
    """The cost of noise with this multiplier; without noise, a release that is not private."""
    return GaussianDpEvent(multiplier) if multiplier > 0 else NonPrivateDpEvent()


@dataclass(frozen=True, kw_only=True)
class Gaussian:
    """Adds N(0, std²) to every coordinate, std = multiplier × reference.

    By default `reference` is the bound stated with the sum. A paper may scale its noise by something smaller than the
    true bound. Give that here: the event stays true, because its multiplier is std over the true bound.
    """

    multiplier: float
    reference: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.multiplier) and self.multiplier >= 0):
            raise ConfigError("noise_multiplier", self.multiplier, "a finite number, 0 or above")

    @property
    def white(self) -> bool:
        """Yes: one independent draw of the same scale for every coordinate."""
        return True

    def release(self, grads: Bounded, stream: Stream) -> Private:
        """The noisy sum. It costs a Gaussian event of multiplier std/l2, and is not private without noise."""
        std = self.multiplier * (grads.l2 if self.reference is None else self.reference)
        event = gaussian_event(std / grads.l2)
        add_normal(list(grads.total.values()), std, stream)
        return Private(grads.total, event, std)
