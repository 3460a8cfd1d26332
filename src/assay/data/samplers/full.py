"""Samplers: full batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from dp_accounting.dp_event import DpEvent, GaussianDpEvent, SelfComposedDpEvent
from torch import Tensor

from assay.data.samplers import Sampler
from assay.errors import ConfigError
from assay.randomness.streams import Randomness


@dataclass(frozen=True)
class FullBatch(Sampler):
    """All records, every step."""

    name: ClassVar[str] = "full"
    together: ClassVar[bool] = True
    tight: ClassVar[bool] = True
    whole: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.expected_size != self.records:
            raise ConfigError(
                "batch_size",
                self.expected_size,
                f"the number of records, {self.records}, for full-batch training",
            )

    @property
    def rate(self) -> float:
        """1."""
        return 1.0

    def draw(self, step: int, randomness: Randomness) -> Tensor:  # noqa: ARG002
        """Everything."""
        return torch.arange(self.records)

    def compose(self, event: DpEvent, steps: int) -> DpEvent:
        """One release a step."""
        return SelfComposedDpEvent(event, steps)

    def at_least(self, event: GaussianDpEvent, steps: int) -> DpEvent:
        """Just that."""
        return self.compose(event, steps)

    def describe(self) -> str:
        """For the statement."""
        return "full batches: every step uses every record"


SAMPLER = FullBatch
