"""How the learning rate changes over a run: `constant`, `linear`, `inverse:every=469`, `drop:at=10000,by=10`.

A schedule is a function of the step's number alone, so that a resumed run continues it exactly.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from assay.errors import ConfigError


class Rate(ABC):
    """A schedule. A frozen dataclass whose fields are its settings."""

    @abstractmethod
    def factor(self, step: int, steps: int) -> float:
        """The factor on the learning rate in this step, counted from 0, of a run of `steps` steps."""


@dataclass(frozen=True, kw_only=True)
class Constant(Rate):
    """1 throughout."""

    def factor(self, step: int, steps: int) -> float:  # noqa: ARG002
        """1."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Linear(Rate):
    """From 1 down to 0 in equal steps."""

    def factor(self, step: int, steps: int) -> float:
        """1 - t/T."""
        return 1.0 - step / steps


@dataclass(frozen=True, kw_only=True)
class Cosine(Rate):
    """From 1 down to 0 along half a wave."""

    def factor(self, step: int, steps: int) -> float:
        """(1 + cos πt/T)/2."""
        return 0.5 * (1.0 + math.cos(math.pi * step / steps))


@dataclass(frozen=True, kw_only=True)
class Inverse(Rate):
    """1/t, where t counts steps from 1.

    Attributes:
        every: The factor changes only after this many steps: with the number of batches in an epoch, once an epoch.

    Raises:
        ConfigError: `every` is below 1.

    >>> [Inverse(every=2).factor(step, 6) for step in range(4)]
    [1.0, 1.0, 0.3333333333333333, 0.3333333333333333]
    """

    every: int = 1

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ConfigError("schedule every", self.every, "a whole number, 1 or above")

    def factor(self, step: int, steps: int) -> float:  # noqa: ARG002
        """1/t at the last step that changed it."""
        return 1.0 / (step - step % self.every + 1)


@dataclass(frozen=True, kw_only=True)
class Drop(Rate):
    """1 at first; divided once.

    Attributes:
        at: The number of steps before it is divided.
        by: What it is divided by.

    Raises:
        ConfigError: A setting is out of its range.

    >>> [Drop(at=2, by=10).factor(step, 6) for step in range(4)]
    [1.0, 1.0, 0.1, 0.1]
    """

    at: int = 10_000
    by: float = 10.0

    def __post_init__(self) -> None:
        if self.at < 1:
            raise ConfigError("schedule at", self.at, "a whole number, 1 or above")
        if not 1 <= self.by < math.inf:
            raise ConfigError("schedule by", self.by, "a number, 1 or above")

    def factor(self, step: int, steps: int) -> float:  # noqa: ARG002
        """1, then 1/by."""
        return 1.0 if step < self.at else 1.0 / self.by


KINDS: dict[str, type[Rate]] = {
    "constant": Constant,
    "linear": Linear,
    "cosine": Cosine,
    "inverse": Inverse,
    "drop": Drop,
}
