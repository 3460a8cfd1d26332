"""Shuffled epochs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from dp_accounting.dp_event import DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

from assay._util.lazy import torch
from assay.data.samplers import Sampler

if TYPE_CHECKING:
    from torch import Tensor

    from assay.randomness.streams import Randomness


@dataclass(frozen=True)
class Shuffled(Sampler):
    """Every record is in one random batch of each epoch. Charged without amplification.

    Each record draws its batch independently of the others, so batch sizes vary around the expected one. One record
    changes one batch per epoch and no other. So under add-or-remove-one an epoch costs exactly one release, whatever
    the number of its batches. Shuffling is not Poisson sampling, so its amplification does not apply: accounting
    shuffled batches as Poisson batches understates ε.
    """

    name: ClassVar[str] = "shuffle"
    by_epoch: ClassVar[bool] = True
    _drawn: dict[tuple[Randomness, int], Tensor] = field(default_factory=dict, repr=False, compare=False)

    @property
    def rate(self) -> float:
        """One divided by the number of batches in an epoch."""
        return 1 / self.epoch_steps

    @property
    def epoch_steps(self) -> int:
        """The number of batches in an epoch."""
        return max(1, round(self.records / self.expected_size))

    def draw(self, step: int, randomness: Randomness) -> Tensor:
        """The records that drew this batch in this epoch."""
        epoch, batch = divmod(step, self.epoch_steps)
        key = (randomness, epoch)
        if key not in self._drawn:  # once per epoch: a source that cannot repeat itself would draw other batches
            self._drawn.clear()
            self._drawn[key] = randomness.stream("shuffle", epoch).integers(self.epoch_steps, self.records)
        return torch.nonzero(self._drawn[key] == batch).flatten()

    def compose(self, event: DpEvent, steps: int) -> DpEvent:
        """One release for every epoch that has begun: parallel composition over the batches of an epoch."""
        return SelfComposedDpEvent(event, math.ceil(steps / self.epoch_steps))

    def at_least(self, event: GaussianDpEvent, steps: int) -> DpEvent:
        """The sum of an epoch's releases, with the record once and the noise of every batch; else the first step."""
        epochs = steps // self.epoch_steps
        if not epochs:
            return PoissonSampledDpEvent(self.rate, event)
        return SelfComposedDpEvent(GaussianDpEvent(event.noise_multiplier * math.sqrt(self.epoch_steps)), epochs)

    def describe(self) -> str:
        """A sentence for the statement."""
        return (
            f"shuffled epochs of {self.epoch_steps} batches, each record in one of them; "
            "no amplification by sampling is claimed"
        )


SAMPLER = Shuffled
