"""Samplers: true permutations, as a DataLoader with `shuffle=True` has them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from dp_accounting.dp_event import DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

from assay.data.samplers import Sampler, once_each
from assay.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from assay.randomness.streams import Randomness


@dataclass(frozen=True)
class Permuted(Sampler):
    """A random order of all records for every epoch, cut into batches of one size; the last may be smaller.

    Charged without amplification: no bound is proven that would be smaller. Defined for replace-one adjacency, because
    one record more would move others between batches. A record is in one batch per epoch, so an epoch costs one
    release.
    """

    name: ClassVar[str] = "permutation"
    by_epoch: ClassVar[bool] = True
    replaces: ClassVar[bool] = True
    independent: ClassVar[bool] = False
    _drawn: dict[tuple[Randomness, int], Tensor] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.expected_size != int(self.expected_size):
            raise ConfigError("batch_size", self.expected_size, "a whole number for batches of fixed size")

    @property
    def rate(self) -> float:
        """1 / batches in an epoch."""
        return 1 / self.epoch_steps

    @property
    def epoch_steps(self) -> int:
        """Batches in an epoch."""
        return math.ceil(self.records / self.expected_size)

    def draw(self, step: int, randomness: Randomness) -> Tensor:
        """The records at this batch's places in the epoch's order: that of independent uniform numbers."""
        epoch, batch = divmod(step, self.epoch_steps)
        key = (randomness, epoch)
        if key not in self._drawn:  # once an epoch, as in `shuffle`
            self._drawn.clear()
            self._drawn[key] = randomness.stream("permutation", epoch).uniform(self.records).argsort(stable=True)
        size = int(self.expected_size)
        return self._drawn[key][batch * size : (batch + 1) * size]

    def compose(self, event: DpEvent, steps: int) -> DpEvent:
        """One release per epoch begun: the batches of an epoch share no record."""
        return SelfComposedDpEvent(event, math.ceil(steps / self.epoch_steps))

    def at_least(self, event: GaussianDpEvent, steps: int) -> DpEvent:
        """The sum of an epoch's releases, with the record once and the noise of every batch; else the first step."""
        if steps < self.epoch_steps:
            return PoissonSampledDpEvent(self.rate, event)
        whole = GaussianDpEvent(event.noise_multiplier * math.sqrt(self.epoch_steps))
        return SelfComposedDpEvent(whole, steps // self.epoch_steps)

    def log_ratio(self, terms: Tensor) -> Tensor:
        """One batch of every epoch, each as likely."""
        return once_each(terms, self.epoch_steps)

    def describe(self) -> str:
        """A sentence for the statement."""
        return (
            f"random permutations cut into {self.epoch_steps} batches an epoch, each record in one of them; no "
            "amplification by sampling is claimed"
        )


SAMPLER = Permuted
