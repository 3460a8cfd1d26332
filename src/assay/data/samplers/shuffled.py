"""Samplers: shuffled epochs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from dp_accounting.dp_event import DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from torch import Tensor

from assay.data.samplers import Sampler
from assay.randomness.streams import Randomness


@dataclass(frozen=True)
class Shuffled(Sampler):
    """Every record once an epoch, in a random one of the epoch's batches. Charged without amplification.

    Each record draws its batch independently of the others (so batch sizes vary around the expected one), and one
    record changes one batch an epoch and no other: under add-or-remove-one an epoch costs exactly one release, whatever
    the number of its batches. Amplification by shuffling is not claimed: accounting shuffled batches as Poisson ones
    understates ε. Of k records n_1, …, n_b are in the epoch's batches, Σ n_i = k: together they move the epoch's sums by at most
    √(Σ n_i²) ≤ k times the bound.
    """

    name: ClassVar[str] = "shuffle"
    together: ClassVar[bool] = True
    by_epoch: ClassVar[bool] = True
    _drawn: dict[tuple[Randomness, int], Tensor] = field(default_factory=dict, repr=False, compare=False)

    @property
    def rate(self) -> float:
        """1 / batches in an epoch."""
        return 1 / self.epoch_steps

    @property
    def epoch_steps(self) -> int:
        """Batches in an epoch."""
        return max(1, round(self.records / self.expected_size))

    def draw(self, step: int, randomness: Randomness) -> Tensor:
        """The records that drew this batch in this epoch."""
        epoch, batch = divmod(step, self.epoch_steps)
        key = (randomness, epoch)
        if (
            key not in self._drawn
        ):  # once an epoch: a source that cannot repeat itself must not deal the records out again for every batch
            self._drawn.clear()
            self._drawn[key] = randomness.stream("shuffle", epoch).integers(self.epoch_steps, self.records)
        return torch.nonzero(self._drawn[key] == batch).flatten()

    def compose(self, event: DpEvent, steps: int) -> DpEvent:
        """One release an epoch begun (parallel composition over the batches of an epoch)."""
        return SelfComposedDpEvent(event, math.ceil(steps / self.epoch_steps))

    def at_least(self, event: GaussianDpEvent, steps: int) -> DpEvent:
        """The sum over all releases of an epoch, which has the record once and the noise of every batch; of less than an epoch the first step."""
        epochs = steps // self.epoch_steps
        if not epochs:
            return PoissonSampledDpEvent(self.rate, event)
        return SelfComposedDpEvent(GaussianDpEvent(event.noise_multiplier * math.sqrt(self.epoch_steps)), epochs)

    def describe(self) -> str:
        """For the statement."""
        return f"shuffled epochs of {self.epoch_steps} batches, each record in one of them; no amplification by sampling is claimed"


SAMPLER = Shuffled
