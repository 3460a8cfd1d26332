"""Gaussian noise that the next few steps take back in part."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from assay.mechanisms.correlated import Correlated, check_same

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class _Past:
    """The noise of earlier steps, in units of its scale, latest first. It is secret, and never written to disk."""

    noise: deque[Tensor]
    inverse: deque[float]
    """The latest entries of the first column of C⁻¹, latest first."""
    variance: float = 0.0
    """Σ of the squares of that column so far: the variance of a coordinate of the latest noise."""


@dataclass(frozen=True, kw_only=True)
class BandedGaussian(Correlated):
    """Correlated noise whose matrix C has the b coefficients `strategy`.

    Guarantee (Choquette-Choo et al. 2023, "(Amplified) banded matrix factorization: a unified approach to private
    training", arXiv:2306.08153, Theorem 4): with ‖strategy‖ ≤ 1, a record in step t moves the rows t to t+b-1 of C g by
    at most the bound. If it takes part again after b steps at the earliest, it then moves other rows. So each time it
    takes part costs one Gaussian release of this multiplier, and the b-1 steps in between cost it nothing. The sampler
    promises that it does not take part sooner (`assay.data.samplers.cyclic`), and counts accordingly. After fresh
    randomness nothing more is charged: a matrix of two such blocks is banded as well.
    """

    strategy: tuple[float, ...]
    _past: _Past = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not math.hypot(*self.strategy) <= 1 or self.strategy[0] <= 0:
            raise AssertionError(f"a strategy whose norm is above 1, or that does not begin above 0: {self.strategy}")
        bands = len(self.strategy)
        object.__setattr__(self, "_past", _Past(deque(maxlen=bands - 1), deque(maxlen=bands - 1)))

    @property
    def _variance(self) -> float:
        return self._past.variance or self.strategy[0] ** -2

    def _next(self, fresh: Tensor) -> Tensor:
        """w_t = (z_t - Σ_(j≥1) c_j w_(t-j)) / c_0."""
        past, (first, *others) = self._past, self.strategy
        if past.noise:
            check_same(past.noise[0], fresh)
        noise = fresh / first
        for c, before in zip(others, past.noise, strict=False):
            noise.sub_(before, alpha=c / first)
        entry = (0.0 if past.inverse else 1.0) - sum(c * r for c, r in zip(others, past.inverse, strict=False))
        past.noise.appendleft(noise)
        past.inverse.appendleft(entry / first)
        past.variance += (entry / first) ** 2
        return noise
