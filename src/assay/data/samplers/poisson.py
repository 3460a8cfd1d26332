"""Samplers: Poisson sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from dp_accounting.dp_event import DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from torch import Tensor

from assay.data.samplers import Sampler
from assay.data.samplers.cyclic import Cyclic
from assay.randomness.streams import Randomness


@dataclass(frozen=True)
class Poisson(Sampler):
    """Each record enters each batch on its own with probability q = expected size / records."""

    name: ClassVar[str] = "poisson"
    together: ClassVar[bool] = True
    tight: ClassVar[bool] = True

    def draw(self, step: int, randomness: Randomness) -> Tensor:
        """Independent coin flips; an empty batch is a batch."""
        return torch.nonzero(randomness.stream("sample", step).uniform(self.records) < self.rate).flatten()

    def compose(self, event: DpEvent, steps: int) -> DpEvent:
        """Poisson-subsampled, once a step."""
        return SelfComposedDpEvent(PoissonSampledDpEvent(self.rate, event), steps)

    def at_least(self, event: GaussianDpEvent, steps: int) -> DpEvent:
        """Just that."""
        return self.compose(event, steps)

    @classmethod
    def in_bands(cls, records: int, expected_size: float, bands: int) -> Sampler:
        """Cyclic Poisson sampling."""
        return Cyclic(records, expected_size, bands)

    def describe(self) -> str:
        """For the statement."""
        return f"Poisson sampling: each record enters each step's batch independently with probability {self.rate:.6g}"


SAMPLER = Poisson
