"""Batches of fixed size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from dp_accounting.dp_event import (
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)

from assay._util.lazy import torch
from assay.accounting.adjacency import Adjacency
from assay.data.samplers import Sampler
from assay.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from assay.randomness.streams import Randomness


@dataclass(frozen=True)
class WithoutReplacement(Sampler):
    """Each step uses a uniformly random subset of exactly `expected_size` records.

    It is defined for replace-one adjacency, where the number of records is fixed.
    """

    name: ClassVar[str] = "without-replacement"
    tight: ClassVar[bool] = True
    replaces: ClassVar[bool] = True
    independent: ClassVar[bool] = False
    shown_under: ClassVar[Adjacency | None] = Adjacency.ADD_OR_REMOVE_ONE

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.expected_size != int(self.expected_size):
            raise ConfigError("batch_size", self.expected_size, "a whole number for batches of fixed size")

    def draw(self, step: int, randomness: Randomness) -> Tensor:
        """The records with the b smallest of N independent uniform numbers.

        Where b is much smaller than N, it is the first b different ones of a sequence of uniformly drawn records. That
        is a uniform subset too, and does not touch all N records.
        """
        stream, size = randomness.stream("sample", step), int(self.expected_size)
        if 8 * size > self.records:
            return stream.uniform(self.records).topk(size, largest=False).indices
        drawn = stream.integers(self.records, 2 * size).numpy()
        while True:
            first = np.unique(drawn, return_index=True)[1]
            if len(first) >= size:
                return torch.from_numpy(drawn[np.sort(first)[:size]])
            drawn = np.concatenate([drawn, stream.integers(self.records, size).numpy()])

    def compose(self, event: DpEvent, steps: int) -> DpEvent:
        """A release sampled without replacement per step."""
        return SelfComposedDpEvent(
            SampledWithoutReplacementDpEvent(self.records, int(self.expected_size), event), steps
        )

    def at_least(self, event: GaussianDpEvent, steps: int) -> DpEvent:
        """The worst case of replace-one: all records pull one way but one, which is replaced by one like the others.

        The record is in each batch with probability b/N, whatever the other batches are, and then moves the sum by
        twice its bound. A batch without it looks the same before and after. So each step is the Poisson-sampled
        Gaussian of half the multiplier, as if a record were added or removed.
        """
        doubled = GaussianDpEvent(event.noise_multiplier / 2)
        return SelfComposedDpEvent(PoissonSampledDpEvent(self.rate, doubled), steps)

    def describe(self) -> str:
        """A sentence for the statement."""
        return (
            f"sampling without replacement: each step uses {int(self.expected_size)} of {self.records} records, "
            "drawn uniformly"
        )


SAMPLER = WithoutReplacement
