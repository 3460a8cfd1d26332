"""Samplers: which records form a batch, what that adds to privacy, and the public denominator. One file per sampler.

A sampler draws the batch *and* states the amplification, so that nobody can draw by one and charge by another. Every
batch is a function of the step's random stream, so a run can be resumed at any step.

`expected_size` is a constant declared beforehand. The sum of clipped gradients is divided by it, never by the size of
the drawn batch, which is private.

The registry finds a file that defines `SAMPLER`. `assay._util.registry` says how to add one from outside.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dp_accounting.dp_event import DpEvent, GaussianDpEvent

from assay._util.lazy import torch
from assay._util.registry import Registry
from assay.accounting.adjacency import Adjacency
from assay.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from assay.randomness.streams import Randomness


@dataclass(frozen=True)
class Sampler(ABC):
    """Draws batches and states the amplification. A plan takes the class, and creates one for its records.

    Args:
        records: the number of records.
        expected_size: the expected size of a batch.

    Raises:
        ConfigError: a number is out of range.
    """

    name: ClassVar[str]
    """Its name in `--sampling` and in records."""
    independent: ClassVar[bool] = True
    """Whether records are drawn independently of each other; then each process may draw for its own records."""
    whole: ClassVar[bool] = False
    """Whether every batch holds all records."""
    replaces: ClassVar[bool] = False
    """Whether it needs a fixed number of records, so that neighbours must replace a record."""
    by_epoch: ClassVar[bool] = False
    """Whether it is charged a whole epoch at a time."""
    tight: ClassVar[bool] = False
    """Whether `compose` is known to state the exact cost of the steps, and not only an upper bound."""
    claimed_as: ClassVar[type[Sampler] | None] = None
    """The sampler whose ε a paper would claim for this one, where no paper knows it."""
    shown_under: ClassVar[Adjacency | None] = None
    """The adjacency that gives the event of `at_least` its meaning; None for that of the plan."""

    together: ClassVar[bool] = False
    """Whether k records cost what `assay.accounting.groups.enlarged` makes of `compose`.

    Each record must have separate coins, and k of them be in a step's batch no more often than k independent ones.
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
        """The probability that a record is in a batch."""
        return self.expected_size / self.records

    @abstractmethod
    def draw(self, step: int, randomness: Randomness) -> Tensor:
        """The indices of the batch of this step, counted from the start of this randomness."""

    @abstractmethod
    def compose(self, event: DpEvent, steps: int) -> DpEvent:
        """The cost of `steps` steps from the start of this randomness, each releasing `event` on its batch."""

    def composed_before(self, event: DpEvent, steps: int) -> DpEvent:
        """What an earlier version charged for the same, if that was more: a run that it began may be resumed."""
        return self.compose(event, steps)

    @abstractmethod
    def at_least(self, event: GaussianDpEvent, steps: int) -> DpEvent:
        """A lower bound on that cost, for audits where `compose` is only an upper bound.

        It is what the steps show about one record among others that contribute nothing.
        """

    def log_ratio(self, terms: Tensor) -> Tensor:
        """The log-likelihood ratio of "in the data" to "not in it", for whoever sees every step.

        Args:
            terms: [steps, records]: in each step, the log-likelihood ratio of "in the batch" to "not in it".

        Returns:
            [records]. By default each batch is drawn by itself, at `rate`.
        """
        return mixed(terms, self.rate).sum(0)

    @abstractmethod
    def describe(self) -> str:
        """A sentence for the privacy statement."""

    @classmethod
    def in_bands(
        cls,
        records: int,  # noqa: ARG003
        expected_size: float,  # noqa: ARG003
        bands: int,  # noqa: ARG003
        *,
        amplified: bool = True,  # noqa: ARG003
    ) -> Sampler | None:
        """The sampler in which `bands` groups of records take turns, for correlated noise; None if there is none."""
        return None


def mixed(terms: Tensor, rate: float) -> Tensor:
    """ln((1 - q) + q e^x) for each x: a record is in the batch with probability q."""
    return terms if rate >= 1 else (terms + math.log(rate)).logaddexp(terms.new_tensor(math.log1p(-rate)))


def once_each(terms: Tensor, steps: int) -> Tensor:
    """`Sampler.log_ratio` where a record is in one of the `steps` batches of an epoch, each as likely.

    Of an epoch that ended early, the record may be in a batch that nobody saw.
    """
    ratios = []
    for epoch in terms.split(steps):
        unseen = steps - len(epoch)
        parts = epoch if not unseen else torch.cat([epoch, epoch.new_zeros(1, epoch.shape[1]) + math.log(unseen)])
        ratios.append(parts.logsumexp(0) - math.log(steps))
    return torch.stack(ratios).sum(0)


SAMPLERS: Registry[type[Sampler]] = Registry(
    "sampler",
    of=Sampler,
    classes=True,
    wanted="a class of samplers, derived from assay.data.samplers.Sampler",
    package=__name__,
    attribute="SAMPLER",
)


def parse(text: str) -> type[Sampler]:
    """The class of the sampler of this name.

    Raises:
        ConfigError: there is none.

    >>> parse("poisson").__name__
    'Poisson'
    """
    return SAMPLERS.choose("sampling", text)
