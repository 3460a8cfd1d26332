"""Poisson sampling with a cap on the size of batches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from dp_accounting.dp_event import DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

from assay._util.figures import at_most
from assay._util.lazy import torch
from assay.accounting.accountants.truncated import TruncatedPoissonDpEvent
from assay.accounting.truncation import chance_of_truncation
from assay.data.samplers import Sampler
from assay.data.samplers.poisson import Poisson

if TYPE_CHECKING:
    from torch import Tensor

    from assay.randomness.streams import Randomness

_RARE = 1e-10  # how often a batch may reach the cap: so rarely that ε does not show it
_MULTIPLE = 8  # what accelerators like


@dataclass(frozen=True)
class TruncatedPoisson(Sampler):
    """Each record enters each batch with probability q, by its own coin; a batch never has more than `cap` records.

    The cap follows from the public number of records and the expected size: a multiple of 8 that a batch reaches with
    probability at most 1e-10. Memory and shapes can rely on it. That it is reached is charged
    (`assay.accounting.truncation` has the proof), so ε is a little above that of `poisson`.
    """

    name: ClassVar[str] = "truncated-poisson"
    independent: ClassVar[bool] = False
    claimed_as: ClassVar[type[Sampler] | None] = Poisson

    @cached_property
    def cap(self) -> int:
        """The largest batch."""
        from scipy.stats import binom

        least = int(binom.isf(_RARE, self.records, self.rate)) + 1
        while chance_of_truncation(self.records, self.rate, least) > _RARE and least < self.records:
            least += 1
        return min(-(-least // _MULTIPLE) * _MULTIPLE, self.records)

    def draw(self, step: int, randomness: Randomness) -> Tensor:
        """The records whose uniform number is below q; of more than `cap`, those with the smallest numbers."""
        drawn = randomness.stream("sample", step).uniform(self.records)
        batch = torch.nonzero(drawn < self.rate).flatten()
        if len(batch) <= self.cap:
            return batch
        return batch[drawn[batch].argsort(stable=True)[: self.cap]].sort().values

    def compose(self, event: DpEvent, steps: int) -> DpEvent:
        """A release from a truncated sample per step."""
        return SelfComposedDpEvent(TruncatedPoissonDpEvent(self.records, self.rate, self.cap, event), steps)

    def at_least(self, event: GaussianDpEvent, steps: int) -> DpEvent:
        """Among records that contribute nothing: Poisson sampling, in the steps where nothing is cut."""
        kept = 1 - chance_of_truncation(self.records, self.rate, self.cap)
        return SelfComposedDpEvent(PoissonSampledDpEvent(self.rate * kept, event), steps)

    def describe(self) -> str:
        """A sentence for the statement."""
        return (
            f"truncated Poisson sampling: each record enters each step's batch independently with probability "
            f"{at_most(self.rate)}; a batch keeps at most {self.cap} records, which is charged"
        )


SAMPLER = TruncatedPoisson
