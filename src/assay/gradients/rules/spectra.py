"""Circular correlations in the frequency domain: the gradients of circulant layers, and GReDP's correlation maps.

For channels x_i and g_o on a grid with periodic sides, the map M_oi[u] = Σ_t g_o[t] x_i[t + u] has the spectrum
x̂_i · conj(ĝ_o) (times √N for unitary transforms of N points). By Parseval's theorem all maps of a record together have

    ‖M‖² = N · Σ_k (Σ_i |x̂_i(k)|²) (Σ_o |ĝ_o(k)|²),

so a norm needs two power spectra, but neither the maps nor their spectra. Real signals need half of the frequencies;
those that also stand for their conjugate count twice.

Norms are safe. The error of a unitary transform in floating point is at most η times the norm of its input, though not
for each coefficient. With a_k and b_k the roots of the two power spectra, the error of ‖a∘b‖ is then at most
η (‖a‖ max b + ‖b‖ max a), and every norm is raised by that.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from assay.gradients.arithmetic import masked

_PIECE = 1 << 18  # numbers whose spectrum fits the cache
_SHORT_SIDE = 30


@functools.lru_cache(maxsize=256)
def _counts(side: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """How many of all `side` frequencies each of the half that `rfft` keeps stands for."""
    counts = torch.full((side // 2 + 1,), 2.0, dtype=dtype, device=device)
    counts[0] = 1.0
    if side % 2 == 0:
        counts[-1] = 1.0
    return counts


def _rough(side: int) -> bool:
    """Whether a prime above 7 divides it, which makes fast transforms slow."""
    for prime in (2, 3, 5, 7):
        while side % prime == 0:
            side //= prime
    return side > 1


@functools.lru_cache(maxsize=256)
def _waves(side: int, length: int, dtype: torch.dtype) -> Tensor:
    """The unitary transform's matrix, [length, side], for signals of this length on a periodic side."""
    turns = torch.arange(length, dtype=torch.float64).unsqueeze(1) * torch.arange(side) / side
    return torch.polar(torch.ones_like(turns) / math.sqrt(side), -math.tau * turns).to(dtype.to_complex())


