"""Which axes of a parameter a Fourier transform runs over, and which of its frequencies are low."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from assay._util.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def spectral_axes(shape: Sequence[int]) -> tuple[int, ...]:
    """The axes of a parameter that its Fourier transform runs over.

    These are all but the first two for kernels [out, in, *size] and block-circulant weights [rows, columns, block], and
    the last one for matrices and vectors.
    """
    return tuple(range(2, len(shape))) if len(shape) > 2 else (len(shape) - 1,)


@functools.lru_cache(maxsize=256)
def low_frequencies(sizes: tuple[int, ...], rho: float) -> Tensor:
    """Which frequencies of a real transform stay: those within a radius that holds about ρN of the N frequencies.

    Frequencies are folded, and each axis is measured in units of its size. The radius is the one whose count is nearest
    to ρN, the smaller of two that are equally near. It treats k and -k alike, so the inverse transform is real.

    Args:
        sizes: The sizes of the transformed axes.
        rho: The share of frequencies to keep.

    Returns:
        A mask of shape [*sizes[:-1], sizes[-1]//2 + 1].
    """
    folded = [torch.fft.fftfreq(n, dtype=torch.float64) for n in sizes]
    radius = sum(f.square().view([-1 if i == j else 1 for j in range(len(sizes))]) for i, f in enumerate(folded))
    assert isinstance(radius, torch.Tensor)
    levels, counts = radius.mul(1e12).round().unique(return_counts=True)
    nearest = int((counts.cumsum(0) - rho * math.prod(sizes)).abs().argmin())
    kept: Tensor = radius.mul(1e12).round() <= levels[nearest]
    return kept[..., : sizes[-1] // 2 + 1].contiguous()


@functools.lru_cache(maxsize=256)
def leading_frequencies(sizes: tuple[int, ...], rho: float) -> Tensor:
    """What the filter of Spectral-DP's public code leaves of each frequency: it keeps the first ⌈ρn⌉ of each axis.

    Nobody folds frequencies here: index k stays and its conjugate -k goes, unless that is among the first as well. With
    one axis (circulant blocks) the real part is taken, which has half of both. So a frequency keeps all (the mean
    does), half or nothing of itself. With more axes (convolutions) the code inverts by `irfftn`, which reads one half
    of the last axis and fills in the conjugates. The real part is then taken only where that axis is its own conjugate.

    Args:
        sizes: The sizes of the transformed axes.
        rho: The share of frequencies to keep on each axis.

    Returns:
        Gains of 0, ½ or 1, of shape [*sizes[:-1], sizes[-1]//2 + 1].
    """
    kept = torch.ones(sizes, dtype=torch.float64)
    for axis, n in enumerate(sizes):
        kept.narrow(axis, math.ceil(rho * n), n - math.ceil(rho * n)).zero_()
    axes, half = tuple(range(len(sizes))), sizes[-1] // 2 + 1
    gains: Tensor = (kept + kept.flip(axes).roll([1] * len(sizes), axes)) / 2
    if len(sizes) > 1:
        filled = slice(1, (sizes[-1] + 1) // 2)
        gains[..., filled] = kept[..., filled]
    return gains[..., :half].contiguous()
