"""Laplacian smoothing of a released gradient.

Wang, Gu, Boedihardjo, Wang, Barekat and Osher: "DP-LSSGD: A Stochastic Optimization Method to Lift the Utility in
Privacy-Preserving ERM", MSML 2020, arXiv:1906.12056.

A_σ = I - σL, where L is the periodic one-dimensional Laplacian, is circulant with eigenvalues
λ_k = 1 + 2σ - 2σ cos(2πk/d). So A_σ⁻¹ g is one division in the frequency domain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from assay._util.lazy import torch
from assay.errors import ConfigError
from assay.mechanisms.types import Grads

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK = 1024  # smaller blocks overlap too much, larger ones do not fit into the cache


@dataclass(frozen=True, kw_only=True)
class Laplacian:
    """g ← A_σ⁻¹ g, over the whole parameter vector in the order given (as published) or over each tensor by itself.

    The sum of the coordinates stays the same and the l2 norm never grows. White noise of variance s² becomes noise of
    variance β·s² in each coordinate, correlated between neighbours. σ = 0 changes nothing.

    Attributes:
        sigma: σ.
        over: "vector" (all parameters as one vector) or "tensor" (each by itself).

    Raises:
        ConfigError: σ is negative or not finite, or `over` is neither.
    """

    sigma: float = 1.0
    over: str = "vector"

    name: ClassVar[str] = "laplacian"
    needs_white: ClassVar[bool] = False
    keeps_white: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 <= self.sigma < math.inf:
            raise ConfigError("laplacian sigma", self.sigma, "a finite number, 0 or above")
        if self.over not in ("vector", "tensor"):
            raise ConfigError("laplacian over", self.over, "vector (all parameters as one) or tensor (each by itself)")

    def __call__(self, grads: Grads, noise_std: float) -> Grads:  # noqa: ARG002
        """The smoothed gradients."""
        if self.over == "tensor":
            return {name: smooth(v.reshape(-1), self.sigma).view(v.shape) for name, v in grads.items()}
        if not grads:
            return grads
        whole = smooth(torch.cat([v.reshape(-1) for v in grads.values()]), self.sigma)
        pieces = whole.split_with_sizes([v.numel() for v in grads.values()])
        return {n: piece.view(v.shape).to(v.dtype) for (n, v), piece in zip(grads.items(), pieces, strict=True)}


def smooth(g: Tensor, sigma: float) -> Tensor:
    """A_σ⁻¹ g for a vector g, exact up to rounding. Numbers of fewer than 32 bits are computed in 32.

    A transform of all d numbers at once is slow whenever d has a large prime factor. But coordinate i of the solution
    depends on coordinate j as α^|i-j| (Lemma 7 of the paper, `_decay`). So we cut a long vector into blocks that
    overlap by r on both sides, solve each block as if it were periodic, and drop r coordinates at each end. The error
    is at most 4α^r · max|g|, and r is chosen so that this is below the rounding of the transform itself.

    >>> smooth(torch.tensor([1.0, 0.0, 0.0, 0.0]), 0.0)
    tensor([1., 0., 0., 0.])
    """
    if sigma == 0 or len(g) < 2:
        return g
    values = g if g.dtype in (torch.float32, torch.float64) else g.float()
    d = len(values)
    margin = math.ceil(math.log(16 / torch.finfo(values.dtype).eps) / _decay(sigma))
    size = max(_BLOCK, 1 << (16 * margin - 1).bit_length())
    if d <= size:
        return _solved(values, sigma).to(g.dtype)
    step = size - 2 * margin
    count = -(-d // step)
    padded = torch.cat([values[d - margin :], values, values[:margin], values.new_zeros(count * step - d)])
    solved = _solved(padded.unfold(0, size, step), sigma)
    return solved[:, margin : margin + step].reshape(-1)[:d].to(g.dtype)


def _decay(sigma: float) -> float:
    """-log α for the α of Lemma 7, (1 + 2σ - √(1+4σ))/(2σ), in a form that loses no digits when σ is large."""
    return 2 * math.asinh(0.5 / math.sqrt(sigma))


def _solved(values: Tensor, sigma: float) -> Tensor:
    """A_σ⁻¹ along the last dimension, by the real FFT."""
    n = values.shape[-1]
    spectrum: Tensor = torch.fft.rfft(values).mul_(_response(sigma, n, values.dtype, values.device))
    solved: Tensor = torch.fft.irfft(spectrum, n=n)
    return solved


@lru_cache(maxsize=64)
def _response(sigma: float, n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """1/λ_k for k = 0..n/2."""
    angle = torch.arange(n // 2 + 1, dtype=torch.float64) * (math.pi / n)
    return (1 / (1 + 4 * sigma * torch.sin(angle).square())).to(device=device, dtype=dtype)


DENOISER = Laplacian
