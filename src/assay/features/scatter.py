"""The scattering transform: wavelets, modulus, local averages. It has no learned constants.

Bruna and Mallat: "Invariant Scattering Convolution Networks", IEEE TPAMI 35(8), 2013, arXiv:1203.1513. As features for
private training: Tramèr and Boneh: "Differentially Private Learning Needs Better Features (or Much More Data)", ICLR
2021, arXiv:2011.11660.

The filters and the values are kymatio's. We apply the filters to a few pictures and all angles at a time, so that the
data stays in a core's cache. On small pictures this is several times faster than one path after the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, reduce
from importlib.metadata import version
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from assay.errors import ConfigError, one_of
from assay.features.pictures import check_picture

_NORMS = ("group", "none")
_MOST = {"J": 10, "L": 64}  # enough for sides of 1024 pixels, which cannot resolve more angles
_TOGETHER = 3  # channels normalised together: Tramèr and Boneh take 27 groups of 81 channels
_AT_ONCE = 8  # pictures of one channel whose maps fit into a core's cache


@dataclass(frozen=True, kw_only=True)
class Scatter:
    """Orders 0 to 2 at J scales and L angles: 1 + JL + L²J(J-1)/2 maps per channel, each side divided by 2^J.

    Attributes:
        J: the number of scales.
        L: the number of angles.
        norm: "group" brings each group of three maps of a record to mean 0 and variance 1 (GroupNorm without
            parameters), by statistics of that record alone. "none" leaves them as they are.

    Raises:
        ConfigError: a setting is out of range.
    """

    name: ClassVar[str] = "scatter"

    J: int = 2
    L: int = 8
    norm: str = "group"

    def __post_init__(self) -> None:
        for field, most in _MOST.items():
            if not 1 <= getattr(self, field) <= most:
                raise ConfigError(f"features scatter {field}", getattr(self, field), f"a whole number from 1 to {most}")
        if self.norm not in _NORMS:
            raise ConfigError("features scatter norm", self.norm, one_of(self.norm, _NORMS))

    def check(self, shape: tuple[int, ...]) -> None:
        check_picture(self, shape, least=2**self.J)

    def made_with(self) -> str:
        return f"filters of kymatio {version('kymatio')}"

    def extract(self, x: Tensor) -> Tensor:
        height, width = x.shape[2:]
        maps: Tensor = (
            _bank(self.J, self.L, height, width).scattered(x.flatten(0, 1)).unflatten(0, x.shape[:2]).flatten(1, 2)
        )
        if self.norm == "none":
            return maps
        channels = maps.shape[1]
        return F.group_norm(maps, channels // _TOGETHER if channels % _TOGETHER == 0 else 1)

    def describe(self) -> str:
        scaled = ", each group of maps of a record brought to mean 0 and variance 1" if self.norm == "group" else ""
        return f"scattering transform with {self.J} scales and {self.L} angles{scaled} ({self.made_with()})"


@dataclass(frozen=True)
class _Bank:
    """Filters for pictures of one size, in the frequency domain of the padded picture. Each level halves its sides."""

    pad: Callable[[Tensor], Tensor]
    """[N, height, width] to [N, height, width, 1] with a margin of reflections."""
    wavelets: tuple[tuple[Tensor, ...], ...]
    """For each scale j and each level up to j: [L, height, width]."""
    averages: tuple[tuple[Tensor, Tensor], ...]
    """For each level: matrices that average a map's columns and rows and keep one of 2^J places, without the margin."""

    def scattered(self, x: Tensor) -> Tensor:
        """Orders 0, 1 and 2 of pictures [N, height, width] in kymatio's order: [N, maps, height / 2^J, width / 2^J]."""
        if torch.compiler.is_exporting():  # a program takes any number of pictures
            return self._scattered(x)
        return torch.cat([self._scattered(pictures) for pictures in x.split(_AT_ONCE)])

    def _scattered(self, x: Tensor) -> Tensor:
        padded = self.pad(x).permute(0, 3, 1, 2)
        spectrum, scales = _spectrum(padded), len(self.wavelets)
        first, second = [], []
        for j in range(scales):
            map_j = self._modulus(spectrum, j, 0)  # [N, L, height, width]
            first.append(self._averaged(map_j, j))
            if j + 1 < scales:
                spectra = tuple(piece[:, :, None] for piece in _spectrum(map_j))
                paths = [self._averaged(self._modulus(spectra, k, j), k) for k in range(j + 1, scales)]
                second.append(torch.cat(paths, 2).flatten(1, 2))
        return torch.cat([self._averaged(padded, 0), *first, *second], 1)

    def _modulus(self, spectrum: tuple[Tensor, ...], scale: int, level: int) -> Tensor:
        """|x ⋆ ψ| for all angles of a scale, at the level of that scale, from the `spectrum` of a map at `level`."""
        wavelets, times = self.wavelets[scale][level], 2 ** (scale - level)
        height, width = wavelets.shape[-2] // times, wavelets.shape[-1] // times
        pieces = [
            (..., slice(row * height, (row + 1) * height), slice(column * width, (column + 1) * width))
            for row, column in itertools.product(range(times), repeat=2)
        ]
        # Keeping every times-th place of a map folds its spectrum. Piece by piece, the data stays in the cache.
        folded = [reduce(torch.add, (part[piece] * wavelets[piece] for piece in pieces)) for part in spectrum]
        if len(folded) == 1:
            modulus: Tensor = torch.fft.ifft2(folded[0]).abs().div_(times**2)
            return modulus
        real, imaginary = _fourier((folded[0], folded[1]), 1)
        length: Tensor = (real.square() + imaginary.square()).sqrt()
        return length / float(height * width * times**2)

    def _averaged(self, maps: Tensor, level: int) -> Tensor:
        columns, rows = self.averages[level]
        return columns @ maps @ rows


