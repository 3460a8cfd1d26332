"""Gaussian noise whose proof covers the arithmetic.

The proof of the Gaussian mechanism is about real numbers. In floating point it fails twice: the set of values that
sum + noise can take depends on the sum, and tells sums apart (Mironov 2012, "On significance of the least significant
bits for differential privacy", doi:10.1145/2382196.2382264). And a sum of n rounded terms moves by more than the bound
when one term is taken out, because all others are rounded differently (Casacuberta et al. 2022, "Widespread
underestimation of sensitivity in differentially private libraries and how to fix it", arXiv:2207.10635).

Here every record's clipped gradient is a vector of whole multiples of a unit u, a power of two, of l2 norm at most C
in exact arithmetic (`assay.gradients.on_grid`). Sums of such vectors are exact in float64, in any order. What is
released is

    S + u · round(Z / u),    Z normal with standard deviation σC in every coordinate, S the sum,

computed exactly (`assay.randomness.rounded`).

Guarantee: since S is a multiple of u, this is u · round((S + Z) / u): a function of S + Z, what the Gaussian
mechanism of multiplier σ releases over the real numbers, with sensitivity C. Post-processing costs nothing. So all
that holds for the Gaussian mechanism holds for this release with the same σ: its event is the same, and so are
amplification by sampling and composition. No theorem about discrete noise is needed, unlike for the discrete Gaussian
of Canonne, Kamath and Steinke 2020 ("The discrete Gaussian for differential privacy", arXiv:2004.00010).

All later rounding (the average, the optimizer) is post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from assay._util.lazy import torch
from assay.errors import AssayError, ConfigError
from assay.mechanisms.gaussian import gaussian_event
from assay.mechanisms.types import Bounded, Private
from assay.randomness.rounded import Words, rounded_normal

if TYPE_CHECKING:
    from assay.randomness.streams import Stream

_UNITS = 20  # a bound is between 2²⁰ and 2²¹ units
LEAST_MULTIPLIER, LARGEST_MULTIPLIER = 2.0**-12, 2.0**20


@dataclass(frozen=True)
class Grid:
    """The whole multiples of a power of two, about 2²⁰ of them within the bound."""

    bound: float
    """The largest l2 norm of what a record contributes to a sum."""

    @property
    def unit(self) -> float:
        """The power of two u with 2²⁰ ≤ bound/u < 2²¹."""
        return math.ldexp(1.0, math.frexp(self.bound)[1] - 1 - _UNITS)

    @property
    def most(self) -> int:
        """⌊(bound/u)²⌋: whole numbers are within the bound exactly if their squares add up to no more than this."""
        units = Fraction(self.bound) / Fraction(self.unit)
        return math.floor(units * units)


@dataclass(frozen=True, kw_only=True)
class ExactGaussian:
    """Adds u · round(Z/u) to every coordinate of a sum on the grid, Z normal with std multiplier × bound."""

    multiplier: float
    grid: Grid

    def __post_init__(self) -> None:
        if self.multiplier != 0 and not LEAST_MULTIPLIER <= self.multiplier <= LARGEST_MULTIPLIER:
            raise ConfigError(
                "noise_multiplier",
                self.multiplier,
                f"0, or a number from {LEAST_MULTIPLIER:g} to {LARGEST_MULTIPLIER:g} with exact noise",
            )

    @property
    def white(self) -> bool:
        """Yes: one independent draw of the same scale for every coordinate."""
        return True

    @property
    def scale(self) -> float:
        """The standard deviation of Z in units: a float64 number that is not below multiplier × bound / u."""
        return math.nextafter(self.multiplier * (self.grid.bound / self.grid.unit), math.inf)

    def release(self, grads: Bounded, stream: Stream) -> Private:
        """The noisy sum, in float64 and on the grid. It costs a Gaussian event of the multiplier.

        Raises:
            AssayError: The sum is not on the grid, or its bound is not the grid's.
            ConfigError: The stream cannot give its bits.
        """
        if grads.l2 != self.grid.bound:
            raise AssayError(f"a sum with bound {grads.l2} on a grid for {self.grid.bound}")
        unit = self.grid.unit
        for name, value in grads.total.items():
            # NaN is not equal to itself; below 2⁵² units, so that adding the noise is exact
            units = value / unit
            if value.dtype != torch.float64 or not bool(((units == units.round()) & (units.abs() < 2.0**52)).all()):
                raise AssayError(f"the sum for {name} is not on the grid of {unit}: it was not made by whole numbers")
        values = list(grads.total.values())
        if values and self.multiplier > 0:
            if not isinstance(stream, Words):
                raise ConfigError(
                    "randomness", type(stream).__name__, "a stream with `words`: exact noise is made of bits"
                )
            noise = rounded_normal(sum(v.numel() for v in values), self.scale, stream).double().mul_(unit)
            for value, piece in zip(values, noise.split_with_sizes([v.numel() for v in values]), strict=True):
                value.add_(piece.view_as(value))
        return Private(grads.total, gaussian_event(self.multiplier), self.multiplier * self.grid.bound)
