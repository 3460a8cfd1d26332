"""Poisson sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dp_accounting.dp_event import DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

from assay._util.figures import at_most
from assay.data.samplers import Sampler
from assay.data.samplers.cyclic import Cyclic

if TYPE_CHECKING:
    from torch import Tensor

    from assay.randomness.streams import Randomness


@dataclass(frozen=True)
class Poisson(Sampler):
    """Each record enters each batch independently with probability q = expected size / records."""

    name: ClassVar[str] = "poisson"
    together: ClassVar[bool] = True
    tight: ClassVar[bool] = True

    def draw(self, step: int, randomness: Randomness) -> Tensor:
        """Independent coin flips. A batch may be empty."""
        return (randomness.stream("sample", step).uniform(self.records) < self.rate).nonzero().flatten()

    def compose(self, event: DpEvent, steps: int) -> DpEvent:
        """A Poisson-sampled release per step."""
        return SelfComposedDpEvent(PoissonSampledDpEvent(self.rate, event), steps)

    def at_least(self, event: GaussianDpEvent, steps: int) -> DpEvent:
        """The same: the cost is exact."""
        return self.compose(event, steps)

    @classmethod
    def in_bands(cls, records: int, expected_size: float, bands: int, *, amplified: bool = True) -> Sampler:
        """Cyclic Poisson sampling."""
        return Cyclic(records, expected_size, bands, amplified)

    def describe(self) -> str:
        """A sentence for the statement."""
        rate = at_most(self.rate)
        return f"Poisson sampling: each record enters each step's batch independently with probability {rate}"


SAMPLER = Poisson
