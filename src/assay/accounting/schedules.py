"""How the noise of a run goes from step to step: equal and independent, falling in levels, or correlated.

A schedule divides the steps of a run into stretches and states, for each, the factor on the run's noise multiplier; each stretch is
charged for what it is. It also states how the noise of a step takes back some of the noise before it. All of it is fixed before the
run: nothing in it depends on the records.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import ClassVar

from assay._util import spec
from assay._util.registry import Registry
from assay.errors import ConfigError

_INDEPENDENT = (1.0,)


class NoiseSchedule(ABC):
    """How the noise multiplier changes over a run. A frozen dataclass whose fields are its settings."""

    name: ClassVar[str]
    """What it is chosen by, in `--noise-schedule` and in records."""

    @abstractmethod
    def stretches(self, steps: int) -> list[tuple[int, float]]:
        """(steps, factor) in the order of the run; the steps add up to `steps`, the first factor is 1 and none is above it."""

    @property
    def strategy(self) -> tuple[float, ...]:
        """c_0 ... c_(b-1) of unit norm: the noise w of the steps solves Σ_j c_j w_(t-j) = z_t for independent z. Just 1 where the
        steps' noise is independent.
        """
        return _INDEPENDENT


@dataclass(frozen=True, kw_only=True)
class Constant(NoiseSchedule):
    """The same noise in every step."""

    name: ClassVar[str] = "constant"

    def stretches(self, steps: int) -> list[tuple[int, float]]:
        """One stretch."""
        return [(steps, 1.0)]


@dataclass(frozen=True, kw_only=True)
class Decay(NoiseSchedule):
    """Equal stretches, as many as there are levels, from factor 1 down to `last` in equal ratios."""

    name: ClassVar[str] = "decay"

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


@dataclass(frozen=True, kw_only=True)
class Banded(NoiseSchedule):
    """Noise that a later step takes back in part, by a banded strategy matrix (Choquette-Choo et al. 2023, "(Amplified) banded
    matrix factorization"): what the optimizer adds up over the run has less noise in it than independent steps would have left.

    The strategy is the banded square root (Kalinin and Lampert 2024, "Banded square root matrix factorization"): the first b
    coefficients of (1-x)^-½ (1-βx)^-½, whose square is what SGD with momentum β does to its gradients, scaled to unit norm. Every
    column of the matrix then has norm at most 1, and columns b or more apart have no row in common.
    """

    name: ClassVar[str] = "banded"

    bands: int = 4
    momentum: float = 0.0

    def __post_init__(self) -> None:
        if not 2 <= self.bands <= 1024:
            raise ConfigError("noise_schedule bands", self.bands, "a whole number from 2 to 1024")
        if not 0 <= self.momentum < 1:
            raise ConfigError("noise_schedule momentum", self.momentum, "that of the optimizer: from 0 to below 1")

    def stretches(self, steps: int) -> list[tuple[int, float]]:
        """One stretch."""
        return [(steps, 1.0)]

    @property
    def strategy(self) -> tuple[float, ...]:
        """The coefficients."""
        return _square_root(self.bands, self.momentum)


@lru_cache(maxsize=16)
def _square_root(bands: int, momentum: float) -> tuple[float, ...]:
    roots = [1.0]  # of (1-x)^-½: binomial(2k, k) / 4^k
    for k in range(1, bands):
        roots.append(roots[-1] * (2 * k - 1) / (2 * k))
    found = [sum(roots[i] * momentum ** (k - i) * roots[k - i] for i in range(k + 1)) for k in range(bands)]
    # a few ulps above 1, so that the norm is not above 1 by rounding
    norm = math.hypot(*found) * (1 + 1e-12)
    return tuple(c / norm for c in found)


KINDS: Registry[type[NoiseSchedule]] = Registry(
    "noise_schedule",
    of=NoiseSchedule,
    classes=True,
    wanted="a class of noise schedules, derived from assay.accounting.schedules.NoiseSchedule",
    known=(Constant, Decay, Banded),
)


def parse(text: str) -> NoiseSchedule:
    """`constant`, `decay:levels=4,last=0.5`, `banded:bands=4,momentum=0.9`."""
    return spec.parse("noise_schedule", text, KINDS)


def describe(schedule: NoiseSchedule) -> str:
    """The text that `parse` turns into this schedule, its settings in full."""
    return spec.written(schedule, KINDS)


def within(stretches: list[tuple[int, float]], start: int, steps: int) -> list[tuple[int, float]]:
    """The part of a schedule that lies in `steps` steps from step `start` on."""
    ends = list(accumulate(n for n, _ in stretches))
    found = [
        (min(end, start + steps) - max(end - n, start), factor)
        for end, (n, factor) in zip(ends, stretches, strict=True)
    ]
    return [(n, factor) for n, factor in found if n > 0]
