"""Privacy events: the cost of a release as data, joined on one batch and written to disk.

The classes are dp_accounting's. Only the kinds listed in `KINDS` are spoken here: an event of another
class, or with a field out of its range, is refused by name, because an event that is misread is an ε that
is wrong.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real

from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent

from assay.errors import ConfigError


def joint(events: Sequence[DpEvent]) -> DpEvent:
    """Return the one event that equals these releases made together on the same records.

    Exact for Gaussians: releasing f_i with noise multipliers σ_i is, after rescaling each release by its
    own noise, one Gaussian release of sensitivity (Σ σ_i⁻²)^½ in units of its noise, hence of multiplier (Σ
    σ_i⁻²)^-½. Use it before sampling: amplification holds for the whole of what is released from a batch,
    and the parts of it are not sampled independently.

    `NoOpDpEvent` costs nothing and is dropped; one `NonPrivateDpEvent` makes the whole non-private. What
    cannot be merged is kept side by side in a `ComposedDpEvent`.
    """
    precision = 0.0  # Σ σ_i⁻²
    others: list[DpEvent] = []
    for event, count in flatten(dp_event.ComposedDpEvent(list(events))):
        check(event)
        if isinstance(event, dp_event.NonPrivateDpEvent):
            return event
        if isinstance(event, dp_event.GaussianDpEvent):
            # noise beyond any that is accounted for is taken for less, whose square is still a number; noise whose square is no
            # number above 0, for none
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
    """Yield the events that make up a composition, each with how often it happens; no-ops are left out.

    Sampled events are leaves: what they hold happens on the sample, not on the records.
    """
    if isinstance(event, dp_event.ComposedDpEvent):
        for part in event.events:
            yield from flatten(part, count)
    elif isinstance(event, dp_event.SelfComposedDpEvent):
        check(event)
        yield from flatten(event.event, count * event.count)
    elif count and not isinstance(event, dp_event.NoOpDpEvent):
        yield event, count


@dataclass(frozen=True, slots=True)
class _Range:
    """What a number in an event may be."""

    accepted: str
    least: int
    most: float
    whole: bool = False

    def check(self, path: str, value: object) -> int | float:
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


_NOISE = _Range("a finite number ≥ 0 (0 means no noise)", 0, sys.float_info.max)
_DIVERGENCE = _Range("a finite number ≥ 0", 0, sys.float_info.max)
_ZERO = _Range("0", 0, 0)
_PROBABILITY = _Range("a number from 0 to 1", 0, 1)
_REPETITIONS = _Range("a number from 1 to 10,000", 1, 10_000)
_COUNT = _Range("a whole number from 0 to 2⁵³", 0, 2**53, whole=True)
_SIZE = _Range("a whole number from 1 to 2⁵³", 1, 2**53, whole=True)


@dataclass(frozen=True, slots=True)
class _Kind:
    """How one event class is written: its numbers by field name, and the field that holds inner events."""

    cls: type[DpEvent]
    numbers: Mapping[str, _Range]
    inner: str | None = None
    fixed: Mapping[str, float] = field(default_factory=dict)
    """Fields that have one value here, and are not written."""


KINDS: Mapping[str, _Kind] = {
    "no-op": _Kind(dp_event.NoOpDpEvent, {}),
    "non-private": _Kind(dp_event.NonPrivateDpEvent, {}),
    "gaussian": _Kind(dp_event.GaussianDpEvent, {"noise_multiplier": _NOISE}),
    "laplace": _Kind(dp_event.LaplaceDpEvent, {"noise_multiplier": _NOISE}),
    "zcdp": _Kind(dp_event.ZCDpEvent, {"rho": _DIVERGENCE, "xi": _ZERO}),
    "randomized-response": _Kind(
        dp_event.RandomizedResponseDpEvent, {"noise_parameter": _PROBABILITY, "num_buckets": _SIZE}
    ),
    "poisson-sampled": _Kind(dp_event.PoissonSampledDpEvent, {"sampling_probability": _PROBABILITY}, "event"),
    "sampled-without-replacement": _Kind(
        dp_event.SampledWithoutReplacementDpEvent,
        {"source_dataset_size": _SIZE, "sample_size": _COUNT},
        "event",
    ),
    "self-composed": _Kind(dp_event.SelfComposedDpEvent, {"count": _COUNT}, "event"),
    "composed": _Kind(dp_event.ComposedDpEvent, {}, "events"),
    "repeat-and-select": _Kind(
        dp_event.RepeatAndSelectDpEvent, {"mean": _REPETITIONS}, "event", fixed={"shape": math.inf}
    ),
}
_NAMES: Mapping[type, str] = {kind.cls: name for name, kind in KINDS.items()}


def check(event: DpEvent) -> None:
    """Refuse an event of an unknown kind or with a number out of range, here or anywhere inside it."""
    to_json(event)


def to_json(event: DpEvent) -> dict[str, object]:
    """Return the event as plain JSON data; `from_json` gives back an equal event."""
    return _dump(event, "event")


def from_json(data: object) -> DpEvent:
    """Read an event written by `to_json`, refusing anything that `to_json` would not have written."""
    return _load(data, "event")


def _dump(event: object, path: str) -> dict[str, object]:
    name = _NAMES.get(type(event))
    if name is None:
        raise ConfigError(path, event, f"an event of one of the kinds {', '.join(KINDS)}")
    kind = KINDS[name]
    data: dict[str, object] = {"kind": name}
    for number, rule in kind.numbers.items():
        data[number] = rule.check(f"{path}.{number}", getattr(event, number))
    for name, value in kind.fixed.items():
        if getattr(event, name) != value:
            raise ConfigError(f"{path}.{name}", getattr(event, name), f"{value}")
    if kind.inner == "event":
        data["event"] = _dump(getattr(event, "event"), f"{path}.event")  # noqa: B009
    elif kind.inner == "events":
        parts = getattr(event, "events")  # noqa: B009
        data["events"] = [_dump(part, f"{path}.events[{i}]") for i, part in enumerate(parts)]
    _check_sample(data, path)
    return data


def _load(data: object, path: str) -> DpEvent:
    if not isinstance(data, dict):
        raise ConfigError(path, data, "an object with a field `kind`")
    name = data.get("kind")
    if not isinstance(name, str) or name not in KINDS:
        raise ConfigError(f"{path}.kind", name, f"one of {', '.join(KINDS)}")
    kind = KINDS[name]
    fields = {"kind", *kind.numbers} | ({kind.inner} if kind.inner else set())
    if data.keys() != fields:
        raise ConfigError(path, sorted(map(str, data)), f"exactly the fields {', '.join(sorted(fields))}")
    values: dict[str, object] = {
        number: rule.check(f"{path}.{number}", data[number]) for number, rule in kind.numbers.items()
    }
    if kind.inner == "event":
        values["event"] = _load(data["event"], f"{path}.event")
    elif kind.inner == "events":
        if not isinstance(data["events"], list):
            raise ConfigError(f"{path}.events", data["events"], "a list of events")
        values["events"] = [_load(part, f"{path}.events[{i}]") for i, part in enumerate(data["events"])]
    _check_sample(data, path)
    return kind.cls(**values, **kind.fixed)


def _check_sample(data: Mapping[str, object], path: str) -> None:
    size, source = data.get("sample_size"), data.get("source_dataset_size")
    if isinstance(size, int) and isinstance(source, int) and size > source:
        raise ConfigError(f"{path}.sample_size", size, f"at most source_dataset_size = {source}")
