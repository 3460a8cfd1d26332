"""Noise that falls over a run: much where gradients are large, little where they are small. In a few levels, each charged for
what it is.

A schedule divides the steps of a run into stretches and states, for each, the factor on the run's noise multiplier. It is
fixed before the run: nothing in it depends on the records.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from assay import spec
from assay.errors import ConfigError


class NoiseSchedule(Protocol):
    """How the noise multiplier changes over a run."""

    def stretches(self, steps: int) -> list[tuple[int, float]]:
        """(steps, factor) in the order of the run; the steps add up to `steps`, the first factor is 1 and none is above it."""
        ...


@dataclass(frozen=True, kw_only=True)
class Constant:
    """The same noise in every step."""

    def stretches(self, steps: int) -> list[tuple[int, float]]:
        """One stretch."""
        return [(steps, 1.0)]


@dataclass(frozen=True, kw_only=True)
class Decay:
    """Equal stretches, as many as there are levels, from factor 1 down to `last` in equal ratios."""

    levels: int = 4
    last: float = 0.5

    def __post_init__(self) -> None:
        if not 2 <= self.levels <= 32:
            raise ConfigError("noise_schedule levels", self.levels, "a whole number from 2 to 32")
        if not 0 < self.last <= 1:
            raise ConfigError("noise_schedule last", self.last, "a number above 0 and at most 1")

    def stretches(self, steps: int) -> list[tuple[int, float]]:
        """Stretches without a step (a run shorter than its levels) are left out."""
        ends = [round(steps * (i + 1) / self.levels) for i in range(self.levels)]
        counts = [end - start for start, end in zip([0, *ends], ends, strict=False)]
        found = [(n, self.last ** (i / (self.levels - 1))) for i, n in enumerate(counts) if n]
        return [(n, factor / found[0][1]) for n, factor in found]


KINDS: dict[str, type[Constant] | type[Decay]] = {"constant": Constant, "decay": Decay}


def parse(text: str) -> NoiseSchedule:
    """`constant`, `decay:levels=4,last=0.5`."""
    found: NoiseSchedule = spec.parse("noise_schedule", text, KINDS)
    return found


def within(stretches: list[tuple[int, float]], start: int, steps: int) -> list[tuple[int, float]]:
    """The part of a schedule that lies in `steps` steps from step `start` on."""
    ends = list(accumulate(n for n, _ in stretches))
    found = [
        (min(end, start + steps) - max(end - n, start), factor)
        for end, (n, factor) in zip(ends, stretches, strict=True)
    ]
    return [(n, factor) for n, factor in found if n > 0]
