"""The filter of Spectral-DP: keep the low frequencies of a released gradient.

Feng, Xu, Wen, Venkitasubramaniam and Ding: "Spectral-DP: Differentially Private Deep Learning through Spectral
Perturbation and Filtering", IEEE S&P 2023, arXiv:2307.13231, as section 2.4 of GReDP (arXiv:2409.11663) describes it.

It lowers the variance of the noise to K/N of its value, and removes the high frequencies of the gradient as well. It
is post-processing, so it cannot lower ε.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from assay._util.lazy import torch
from assay.errors import ConfigError
from assay.mechanisms.frequencies import leading_frequencies, low_frequencies, spectral_axes
from assay.mechanisms.types import Grads

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class LowPass:
    """Keeps about ρN of the N Fourier coefficients of each kernel or circulant block: the lowest, always with the mean.

    Matrices and vectors stay as they are, because the order of their entries has no meaning.

    Attributes:
        rho: ρ, above 0 and at most 1.
        one_sided: Keep the first ⌈ρn⌉ coefficients of each axis, as the authors' code does
            (`assay.mechanisms.frequencies`). Else keep each frequency together with its conjugate.

    Raises:
        ConfigError: ρ is outside this range.
    """

    rho: float = 0.5
    one_sided: bool = False

    name: ClassVar[str] = "lowpass"
    needs_white: ClassVar[bool] = False
    keeps_white: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.rho <= 1:
            raise ConfigError("lowpass rho", self.rho, "the share of the frequencies to keep, above 0 and at most 1")

    def __call__(self, grads: Grads, noise_std: float) -> Grads:  # noqa: ARG002
        """Each gradient without its high frequencies."""
        return {name: self._filtered(value) if value.dim() > 2 else value for name, value in grads.items()}

    def _filtered(self, value: Tensor) -> Tensor:
        axes = spectral_axes(value.shape)
        sizes = tuple(value.shape[a] for a in axes)
        gains = (leading_frequencies if self.one_sided else low_frequencies)(sizes, self.rho)
        spectrum = torch.fft.rfftn(value, dim=axes).mul_(gains.to(value.device))
        filtered: Tensor = torch.fft.irfftn(spectrum, s=sizes, dim=axes)
        return filtered


DENOISER = LowPass
