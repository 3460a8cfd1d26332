"""Gaussian noise that is correlated from step to step."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from assay.mechanisms.gaussian import gaussian_event
from assay.mechanisms.types import Bounded, Private
from assay.randomness.normal import add_vector

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from assay.randomness.streams import Stream


@dataclass
class _Past:
    """The noise of earlier steps, in units of its scale, latest first. It is secret, and never written to disk."""

    noise: deque[Tensor]
    inverse: deque[float]
    """The latest entries of the first column of C⁻¹, latest first."""
    variance: float = 0.0
    """Σ of the squares of that column so far: the variance of a coordinate of the latest noise."""


@dataclass(frozen=True, kw_only=True)
class BandedGaussian:
    """Adds std · w_t in step t, with std = multiplier × bound.

    w = C⁻¹ z, for independent standard normal z and the lower triangular Toeplitz matrix C with the b coefficients
    `strategy`.

    Guarantee (Choquette-Choo et al. 2023, "(Amplified) banded matrix factorization: a unified approach to private
    training", arXiv:2306.08153, Theorem 4): the releases of all steps, g + std · C⁻¹ z, are a function of
    C g / std + z. With ‖strategy‖ ≤ 1, a record in step t moves the rows t to t+b-1 of C g by at most the bound. If it
    takes part again after b steps at the earliest, it then moves other rows. So each time it takes part costs one
    Gaussian release of this multiplier, and the b-1 steps in between cost it nothing. The sampler promises that it does
    not take part sooner (`assay.data.samplers.cyclic`), and counts accordingly.

    A mechanism has a past: it serves one run, in the order of its steps. A run that resumes with fresh randomness makes
    a new one, whose rows are independent. This costs nothing: a matrix of two such blocks is banded as well.
    """

    multiplier: float
    strategy: tuple[float, ...]
    _past: _Past = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not math.hypot(*self.strategy) <= 1 or self.strategy[0] <= 0:
            raise AssertionError(f"a strategy whose norm is above 1, or that does not begin above 0: {self.strategy}")
        bands = len(self.strategy)
        object.__setattr__(self, "_past", _Past(deque(maxlen=bands - 1), deque(maxlen=bands - 1)))

    @property
    def white(self) -> bool:
        """Yes: within a step, one independent draw of the same scale for every coordinate."""
        return True

    def release(self, grads: Bounded, stream: Stream) -> Private:
        """The noisy sum, in the scale of this step's bound: Σ / l2 has sensitivity 1 in every step for any bound."""
        std = self.multiplier * grads.l2
        # sorted by name, so that the coordinates have the same order in all steps
        values = [grads.total[name] for name in sorted(grads.total)]
        if values and std:
            size = sum(value.numel() for value in values)
            fresh = stream.normal((size,), dtype=values[0].dtype, device=values[0].device)
            add_vector(values, std, self._next(fresh))
        spread = math.sqrt(self._past.variance) if self._past.variance else 1 / self.strategy[0]
        return Private(grads.total, gaussian_event(std / grads.l2), std * spread)

    def _next(self, fresh: Tensor) -> Tensor:
        """w_t = (z_t - Σ_(j≥1) c_j w_(t-j)) / c_0."""
        past, (first, *others) = self._past, self.strategy
        if past.noise and past.noise[0].shape != fresh.shape:
            raise AssertionError(f"{fresh.shape} coordinates in this step, {past.noise[0].shape} in the one before")
        noise = fresh / first
        for c, before in zip(others, past.noise, strict=False):
            noise.sub_(before, alpha=c / first)
        entry = (0.0 if past.inverse else 1.0) - sum(c * r for c, r in zip(others, past.inverse, strict=False))
        past.noise.appendleft(noise)
        past.inverse.appendleft(entry / first)
        past.variance += (entry / first) ** 2
        return noise

    def catch_up(self, size: int, streams: Sequence[Stream], *, dtype: torch.dtype, device: torch.device) -> None:
        """Draw the noise of earlier steps again, for a run with a seed that is resumed.

        Args:
            size: How many coordinates a step has.
            streams: The streams of the earlier steps, in order.
            dtype: The type of the sums.
            device: Where the sums are.
        """
        for stream in streams:
            self._next(stream.normal((size,), dtype=dtype, device=device))