@dataclass(frozen=True, slots=True)
class Torus:
    """A grid with periodic sides, and the unitary Fourier transform of real signals on it."""

    sides: tuple[int, ...]

    @property
    def points(self) -> int:
        """The number of grid points."""
        return math.prod(self.sides)

    def rounding(self, dtype: torch.dtype) -> float:
        """η: a bound on ‖error‖/‖signal‖ of one transform, with a margin for the products and the inverse.

        The error of one transform is 3.4 eps for each doubling of the size if that is a power of two (Higham 2002,
        "Accuracy and stability of numerical algorithms", Theorem 24.2). Other sizes cost up to three transforms of
        twice the size. Products with the matrices of short sides n have an error of `rounding(dtype, n)` for each
        dimension, which is less.
        """
        return 12.0 * torch.finfo(dtype).eps * math.log2(2 * self.points)

    def spectrum(self, signal: Tensor) -> Tensor:
        """The spectrum over the last dimensions; a signal smaller than the grid is followed by zeros."""
        if self.is_short(signal):
            return self._by_products(signal)
        found: Tensor = torch.fft.rfftn(signal, s=self.sides, dim=self._last, norm="ortho")
        return found

    def signal(self, spectrum: Tensor) -> Tensor:
        """The inverse of `spectrum`."""
        found: Tensor = torch.fft.irfftn(spectrum, s=self.sides, dim=self._last, norm="ortho")
        return found

    @property
    def _last(self) -> tuple[int, ...]:
        return tuple(range(-len(self.sides), 0))

    def counts(self, power: Tensor) -> Tensor:
        """How often each frequency of the last dimension counts (see `_counts`)."""
        return _counts(self.sides[-1], power.dtype, power.device)

    def power(self, signal: Tensor, groups: int = 1) -> Tensor:
        """Power spectrum of each record, summed over the channels of a group: [B, C, ...] to [B, groups, ...].

        It takes as many records at a time as fit the cache: all spectra would be as large as the batch's activations.
        """
        step = max(1, _PIECE // (signal.shape[1] * self.points))
        return torch.cat([power(self.spectrum(part).unflatten(1, (groups, -1)), 2) for part in signal.split(step)])

    def is_short(self, signal: Tensor) -> bool:
        """Whether a CPU multiplies by the transform's matrices as fast as its FFT, or up to twice as fast.

        It does for 34 = 2 · 17, the side of a padded CIFAR image.
        """
        longest = max(self.sides)
        return (
            len(self.sides) > 1
            and (longest <= _SHORT_SIDE or (longest <= 2 * _SHORT_SIDE and any(map(_rough, self.sides))))
            and signal.device.type == "cpu"
            and not torch.is_autocast_enabled("cpu")
        )

    def _by_products(self, signal: Tensor) -> Tensor:
        """The spectrum by products with the matrix of each dimension, one after the other."""
        *lengths, length = signal.shape[-len(self.sides) :]
        rows = torch.view_as_real(_waves(self.sides[-1], length, signal.dtype)[:, : self.sides[-1] // 2 + 1])
        found = torch.view_as_complex((signal @ rows.flatten(1)).unflatten(-1, (-1, 2)))
        for i, side, n in zip(range(-2, -len(self.sides) - 1, -1), self.sides[-2::-1], lengths[::-1], strict=True):
            after = found.shape[i + 1 :]
            found = (_waves(side, n, signal.dtype).t() @ found.flatten(i + 1)).unflatten(-1, after)
        return found


def power(spectra: Tensor, channels: int) -> Tensor:
    """Σ |·|² over the dimension `channels`, raised by what rounding and underflow may have taken from it."""
    n, dtype = spectra.shape[channels], spectra.real.dtype
    total: Tensor = torch.linalg.vecdot(spectra, spectra, dim=channels).real
    return total * (1 + n * torch.finfo(dtype).eps) + 2 * n * torch.finfo(dtype).tiny


def norms(torus: Torus, x: Tensor, g: Tensor, summing: float = 0.0) -> tuple[Tensor, Tensor]:
    """‖M‖ of each record from power spectra [B, groups, ...], and a bound on what rounding has taken from it, both [B].

    `summing` is the fraction of ‖x‖‖g‖ that adding up the record's gradient may lose apart from transforms.
    """
    counts, eps = torus.counts(x), torch.finfo(x.dtype).eps
    all_x, all_g = (x * counts).flatten(2), (g * counts).flatten(2)
    x, g = x.flatten(2), g.flatten(2)
    sq = (all_x * g).sum((1, 2)) * (torus.points * (1 + x[0].numel() * eps))
    off = (all_x.sum(2) * g.amax(2)).sqrt() + (all_g.sum(2) * x.amax(2)).sqrt()
    # √N · off is at least 2‖M‖ and at least 2‖x‖‖g‖, group by group
    part = math.sqrt(torus.points) * (torus.rounding(x.dtype) + summing / 2)
    return sq.sqrt(), torch.linalg.vector_norm(off, dim=1) * part


@dataclass(slots=True)
class Correlations:
    """Maps of every output channel with every input channel of its group, [B, O, I, *sides], known by the spectra.

    `x` is [B, groups, I, ...], `g` is [B, groups, O, ...].
    """

    torus: Torus
    x: Tensor
    g: Tensor

    def norms(self, summing: float = 0.0) -> tuple[Tensor, Tensor]:
        """Norm of each record, and what rounding may have taken from it."""
        return norms(self.torus, power(self.x, 2), power(self.g, 2), summing)

    def sq_norm(self) -> Tensor:
        norm, lost = self.norms()
        return norm.add_(lost).square_()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        scaled = self.g * weights.view(-1, *[1] * (self.g.dim() - 1))
        spectra = torch.bmm(by_frequency(scaled).mH, by_frequency(self.x))
        spectra = spectra.view(self.x.shape[1], -1, *spectra.shape[1:]).permute(0, 2, 3, 1)
        return self._maps(spectra.reshape(*spectra.shape[:3], *self.x.shape[3:])).flatten(0, 1)

    def per_record(self) -> Tensor:
        spectra = self.g.conj().unsqueeze(3) * self.x.unsqueeze(2)
        return self._maps(spectra).flatten(1, 2)

    def _maps(self, spectra: Tensor) -> Tensor:
        return self.torus.signal(spectra).mul_(math.sqrt(self.torus.points))

    def without(self, bad: Tensor) -> Correlations:
        return Correlations(self.torus, masked(self.x, bad), masked(self.g, bad))


def by_frequency(spectra: Tensor) -> Tensor:
    """[B, groups, C, ...] to [groups · frequencies, B, C], contiguous: products of strided matrices are slow."""
    return spectra.flatten(3).permute(1, 3, 0, 2).flatten(0, 1).contiguous()
