"""Samplers: Poisson sampling from groups that take turns."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from dp_accounting.dp_event import DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from torch import Tensor

from assay.data.samplers import Sampler
from assay.errors import ConfigError
from assay.randomness.streams import Randomness


@dataclass(frozen=True)
class Cyclic(Sampler):
    """The records are dealt into `bands` groups, and step t draws from group t modulo `bands`: a member enters with probability
    bands · q, so that a batch is as large on average as one of Poisson sampling with q.

    Guarantee: no record is in two of any `bands` consecutive batches, and each of a record's ⌈steps/bands⌉ chances or fewer is an
    independent coin flip. Each record draws its group by itself, so that adding or removing one moves no other.
    """

    name: ClassVar[str] = "cyclic"

    bands: int
    _groups: dict[Randomness, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bands * self.expected_size > self.records:
            raise ConfigError(
                "batch_size",
                self.expected_size,
                f"at most {self.records / self.bands:g}, one of {self.bands} bands of the {self.records} records",
            )

    @property
    def member_rate(self) -> float:
        """The chance of a member of the group whose turn it is."""
        return min(1.0, self.bands * self.rate)

    def draw(self, step: int, randomness: Randomness) -> Tensor:
        """Coin flips of the members of one group, who stay the same as long as this randomness is in use."""
        if randomness not in self._groups:  # once: a source that cannot repeat itself must not deal again
            self._groups.clear()
            self._groups[randomness] = randomness.stream("bands", 0).integers(self.bands, self.records)
        members = torch.nonzero(self._groups[randomness] == step % self.bands).flatten()
        return members[randomness.stream("sample", step).uniform(len(members)) < self.member_rate]

    def compose(self, event: DpEvent, steps: int) -> DpEvent:
        """Poisson-subsampled among the members, once for every turn of a group: that of the first group, which has the most."""
        return SelfComposedDpEvent(PoissonSampledDpEvent(self.member_rate, event), math.ceil(steps / self.bands))

    def at_least(self, event: GaussianDpEvent, steps: int) -> DpEvent:  # noqa: ARG002
        """The first step: whose turn it is, nobody knows of a record, and what that hides of later ones is not known here."""
        return PoissonSampledDpEvent(self.rate, event)

    def describe(self) -> str:
        """For the statement."""
        return (
            f"cyclic Poisson sampling: each record belongs to one of {self.bands} groups, drawn by itself, which take turns, and enters its "
            f"group's batch independently with probability {self.member_rate:.5g}"
        )
