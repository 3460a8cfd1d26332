"""Spectral-DP's filter (Feng et al. 2023, as described in the GReDP paper, section 2.4): keep the low frequencies.

Post-processing of a released gradient. It lowers the variance of the noise to K/N of what it was and removes the
gradient's own high frequencies with it; it cannot lower ε.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from assay._util.lazy import torch
from assay.errors import ConfigError
from assay.mechanisms.frequencies import low_frequencies, spectral_axes
from assay.mechanisms.types import Grads

if TYPE_CHECKING:
    from torch import Tensor


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


DENOISER = LowPass
