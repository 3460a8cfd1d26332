"""Accountants: how each class of event is written, and which releases it stands for. One file a family of events.

An event is what a mechanism or a sampler states; its accountant turns it into terms (`assay.accounting.losses`), whose composition gives ε.
A file that defines `ACCOUNTANTS` is found by itself; `assay._util.registry` tells how one from outside is added. An accountant is part of the
proof of ε: what its terms do not dominate is not covered.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real

from dp_accounting.dp_event import DpEvent

from assay._util.registry import Registry
from assay.accounting.adjacency import Adjacency as Adjacency
from assay.accounting.losses import Term
from assay.errors import AssayError, ConfigError


class UnaccountableError(AssayError):
    """No sound bound is known here for this event under this adjacency."""


@dataclass(frozen=True, slots=True)
class Range:
    """What a number in an event may be."""

    accepted: str
    least: int
    most: float
    whole: bool = False

    def check(self, path: str, value: object) -> int | float:
        """The number as a plain one; refused out of range."""
        number: int | float | None = None
        if type(value) is bool:
            number = None  # an Integral to Python
        elif isinstance(value, Integral):
            number = int(value)
        elif isinstance(value, Real) and not self.whole:
            number = float(value)
        if number is None or not self.least <= number <= self.most:
            raise ConfigError(path, value, self.accepted)
        return number


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a list of numbers in an event may hold."""

    accepted: str
    least: int
    most: float

    def check(self, path: str, value: object) -> tuple[int | float, ...]:
        """The numbers as plain ones; refused out of range, or where they are no list."""
        if not isinstance(value, list | tuple):
            raise ConfigError(path, value, self.accepted)
        each = Range(self.accepted, self.least, self.most)
        return tuple(float(each.check(f"{path}[{i}]", number)) for i, number in enumerate(value))


NOISE = Range("a finite number ≥ 0 (0 means no noise)", 0, sys.float_info.max)
DIVERGENCE = Range("a finite number ≥ 0", 0, sys.float_info.max)
ZERO = Range("0", 0, 0)
PROBABILITY = Range("a number from 0 to 1", 0, 1)
REPETITIONS = Range("a number from 1 to 10,000", 1, 10_000)
COUNT = Range("a whole number from 0 to 2⁵³", 0, 2**53, whole=True)
SIZE = Range("a whole number from 1 to 2⁵³", 1, 2**53, whole=True)

LEAST_RATE = 1e-15  # beyond, a probability is taken for the nearest one that costs more

Parts = Iterator[tuple[Term | None, int]]
"""Terms and how often each happens; None stands for a release without privacy."""


@dataclass(frozen=True, kw_only=True)
class Accountant(ABC):
    """How one class of event is written, and which terms it stands for."""

    name: str
    """The `kind` that ledgers and records know it by."""
    event: type[DpEvent]
    numbers: Mapping[str, Range | Numbers] = field(default_factory=dict)
    """Its numbers by field name."""
    inner: str | None = None
    """The field that holds an inner event (`event`) or several (`events`)."""
    fixed: Mapping[str, float] = field(default_factory=dict)
    """Fields that have one value here, and are not written."""

    @abstractmethod
    def terms(self, event: DpEvent, adjacency: Adjacency, parts: Callable[[DpEvent], Parts]) -> Parts:
        """What the event releases, relative to what one record can contribute where one is added or removed, to twice that where
        one is replaced.

        Args:
            event: of the class `self.event`, with numbers in their ranges.
            adjacency: which data sets are neighbours.
            parts: the same for an inner event.

        Raises:
            UnaccountableError: no sound bound is known.
        """

    def check(self, data: Mapping[str, object], path: str) -> None:  # noqa: B027 - most have nothing to check
        """Refuse numbers that are each in range and do not go together. `data` is the event as it is written."""


ACCOUNTANTS: Registry[Accountant] = Registry(
    "accountant",
    of=Accountant,
    distinct="event",
    wanted="an object of a class derived from assay.accounting.accountants.Accountant",
    package=__name__,
    attribute="ACCOUNTANTS",
)


def accountant_of(event: object, path: str = "event") -> Accountant:
    """The accountant of this event; refused where there is none."""
    for known in ACCOUNTANTS.values():
        if type(event) is known.event:
            return known
    raise ConfigError(path, event, f"an event of one of the kinds {', '.join(ACCOUNTANTS)}")
