"""Privacy events: the cost of a release as data, joined on one batch and written to disk; and who accounts for each.

A mechanism or a sampler states an event. The classes are dp_accounting's. The accountant of a class says how its events
are stored, and turns them into terms (`assay.accounting.losses`), whose composition gives ε. An accountant belongs to
the proof of ε: its terms must dominate everything that the event releases. `assay.accounting.accountants` has a file
for each family of events; `assay._util.registry` says how to add one from outside.

An event without an accountant, or with a field out of its range, is refused by name: an event that is misread gives a
wrong ε.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real

from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent

from assay._util.registry import Registry
from assay.accounting.adjacency import Adjacency as Adjacency
from assay.accounting.losses import Term
from assay.errors import AssayError, ConfigError, one_of


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
        """The numbers as plain ones; refused out of range, or if they are not a list."""
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
    wanted="an object of a class derived from assay.accounting.events.Accountant",
    package="assay.accounting.accountants",
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


def joint(events: Sequence[DpEvent]) -> DpEvent:
    """The one event that equals these releases made together on the same records.

    It is exact for Gaussians. Releasing f_i with noise multipliers σ_i is, after rescaling each release by its noise,
    one Gaussian release of sensitivity (Σ σ_i⁻²)^½ in units of its noise, hence of multiplier (Σ σ_i⁻²)^-½. Use it
    before sampling: amplification holds for everything released from a batch together, because the releases are not
    sampled independently.

    `NoOpDpEvent` costs nothing and is dropped. One `NonPrivateDpEvent` makes the whole non-private. Events that cannot
    be merged stay side by side in a `ComposedDpEvent`.

    Raises:
        ConfigError: an event is unknown, or a number is out of range.

    >>> joint([dp_event.GaussianDpEvent(3.0), dp_event.GaussianDpEvent(4.0)])
    GaussianDpEvent(noise_multiplier=2.4)
    """
    precision = 0.0  # Σ σ_i⁻²
    others: list[DpEvent] = []
    for event, count in flatten(dp_event.ComposedDpEvent(list(events))):
        check(event)
        if isinstance(event, dp_event.NonPrivateDpEvent):
            return event
        if isinstance(event, dp_event.GaussianDpEvent):
            # Huge noise counts as less noise, so that its square is finite. Noise whose square is 0 counts as none.
            square = min(event.noise_multiplier, 1e150) ** 2
            precision += count / square if square else math.inf
        else:
            others.append(event if count == 1 else dp_event.SelfComposedDpEvent(event, count))
    if precision:
        others.insert(0, dp_event.GaussianDpEvent(precision**-0.5))
    if not others:
        return dp_event.NoOpDpEvent()
    return others[0] if len(others) == 1 else dp_event.ComposedDpEvent(others)


def flatten(event: DpEvent, count: int = 1) -> Iterator[tuple[DpEvent, int]]:
    """Yield the events of a composition, each with the number of times it happens, without no-ops.

    Sampled events are leaves: what they contain happens on the sample, not on the records.
    """
    if isinstance(event, dp_event.ComposedDpEvent):
        for inner in event.events:
            yield from flatten(inner, count)
    elif isinstance(event, dp_event.SelfComposedDpEvent):
        check(event)
        yield from flatten(event.event, count * event.count)
    elif count and not isinstance(event, dp_event.NoOpDpEvent):
        yield event, count


def check(event: DpEvent) -> None:
    """Refuse an event of an unknown kind or with a number out of range, also inside it.

    Raises:
        ConfigError: names the field.
    """
    to_json(event)


def to_json(event: DpEvent) -> dict[str, object]:
    """The event as plain JSON data, from which `from_json` reads an equal event.

    Raises:
        ConfigError: an event is unknown, or a number is out of range.

    >>> to_json(dp_event.GaussianDpEvent(1.5))
    {'kind': 'gaussian', 'noise_multiplier': 1.5}
    """
    return _dump(event, "event")


def from_json(data: object) -> DpEvent:
    """The event that `to_json` wrote.

    Raises:
        ConfigError: `to_json` would not have written this.
    """
    return _load(data, "event")


def _dump(event: object, path: str) -> dict[str, object]:
    known = accountant_of(event, path)
    data: dict[str, object] = {"kind": known.name}
    for number, rule in known.numbers.items():
        data[number] = rule.check(f"{path}.{number}", getattr(event, number))
    for name, value in known.fixed.items():
        if getattr(event, name) != value:
            raise ConfigError(f"{path}.{name}", getattr(event, name), f"{value}")
    if known.inner == "event":
        data["event"] = _dump(getattr(event, "event"), f"{path}.event")  # noqa: B009
    elif known.inner == "events":
        inner = getattr(event, "events")  # noqa: B009
        data["events"] = [_dump(one, f"{path}.events[{i}]") for i, one in enumerate(inner)]
    known.check(data, path)
    return data


def _load(data: object, path: str) -> DpEvent:
    if not isinstance(data, dict):
        raise ConfigError(path, data, "an object with a field `kind`")
    name = data.get("kind")
    if not isinstance(name, str) or name not in ACCOUNTANTS:
        raise ConfigError(f"{path}.kind", name, one_of(name, ACCOUNTANTS))
    known = ACCOUNTANTS[name]
    fields = {"kind", *known.numbers} | ({known.inner} if known.inner else set())
    if data.keys() != fields:
        raise ConfigError(path, sorted(map(str, data)), f"exactly the fields {', '.join(sorted(fields))}")
    values: dict[str, object] = {
        number: rule.check(f"{path}.{number}", data[number]) for number, rule in known.numbers.items()
    }
    if known.inner == "event":
        values["event"] = _load(data["event"], f"{path}.event")
    elif known.inner == "events":
        if not isinstance(data["events"], list):
            raise ConfigError(f"{path}.events", data["events"], "a list of events")
        values["events"] = [_load(one, f"{path}.events[{i}]") for i, one in enumerate(data["events"])]
    known.check(data, path)
    return known.event(**values, **known.fixed)
