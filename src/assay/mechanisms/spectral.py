"""Gaussian noise added in the frequency domain, of which the real part of the inverse transform is kept (GReDP).

GReDP (Theorem 2) takes every tensor through the unitary discrete Fourier transform. Coefficient k gets
σc·(a·x_k + i·b·y_k) with independent standard normal x_k and y_k, and the real part of the inverse transform is
released. The x_k contribute cosines, even in the index, and the i·y_k sines, odd in it. So the released vector is the
sum plus noise whose even part is a·σc and whose odd part is b·σc times a white one. It is drawn that way here: exactly,
without a transform.

Guarantee: the noise has standard deviation at least min(a, b)·σc in every direction, and exactly that in some. A sum
with sensitivity l2 is therefore released as by a Gaussian mechanism of multiplier σ·min(a, b)·c/l2. If a or b is zero,
half of all directions carry no noise at all, and no finite ε holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.errors import ConfigError
from assay.mechanisms.frequencies import spectral_axes
from assay.mechanisms.gaussian import gaussian_event
from assay.mechanisms.types import Bounded, Grads, Private
from assay.randomness.streams import Stream, add_normal

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Spectral:
    """Adds noise of σc·a to the real and σc·b to the imaginary part of every coefficient, c being the `reference`."""

    multiplier: float
    reference: float
    a: float = math.sqrt(0.5)
    b: float = math.sqrt(0.5)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.multiplier) and self.multiplier >= 0):
            raise ConfigError("noise_multiplier", self.multiplier, "a finite number, 0 or above")
        if not (0 <= self.a <= 1 and 0 <= self.b <= 1):
            raise ConfigError("noise_form", f"{self.a:g}/{self.b:g}", "a/b with both between 0 and 1")

    @property
    def white(self) -> bool:
        """Whether real and imaginary parts get the same noise."""
        return self.a == self.b

    def release(self, grads: Bounded, stream: Stream) -> Private:
        """The noisy sum. It costs a Gaussian event of multiplier σ·min(a, b)·c/l2."""
        std = self.multiplier * self.reference
        event = gaussian_event(std * min(self.a, self.b) / grads.l2)
        if self.white:
            add_normal(list(grads.total.values()), std * self.a, stream)
            return Private(grads.total, event, std * self.a)
        drawn = {n: v.new_zeros(v.shape) for n, v in grads.total.items()}
        add_normal(list(drawn.values()), std, stream)
        value: Grads = {n: v.add_(self._shaped(drawn[n])) for n, v in grads.total.items()}
        return Private(value, event, std * math.hypot(self.a, self.b) * math.sqrt(0.5))

    def _shaped(self, white: Tensor) -> Tensor:
        """a · even part + b · odd part."""
        axes = spectral_axes(white.shape)
        mirrored = white.flip(axes).roll([1] * len(axes), axes)
        return white.mul_((self.a + self.b) / 2).add_(mirrored, alpha=(self.a - self.b) / 2)
