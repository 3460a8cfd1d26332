"""Gaussian noise that all later steps take back in part, with a few buffers of memory (BLT)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from assay.mechanisms.correlated import Correlated, check_same

if TYPE_CHECKING:
    from torch import Tensor

    from assay.accounting.blt import Buffers


@dataclass
class _Past:
    """Σ_(r<t) θ_j^(t-1-r) w_r for each θ_j: secret, and never written to disk."""

    buffers: list[Tensor] = field(default_factory=list)
    column: list[float] = field(default_factory=list)
    """The same for the first column of C⁻¹ in place of w."""
    steps: int = 0
    variance: float = 0.0
    """Σ of the squares of that column so far: the variance of a coordinate of the latest noise."""


@dataclass(frozen=True, kw_only=True)
class BufferedGaussian(Correlated):
    """Correlated noise whose matrix C has the coefficients of `strategy`.

    Guarantee (`assay.accounting.blt`): a record that takes part only every `separation` steps moves m rows of C g by at
    most √⌈m/separation⌉ times the bound. So each time it may take part costs one Gaussian release of this multiplier.
    The sampler promises that it does not take part sooner. Nothing is promised beyond `strategy.length` steps, so the
    next one is refused. The rows of a run with fresh randomness are charged by themselves.
    """

    strategy: Buffers
    _past: _Past = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_past", _Past(column=[0.0] * len(self.strategy.decay)))

    @property
    def _variance(self) -> float:
        return self._past.variance or self.strategy.scale**-2

    def _next(self, fresh: Tensor) -> Tensor:
        """w_t = z_t/s - Σ_j ω_j (buffer j), and every buffer becomes θ_j (buffer j) + w_t."""
        past, given = self._past, self.strategy
        if past.steps >= given.length:
            raise AssertionError(f"step {past.steps + 1} of a strategy for {given.length} steps")
        if past.buffers:
            check_same(past.buffers[0], fresh)
        else:
            past.buffers = [fresh.new_zeros(fresh.shape) for _ in given.decay]
        noise = fresh / given.scale
        entry = 0.0 if past.steps else 1 / given.scale
        for weight, buffer, number in zip(given.weight, past.buffers, past.column, strict=True):
            noise.sub_(buffer, alpha=weight)
            entry -= weight * number
        for decay, buffer in zip(given.decay, past.buffers, strict=True):
            buffer.mul_(decay).add_(noise)
        past.column = [decay * number + entry for decay, number in zip(given.decay, past.column, strict=True)]
        past.steps += 1
        past.variance += entry**2
        return noise
