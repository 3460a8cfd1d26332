"""The Gaussian mechanism."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from dp_accounting.dp_event import DpEvent, GaussianDpEvent, NonPrivateDpEvent

from assay.errors import ConfigError
from assay.mechanisms.types import Bounded, Private
from assay.randomness.normal import add_normal
from assay.randomness.streams import Stream


@functools.lru_cache(maxsize=64)
def gaussian_event(multiplier: float) -> DpEvent:
    """What noise of this multiplier costs: everything, if there is none."""
    return GaussianDpEvent(multiplier) if multiplier > 0 else NonPrivateDpEvent()


@dataclass(frozen=True, kw_only=True)
class Gaussian:
    """Adds N(0, std²) to every coordinate, std = multiplier × reference.

    `reference` is the bound stated with the sum unless given. A method that publishes noise relative to something
    smaller than the true bound gives that here, and the event still tells the truth: its multiplier is std over the
    true bound.
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
        """The noisy sum; costs a Gaussian event of multiplier std/l2, or everything if there is no noise."""
        std = self.multiplier * (grads.l2 if self.reference is None else self.reference)
        event = gaussian_event(std / grads.l2)
        add_normal(list(grads.total.values()), std, stream)
        return Private(grads.total, event, std)
