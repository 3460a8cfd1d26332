"""Each number as several ramps, so that a linear layer learns a curve for it.

Eilers and Marx: "Flexible Smoothing with B-splines and Penalties", Statistical Science 11(2), 1996. Their knots are
spaced evenly. Here they are closer together near 0, because sums of money and counts are skewed and 0 is often special.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from assay.errors import ConfigError

_MOST = 64
_FIRST = 2.0**-8  # the first knot above 0


@dataclass(frozen=True, kw_only=True)
class Ramps:
    """For tables, whose prepared values lie between -1 and 1: `count` features of each value.

    A ramp is 0 up to one knot, rises to the next and stays at 1/√count. Knots are at 0 and at `count` numbers from
    1/256 to 1, each the same multiple of the one before. Negative values have the negative ramps of their absolute
    values. 0 becomes zeros and 1 a vector of length 1, so that categories weigh as much as before.

    Attributes:
        count: how many ramps a value has.

    Raises:
        ConfigError: `count` is out of range.
    """

    name: ClassVar[str] = "ramps"

    count: int = 16

    def __post_init__(self) -> None:
        if not 2 <= self.count <= _MOST:
            raise ConfigError("features ramps count", self.count, f"a whole number from 2 to {_MOST}")

    def check(self, shape: tuple[int, ...]) -> None:
        if len(shape) != 1:
            raise ConfigError("features", self.name, f"a table; this data set has records of shape {shape}")

    def made_with(self) -> str:
        """No package decides the values."""
        return ""

    def extract(self, x: Tensor) -> Tensor:
        ends = _FIRST ** torch.linspace(1, 0, self.count)
        starts = torch.cat([torch.zeros(1), ends[:-1]])
        values = x.float()[:, :, None]
        ramps: Tensor = ((values.abs() - starts) / (ends - starts)).clamp(0, 1) * values.sign()
        return ramps.flatten(1).div(self.count**0.5)

    def describe(self) -> str:
        return f"every value as {self.count} ramps between public knots, for which a linear layer learns a curve"
