"""Shuffled epochs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from dp_accounting.dp_event import DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

from assay._util.lazy import torch
from assay.accounting.accountants.allocated import RandomAllocationDpEvent
from assay.accounting.adjacency import Adjacency
from assay.data.samplers import Sampler, once_each

if TYPE_CHECKING:
    from torch import Tensor

    from assay.randomness.streams import Randomness


@dataclass(frozen=True)
class Shuffled(Sampler):
    """Every record once an epoch, in a random one of the epoch's batches: random allocation, or balls and bins.

    Each record draws its batch independently of the others, so batch sizes vary around the expected one. That is what
    makes it private beyond one release per epoch where a record is added or removed (`assay.accounting.allocation`). An
    epoch that was begun is charged whole. Where a record is replaced, no amplification is claimed.

    Nor is it for k records together. Let n_1, …, n_b of them be in the epoch's batches, Σ n_i = k. They move the
    epoch's sums by at most √(Σ n_i²) ≤ k times the bound: one release per epoch with the noise multiplier divided by k.

    A stock DataLoader with `shuffle=True` does something else, a permutation cut into batches of one size:
    `permutation`.
    """

    name: ClassVar[str] = "shuffle"
    together: ClassVar[bool] = True
    by_epoch: ClassVar[bool] = True
    tight: ClassVar[bool] = True
    shown_under: ClassVar[Adjacency | None] = Adjacency.ADD_OR_REMOVE_ONE
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
        """Random allocation, once for every epoch begun."""
        epochs = math.ceil(steps / self.epoch_steps)
        return SelfComposedDpEvent(RandomAllocationDpEvent(self.epoch_steps, event), epochs)

    def composed_before(self, event: DpEvent, steps: int) -> DpEvent:
        """Versions before random allocation was accounted for charged one release per epoch begun."""
        return SelfComposedDpEvent(event, math.ceil(steps / self.epoch_steps))

    def at_least(self, event: GaussianDpEvent, steps: int) -> DpEvent:
        """The whole epochs; of less than an epoch the first step."""
        epochs = steps // self.epoch_steps
        if not epochs:
            return PoissonSampledDpEvent(self.rate, event)
        return SelfComposedDpEvent(RandomAllocationDpEvent(self.epoch_steps, event), epochs)

    def log_ratio(self, terms: Tensor) -> Tensor:
        """One batch of every epoch, each as likely."""
        return once_each(terms, self.epoch_steps)

    def describe(self) -> str:
        """A sentence for the statement."""
        return f"shuffled epochs of {self.epoch_steps} batches: each record enters one of them, drawn independently"


SAMPLER = Shuffled
