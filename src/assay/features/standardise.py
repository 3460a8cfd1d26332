"""Inputs shifted and scaled by constants."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from assay.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Standardise:
    """(x - mean)/std for every number of a record. The constants are public: nothing is computed from the records.

    Attributes:
        mean: What is subtracted. The defaults are those that are usual for MNIST with pixels from 0 to 1.
        std: What the difference is divided by.

    Raises:
        ConfigError: `std` is not above 0, or a number is not finite.
    """

    name: ClassVar[str] = "standardise"

    mean: float = 0.1307
    std: float = 0.3081

    def __post_init__(self) -> None:
        if not math.isfinite(self.mean):
            raise ConfigError("features standardise mean", self.mean, "a finite number")
        if not (math.isfinite(self.std) and self.std > 0):
            raise ConfigError("features standardise std", self.std, "a finite number above 0")

    def check(self, shape: tuple[int, ...]) -> None:
        """Accept any shape."""

    def made_with(self) -> str:
        """No package decides the values."""
        return ""

    def extract(self, x: Tensor) -> Tensor:
        """The shifted and scaled records, in float32."""
        return (x.float() - self.mean) / self.std

    def describe(self) -> str:
        """A phrase for the statement."""
        return f"every input minus {self.mean:g}, divided by {self.std:g}"
