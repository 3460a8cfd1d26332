"""Samplers: which records make a batch, what that adds to privacy, and the public denominator.

A sampler draws the batch *and* states the amplification, so that one cannot be charged while another is drawn. Every
batch is a function of the step's own random stream: a run can be resumed at any step.

`expected_size` is a constant declared beforehand. The sum of clipped gradients is divided by it, never by the size of
the batch that came out, which is private.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np
import torch
from dp_accounting.dp_event import (
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)
from torch import Tensor

from assay.errors import ConfigError
from assay.randomness.streams import Randomness


class Sampler(Protocol):
    """Draws batches and owns the amplification."""

    @property
    def records(self) -> int:
        """How many records there are."""
        ...

    @property
    def expected_size(self) -> float:
        """The public denominator."""
        ...

    @property
    def rate(self) -> float:
        """The chance that a record is in a batch."""
        ...

    @property
    def independent(self) -> bool:
        """Whether a record's place in the batches says nothing of another's: then each process may draw for its own records."""
        ...

    def draw(self, step: int, randomness: Randomness) -> Tensor:
        """Indices of the batch of this step, counted from the start of this randomness."""
        ...

    def compose(self, event: DpEvent, steps: int) -> DpEvent:
        """What `steps` consecutive steps from the start of this randomness cost, each releasing `event` on its batch."""
        ...

    def at_least(self, event: GaussianDpEvent, steps: int) -> DpEvent:
        """What they show of a record beside others that contribute nothing, so that they cannot cost less: for an audit, where `compose`
        is a bound from above.
        """
        ...

    def describe(self) -> str:
        """A sentence for the privacy statement."""
        ...


def _check(records: int, expected_size: float) -> None:
    if not (isinstance(records, int) and records >= 1):
        raise ConfigError("records", records, "a whole number, 1 or above")
    if not (math.isfinite(expected_size) and 0 < expected_size <= records):
        raise ConfigError("batch_size", expected_size, f"a number above 0 and at most the number of records, {records}")


@dataclass(frozen=True)
class Poisson:
    """Each record enters each batch on its own with probability q = expected size / records."""

    records: int
    expected_size: float
    independent: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check(self.records, self.expected_size)

    @property
    def rate(self) -> float:
        """q."""
        return self.expected_size / self.records

    def draw(self, step: int, randomness: Randomness) -> Tensor:
        """Independent coin flips; an empty batch is a batch."""
        return torch.nonzero(randomness.stream("sample", step).uniform(self.records) < self.rate).flatten()

    def compose(self, event: DpEvent, steps: int) -> DpEvent:
        """Poisson-subsampled, once a step."""
        return SelfComposedDpEvent(PoissonSampledDpEvent(self.rate, event), steps)

    def at_least(self, event: GaussianDpEvent, steps: int) -> DpEvent:
        """Just that."""
        return self.compose(event, steps)

    def describe(self) -> str:
        """For the statement."""
        return f"Poisson sampling: each record enters each step's batch independently with probability {self.rate:.6g}"


@dataclass(frozen=True)
class Cyclic:
    """The records are dealt into `bands` groups, and step t draws from group t modulo `bands`: a member enters with probability
    bands · q, so that a batch is as large on average as one of Poisson sampling with q.

    Guarantee: no record is in two of any `bands` consecutive batches, and each of a record's ⌈steps/bands⌉ chances or fewer is an
    independent coin flip. Each record draws its group by itself, so that adding or removing one moves no other.
    """

    records: int
    expected_size: float
    bands: int
    independent: ClassVar[bool] = True
    _groups: dict[Randomness, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check(self.records, self.expected_size)
        if self.bands * self.expected_size > self.records:
            raise ConfigError(
                "batch_size",
                self.expected_size,
                f"at most {self.records / self.bands:g}, one of {self.bands} bands of the {self.records} records",
            )

    @property
    def rate(self) -> float:
        """q, over the draw of the group as well."""
        return self.expected_size / self.records

    @property
    def member_rate(self) -> float:
        """The chance of a member of the group whose turn it is."""
        return min(1.0, self.bands * self.rate)

    def draw(self, step: int, randomness: Randomness) -> Tensor:
        """Coin flips of the members of one group, who stay the same as long as this randomness is in use."""
        if randomness not in self._groups:  # once: a source that cannot repeat itself must not deal anew
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
            f"group's batch independently with probability {self.member_rate:.6g}"
        )


@dataclass(frozen=True)
class WithoutReplacement:
    """Exactly `expected_size` records a step, a uniformly random subset. Defined for replace-one adjacency, where
    their number is fixed.
    """

    records: int
    expected_size: float
    independent: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check(self.records, self.expected_size)
        if self.expected_size != int(self.expected_size):
            raise ConfigError("batch_size", self.expected_size, "a whole number for batches of fixed size")

    @property
    def rate(self) -> float:
        """b/N."""
        return self.expected_size / self.records

    def draw(self, step: int, randomness: Randomness) -> Tensor:
        """The records with the b smallest of N independent uniform numbers; or, where b is a small part of N, the first b
        different ones of a sequence of uniformly drawn records, which is as uniform a subset and does not touch all N.
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
        """Sampled without replacement, once a step."""
        return SelfComposedDpEvent(
            SampledWithoutReplacementDpEvent(self.records, int(self.expected_size), event), steps
        )

    def at_least(self, event: GaussianDpEvent, steps: int) -> DpEvent:
        """A record is in each batch with probability b/N, whatever the other batches are."""
        return SelfComposedDpEvent(PoissonSampledDpEvent(self.rate, event), steps)

    def describe(self) -> str:
        """For the statement."""
        return f"sampling without replacement: each step uses {int(self.expected_size)} of {self.records} records, drawn uniformly"


@dataclass(frozen=True)
class Shuffled:
    """Every record once an epoch, in a random one of the epoch's batches. Charged without amplification.

    Each record draws its batch independently of the others (so batch sizes vary around the expected one), and one
    record changes one batch an epoch and no other: under add-or-remove-one an epoch costs exactly one release, whatever
    the number of its batches. Amplification by shuffling is not claimed: accounting shuffled batches as Poisson ones
    understates ε.
    """

    records: int
    expected_size: float
    independent: ClassVar[bool] = True
    _drawn: dict[tuple[Randomness, int], Tensor] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check(self.records, self.expected_size)

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
        ):  # once an epoch: a source that cannot repeat itself must not deal the records out anew for every batch
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


@dataclass(frozen=True)
class FullBatch:
    """All records, every step."""

    records: int
    expected_size: float
    independent: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check(self.records, self.expected_size)
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


SAMPLERS: dict[str, type[Poisson | WithoutReplacement | Shuffled | FullBatch]] = {
    "poisson": Poisson,
    "without-replacement": WithoutReplacement,
    "shuffle": Shuffled,
    "full": FullBatch,
}
