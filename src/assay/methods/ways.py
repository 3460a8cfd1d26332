"""Which way to protect a person needs less noise: sampling persons, or sampling their rows (`assay.data.units`).

Both are found by the same target ε from public counts alone: persons, rows, most rows of a person, batch size
and steps. They are compared at equal work: a step sees as many rows on average in either way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from assay.data.units import Sampled, Unit
from assay.errors import ConfigError
from assay.methods.plan import Plan
from assay.methods.targets import steps_for


@dataclass(frozen=True, kw_only=True)
class Way:
    """One of the ways, calibrated.

    Attributes:
        plan: With the least noise within the target ε.
        noise: The standard deviation of the noise in the averaged gradient, in clipping bounds.
    """

    plan: Plan
    noise: float

    @property
    def sampled(self) -> Sampled:
        """What is drawn."""
        assert self.plan.unit is not None
        return self.plan.unit.sampled

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "unit_sampling": self.sampled.value,
            "batch_size": self.plan.batch_size,
            "noise_multiplier": self.plan.noise_multiplier,
            "noise_in_average": self.noise,
            "verified": self.plan.epsilon(),
        }


def compare(start: Plan, *, unit: str, persons: int, most: int, epsilon: float) -> list[Way]:
    """Both ways for one table, the one with less noise first.

    Noise is compared in the averaged gradient, where a step's noise σC is divided by the expected batch: by persons in
    one way, by rows in the other. The average of a person's rows is often shorter than a row's gradient, so a smaller C
    may do where persons are sampled; that is not known from public counts and not counted here.

    Args:
        start: Rows that are kept, batch size in rows, steps, δ and everything else that the two have in common.
        unit: What a person is called.
        persons: How many there are.
        most: The most rows of a person that are kept.
        epsilon: The target.

    Returns:
        The ways that can be accounted for.

    Raises:
        ConfigError: There are more persons than rows, or more rows than `most` for each, or no noise is enough.
    """
    if not persons <= start.records <= persons * most:
        raise ConfigError(
            "records", start.records, f"rows from {persons}, one for each person, to {persons * most}, {most} for each"
        )
    by_person = replace(
        start,
        records=persons,
        batch_size=start.batch_size * persons / start.records,
        unit=Unit(name=unit, persons=persons, rows=most),
    )
    ways = [_way(by_person, epsilon)]
    rows = Unit(name=unit, persons=persons, rows=most, sampled=Sampled.ROWS)
    if start.together and start.adjacency is not start.adjacency.REPLACE_ONE:
        ways.append(_way(replace(start, unit=rows), epsilon))
    return sorted(ways, key=lambda way: way.noise)


def ways_of(
    unit: str,
    *,
    records: int,
    persons: int | None,
    most: int | None,
    batch_size: float | None,
    epochs: float | None,
    steps: int | None,
    noise_multiplier: float | None,
    epsilon: float,
    settings: Mapping[str, Any],
) -> list[Way]:
    """Both ways from the counts of a table, as `assay calibrate --unit` takes them.

    Args:
        unit: What a person is called.
        records: How many rows are kept.
        persons: How many persons there are.
        most: The most rows of a person that are kept.
        batch_size: Rows in a step, on average.
        epochs: The length of the run, or `steps`.
        steps: The length of the run in steps.
        noise_multiplier: Not given: it is what is found.
        epsilon: The target.
        settings: Further arguments of a plan.

    Returns:
        As `compare`.

    Raises:
        ConfigError: A count is missing or out of its range.
    """
    if persons is None or most is None or batch_size is None or noise_multiplier is not None:
        given = {"persons": persons, "unit_rows": most, "batch_size": batch_size, "noise_multiplier": noise_multiplier}
        raise ConfigError(
            "unit", given, "--persons, --unit-rows and --batch-size (in rows) beside it; the noise is found"
        )
    if (epochs is None) == (steps is None):
        raise ConfigError("steps", steps, "either --steps or --epochs")
    sampler = settings["sampling"](records, batch_size)
    count = steps_for(epochs, sampler) if steps is None else steps
    start = Plan(records=records, batch_size=batch_size, steps=count, noise_multiplier=1.0, **settings)
    return compare(start, unit=unit, persons=persons, most=most, epsilon=epsilon)


def _way(plan: Plan, epsilon: float) -> Way:
    found = plan.within(epsilon)
    return Way(plan=found, noise=found.noise_multiplier / found.batch_size)
