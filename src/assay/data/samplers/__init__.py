"""Samplers: which records make a batch, what that adds to privacy, and the public denominator. One file a sampler.

A sampler draws the batch *and* states the amplification, so that one cannot be charged while another is drawn. Every
batch is a function of the step's own random stream: a run can be resumed at any step.

`expected_size` is a constant declared beforehand. The sum of clipped gradients is divided by it, never by the size of
the batch that came out, which is private.

A file that defines `SAMPLER` is found by itself; `assay._util.registry` tells how one from outside is added.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from dp_accounting.dp_event import DpEvent, GaussianDpEvent
from torch import Tensor

from assay._util.registry import Registry
from assay.accounting.adjacency import Adjacency
from assay.errors import ConfigError
from assay.randomness.streams import Randomness


@dataclass(frozen=True)
class Sampler(ABC):
    """Draws batches and owns the amplification. A plan takes the class, and makes one for its records and its batch size."""

    name: ClassVar[str]
    """What it is chosen by, in `--sampling` and in records."""
    independent: ClassVar[bool] = True
    """Whether a record's place in the batches says nothing of another's: then each process may draw for its own records."""
    whole: ClassVar[bool] = False
    """Whether every batch is all records."""
    replaces: ClassVar[bool] = False
    """Whether it is defined for a fixed number of records only, where neighbours replace a record."""
    by_epoch: ClassVar[bool] = False
    """Whether it is charged a whole epoch at a time."""
    tight: ClassVar[bool] = False
    """Whether `compose` is known to state exactly what the steps cost, and not only a bound from above."""
    shown_under: ClassVar[Adjacency | None] = None
    """The adjacency that gives the event of `at_least` its meaning; None for that of the plan."""

    together: ClassVar[bool] = False
    """Whether k records cost what `assay.accounting.groups.enlarged` makes of `compose`: each record has coins of its own, and k of them
    are in a step's batch no oftener than k independent ones.
    """

    records: int
    expected_size: float

    def __post_init__(self) -> None:
        if not (isinstance(self.records, int) and self.records >= 1):
            raise ConfigError("records", self.records, "a whole number, 1 or above")
        if not (math.isfinite(self.expected_size) and 0 < self.expected_size <= self.records):
            accepted = f"a number above 0 and at most the number of records, {self.records}"
            raise ConfigError("batch_size", self.expected_size, accepted)

    @property
    def rate(self) -> float:
        """The chance that a record is in a batch."""
        return self.expected_size / self.records

    @abstractmethod
    def draw(self, step: int, randomness: Randomness) -> Tensor:
        """Indices of the batch of this step, counted from the start of this randomness."""

    @abstractmethod
    def compose(self, event: DpEvent, steps: int) -> DpEvent:
        """What `steps` consecutive steps from the start of this randomness cost, each releasing `event` on its batch."""

    @abstractmethod
    def at_least(self, event: GaussianDpEvent, steps: int) -> DpEvent:
        """What they show of a record beside others that contribute nothing, so that they cannot cost less: for an audit, where
        `compose` is a bound from above.
        """

    @abstractmethod
    def describe(self) -> str:
        """A sentence for the privacy statement."""

    @classmethod
    def in_bands(cls, records: int, expected_size: float, bands: int) -> Sampler | None:  # noqa: ARG003
        """The sampler whose batches `bands` groups of records take turns in, for correlated noise; None if there is none."""
        return None


SAMPLERS: Registry[type[Sampler]] = Registry(
    "sampler",
    fits=lambda thing: inspect.isclass(thing) and issubclass(thing, Sampler),
    wanted="a class of samplers, derived from assay.data.samplers.Sampler",
    package=__name__,
    attribute="SAMPLER",
)


def parse(text: str) -> type[Sampler]:
    """The sampler of this name: `poisson`, `without-replacement`, `shuffle`, `full`."""
    return SAMPLERS.choose("sampling", text)
