"""Accountants: how each class of event is stored, and the releases that it stands for. One file per family of events.

A mechanism or a sampler states an event. Its accountant turns the event into terms (`assay.accounting.losses`), whose
composition gives ε. The registry finds a file that defines `ACCOUNTANTS`; `assay._util.registry` says how to add one
from outside. An accountant belongs to the proof of ε: its terms must dominate everything that the event releases.
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
    """Assay knows no sound bound for this event under this adjacency."""


@dataclass(frozen=True, slots=True)
class Range:
    """The range of a number in an event.

    Attributes:
        accepted: the range in words.
        least: the smallest number.
        most: the largest number.
        whole: whether it must be a whole number.
    """

    accepted: str
    least: int
    most: float
    whole: bool = False

    def check(self, path: str, value: object) -> int | float:
        """The number as an int or a float.

        Raises:
            ConfigError: it is out of range, or no number.
        """
        number: int | float | None = None
        if type(value) is bool:
            number = None  # Python counts it as Integral
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

LEAST_RATE = 1e-15  # a smaller probability counts as this one, which costs more

Parts = Iterator[tuple[Term | None, int]]
"""Terms and how often each happens; None stands for a release without privacy."""


@dataclass(frozen=True, kw_only=True)
class Accountant(ABC):
    """How one class of event is stored, and which terms it stands for.

    Attributes:
        name: its `kind` in ledgers and records.
        event: the class.
        numbers: the ranges of its numbers, by field.
        inner: the field that holds an inner event ("event") or several ("events").
        fixed: fields that must have this value, and are not stored.
    """

    name: str
    event: type[DpEvent]
    numbers: Mapping[str, Range | Numbers] = field(default_factory=dict)
    inner: str | None = None
    fixed: Mapping[str, float] = field(default_factory=dict)

    @abstractmethod
    def terms(self, event: DpEvent, adjacency: Adjacency, parts: Callable[[DpEvent], Parts]) -> Parts:
        """The terms of the event, and how often each happens.

        They are relative to what one record can contribute where one is added or removed, and to twice that where one
        is replaced.

        Args:
            event: of the class `self.event`, with numbers in their ranges.
            adjacency: which data sets are neighbours.
            parts: the same for an inner event.

        Raises:
            UnaccountableError: no sound bound is known.
        """

    def check(self, data: Mapping[str, object], path: str) -> None:  # noqa: B027 - most have nothing to check
        """Refuse numbers that are each in range but do not fit together; `data` is the stored event."""


ACCOUNTANTS: Registry[Accountant] = Registry(
    "accountant",
    of=Accountant,
    distinct="event",
    wanted="an object of a class derived from assay.accounting.accountants.Accountant",
    package=__name__,
    attribute="ACCOUNTANTS",
)


def accountant_of(event: object, path: str = "event") -> Accountant:
    """The accountant of this event.

    Raises:
        ConfigError: there is none.
    """
    for known in ACCOUNTANTS.values():
        if type(event) is known.event:
            return known
    raise ConfigError(path, event, f"an event of one of the kinds {', '.join(ACCOUNTANTS)}")