def _spectrum(maps: Tensor) -> tuple[Tensor, ...]:
    """The Fourier transform of maps as one complex tensor; in an exported program as two, real and imaginary.

    Other programs, ONNX among them, know no complex numbers.
    """
    if not torch.compiler.is_exporting():
        return (torch.fft.fft2(maps),)
    return _fourier((maps, torch.zeros_like(maps)), -1)


def _fourier(maps: tuple[Tensor, Tensor], sign: int) -> tuple[Tensor, Tensor]:
    """The sums Σ x exp(sign · 2πi (jk/height + lm/width)), by matrices of cosines and sines."""
    height, width = maps[0].shape[-2:]
    return _times(_times(_waves(height, sign), maps), _waves(width, sign))


def _waves(count: int, sign: int) -> tuple[Tensor, Tensor]:
    places = torch.arange(count, dtype=torch.float64)
    angles = 2 * torch.pi * (places[:, None] * places % count) / count
    return angles.cos().float(), sign * angles.sin().float()


def _times(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The product of two complex matrices, each as its real and its imaginary part."""
    return a[0] @ b[0] - a[1] @ b[1], a[0] @ b[1] + a[1] @ b[0]


@lru_cache(maxsize=4)
def _bank(J: int, L: int, height: int, width: int) -> _Bank:
    # kymatio's usual entry point imports modules that current SciPy no longer has.
    from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D

    made = ScatteringTorch2D(J=J, shape=(height, width), L=L)
    wavelets = tuple(
        tuple(
            torch.stack([torch.from_numpy(level) for level in levels])
            for levels in zip(*_of_scale(made, j), strict=True)
        )
        for j in range(J)
    )
    averages = []
    for level, low in enumerate(made.phi["levels"]):
        # An isotropic Gaussian is one along the columns times one along the rows.
        whole, times = torch.from_numpy(low).double(), 2 ** (J - level)
        root = whole[0, 0].sqrt()
        averages.append((_average(whole[:, 0] / root, times), _average(whole[0] / root, times).T.contiguous()))
    return _Bank(made.pad, wavelets, tuple(averages))


def _of_scale(made: Any, scale: int) -> list[list[NDArray[np.float32]]]:
    return [wavelet["levels"] for wavelet in made.psi if wavelet["j"] == scale]


def _average(low: Tensor, times: int) -> Tensor:
    """The matrix that filters a vector with this spectrum and keeps every `times`-th number, without the margin."""
    spectra = torch.fft.fft(torch.eye(len(low), dtype=low.dtype)) * low
    kept: Tensor = torch.fft.ifft(spectra.view(len(low), times, -1).mean(1)).real.T
    return kept[1:-1].float().contiguous()
