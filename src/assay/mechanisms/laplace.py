"""The Laplace mechanism."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dp_accounting.dp_event import DpEvent, LaplaceDpEvent, NonPrivateDpEvent

from assay.errors import ConfigError
from assay.mechanisms.types import Bounded, Private
from assay.randomness.normal import add_drawn

if TYPE_CHECKING:
    from assay.randomness.streams import Stream


@dataclass(frozen=True, kw_only=True)
class Laplace:
    """Adds Laplace noise of scale multiplier × l1, where l1 = √d · l2 bounds what one record moves d coordinates by.

    The event is that of one coordinate moved by the whole l1. It dominates every other way to spread l1 over
    coordinates. The trade-off functions of log-concave noise form a semigroup under shifts. So the chain of
    single-coordinate moves (group privacy) reaches exactly the trade-off function of the one large move.
    """

    multiplier: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.multiplier) and self.multiplier >= 0):
            raise ConfigError("noise_multiplier", self.multiplier, "a finite number, 0 or above")

    @property
    def white(self) -> bool:
        """Yes: one independent draw of the same scale for every coordinate."""
        return True

    def release(self, grads: Bounded, stream: Stream) -> Private:
        """The noisy sum. It costs a Laplace event of this multiplier, and is not private without noise."""
        coordinates = sum(v.numel() for v in grads.total.values())
        scale = self.multiplier * grads.l2 * math.sqrt(coordinates)
        event: DpEvent = LaplaceDpEvent(self.multiplier) if self.multiplier > 0 else NonPrivateDpEvent()
        if scale:
            add_drawn(list(grads.total.values()), scale, stream.laplace)
        return Private(grads.total, event, scale * math.sqrt(2))
