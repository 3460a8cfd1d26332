"""Privacy events: the cost of a release as data, joined on one batch and written to disk.

The classes are dp_accounting's. Only events that have an accountant (`assay.accounting.accountants`) are known. An
event of another class, or with a field out of its range, is refused by name: an event that is misread gives a wrong ε.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent

from assay.accounting.accountants import ACCOUNTANTS, accountant_of
from assay.errors import ConfigError


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
        raise ConfigError(f"{path}.kind", name, f"one of {', '.join(ACCOUNTANTS)}")
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
