"""What is released about the columns of a table before training, so that its rows can be prepared: `--schema auto`.

The release itself is made before the run begins, because it decides what the model's inputs are
(`assay.training.estimating`). The plan holds its cost. The run's ledger is charged with it first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dp_accounting.dp_event import DpEvent

from assay._util import spec
from assay._util.figures import at_least
from assay.errors import ConfigError
from assay.mechanisms.gaussian import gaussian_event
from assay.methods.stage import Part


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Noisy counts of this many columns, released with Gaussian noise (`assay.data.tables.estimates` has the proof).

    Attributes:
        noise: The noise multiplier of all counts together, relative to what one record or person moves them by.
        count: How many columns are estimated.

    Raises:
        ConfigError: A value is out of its range.

    >>> describe(Columns(noise=12.5, count=14))
    'noise:noise=12.5,count=14'
    """

    noise: float
    count: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.noise) and self.noise > 0):
            raise ConfigError("schema noise", self.noise, "a finite number above 0")
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 1:
            raise ConfigError("schema columns", self.count, "a whole number, 1 or above")

    def event(self) -> DpEvent:
        """One Gaussian release."""
        return gaussian_event(self.noise)

    def part(self, unit: str) -> Part:
        """The row of the statement."""
        return Part(name=f"types, bounds and levels of {self._columns}", unit=unit, claimed=None, event=self.event())

    def sentence(self) -> str:
        """For the statement."""
        return (
            f"types, bounds and frequent levels of {self._columns} were estimated from counts with Gaussian noise of "
            f"{at_least(self.noise)} times what one protected unit moves them by"
        )

    @property
    def _columns(self) -> str:
        return "one column" if self.count == 1 else f"{self.count} columns"


KINDS = {"noise": Columns}


def parse(text: str) -> Columns:
    """What `describe` wrote.

    Raises:
        ConfigError: The text has another form.
    """
    return spec.parse("columns", text, KINDS)


def describe(columns: Columns) -> str:
    """The text that `parse` turns into this release."""
    return spec.written(columns, KINDS)
