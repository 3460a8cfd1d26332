"""Spectral-DP's filter (Feng et al. 2023, as described in the GReDP paper, section 2.4): keep the low frequencies.

Post-processing of a released gradient. It lowers the variance of the noise to K/N of what it was and removes the
gradient's own high frequencies with it; it cannot lower ε.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from assay.errors import ConfigError
from assay.mechanisms.types import Grads


def spectral_axes(shape: Sequence[int]) -> tuple[int, ...]:
    """The axes of a parameter that its Fourier transform runs over.

    All but the first two for kernels [out, in, *size] and block-circulant weights [rows, columns, block]; the last one for
    matrices and vectors.
    """
    return tuple(range(2, len(shape))) if len(shape) > 2 else (len(shape) - 1,)


@functools.lru_cache(maxsize=256)
def low_frequencies(sizes: tuple[int, ...], rho: float) -> Tensor:
    """Which frequencies of a real transform over these sizes stay: [*sizes[:-1], sizes[-1]//2 + 1], true or false.

    Those within a radius (frequencies folded, each axis in units of its own size), the radius whose count comes nearest to
    ρN (the smaller of two as near). A radius keeps k and -k alike, so what comes back from the transform is real.
    """
    folded = [torch.fft.fftfreq(n, dtype=torch.float64) for n in sizes]
    radius = sum(f.square().view([-1 if i == j else 1 for j in range(len(sizes))]) for i, f in enumerate(folded))
    assert isinstance(radius, Tensor)
    levels, counts = radius.mul(1e12).round().unique(return_counts=True)
    nearest = int((counts.cumsum(0) - rho * math.prod(sizes)).abs().argmin())
    kept: Tensor = radius.mul(1e12).round() <= levels[nearest]
    return kept[..., : sizes[-1] // 2 + 1].contiguous()


@dataclass(frozen=True, kw_only=True)
class LowPass:
    """Keeps about ρN of the N Fourier coefficients of each kernel or circulant block: the lowest, and the mean always.

    Matrices and vectors stay as they are: the order of their entries means nothing that a frequency could describe.
    """

    rho: float = 0.5

    name: ClassVar[str] = "lowpass"
    needs_white: ClassVar[bool] = False
    keeps_white: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.rho <= 1:
            raise ConfigError("lowpass rho", self.rho, "the part of the frequencies to keep, above 0 and at most 1")

    def __call__(self, grads: Grads, noise_std: float) -> Grads:  # noqa: ARG002
        """Each gradient without its high frequencies."""
        return {name: self._filtered(value) if value.dim() > 2 else value for name, value in grads.items()}

    def _filtered(self, value: Tensor) -> Tensor:
        axes = spectral_axes(value.shape)
        sizes = tuple(value.shape[a] for a in axes)
        spectrum = torch.fft.rfftn(value, dim=axes).mul_(low_frequencies(sizes, self.rho).to(value.device))
        filtered: Tensor = torch.fft.irfftn(spectrum, s=sizes, dim=axes)
        return filtered
