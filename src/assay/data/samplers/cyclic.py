"""Poisson sampling from groups of records that take turns."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from dp_accounting.dp_event import DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

from assay._util.figures import at_most
from assay._util.lazy import torch
from assay.data.samplers import Sampler, mixed
from assay.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from assay.randomness.streams import Randomness


@dataclass(frozen=True)
class Cyclic(Sampler):
    """Step t draws from group t modulo `bands`: a member enters with probability bands · q.

    So a batch is as large on average as one of Poisson sampling with probability q.

    Guarantee: no record is in two of any `bands` consecutive batches, and each of a record's at most ⌈steps/bands⌉
    chances is an independent coin flip. Each record draws its group by itself, so adding or removing one moves no
    other.

    Where the noise of a batch and of the record's next one have steps in common, sampling is not known to amplify
    (`amplified` is false). Then all members enter, whatever sums are divided by, and each turn is charged whole.
    """

    name: ClassVar[str] = "cyclic"

    bands: int
    amplified: bool = True
    _groups: dict[Randomness, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        share = self.records / self.bands
        if not self.amplified and abs(self.expected_size - share) > 1:
            raise ConfigError(
                "batch_size",
                self.expected_size,
                f"{round(share)}, one of {self.bands} groups of the {self.records} records: smaller samples cost as "
                "much with this noise",
            )
        if self.amplified and self.expected_size > share:
            raise ConfigError(
                "batch_size",
                self.expected_size,
                f"at most {share:g}, one of {self.bands} bands of the {self.records} records",
            )

    @property
    def rate(self) -> float:
        """The probability that a record is in the batch of a step."""
        return super().rate if self.amplified else 1 / self.bands

    @property
    def member_rate(self) -> float:
        """The probability that a member of the current group enters."""
        return min(1.0, self.bands * self.rate) if self.amplified else 1.0

    def draw(self, step: int, randomness: Randomness) -> Tensor:
        """Coin flips of the members of one group. Groups do not change while this randomness is in use."""
        if randomness not in self._groups:  # once: a source that cannot repeat itself would draw other groups
            self._groups.clear()
            self._groups[randomness] = randomness.stream("bands", 0).integers(self.bands, self.records)
        members = torch.nonzero(self._groups[randomness] == step % self.bands).flatten()
        return members[randomness.stream("sample", step).uniform(len(members)) < self.member_rate]

    def compose(self, event: DpEvent, steps: int) -> DpEvent:
        """Poisson sampling among the members, once for every turn of the first group, which has the most turns."""
        turns = math.ceil(steps / self.bands)
        return SelfComposedDpEvent(PoissonSampledDpEvent(self.member_rate, event) if self.amplified else event, turns)

    def at_least(self, event: GaussianDpEvent, steps: int) -> DpEvent:  # noqa: ARG002
        """The first step alone: a record's group is secret, and we do not know how much that hides in later steps."""
        return PoissonSampledDpEvent(self.rate, event)

    def log_ratio(self, terms: Tensor) -> Tensor:
        """The record belongs to one of the groups, each as likely, and enters when that group has its turn."""
        coins = mixed(terms, self.member_rate)
        groups = torch.stack([coins[group :: self.bands].sum(0) for group in range(self.bands)])
        return groups.logsumexp(0) - math.log(self.bands)

    def describe(self) -> str:
        """A sentence for the statement."""
        if not self.amplified:
            return (
                f"each record belongs to one of {self.bands} groups, drawn by itself, which take turns: all of a group "
                "are in its batch"
            )
        return (
            f"cyclic Poisson sampling: each record belongs to one of {self.bands} groups, drawn by itself, which take "
            f"turns, and enters its group's batch independently with probability {at_most(self.member_rate)}"
        )
