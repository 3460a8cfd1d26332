"""Full batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dp_accounting.dp_event import DpEvent, GaussianDpEvent, SelfComposedDpEvent

from assay._util.lazy import torch
from assay.data.samplers import Sampler
from assay.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from assay.randomness.streams import Randomness


@dataclass(frozen=True)
class FullBatch(Sampler):
    """Every step uses all records."""

    name: ClassVar[str] = "full"
    together: ClassVar[bool] = True
    tight: ClassVar[bool] = True
    whole: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.expected_size != self.records:
            accepted = f"the number of records, {self.records}, for full-batch training"
            raise ConfigError("batch_size", self.expected_size, accepted)

    @property
    def rate(self) -> float:
        """1."""
        return 1.0

    def draw(self, step: int, randomness: Randomness) -> Tensor:  # noqa: ARG002
        """All indices."""
        return torch.arange(self.records)

    def compose(self, event: DpEvent, steps: int) -> DpEvent:
        """One release per step."""
        return SelfComposedDpEvent(event, steps)

    def at_least(self, event: GaussianDpEvent, steps: int) -> DpEvent:
        """The same: the cost is exact."""
        return self.compose(event, steps)

    def describe(self) -> str:
        """A sentence for the statement."""
        return "full batches: every step uses every record"


SAMPLER = FullBatch
